/* tests/bench/bench_kernels.c - the CPU backend's ops beside what this machine can do at best in
 * the same run.
 *
 *   bench_kernels -t 2 --isa auto [--quick] [--only WORD]
 *
 * A row: the op and shape, the best time of several runs, bytes of distinct weights (or keys and
 * values) per second, multiply-adds counted as two operations per second, and the share of the
 * ceiling: the time that bandwidth or FMA throughput alone would take, whichever is longer, over
 * the time measured. Weights are random and, where they would fit into a cache, several sets are
 * used in turn. */
#include "io/clock.h"
#include "kernels/backend.h"
#include "tests/support/attn_list.h"
#include "kernels/cpu/ceilings.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Bench {
    const BackendOps *ops;
    Backend *b;
    IsaLevel isa;
    CeilingProbe *probe;
    Ceilings ceilings;
    double budget_s; /* of one row */
    const char *only;
} Bench;

/* Runs fn until the budget is spent, at least three times after one to warm up; the best time. */
static double best_time(const Bench *bench, void (*fn)(void *ctx, int run), void *ctx)
{
    double best = 1e30, end = 0;
    for (int run = 0; run < 4 || clock_s() < end; run++) {
        double start = clock_s();
        fn(ctx, run);
        double took = clock_s() - start;
        if (run == 0)
            end = start + took + bench->budget_s;
        else if (took < best)
            best = took;
    }
    return best;
}

static bool wanted(const Bench *bench, const char *name)
{
    return !bench->only || strstr(name, bench->only);
}

static void report(Bench *bench, const char *name, double seconds, double bytes, double flops)
{
    ceilings_measure(bench->probe, &bench->ceilings);
    double peak = bench->ceilings.fma_gflops[bench->isa];
    double by_bytes = bytes / bench->ceilings.read_gbs * 1e-9,
           by_flops = peak > 0 ? flops / peak * 1e-9 : 0;
    printf("%-44s %10.3f ms %8.1f GB/s %9.1f GFLOP/s  %3.0f%% of %s\n", name, seconds * 1e3,
           bytes / seconds * 1e-9, flops / seconds * 1e-9, 100 * fmax(by_bytes, by_flops) / seconds,
           by_bytes > by_flops ? "bandwidth" : "FMA");
    fflush(stdout);
}

static void fail(const char *text)
{
    fprintf(stderr, "bench_kernels: %s\n", text);
    exit(1);
}

static Weight *random_weight(Bench *bench, FormatId format, int n_mats, int n_parts, int64_t rows,
                             int64_t cols)
{
    TestTensor t = test_tensor(format, rows, cols, 1);
    WeightPart parts[2] = {weight_part(&t.t), weight_part(&t.t)};
    Weight *w = NULL;
    Err e;
    if (bench->ops->weight_create(bench->b, "bench", WEIGHT_MATMUL, n_mats, parts, n_parts, cols,
                                  &w, &e) != ST_OK)
        fail(e.text);
    for (int m = 0; m < n_mats; m++)
        for (int p = 0; p < n_parts; p++)
            if (bench->ops->weight_set(bench->b, w, m, p, &t.t, &e) != ST_OK)
                fail(e.text);
    test_tensor_free(&t);
    return w;
}

enum { MAX_SETS = 16 };

typedef struct MatmulRun {
    Bench *bench;
    Weight *w[MAX_SETS];
    float *x, *y;
    int n, n_sets;
} MatmulRun;

static void run_matmul(void *ctx, int run)
{
    MatmulRun *r = ctx;
    Err e;
    if (r->bench->ops->matmul(r->bench->b, r->y, r->x, r->w[run % r->n_sets], ALL_PARTS, NULL, r->n,
                              &e) != ST_OK)
        fail(e.text);
}

