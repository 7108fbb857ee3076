/* tests/kernels/test_ffn.c - grouped experts against a plain loop of chains, bit for bit, and
 * against double precision; skewed, empty and single groups; the activations of the families. */
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ActSpec silu = {ACT_SWIGLU, 1.0f, 0.0f, INFINITY},
                     swigluoai = {ACT_SWIGLU, 1.702f, 1.0f, 7.0f},
                     clamped = {ACT_SWIGLU, 1.0f, 0.0f, 10.0f},
                     situ = {ACT_SITU, 1.0f, 4.0f, INFINITY},
                     situ_both = {ACT_SITU, 1.0f, 4.0f, 25.0f};

typedef struct Case {
    const char *name;
    int64_t hidden, inter;
    FormatId gate, up, down;
    const ActSpec *act;
    bool bias, gathered;
    int n_experts, pairs[6]; /* of each expert */
} Case;

static const Case cases[] = {
    {"no rows", 16, 16, FORMAT_F32, FORMAT_F32, FORMAT_F32, &silu, false, false, 2, {0, 0}},
    {"one pair", 5, 3, FORMAT_F32, FORMAT_F32, FORMAT_F32, &silu, true, true, 3, {0, 1, 0}},
    {"bf16 skewed",
     40,
     50,
     FORMAT_BF16,
     FORMAT_BF16,
     FORMAT_BF16,
     &silu,
     false,
     true,
     4,
     {1, 130, 0, 9}},
    {"mxfp4",
     96,
     64,
     FORMAT_MXFP4,
     FORMAT_MXFP4,
     FORMAT_MXFP4,
     &swigluoai,
     true,
     true,
     6,
     {3, 0, 7, 1, 20, 2}},
    {"mixed formats",
     64,
     96,
     FORMAT_MXFP4,
     FORMAT_BF16,
     FORMAT_F16,
     &clamped,
     true,
     false,
     3,
     {6, 13, 2}},
    {"f32 beside bf16",
     40,
     40,
     FORMAT_F32,
     FORMAT_BF16,
     FORMAT_F32,
     &silu,
     false,
     true,
     2,
     {12, 31}},
    {"fp8", 150, 70, FORMAT_FP8, FORMAT_FP8, FORMAT_FP8, &silu, false, true, 3, {1, 40, 3}},
    {"nvfp4 situ",
     64,
     80,
     FORMAT_NVFP4,
     FORMAT_NVFP4,
     FORMAT_NVFP4,
     &situ,
     true,
     true,
     3,
     {2, 9, 1}},
    {"mxfp8 situ",
     96,
     32,
     FORMAT_MXFP8,
     FORMAT_MXFP8,
     FORMAT_MXFP8,
     &situ_both,
     false,
     true,
     2,
     {7, 5}},
    {"int4", 70, 90, FORMAT_INT4, FORMAT_INT4, FORMAT_INT4, &silu, false, true, 2, {14, 1}},
    {"q8_0 and iq2",
     256,
     64,
     FORMAT_IQ2_XS,
     FORMAT_IQ2_XXS,
     FORMAT_Q8_0,
     &silu,
     false,
     true,
     2,
     {3, 8}},
    {"past a tile", 288, 272, FORMAT_F16, FORMAT_F16, FORMAT_BF16, &silu, true, true, 2, {8, 5}},
};

static double gated_exactly(double g, double u, const ActSpec *a)
{
    if (a->kind == ACT_SITU && a->limit < INFINITY)
        u = a->limit * tanh(u / (double)a->limit);
    if (a->kind == ACT_SITU)
        return a->beta * tanh(g / (double)a->beta) / (1 + exp(-g)) * u;
    g = fmin(g, a->limit);
    u = fmax(-(double)a->limit, fmin(a->limit, u));
    return g / (1 + exp(-(double)a->alpha * g)) * (u + a->beta);
}

typedef struct Bank {
    TestTensor *w13, *w2; /* [2 n_experts], [n_experts] */
    float *b13, *b2, *x;
    int32_t first[7], row_of[256];
    int n_pairs, n_rows;
} Bank;

