/* jobs/job_run.c - see job_run.h. The order: open the output and its journal, read config and
 * input, compare the job's identity, load the weights, run, merge. Each phase ends in
 * dist_agree. */
#include "jobs/job_run.h"

#include "io/clock.h"
#include "io/digest.h"
#include "io/log.h"
#include "jobs/driver.h"
#include "jobs/input.h"
#include "jobs/job_report.h"
#include "jobs/journal.h"
#include "jobs/logits_file.h"
#include "jobs/queue.h"
#include "jobs/score.h"
#include "jobs/signals.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct JobRun {
    const JobConfig *config;
    Comm *comm;
    Engine engine;
    Job job; /* rank 0 */
    char dir[JOB_DIR_MAX];
    int run;
    JournalScan scan; /* rank 0 */
    Input input;
    Queue queue;
    Segment *segment;
    StrBuf line, text;
    Scheduler *scheduler;
    Progress progress;
    DriverResult result;
    PhaseTimes times;
} JobRun;

/* What rank 0 learns when it opens the job and all must know. */
typedef struct JobFacts {
    int64_t run, n_rows, n_done, n_failed, already_done;
    int64_t compute; /* 0: the output of an earlier run is complete */
    char dir[JOB_DIR_MAX], isa[16], backend[16];
} JobFacts;

static Status share(JobRun *r, void *facts, size_t bytes, Status mine, Err *e)
{
    TRY(dist_agree(r->comm, mine, e));
    return comm_bcast(r->comm, facts, bytes, 0, e);
}

static Status open_job(JobRun *r, JobFacts *f, Err *e)
{
    const JobConfig *c = r->config;
    if (c->logits)
        TRY(logits_file_check(c->logits, e));
    TRY(job_open(c->output, c->overwrite, &r->job, e));
    snprintf(f->dir, sizeof f->dir, "%s", r->job.dir);
    if (r->job.state != JOB_FRESH) {
        JobIdentity old;
        TRY(job_recorded(&r->job, &old, e));
        snprintf(f->isa, sizeof f->isa, "%s", old.isa);
        snprintf(f->backend, sizeof f->backend, "%s", old.backend);
        f->compute = r->job.state != JOB_DONE;
    }
    return ST_OK;
}

/* What the result depends on beside model, tokenizer and input: everything that can change
 * output bytes. */
static Status digest_parameters(const JobRun *r, char *hex, Err *e)
{
    StrBuf b = {0};
    uint8_t digest[32];
    const RowContext *context = &r->engine.context;
    const char *name = context->served_name ? context->served_name : context->default_name;
    strbuf_fmt(&b, "{\"command\":\"%s\",\"logits\":%s,",
               r->config->kind == JOB_SCORE ? "score" : "run",
               r->config->logits ? "true" : "false");
    strbuf_fmt(&b, "\"created\":%lld,\"any_name\":%s,\"name\":", (long long)context->created,
               context->served_name ? "false" : "true");
    strbuf_json_string(&b, name, strlen(name));
    strbuf_str(&b, ",\"parameters\":");
    row_defaults_json(context, false, &b);
    strbuf_str(&b, ",\"precision\":");
    precision_json(&r->engine.config.precision, &b);
    strbuf_str(&b, "}");
    Status st = b.failed ? err_set(e, ST_MEMORY, "out of memory for the parameters") : ST_OK;
    if (st == ST_OK)
        st = sha256_of(b.data, b.len, digest, e);
    if (st == ST_OK)
        hex_of(digest, 32, hex);
    strbuf_free(&b);
    return st;
}

/* Rank 0: who this job is, whether that fits the journal, and what is left to do. */
static Status identify(JobRun *r, JobFacts *f, Err *e)
{
    const JobConfig *c = r->config;
    JobIdentity id = {0};
    uint8_t digest[32];
    char index[JOB_PATH_MAX];
    double start = clock_s();
    snprintf(index, sizeof index, "%s/index", r->job.dir);
    TRY(input_scan(c->input, index, digest, &id.n_rows, e));
    hex_of(digest, 32, id.input);
    r->times.input_s = clock_s() - start;
    TRY(weights_digest(c->engine.model_dir, id.model, e));
    TRY(tokenizer_digest(c->engine.model_dir, id.tokenizer, e));
    TRY(digest_parameters(r, id.parameters, e));
    /* with any ISA: nothing is left to compute */
    bool computed_before = r->job.state == JOB_DONE && !c->overwrite;
    snprintf(id.isa, sizeof id.isa, "%s", computed_before ? f->isa : isa_name(r->engine.isa));
    snprintf(id.backend, sizeof id.backend, "%s", r->engine.ops->name);
    TRY(job_identify(&r->job, &id, e));
    f->n_rows = id.n_rows;
    if (r->job.state == JOB_DONE) {
        f->already_done = 1;
        f->n_failed = r->job.n_failed;
        return ST_OK;
    }
    f->run = r->job.run;
    TRY(journal_scan(r->job.dir, id.n_rows, &r->scan, e));
    f->n_done = r->scan.n_done;
    f->n_failed = r->scan.n_failed;
    TRY(input_open(c->input, index, &r->input, e));
    TRY(queue_write(r->job.dir, &r->input, &r->scan, e));
    return report_manifest(c, &r->engine, &r->job, &id, r->comm, e);
}