static void bench_matmul(Bench *bench, FormatId format, int64_t rows, int64_t cols)
{
    static const int counts[] = {1, 4, 16, 64, 256, 1024};
    char name[100];
    snprintf(name, sizeof name, "matmul %s %dx%d", quant_format(format)->name, (int)rows,
             (int)cols);
    if (!wanted(bench, name))
        return;
    MatmulRun r = {.bench = bench,
                   .x = test_floats(1024 * cols, 2),
                   .y = test_alloc((size_t)(1024 * rows) * sizeof(float))};
    TestTensor like = test_tensor(format, 1, cols, 1);
    double bytes =
        (double)(rows * quant_row_bytes(like.t.format, cols, like.t.group, like.t.scale_type));
    test_tensor_free(&like);
    r.n_sets = rows > 1000 ? (int)fmin(MAX_SETS, 1 + 150e6 / bytes)
                           : 1; /* small ones live in cache in a model too */
    for (int i = 0; i < r.n_sets; i++)
        r.w[i] = random_weight(bench, format, 1, 1, rows, cols);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        r.n = counts[i];
        snprintf(name, sizeof name, "matmul %s %dx%d, %d rows", quant_format(format)->name,
                 (int)rows, (int)cols, r.n);
        report(bench, name, best_time(bench, run_matmul, &r), bytes,
               2.0 * (double)(rows * cols) * r.n);
    }
    for (int i = 0; i < r.n_sets; i++)
        bench->ops->weight_destroy(bench->b, r.w[i]);
    free(r.x);
    free(r.y);
}

typedef struct RoundRun {
    Bench *bench;
    RowFormat format;
    float *x, *y;
} RoundRun;

enum { ROUND_ROWS = 256, ROUND_WIDTH = 4096 };

static void run_round(void *ctx, int run)
{
    (void)run;
    RoundRun *r = ctx;
    Err e;
    if (r->bench->ops->round_rows(r->bench->b, r->y, ROUND_WIDTH, r->x, ROUND_WIDTH, ROUND_ROWS,
                                  ROUND_WIDTH, &r->format, &e) != ST_OK)
        fail(e.text);
}

/* Beside a matrix product of as many rows of that width. */
static void bench_rounding(Bench *bench)
{
    if (!wanted(bench, "round_rows"))
        return;
    int64_t n = (int64_t)ROUND_ROWS * ROUND_WIDTH;
    RoundRun r = {bench, {0}, test_floats(n, 2), test_alloc((size_t)n * sizeof(float))};
    for (RowScheme scheme = ROWS_FP8_STATIC; scheme < N_ROW_SCHEMES; scheme++) {
        char name[100];
        r.format = (RowFormat){scheme, 0.002f, false};
        snprintf(name, sizeof name, "round_rows %s, %d x %d", row_scheme_name(scheme), ROUND_ROWS,
                 ROUND_WIDTH);
        report(bench, name, best_time(bench, run_round, &r), (double)n * 8, 0);
    }
    free(r.x);
    free(r.y);
}

typedef struct FfnRun {
    Bench *bench;
    FfnSpec spec;
    float *x, *y, *scratch;
    int32_t *row_of, *first;
    int n_experts;
} FfnRun;

static void run_ffn(void *ctx, int run)
{
    (void)run;
    FfnRun *r = ctx;
    Err e;
    if (r->bench->ops->ffn(r->bench->b, r->y, r->x, NULL, r->row_of, r->first, r->n_experts,
                           r->first[r->n_experts], &r->spec, r->scratch, &e) != ST_OK)
        fail(e.text);
}

