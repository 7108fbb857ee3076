/* jobs/progress.c - see progress.h. */
#include "jobs/progress.h"

#include "io/clock.h"
#include "io/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double live_every_s = 0.25, log_first_s = 10, log_every_s = 60;

enum { LINE_MAX_BYTES = 256 };

Status progress_parse(const char *word, ProgressMode *out, Err *e)
{
    static const struct {
        const char *word;
        ProgressMode mode;
    } words[] = {{"auto", PROGRESS_AUTO},
                 {"live", PROGRESS_LIVE},
                 {"log", PROGRESS_LOG},
                 {"none", PROGRESS_NONE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0) {
            *out = words[i].mode;
            return ST_OK;
        }
    return err_set(e, ST_USAGE, "--progress %.50s: auto, live, log and none are known", word);
}

ProgressMode progress_choose(ProgressMode asked, bool terminal, bool launched)
{
    if (asked != PROGRESS_AUTO)
        return asked;
    return terminal && !launched ? PROGRESS_LIVE : PROGRESS_LOG;
}

/* Set by mpirun (Open MPI, then MPICH's kin) and by srun, but not by MPI_Init for a process started
 * alone. */
static bool under_launcher(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("SLURM_STEP_ID");
}

static int columns(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col < 20)
        return 80;
    return w.ws_col < LINE_MAX_BYTES ? w.ws_col : LINE_MAX_BYTES;
}

void progress_start(Progress *p, ProgressMode mode)
{
    *p = (Progress){.mode = progress_choose(mode, isatty(STDERR_FILENO), under_launcher()),
                    .start_s = clock_s()};
    p->due_s = p->start_s + (p->mode == PROGRESS_LIVE ? live_every_s : log_first_s);
}

void progress_sample(Progress *p, double now_s, const ProgressCounts *c)
{
    if (p->n_samples > 0 && now_s - p->samples[p->newest].at_s < 1)
        return;
    p->newest = p->n_samples > 0 ? (p->newest + 1) % PROGRESS_SAMPLES : 0;
    if (p->n_samples < PROGRESS_SAMPLES)
        p->n_samples++;
    p->samples[p->newest] = (ProgressSample){.at_s = now_s,
                                             .rows_done = c->rows_done,
                                             .prompt_tokens = c->prompt_tokens,
                                             .output_tokens = c->output_tokens};
}

static double per_second(int64_t n, double s)
{
    return s > 0 ? (double)n / s : 0;
}

ProgressRates progress_rates(const Progress *p, double now_s, const ProgressCounts *c)
{
    enum { ENOUGH_ROWS = 20 };
    ProgressRates r = {.elapsed_s = now_s - p->start_s, .left_s = -1};
    double work_s = p->working ? p->work_s : p->start_s;
    ProgressSample from = {.at_s = work_s, .rows_done = c->rows_resumed};
    if (p->n_samples == PROGRESS_SAMPLES) /* else the run is younger than that */
        from = p->samples[(p->newest + 1) % PROGRESS_SAMPLES];
    double s = now_s - from.at_s;
    r.in_per_s = per_second(c->prompt_tokens - from.prompt_tokens, s);
    r.out_per_s = per_second(c->output_tokens - from.output_tokens, s);
    /* Long rows end in bursts: a few of them say less than the whole run does. */
    double rows_per_s = per_second(c->rows_done - from.rows_done, s);
    if (c->rows_done - from.rows_done < ENOUGH_ROWS)
        rows_per_s = per_second(c->rows_done - c->rows_resumed, now_s - work_s);
    if (c->rows_done >= c->rows_total)
        r.left_s = 0;
    else if (rows_per_s > 0)
        r.left_s = (double)(c->rows_total - c->rows_done) / rows_per_s;
    return r;
}

void progress_human(double v, char *out)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    size_t unit = 0;
    /* The bounds are those at which three digits round up to four. */
    for (; unit + 1 < sizeof units / sizeof *units && v >= 999.5; unit++)
        v /= 1000;
    int digits = unit == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    snprintf(out, PROGRESS_WORD, "%.*f%s", digits, v, units[unit]);
}

