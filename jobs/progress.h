/* jobs/progress.h - what a job says of itself while it runs, on stderr. */
#ifndef MB_JOBS_PROGRESS_H
#define MB_JOBS_PROGRESS_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ProgressMode {
    PROGRESS_AUTO,
    PROGRESS_LIVE,
    PROGRESS_LOG,
    PROGRESS_NONE
} ProgressMode;

typedef struct ProgressCounts {                               /* over all ranks */
    int64_t rows_total, rows_done, rows_failed, rows_resumed; /* done includes failed and resumed */
    int64_t prompt_tokens, output_tokens;                     /* computed in this run */
    int64_t sequences;                                        /* in flight */
} ProgressCounts;

typedef struct ProgressSample {
    double at_s;
    int64_t rows_done, prompt_tokens, output_tokens;
} ProgressSample;

enum {
    PROGRESS_SAMPLES = 32, /* a second apart or more: "recent" is half a minute */
    PROGRESS_WORD = 24     /* bytes of a number or duration as text */
};

typedef struct Progress {
    ProgressMode mode;
    double start_s, due_s;
    bool working;                             /* the first update came, with the weights loaded */
    double work_s;                            /* and when */
    ProgressSample samples[PROGRESS_SAMPLES]; /* a ring */
    int n_samples, newest;
    int width; /* of the line on the terminal */
} Progress;

/* auto, live, log, none. ST_USAGE for another word. */
Status progress_parse(const char *word, ProgressMode *out, Err *e);
/* auto is live only without mpirun or srun on a terminal, else log; the environment says which. */
void progress_start(Progress *p, ProgressMode mode);
/* Called often by rank 0; prints when due (live: 4 times a second; log: once a minute, and the
 * first after 10 s). Speeds are those of the last half minute. */
void progress_update(Progress *p, const ProgressCounts *c);
/* The last line, always printed unless none. Speeds are those of the whole run. */
void progress_end(Progress *p, const ProgressCounts *c);

/* The parts of it that only compute. */
typedef struct ProgressRates {
    double elapsed_s, in_per_s, out_per_s; /* tokens */
    double left_s;                         /* < 0: not known */
} ProgressRates;

ProgressMode progress_choose(ProgressMode asked, bool terminal, bool launched);
/* Notes c as a sample when the newest is a second old. */
void progress_sample(Progress *p, double now_s, const ProgressCounts *c);
ProgressRates progress_rates(const Progress *p, double now_s, const ProgressCounts *c);
/* "rows 1200/10000 (12 %), 3 failed, 200 resumed; 12.3 k tok/s in, 4.50 k out; 96 running; 1m02s,
 * 9m05s left", NUL- terminated in out[cap] and cut where it does not fit. */
void progress_format(const ProgressCounts *c, const ProgressRates *r, char *out, size_t cap);
/* Three digits: "7", "999", "12.3 k", "4.50 M"; out[PROGRESS_WORD]. */
void progress_human(double v, char *out);
/* "0.8s", "45s", "12m30s", "3h05m", "2d04h"; out[PROGRESS_WORD]. */
void progress_duration(double s, char *out);

#endif
