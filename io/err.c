/* io/err.c - see err.h. */
#include "io/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void keep_one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = ' ';
}

Status err_set(Err *e, Status code, const char *fmt, ...)
{
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    keep_one_line(e->text);
    e->code = code;
    e->rank = 0;
    return code;
}

Status err_in(Err *e, const char *fmt, ...)
{
    if (!e)
        return ST_IO;
    char where[sizeof e->text], old[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(where, sizeof where, fmt, ap);
    va_end(ap);
    memcpy(old, e->text, sizeof old);
    size_t n = strnlen(where, sizeof where - 3);
    memcpy(e->text, where, n);
    snprintf(e->text + n, sizeof e->text - n, ": %s", old);
    keep_one_line(e->text);
    return e->code;
}

Status err_errno(Err *e, const char *fmt, ...)
{
    int saved = errno;
    if (!e)
        return ST_IO;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", strerror(saved));
    keep_one_line(e->text);
    e->code = ST_IO;
    e->rank = 0;
    return ST_IO;
}
