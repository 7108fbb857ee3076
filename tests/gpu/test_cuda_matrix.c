/* tests/gpu/test_cuda_matrix.c - linear layers and experts of the CUDA backend in every format,
 * against the CPU's, and bit for bit whatever the batch.
 * Usage: test_cuda_matrix [small [PART PARTS]]: for compute-sanitizer, few rows by themselves. */
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static CudaCase on;

typedef struct MatmulCase {
    const char *name;
    FormatId format;
    TestScales scales;
    int64_t rows[MAX_PARTS], cols; /* 0 ends the parts */
    bool exact;                    /* code times scale is a bf16 value, or its scale a row's */
} MatmulCase;

static const MatmulCase cases[] = {
    {"bf16", FORMAT_BF16, {SCALE_NONE, 0, 0}, {100, 8, 9}, 192, true},
    {"bf16, odd", FORMAT_BF16, {SCALE_NONE, 0, 0}, {1}, 37, true},
    {"bf16, wide", FORMAT_BF16, {SCALE_NONE, 0, 0}, {200, 64}, 1000, true},
    {"f32, rounded", FORMAT_F32, {SCALE_NONE, 0, 0}, {65}, 64, false},
    {"f16, rounded", FORMAT_F16, {SCALE_NONE, 0, 0}, {65}, 72, false},
    {"fp8 of the tensor", FORMAT_FP8, {SCALE_F32, TEST_ALL, TEST_ALL}, {70, 3}, 160, true},
    {"fp8 of a row", FORMAT_FP8, {SCALE_BF16, TEST_ALL, 1}, {70}, 160, true},
    {"fp8 in blocks", FORMAT_FP8, {SCALE_NONE, 0, 0}, {192, 130}, 320, false},
    {"fp8, uneven groups", FORMAT_FP8, {SCALE_F32, 24, 1}, {64}, 100, false},
    {"nvfp4", FORMAT_NVFP4, {SCALE_NONE, 0, 0}, {130, 16}, 144, true},
    {"nvfp4 of 32", FORMAT_NVFP4, {SCALE_E4M3, 32, 1}, {33}, 96, true},
    {"mxfp4", FORMAT_MXFP4, {SCALE_NONE, 0, 0}, {65, 66}, 288, true},
    {"mxfp8", FORMAT_MXFP8, {SCALE_NONE, 0, 0}, {65}, 128, true},
    {"int4", FORMAT_INT4, {SCALE_NONE, 0, 0}, {65, 10}, 160, false},
    {"q8_0", FORMAT_Q8_0, {SCALE_NONE, 0, 0}, {65}, 160, false},
    {"iq2_xs", FORMAT_IQ2_XS, {SCALE_NONE, 0, 0}, {65}, 512, false},
    {"iq2_xxs", FORMAT_IQ2_XXS, {SCALE_NONE, 0, 0}, {20}, 256, false},
    {"fp8 of a row, odd", FORMAT_FP8, {SCALE_F32, TEST_ALL, 1}, {70}, 99, true},
    {"mxfp4, gate and up", FORMAT_MXFP4, {SCALE_NONE, 0, 0}, {65, 65}, 288, true},
    {"nvfp4, gate and up", FORMAT_NVFP4, {SCALE_NONE, 0, 0}, {33, 33}, 80, true},
    {"bf16, gate and up", FORMAT_BF16, {SCALE_NONE, 0, 0}, {40, 40}, 72, true},
    /* Outputs for pairs of blocks, with tiles of 128 rows for 270 and of all of 131 and 70; of 192 for
     * 500. */
    {"bf16, wide tiles", FORMAT_BF16, {SCALE_NONE, 0, 0}, {16900, 130}, 136, true},
    {"mxfp4, wide tiles", FORMAT_MXFP4, {SCALE_NONE, 0, 0}, {16900, 130}, 160, true},
    {"nvfp4, wide tiles", FORMAT_NVFP4, {SCALE_NONE, 0, 0}, {16900, 130}, 144, true},
    {"fp8, wide tiles", FORMAT_FP8, {SCALE_NONE, 0, 0}, {16896, 130}, 160, false},
    {"bf16, 192 rows", FORMAT_BF16, {SCALE_NONE, 0, 0}, {4900, 100}, 136, true},
    {"mxfp4, 192 rows", FORMAT_MXFP4, {SCALE_NONE, 0, 0}, {5000}, 160, true},
};

enum {
    SOME_ROWS = 131,
    MANY_ROWS = 270,
    MOST_ROWS = 500,
    MORE_OUTPUTS = 5000,
    MOST_OUTPUTS = 16000
};

