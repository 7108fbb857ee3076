/* tests/bench/bench_model.c - prefill and decode of a whole model on one rank, beside what this machine can do at best in the same
 * run.
 *
 *   bench_model -m DIR [--threads N] [--isa LEVEL] [--prompt 512] [--prefill-chunk 1024] [--rows 1,16,64,256] [--context 256]
 *               [--seconds 3]
 *
 * Random token ids. A row gives tokens per second, weights and KV read per second, multiply-adds as two operations per second,
 * and the share of the roofline: the time that reading each weight once per step, or the multiply-adds, would take at the
 * ceilings, whichever is longer, over the time measured. Decode includes the head and the choice of the best token. */
#include "app/job_options.h"
#include "io/clock.h"
#include "kernels/cpu/ceilings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Bench {
    Engine engine;
    CeilingProbe *probe;
    Ceilings best;
    double seconds;
    int32_t *ids, *position;
    StepSeq *seqs;
    KvSeq *kv;
    int n_kv;
    int64_t sink; /* sum of chosen tokens, so that nothing is optimized away */
} Bench;

typedef struct Work { /* of one step */
    double flops, bytes;
} Work;

static double layer_flops(const Arch *a, int l, double rows, double kept, double keys)
{
    double q = (double)a->n_heads * a->head_dim, kv = (double)a->n_kv_heads * a->head_dim,
           h = a->hidden;
    double flops = 2 * rows * h * (q + 2 * kv) + 2 * kept * q * h + 4 * kept * keys * q;
    if (a->layers[l].moe)
        flops +=
            kept * (2 * h * a->router.n_experts + 6 * h * (double)a->moe_inter * a->router.top_k);
    else
        flops += kept * 6 * h * (double)a->dense_inter;
    return flops;
}

/* rows of which the last layer and the head keep wanted; keys: mean number that a row sees in
 * full attention. */
static Work count_work(const Bench *b, double rows, double wanted, double keys, double kv_tokens)
{
    const Model *m = b->engine.model;
    const Arch *a = &b->engine.arch;
    Work w = {0};
    int64_t hit = 0, banks = 0;
    for (int l = 0; l < a->n_layers; l++) {
        double seen =
            a->layers[l].window && a->layers[l].window < keys ? a->layers[l].window : keys;
        double held = a->layers[l].window && a->layers[l].window < kv_tokens ? a->layers[l].window
                                                                             : kv_tokens;
        w.flops += layer_flops(a, l, rows, l == a->n_layers - 1 ? wanted : rows, seen);
        w.bytes += held * 2.0 * a->n_kv_heads * a->head_dim * b->engine.ops->act_bytes;
        for (int e = 0; a->layers[l].moe && e < a->router.n_experts; e++, banks++)
            hit += m->load[(int64_t)l * a->router.n_experts + e] > 0;
    }
    double table = (double)b->engine.ops->weight_bytes(m->weights.embed);
    w.flops += 2 * wanted * a->hidden * a->vocab;
    w.bytes += (double)m->weights.dense_bytes - table;
    if (banks)
        w.bytes += (double)m->weights.expert_bytes * (double)hit / (double)banks;
    return w;
}

static void report(Bench *b, const char *name, double tokens, double seconds, Work w)
{
    ceilings_measure(b->probe, &b->best);
    double peak = b->best.fma_gflops[b->engine.isa];
    double by_bytes = w.bytes / b->best.read_gbs * 1e-9, by_flops = w.flops / peak * 1e-9;
    printf("%-34s %9.0f tok/s %8.1f GB/s %9.1f GFLOP/s  %3.0f%% of the roofline (%s)\n", name,
           tokens / seconds, w.bytes / seconds * 1e-9, w.flops / seconds * 1e-9,
           100 * fmax(by_bytes, by_flops) / seconds, by_bytes > by_flops ? "bandwidth" : "FMA");
}

static Status sample_greedy(Bench *b, int n, Err *e)
{
    Model *m = b->engine.model;
    for (int first = 0; first < n; first += m->logits_rows) {
        const float *logits;
        int rows = n - first < m->logits_rows ? n - first : m->logits_rows;
        TRY(model_logits(m, first, rows, &logits, e));
        for (int r = 0; r < rows; r++) {
            const float *row = logits + (int64_t)r * m->arch->vocab;
            int top = 0;
            for (int v = 1; v < m->arch->vocab; v++)
                top = row[v] > row[top] ? v : top;
            b->sink += top;
        }
    }
    return ST_OK;
}