/* Each token takes top_k different experts at random; returns how many experts have any. */
static int spread(FfnRun *r, int tokens, int top_k)
{
    uint64_t seed = 7;
    int *expert = test_alloc((size_t)(tokens * top_k) * sizeof *expert), distinct = 0;
    memset(r->first, 0, (size_t)(r->n_experts + 1) * sizeof *r->first);
    for (int p = 0; p < tokens * top_k; p++) {
        bool again = true;
        while (again) {
            expert[p] = (int)(test_random(&seed) % (unsigned)r->n_experts);
            again = false;
            for (int q = p / top_k * top_k; q < p; q++)
                again |= expert[q] == expert[p];
        }
        r->first[expert[p] + 1]++;
    }
    for (int i = 0; i < r->n_experts; i++) {
        distinct += r->first[i + 1] > 0;
        r->first[i + 1] += r->first[i];
    }
    int at = 0;
    for (int i = 0; i < r->n_experts; i++)
        for (int p = 0; p < tokens * top_k; p++)
            if (expert[p] == i)
                r->row_of[at++] = p / top_k;
    free(expert);
    return distinct;
}

static void bench_ffn(Bench *bench, const char *what, FormatId format, int64_t hidden,
                      int64_t inter, int n_experts, const int *tokens, int n_counts)
{
    enum { TOP_K = 4 };
    char name[100];
    snprintf(name, sizeof name, "ffn %s %s", what, quant_format(format)->name);
    if (!wanted(bench, name))
        return;
    int most = tokens[n_counts - 1];
    FfnRun r = {.bench = bench,
                .spec = {.hidden = hidden, .inter = inter, .act = {ACT_SWIGLU, 1.702f, 1.0f, 7.0f}},
                .x = test_floats(most * hidden, 3),
                .y = test_alloc((size_t)(most * TOP_K * hidden) * sizeof(float)),
                .scratch = test_alloc(bench->ops->ffn_scratch_bytes(bench->b, most * TOP_K, inter)),
                .row_of = test_alloc((size_t)(most * TOP_K) * sizeof(int32_t)),
                .first = test_alloc((size_t)(n_experts + 1) * sizeof(int32_t)),
                .n_experts = n_experts};
    Weight *w13 = random_weight(bench, format, n_experts, 2, inter, hidden);
    Weight *w2 = random_weight(bench, format, n_experts, 1, hidden, inter);
    r.spec.w13 = w13;
    r.spec.w2 = w2;
    double expert_bytes =
        (double)(bench->ops->weight_bytes(w13) + bench->ops->weight_bytes(w2)) / n_experts;
    for (int i = 0; i < n_counts; i++) {
        int distinct = spread(&r, tokens[i], TOP_K);
        snprintf(name, sizeof name, "ffn %s %s, %d tokens", what, quant_format(format)->name,
                 tokens[i]);
        report(bench, name, best_time(bench, run_ffn, &r), distinct * expert_bytes,
               6.0 * (double)(hidden * inter) * tokens[i] * TOP_K);
    }
    bench->ops->weight_destroy(bench->b, w13);
    bench->ops->weight_destroy(bench->b, w2);
    free(r.x);
    free(r.y);
    free(r.scratch);
    free(r.row_of);
    free(r.first);
}

typedef struct AttnRun {
    Bench *bench;
    AttnSpec spec;
    float *qkv, *out;
    void *pool;
    AttnSeq *seqs;
    int n_seqs;
    int64_t stride;
    bool write;
} AttnRun;

static void run_attention(void *ctx, int run)
{
    (void)run;
    AttnRun *r = ctx;
    const BackendOps *ops = r->bench->ops;
    int64_t d = r->spec.head_dim;
    const float *k = r->qkv + r->spec.n_heads * d, *v = k + r->spec.n_kv_heads * d;
    Err e;
    Status st = r->write ? test_kv_write(ops, r->bench->b, r->pool, k, v, r->stride, r->seqs,
                                         r->n_seqs, &r->spec, &e)
                         : test_attention(ops, r->bench->b, r->out, r->qkv, r->stride, r->pool,
                                          r->seqs, r->n_seqs, &r->spec, &e);
    if (st != ST_OK)
        fail(e.text);
}

static const char *kv_name(KvDtype dtype)
{
    static const char *const names[] = {"f32", "bf16", "fp8", "nvfp4"};
    return names[dtype];
}