/* The double product, and the sum of magnitudes, of every output. */
static void exact_product(const TestTensor *parts, int n_parts, const float *bias, const float *x,
                          int n, int64_t cols, int64_t outputs, float *want, float *size)
{
    for (int r = 0; r < n; r++)
        for (int64_t p = 0, first = 0; p < n_parts; first += parts[p].t.rows, p++)
            for (int64_t o = 0; o < parts[p].t.rows; o++) {
                double sum = bias ? (double)bias[first + o] : 0, all = fabs(sum);
                const float *w = parts[p].value + o * cols;
                for (int64_t k = 0; k < cols; k++) {
                    double v = (double)w[k] * (double)x[r * cols + k];
                    sum += v;
                    all += fabs(v);
                }
                want[r * outputs + first + o] = (float)sum;
                size[r * outputs + first + o] = (float)all;
            }
}

/* A product on the device: n_rows of x, cols each, give outputs each. */
typedef struct Product {
    const Weight *w;
    char *y, *x;
    const void *bias;
    int n_rows, n_parts;
    int64_t cols, outputs;
} Product;

/* In pieces of this many rows, bf16 part by part. small: one piece of ten, over those of all rows at once. */
static void in_pieces(const Product *m, int rows, bool floats)
{
    Err e;
    bool some = on.small && rows < m->n_rows;
    if (some)
        in_pieces(m, m->n_rows, floats);
    for (int r = 0; r < m->n_rows; r += some ? 10 * rows : rows) {
        int n = m->n_rows - r < rows ? m->n_rows - r : rows;
        char *x = m->x + r * m->cols * 2;
        if (floats)
            cuda_case_must(on.cuda->matmul_float(on.dev, (float *)m->y + r * m->outputs, x, m->w,
                                                 m->bias, n, &e),
                           &e);
        else
            for (int p = 0; p < m->n_parts; p++)
                cuda_case_must(
                    on.cuda->matmul(on.dev, m->y + r * m->outputs * 2, x, m->w, p, m->bias, n, &e),
                    &e);
    }
}

static int check_matmul(const MatmulCase *c)
{
    TestTensor parts[MAX_PARTS];
    int n_parts = 0, failed = 0;
    int64_t outputs = 0;
    Err e;
    for (; n_parts < MAX_PARTS && c->rows[n_parts]; n_parts++) {
        parts[n_parts] =
            test_scaled(c->format, c->scales, c->rows[n_parts], c->cols, (uint64_t)n_parts + 7);
        outputs += c->rows[n_parts];
    }
    bool pair = n_parts == 2 && c->rows[0] == c->rows[1];
    Weight *w =
        test_weight(on.cuda, on.dev, pair ? WEIGHT_GATED : WEIGHT_MATMUL, 1, n_parts, parts);
    int n_rows = outputs >= MOST_OUTPUTS   ? MANY_ROWS
                 : outputs >= MORE_OUTPUTS ? MOST_ROWS
                                           : SOME_ROWS;
    float *x = cuda_case_floats(n_rows * c->cols, 11), *bias = test_floats(outputs, 12);
    int64_t n_values = n_rows * outputs;
    float *want = test_alloc((size_t)n_values * sizeof *want),
          *size = test_alloc((size_t)n_values * sizeof *size);
    exact_product(parts, n_parts, bias, x, n_rows, c->cols, outputs, want, size);
    /* A weight that is rounded is off by half a unit of bf16; sums are float32 of up to cols terms.
     */
    for (int64_t i = 0; i < n_values; i++)
        size[i] *= (float)((c->exact ? 0 : BF16_HALF * 1.01) + (double)c->cols * 0x1p-23);
    void *x_dev = cuda_case_rows(&on, x, n_rows * c->cols),
         *bias_dev = cuda_case_bytes(&on, bias, (size_t)outputs * sizeof *bias),
         *y_dev = cuda_case_bytes(&on, want, (size_t)n_values * sizeof *want);
    cuda_case_must(on.cuda->matmul(on.dev, y_dev, x_dev, w, ALL_PARTS, bias_dev, n_rows, &e), &e);
    float *whole = cuda_case_read(&on, y_dev, n_values);
    failed += cuda_case_near(c->name, whole, want, n_values, size, BF16_HALF * 1.01);
    cuda_case_must(on.cuda->matmul_float(on.dev, y_dev, x_dev, w, bias_dev, n_rows, &e), &e);
    float *floats = cuda_case_read_floats(&on, y_dev, n_values);
    failed += cuda_case_near(c->name, floats, want, n_values, size, 0);
    Product m = {w, y_dev, x_dev, bias_dev, n_rows, n_parts, c->cols, outputs};
    const int pieces[] = {1, 5, 70, 131};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        in_pieces(&m, pieces[i], false);
        float *piece = cuda_case_read(&on, y_dev, n_values);
        failed += check_bits(c->name, piece, whole, n_values);
        free(piece);
        in_pieces(&m, pieces[i], true);
        piece = cuda_case_read_floats(&on, y_dev, n_values);
        failed += check_bits(c->name, piece, floats, n_values);
        free(piece);
    }
    on.cuda->release(on.dev, x_dev);
    on.cuda->release(on.dev, bias_dev);
    on.cuda->release(on.dev, y_dev);
    on.cuda->weight_destroy(on.dev, w);
    for (int p = 0; p < n_parts; p++)
        test_tensor_free(&parts[p]);
    free(x);
    free(bias);
    free(want);
    free(size);
    free(whole);
    free(floats);
    return failed;
}

