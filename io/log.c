/* io/log.c - see log.h. */
#include "io/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static int my_rank, ranks = 1;
static atomic_int n_warnings;
static atomic_int live_width;

void log_init(int rank, int n_ranks)
{
    my_rank = rank;
    ranks = n_ranks;
}

static void put(const char *kind, int name_rank, const char *fmt, va_list ap)
{
    char line[1600], text[900], who[40] = "";
    int live = atomic_exchange(&live_width, 0);
    live = live > 512 ? 512 : live;
    vsnprintf(text, sizeof text, fmt, ap);
    if (name_rank && ranks > 1)
        snprintf(who, sizeof who, "rank %d: ", my_rank);
    snprintf(line, sizeof line, "%s%*s%smoebatch: %s%s%s\n", live ? "\r" : "", live, "",
             live ? "\r" : "", who, kind, text);
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

void log_note_once(const char *fmt, ...)
{
    if (my_rank != 0)
        return;
    va_list ap;
    va_start(ap, fmt);
    put("", 0, fmt, ap);
    va_end(ap);
}

void log_live_line(int width)
{
    atomic_store(&live_width, width);
}

int log_warnings(void)
{
    return atomic_load(&n_warnings);
}
