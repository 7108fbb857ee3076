/* jobs/summary.h - what `run` prints on stdout when it ends: one or two lines for people. */
#ifndef MB_JOBS_SUMMARY_H
#define MB_JOBS_SUMMARY_H

#include "io/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct JobSummary {
    const char *out, *dir; /* the file, and its job directory */
    int64_t rows, done, failed, resumed;
    int64_t prompt_tokens, output_tokens; /* computed in this run */
    double run_s, wall_s;                 /* computing; from start to end */
    bool finished_before;                 /* nothing was done, since all was there */
    const char *stopped_by;               /* the signal's name, or NULL */
} JobSummary;

/* Appends the text, with line ends. */
void summary_format(const JobSummary *s, StrBuf *out);

#endif
