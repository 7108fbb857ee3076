/* tests/kernels/test_attention.c - attention over paged keys and values against double precision,
 * and bit for bit across chunks, batches, threads and instruction sets. Pools start as NaN, so that
 * a read of a key or value that nobody wrote shows. */
#include "tests/support/attn_list.h"
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Case {
    const char *name;
    int n_heads, n_kv_heads, head_dim, window;
    bool sinks;
    int lengths[4]; /* of the sequences; 0 ends the list */
} Case;

static const Case cases[] = {
    {"one key", 1, 1, 1, 0, false, {1}},
    {"odd sizes", 3, 1, 5, 0, true, {66}},
    {"no groups", 2, 2, 17, 0, false, {70, 3}},
    {"four per kv head", 8, 2, 64, 0, false, {200, 1, 64, 65}},
    {"gpt_oss like", 8, 1, 64, 128, true, {300, 5}},
    {"many heads", 64, 1, 16, 0, true, {67}},
    {"window of one", 2, 1, 8, 1, true, {130}},
    {"window below a page", 4, 2, 16, 10, false, {150, 63}},
    {"window of a page", 4, 2, 16, 64, true, {200}},
    {"window above a page", 6, 2, 20, 65, false, {200, 130}},
    {"window past the prompt", 2, 1, 16, 1000, false, {100}},
};

typedef struct Data {
    AttnSpec spec;
    int n_seqs, n_rows, n_pages; /* all sequences whole */
    int64_t stride;              /* of q, k and v in their shared rows */
    float *qkv, *sinks;
    int row[4];     /* each sequence's first row */
    int32_t *pages; /* [n_seqs][8] */
    size_t pool_bytes;
} Data;

enum { MOST_PAGES = 8 };

/* Queries, keys and values reach 3, so scores of 64 lanes are sums of terms up to 0.8 that round at
 * 2^-22, and a score's error multiplies values of up to 3. */
#define TOLERANCE 1e-5

static const KvFormat formats[] = {
    {KV_BF16, 0, 0}, {KV_FP8, 0.0113f, 0.5f}, {KV_NVFP4, 0.013f, 0.0071f}};

static const char *const dtype_names[] = {"f32", "bf16", "fp8", "nvfp4"};

/* A head's lanes as they are read back. */
static void round_lanes(float *x, int n, KvDtype dtype, float scale)
{
    if (dtype == KV_NVFP4) {
        RowFormat f = {ROWS_NVFP4_STATIC, scale, false};
        row_round(&f, x, n, x);
    }
    for (int i = 0; i < n && dtype != KV_NVFP4; i++)
        x[i] = dtype == KV_BF16 ? bf16_to_float(float_to_bf16(x[i]))
                                : e4m3_to_float(float_to_e4m3(x[i] / scale)) * scale;
}

static Data make_data(const BackendOps *ops, Backend *b, const Case *c)
{
    Data d = {.spec = {c->n_heads, c->n_kv_heads, c->head_dim, 0.7f / sqrtf((float)c->head_dim),
                       c->window, NULL}};
    d.pages = test_alloc(4 * MOST_PAGES * sizeof *d.pages);
    for (; d.n_seqs < 4 && c->lengths[d.n_seqs]; d.n_seqs++) {
        d.row[d.n_seqs] = d.n_rows;
        d.n_rows += c->lengths[d.n_seqs];
        for (int p = 0; p < MOST_PAGES; p++)
            d.pages[d.n_seqs * MOST_PAGES + p] =
                p * KV_PAGE < c->lengths[d.n_seqs] ? d.n_pages++ : -1;
    }
    for (int i = 0; i < 4 * MOST_PAGES; i++) /* out of order: no page follows the one before */
        if (i < d.n_seqs * MOST_PAGES && d.pages[i] >= 0)
            d.pages[i] = d.n_pages - 1 - d.pages[i];
    d.stride = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    d.qkv = test_floats(d.n_rows * d.stride, 3);
    for (int64_t i = 0; i < d.n_rows * d.stride; i++)
        d.qkv[i] *= 3;
    d.sinks = c->sinks ? test_floats(c->n_heads, 4) : NULL;
    d.spec.sinks = d.sinks;
    d.pool_bytes = (size_t)d.n_pages * ops->kv_page_bytes(b, c->n_kv_heads, c->head_dim, KV_F32);
    return d;
}

static void free_data(Data *d)
{
    free(d->qkv);
    free(d->sinks);
    free(d->pages);
}

