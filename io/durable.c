/* io/durable.c - see durable.h. */
#include "io/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

Status durable_write(int fd, const char *path, const void *bytes, size_t len, Err *e)
{
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "%s", path);
        at += n;
        len -= (size_t)n;
    }
    return ST_OK;
}

Status path_parent(const char *path, char *out, size_t cap, Err *e)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 1;
    if (slash == path)
        len = 1; /* the root keeps its slash */
    if (len >= cap)
        return err_set(e, ST_INPUT, "%.200s...: the path is too long", path);
    memcpy(out, slash ? path : ".", len);
    out[len] = 0;
    return ST_OK;
}

Status durable_sync_dir(const char *dir, Err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "%s", dir);
    Status st = ST_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        st = err_errno(e, "%s: fsync", dir);
    close(fd);
    return st;
}

Status durable_rename(const char *tmp, const char *path, Err *e)
{
    char dir[PATH_MAX];
    TRY(path_parent(path, dir, sizeof dir, e));
    if (rename(tmp, path) != 0)
        return err_errno(e, "%s: cannot rename %s to it", path, tmp);
    return durable_sync_dir(dir, e);
}

Status durable_replace(const char *path, const void *bytes, size_t len, Err *e)
{
    char tmp[PATH_MAX];
    int n = snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (n < 0 || (size_t)n >= sizeof tmp)
        return err_set(e, ST_INPUT, "%.200s...: the path is too long", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(e, "%s", tmp);
    Status st = durable_write(fd, tmp, bytes, len, e);
    if (st == ST_OK && fsync(fd) != 0)
        st = err_errno(e, "%s: fsync", tmp);
    if (close(fd) != 0 && st == ST_OK)
        st = err_errno(e, "%s: close", tmp);
    if (st == ST_OK)
        st = durable_rename(tmp, path, e);
    if (st != ST_OK)
        unlink(tmp); /* gone already where only the directory's sync failed */
    return st;
}