/* n sequences bring rows more positions each, at pos; the last row of each gets logits when
 * sample is set. */
static Status step(Bench *b, int n, int rows, int pos, bool sample, Err *e)
{
    Model *m = b->engine.model;
    Step s = {
        .ids = b->ids, .position = b->position, .n_rows = n * rows, .seqs = b->seqs, .n_seqs = n};
    bool ok, all_know;
    for (int i = 0; i < n; i++) {
        b->seqs[i] = (StepSeq){i * rows, rows, pos, sample, rows > 1 ? pos + rows : pos, &b->kv[i]};
        TRY(kv_seq_extend(&m->kv, &b->kv[i], pos, rows, &ok, e));
        if (!ok)
            return err_set(e, ST_MEMORY,
                           "--kv-memory is too small for %d sequences of %d positions", n,
                           pos + rows);
        for (int r = 0; r < rows; r++)
            b->position[i * rows + r] = pos + r;
    }
    memset(m->load, 0,
           (size_t)m->arch->n_layers * (size_t)m->arch->router.n_experts * sizeof *m->load);
    TRY(model_step(m, &s, &all_know, e));
    return sample ? sample_greedy(b, n, e) : ST_OK;
}

static void release(Bench *b)
{
    for (int i = 0; i < b->n_kv; i++)
        kv_seq_release(&b->engine.model->kv, &b->kv[i]);
}

static Status prefill(Bench *b, int prompt, int chunk, Err *e)
{
    double best = 1e30, end = clock_s() + b->seconds;
    /* sequences side by side, or pieces of one */
    int n = chunk > prompt ? chunk / prompt : 1, rows = chunk / n;
    Work w = {0};
    while (best > 1e29 || clock_s() < end) {
        double start = clock_s();
        w = (Work){0};
        for (int pos = 0; pos < prompt; pos += rows) {
            int take = prompt - pos < rows ? prompt - pos : rows;
            bool last = pos + take == prompt;
            TRY(step(b, n, take, pos, last, e));
            Work one = count_work(b, (double)n * take, last ? n : 0, pos + 0.5 * take,
                                  (double)n * (pos + take));
            w.flops += one.flops;
            w.bytes += one.bytes;
        }
        best = fmin(best, clock_s() - start);
        release(b);
    }
    char name[64];
    snprintf(name, sizeof name, "prefill, %d x %d tokens", n, prompt);
    report(b, name, (double)n * prompt, best, w);
    return ST_OK;
}

static Status decode(Bench *b, int n, int context, int chunk, Err *e)
{
    double best = 1e30, end = clock_s() + b->seconds;
    int group = chunk / context > 0 ? chunk / context : 1,
        rows = chunk / group < context ? chunk / group : context;
    KvSeq *all = b->kv;
    for (int i = 0; i < n; i += group) /* fills the caches */
        for (int pos = 0; pos < context; pos += rows) {
            int seqs = n - i < group ? n - i : group;
            b->kv = all + i;
            Status st = step(b, seqs, context - pos < rows ? context - pos : rows, pos, false, e);
            b->kv = all;
            TRY(st);
        }
    Work w = {0};
    for (int pos = context; pos < context + 32 && (best > 1e29 || clock_s() < end); pos++) {
        double start = clock_s();
        TRY(step(b, n, 1, pos, true, e));
        best = fmin(best, clock_s() - start);
        w = count_work(b, n, n, pos + 1, (double)n * (pos + 1));
    }
    release(b);
    char name[64];
    snprintf(name, sizeof name, "decode, %d rows at %d", n, context);
    report(b, name, n, best, w);
    return ST_OK;
}

typedef struct Settings {
    JobOptions o;
    int prompt, context;
    const char *rows;
    double seconds;
} Settings;