static const float *key_of(const Case *c, const Data *d, int row, int kv_head)
{
    return d->qkv + row * d->stride + (c->n_heads + kv_head) * c->head_dim;
}

static const float *value_of(const Case *c, const Data *d, int row, int kv_head)
{
    return key_of(c, d, row, kv_head) + c->n_kv_heads * c->head_dim;
}

static void exact_head(const Case *c, const Data *d, int seq, int query, int head, double *out)
{
    int dim = c->head_dim, kv_head = head / (c->n_heads / c->n_kv_heads), first = d->row[seq];
    int from = c->window && query >= c->window ? query - c->window + 1 : 0;
    double *score = test_alloc((size_t)(query + 1) * sizeof *score);
    double top = d->sinks ? d->sinks[head] : -INFINITY, sum;
    for (int j = from; j <= query; j++) {
        const float *q = d->qkv + (first + query) * d->stride + head * dim,
                    *k = key_of(c, d, first + j, kv_head);
        score[j] = 0;
        for (int i = 0; i < dim; i++)
            score[j] += (double)q[i] * k[i];
        score[j] *= d->spec.scale;
        top = fmax(top, score[j]);
    }
    sum = d->sinks ? exp(d->sinks[head] - top) : 0;
    for (int i = 0; i < dim; i++)
        out[i] = 0;
    for (int j = from; j <= query; j++) {
        double p = exp(score[j] - top);
        sum += p;
        for (int i = 0; i < dim; i++)
            out[i] += p * value_of(c, d, first + j, kv_head)[i];
    }
    for (int i = 0; i < dim; i++)
        out[i] /= sum;
    free(score);
}

/* Sequence seq's positions pos .. pos+n-1; pages that no query of the step or later sees are -1, as
 * in a cache that gives them back. */
static AttnSeq step_of(const Case *c, const Data *d, int seq, int pos, int n,
                       int32_t pages[MOST_PAGES])
{
    memcpy(pages, d->pages + seq * MOST_PAGES, MOST_PAGES * sizeof *pages);
    for (int p = 0; c->window && p < MOST_PAGES; p++)
        if ((p + 1) * KV_PAGE <= pos - c->window + 1)
            pages[p] = -1;
    return (AttnSeq){d->row[seq] + pos, n, pos, pages};
}

static int run_steps(const BackendOps *ops, Backend *b, const Case *c, const Data *d, void *pool,
                     float *out, const AttnSeq *seqs, int n)
{
    Err e;
    int failed = 0;
    const float *k = d->qkv + c->n_heads * c->head_dim, *v = k + c->n_kv_heads * c->head_dim;
    failed += check_int(c->name,
                        test_kv_write(ops, b, pool, k, v, d->stride, seqs, n, &d->spec, &e), ST_OK);
    failed += check_int(c->name,
                        test_attention(ops, b, out, d->qkv, d->stride, pool, seqs, n, &d->spec, &e),
                        ST_OK);
    return failed;
}

/* Each sequence alone in chunks: what the whole batch at once must agree with. */
static int run_chunks(const BackendOps *ops, Backend *b, const Case *c, const Data *d, void *pool,
                      float *out, int chunk)
{
    int failed = 0;
    int32_t pages[MOST_PAGES];
    for (int s = 0; s < d->n_seqs; s++)
        for (int pos = 0; pos < c->lengths[s]; pos += chunk) {
            int n = c->lengths[s] - pos < chunk ? c->lengths[s] - pos : chunk;
            AttnSeq seq = step_of(c, d, s, pos, n, pages);
            failed += run_steps(ops, b, c, d, pool, out, &seq, 1);
        }
    return failed;
}

static void all_at_once(const Case *c, const Data *d, AttnSeq seqs[4], int32_t pages[4][MOST_PAGES])
{
    for (int s = 0; s < d->n_seqs; s++)
        seqs[s] = step_of(c, d, s, 0, c->lengths[s], pages[s]);
}

/* Attention over a cache of this format equals float32 attention over rounded keys and values, and
 * so do all chunks: the step's own rows are read through the rounding too. */
