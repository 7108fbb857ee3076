/* app/job_options.h - the flags that every command which runs a model takes. */
#ifndef MB_APP_JOB_OPTIONS_H
#define MB_APP_JOB_OPTIONS_H

#include "app/options.h"
#include "jobs/job_run.h"

typedef struct JobOptions {
    JobConfig job;
    OptionList accept_keys;
    const char *generation_config, *progress;
    const char *activations, *activation_override, *missing_input_scale, *kv_dtype;
    const char *quantize;
    bool quantize_experts_only;
} JobOptions;

enum { MAX_OPTIONS = 48 };

/* Defaults, and the table entries common to all; returns how many were written to out. */
void job_options_init(JobOptions *o);
size_t job_options_engine(JobOptions *o, Option *out);
/* Likewise, of those whose ranks may be on GPUs. */
size_t job_options_ranks(JobOptions *o, Option *out);
/* After parsing: words to values. */
Status job_options_finish(JobOptions *o, Err *e);

/* MODEL is an argument or the value of -m: *model has it, whichever it was. ST_USAGE unless it was
 * given once. */
Status app_one_model(const char **model, const char *const *args, int n_args, Err *e);

/* Starts the ranks, runs, prints the error if any (rank 0), ends the ranks: the exit code. run
 * gets ctx. */
int app_with_ranks(int argc, char **argv, int (*run)(void *ctx, Comm *comm, Status *st, Err *e),
                   void *ctx);
/* Prints "moebatch COMMAND: TEXT" and returns 2. */
int app_usage(const char *command, const Err *e);

#endif