static Status open_shared(JobRun *r, Err *e)
{
    char index[JOB_PATH_MAX];
    snprintf(index, sizeof index, "%s/index", r->dir);
    if (r->comm->rank != 0)
        TRY(input_open(r->config->input, index, &r->input, e));
    TRY(queue_open(r->dir, &r->queue, e));
    return segment_create(r->dir, r->run, r->comm->rank, r->config->sync_interval_s, &r->segment,
                          e);
}

static Status load_row(void *ctx, int64_t record, Row **out, Err *e)
{
    JobRun *r = ctx;
    const RowContext *context = &r->engine.context;
    int64_t row = r->queue.records[record].row;
    const InputRecord *in = &r->input.records[row];
    TRY(input_read(&r->input, row, &r->line, e));
    if (r->config->kind == JOB_SCORE)
        return score_parse(context, r->engine.tokenizer_cache, r->line.data, r->line.len, row,
                           (int64_t)in->line, (int64_t)in->duplicate_of, r->config->logits != NULL,
                           out, e);
    TRY(row_parse(context, r->engine.tokenizer_cache, r->line.data, r->line.len, row,
                  (int64_t)in->line, (int64_t)in->duplicate_of, out, e));
    TRY(queue_read_partial(&r->queue, record, &r->text, e));
    if (r->text.len == 0 || (*out)->error.status)
        return ST_OK;
    Status st = row_restore(context, *out, r->text.data, r->text.len, e);
    if (st != ST_OK) {
        err_in(e, "%s: saved state of line %lld", r->dir, (long long)in->line);
        row_free(*out);
        *out = NULL;
    }
    return st;
}

static Status finish_row(void *ctx, Row *row, Err *e)
{
    JobRun *r = ctx;
    strbuf_clear(&r->text);
    if (row->logits && !row->error.status)
        TRY(logits_file_add(r->segment, row, r->engine.arch.vocab, e));
    if (r->config->kind == JOB_SCORE)
        TRY(score_render(row, &r->text, e));
    else
        TRY(row_render(&r->engine.context, row, &r->text, e));
    if (r->text.failed)
        return err_set(e, ST_MEMORY, "out of memory for the output of line %lld",
                       (long long)row->line);
    return segment_append(r->segment, RECORD_RESULT, row->index, row->error.status != 0,
                          r->text.data, r->text.len, e);
}

static Status save_row(void *ctx, Row *row, Err *e)
{
    JobRun *r = ctx;
    bool begun = false;
    for (int i = 0; i < row->n_choices; i++)
        begun |= row->choices[i].out.n > 0;
    if (!begun || r->config->kind == JOB_SCORE)
        return ST_OK;
    strbuf_clear(&r->text);
    TRY(row_save(row, &r->text, e));
    if (r->text.failed)
        return err_set(e, ST_MEMORY, "out of memory for the state of line %lld",
                       (long long)row->line);
    return segment_append(r->segment, RECORD_PARTIAL, row->index, false, r->text.data, r->text.len,
                          e);
}

static Status tick(void *ctx, Err *e)
{
    JobRun *r = ctx;
    return segment_tick(r->segment, e);
}

static void flush_before_abort(void *ctx)
{
    JobRun *r = ctx;
    Err e;
    /* the process ends next; records are written already, this only syncs them */
    (void)segment_sync(r->segment, &e);
}

static Status compute(JobRun *r, const JobFacts *f, Err *e)
{
    const JobConfig *c = r->config;
    double start = clock_s();
    TRY(engine_load(&r->engine, e));
    r->times.load_s = clock_s() - start;
    const EngineConfig *used = &r->engine.config;
    SchedulerConfig sc = {used->max_batch, used->prefill_chunk, c->logits != NULL};
    Status st = scheduler_create(&r->scheduler, r->engine.model, &r->engine.context, r->engine.team,
                                 &sc, e);
    if (st == ST_OK)
        st = comm_watch(r->comm, c->engine.wait_timeout_s, flush_before_abort, r, e);
    TRY(dist_agree(r->comm, st, e));
    report_plan(&r->engine, r->comm);
    RowFlow flow = {r, r->queue.n, load_row, finish_row, save_row, tick};
    DriverConfig d = {f->n_rows, f->n_done, f->n_failed, &r->progress, signals_stop};
    start = clock_s();
    st = driver_run(r->scheduler, r->engine.model, r->comm, &flow, &d, &r->result, e);
    r->times.run_s = clock_s() - start;
    return st;
}

static Status close_segment(JobRun *r, Err *e)
{
    Status st = segment_close(r->segment, e);
    r->segment = NULL;
    return st;
}

