/* tests/kernels/test_latent.c - latent attention over paged latents: both forms against double
 * precision and each other, and each bit for bit across chunks, batches, threads and instruction
 * sets. Pools start as NaN, so that a read of a position that nobody wrote shows. */
#include "tests/support/attn_list.h"
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEQS = 90, MOST_PAGES = 6, GAP = 2 /* rows between two sequences */ };

typedef struct Case {
    const char *name;
    LatentSpec spec;
    FormatId keys, values; /* of the two parts of kv_b_proj */
    int lengths[4];        /* of the sequences; 0 ends the list */
    int many;              /* or so many short ones */
} Case;

static const Case cases[] = {
    {"one key", {1, 1, 1, 1, 1, 0, {0}}, FORMAT_F32, FORMAT_F32, {1}, 0},
    {"odd sizes", {3, 20, 12, 24, 36, 0, {0}}, FORMAT_BF16, FORMAT_BF16, {66, 1, 70}, 0},
    {"even sizes", {5, 32, 16, 32, 64, 0, {0}}, FORMAT_BF16, FORMAT_F32, {65, 64, 3}, 0},
    {"one head", {1, 20, 12, 24, 36, 0, {0}}, FORMAT_F32, FORMAT_BF16, {129}, 0},
    {"many heads", {17, 16, 8, 16, 32, 0, {0}}, FORMAT_F16, FORMAT_BF16, {65, 2}, 0},
    {"more rows than a run", {2, 4, 2, 3, 8, 0, {0}}, FORMAT_F32, FORMAT_F32, {300, 3, 61}, 0},
    {"short sequences", {3, 7, 4, 5, 10, 0, {0}}, FORMAT_BF16, FORMAT_BF16, {0}, MOST_SEQS},
    {"more panels than a block", {1, 272, 6, 260, 40, 0, {0}}, FORMAT_BF16, FORMAT_BF16, {5}, 0},
    {"more latents than a tile",
     {2, 16, 20, 17, 300, 0, {0}},
     FORMAT_BF16,
     FORMAT_BF16,
     {9, 70},
     0},
    {"no rope lanes", {2, 8, 0, 8, 16, 0, {0}}, FORMAT_F32, FORMAT_F32, {67}, 0},
};

/* Scores reach some 5 and round at 2^-22, as do the keys and values, which are sums of latents. */
#define TOLERANCE 1e-5

typedef struct Data {
    LatentSpec spec;
    int width, n_seqs, n_rows; /* n_rows: of all sequences whole, with the gaps */
    int length[MOST_SEQS], row[MOST_SEQS];
    int32_t pages[MOST_SEQS][MOST_PAGES];
    int64_t q_width, out_width, stride; /* stride: of latent rows */
    float *q, *latents;
    TestTensor *up;     /* [n_heads][2] */
    TestTensor *turned; /* [n_heads]: the keys' part by columns; shares data with up */
    size_t pool_bytes;
} Data;

static Data make_data(const BackendOps *ops, Backend *b, const Case *c)
{
    Data d = {.spec = c->spec};
    int n_heads = c->spec.n_heads, n_pages = 0;
    d.spec.scale = 0.7f / sqrtf((float)(c->spec.nope_dim + c->spec.rope_dim));
    d.width = c->spec.latent_dim + c->spec.rope_dim;
    d.q_width = n_heads * (c->spec.nope_dim + c->spec.rope_dim);
    d.out_width = n_heads * c->spec.v_dim;
    d.stride = d.width + 3;
    for (int s = 0; s < MOST_SEQS && (c->many ? s < c->many : s < 4 && c->lengths[s]); s++)
        d.length[d.n_seqs++] = c->many ? 1 + s % 4 : c->lengths[s];
    for (int s = d.n_seqs - 1; s >= 0; s--) { /* rows in another order than sequences */
        d.row[s] = d.n_rows;
        d.n_rows += d.length[s] + GAP;
        for (int p = 0; p < MOST_PAGES; p++)
            d.pages[s][p] = p * KV_PAGE < d.length[s] ? n_pages++ : -1;
    }
    d.pool_bytes =
        (size_t)n_pages * ops->latent_page_bytes(b, d.spec.latent_dim, d.spec.rope_dim, KV_F32);
    d.q = test_floats(d.n_rows * d.q_width, 3);
    d.latents = test_floats(d.n_rows * d.stride, 4);
    d.up = test_alloc((size_t)n_heads * 2 * sizeof *d.up);
    d.turned = test_alloc((size_t)n_heads * sizeof *d.turned);
    for (int h = 0; h < n_heads; h++) {
        int64_t cols = c->spec.latent_dim;
        d.up[2 * h] = test_tensor(c->keys, c->spec.nope_dim, cols, (uint64_t)(10 + 2 * h));
        d.up[2 * h + 1] = test_tensor(c->values, c->spec.v_dim, cols, (uint64_t)(11 + 2 * h));
        TestTensor *t = &d.turned[h];
        *t = d.up[2 * h];
        t->t.rows = cols;
        t->t.cols = c->spec.nope_dim;
        t->t.row_bytes = t->t.format->unit_bytes;
        t->t.unit_stride = cols * t->t.format->unit_bytes;
    }
    return d;
}