void progress_duration(double s, char *out)
{
    s = s > 0 ? s : 0;
    unsigned n = s < 4e9 ? (unsigned)(s + 0.5) : 4000000000u;
    if (s < 9.95)
        snprintf(out, PROGRESS_WORD, "%.1fs", s);
    else if (n < 60)
        snprintf(out, PROGRESS_WORD, "%us", n);
    else if (n < 3600)
        snprintf(out, PROGRESS_WORD, "%um%02us", n / 60, n % 60);
    else if (n < 86400)
        snprintf(out, PROGRESS_WORD, "%uh%02um", n / 3600, n / 60 % 60);
    else
        snprintf(out, PROGRESS_WORD, "%ud%02uh", n / 86400, n / 3600 % 24);
}

/* Appends at *at, which stays below cap. */
__attribute__((format(printf, 4, 5))) static void add(char *out, size_t cap, size_t *at,
                                                      const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out + *at, cap - *at, fmt, ap);
    va_end(ap);
    if (n > 0)
        *at = (size_t)n < cap - *at ? *at + (size_t)n : cap - 1;
}

void progress_format(const ProgressCounts *c, const ProgressRates *r, char *out, size_t cap)
{
    char in[PROGRESS_WORD], tokens[PROGRESS_WORD], elapsed[PROGRESS_WORD], left[PROGRESS_WORD];
    size_t at = 0;
    int64_t percent =
        c->rows_total > 0 ? (int64_t)(100.0 * (double)c->rows_done / (double)c->rows_total) : 100;
    if (cap == 0)
        return;
    progress_human(r->in_per_s, in);
    progress_human(r->out_per_s, tokens);
    progress_duration(r->elapsed_s, elapsed);
    add(out, cap, &at, "rows %lld/%lld (%lld %%)", (long long)c->rows_done,
        (long long)c->rows_total, (long long)percent);
    if (c->rows_failed > 0)
        add(out, cap, &at, ", %lld failed", (long long)c->rows_failed);
    if (c->rows_resumed > 0)
        add(out, cap, &at, ", %lld resumed", (long long)c->rows_resumed);
    add(out, cap, &at, "; %s tok/s in, %s out", in, tokens);
    if (c->sequences > 0)
        add(out, cap, &at, "; %lld running", (long long)c->sequences);
    add(out, cap, &at, "; %s", elapsed);
    if (r->left_s > 0) {
        progress_duration(r->left_s, left);
        add(out, cap, &at, ", %s left", left);
    }
}

static void print(Progress *p, const ProgressCounts *c, const ProgressRates *r, bool last)
{
    char line[LINE_MAX_BYTES], whole[2 * LINE_MAX_BYTES + 16];
    if (p->mode == PROGRESS_LOG) {
        progress_format(c, r, line, sizeof line);
        log_note("%s", line);
        return;
    }
    /* One column stays free, since a terminal wraps after the last. */
    progress_format(c, r, line, (size_t)columns());
    int width = (int)strlen(line);
    snprintf(whole, sizeof whole, "\r%-*s%s", p->width, line, last ? "\n" : "");
    fputs(whole, stderr);
    p->width = width;
    log_live_line(last ? 0 : width);
}

void progress_update(Progress *p, const ProgressCounts *c)
{
    if (p->mode == PROGRESS_NONE)
        return;
    double now = clock_s();
    if (!p->working) {
        p->working = true;
        p->work_s = now;
    }
    progress_sample(p, now, c);
    if (now < p->due_s)
        return;
    p->due_s = now + (p->mode == PROGRESS_LIVE ? live_every_s : log_every_s);
    ProgressRates r = progress_rates(p, now, c);
    print(p, c, &r, false);
}

void progress_end(Progress *p, const ProgressCounts *c)
{
    if (p->mode == PROGRESS_NONE)
        return;
    double now = clock_s();
    p->n_samples = 0; /* the run as a whole */
    ProgressRates r = progress_rates(p, now, c);
    r.left_s = -1;
    print(p, c, &r, true);
}
