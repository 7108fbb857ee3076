/* jobs/job_run.h - one run over one input file: journal, model, driver, merge. What `run` and
 * `score` have in common. */
#ifndef MB_JOBS_JOB_RUN_H
#define MB_JOBS_JOB_RUN_H

#include "jobs/engine.h"
#include "jobs/progress.h"

typedef enum JobKind { JOB_COMPLETIONS, JOB_SCORE } JobKind;

typedef struct JobConfig {
    JobKind kind;
    EngineConfig engine;
    RowContext defaults; /* served_name, created and the has_ fields; the rest is filled in */
    const char *input, *output;
    const char *metrics; /* NULL: none */
    const char *logits;  /* score: HDF5 file; NULL: none */
    bool overwrite;
    ProgressMode progress;
    double sync_interval_s;
} JobConfig;

typedef struct JobOutcome { /* filled on rank 0 */
    bool stopped, already_done;
    int run;                       /* number of this run of the job */
    int64_t rows, failed, resumed; /* rows of the input, error rows, rows that were done before */
    int64_t done;                  /* rows with a result */
    int64_t prompt_tokens, output_tokens;
    double seconds, compute_s;
} JobOutcome;

/* Collective. Every rank returns the same status. */
Status job_run(const JobConfig *config, Comm *comm, JobOutcome *out, Err *e);

#endif