static Bank make_bank(const Case *c)
{
    Bank k = {.w13 = test_alloc((size_t)c->n_experts * 2 * sizeof *k.w13),
              .w2 = test_alloc((size_t)c->n_experts * sizeof *k.w2)};
    uint64_t seed = 1;
    for (int i = 0; i < c->n_experts; i++) {
        k.w13[2 * i] = test_tensor(c->gate, c->inter, c->hidden, seed++);
        k.w13[2 * i + 1] = test_tensor(c->up, c->inter, c->hidden, seed++);
        k.w2[i] = test_tensor(c->down, c->hidden, c->inter, seed++);
        k.first[i + 1] = k.first[i] + c->pairs[i];
    }
    k.n_pairs = k.first[c->n_experts];
    k.n_rows = c->gathered ? k.n_pairs / 2 + 1 : k.n_pairs;
    for (int p = 0; p < k.n_pairs; p++)
        k.row_of[p] = (int32_t)(test_random(&seed) % (unsigned)k.n_rows);
    k.x = test_floats(k.n_rows * c->hidden, 99);
    if (c->bias) {
        k.b13 = test_floats(c->n_experts * 2 * c->inter, 100);
        k.b2 = test_floats(c->n_experts * c->hidden, 101);
    }
    return k;
}

static void free_bank(const Case *c, Bank *k)
{
    for (int i = 0; i < c->n_experts; i++) {
        test_tensor_free(&k->w13[2 * i]);
        test_tensor_free(&k->w13[2 * i + 1]);
        test_tensor_free(&k->w2[i]);
    }
    free(k->w13);
    free(k->w2);
    free(k->b13);
    free(k->b2);
    free(k->x);
}

static double dot(const float *w, const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += w[k] * x[k];
    return sum;
}

/* size: the sum of the magnitudes that make up each output; errors are relative to it, since terms
 * may cancel. */
static void exact_ffn(const Case *c, const Bank *k, double *y, double *size)
{
    double *x = test_alloc((size_t)c->hidden * sizeof *x),
           *inner = test_alloc((size_t)c->inter * sizeof *inner);
    for (int i = 0; i < c->n_experts; i++)
        for (int p = k->first[i]; p < k->first[i + 1]; p++) {
            int row = c->gathered ? k->row_of[p] : p;
            for (int64_t j = 0; j < c->hidden; j++)
                x[j] = k->x[row * c->hidden + j];
            for (int64_t j = 0; j < c->inter; j++) {
                double g = dot(k->w13[2 * i].value + j * c->hidden, x, c->hidden);
                double u = dot(k->w13[2 * i + 1].value + j * c->hidden, x, c->hidden);
                if (k->b13) {
                    g += k->b13[i * 2 * c->inter + j];
                    u += k->b13[(i * 2 + 1) * c->inter + j];
                }
                inner[j] = gated_exactly(g, u, c->act);
            }
            for (int64_t j = 0; j < c->hidden; j++) {
                const float *w = k->w2[i].value + j * c->inter;
                double bias = k->b2 ? k->b2[i * c->hidden + j] : 0;
                y[p * c->hidden + j] = dot(w, inner, c->inter) + bias;
                size[p * c->hidden + j] = fabs(bias);
                for (int64_t m = 0; m < c->inter; m++)
                    size[p * c->hidden + j] += fabs(w[m] * inner[m]);
            }
        }
    free(x);
    free(inner);
}

/* Same pairs, but one expert's call at a time and one row per call: what batches must agree with.
 */
static void one_by_one(const BackendOps *ops, Backend *b, const Case *c, const Bank *k,
                       const FfnSpec *spec, float *y)
{
    float *scratch = test_alloc(ops->ffn_scratch_bytes(b, 1, c->inter));
    Err e;
    for (int i = 0; i < c->n_experts; i++)
        for (int p = k->first[i]; p < k->first[i + 1]; p++) {
            int32_t row = c->gathered ? k->row_of[p] : p, first[7];
            for (int j = 0; j <= c->n_experts; j++)
                first[j] = j > i;
            ops->ffn(b, y + p * c->hidden, k->x, NULL, &row, first, c->n_experts, 1, spec, scratch,
                     &e);
        }
    free(scratch);
}