/* Pages full of numbers near 0.5, whatever the format. */
static void fill_pool(void *pool, size_t bytes, KvDtype dtype)
{
    uint64_t seed = 4;
    if (dtype != KV_F32)
        memset(pool, 0x30, bytes);
    else
        for (size_t i = 0; i < bytes / sizeof(float); i++)
            ((float *)pool)[i] = (float)(int32_t)test_random(&seed) * 0x1p-31f;
}

static void bench_attention(Bench *bench, KvDtype dtype, int n_seqs, int context, bool decode)
{
    enum { HEADS = 8, KV_HEADS = 2, DIM = 64 };
    char name[100];
    snprintf(name, sizeof name, "attention %s %s %d x %d", kv_name(dtype),
             decode ? "decode" : "prefill", n_seqs, context);
    if (!wanted(bench, name))
        return;
    int n_pages = (context + KV_PAGE - 1) / KV_PAGE, rows = decode ? 1 : context;
    size_t page_bytes = bench->ops->kv_page_bytes(bench->b, KV_HEADS, DIM, dtype);
    AttnRun r = {.bench = bench,
                 .spec = {HEADS, KV_HEADS, DIM, 0.125f, 0, NULL, {dtype, 1, 1}},
                 .n_seqs = n_seqs,
                 .stride = (HEADS + 2 * KV_HEADS) * DIM};
    int32_t *pages = test_alloc((size_t)(n_seqs * n_pages) * sizeof *pages);
    Err e;
    size_t pool_bytes = (size_t)(n_seqs * n_pages) * page_bytes;
    if (bench->ops->alloc(bench->b, pool_bytes, "pages", &r.pool, &e) != ST_OK)
        fail(e.text);
    fill_pool(r.pool, pool_bytes, dtype);
    r.qkv = test_floats(n_seqs * rows * r.stride, 5);
    r.out = test_alloc((size_t)(n_seqs * rows * HEADS * DIM) * sizeof(float));
    r.seqs = test_alloc((size_t)n_seqs * sizeof *r.seqs);
    for (int s = 0; s < n_seqs; s++) {
        for (int p = 0; p < n_pages;
             p++) /* pages of the sequences alternate, as they do in a running job */
            pages[s * n_pages + p] = p * n_seqs + s;
        r.seqs[s] = (AttnSeq){s * rows, rows, context - rows, pages + s * n_pages};
    }
    double keys = decode ? context : context * (context + 1.0) / 2; /* seen, over all rows */
    report(bench, name, best_time(bench, run_attention, &r),
           (double)n_seqs * context / KV_PAGE * (double)page_bytes,
           4.0 * keys * n_seqs * HEADS * DIM);
    r.write = true;
    snprintf(name, sizeof name, "kv_write %s %s %d x %d", kv_name(dtype),
             decode ? "decode" : "prefill", n_seqs, context);
    report(bench, name, best_time(bench, run_attention, &r),
           (double)n_seqs * rows * (KV_HEADS * DIM * 8.0 + (double)page_bytes / KV_PAGE), 0);
    bench->ops->release(bench->b, r.pool);
    free(pages);
    free(r.qkv);
    free(r.out);
    free(r.seqs);
}

enum { MLA_HEADS = 16, MLA_NOPE = 128, MLA_ROPE = 64, MLA_V = 128, MLA_LATENT = 512 };

typedef struct LatentRun {
    Bench *bench;
    LatentSpec spec;
    LatentWeights w;
    LatentForm form;
    float *q, *out;
    void *pool, *scratch;
    AttnSeq *seqs;
    int n_seqs;
} LatentRun;

static void run_latent(void *ctx, int run)
{
    (void)run;
    LatentRun *r = ctx;
    Err e;
    if (test_latent_attention(r->bench->ops, r->bench->b, r->out, r->q, r->pool, r->seqs, r->n_seqs,
                              &r->spec, &r->w, r->form, r->scratch, &e) != ST_OK)
        fail(e.text);
}

