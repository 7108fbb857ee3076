/* jobs/bench_run.c - see bench_run.h: a job in memory, without journal, tokenizer and files. */
#include "jobs/bench_run.h"

#include "io/clock.h"
#include "model/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEQUENCES = 2048, WARM_PROMPT = 64, WARM_OUTPUT = 4 };

/* For what is not a row, a weight or a cache: logits, staging, the exchange, the driver's own. */
static const size_t RESERVE_BYTES = (size_t)8 << 30;

typedef struct Bench {
    const BenchConfig *config;
    Comm *comm;
    Engine engine;
    Synthetic *synthetic;
    Scheduler *scheduler;
    RoofModel roof;
    /* [n_shapes] steps of each phase, judged at the end, when it is known how experts were chosen */
    StepShape *shapes[N_BENCH_PHASES];
    int64_t n_shapes[N_BENCH_PHASES], cap[N_BENCH_PHASES];
    int64_t router_rows; /* of all ranks */
    BenchResult *out;
} Bench;

/* --- how many sequences fit --- */

/* The cache of n_seqs sequences that generate, while one chunk of prompts is computed, whose pages a window
 * gives back only afterwards. */
static size_t kv_bytes_of(const Bench *b, size_t n_seqs)
{
    const Engine *g = &b->engine;
    const BenchConfig *c = b->config;
    int windows[MAX_KV_GROUPS], n = 0;
    int64_t positions = (int64_t)c->prompt_tokens + c->output_tokens, blocks = 0, chunk = 0;
    for (int l = 0; l < g->arch.n_layers; l++) {
        int window = g->arch.layers[l].window, k = 0;
        while (k < n && windows[k] != window)
            k++;
        if (k < n || n == MAX_KV_GROUPS)
            continue;
        windows[n++] = window;
        int64_t pages = (positions + KV_PAGE - 1) / KV_PAGE;
        int64_t reach = window / KV_PAGE + 2;
        blocks += window > 0 && reach < pages ? reach : pages;
        chunk += window > 0 ? g->config.prefill_chunk / KV_PAGE + 1 : 0;
    }
    return ((size_t)blocks * n_seqs + (size_t)chunk) *
           kv_block_bytes(&g->arch, g->config.precision.kv, g->ops, g->backend);
}

/* What a row costs in buffers, at most: rows in and between the operations, in both directions of the
 * exchange. */
static size_t row_bytes(const Arch *a)
{
    size_t q = (size_t)a->n_heads *
               (size_t)(a->attn == ATTN_LATENT
                            ? a->latent.nope_dim + a->latent.rope_dim + 2 * a->latent.latent_dim
                            : a->head_dim);
    size_t inter = (size_t)a->moe_inter * (size_t)a->router.top_k;
    size_t wide = (size_t)(a->dense_inter + a->shared_inter);
    size_t travels = (size_t)a->hidden * (size_t)a->router.top_k;
    return 24 * (size_t)a->hidden + 8 * q + 6 * (inter + wide) + 4 * travels;
}

static int batch_that_fits(const Bench *b, size_t free_bytes)
{
    const Engine *g = &b->engine;
    size_t weights = (size_t)synthetic_bytes(b->synthetic) / (size_t)b->comm->size;
    size_t rows = row_bytes(&g->arch), chunk = kv_bytes_of(b, 0);
    size_t each = kv_bytes_of(b, 1) - chunk + rows;
    size_t fixed =
        weights + weights / 16 + RESERVE_BYTES + chunk + (size_t)g->config.prefill_chunk * rows;
    size_t room = free_bytes - free_bytes / 16;
    size_t n = room > fixed ? (room - fixed) / each : 1;
    return n < 1 ? 1 : n > MOST_SEQUENCES ? MOST_SEQUENCES : (int)n;
}

/* The smallest of all ranks. */
static Status choose_batch(Bench *b, Err *e)
{
    const BenchConfig *c = b->config;
    Engine *g = &b->engine;
    int64_t batch = c->batch;
    if (batch == 0 && g->ops->host_memory)
        batch = 32;
    else if (batch == 0)
        batch = batch_that_fits(b, g->ops->free_memory(g->backend));
    if (c->sequences > 0 && batch > c->sequences)
        batch = c->sequences;
    TRY(comm_min_int64(b->comm, &batch, 1, e));
    b->out->batch = (int)batch;
    b->out->sequences = c->sequences > 0 ? c->sequences : (int)batch;
    g->config.max_batch = (int)batch;
    g->config.kv_bytes = kv_bytes_of(b, (size_t)batch);
    g->config.kv_fits = true;
    if (g->config.kv_bytes < (size_t)64 << 20 && g->ops->host_memory)
        g->config.kv_bytes = (size_t)64 << 20;
    return ST_OK;
}