static Status take_tables(Bench *b, const EngineConfig *c, Err *e)
{
    size_t rows = (size_t)c->max_batch + (size_t)c->prefill_chunk;
    b->n_kv = c->max_batch + c->prefill_chunk;
    b->ids = malloc(rows * sizeof *b->ids);
    b->position = malloc(rows * sizeof *b->position);
    b->seqs = malloc(rows * sizeof *b->seqs);
    b->kv = calloc(rows, sizeof *b->kv);
    if (!b->ids || !b->position || !b->seqs || !b->kv)
        return err_set(e, ST_MEMORY, "out of memory for %zu rows", rows);
    uint32_t state = 1;
    for (size_t i = 0; i < rows; i++) {
        state = state * 1664525u + 1013904223u;
        b->ids[i] = (int32_t)((state >> 8) % (uint32_t)b->engine.arch.vocab);
    }
    return ceilings_create(&b->probe, b->engine.team, e);
}

static Status measure(Bench *b, const Settings *s, Comm *comm, Err *e)
{
    const EngineConfig *c = &s->o.job.engine;
    b->seconds = s->seconds;
    TRY(engine_open(&b->engine, c, comm, e));
    TRY(engine_load(&b->engine, e));
    TRY(take_tables(b, c, e));
    for (int i = 0; i < 5; i++)
        ceilings_measure(b->probe, &b->best);
    const Model *m = b->engine.model;
    printf("%s: %s, %d layers, weights %.2f GB dense and %.2f GB experts, %d threads, %s\n",
           c->model_dir, b->engine.arch.model_type, b->engine.arch.n_layers,
           (double)m->weights.dense_bytes * 1e-9, (double)m->weights.expert_bytes * 1e-9,
           b->engine.threads, isa_name(b->engine.isa));
    TRY(prefill(b, s->prompt, c->prefill_chunk, e));
    for (const char *p = s->rows; *p;) {
        char *after;
        long n = strtol(p, &after, 10);
        if (after == p || n < 1 || n > c->max_batch)
            return err_set(e, ST_USAGE,
                           "--rows %s: expected numbers up to --max-batch, with commas", s->rows);
        TRY(decode(b, (int)n, s->context, c->prefill_chunk, e));
        p = *after == ',' ? after + 1 : after;
    }
    printf("ceilings of this run: %.1f GB/s read, %.1f GFLOP/s float32 FMA\n", b->best.read_gbs,
           b->best.fma_gflops[b->engine.isa]);
    return ST_OK;
}

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    Bench b = {0};
    *st = comm->size == 1 ? measure(&b, ctx, comm, e)
                          : err_set(e, ST_USAGE, "bench_model runs on one rank");
    for (int i = 0; b.kv && i < b.n_kv; i++)
        kv_seq_free(&b.engine.model->kv, &b.kv[i]);
    ceilings_destroy(b.probe);
    engine_close(&b.engine);
    free(b.ids);
    free(b.position);
    free(b.seqs);
    free(b.kv);
    return 0;
}

int main(int argc, char **argv)
{
    Settings s = {.prompt = 512, .context = 256, .rows = "1,16,64,256", .seconds = 3};
    Option options[MAX_OPTIONS];
    Err e;
    bool help;
    job_options_init(&s.o);
    s.o.job.engine.max_batch = 256;
    s.o.job.engine.prefill_chunk = 1024;
    size_t n = job_options_engine(&s.o, options);
    options[n++] = (Option){
        "--prompt", NULL, OPTION_INT, &s.prompt, NULL, 1, 1 << 20, "N", "tokens of a prompt (512)"};
    options[n++] = (Option){"--context", NULL, OPTION_INT,
                            &s.context,  NULL, 1,
                            1 << 20,     "N",  "positions before decode (256)"};
    options[n++] = (Option){"--rows", NULL,   OPTION_TEXT,
                            &s.rows,  NULL,   0,
                            0,        "LIST", "batches of decode (1,16,64,256)"};
    options[n++] =
        (Option){"--seconds", NULL, OPTION_NUMBER, &s.seconds, NULL, 0.1, 1e4, "S", "per line (3)"};
    Status st = options_parse(options, n, argc, argv, NULL, 0, NULL, &help, &e);
    if (st == ST_OK && help) {
        options_print(options, n);
        return 0;
    }
    if (st == ST_OK)
        st = job_options_finish(&s.o, &e);
    return st == ST_OK ? app_with_ranks(argc, argv, run, &s) : app_usage("bench_model", &e);
}
