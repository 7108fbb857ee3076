/* dist/comm.h - the ranks of a job: who they are, how they agree, and how long they wait.
 *
 * Under mpirun or srun this is MPI; started alone it is one rank and MPI is never initialised. Every wait has a
 * deadline: a watchdog thread that sees none of them end for wait_timeout_s prints one line (rank, host, step,
 * layer, collective) and aborts the job with exit code 75, since everything finished is in the journal. */
#ifndef MB_DIST_COMM_H
#define MB_DIST_COMM_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Comm {
    int rank, size;
    int local_rank, n_local; /* among the ranks of this node */
    char host[64];
    struct CommState *state; /* MPI handles and the watchdog */
} Comm;

/* Collective over everything that was started together. argc and argv may be changed by MPI. */
Status comm_start(int *argc, char ***argv, Comm *out, Err *e);
/* Collective. After it no Comm function may be called. */
void comm_end(Comm *c);

/* Starts the watchdog; seconds <= 0 leaves it off. hook, if not NULL, runs before the abort (flush the journal);
 * it must be safe to call from another thread. */
Status comm_watch(Comm *c, double seconds, void (*hook)(void *ctx), void *ctx, Err *e);
/* Says where this rank is, for the watchdog's message. step or layer < 0: not in one. name: static storage. */
void comm_at(Comm *c, int64_t step, int layer, const char *name);

/* Collective. Each rank brings its own outcome; all return the same one, that of the lowest failing rank, with its
 * message and rank in *e. When all is well this costs one small allreduce. */
Status dist_agree(Comm *c, Status mine, Err *e);
/* Prints "moebatch: rank R (host): TEXT", then ends every rank with that exit code. Does not return. */
_Noreturn void dist_abort(Comm *c, int exit_code, const Err *e);

/* Collectives over bytes; counts per rank are the same on every rank. Any size_t length works. */
Status comm_allgather(Comm *c, const void *mine, size_t bytes, void *all, Err *e); /* all: [size * bytes] */
Status comm_bcast(Comm *c, void *data, size_t bytes, int root, Err *e);
Status comm_gather(Comm *c, const void *mine, size_t bytes, void *all, int root, Err *e); /* all: root only */
Status comm_min_int64(Comm *c, int64_t *values, int n, Err *e); /* element-wise, in place */
Status comm_max_int64(Comm *c, int64_t *values, int n, Err *e);
Status comm_sum_int64(Comm *c, int64_t *values, int n, Err *e);
Status comm_barrier(Comm *c, Err *e);

#endif
