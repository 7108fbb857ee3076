/* app/cmd_run.c - moebatch run and moebatch score: a file of rows in, a file of results out. */
#include "app/commands.h"
#include "app/job_options.h"
#include "jobs/signals.h"
#include "jobs/summary.h"

#include <stdio.h>
#include <string.h>

enum { EXIT_ERROR_ROWS = 3, EXIT_STOPPED = 75 };

static void print_outcome(const JobConfig *c, const JobOutcome *o)
{
    char dir[4200];
    StrBuf text = {0};
    snprintf(dir, sizeof dir, "%.4096s.job", c->output);
    JobSummary s = {.out = c->output,
                    .dir = dir,
                    .rows = o->rows,
                    .done = o->done,
                    .failed = o->failed,
                    .resumed = o->resumed,
                    .prompt_tokens = o->prompt_tokens,
                    .output_tokens = o->output_tokens,
                    .run_s = o->compute_s,
                    .wall_s = o->seconds,
                    .finished_before = o->already_done,
                    .stopped_by = !o->stopped      ? NULL
                                  : signals_name() ? signals_name()
                                                   : "a signal to another rank"};
    summary_format(&s, &text);
    fputs(text.failed ? "" : text.data, stdout);
    strbuf_free(&text);
}

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    const JobConfig *c = ctx;
    JobOutcome o;
    *st = job_run(c, comm, &o, e);
    if (*st != ST_OK)
        return 1;
    if (comm->rank == 0)
        print_outcome(c, &o);
    int64_t failed = o.failed;
    *st = comm_bcast(comm, &failed, sizeof failed, 0, e);
    return o.stopped ? EXIT_STOPPED : failed > 0 ? EXIT_ERROR_ROWS : 0;
}

static size_t file_options(JobOptions *o, Option *out)
{
    JobConfig *j = &o->job;
    const Option table[] = {
        {"--input", "-i", OPTION_TEXT, &j->input, NULL, 0, 0, "FILE",
         "rows, one JSON object per line"},
        {"--output", "-o", OPTION_TEXT, &j->output, NULL, 0, 0, "FILE",
         "results, in input order; journal in FILE.job"},
        {"--overwrite", NULL, OPTION_FLAG, &j->overwrite, NULL, 0, 0, NULL,
         "replace an existing result file"},
        {"--sync-interval", NULL, OPTION_NUMBER, &j->sync_interval_s, NULL, 0, 1e9, "S",
         "between syncs of the journal (5)"},
        {"--metrics", NULL, OPTION_TEXT, &j->metrics, NULL, 0, 0, "FILE",
         "write times, rates and loads as JSON at the end"},
    };
    memcpy(out, table, sizeof table);
    return sizeof table / sizeof *table;
}

static size_t run_options(JobOptions *o, Option *out)
{
    RowContext *d = &o->job.defaults;
    const Option table[] = {
        {"--max-tokens", NULL, OPTION_INT, &d->max_tokens, &d->has_max_tokens, 1, 1 << 30, "N",
         "for rows without max_tokens"},
        {"--temperature", NULL, OPTION_NUMBER, &d->temperature, &d->has_temperature, 0, 1e6, "X",
         "for rows without it"},
        {"--top-p", NULL, OPTION_NUMBER, &d->top_p, &d->has_top_p, 1e-12, 1, "X",
         "for rows without it"},
        {"--top-k", NULL, OPTION_INT, &d->top_k, &d->has_top_k, -1, 1 << 30, "N",
         "for rows without it; 0 or -1: off"},
        {"--seed", NULL, OPTION_INT64, &d->seed, &d->has_seed, 0, 0, "N",
         "for rows without it (0)"},
        {"--generation-config", NULL, OPTION_TEXT, &o->generation_config, NULL, 0, 0, "MODE",
         "auto: its defaults apply to such rows; none"},
        {"--served-model-name", NULL, OPTION_TEXT, &d->served_name, NULL, 0, 0, "NAME",
         "refuse rows for another model"},
        {"--created", NULL, OPTION_INT64, &d->created, NULL, 0, 1e15, "N",
         "value of \"created\" in the output (0)"},
    };
    memcpy(out, table, sizeof table);
    return sizeof table / sizeof *table;
}

static int job_command(const char *name, const char *about, JobOptions *o, const Option *options,
                       size_t n, int argc, char **argv)
{
    Err e;
    bool help;
    Status st = options_parse(options, n, argc, argv, NULL, 0, NULL, &help, &e);
    if (st == ST_OK && help) {
        puts(about);
        options_print(options, n);
        return 0;
    }
    if (st == ST_OK)
        st = job_options_finish(o, &e);
    if (st == ST_OK && (!o->job.input || !o->job.output))
        st = err_set(&e, ST_USAGE, "%s FILE is missing", o->job.input ? "-o" : "-i");
    return st == ST_OK ? app_with_ranks(argc, argv, run, &o->job) : app_usage(name, &e);
}

int cmd_run(int argc, char **argv)
{
    JobOptions o;
    Option options[MAX_OPTIONS];
    job_options_init(&o);
    size_t n = job_options_engine(&o, options);
    n += job_options_ranks(&o, options + n);
    n += file_options(&o, options + n);
    n += run_options(&o, options + n);
    return job_command(
        "run",
        "Usage: [mpirun -n RANKS] moebatch run -m DIR -i rows.jsonl -o out.jsonl [options]\n\n"
        "Completes every row of a file. Interrupted, the same command goes on where it stopped.\n"
        "Exit: 0 done, 3 done with error rows, 75 stopped and resumable, 2 usage, 1 failure.\n",
        &o, options, n, argc, argv);
}

int cmd_score(int argc, char **argv)
{
    JobOptions o;
    Option options[MAX_OPTIONS];
    job_options_init(&o);
    o.job.kind = JOB_SCORE;
    size_t n = job_options_engine(&o, options);
    n += job_options_ranks(&o, options + n);
    n += file_options(&o, options + n);
    options[n++] = (Option){"--logits",
                            NULL,
                            OPTION_TEXT,
                            &o.job.logits,
                            NULL,
                            0,
                            0,
                            "FILE",
                            "also write every logit to this HDF5 file"};
    return job_command(
        "score",
        "Usage: [mpirun -n RANKS] moebatch score -m DIR -i rows.jsonl -o out.jsonl [options]\n\n"
        "Log-probabilities of the tokens of rows {\"text\": ...} or {\"input_ids\": [...]}.\n"
        "Exit: 0 done, 3 done with error rows, 75 stopped and resumable, 2 usage, 1 failure.\n",
        &o, options, n, argc, argv);
}