static int run_format(const BackendOps *ops, const TestBackend *backends, int n_backends,
                      const Case *c, const Data *d, const KvFormat *f, float *pool, float *out,
                      float *want)
{
    int failed = 0;
    int64_t n = (int64_t)d->n_rows * c->n_heads * c->head_dim;
    Data rounded = *d, coded = *d;
    rounded.qkv = test_alloc((size_t)(d->n_rows * d->stride) * sizeof *rounded.qkv);
    memcpy(rounded.qkv, d->qkv, (size_t)(d->n_rows * d->stride) * sizeof *rounded.qkv);
    for (int r = 0; r < d->n_rows; r++)
        for (int h = 0; h < 2 * c->n_kv_heads; h++)
            round_lanes(rounded.qkv + r * d->stride + (c->n_heads + h) * c->head_dim, c->head_dim,
                        f->dtype, h < c->n_kv_heads ? f->k_scale : f->v_scale);
    AttnSeq seqs[4];
    int32_t pages[4][MOST_PAGES];
    all_at_once(c, d, seqs, pages);
    memset(pool, 0xff, d->pool_bytes);
    failed += run_steps(ops, backends[0].b, c, &rounded, pool, want, seqs, d->n_seqs);
    coded.spec.kv = *f;
    for (int i = 0; i < n_backends; i++) {
        static const int chunks[] = {65, 1, 7};
        bool scalar = strncmp(backends[i].name, "scalar", 6) == 0;
        if (scalar && i > 0)
            continue; /* slow, and the float32 runs have shown that threads do not matter */
        char name[600];
        memset(pool, 0xff, d->pool_bytes);
        memset(out, 0xff, (size_t)n * sizeof *out);
        failed += run_steps(ops, backends[i].b, c, &coded, pool, out, seqs, d->n_seqs);
        snprintf(name, sizeof name, "%s, %s, %s", c->name, dtype_names[f->dtype], backends[i].name);
        failed += check_bits(name, out, want, n);
        for (size_t k = 0; k < (scalar ? 1 : sizeof chunks / sizeof *chunks); k++) {
            memset(pool, 0xff, d->pool_bytes);
            memset(out, 0xff, (size_t)n * sizeof *out);
            failed += run_chunks(ops, backends[i].b, c, &coded, pool, out, chunks[k]);
            snprintf(name, sizeof name, "%s, %s, %s, chunks of %d", c->name, dtype_names[f->dtype],
                     backends[i].name, chunks[k]);
            failed += check_bits(name, out, want, n);
        }
    }
    free(rounded.qkv);
    return failed;
}

static int run_case(const BackendOps *ops, const TestBackend *backends, int n_backends,
                    const Case *c)
{
    int failed = 0;
    Data d = make_data(ops, backends[0].b, c);
    int64_t width = c->n_heads * c->head_dim, n = d.n_rows * width;
    float *out = test_alloc((size_t)n * sizeof *out), *want = test_alloc((size_t)n * sizeof *want);
    float *pool = test_alloc(d.pool_bytes);
    double *exact = test_alloc((size_t)n * sizeof *exact);
    for (int s = 0; s < d.n_seqs; s++)
        for (int i = 0; i < c->lengths[s]; i++)
            for (int h = 0; h < c->n_heads; h++)
                exact_head(c, &d, s, i, h, exact + (d.row[s] + i) * width + h * c->head_dim);
    for (int i = 0; i < n_backends; i++) {
        AttnSeq seqs[4];
        int32_t pages[4][MOST_PAGES];
        all_at_once(c, &d, seqs, pages);
        memset(pool, 0xff, d.pool_bytes);
        memset(out, 0xff, (size_t)n * sizeof *out);
        failed += run_steps(ops, backends[i].b, c, &d, pool, out, seqs, d.n_seqs);
        failed += check_close(c->name, out, exact, n, TOLERANCE);
        if (i == 0)
            memcpy(want, out, (size_t)n * sizeof *out);
        char name[600];
        snprintf(name, sizeof name, "%s, %s", c->name, backends[i].name);
        failed += check_bits(name, out, want, n);
        static const int chunks[] = {1, 7, 64, 65};
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
            memset(pool, 0xff, d.pool_bytes);
            memset(out, 0xff, (size_t)n * sizeof *out);
            failed += run_chunks(ops, backends[i].b, c, &d, pool, out, chunks[k]);
            snprintf(name, sizeof name, "%s, %s, chunks of %d", c->name, backends[i].name,
                     chunks[k]);
            failed += check_bits(name, out, want, n);
        }
    }
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        if (formats[f].dtype != KV_NVFP4 || c->head_dim % 16 == 0)
            failed += run_format(ops, backends, n_backends, c, &d, &formats[f], pool, out, want);
    free(out);
    free(want);
    free(pool);
    free(exact);
    free_data(&d);
    return failed;
}

