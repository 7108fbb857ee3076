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
/* Does not return while the thread ends the job: who waited for the device that it aborts must not end
 * the job before it, with another exit code. */
void watchdog_let_end(const Watchdog *w);
/* See comm_at. */
void watchdog_at(Watchdog *w, int64_t step, int layer, const char *name);
/* What was said last. */
typedef struct WatchedPlace {
    int64_t step;
    int layer;
    const char *name; /* NULL: nothing */
} WatchedPlace;
WatchedPlace watchdog_place(const Watchdog *w);

/* A device that waits for other ranks by itself, while the host is ahead of it or waits for it. The
 * thread looks for trouble all the time, not only during a wait, and ends the job when there is
 * some. */
typedef struct WatchedDevice {
    const char *(*trouble)(void *ctx); /* what has gone wrong, or NULL */
    void (*abort)(void *ctx);          /* ends what waits there; may hang */
    void *ctx;
    const volatile int32_t *mark; /* where it is: 2 * layer + 1 at dispatch, + 2 at combine */
} WatchedDevice;
/* Borrowed until the next call; NULL: there is none. */
void watchdog_device(Watchdog *w, const WatchedDevice *device);

/* Around each call that waits for other ranks. collective: static storage. Only the thread that
 * owns the Comm calls them; they do not nest. */
void watchdog_enter(Watchdog *w, const char *collective);
/* Returns the seconds since enter. */
double watchdog_leave(Watchdog *w);

#endif