static int run_case(const BackendOps *ops, const TestBackend *backends, int n_backends,
                    const Case *c)
{
    int failed = 0;
    Err e;
    Bank k = make_bank(c);
    int64_t n = k.n_pairs * c->hidden;
    float *y = test_alloc((size_t)n * sizeof *y), *single = test_alloc((size_t)n * sizeof *single);
    float *reference = test_alloc((size_t)n * sizeof *reference);
    double *exact = test_alloc((size_t)n * sizeof *exact),
           *size = test_alloc((size_t)n * sizeof *size);
    exact_ffn(c, &k, exact, size);
    for (int i = 0; i < n_backends; i++) {
        Backend *b = backends[i].b;
        FfnSpec spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, c->n_experts, 2, k.w13),
                        .w2 = test_weight(ops, b, WEIGHT_MATMUL, c->n_experts, 1, k.w2),
                        .b13 = k.b13,
                        .b2 = k.b2,
                        .hidden = c->hidden,
                        .inter = c->inter,
                        .act = *c->act};
        float *scratch = test_alloc(ops->ffn_scratch_bytes(b, k.n_pairs, c->inter));
        char name[600];
        snprintf(name, sizeof name, "%s, %s", c->name, backends[i].name);
        failed += check_int(name,
                            ops->ffn(b, y, k.x, NULL, c->gathered ? k.row_of : NULL, k.first,
                                     c->n_experts, k.n_pairs, &spec, scratch, &e),
                            ST_OK);
        for (int64_t j = 0; j < n; j++)
            failed += check_near(name, y[j], exact[j], 2e-6 * size[j]);
        if (i == 0)
            memcpy(reference, y, (size_t)n * sizeof *y);
        failed += check_bits(name, y, reference, n);
        one_by_one(ops, b, c, &k, &spec, single);
        failed += check_bits("one by one", single, y, n);
        free(scratch);
        ops->weight_destroy(b, (Weight *)spec.w13);
        ops->weight_destroy(b, (Weight *)spec.w2);
    }
    free(y);
    free(single);
    free(reference);
    free(exact);
    free(size);
    free_bank(c, &k);
    return failed;
}

/* models.md 4: with identity weights the op shows the activation itself. */
static int test_activations(const BackendOps *ops, Backend *b)
{
    static const struct {
        float g, u;
        double silu, swigluoai, clamped;
    } points[] = {
        {0.5f, -1.25f, -0.3890371, -0.0875971, -0.3890371},
        {3, 2, 5.7154448, 8.9457861, 5.7154448},
        {9, -8.5f, -76.4905603, -41.9997188, -76.4905603},
        {-6, 30, -0.4450722, -0.0017628, -0.1483574},
        {20, 12, 239.9999995, 55.9996250, 99.9954602},
    };
    int failed = 0;
    Err e;
    float gate[2] = {1, 0}, up[2] = {0, 1}, down[2] = {1, 0}, x[2], y[2], scratch[1];
    TestTensor w13[2] = {{.t = quant_plain(FORMAT_F32, gate, 1, 2)},
                         {.t = quant_plain(FORMAT_F32, up, 1, 2)}};
    TestTensor w2 = {.t = quant_plain(FORMAT_F32, down, 2, 1)};
    FfnSpec spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, 1, 2, w13),
                    .w2 = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &w2),
                    .hidden = 2,
                    .inter = 1};
    const int32_t first[2] = {0, 1};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const struct {
            const char *name;
            const ActSpec *act;
            double want;
        } acts[] = {{"silu", &silu, points[i].silu},
                    {"swigluoai", &swigluoai, points[i].swigluoai},
                    {"silu-clamp", &clamped, points[i].clamped}};
        for (int a = 0; a < 3; a++) {
            spec.act = *acts[a].act;
            x[0] = points[i].g;
            x[1] = points[i].u;
            failed += check_int(
                "ffn", ops->ffn(b, y, x, NULL, NULL, NULL, 1, first[1], &spec, scratch, &e), ST_OK);
            failed +=
                check_near(acts[a].name, y[0], acts[a].want, 5e-7 * fmax(1, fabs(acts[a].want)));
        }
    }
    ops->weight_destroy(b, (Weight *)spec.w13);
    ops->weight_destroy(b, (Weight *)spec.w2);
    return failed;
}

