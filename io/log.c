/* io/log.c - see log.h. */
#include "io/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static int my_rank, ranks = 1;
static atomic_int n_warnings;

void log_init(int rank, int n_ranks)
{
    my_rank = rank;
    ranks = n_ranks;
}

static void put(const char *kind, int name_rank, const char *fmt, va_list ap)
{
    char line[1024], text[900];
    vsnprintf(text, sizeof text, fmt, ap);
    if (name_rank && ranks > 1)
        snprintf(line, sizeof line, "moebatch: rank %d: %s%s\n", my_rank, kind, text);
    else
        snprintf(line, sizeof line, "moebatch: %s%s\n", kind, text);
    fputs(line, stderr); /* one call, so that lines of several ranks do not mix */
}

void log_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    atomic_fetch_add(&n_warnings, 1);
    put("warning: ", 1, fmt, ap);
    va_end(ap);
}

void log_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put("", 1, fmt, ap);
    va_end(ap);
}

void log_warn_once(const char *fmt, ...)
{
    if (my_rank != 0)
        return;
    va_list ap;
    va_start(ap, fmt);
    atomic_fetch_add(&n_warnings, 1);
    put("warning: ", 0, fmt, ap);
    va_end(ap);
}

int log_warnings(void)
{
    return atomic_load(&n_warnings);
}
