/* io/file.c - see file.h. */
#include "io/file.h"

#include "io/pack_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

Status file_join(char *out, const char *dir, const char *name, Err *e)
{
    int n = snprintf(out, FILE_PATH_MAX, "%s/%s", dir, name);
    if (n < 0 || n >= FILE_PATH_MAX)
        return err_set(e, ST_USAGE, "path %.100s.../%.100s is longer than %d bytes", dir, name,
                       FILE_PATH_MAX - 1);
    return ST_OK;
}

bool file_exists(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return S_ISREG(st.st_mode);
    return errno == ENOTDIR && pack_file_has(path);
}

/* Opens a regular file for reading; *fd is -1 unless the result is ST_OK. */
static Status open_regular(const char *path, int *fd, size_t *len, Err *e)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return err_errno(e, "%s", path);
    Status status = ST_OK;
    if (fstat(*fd, &st) != 0)
        status = err_errno(e, "%s", path);
    else if (!S_ISREG(st.st_mode))
        status = err_set(e, ST_IO, "%s: not a regular file", path);
    if (status != ST_OK) {
        close(*fd);
        *fd = -1;
        return status;
    }
    *len = (size_t)st.st_size;
    return ST_OK;
}

/* Reads len bytes, or fewer where the file ends earlier; -1 and errno on failure. */
static ssize_t read_all(int fd, char *out, size_t len)
{
    size_t at = 0;
    while (at < len) {
        ssize_t n = read(fd, out + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        at += (size_t)n;
    }
    return (ssize_t)at;
}

Status file_read(const char *path, size_t limit, char **out, size_t *len, Err *e)
{
    int fd;
    size_t bytes = 0;
    *out = NULL;
    *len = 0;
    if (access(path, F_OK) != 0 && errno == ENOTDIR)
        return pack_file_read(path, limit, out, len, e);
    TRY(open_regular(path, &fd, &bytes, e));
    Status st = ST_OK;
    char *text = NULL;
    if (bytes > limit) {
        st = err_set(e, ST_INPUT, "%s: %zu bytes, at most %zu expected", path, bytes, limit);
        goto fail;
    }
    text = malloc(bytes + 1);
    if (!text) {
        st = err_set(e, ST_MEMORY, "%s: not enough memory for %zu bytes", path, bytes);
        goto fail;
    }
    ssize_t got = read_all(fd, text, bytes);
    if (got < 0) {
        st = err_errno(e, "%s", path);
        goto fail;
    }
    text[got] = 0;
    *out = text;
    *len = (size_t)got;
    close(fd);
    return ST_OK;
fail:
    free(text);
    close(fd);
    return st;
}

Status file_map_open(const char *path, FileMap *out, Err *e)
{
    int fd;
    *out = (FileMap){0};
    TRY(open_regular(path, &fd, &out->len, e));
    Status st = ST_OK;
    if (out->len > 0) {
        void *p = mmap(NULL, out->len, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = err_errno(e, "%s: mapping %zu bytes", path, out->len);
        else
            out->data = p;
    }
    if (st != ST_OK) {
        close(fd);
        out->len = 0;
        return st;
    }
    out->is_open = true;
    out->fd = fd;
    return ST_OK;
}

static void close_map(FileMap *m)
{
    if (m->is_open)
        close(m->fd);
    m->is_open = false;
}

Status file_map(const char *path, FileMap *out, Err *e)
{
    TRY(file_map_open(path, out, e));
    close_map(out); /* the mapping keeps the file */
    return ST_OK;
}

void file_unmap(FileMap *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->len);
    close_map(m);
    *m = (FileMap){0};
}

bool file_map_is_here(const FileMap *m, const uint8_t *byte)
{
    char c;
    struct iovec one = {.iov_base = &c, .iov_len = 1};
    return m->is_open && preadv2(m->fd, &one, 1, (off_t)(byte - m->data), RWF_NOWAIT) == 1;
}

void file_will_need(const uint8_t *bytes, size_t len)
{
    if (len == 0)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)bytes & ~(page - 1);
    posix_madvise((void *)start, (uintptr_t)bytes + len - start, POSIX_MADV_WILLNEED);
}

static Status read_at(int fd, uint64_t offset, void *out, size_t len, Err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (char *)out + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "cannot read at byte %llu", (unsigned long long)(offset + done));
        if (n == 0)
            return err_set(e, ST_IO, "has become shorter: byte %llu is gone",
                           (unsigned long long)(offset + done));
        done += (size_t)n;
    }
    return ST_OK;
}

Status file_read_at(int fd, const char *path, uint64_t offset, void *out, size_t len, Err *e)
{
    return read_at(fd, offset, out, len, e) == ST_OK ? ST_OK : err_in(e, "%.300s", path);
}

Status file_map_read(const FileMap *m, const uint8_t *bytes, void *out, size_t len, Err *e)
{
    if (m && m->is_open)
        return read_at(m->fd, (uint64_t)(bytes - m->data), out, len, e);
    if (len > 0)
        memcpy(out, bytes, len);
    return ST_OK;
}

Status file_append_at(int fd, const char *path, uint64_t offset, size_t len, StrBuf *out, Err *e)
{
    char *end = strbuf_extend(out, len);
    if (!end)
        return err_set(e, ST_MEMORY, "%.300s: no memory for %zu bytes", path, len);
    return file_read_at(fd, path, offset, end, len, e);
}

Status file_write_at(int fd, const char *path, uint64_t offset, const void *bytes, size_t len,
                     Err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const char *)bytes + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_errno(e, "%.300s: cannot write at byte %llu", path,
                             (unsigned long long)(offset + done));
        done += (size_t)n;
    }
    return ST_OK;
}
