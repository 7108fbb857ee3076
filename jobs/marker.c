/* jobs/marker.c - see marker.h. */
#include "jobs/marker.h"

#include "io/durable.h"
#include "io/file.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORMAT = 1, LIMIT_BYTES = 1 << 20 };

Status job_path(char *out, const char *dir, const char *name, Err *e)
{
    int n = snprintf(out, JOB_PATH_MAX, "%s/%s", dir, name);
    return n > 0 && n < JOB_PATH_MAX ? ST_OK
                                     : err_set(e, ST_INPUT, "%.200s...: the path is too long", dir);
}

FileStamp stamp_of(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return (FileStamp){.bytes = -1};
    return (FileStamp){.bytes = (int64_t)st.st_size,
                       .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                       .inode = (int64_t)st.st_ino};
}

bool stamp_same(const FileStamp *a, const FileStamp *b)
{
    return a->bytes == b->bytes && a->mtime_ns == b->mtime_ns && a->inode == b->inode;
}

/* Reads DIR/NAME, a JSON object of our format. */
static Status read_object(const char *dir, const char *name, Arena *arena, JsonValue **out,
                          bool *there, Err *e)
{
    char path[JOB_PATH_MAX], *text = NULL;
    size_t len;
    int64_t format = 0;
    TRY(job_path(path, dir, name, e));
    *there = false;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return ST_OK;
    TRY(file_read(path, LIMIT_BYTES, &text, &len, e));
    Status st = json_parse(text, len, arena, out, e); /* copies what it keeps */
    free(text);
    if (st != ST_OK)
        return err_in(e, "%.300s", path);
    const JsonValue *v = (*out)->type == JSON_OBJECT ? json_get(*out, "format") : NULL;
    if (!v || !json_int64(v, &format) || format != FORMAT)
        return err_set(e, ST_INPUT, "%.300s: not of format %d", path, FORMAT);
    *there = true;
    return ST_OK;
}

static Status get_int(const JsonValue *o, const char *key, int64_t *out, Err *e)
{
    const JsonValue *v = json_get(o, key);
    return v && json_int64(v, out) ? ST_OK : err_set(e, ST_INPUT, "\"%s\" is not an integer", key);
}

static Status get_text(const JsonValue *o, const char *key, char *out, size_t cap, Err *e)
{
    const JsonValue *v = json_get(o, key);
    if (!v || v->type != JSON_STRING || v->len >= cap)
        return err_set(e, ST_INPUT, "\"%s\" is not a string of up to %zu bytes", key, cap - 1);
    memcpy(out, v->text, v->len);
    out[v->len] = 0;
    return ST_OK;
}

static Status get_stamp(const JsonValue *o, const char *key, FileStamp *out, Err *e)
{
    const JsonValue *v = json_get(o, key);
    *out = (FileStamp){.bytes = -1};
    if (v && v->type == JSON_NULL)
        return ST_OK;
    if (!v || v->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "\"%s\" is not an object", key);
    TRY(get_int(v, "bytes", &out->bytes, e));
    TRY(get_int(v, "mtime_ns", &out->mtime_ns, e));
    return get_int(v, "inode", &out->inode, e);
}

static void put_text(StrBuf *b, const char *key, const char *value)
{
    strbuf_fmt(b, ",\n \"%s\": ", key);
    strbuf_json_string(b, value, strlen(value));
}

static void put_int(StrBuf *b, const char *key, int64_t value)
{
    strbuf_fmt(b, ",\n \"%s\": %lld", key, (long long)value);
}

static void put_stamp(StrBuf *b, const char *key, const FileStamp *s)
{
    if (s->bytes < 0)
        strbuf_fmt(b, ",\n \"%s\": null", key);
    else
        strbuf_fmt(b, ",\n \"%s\": {\"bytes\": %lld, \"mtime_ns\": %lld, \"inode\": %lld}", key,
                   (long long)s->bytes, (long long)s->mtime_ns, (long long)s->inode);
}

static Status write_object(const char *dir, const char *name, StrBuf *b, Err *e)
{
    char path[JOB_PATH_MAX];
    strbuf_str(b, "\n}\n");
    Status st =
        b->failed ? err_set(e, ST_MEMORY, "no memory for %s", name) : job_path(path, dir, name, e);
    if (st == ST_OK)
        st = durable_replace(path, b->data, b->len, e);
    strbuf_free(b);
    return st;
}

static Status header_of(const JsonValue *o, JobHeader *h, Err *e)
{
    JobIdentity *id = &h->identity;
    TRY(get_text(o, "model", id->model, sizeof id->model, e));
    TRY(get_text(o, "tokenizer", id->tokenizer, sizeof id->tokenizer, e));
    TRY(get_text(o, "input", id->input, sizeof id->input, e));
    TRY(get_text(o, "parameters", id->parameters, sizeof id->parameters, e));
    TRY(get_text(o, "isa", id->isa, sizeof id->isa, e));
    TRY(get_text(o, "backend", id->backend, sizeof id->backend, e));
    TRY(get_int(o, "n_rows", &id->n_rows, e));
    return get_stamp(o, "replaces", &h->replaces, e);
}

Status header_read(const char *dir, JobHeader *out, bool *there, Err *e)
{
    Arena arena = {.blocks = NULL};
    JsonValue *o = NULL;
    Status st = read_object(dir, "header.json", &arena, &o, there, e);
    if (st == ST_OK && *there && header_of(o, out, e) != ST_OK)
        st = err_in(e, "%.300s/header.json", dir);
    arena_free(&arena);
    return st;
}

Status header_write(const char *dir, const JobHeader *h, Err *e)
{
    StrBuf b = {.data = NULL};
    const JobIdentity *id = &h->identity;
    strbuf_fmt(&b, "{\n \"format\": %d", FORMAT);
    put_text(&b, "model", id->model);
    put_text(&b, "tokenizer", id->tokenizer);
    put_text(&b, "input", id->input);
    put_text(&b, "parameters", id->parameters);
    put_text(&b, "isa", id->isa);
    put_text(&b, "backend", id->backend);
    put_int(&b, "n_rows", id->n_rows);
    put_stamp(&b, "replaces", &h->replaces);
    return write_object(dir, "header.json", &b, e);
}

static Status done_of(const JsonValue *o, DoneMarker *d, Err *e)
{
    TRY(get_int(o, "n_rows", &d->n_rows, e));
    TRY(get_int(o, "n_failed", &d->n_failed, e));
    TRY(get_text(o, "sha256", d->sha256, sizeof d->sha256, e));
    return get_stamp(o, "out", &d->out, e);
}

Status done_read(const char *dir, DoneMarker *out, bool *there, Err *e)
{
    Arena arena = {.blocks = NULL};
    JsonValue *o = NULL;
    Status st = read_object(dir, "done.json", &arena, &o, there, e);
    if (st == ST_OK && *there && done_of(o, out, e) != ST_OK)
        st = err_in(e, "%.300s/done.json", dir);
    arena_free(&arena);
    return st;
}

Status done_write(const char *dir, const DoneMarker *d, Err *e)
{
    StrBuf b = {.data = NULL};
    strbuf_fmt(&b, "{\n \"format\": %d", FORMAT);
    put_int(&b, "n_rows", d->n_rows);
    put_int(&b, "n_failed", d->n_failed);
    put_text(&b, "sha256", d->sha256);
    put_stamp(&b, "out", &d->out);
    return write_object(dir, "done.json", &b, e);
}