static void free_data(Data *d)
{
    for (int i = 0; i < 2 * d->spec.n_heads; i++)
        test_tensor_free(&d->up[i]);
    free(d->up);
    free(d->turned);
    free(d->q);
    free(d->latents);
}

static void product(double *y, const TestTensor *w, const float *x)
{
    for (int64_t i = 0; i < w->t.rows; i++) {
        y[i] = 0;
        for (int64_t k = 0; k < w->t.cols; k++)
            y[i] += (double)w->value[i * w->t.cols + k] * x[k];
    }
}

/* One head of one sequence: keys and values of all positions, then every query. */
static void exact_head(const Data *d, int seq, int head, double *out)
{
    const LatentSpec *s = &d->spec;
    int n = d->length[seq], key_dim = s->nope_dim + s->rope_dim;
    double *keys = test_alloc((size_t)(n * s->nope_dim) * sizeof *keys);
    double *values = test_alloc((size_t)(n * s->v_dim) * sizeof *values);
    double *score = test_alloc((size_t)n * sizeof *score);
    const float *latents = d->latents + d->row[seq] * d->stride;
    for (int j = 0; j < n; j++) {
        product(keys + j * s->nope_dim, &d->up[2 * head], latents + j * d->stride);
        product(values + j * s->v_dim, &d->up[2 * head + 1], latents + j * d->stride);
    }
    for (int i = 0; i < n; i++) {
        const float *q = d->q + (d->row[seq] + i) * d->q_width + head * key_dim;
        double *to = out + (d->row[seq] + i) * d->out_width + head * s->v_dim;
        double top = -INFINITY, sum = 0;
        for (int j = 0; j <= i; j++) {
            score[j] = 0;
            for (int k = 0; k < s->nope_dim; k++)
                score[j] += q[k] * keys[j * s->nope_dim + k];
            for (int k = 0; k < s->rope_dim; k++)
                score[j] += (double)q[s->nope_dim + k] * latents[j * d->stride + s->latent_dim + k];
            score[j] *= s->scale;
            top = fmax(top, score[j]);
        }
        memset(to, 0, (size_t)s->v_dim * sizeof *to);
        for (int j = 0; j <= i; j++) {
            double p = exp(score[j] - top);
            sum += p;
            for (int k = 0; k < s->v_dim; k++)
                to[k] += p * values[j * s->v_dim + k];
        }
        for (int k = 0; k < s->v_dim; k++)
            to[k] /= sum;
    }
    free(keys);
    free(values);
    free(score);
}

/* Rows of the gaps keep the bytes that out was filled with. */
static int check_gaps(const char *name, const Data *d, const float *out)
{
    static const uint32_t untouched = 0xffffffffU;
    int wrong = 0;
    for (int s = 0; s < d->n_seqs; s++)
        for (int64_t k = 0; k < GAP * d->out_width; k++)
            wrong +=
                memcmp(out + (d->row[s] + d->length[s]) * d->out_width + k, &untouched, 4) != 0;
    return check_int(name, wrong, 0);
}

typedef struct Bench {
    const BackendOps *ops;
    Backend *b;
    const char *name;
    const Data *d;
    LatentWeights w;
    void *pool;
    float *out;
} Bench;

static void start(Bench *x)
{
    memset(x->pool, 0xff, x->d->pool_bytes);
    memset(x->out, 0xff, (size_t)(x->d->n_rows * x->d->out_width) * sizeof *x->out);
}