/* Operations that the form cannot do without: the two products with kv_b_proj, the scores and the
 * weighted sums. */
static double latent_flops(LatentForm form, double rows, double positions, double keys)
{
    double heads = MLA_HEADS, up = 2.0 * MLA_LATENT * (MLA_NOPE + MLA_V);
    return form == LATENT_EXPANDED
               ? heads * (positions * up + keys * 2.0 * (MLA_NOPE + MLA_ROPE + MLA_V))
               : heads * (rows * up + keys * 2.0 * (2 * MLA_LATENT + MLA_ROPE));
}

/* Prefill: n_seqs prompts of so many positions, expanded. Decode: one absorbed row each. */
static void bench_latent(Bench *bench, KvDtype dtype, int n_seqs, int context, bool decode)
{
    char name[100];
    snprintf(name, sizeof name, "latent %s %s %d x %d", kv_name(dtype),
             decode ? "decode" : "prefill", n_seqs, context);
    if (!wanted(bench, name))
        return;
    const BackendOps *ops = bench->ops;
    int n_pages = (context + KV_PAGE - 1) / KV_PAGE, rows = decode ? 1 : context;
    LatentRun r = {.bench = bench,
                   .spec = {MLA_HEADS, MLA_NOPE, MLA_ROPE, MLA_V, MLA_LATENT, 0.07f, {dtype, 1, 1}},
                   .form = decode ? LATENT_ABSORBED : LATENT_EXPANDED,
                   .n_seqs = n_seqs};
    size_t page_bytes = ops->latent_page_bytes(bench->b, MLA_LATENT, MLA_ROPE, dtype);
    size_t pool_bytes = (size_t)(n_seqs * n_pages) * page_bytes;
    size_t scratch_bytes = ops->latent_scratch_bytes(bench->b, n_seqs * rows, context, &r.spec);
    Err e;
    if (ops->alloc(bench->b, pool_bytes, "pages", &r.pool, &e) != ST_OK ||
        ops->alloc(bench->b, scratch_bytes, "scratch", &r.scratch, &e) != ST_OK)
        fail(e.text);
    fill_pool(r.pool, pool_bytes, dtype);
    Weight *up = random_weight(bench, FORMAT_BF16, MLA_HEADS, 2, MLA_NOPE, MLA_LATENT);
    Weight *absorb = random_weight(bench, FORMAT_BF16, MLA_HEADS, 1, MLA_LATENT, MLA_NOPE);
    r.w = (LatentWeights){up, absorb};
    r.q = test_floats((int64_t)n_seqs * rows * MLA_HEADS * (MLA_NOPE + MLA_ROPE), 5);
    r.out = test_alloc((size_t)(n_seqs * rows * MLA_HEADS * MLA_V) * sizeof(float));
    r.seqs = test_alloc((size_t)n_seqs * sizeof *r.seqs);
    int32_t *pages = test_alloc((size_t)(n_seqs * n_pages) * sizeof *pages);
    for (int s = 0; s < n_seqs; s++) {
        for (int p = 0; p < n_pages; p++)
            pages[s * n_pages + p] = p * n_seqs + s;
        r.seqs[s] = (AttnSeq){s * rows, rows, context - rows, pages + s * n_pages};
    }
    double keys = n_seqs * (decode ? context : context * (context + 1.0) / 2);
    double bytes = (double)n_seqs * context / KV_PAGE * (double)page_bytes +
                   (double)(ops->weight_bytes(up) + (decode ? ops->weight_bytes(absorb) : 0));
    report(bench, name, best_time(bench, run_latent, &r), bytes,
           latent_flops(r.form, n_seqs * rows, (double)n_seqs * context, keys));
    ops->weight_destroy(bench->b, up);
    ops->weight_destroy(bench->b, absorb);
    ops->release(bench->b, r.pool);
    ops->release(bench->b, r.scratch);
    free(pages);
    free(r.q);
    free(r.out);
    free(r.seqs);
}