/* The whole range of gates, against double precision: what tanh and the sigmoid lose is
 * relative. */
static int test_situ(const BackendOps *ops, Backend *b)
{
    enum { N = 3001 };
    int failed = 0;
    Err e;
    float gate[2] = {1, 0}, up[2] = {0, 1}, down[2] = {1, 0};
    TestTensor w13[2] = {{.t = quant_plain(FORMAT_F32, gate, 1, 2)},
                         {.t = quant_plain(FORMAT_F32, up, 1, 2)}};
    TestTensor w2 = {.t = quant_plain(FORMAT_F32, down, 2, 1)};
    FfnSpec spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, 1, 2, w13),
                    .w2 = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &w2),
                    .hidden = 2,
                    .inter = 1,
                    .act = situ};
    float *x = test_alloc(2 * N * sizeof *x), *y = test_alloc(2 * N * sizeof *y);
    float *scratch = test_alloc(N * sizeof *scratch);
    const int32_t first[2] = {0, N};
    for (int i = 0; i < N; i++) { /* 1e-6 .. 60 on both sides of 0 */
        float size = 1e-6f * powf(6e7f, (float)(i / 2) / (N / 2));
        x[2 * i] = i == N - 1 ? NAN : i % 2 ? -size : size;
        x[2 * i + 1] = 1;
    }
    failed += check_int(
        "situ", ops->ffn(b, y, x, NULL, NULL, NULL, 1, first[1], &spec, scratch, &e), ST_OK);
    for (int i = 0; i < N - 1; i++) {
        double want = gated_exactly(x[2 * i], 1, &situ);
        failed += check_near("situ", y[2 * i], want, 8e-7 * fabs(want) + 1e-37);
    }
    failed += check_true("situ of NaN", isnan(y[2 * (N - 1)]));
    ops->weight_destroy(b, (Weight *)spec.w13);
    ops->weight_destroy(b, (Weight *)spec.w2);
    free(x);
    free(y);
    free(scratch);
    return failed;
}

/* An FFN without gates: its products are the squares of what matmul gives, where positive. */
static int test_ungated(const BackendOps *ops, Backend *b)
{
    enum { HIDDEN = 48, INTER = 37, PAIRS = 23 };
    int failed = 0;
    Err e;
    static const int32_t first[] = {0, 5, PAIRS};
    TestTensor w13[2], w2[2];
    for (int i = 0; i < 2; i++) {
        w13[i] = test_tensor(FORMAT_NVFP4, INTER, HIDDEN, (uint64_t)i + 1);
        w2[i] = test_tensor(FORMAT_BF16, HIDDEN, INTER, (uint64_t)i + 3);
    }
    float *x = test_floats(PAIRS * HIDDEN, 5), *b13 = test_floats(2 * INTER, 6);
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        FfnSpec spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, 2, 1, w13),
                        .w2 = test_weight(ops, b, WEIGHT_MATMUL, 2, 1, w2),
                        .b13 = with_bias ? b13 : NULL,
                        .hidden = HIDDEN,
                        .inter = INTER,
                        .act = {ACT_RELU2, 0, 0, 0}};
        float y[PAIRS * HIDDEN], scratch[PAIRS * INTER], inner[INTER], want[HIDDEN];
        failed += check_int(
            "relu2", ops->ffn(b, y, x, NULL, NULL, first, 2, PAIRS, &spec, scratch, &e), ST_OK);
        for (int p = 0; p < PAIRS; p++) {
            int i = p >= first[1];
            for (int o = 0; o < INTER; o++) {
                float acc = test_chains(x + p * HIDDEN, w13[i].value + o * HIDDEN, HIDDEN);
                acc = with_bias ? acc + b13[i * INTER + o] : acc;
                inner[o] = acc > 0 ? acc * acc : 0;
            }
            for (int o = 0; o < HIDDEN; o++)
                want[o] = test_chains(inner, w2[i].value + o * INTER, INTER);
            failed += check_bits("relu2", y + p * HIDDEN, want, HIDDEN);
        }
        ops->weight_destroy(b, (Weight *)spec.w13);
        ops->weight_destroy(b, (Weight *)spec.w2);
    }
    for (int i = 0; i < 2; i++) {
        test_tensor_free(&w13[i]);
        test_tensor_free(&w2[i]);
    }
    free(x);
    free(b13);
    return failed;
}

