/* io/team.c - see team.h. A run is announced by a new generation number; every worker checks in for
 * every run, so that none can still be looking at the last one when the next begins. */
#include "io/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Two kernels of one layer follow each other within a few microseconds; a sleep and a wake-up cost
 * about 50. Longer spinning would only take the core from whoever else wants it. */
enum { SPIN_NS = 20000, PAUSES_PER_LOOK = 32 };

typedef struct Worker {
    Team *team;
    pthread_t thread;
    int index;
} Worker;

struct Team {
    int n_threads, n_started; /* n_started counts workers; the caller is thread 0 */
    Worker *workers;
    void (*fn)(void *ctx, int task, int thread);
    void *ctx;
    unsigned n_tasks;
    bool stop;
    _Atomic int64_t spin_ns;
    /* The counter that every thread hits for every task has a cache line of its own. */
    _Alignas(64) atomic_uint next;
    _Alignas(64) atomic_uint generation;
    atomic_uint n_asleep;
    _Alignas(64) atomic_uint n_running; /* workers that have not checked in */
    atomic_uint caller_asleep;
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int how_many)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, how_many, NULL, NULL, 0);
}

static void pause_briefly(void)
{
    for (int i = 0; i < PAUSES_PER_LOOK; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins while *word == value; true once it has changed, false when the patience is over. */
static bool spin_while(Team *t, atomic_uint *word, unsigned value)
{
    if (atomic_load_explicit(word, memory_order_acquire) != value)
        return true;
    int64_t until = now_ns() + atomic_load_explicit(&t->spin_ns, memory_order_relaxed);
    do {
        pause_briefly();
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return true;
    } while (now_ns() < until);
    return false;
}

static void work(Team *t, int thread)
{
    for (;;) {
        unsigned task = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (task >= t->n_tasks)
            return;
        t->fn(t->ctx, (int)task, thread);
    }
}

static void *worker_main(void *arg)
{
    Worker *w = arg;
    Team *t = w->team;
    for (unsigned seen = 0;; seen++) {
        if (!spin_while(t, &t->generation, seen)) {
            atomic_fetch_add(&t->n_asleep, 1);
            while (atomic_load(&t->generation) == seen)
                futex_wait(&t->generation, seen);
            atomic_fetch_sub(&t->n_asleep, 1);
        }
        if (t->stop)
            return NULL;
        work(t, w->index);
        if (atomic_fetch_sub(&t->n_running, 1) == 1 && atomic_load(&t->caller_asleep))
            futex_wake(&t->n_running, 1);
    }
}

static void start_generation(Team *t)
{
    atomic_fetch_add(&t->generation, 1);
    if (atomic_load(&t->n_asleep))
        futex_wake(&t->generation, INT32_MAX);
}

Status team_create(Team **out, int n_threads, Err *e)
{
    *out = NULL;
    if (n_threads < 1)
        return err_set(e, ST_USAGE, "a team of %d threads", n_threads);
    Team *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
    if (!t)
        return err_set(e, ST_MEMORY, "no memory for a team of threads");
    memset(t, 0, sizeof *t);
    t->n_threads = n_threads;
    t->spin_ns = SPIN_NS;
    t->workers = calloc((size_t)n_threads, sizeof *t->workers);
    if (!t->workers) {
        free(t);
        return err_set(e, ST_MEMORY, "no memory for a team of %d threads", n_threads);
    }
    /* Signals are for the thread that made the team: it is the one that looks at their flags. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = 0;
    for (int i = 1; i < n_threads && !failed; i++) {
        Worker *w = &t->workers[t->n_started];
        *w = (Worker){.team = t, .index = i};
        failed = pthread_create(&w->thread, NULL, worker_main, w);
        if (!failed)
            t->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) {
        errno = failed;
        err_errno(e, "thread %d of %d does not start", t->n_started + 2, n_threads);
        team_destroy(t);
        return ST_IO;
    }
    *out = t;
    return ST_OK;
}

void team_destroy(Team *t)
{
    if (!t)
        return;
    t->stop = true;
    start_generation(t);
    for (int i = 0; i < t->n_started; i++)
        pthread_join(t->workers[i].thread, NULL);
    free(t->workers);
    free(t);
}

int team_size(const Team *t)
{
    return t ? t->n_threads : 1;
}

void team_patience(Team *t, int64_t ns)
{
    if (t)
        atomic_store_explicit(&t->spin_ns, ns > 0 ? ns : SPIN_NS, memory_order_relaxed);
}

void team_run(Team *t, int n_tasks, void (*fn)(void *ctx, int task, int thread), void *ctx)
{
    if (!t || t->n_started == 0 || n_tasks <= 1) {
        for (int task = 0; task < n_tasks; task++)
            fn(ctx, task, 0);
        return;
    }
    t->fn = fn;
    t->ctx = ctx;
    t->n_tasks = (unsigned)n_tasks;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->n_running, (unsigned)t->n_started, memory_order_relaxed);
    start_generation(t);
    work(t, 0);
    for (unsigned left; (left = atomic_load(&t->n_running)) != 0;) {
        if (spin_while(t, &t->n_running, left))
            continue;
        atomic_store(&t->caller_asleep, 1);
        left = atomic_load(&t->n_running);
        if (left)
            futex_wait(&t->n_running, left);
        atomic_store(&t->caller_asleep, 0);
    }
}