static void run_all(Bench *bench)
{
    for (FormatId f = 0; f < N_FORMATS; f++)
        bench_matmul(bench, f, 2880, 4096);
    bench_matmul(bench, FORMAT_BF16, 256, 512);
    bench_matmul(bench, FORMAT_F32, 256, 512);
    bench_rounding(bench);
    static const int few[] = {1, 16, 64, 256, 1024}, story[] = {256, 2048};
    static const FormatId published[] = {FORMAT_MXFP4, FORMAT_BF16};
    for (int i = 0; i < 2; i++) {
        bench_ffn(bench, "gpt_oss", published[i], 2880, 2880, 32, few, 5);
        bench_ffn(bench, "storyteller", published[i], 256, 256, 16, story, 2);
    }
    static const FormatId others[] = {FORMAT_FP8,  FORMAT_NVFP4,  FORMAT_MXFP8,   FORMAT_INT4,
                                      FORMAT_Q8_0, FORMAT_IQ2_XS, FORMAT_IQ2_XXS};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        bench_ffn(bench, "2048", others[i], 2048, 1024, 32, few, 4);
    for (KvDtype dtype = KV_F32; dtype <= KV_NVFP4; dtype++) {
        bench_attention(bench, dtype, 1, 512, false);
        bench_attention(bench, dtype, 1, 4096, false);
        bench_attention(bench, dtype, 256, 512, true);
        bench_attention(bench, dtype, 256, 4096, true);
    }
    for (KvDtype dtype = KV_F32; dtype <= KV_FP8; dtype++) {
        bench_latent(bench, dtype, 1, 512, false);
        bench_latent(bench, dtype, 1, 4096, false);
        bench_latent(bench, dtype, 64, 24, false);
        bench_latent(bench, dtype, 64, 512, true);
        bench_latent(bench, dtype, 256, 512, true);
    }
}

int main(int argc, char **argv)
{
    Bench bench = {.ops = backend_find("cpu"), .budget_s = 0.6};
    int threads = 2;
    Err e;
    const char *isa = "auto";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            bench.budget_s = 0.1;
        else if (strcmp(argv[i], "-t") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            isa = argv[++i];
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            bench.only = argv[++i];
        else
            fail("usage: bench_kernels [-t THREADS] [--isa LEVEL] [--quick] [--only WORD]");
    }
    Team *team = NULL;
    if (threads < 1 || isa_parse(isa, &bench.isa, &e) != ST_OK ||
        team_create(&team, threads, &e) != ST_OK ||
        ceilings_create(&bench.probe, team, &e) != ST_OK)
        fail(threads < 1 ? "-t takes a number of threads" : e.text);
    BackendConfig config = {.team = team, .isa = bench.isa};
    if (bench.ops->create(&config, &bench.b, &e) != ST_OK)
        fail(e.text);
    for (int i = 0; i < 10; i++)
        ceilings_measure(bench.probe, &bench.ceilings);
    printf("cpu backend, %s, %d threads: read %.1f GB/s", isa_name(bench.isa), threads,
           bench.ceilings.read_gbs);
    for (IsaLevel level = ISA_AVX2; level <= isa_best(); level++)
        printf(", FMA %s %.1f GFLOP/s", isa_name(level), bench.ceilings.fma_gflops[level]);
    printf("\n");
    run_all(&bench);
    printf("at the end: read %.1f GB/s, FMA %.1f GFLOP/s\n", bench.ceilings.read_gbs,
           bench.ceilings.fma_gflops[bench.isa]);
    bench.ops->destroy(bench.b);
    ceilings_destroy(bench.probe);
    team_destroy(team);
    return 0;
}
