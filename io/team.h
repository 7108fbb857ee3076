/* io/team.h - a rank's persistent team of threads.
 *
 * Tasks are dealt by an atomic counter, so which thread runs which task varies; results must not
 * depend on it. Waiting threads spin briefly and then sleep. */
#ifndef MB_IO_TEAM_H
#define MB_IO_TEAM_H

#include "io/err.h"

#include <stdint.h>

typedef struct Team Team;

/* n_threads >= 1, the caller included. */
Status team_create(Team **out, int n_threads, Err *e);
void team_destroy(Team *t); /* NULL is fine */
int team_size(const Team *t);

/* Runs fn(ctx, task, thread) for task = 0 .. n_tasks-1, thread = 0 .. team_size-1 (0 is the
 * caller), and returns when all are done. Not reentrant; only the thread that made the team may
 * call it. t may be NULL: then the caller runs all tasks. */
void team_run(Team *t, int n_tasks, void (*fn)(void *ctx, int task, int thread), void *ctx);

/* Waiting threads, the caller included, spin for ns before they sleep; 0: for 20 us, as at first. Worth
 * more where runs of a few microseconds follow each other, on cores that nobody else wants. Only
 * between runs, and only the thread that made the team; t may be NULL. */
void team_patience(Team *t, int64_t ns);

#endif
