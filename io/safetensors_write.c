/* io/safetensors_write.c - see safetensors_write.h. */
#include "io/safetensors_write.h"

#include "io/durable.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t tensor_plan_bytes(const TensorPlan *t)
{
    int64_t bytes = dtype_bytes(t->dtype);
    for (int d = 0; d < t->n_dims; d++)
        bytes *= t->shape[d];
    return bytes;
}

static void add_tensor(StrBuf *b, const TensorPlan *t)
{
    strbuf_json_string(b, t->name, strlen(t->name));
    strbuf_fmt(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
    for (int d = 0; d < t->n_dims; d++)
        strbuf_fmt(b, "%s%lld", d ? "," : "", (long long)t->shape[d]);
    strbuf_fmt(b, "],\"data_offsets\":[%lld,%lld]}", (long long)t->offset,
               (long long)(t->offset + t->bytes));
}

Status safetensors_lay_out(TensorPlan *t, int n, const char *const *metadata, StrBuf *header,
                           int64_t *file_bytes, Err *e)
{
    int64_t at = 0;
    uint8_t length[8] = {0};
    strbuf_clear(header);
    strbuf_add(header, length, sizeof length);
    strbuf_str(header, "{");
    if (metadata) {
        strbuf_str(header, "\"__metadata__\":{");
        for (int i = 0; metadata[i]; i += 2) {
            strbuf_str(header, i ? "," : "");
            strbuf_json_string(header, metadata[i], strlen(metadata[i]));
            strbuf_str(header, ":");
            strbuf_json_string(header, metadata[i + 1], strlen(metadata[i + 1]));
        }
        strbuf_str(header, n > 0 ? "}," : "}");
    }
    bool first = true;
    for (int size = 8; size >= 1; size /= 2)
        for (int i = 0; i < n; i++) {
            if (dtype_bytes(t[i].dtype) != size)
                continue;
            t[i].bytes = tensor_plan_bytes(&t[i]);
            t[i].offset = at;
            at += t[i].bytes;
            strbuf_str(header, first ? "" : ",");
            add_tensor(header, &t[i]);
            first = false;
        }
    strbuf_str(header, "}");
    while (header->len % 8 && !header->failed)
        strbuf_str(header, " ");
    if (header->failed)
        return err_set(e, ST_MEMORY, "not enough memory for the header of %d tensors", n);
    for (int i = 0; i < 8; i++)
        header->data[i] = (char)((header->len - 8) >> 8 * i & 255U);
    for (int i = 0; i < n; i++)
        t[i].offset += (int64_t)header->len;
    *file_bytes = (int64_t)header->len + at;
    return ST_OK;
}

static void forget(TensorFile *f)
{
    free(f->path);
    free(f->tmp);
    *f = (TensorFile){.fd = -1};
}

void tensor_file_abandon(TensorFile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->tmp)
        unlink(f->tmp);
    forget(f);
}

Status tensor_file_create(const char *path, const StrBuf *header, int64_t file_bytes,
                          TensorFile *out, Err *e)
{
    size_t len = strlen(path);
    Status st = ST_OK;
    *out = (TensorFile){.path = strdup(path), .tmp = malloc(len + 5), .fd = -1};
    if (!out->path || !out->tmp) {
        st = err_set(e, ST_MEMORY, "%s: not enough memory for its name", path);
        forget(out);
        return st;
    }
    memcpy(out->tmp, path, len);
    memcpy(out->tmp + len, ".tmp", 5);
    out->fd = open(out->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0)
        st = err_errno(e, "%s", out->tmp);
    else if (ftruncate(out->fd, file_bytes) != 0)
        st = err_errno(e, "%s", out->tmp);
    else
        st = tensor_file_put(out, 0, header->data, header->len, e);
    if (st != ST_OK)
        tensor_file_abandon(out);
    return st;
}

Status tensor_file_put(const TensorFile *f, int64_t offset, const void *bytes, size_t len, Err *e)
{
    const char *p = bytes;
    while (len > 0) {
        ssize_t n = pwrite(f->fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_errno(e, "%s", f->tmp);
        p += n;
        len -= (size_t)n;
        offset += n;
    }
    return ST_OK;
}

Status tensor_file_finish(TensorFile *f, Err *e)
{
    Status st = ST_OK;
    if (fsync(f->fd) != 0)
        st = err_errno(e, "%s", f->tmp);
    if (close(f->fd) != 0 && st == ST_OK)
        st = err_errno(e, "%s", f->tmp);
    f->fd = -1;
    if (st == ST_OK)
        st = durable_rename(f->tmp, f->path, e);
    if (st == ST_OK)
        forget(f);
    else
        tensor_file_abandon(f);
    return st;
}

bool tensor_file_is(const char *path, const StrBuf *header, int64_t file_bytes)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool same = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file_bytes;
    char *got = same ? malloc(header->len) : NULL;
    same = got && file_read_at(fd, path, 0, got, header->len, NULL) == ST_OK &&
           memcmp(got, header->data, header->len) == 0;
    free(got);
    close(fd);
    return same;
}
