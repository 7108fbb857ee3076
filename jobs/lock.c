/* jobs/lock.c - see lock.h. */
#include "jobs/lock.h"

#include "io/clock.h"
#include "io/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct Holder {
    char host[65];
    long pid;
    uint64_t
        start; /* in clock ticks since boot: tells a process from a later one of the same number */
} Holder;      /* host empty: nobody */

typedef enum Attempt { TAKEN, BUSY, NO_LOCKS, AGAIN } Attempt;

/* Field 22 of /proc/PID/stat, counted behind the name, which may hold anything; 0 when there is
 * none. */
static uint64_t start_of(long pid)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    uint64_t start = 0;
    return at && sscanf(at, " %" SCNu64, &start) == 1 ? start : 0;
}

static Holder myself(void)
{
    Holder me = {.pid = (long)getpid(), .start = start_of((long)getpid())};
    if (gethostname(me.host, sizeof me.host) != 0 || !me.host[0])
        snprintf(me.host, sizeof me.host, "localhost");
    me.host[sizeof me.host - 1] = 0;
    return me;
}

static Holder holder_of(int fd)
{
    char text[200];
    Holder h = {.pid = 0};
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%64s %ld %" SCNu64, h.host, &h.pid, &h.start) != 3)
        h.host[0] = 0; /* just made, or torn: nobody to name */
    return h;
}

static bool same(const Holder *a, const Holder *b)
{
    return strcmp(a->host, b->host) == 0 && a->pid == b->pid && a->start == b->start;
}

static Status sign(int fd, const char *path, const Holder *me, Err *e)
{
    char text[200];
    int n = snprintf(text, sizeof text, "%s %ld %" PRIu64 "\n", me->host, me->pid, me->start);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return err_errno(e, "%.300s: cannot write", path);
    return ST_OK;
}

static void nap(double s)
{
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static Status try_flock(int fd, const char *path, Attempt *got, Err *e)
{
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        *got = errno == EWOULDBLOCK ? BUSY : errno == EINTR ? AGAIN : NO_LOCKS;
        if (errno == EWOULDBLOCK || errno == EINTR || errno == ENOLCK || errno == ENOSYS ||
            errno == ENOTSUP)
            return ST_OK;
        return err_errno(e, "%.300s: cannot lock", path);
    }
    /* Somebody may have removed the file between open and flock: then this lock protects nothing.
     */
    struct stat mine, there;
    if (fstat(fd, &mine) != 0)
        return err_errno(e, "%.300s", path);
    *got = stat(path, &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev
               ? TAKEN
               : AGAIN;
    if (*got == AGAIN)
        return ST_OK;
    Holder me = myself();
    return sign(fd, path, &me, e);
}

static Status try_text(int fd, const char *path, Attempt *got, Err *e)
{
    Holder me = myself(), h = holder_of(fd);
    *got = BUSY;
    if (h.host[0] && (strcmp(h.host, me.host) != 0 || start_of(h.pid) == h.start))
        return ST_OK;
    TRY(sign(fd, path, &me, e));
    nap(0.2); /* of two who found it free at once, the later signature stays and the earlier sees it
               */
    h = holder_of(fd);
    if (same(&h, &me))
        *got = TAKEN;
    return ST_OK;
}

/* Advice to remove the file only where nothing but the file speaks: a lock of the system's has a
 * live holder. */
static Status busy(int fd, const char *path, bool by_text, Err *e)
{
    Holder h = holder_of(fd);
    if (!h.host[0])
        return err_set(e, ST_INPUT, "%.250s: another process is at work on this output", path);
    return err_set(e, ST_INPUT, "%.250s: process %ld on host %s is at work on this output%s", path,
                   h.pid, h.host, by_text ? " (if it is not, remove that file)" : "");
}

static Status take(const char *path, double wait_s, bool by_text, Lock *out, Err *e)
{
    double until = clock_s() + wait_s;
    bool noted = false;
    *out = (Lock){.fd = -1};
    for (;;) {
        Attempt got = BUSY;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return err_errno(e, "%.300s", path);
        Status st = by_text ? try_text(fd, path, &got, e) : try_flock(fd, path, &got, e);
        if (st == ST_OK && got == TAKEN) {
            *out = (Lock){.fd = fd, .held = true};
            return ST_OK;
        }
        by_text = by_text || got == NO_LOCKS;
        if (st == ST_OK && got == BUSY && clock_s() >= until)
            st = busy(fd, path, by_text, e);
        else if (st == ST_OK && got == BUSY && !noted && wait_s >= 1) {
            Holder h = holder_of(fd);
            log_note("%s: held by process %ld on host %s; waiting up to %.0f s", path, h.pid,
                     h.host[0] ? h.host : "(unknown)", wait_s);
            noted = true;
        }
        close(fd);
        if (st != ST_OK)
            return st;
        if (got == BUSY)
            nap(0.1);
    }
}

Status lock_take(const char *path, double wait_s, Lock *out, Err *e)
{
    return take(path, wait_s, false, out, e);
}

Status lock_take_by_text(const char *path, double wait_s, Lock *out, Err *e)
{
    return take(path, wait_s, true, out, e);
}

void lock_release(Lock *l)
{
    if (!l->held)
        return;
    /* A text that stays is only confusing where locks work; elsewhere the next process on this host
     * finds its writer gone. */
    if (ftruncate(l->fd, 0) != 0)
        log_warn("cannot empty the lock file");
    close(l->fd);
    *l = (Lock){.fd = -1};
}