/* With a down projection that copies, the op shows what it rounds the products to: what the
 * reference makes of the products that an op without rounding shows. */
static int test_inner(const BackendOps *ops, Backend *b)
{
    static const struct {
        int64_t inter;
        RowFormat format;
    } inner[] = {{48, {ROWS_FP8_STATIC, 0.01f, false}}, {37, {ROWS_FP8_TOKEN, 0, false}},
                 {131, {ROWS_FP8_GROUP, 0, true}},      {48, {ROWS_NVFP4_STATIC, 0.003f, false}},
                 {80, {ROWS_NVFP4_TOKEN, 0, false}},    {96, {ROWS_MXFP8, 0, false}},
                 {32, {ROWS_AS_THEY_ARE, 0, false}}};
    enum { EXPERTS = 3, PAIRS = 70 };
    static const int32_t first[EXPERTS + 1] = {2, 60, 60, PAIRS}; /* may start past 0 */
    int failed = 0;
    Err e;
    for (size_t c = 0; c < sizeof inner / sizeof *inner; c++) {
        int64_t width = inner[c].inter, n = PAIRS * width;
        TestTensor w13[2 * EXPERTS], w2[EXPERTS];
        float *one = test_alloc((size_t)(width * width) * sizeof *one);
        memset(one, 0, (size_t)(width * width) * sizeof *one);
        for (int64_t i = 0; i < width; i++)
            one[i * width + i] = 1;
        for (int i = 0; i < 2 * EXPERTS; i++)
            w13[i] = test_tensor(FORMAT_BF16, width, width, (uint64_t)i + c);
        for (int i = 0; i < EXPERTS; i++)
            w2[i] = (TestTensor){.t = quant_plain(FORMAT_F32, one, width, width)};
        FfnSpec spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, EXPERTS, 2, w13),
                        .w2 = test_weight(ops, b, WEIGHT_MATMUL, EXPERTS, 1, w2),
                        .hidden = width,
                        .inter = width,
                        .act = silu};
        float *x = test_floats(n, c), *y = test_alloc((size_t)n * sizeof *y);
        float *want = test_alloc((size_t)n * sizeof *want);
        float *scratch = test_alloc(ops->ffn_scratch_bytes(b, PAIRS, width));
        const char *name = row_scheme_name(inner[c].format.scheme);
        memset(y, 0, (size_t)n * sizeof *y);
        memset(want, 0, (size_t)n * sizeof *want);
        ops->ffn(b, want, x, NULL, NULL, first, EXPERTS, PAIRS, &spec, scratch, &e);
        for (int p = 0; p < PAIRS; p++)
            row_round(&inner[c].format, want + p * width, width, want + p * width);
        for (int64_t i = 0; i < n; i++)
            want[i] += 0.0f; /* the copy makes -0 a 0 */
        spec.inner = inner[c].format;
        failed += check_int(
            name, ops->ffn(b, y, x, NULL, NULL, first, EXPERTS, PAIRS, &spec, scratch, &e), ST_OK);
        failed += check_bits(name, y, want, n);
        ops->weight_destroy(b, (Weight *)spec.w13);
        ops->weight_destroy(b, (Weight *)spec.w2);
        for (int i = 0; i < 2 * EXPERTS; i++)
            test_tensor_free(&w13[i]);
        free(one);
        free(x);
        free(y);
        free(want);
        free(scratch);
    }
    return failed;
}