/* Three bf16 planes hold 24 bits: what is left is the rounding of float32 sums. */
static int check_router(void)
{
    enum { EXPERTS = 33, COLS = 200, ROWS = 9 };
    TestTensor t = test_tensor(FORMAT_F32, EXPERTS, COLS, 5);
    Weight *w = test_weight(on.cuda, on.dev, WEIGHT_ROUTER, 1, 1, &t);
    float *x = cuda_case_floats(ROWS * COLS, 6), want[ROWS * EXPERTS], size[ROWS * EXPERTS];
    Err e;
    exact_product(&t, 1, NULL, x, ROWS, COLS, EXPERTS, want, size);
    for (int i = 0; i < ROWS * EXPERTS; i++)
        size[i] *= COLS * 0x1p-24f;
    void *x_dev = cuda_case_rows(&on, x, ROWS * COLS),
         *y_dev = cuda_case_bytes(&on, want, sizeof want);
    cuda_case_must(on.cuda->matmul_float(on.dev, y_dev, x_dev, w, NULL, ROWS, &e), &e);
    float *got = cuda_case_read_floats(&on, y_dev, ROWS * EXPERTS);
    int failed = cuda_case_near("router", got, want, ROWS * EXPERTS, size, 0);
    on.cuda->release(on.dev, x_dev);
    on.cuda->release(on.dev, y_dev);
    on.cuda->weight_destroy(on.dev, w);
    test_tensor_free(&t);
    free(x);
    free(got);
    return failed;
}

/* --- experts --- */

typedef struct FfnCase {
    const char *name;
    FormatId format;
    int hidden, inter, first[4]; /* of three experts */
    ActSpec act;
    bool bias, other_up;
} FfnCase;

static const FfnCase ffn_cases[] = {
    {"silu", FORMAT_BF16, 64, 96, {0, 3, 3, 90}, {ACT_SWIGLU, 1, 0, INFINITY}, false, false},
    {"gpt-oss", FORMAT_MXFP4, 96, 64, {0, 1, 70, 75}, {ACT_SWIGLU, 1.702f, 1, 7}, true, false},
    {"situ", FORMAT_NVFP4, 64, 48, {0, 10, 20, 21}, {ACT_SITU, 0, 2.5f, INFINITY}, false, false},
    {"situ, up bent", FORMAT_BF16, 64, 48, {0, 10, 20, 21}, {ACT_SITU, 0, 2, 3}, true, false},
    {"relu2", FORMAT_BF16, 72, 40, {0, 64, 65, 66}, {ACT_RELU2, 1, 0, INFINITY}, true, false},
    {"own rows for up",
     FORMAT_FP8,
     128,
     128,
     {0, 5, 9, 80},
     {ACT_SWIGLU, 1, 0, INFINITY},
     true,
     true},
    {"odd", FORMAT_BF16, 37, 21, {0, 2, 4, 7}, {ACT_SWIGLU, 1, 0, INFINITY}, true, false},
    {"int4", FORMAT_INT4, 64, 64, {0, 0, 0, 65}, {ACT_SWIGLU, 1, 0, INFINITY}, false, false},
    {"mxfp8", FORMAT_MXFP8, 96, 64, {0, 5, 5, 20}, {ACT_SWIGLU, 1, 0, INFINITY}, true, false},
    {"q8_0", FORMAT_Q8_0, 96, 64, {0, 17, 18, 20}, {ACT_SWIGLU, 1, 0, INFINITY}, true, false},
    {"wide tiles",
     FORMAT_MXFP4,
     288,
     2816,
     {0, 100, 300, 401},
     {ACT_SWIGLU, 1.702f, 1, 7},
     true,
     false},
    /* For pairs of blocks: tiles of 60, 256, 84 and 250 rows; of 256, 160 and 184. The last slabs have
     * some of their outputs. */
    {"many rows, first",
     FORMAT_BF16,
     136,
     2824,
     {0, 60, 400, 650},
     {ACT_SWIGLU, 1.702f, 1, 7},
     true,
     false},
    {"many rows, second",
     FORMAT_MXFP4,
     3488,
     160,
     {0, 256, 416, 600},
     {ACT_SWIGLU, 1, 0, INFINITY},
     true,
     false},
};

