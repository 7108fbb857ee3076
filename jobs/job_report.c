/* jobs/job_report.c - see job_report.h. */
#include "jobs/job_report.h"

#include "io/log.h"
#include "jobs/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_member(StrBuf *b, const char *key, const char *value)
{
    strbuf_fmt(b, "  \"%s\": ", key);
    if (value)
        strbuf_json_string(b, value, strlen(value));
    else
        strbuf_str(b, "null");
    strbuf_str(b, ",\n");
}

Status report_manifest(const JobConfig *config, const Engine *engine, const Job *job,
                       const JobIdentity *id, const Comm *comm, Err *e)
{
    StrBuf b = {0};
    strbuf_str(&b, "{\n");
    add_member(&b, "version", MOEBATCH_VERSION);
    add_member(&b, "command", config->kind == JOB_SCORE ? "score" : "run");
    add_member(&b, "model", config->engine.model_dir);
    add_member(&b, "model_type", engine->arch.model_type);
    add_member(&b, "input", config->input);
    add_member(&b, "output", config->output);
    add_member(&b, "isa", id->isa);
    add_member(&b, "backend", id->backend);
    add_member(&b, "model_digest", id->model);
    add_member(&b, "tokenizer_digest", id->tokenizer);
    add_member(&b, "input_digest", id->input);
    add_member(&b, "parameters_digest", id->parameters);
    strbuf_fmt(&b, "  \"rows\": %lld,\n  \"run\": %d,\n  \"ranks\": %d,\n", (long long)id->n_rows,
               job->run, comm->size);
    strbuf_fmt(&b, "  \"max_batch\": %d,\n  \"prefill_chunk\": %d,\n  \"context\": %d,\n",
               engine->config.max_batch, engine->config.prefill_chunk, engine->context.max_len);
    strbuf_str(&b, "  \"parameters\": ");
    row_defaults_json(&engine->context, true, &b);
    strbuf_str(&b, ",\n  \"precision\": ");
    precision_json(&engine->config.precision, &b);
    strbuf_str(&b, "\n}\n");
    Status st = b.failed ? err_set(e, ST_MEMORY, "out of memory for the manifest")
                         : job_write_manifest(job, b.data, b.len, e);
    strbuf_free(&b);
    return st;
}

void report_plan(const Engine *engine, const Comm *comm)
{
    const Model *m = engine->model;
    const double gib = 1 << 30;
    size_t block = m->kv.page_bytes * (size_t)m->kv.pages_per_block;
    size_t exchange = 0;
    if (m->exchange)
        exchange = exchange_plan_bytes(comm, &m->placement, &m->exchange_shape);
    log_note("%s, %d experts of %d here, %d threads, %s; GiB: dense weights %.2f, experts %.2f, kv "
             "%.2f, buffers %.2f, "
             "exchange %.2f",
             m->arch->model_type, m->placement.n_local[comm->rank], m->arch->router.n_experts,
             engine->threads, engine->ops->host_memory ? isa_name(engine->isa) : engine->ops->name,
             (double)m->weights.dense_bytes / gib, (double)m->weights.expert_bytes / gib,
             (double)block * m->kv.n_blocks / gib, (double)m->buffer_bytes / gib,
             (double)exchange / gib);
}

static RankMetrics rank_metrics(const Engine *g, const Comm *comm, const DriverResult *result,
                                const Scheduler *scheduler, const PhaseTimes *times)
{
    RankMetrics r = {.n_threads = g->threads,
                     .start_s = times->start_s,
                     .input_s = times->input_s,
                     .load_s = times->load_s,
                     .run_s = times->run_s,
                     .finish_s = times->merge_s,
                     .rows = result->rows_done,
                     .rows_failed = result->rows_failed,
                     .peak_rss_bytes = metrics_peak_rss()};
    snprintf(r.host, sizeof r.host, "%s", comm->host);
    if (!scheduler)
        return r;
    const Model *m = g->model;
    SchedulerCounts c = scheduler_counts(scheduler);
    r.embed_s = m->times.embed;
    r.attention_s = m->times.attention;
    r.router_s = m->times.router;
    r.dispatch_s = m->times.dispatch;
    r.experts_s = m->times.experts;
    r.combine_s = m->times.combine;
    r.head_s = m->times.head;
    r.sample_s = c.sample_s;
    r.schedule_s = result->schedule_s;
    r.prompt_tokens = c.prompt_tokens;
    r.output_tokens = c.output_tokens;
    r.preemptions = c.preemptions;
    r.loaded_bytes = m->weights.bytes_read;
    r.kv_bytes = (int64_t)m->config.kv_bytes;
    if (m->exchange) {
        ExchangeStats x = exchange_stats(m->exchange);
        r.dispatch_bytes = x.dispatch_bytes;
        r.combine_bytes = x.combine_bytes;
        r.n_rounds = x.n_rounds;
    }
    return r;
}

/* Sums the ranks' expert counts into the caller's copy; NULL where nothing was computed. */
static Status sum_load(Engine *g, Comm *comm, bool computed, int64_t **out, Err *e)
{
    int64_t n = (int64_t)g->arch.n_layers * g->arch.router.n_experts;
    *out = NULL;
    if (!computed || n == 0)
        return ST_OK;
    int64_t *load = malloc((size_t)n * sizeof *load);
    TRY(dist_agree(comm, load ? ST_OK : err_set(e, ST_MEMORY, "out of memory for the expert loads"),
                   e));
    *out = load;
    TRY(dist_agree(comm, model_expert_load(g->model, load, e), e));
    return comm_sum_int64(comm, load, (int)n, e);
}

Status report_metrics(const JobConfig *config, Engine *engine, Comm *comm,
                      const DriverResult *result, const Scheduler *scheduler,
                      const PhaseTimes *times, const JobOutcome *outcome, Err *e)
{
    if (!config->metrics)
        return ST_OK;
    RankMetrics mine = rank_metrics(engine, comm, result, scheduler, times);
    RankMetrics *all = comm->rank == 0 ? calloc((size_t)comm->size, sizeof *all) : NULL;
    int64_t *load = NULL;
    Status st =
        comm->rank == 0 && !all ? err_set(e, ST_MEMORY, "out of memory for the metrics") : ST_OK;
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = comm_gather(comm, &mine, sizeof mine, all, 0, e);
    if (st == ST_OK)
        st = sum_load(engine, comm, scheduler != NULL, &load, e);
    if (st == ST_OK && comm->rank == 0) {
        JobMetrics m = {.version = MOEBATCH_VERSION,
                        .backend = engine->ops->name,
                        .isa = isa_name(engine->isa),
                        .model = config->engine.model_dir,
                        .input = config->input,
                        .out = config->output,
                        .run = outcome->run,
                        .stopped = outcome->stopped,
                        .rows = outcome->rows,
                        .rows_done = outcome->done,
                        .rows_failed = outcome->failed,
                        .rows_resumed = outcome->resumed,
                        .steps = result->steps,
                        .idle_steps = result->idle_steps,
                        .wall_s = outcome->seconds,
                        .n_ranks = comm->size,
                        .ranks = all,
                        .n_layers = engine->arch.n_layers,
                        .n_experts = engine->arch.router.n_experts,
                        .expert_load = load};
        st = metrics_write(config->metrics, &m, e);
    }
    st = dist_agree(comm, st, e);
    free(all);
    free(load);
    return st;
}
