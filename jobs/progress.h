/* jobs/progress.h - what a job says of itself while it runs, and the metrics file at its end. */
#ifndef MB_JOBS_PROGRESS_H
#define MB_JOBS_PROGRESS_H

#include "io/err.h"

#include <stdint.h>

typedef enum ProgressMode { PROGRESS_AUTO, PROGRESS_LIVE, PROGRESS_LOG, PROGRESS_NONE } ProgressMode;

typedef struct ProgressCounts { /* over all ranks */
    int64_t rows_total, rows_done, rows_failed, rows_resumed; /* done includes failed and resumed */
    int64_t prompt_tokens, output_tokens;                     /* computed in this run */
    int64_t sequences;                                        /* in flight */
} ProgressCounts;

typedef struct Progress {
    ProgressMode mode;
    double start_s, last_s;
    ProgressCounts last;
    int width; /* of the line on the terminal */
} Progress;

/* auto is live only without mpirun or srun on a terminal, else log. ST_USAGE for an unknown word. */
Status progress_parse(const char *word, ProgressMode *out, Err *e);
void progress_start(Progress *p, ProgressMode mode);
/* Called often by rank 0; prints when due (live: 4 times a second; log: once a minute, and the first after 10 s). */
void progress_update(Progress *p, const ProgressCounts *c);
/* The last line, always printed unless none. */
void progress_end(Progress *p, const ProgressCounts *c);

#endif
