/* tests/support/files.c - see files.h. */
#include "tests/support/files.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void give_up(const char *what, const char *where)
{
    fprintf(stderr, "%s: %s\n", where, what);
    exit(1);
}

void test_path(char *out, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, size, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= size)
        give_up("the path is too long", fmt);
}

bool test_read(const char *path, StrBuf *out)
{
    strbuf_clear(out);
    gzFile f = gzopen(path, "rb");
    if (!f) {
        perror(path);
        return false;
    }
    gzbuffer(f, 1 << 18);
    static char part[1 << 18];
    int n;
    while ((n = gzread(f, part, sizeof part)) > 0)
        strbuf_add(out, part, (size_t)n);
    gzclose(f);
    if (n < 0 || out->failed) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return false;
    }
    return true;
}

bool test_json_open(TestJson *j, const char *path)
{
    Err e;
    *j = (TestJson){0};
    if (!test_read(path, &j->text))
        return false;
    if (json_parse(j->text.data, j->text.len, &j->arena, &j->value, &e) == ST_OK)
        return true;
    fprintf(stderr, "%s: %s\n", path, e.text);
    return false;
}

void test_json_close(TestJson *j)
{
    arena_free(&j->arena);
    strbuf_free(&j->text);
    *j = (TestJson){0};
}

bool test_lines_open(TestLines *l, const char *path)
{
    *l = (TestLines){0};
    return test_read(path, &l->text);
}

bool test_lines_next(TestLines *l)
{
    if (l->at >= l->text.len)
        return false;
    const char *start = l->text.data + l->at;
    const char *end = memchr(start, '\n', l->text.len - l->at);
    size_t len = end ? (size_t)(end - start) : l->text.len - l->at;
    l->at += len + 1;
    l->number++;
    arena_reset(&l->arena);
    Err e;
    if (json_parse(start, len, &l->arena, &l->row, &e) != ST_OK)
        give_up(e.text, "a line of test data");
    return true;
}

void test_lines_close(TestLines *l)
{
    arena_free(&l->arena);
    strbuf_free(&l->text);
    *l = (TestLines){0};
}

const char *test_text(const JsonValue *row, const char *key)
{
    const JsonValue *v = json_get(row, key);
    if (!v || v->type != JSON_STRING)
        give_up("a string is missing in the test data", key);
    return v->text;
}
