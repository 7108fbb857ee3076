/* dist/watchdog.c - see watchdog.h. */
#include "dist/watchdog.h"

#include "dist/comm_mpi.h"
#include "io/clock.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long the end may take before the process just leaves, and a device's abort before the ranks'. */
enum { LAST_RESORT_S = 10, DEVICE_ABORT_S = 1 };

struct Watchdog {
    const Comm *comm;
    double limit_s;
    void (*hook)(void *ctx);
    void *ctx;

    /* Written by the waiting thread, read by the watching one. Each is a value of its own: a
     * message that mixes two neighbouring places would still name the collective that hangs. */
    _Atomic double since_s; /* 0: not waiting */
    _Atomic int64_t step;
    _Atomic int layer;
    const char *_Atomic name;
    const char *_Atomic collective;
    atomic_bool gave_up; /* by the watching thread, which then ends the job */

    bool running;
    bool stop;            /* under lock */
    WatchedDevice device; /* likewise; ctx NULL: there is none */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

Status watchdog_create(Watchdog **out, const Comm *comm, Err *e)
{
    Watchdog *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ST_MEMORY, "no memory for the watchdog");
    w->comm = comm;
    atomic_init(&w->gave_up, false);
    atomic_init(&w->step, -1);
    atomic_init(&w->layer, -1);
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) {
        free(w);
        return err_set(e, ST_MEMORY, "no memory for the watchdog");
    }
    /* The system's date may jump during a job of days; waits are measured on the clock that does
     * not. */
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    *out = w;
    return ST_OK;
}

static void stop_thread(Watchdog *w)
{
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->running = false;
}

void watchdog_destroy(Watchdog *w)
{
    if (!w)
        return;
    stop_thread(w);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Hangs where the device waits for a process that does not answer. */
static void *abort_device(void *arg)
{
    const WatchedDevice *device = arg;
    device->abort(device->ctx);
    return NULL;
}

static void *leave_anyway(void *arg)
{
    (void)arg;
    sleep(LAST_RESORT_S);
    _exit(EXIT_REQUEUE);
}

/* ", step 5, layer 2, dispatch" of the host, which may be ahead of the device. */
static void tell_place(const Watchdog *w, char *out, size_t size)
{
    WatchedPlace at = watchdog_place(w);
    int n = 0, mark = w->device.mark ? *w->device.mark : 0;
    out[0] = 0;
    if (at.step >= 0)
        n += snprintf(out + n, size - (size_t)n, ", step %lld", (long long)at.step);
    if (at.layer >= 0)
        n += snprintf(out + n, size - (size_t)n, ", layer %d", at.layer);
    n +=
        snprintf(out + n, size - (size_t)n, "%s%.80s", at.name ? ", " : "", at.name ? at.name : "");
    if (mark > 0)
        snprintf(out + n, size - (size_t)n, " (the GPU: layer %d, %s)", (mark - 1) / 2,
                 mark % 2 ? "dispatch" : "combine");
}

/* trouble: of the device; NULL: the wait was too long. */
static void give_up(Watchdog *w, const char *trouble, double waited_s)
{
    const char *collective = atomic_load(&w->collective);
    char where[260];
    atomic_store(&w->gave_up, true);
    tell_place(w, where, sizeof where);

    /* First of all, since neither the hook nor an abort is sure to return. */
    pthread_t last_resort;
    if (pthread_create(&last_resort, NULL, leave_anyway, NULL) == 0)
        pthread_detach(last_resort);
    Err e;
    if (trouble)
        err_set(&e, ST_COMM, "NCCL: %.200s%s", trouble, where);
    else
        err_set(&e, ST_COMM,
                "waited %.1f s for the other ranks in %s%s; one of them is lost or stuck", waited_s,
                collective ? collective : "a collective", where);
    comm_print_error(w->comm, &e);
    if (w->hook)
        w->hook(w->ctx);
    pthread_t device;
    if (w->device.ctx && pthread_create(&device, NULL, abort_device, &w->device) == 0) {
        pthread_detach(device);
        sleep(DEVICE_ABORT_S);
    }
    comm_leave(w->comm, EXIT_REQUEUE);
}

static void *watch(void *arg)
{
    Watchdog *w = arg;
    double nap_s = fmax(fmin(w->limit_s / 8, 1), 1e-3);
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        double now_s = clock_s(), since_s = atomic_load(&w->since_s);
        const char *trouble = w->device.ctx ? w->device.trouble(w->device.ctx) : NULL;
        if (trouble || (since_s != 0 && now_s - since_s >= w->limit_s))
            give_up(w, trouble, now_s - since_s);
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += (long)(nap_s * 999999999);
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->wake, &w->lock, &t);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

Status watchdog_run(Watchdog *w, double seconds, void (*hook)(void *ctx), void *ctx, Err *e)
{
    stop_thread(w);
    if (!(seconds > 0) || w->comm->size <= 1)
        return ST_OK;
    w->limit_s = seconds;
    w->hook = hook;
    w->ctx = ctx;
    w->stop = false;
    /* Signals that stop a job are for the thread that runs it. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) {
        errno = failed;
        err_errno(e, "starting the watchdog thread");
        return e ? (e->code = ST_MEMORY) : ST_MEMORY;
    }
    w->running = true;
    return ST_OK;
}

void watchdog_let_end(const Watchdog *w)
{
    while (atomic_load(&w->gave_up))
        pause();
}

void watchdog_at(Watchdog *w, int64_t step, int layer, const char *name)
{
    atomic_store_explicit(&w->step, step, memory_order_relaxed);
    atomic_store_explicit(&w->layer, layer, memory_order_relaxed);
    atomic_store_explicit(&w->name, name, memory_order_relaxed);
}

WatchedPlace watchdog_place(const Watchdog *w)
{
    return (WatchedPlace){atomic_load_explicit(&w->step, memory_order_relaxed),
                          atomic_load_explicit(&w->layer, memory_order_relaxed),
                          atomic_load_explicit(&w->name, memory_order_relaxed)};
}

void watchdog_device(Watchdog *w, const WatchedDevice *device)
{
    pthread_mutex_lock(&w->lock);
    w->device = device ? *device : (WatchedDevice){0};
    pthread_mutex_unlock(&w->lock);
}

void watchdog_enter(Watchdog *w, const char *collective)
{
    atomic_store_explicit(&w->collective, collective, memory_order_relaxed);
    atomic_store_explicit(&w->since_s, clock_s(), memory_order_release);
}

double watchdog_leave(Watchdog *w)
{
    double since_s = atomic_load_explicit(&w->since_s, memory_order_relaxed);
    atomic_store_explicit(&w->since_s, 0, memory_order_release);
    return clock_s() - since_s;
}
