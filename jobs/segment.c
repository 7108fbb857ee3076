/* jobs/segment.c - the segment that one rank writes in one run (journal.h). */
#include "jobs/journal.h"

#include "io/clock.h"
#include "io/digest.h"
#include "io/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

struct Segment {
    int fd;
    uint64_t at;          /* bytes of whole records */
    atomic_bool unsynced; /* the watchdog's thread syncs too */
    bool broken;          /* the tail could not be cut back */
    double interval_s, last_sync_s;
    char path[JOB_PATH_MAX];
};

Status segment_create(const char *dir, int run, int rank, double sync_interval_s, Segment **out,
                      Err *e)
{
    Segment *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ST_MEMORY, "no memory for a journal segment");
    int n = snprintf(s->path, sizeof s->path, "%s/segment-%04d-%04d.bin", dir, run, rank);
    s->fd = -1;
    Status st = ST_OK;
    if (n < 0 || (size_t)n >= sizeof s->path)
        TRY_GOTO(err_set(e, ST_INPUT, "%.200s...: the path is too long", dir));
    s->fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (s->fd < 0 && errno == ENOENT)
        TRY_GOTO(err_set(e, ST_IO,
                         "%.300s: this rank's host does not see the directory; the output "
                         "must be on a file system that all hosts share",
                         dir));
    if (s->fd < 0)
        TRY_GOTO(err_errno(e, "%.300s", s->path));
    if (flock(s->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) /* none at all: see lock.h */
        TRY_GOTO(err_set(e, ST_IO, "%.300s: another process writes it", s->path));
    TRY_GOTO(durable_sync_dir(dir, e));
    s->interval_s = sync_interval_s;
    s->last_sync_s = clock_s();
    *out = s;
    return ST_OK;
fail:
    if (s->fd >= 0)
        close(s->fd);
    free(s);
    return st;
}

bool segment_is_live(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool live = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return live;
}

/* Cuts a half-written record off. Its errno is that of the write, not of the cut. */
static Status cut_back(Segment *s, Err *e)
{
    int saved = errno;
    if (ftruncate(s->fd, (off_t)s->at) != 0)
        s->broken = true;
    errno = saved;
    return err_errno(e, "%.300s", s->path);
}

Status segment_append(Segment *s, int kind, int64_t row, bool failed, const void *payload,
                      size_t bytes, Err *e)
{
    uint8_t head[RECORD_HEADER_BYTES];
    RecordHeader h = {.kind = (uint8_t)kind,
                      .flags = failed ? RECORD_FAILED : 0,
                      .row = row,
                      .bytes = bytes,
                      .payload_crc = crc32_of(0, payload, bytes)};
    if (s->broken)
        return err_set(e, ST_IO, "%.300s: an earlier write failed", s->path);
    record_encode(&h, head);
    size_t total = sizeof head + bytes, done = 0;
    while (done < total) {
        struct iovec v[2] = {{head + done, sizeof head - done},
                             {(void *)(uintptr_t)payload, bytes}};
        int first = done < sizeof head ? 0 : 1;
        if (first == 1)
            v[1] = (struct iovec){(char *)(uintptr_t)payload + (done - sizeof head), total - done};
        ssize_t n = pwritev(s->fd, v + first, 2 - first, (off_t)(s->at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return cut_back(s, e);
        }
        done += (size_t)n;
    }
    s->at += total;
    atomic_store(&s->unsynced, true);
    return segment_tick(s, e);
}

Status segment_tick(Segment *s, Err *e)
{
    double now = clock_s();
    if (!atomic_load(&s->unsynced) || now - s->last_sync_s < s->interval_s)
        return ST_OK;
    s->last_sync_s = now;
    return segment_sync(s, e);
}

Status segment_sync(Segment *s, Err *e)
{
    /* Cleared first: a record that arrives during the fsync asks for the next one. */
    if (!atomic_exchange(&s->unsynced, false))
        return ST_OK;
    int rc;
    do
        rc = fsync(s->fd);
    while (rc != 0 && errno == EINTR);
    /* EINVAL: not a thing that can be synced. */
    return rc == 0 || errno == EINVAL ? ST_OK : err_errno(e, "%.300s: fsync", s->path);
}

Status segment_close(Segment *s, Err *e)
{
    if (!s)
        return ST_OK;
    Status st = segment_sync(s, e);
    if (close(s->fd) != 0 && st == ST_OK)
        st = err_errno(e, "%.300s: close", s->path);
    free(s);
    return st;
}