/* --- rows --- */

/* A row of random ids, which is generated from greedily and to its end. */
static Status make_row(Bench *b, int64_t number, int n_prompt, int n_output, Row **out, Err *e)
{
    StrBuf line = {0};
    uint64_t state = (uint64_t)(number * b->comm->size + b->comm->rank) * 0x9e3779b97f4a7c15u + 1;
    strbuf_str(&line, "{\"input_ids\": [");
    for (int i = 0; i < n_prompt; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        strbuf_fmt(&line, "%s%d", i ? "," : "",
                   (int)((state >> 33) % (uint64_t)b->engine.arch.vocab));
    }
    strbuf_fmt(&line, "], \"max_tokens\": %d, \"temperature\": 0, \"ignore_eos\": true}", n_output);
    Status st = line.failed ? err_set(e, ST_MEMORY, "out of memory: a row")
                            : row_parse(&b->engine.context, NULL, line.data, line.len, number,
                                        number + 1, 0, out, e);
    strbuf_free(&line);
    return st;
}

static Status take_done(Bench *b, Err *e)
{
    for (Row *row; (row = scheduler_take_done(b->scheduler)) != NULL;) {
        Status st = row->error.status ? err_set(e, ST_INPUT, "a row failed: %s", row->error.message)
                                      : ST_OK;
        row_free(row);
        TRY(st);
    }
    return ST_OK;
}

/* --- steps --- */

static bool keep_shape(Bench *b, int phase, const Step *step)
{
    if (b->n_shapes[phase] == b->cap[phase]) {
        int64_t cap = b->cap[phase] ? 2 * b->cap[phase] : 256;
        StepShape *more = realloc(b->shapes[phase], (size_t)cap * sizeof *more);
        if (!more)
            return false;
        b->shapes[phase] = more;
        b->cap[phase] = cap;
    }
    b->shapes[phase][b->n_shapes[phase]++] = roof_step(&b->roof, step);
    return true;
}

static int phase_of(const Step *step)
{
    for (int i = 0; i < step->n_seqs; i++)
        if (step->seqs[i].pos < step->seqs[i].n_prompt)
            return BENCH_PREFILL;
    return BENCH_DECODE;
}

static Status one_step(Bench *b, int64_t number, bool measured, Err *e)
{
    Step step = {0};
    double start = clock_s();
    SchedulerCounts before = scheduler_counts(b->scheduler);
    Status mine = scheduler_plan(b->scheduler, number, &step, e);
    double planned = clock_s();
    bool all_know = false;
    TRY(dist_agree(b->comm, mine, e));
    int phase = phase_of(&step);
    mine = ST_OK;
    if (step.n_rows > 0 || b->engine.model->exchange)
        mine = model_step(b->engine.model, &step, &all_know, e);
    if (mine != ST_OK && all_know)
        return mine;
    if (mine == ST_OK)
        mine = scheduler_consume(b->scheduler, e);
    SchedulerCounts after = scheduler_counts(b->scheduler);
    if (measured && mine == ST_OK && step.n_rows > 0 && !keep_shape(b, phase, &step))
        mine = err_set(e, ST_MEMORY, "out of memory: a list of steps");
    if (mine == ST_OK)
        mine = take_done(b, e);
    TRY(dist_agree(b->comm, mine, e));
    b->router_rows += step.n_rows;
    if (!measured)
        return ST_OK;
    BenchPhase *p = &b->out->phase[phase];
    p->steps++;
    p->prompt_tokens += after.prompt_tokens - before.prompt_tokens;
    p->output_tokens += after.output_tokens - before.output_tokens;
    p->seconds += clock_s() - start;
    b->out->schedule_s += planned - start;
    return ST_OK;
}

/* n rows of this rank, until every rank has none left. */
static Status run_rows(Bench *b, int n, int n_prompt, int n_output, bool measured, Err *e)
{
    int next = 0;
    for (int64_t number = 0;; number++) {
        Status mine = ST_OK;
        for (int room = scheduler_wanted(b->scheduler); room > 0 && next < n && mine == ST_OK;
             room--) {
            Row *row;
            mine = make_row(b, next++, n_prompt, n_output, &row, e);
            if (mine == ST_OK)
                mine = scheduler_add(b->scheduler, row, e);
        }
        TRY(dist_agree(b->comm, mine, e));
        int64_t open = scheduler_open(b->scheduler) + (n - next);
        TRY(comm_max_int64(b->comm, &open, 1, e));
        if (open == 0)
            return ST_OK;
        TRY(one_step(b, number, measured, e));
    }
}

/* --- the whole --- */

