/* tests/io/test_team.c - every task runs exactly once, by a thread that exists, before team_run
 * returns. */
#include "io/team.h"
#include "tests/support/check.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_TASKS = 5000, MOST_THREADS = 17 };

typedef struct Tally {
    int runs[MOST_TASKS]; /* plain on purpose: the team must order these writes before its return */
    int threads, bad_thread;
    int nap_us;
    atomic_int
        inside[MOST_THREADS]; /* two tasks at once under one thread number would share scratch */
} Tally;

static void count(void *ctx, int task, int thread)
{
    Tally *tally = ctx;
    if (thread < 0 || thread >= tally->threads || atomic_fetch_add(&tally->inside[thread], 1) != 0)
        tally->bad_thread = 1;
    tally->runs[task]++;
    if (tally->nap_us) {
        struct timespec t = {0, tally->nap_us * 1000};
        nanosleep(&t, NULL);
    }
    atomic_fetch_sub(&tally->inside[thread], 1);
}

static const struct {
    const char *name;
    int threads, tasks, rounds, nap_us, pause_us;
} cases[] = {
    {"no tasks", 3, 0, 3, 0, 0},
    {"one task", 3, 1, 3, 0, 0},
    {"one thread", 1, 100, 3, 0, 0},
    {"fewer tasks than threads", 5, 2, 50, 0, 0},
    {"many tiny tasks", 2, 5000, 3, 0, 0},
    {"back to back", 4, 7, 2000, 0, 0},
    {"more threads than cores", 17, 40, 50, 0, 0},
    {"workers asleep between runs", 3, 9, 10, 0, 2000},
    {"caller sleeps for the last worker", 2, 3, 5, 1500, 0},
};

int main(void)
{
    int failed = 0;
    Err e;
    Tally *tally = malloc(sizeof *tally);
    if (!tally)
        return test_result(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Team *t = NULL;
        failed += check_int(cases[i].name, team_create(&t, cases[i].threads, &e), ST_OK);
        failed += check_int(cases[i].name, team_size(t), cases[i].threads);
        memset(tally, 0, sizeof *tally);
        tally->threads = cases[i].threads;
        tally->nap_us = cases[i].nap_us;
        int wrong = 0;
        for (int round = 1; round <= cases[i].rounds; round++) {
            team_run(t, cases[i].tasks, count, tally);
            for (int k = 0; k < MOST_TASKS; k++)
                wrong += tally->runs[k] != (k < cases[i].tasks ? round : 0);
            struct timespec pause = {0, cases[i].pause_us * 1000};
            if (cases[i].pause_us)
                nanosleep(&pause, NULL);
        }
        failed += check_int(cases[i].name, wrong, 0);
        failed += check_int(cases[i].name, tally->bad_thread, 0);
        team_destroy(t);
    }
    memset(tally, 0, sizeof *tally);
    tally->threads = 1;
    team_run(NULL, 10, count, tally);
    failed += check_int("no team: the caller runs all", tally->runs[9], 1);
    failed += check_int("no team", team_size(NULL), 1);
    Team *t = NULL;
    failed += check_int("zero threads", team_create(&t, 0, &e), ST_USAGE);
    failed += check_true("zero threads", t == NULL);
    team_destroy(NULL);
    free(tally);
    return test_result(failed);
}