static int run_step(Bench *x, const AttnSeq *seqs, int n_seqs, LatentForm form)
{
    Err e;
    int failed = 0, n_rows = 0;
    for (int i = 0; i < n_seqs; i++)
        n_rows += seqs[i].n_rows;
    void *scratch = test_alloc(x->ops->latent_scratch_bytes(x->b, n_rows, n_rows, &x->d->spec));
    failed += check_int(x->name,
                        test_latent_write(x->ops, x->b, x->pool, x->d->latents, x->d->stride, seqs,
                                          n_seqs, &x->d->spec, &e),
                        ST_OK);
    failed += check_int(x->name,
                        test_latent_attention(x->ops, x->b, x->out, x->d->q, x->pool, seqs, n_seqs,
                                              &x->d->spec, &x->w, form, scratch, &e),
                        ST_OK);
    free(scratch);
    return failed;
}

/* Positions pos .. pos+n-1 of a sequence; pages that begin later are not there yet. */
static AttnSeq step_of(const Data *d, int seq, int pos, int n, int32_t pages[MOST_PAGES])
{
    for (int p = 0; p < MOST_PAGES; p++)
        pages[p] = p * KV_PAGE < pos + n ? d->pages[seq][p] : -1;
    return (AttnSeq){d->row[seq] + pos, n, pos, pages};
}

static int run_whole(Bench *x, LatentForm form)
{
    AttnSeq seqs[MOST_SEQS];
    int32_t pages[MOST_SEQS][MOST_PAGES];
    for (int s = 0; s < x->d->n_seqs; s++)
        seqs[s] = step_of(x->d, s, 0, x->d->length[s], pages[s]);
    start(x);
    return run_step(x, seqs, x->d->n_seqs, form);
}

/* All sequences together, in steps of chunk positions; those that are done have no rows. */
static int run_chunks(Bench *x, int chunk, LatentForm form)
{
    int failed = 0, longest = 0;
    start(x);
    for (int s = 0; s < x->d->n_seqs; s++)
        longest = x->d->length[s] > longest ? x->d->length[s] : longest;
    for (int pos = 0; pos < longest; pos += chunk) {
        AttnSeq seqs[MOST_SEQS];
        int32_t pages[MOST_SEQS][MOST_PAGES];
        for (int s = 0; s < x->d->n_seqs; s++) {
            int rest = x->d->length[s] - pos, n = rest < chunk ? rest : chunk;
            seqs[s] = step_of(x->d, s, n > 0 ? pos : 0, n > 0 ? n : 0, pages[s]);
        }
        failed += run_step(x, seqs, x->d->n_seqs, form);
    }
    return failed;
}

static int run_alone(Bench *x, LatentForm form)
{
    int failed = 0;
    int32_t pages[MOST_PAGES];
    start(x);
    for (int s = 0; s < x->d->n_seqs; s++) {
        AttnSeq seq = step_of(x->d, s, 0, x->d->length[s], pages);
        failed += run_step(x, &seq, 1, form);
    }
    return failed;
}

static int check_same(const Bench *x, const char *how, const float *want)
{
    char name[700];
    snprintf(name, sizeof name, "%s, %s", x->name, how);
    return check_bits(name, x->out, want, x->d->n_rows * x->d->out_width);
}

static int run_form(Bench *x, LatentForm form, const double *exact, float *want, bool first)
{
    static const int chunks[] = {1, 7, 64, 65};
    const Data *d = x->d;
    int failed = run_whole(x, form);
    if (first)
        memcpy(want, x->out, (size_t)(d->n_rows * d->out_width) * sizeof *want);
    for (int s = 0; s < d->n_seqs; s++)
        failed +=
            check_close(x->name, x->out + d->row[s] * d->out_width,
                        exact + d->row[s] * d->out_width, d->length[s] * d->out_width, TOLERANCE);
    failed += check_gaps(x->name, d, x->out);
    failed += check_same(x, "whole", want);
    failed += run_alone(x, form);
    failed += check_same(x, "each sequence alone", want);
    for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
        char how[40];
        snprintf(how, sizeof how, "chunks of %d", chunks[k]);
        failed += run_chunks(x, chunks[k], form);
        failed += check_same(x, how, want);
    }
    return failed;
}

static const KvFormat formats[] = {{KV_BF16, 0, 0}, {KV_FP8, 0.0057f, 0}};

/* A cached row as it is read back: rope lanes are bf16 in either format. */
static void round_row(float *x, const LatentSpec *spec, const KvFormat *f)
{
    for (int i = 0; i < spec->latent_dim + spec->rope_dim; i++)
        x[i] = f->dtype == KV_BF16 || i >= spec->latent_dim
                   ? bf16_to_float(float_to_bf16(x[i]))
                   : e4m3_to_float(float_to_e4m3(x[i] / f->k_scale)) * f->k_scale;
}

