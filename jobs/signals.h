/* jobs/signals.h - SIGTERM, SIGINT and SIGUSR1 ask for a clean stop; a second SIGINT ends at once.
 *
 * Slurm sends SIGUSR1 ahead of the time limit (--signal=B:USR1@120) and SIGTERM at it; mpirun
 * forwards SIGUSR1 and leaves one second after SIGTERM. */
#ifndef MB_JOBS_SIGNALS_H
#define MB_JOBS_SIGNALS_H

#include "io/err.h"

#include <stdbool.h>

/* After MPI_Init. Also turns SIGPIPE and SIGXFSZ into errors of the write that met them, since a
 * closed terminal or a size limit must not end a job without its journal. System calls that were
 * interrupted are restarted. */
Status signals_install(Err *e);
/* True once a stop was asked for. Cheap; from any thread. */
bool signals_stop(void);
/* What asked for it: "SIGTERM", "SIGINT" or "SIGUSR1", the first one; NULL when nothing did. */
const char *signals_name(void);

#endif