static Status judge(Bench *b, Err *e)
{
    const Arch *a = &b->engine.arch;
    int64_t n = (int64_t)a->n_layers * a->router.n_experts, rows = b->router_rows;
    int64_t *load = calloc((size_t)n + 1, sizeof *load);
    Status st = load ? ST_OK : err_set(e, ST_MEMORY, "out of memory: the experts' loads");
    TRY_GOTO(dist_agree(b->comm, st, e));
    TRY_GOTO(dist_agree(b->comm, n > 0 ? model_expert_load(b->engine.model, load, e) : ST_OK, e));
    TRY_GOTO(comm_sum_int64(b->comm, load, (int)n, e));
    TRY_GOTO(comm_sum_int64(b->comm, &rows, 1, e));
    roof_model_free(&b->roof);
    TRY_GOTO(roof_model_create(&b->roof, b->engine.model, n > 0 ? load : NULL, rows, e));
    for (int p = 0; p < N_BENCH_PHASES; p++)
        for (int64_t i = 0; i < b->n_shapes[p]; i++)
            roof_add(&b->out->phase[p].roof, &b->roof, &b->shapes[p][i], &b->out->limits);
    int n_moe = 0;
    for (int l = 0; l < a->n_layers; l++) {
        int64_t most = 0, sum = 0;
        for (int x = 0; x < a->router.n_experts; x++) {
            int64_t one = load[(int64_t)l * a->router.n_experts + x];
            most = one > most ? one : most;
            sum += one;
        }
        n_moe += sum > 0;
        b->out->busiest += sum > 0 ? (double)most * a->router.n_experts / (double)sum : 0;
    }
    b->out->busiest /= n_moe ? n_moe : 1;
fail:
    free(load);
    return st;
}

static void end(Bench *b)
{
    scheduler_destroy(b->scheduler);
    for (int p = 0; p < N_BENCH_PHASES; p++)
        free(b->shapes[p]);
    roof_model_free(&b->roof);
    engine_close(&b->engine);
    synthetic_free(b->synthetic);
}

static void note_model(Bench *b)
{
    const Model *m = b->engine.model;
    BenchResult *r = b->out;
    snprintf(r->model_type, sizeof r->model_type, "%s", m->arch->model_type);
    r->n_layers = m->arch->n_layers;
    r->prefill_chunk = b->engine.config.prefill_chunk;
    r->weight_bytes = m->weights.dense_bytes + m->weights.expert_bytes;
    r->loaded_bytes = m->weights.bytes_read;
    r->kv_bytes = (int64_t)m->config.kv_bytes;
    r->load_s = b->engine.load_s;
}

static Status run_shape(Bench *b, EngineConfig *engine, Err *e)
{
    const BenchConfig *c = b->config;
    TRY(dist_agree(b->comm, synthetic_create(&b->synthetic, c->shape, c->n_layers, e), e));
    engine->synthetic = b->synthetic;
    engine->max_model_len = c->prompt_tokens + c->output_tokens;
    TRY(engine_open(&b->engine, engine, b->comm, e));
    TRY(engine_start(&b->engine, e));
    Engine *g = &b->engine;
    TRY(dist_agree(b->comm, g->ops->ceilings(g->backend, &b->out->limits, e), e));
    TRY(choose_batch(b, e));
    TRY(engine_load(g, e));
    note_model(b);
    SchedulerConfig s = {.max_batch = g->config.max_batch,
                         .prefill_chunk = g->config.prefill_chunk};
    Status st = scheduler_create(&b->scheduler, g->model, &g->context, g->team, &s, e);
    if (st == ST_OK)
        st = roof_model_create(&b->roof, g->model, NULL, 0, e);
    TRY(dist_agree(b->comm, st, e));
    int warm = c->prompt_tokens < WARM_PROMPT ? c->prompt_tokens : WARM_PROMPT;
    int warm_out = c->output_tokens < WARM_OUTPUT ? c->output_tokens : WARM_OUTPUT;
    TRY(run_rows(b, 1, warm, warm_out, false, e));
    SchedulerCounts before = scheduler_counts(b->scheduler);
    TRY(run_rows(b, b->out->sequences, c->prompt_tokens, c->output_tokens, true, e));
    SchedulerCounts after = scheduler_counts(b->scheduler);
    b->out->sample_s = after.sample_s - before.sample_s;
    b->out->preemptions = after.preemptions - before.preemptions;
    return judge(b, e);
}

Status bench_run(const BenchConfig *config, Comm *comm, BenchResult *out, Err *e)
{
    Bench b = {.config = config, .comm = comm, .out = out};
    EngineConfig engine = config->engine;
    *out = (BenchResult){.n_ranks = comm->size};
    Status st = run_shape(&b, &engine, e);
    end(&b);
    return st;
}