/* models.md 6.6: scores 1, 0.5, -0.25 with a sink of 0.75; one-hot values show the weights. */
static int test_sink_vector(const BackendOps *ops, Backend *b)
{
    int failed = 0;
    Err e;
    static const float keys[3] = {1, 0.5f, -0.25f}, sink = 0.75f;
    float rows[3][9] = {{0}}, out[3][3], *pool = test_alloc(ops->kv_page_bytes(b, 1, 3, KV_F32));
    for (int i = 0; i < 3; i++) {
        rows[i][0] = 1;       /* q = (1, 0, 0) */
        rows[i][3] = keys[i]; /* k */
        rows[i][6 + i] = 1;   /* v */
    }
    int32_t page = 0;
    AttnSpec spec = {1, 1, 3, 1.0f, 0, &sink, {0}};
    AttnSeq seq = {0, 3, 0, &page};
    failed += check_int(
        "write", test_kv_write(ops, b, pool, rows[0] + 3, rows[0] + 6, 9, &seq, 1, &spec, &e),
        ST_OK);
    failed += check_int("attention", test_attention(ops, b, out, rows, 9, pool, &seq, 1, &spec, &e),
                        ST_OK);
    static const double want[3] = {0.3742744, 0.2270089, 0.1072314};
    failed += check_close("with a sink", out[2], want, 3, 1e-7);
    spec.head_dim = 2000;
    failed += check_int("too wide", test_attention(ops, b, out, rows, 9, pool, &seq, 1, &spec, &e),
                        ST_INPUT);
    free(pool);
    return failed;
}

/* Fewer bits are fewer bytes, and what a cache cannot hold is refused. */
static int test_formats(const BackendOps *ops, Backend *b)
{
    static const struct {
        const char *name;
        int n_kv_heads, head_dim;
        KvDtype dtype;
        size_t bytes;
    } pages[] = {{"f32", 2, 64, KV_F32, 64 * 2 * 128 * 4},
                 {"bf16", 2, 64, KV_BF16, 64 * 2 * 128 * 2},
                 {"fp8", 2, 64, KV_FP8, 64 * 2 * 128},
                 {"nvfp4", 2, 64, KV_NVFP4, 64 * 2 * 8 * 9},
                 {"fp8, values in whole 16s", 3, 20, KV_FP8, 64 * 3 * (20 + 32)}};
    int failed = 0;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        failed += check_int(
            pages[i].name,
            (int64_t)ops->kv_page_bytes(b, pages[i].n_kv_heads, pages[i].head_dim, pages[i].dtype),
            (int64_t)pages[i].bytes);
    static const struct {
        const char *name;
        int head_dim;
        KvFormat kv;
        const char *says;
    } bad[] = {{"head of 20", 20, {KV_NVFP4, 1, 1}, "20 lanes: not a multiple of 16"},
               {"no k scale", 16, {KV_FP8, 0, 1}, "not positive"},
               {"no v scale", 16, {KV_NVFP4, 1, -1}, "not positive"},
               {"NaN scale", 16, {KV_FP8, NAN, 1}, "not positive"}};
    Err e;
    float rows[60] = {0}, out[20];
    int32_t page = 0;
    AttnSeq seq = {0, 1, 0, &page};
    float *pool = test_alloc(64 * 64 * sizeof *pool);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        AttnSpec spec = {1, 1, bad[i].head_dim, 1.0f, 0, NULL, bad[i].kv};
        failed += check_int(
            bad[i].name, test_kv_write(ops, b, pool, rows + 20, rows + 40, 60, &seq, 1, &spec, &e),
            ST_INPUT);
        failed += check_has(bad[i].name, e.text, bad[i].says);
        failed += check_int(
            bad[i].name, test_attention(ops, b, out, rows, 60, pool, &seq, 1, &spec, &e), ST_INPUT);
    }
    free(pool);
    return failed;
}

int main(void)
{
    const BackendOps *ops = backend_find("cpu");
    TestBackend backends[MAX_TEST_BACKENDS];
    int n = test_backends(ops, backends), failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += run_case(ops, backends, n, &cases[i]);
    for (int i = 0; i < n; i++)
        failed += test_sink_vector(ops, backends[i].b) + test_formats(ops, backends[i].b);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