/* Attention over a cache of this format equals float32 attention over rounded rows, and so do all
 * chunks. x->d is the float32 data. */
static int run_format(Bench *x, LatentForm form, const KvFormat *f, float *want)
{
    const Data *d = x->d;
    int failed = 0;
    int64_t n = d->n_rows * d->stride;
    Data rounded = *d, coded = *d;
    rounded.latents = test_alloc((size_t)n * sizeof *rounded.latents);
    memcpy(rounded.latents, d->latents, (size_t)n * sizeof *rounded.latents);
    for (int r = 0; r < d->n_rows; r++)
        round_row(rounded.latents + r * d->stride, &d->spec, f);
    coded.spec.kv = *f;
    x->d = &rounded;
    failed += run_whole(x, form);
    memcpy(want, x->out, (size_t)(d->n_rows * d->out_width) * sizeof *want);
    x->d = &coded;
    failed += run_whole(x, form);
    failed += check_same(x, f->dtype == KV_BF16 ? "bf16" : "fp8", want);
    static const int chunks[] = {65, 7};
    for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
        failed += run_chunks(x, chunks[k], form);
        failed += check_same(x, f->dtype == KV_BF16 ? "bf16 in chunks" : "fp8 in chunks", want);
    }
    x->d = d;
    free(rounded.latents);
    return failed;
}

static int run_case(const BackendOps *ops, const TestBackend *backends, int n_backends,
                    const Case *c)
{
    int failed = 0;
    Data d = make_data(ops, backends[0].b, c);
    int64_t n = d.n_rows * d.out_width;
    double *exact = test_alloc((size_t)n * sizeof *exact);
    float *want[2] = {test_alloc((size_t)n * sizeof(float)), test_alloc((size_t)n * sizeof(float))};
    float *rounded = test_alloc((size_t)n * sizeof *rounded);
    Bench x = {.ops = ops,
               .d = &d,
               .pool = test_alloc(d.pool_bytes),
               .out = test_alloc((size_t)n * sizeof(float))};
    for (int s = 0; s < d.n_seqs; s++)
        for (int h = 0; h < d.spec.n_heads; h++)
            exact_head(&d, s, h, exact);
    for (int i = 0; i < n_backends; i++) {
        x.b = backends[i].b;
        Weight *up = test_weight(ops, x.b, WEIGHT_MATMUL, d.spec.n_heads, 2, d.up);
        Weight *absorb = test_weight(ops, x.b, WEIGHT_MATMUL, d.spec.n_heads, 1, d.turned);
        x.w = (LatentWeights){up, absorb};
        for (int form = 0; form < 2; form++) {
            char name[600];
            snprintf(name, sizeof name, "%s, %s, %s", c->name,
                     form == LATENT_EXPANDED ? "expanded" : "absorbed", backends[i].name);
            x.name = name;
            failed += run_form(&x, (LatentForm)form, exact, want[form], i == 0);
            if (i % 3 == 0) /* threads change nothing about formats */
                for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
                    failed += run_format(&x, (LatentForm)form, &formats[f], rounded);
        }
        ops->weight_destroy(x.b, up);
        ops->weight_destroy(x.b, absorb);
    }
    for (int s = 0; s < d.n_seqs; s++)
        for (int64_t k = 0; k < d.length[s] * d.out_width; k++) {
            float a = want[0][d.row[s] * d.out_width + k], b = want[1][d.row[s] * d.out_width + k];
            failed += check_near("the two forms", a, b, TOLERANCE * fmax(1, fabs(b)));
        }
    free(x.pool);
    free(x.out);
    free(want[0]);
    free(want[1]);
    free(rounded);
    free(exact);
    free_data(&d);
    return failed;
}

static Weight *bank(const BackendOps *ops, Backend *b, int n_heads, int64_t rows, int64_t more,
                    int64_t cols)
{
    TestTensor t[4] = {test_tensor(FORMAT_F32, rows, cols, 1)};
    int n_parts = more > 0 ? 2 : 1;
    for (int i = 1; i < n_heads * n_parts; i++)
        t[i] = test_tensor(FORMAT_F32, i % n_parts ? more : rows, cols, 1);
    Weight *w = test_weight(ops, b, WEIGHT_MATMUL, n_heads, n_parts, t);
    for (int i = 0; i < n_heads * n_parts; i++)
        test_tensor_free(&t[i]);
    return w;
}

