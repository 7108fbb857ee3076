/* jobs/signals.h - SIGTERM, SIGINT and SIGUSR1 ask for a clean stop; a second SIGINT ends at once. */
#ifndef MB_JOBS_SIGNALS_H
#define MB_JOBS_SIGNALS_H

#include "io/err.h"

#include <stdbool.h>

Status signals_install(Err *e);
bool signals_stop(void);

#endif
