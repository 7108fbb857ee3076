/* dist/watchdog.h - the thread that ends a job whose ranks wait for each other in vain; for dist/
 * only.
 *
 * The waits themselves stay plain blocking calls: the thread only looks at a time stamp that is set
 * while one of them runs. It is the only way to notice a host that lost its network link, since MPI
 * does not. */
#ifndef MB_DIST_WATCHDOG_H
#define MB_DIST_WATCHDOG_H

#include "dist/comm.h"

enum { EXIT_REQUEUE = 75 }; /* finished rows are safe: start the job again */

typedef struct Watchdog Watchdog;

/* One for each Comm, made by comm_start; its thread starts with watchdog_run. */
Status watchdog_create(Watchdog **out, const Comm *comm, Err *e);
/* Stops the thread. NULL is fine. */
void watchdog_destroy(Watchdog *w);

/* See comm_watch. A second call replaces the first. */
Status watchdog_run(Watchdog *w, double seconds, void (*hook)(void *ctx), void *ctx, Err *e);
/* See comm_at. */
void watchdog_at(Watchdog *w, int64_t step, int layer, const char *name);

/* Around each call that waits for other ranks. collective: static storage. Only the thread that
 * owns the Comm calls them; they do not nest. */
void watchdog_enter(Watchdog *w, const char *collective);
/* Returns the seconds since enter. */
double watchdog_leave(Watchdog *w);

#endif
