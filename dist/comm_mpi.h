/* dist/comm_mpi.h - what a Comm is made of; for dist/ only, so that MPI stays in this room. */
#ifndef MB_DIST_COMM_MPI_H
#define MB_DIST_COMM_MPI_H

#include "dist/comm.h"
#include "dist/watchdog.h"

#include <mpi.h>

struct CommState {
    bool mpi_started;
    bool by_mpirun;     /* Open MPI's mpirun started the ranks; seen before MPI starts */
    MPI_Comm mpi;       /* our own copy of the world; MPI_COMM_NULL when MPI was not started */
    Watchdog *watchdog; /* never NULL */
    /* MPI counts are int: longer byte transfers go in pieces of this size. A field, so that a test
     * can use the path for long ones without gigabytes. */
    size_t piece_bytes;
};

/* "CALL: MPI's own text" as ST_COMM. */
Status comm_mpi_error(Err *e, int code, const char *call);
/* "moebatch: rank R (host): TEXT" on stderr, in one write. */
void comm_print_error(const Comm *c, const Err *e);

/* Ends every rank with that exit code, without a word of ours. Under mpirun this rank just leaves: mpirun ends
 * the others then, while MPI_Abort makes it crash or hang now and then (Open MPI 4.1.4, up to one time of twenty,
 * in PMIx_server_finalize). srun would let the others be, and needs the abort, which may not return. */
_Noreturn void comm_leave(const Comm *c, int exit_code);

/* Status of an MPI call that waits for other ranks, with the watchdog looking at it meanwhile. */
#define COMM_WAIT(comm, err, call_name, call)                                                      \
    (watchdog_enter((comm)->state->watchdog, call_name),                                           \
     comm_waited((comm), (err), call_name, (call)))

/* The second half of COMM_WAIT: leaves the watchdog, and turns MPI's code into a Status. */
Status comm_waited(Comm *c, Err *e, const char *call_name, int code);

#endif