static int check_ffn(const FfnCase *c)
{
    enum { EXPERTS = 3, ROWS = 50 };
    bool gated = c->act.kind != ACT_RELU2;
    int per = gated ? 2 : 1, n = c->first[EXPERTS], failed = 0;
    TestTensor w13[EXPERTS * 2], w2[EXPERTS];
    Err e;
    for (int i = 0; i < EXPERTS * per; i++)
        w13[i] = test_tensor(c->format, c->inter, c->hidden, (uint64_t)i + 1);
    for (int i = 0; i < EXPERTS; i++)
        w2[i] = test_tensor(c->format, c->hidden, c->inter, (uint64_t)i + 20);
    CudaExperts both = {.n = EXPERTS,
                        .per = per,
                        .w13 = w13,
                        .w2 = w2,
                        .use = {WEIGHT_GATED, WEIGHT_MATMUL},
                        .bias = c->bias,
                        .host = {.hidden = c->hidden, .inter = c->inter, .act = c->act}};
    cuda_experts_make(&on, &both);
    float *x = cuda_case_floats(ROWS * c->hidden, 31), *up = cuda_case_floats(ROWS * c->hidden, 32);
    int32_t *row_of = test_alloc((size_t)n * sizeof *row_of);
    for (int i = 0; i < n; i++)
        row_of[i] = i * 7 % ROWS;
    float *want = cuda_experts_want(&on, &both, x, c->other_up ? up : NULL, row_of, c->first, n);
    void *x_dev = cuda_case_rows(&on, x, ROWS * c->hidden),
         *up_dev = cuda_case_rows(&on, up, ROWS * c->hidden),
         *y_dev = cuda_case_rows(&on, want, n * c->hidden), *inner = NULL;
    cuda_case_must(on.cuda->alloc(on.dev, on.cuda->ffn_scratch_bytes(on.dev, n, c->inter),
                                  "scratch", &inner, &e),
                   &e);
    int32_t *row_dev = cuda_case_bytes(&on, row_of, (size_t)n * sizeof *row_of),
            *first_dev = cuda_case_bytes(&on, c->first, (EXPERTS + 1) * sizeof *c->first);
    cuda_case_must(on.cuda->ffn(on.dev, y_dev, x_dev, c->other_up ? up_dev : NULL, row_dev,
                                first_dev, EXPERTS, n, &both.dev, inner, &e),
                   &e);
    float *got = cuda_case_read(&on, y_dev, n * c->hidden);
    /* Weights, inner values and results are rounded, each with 0.6 of half a unit on average. */
    failed += cuda_case_l2(c->name, got, want, n * c->hidden, 1.5 * BF16_HALF);
    /* Every pair by itself. */
    for (int i = 0; i < n; i += on.small ? n / 8 + 1 : 1) {
        int32_t first[EXPERTS + 1];
        for (int k = 0; k <= EXPERTS; k++)
            first[k] = c->first[k] > i ? 1 : 0;
        cuda_case_must(on.cuda->upload(on.dev, first_dev, first, sizeof first, &e), &e);
        cuda_case_must(on.cuda->ffn(on.dev, (char *)y_dev + i * c->hidden * 2, x_dev,
                                    c->other_up ? up_dev : NULL, row_dev + i, first_dev, EXPERTS, 1,
                                    &both.dev, inner, &e),
                       &e);
    }
    float *alone = cuda_case_read(&on, y_dev, n * c->hidden);
    failed += check_bits(c->name, alone, got, n * c->hidden);
    void *on_dev[] = {x_dev, up_dev, y_dev, inner, row_dev, first_dev};
    for (size_t i = 0; i < sizeof on_dev / sizeof *on_dev; i++)
        on.cuda->release(on.dev, on_dev[i]);
    cuda_experts_free(&on, &both);
    void *on_host[] = {x, up, row_of, want, got, alone};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    cuda_case_arguments(&on, argc, argv);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cuda_case_due(&on))
            failed += check_matmul(&cases[i]);
    if (cuda_case_due(&on))
        failed += check_router();
    for (size_t i = 0; i < sizeof ffn_cases / sizeof *ffn_cases; i++)
        if (cuda_case_due(&on))
            failed += check_ffn(&ffn_cases[i]);
    cuda_case_close(&on);
    return test_result(failed);
}