static Status merge(JobRun *r, JobOutcome *out, Err *e)
{
    double start = clock_s();
    if (r->config->logits)
        TRY(logits_file_write(r->dir, r->config->logits, r->input.n_rows, e));
    Status st = journal_merge(&r->job, r->input.n_rows, &out->failed, e);
    r->times.merge_s = clock_s() - start;
    return st;
}

/* Collective. A job goes on with the instructions that it began with, or not at all: others
 * round differently. */
static Status use_recorded_isa(JobRun *r, const JobFacts *f, Err *e)
{
    IsaLevel recorded;
    bool provided = isa_parse(f->isa, &recorded, NULL) == ST_OK && recorded <= r->engine.isa;
    if (!provided && r->config->overwrite)
        return ST_OK; /* the identity will differ, and the job begins anew */
    if (engine_use_isa(&r->engine, f->isa, e) == ST_OK)
        return ST_OK;
    err_in(e, "%.150s was begun with %s", f->dir, f->isa);
    return e->code = ST_INPUT; /* a word that nobody knows was no usage of this command */
}

/* The same word, for good. */
static const char *name_of(const char *backend)
{
    const BackendOps *ops = backend_find(backend);
    return ops ? ops->name : "auto";
}

static Status run_phases(JobRun *r, JobOutcome *out, Err *e)
{
    const JobConfig *c = r->config;
    JobFacts f = {0};
    double start = clock_s();
    Status mine = signals_install(e);
    if (mine == ST_OK && r->comm->rank == 0)
        mine = open_job(r, &f, e);
    TRY(share(r, &f, sizeof f, mine, e));
    EngineConfig engine = c->engine;
    bool anew = !f.backend[0] || c->overwrite;
    if (!anew && strcmp(engine.backend, "auto") == 0)
        engine.backend = name_of(f.backend); /* a job goes on where it began */
    engine.computes_nothing = !anew && !f.compute;
    TRY(engine_open(&r->engine, &engine, r->comm, e));
    if (f.compute && f.isa[0] && strcmp(c->engine.isa, "auto") == 0)
        TRY(use_recorded_isa(r, &f, e));
    RowContext defaults = c->defaults, *context = &r->engine.context;
    defaults.tokenizer = context->tokenizer;
    defaults.arch = context->arch;
    defaults.generation = context->generation;
    defaults.max_len = context->max_len;
    defaults.default_name = context->default_name;
    *context = defaults;

    mine = r->comm->rank == 0 ? identify(r, &f, e) : ST_OK;
    TRY(share(r, &f, sizeof f, mine, e));
    out->rows = f.n_rows;
    out->resumed = f.n_done;
    out->already_done = f.already_done != 0;
    out->failed = f.n_failed;
    if (out->already_done)
        return ST_OK;
    r->run = out->run = (int)f.run;
    snprintf(r->dir, sizeof r->dir, "%s", f.dir);
    TRY(dist_agree(r->comm, open_shared(r, e), e));
    r->times.start_s = clock_s() - start - r->times.input_s;
    progress_start(&r->progress, c->progress);
    Status st = r->queue.n > 0 ? compute(r, &f, e) : ST_OK;
    Err close_err;
    Status closed = close_segment(r, &close_err);
    if (st == ST_OK && closed != ST_OK)
        *e = close_err;
    TRY(dist_agree(r->comm, st != ST_OK ? st : closed, e));
    out->stopped = r->result.stopped;
    if (r->comm->rank == 0)
        st = out->stopped ? ST_OK : merge(r, out, e);
    TRY(dist_agree(r->comm, st, e));
    out->done = r->queue.n > 0 ? r->result.counts.rows_done : f.n_done;
    if (out->stopped)
        out->failed = r->result.counts.rows_failed;
    out->prompt_tokens = r->result.counts.prompt_tokens;
    out->output_tokens = r->result.counts.output_tokens;
    out->seconds = clock_s() - start;
    out->compute_s = r->times.run_s;
    if (r->comm->rank == 0 && r->queue.n > 0)
        progress_end(&r->progress, &r->result.counts);
    return report_metrics(c, &r->engine, r->comm, &r->result, r->scheduler, &r->times, out, e);
}

Status job_run(const JobConfig *config, Comm *comm, JobOutcome *out, Err *e)
{
    *out = (JobOutcome){0};
    JobRun *r = calloc(1, sizeof *r);
    Status st = dist_agree(comm, r ? ST_OK : err_set(e, ST_MEMORY, "out of memory for the job"), e);
    if (st == ST_OK) {
        r->config = config;
        r->comm = comm;
        st = run_phases(r, out, e);
    }
    if (!r)
        return st;
    Err late; /* what closing says after a failure is not news */
    (void)comm_watch(comm, 0, NULL, NULL, &late);
    (void)close_segment(r, &late);
    scheduler_destroy(r->scheduler);
    engine_close(&r->engine);
    queue_close(&r->queue);
    input_close(&r->input);
    journal_scan_free(&r->scan);
    strbuf_free(&r->line);
    strbuf_free(&r->text);
    job_close(&r->job);
    free(r);
    return st;
}