/* Gate and up reading different rows equal both reading the two rows side by side, with weights
 * that are 0 for the other's row: 0 * x leaves a chain as it was, and chains begin at multiples of
 * 128. */
static int test_two_inputs(const BackendOps *ops, Backend *b)
{
    enum { HIDDEN = 33, INTER = 50, ROWS = 45, UP = 128, WIDE = UP + HIDDEN };
    int failed = 0;
    Err e;
    TestTensor narrow[3], wide[3];
    float *data[3];
    for (int p = 0; p < 3; p++) {
        int64_t rows = p < 2 ? INTER : HIDDEN, cols = p < 2 ? HIDDEN : INTER;
        int64_t wide_rows = p < 2 ? INTER : WIDE, wide_cols = p < 2 ? WIDE : INTER;
        narrow[p] = test_tensor(FORMAT_F32, rows, cols, (uint64_t)p);
        data[p] = test_alloc((size_t)(wide_rows * wide_cols) * sizeof(float));
        memset(data[p], 0, (size_t)(wide_rows * wide_cols) * sizeof(float));
        for (int64_t r = 0; r < rows; r++)
            memcpy(data[p] + r * wide_cols + (p == 1 ? UP : 0), narrow[p].value + r * cols,
                   (size_t)cols * sizeof(float));
        wide[p] = (TestTensor){.t = quant_plain(FORMAT_F32, data[p], wide_rows, wide_cols)};
    }
    FfnSpec spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, 1, 2, narrow),
                    .w2 = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, narrow + 2),
                    .hidden = HIDDEN,
                    .inter = INTER,
                    .act = swigluoai};
    FfnSpec wide_spec = {.w13 = test_weight(ops, b, WEIGHT_MATMUL, 1, 2, wide),
                         .w2 = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, wide + 2),
                         .hidden = WIDE,
                         .inter = INTER,
                         .act = swigluoai};
    float *x = test_floats(ROWS * HIDDEN, 1), *x_up = test_floats(ROWS * HIDDEN, 2);
    float *both = test_alloc(ROWS * WIDE * sizeof *both),
          *want = test_alloc(ROWS * WIDE * sizeof *want);
    float *y = test_alloc(ROWS * HIDDEN * sizeof *y);
    float *scratch = test_alloc(ops->ffn_scratch_bytes(b, ROWS, INTER));
    int32_t row_of[ROWS];
    const int32_t first[2] = {0, ROWS};
    for (int r = 0; r < ROWS; r++) {
        row_of[r] = (r * 7 + 3) % ROWS;
        memset(both + r * WIDE, 0, WIDE * sizeof *both);
        memcpy(both + r * WIDE, x + r * HIDDEN, HIDDEN * sizeof *x);
        memcpy(both + r * WIDE + UP, x_up + r * HIDDEN, HIDDEN * sizeof *x);
    }
    for (int gathered = 0; gathered < 2; gathered++) {
        const int32_t *rows = gathered ? row_of : NULL;
        failed += check_int(
            "two inputs", ops->ffn(b, y, x, x_up, rows, first, 1, ROWS, &spec, scratch, &e), ST_OK);
        ops->ffn(b, want, both, NULL, rows, first, 1, ROWS, &wide_spec, scratch, &e);
        for (int r = 0; r < ROWS; r++)
            failed += check_bits("two inputs", y + r * HIDDEN, want + r * WIDE, HIDDEN);
    }
    ops->weight_destroy(b, (Weight *)spec.w13);
    ops->weight_destroy(b, (Weight *)spec.w2);
    ops->weight_destroy(b, (Weight *)wide_spec.w13);
    ops->weight_destroy(b, (Weight *)wide_spec.w2);
    for (int p = 0; p < 3; p++) {
        test_tensor_free(&narrow[p]);
        free(data[p]);
    }
    free(x);
    free(x_up);
    free(both);
    free(want);
    free(y);
    free(scratch);
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
        failed += test_activations(ops, backends[i].b) + test_situ(ops, backends[i].b) +
                  test_ungated(ops, backends[i].b) + test_inner(ops, backends[i].b) +
                  test_two_inputs(ops, backends[i].b);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
