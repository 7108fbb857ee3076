/* dist/comm.h - the ranks of a job: who they are, how they agree, and how long they wait.
 *
 * Under mpirun or srun this is MPI; started alone it is one rank and MPI is never initialised.
 * Every wait has a deadline: a watchdog thread that sees none of them end for wait_timeout_s
 * prints one line (rank, host, step, layer, collective) and aborts the job with exit code 75,
 * since everything finished is in the journal. */
#ifndef MB_DIST_COMM_H
#define MB_DIST_COMM_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Comm {
    int rank, size;
    int local_rank, n_local; /* among the ranks of this node */
    /* this rank's share of the cores it may run on: what it should start threads for */
    int n_cores;
    char host[64];
    struct CommState *state; /* MPI handles and the watchdog */
} Comm;

/* Collective over everything that was started together. argc and argv may be changed by MPI.
 * Where ranks outnumber cores it asks Open MPI to yield while waiting, unless
 * OMPI_MCA_mpi_yield_when_idle says otherwise; a rank that mpirun has bound to one core by
 * default, unasked, may run on all of mpirun's cores afterwards. Fails with ST_COMM when the
 * launcher started several processes that MPI takes for single ones (another MPI's mpirun, srun
 * without its PMIx plugin); nothing is held then. The Comm must not move in memory until
 * comm_end. */
Status comm_start(int *argc, char ***argv, Comm *out, Err *e);
/* This process's rank as the launcher's environment gives it, before comm_start and without MPI;
 * 0 when started alone. For what one rank should say for all, such as a wrong option. */
int comm_launched_rank(void);
/* Collective. After it no Comm function may be called. NULL, and a Comm whose start failed, are
 * fine. */
void comm_end(Comm *c);

/* Starts the watchdog; seconds <= 0, or one rank alone, leaves it off; a second call replaces
 * the first. hook, if not NULL, runs before the abort (flush the journal) in the watchdog's
 * thread, while the rank's own is inside MPI. Not collective. */
Status comm_watch(Comm *c, double seconds, void (*hook)(void *ctx), void *ctx, Err *e);
/* Says where this rank is, for the watchdog's message. step or layer < 0: not in one. name:
 * static storage. */
void comm_at(Comm *c, int64_t step, int layer, const char *name);

/* Around a wait for a device that itself waits for other ranks: the watchdog counts it like a
 * collective of that name (static storage). Does not nest, also not with the functions below. */
void comm_wait_begin(Comm *c, const char *name);
void comm_wait_end(Comm *c);

/* Collective. Each rank brings its own outcome; all return the same one, that of the lowest
 * failing rank, with its message and rank in *e. A rank that failed with ST_COMM counts only
 * where no rank has another failure, since its message rarely says more than that somebody else
 * failed. On entry *e is this rank's message if mine is not ST_OK, else ignored. When all is
 * well this costs one 4-byte allreduce. */
Status dist_agree(Comm *c, Status mine, Err *e);
/* Prints "moebatch: rank R (host): TEXT", then ends every rank with that exit code; where the watchdog
 * ends the job already, leaves that to it. Does not return. */
_Noreturn void dist_abort(Comm *c, int exit_code, const Err *e);

/* Collectives over bytes; counts per rank are the same on every rank. Any size_t length works.
 * mine must not lie inside all. An MPI error comes back as ST_COMM with MPI's own text, and what
 * the other ranks saw is then unknown: the caller reports it and leaves. */
/* all: [size * bytes] */
Status comm_allgather(Comm *c, const void *mine, size_t bytes, void *all, Err *e);
Status comm_bcast(Comm *c, void *data, size_t bytes, int root, Err *e);
/* all: root only */
Status comm_gather(Comm *c, const void *mine, size_t bytes, void *all, int root, Err *e);
Status comm_min_int64(Comm *c, int64_t *values, int n, Err *e); /* element-wise, in place */
Status comm_max_int64(Comm *c, int64_t *values, int n, Err *e);
Status comm_sum_int64(Comm *c, int64_t *values, int n, Err *e);
Status comm_barrier(Comm *c, Err *e);

#endif