/* Pages of -1 are skipped by writes; banks of other shapes are refused; no rows are no work. */
static int test_edges(const BackendOps *ops, Backend *b)
{
    enum { ROWS = 70, WIDTH = 11 };
    int failed = 0;
    Err e;
    LatentSpec spec = {2, 5, 3, 4, 8, 0.5f, {0}}, nothing = {0};
    float *rows = test_floats(ROWS * WIDTH, 1), out[8], q[16] = {0};
    size_t page = ops->latent_page_bytes(b, spec.latent_dim, spec.rope_dim, KV_F32);
    char *pool = test_alloc(page), *untouched = test_alloc(page);
    memset(pool, 0xff, page);
    memset(untouched, 0xff, page);
    int32_t pages[2] = {-1, -1};
    AttnSeq seq = {0, ROWS, 0, pages}, none = {0, 0, 0, pages};
    failed += check_int("no page", test_latent_write(ops, b, pool, rows, WIDTH, &seq, 1, &spec, &e),
                        ST_OK);
    failed += check_int("no page", memcmp(pool, untouched, page), 0);
    pages[1] = 0; /* positions 64 .. 69 */
    failed +=
        check_int("write", test_latent_write(ops, b, pool, rows, WIDTH, &seq, 1, &spec, &e), ST_OK);
    size_t stride = page / KV_PAGE;
    for (int j = 0; j < ROWS - KV_PAGE; j++)
        failed += check_int(
            "written",
            memcmp(pool + (size_t)j * stride, rows + (KV_PAGE + j) * WIDTH, WIDTH * sizeof(float)),
            0);
    size_t end = (ROWS - KV_PAGE) * stride;
    failed += check_int("the rest", memcmp(pool + end, untouched + end, page - end), 0);
    failed += check_int(
        "no width", test_latent_write(ops, b, pool, rows, WIDTH, &seq, 1, &nothing, &e), ST_INPUT);

    static const struct {
        const char *name;
        int latent_dim, rope_dim;
        KvDtype dtype;
        size_t row_bytes;
    } sizes[] = {{"f32", 512, 64, KV_F32, 2304},
                 {"bf16", 512, 64, KV_BF16, 1152},
                 {"fp8", 512, 64, KV_FP8, 640},
                 {"fp8 in whole 16s", 36, 12, KV_FP8, 48 + 32}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        failed += check_int(sizes[i].name,
                            (int64_t)ops->latent_page_bytes(b, sizes[i].latent_dim,
                                                            sizes[i].rope_dim, sizes[i].dtype),
                            (int64_t)sizes[i].row_bytes * KV_PAGE);
    LatentSpec bad[2] = {spec, spec};
    bad[0].kv.dtype = KV_NVFP4;
    bad[1].kv.dtype = KV_FP8;
    for (int i = 0; i < 2; i++)
        failed +=
            check_int("bad format",
                      test_latent_write(ops, b, pool, rows, WIDTH, &seq, 1, &bad[i], &e), ST_INPUT);

    Weight *up = bank(ops, b, 2, 5, 4, 8), *absorb = bank(ops, b, 2, 8, 0, 5);
    Weight *other = bank(ops, b, 2, 5, 3, 8), *one = bank(ops, b, 1, 8, 0, 5);
    const struct {
        const char *name;
        LatentWeights w;
        const AttnSeq *seq;
        Status want;
    } calls[] = {{"no rows", {up, absorb}, &none, ST_OK},
                 {"other values", {other, absorb}, &none, ST_INPUT},
                 {"other heads", {up, one}, &none, ST_INPUT},
                 {"banks swapped", {absorb, up}, &none, ST_INPUT}};
    void *scratch = test_alloc(ops->latent_scratch_bytes(b, 1, 1, &spec));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int form = 0; form < 2; form++)
            failed += check_int(calls[i].name,
                                test_latent_attention(ops, b, out, q, pool, calls[i].seq, 1, &spec,
                                                      &calls[i].w, (LatentForm)form, scratch, &e),
                                calls[i].want);
    spec.v_dim = 0;
    LatentWeights w = {up, absorb};
    failed += check_int("no values",
                        test_latent_attention(ops, b, out, q, pool, &none, 1, &spec, &w,
                                              LATENT_EXPANDED, scratch, &e),
                        ST_INPUT);
    ops->weight_destroy(b, up);
    ops->weight_destroy(b, absorb);
    ops->weight_destroy(b, other);
    ops->weight_destroy(b, one);
    free(scratch);
    free(rows);
    free(pool);
    free(untouched);
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
        failed += test_edges(ops, backends[i].b);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
