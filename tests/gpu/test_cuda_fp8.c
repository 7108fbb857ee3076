/* tests/gpu/test_cuda_fp8.c - rows and weights multiplied as E4M3 codes: the
 * rows' codes against the CPU's bits, products against float64, experts against
 * the CPU's, and the same bits in any batch.
 * Usage: test_cuda_fp8 [small [PART PARTS]]: for compute-sanitizer, fewer batches. */
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CudaCase on;

static const RowFormat as_static = {ROWS_FP8_STATIC, 0.0021f, false},
                       by_token = {ROWS_FP8_TOKEN, 0, false}, by_group = {ROWS_FP8_GROUP, 0, false},
                       by_power = {ROWS_FP8_GROUP, 0, true};

/* Codes and scales stand apart in what code_rows makes; the rest is zeros. */
static int check_codes(const char *name, const RowFormat *f, int width)
{
    enum { ROWS = 7 };
    int64_t n = (int64_t)ROWS * width, bytes = (int64_t)on.cuda->code_row_bytes(f->scheme, width),
            wire = row_encoded_bytes(f->scheme, width), padded = (width + 127) / 128 * 128,
            scales = f->scheme == ROWS_FP8_GROUP   ? (width + 127) / 128 * 4
                     : f->scheme == ROWS_FP8_TOKEN ? 4
                                                   : 0;
    float *x = cuda_case_floats(n, 5);
    uint8_t *want = test_alloc((size_t)(ROWS * bytes)), *got = test_alloc((size_t)(ROWS * bytes)),
            *row = test_alloc((size_t)wire);
    Err e;
    int failed = 0;
    memset(want, 0, (size_t)(ROWS * bytes));
    for (int64_t i = 0; i < n; i++) /* rows of zeros, of one value, of sizes that saturate */
        x[i] *= i / width == 1 ? 0 : i / width == 2 && i % width ? 0 : i / width == 3 ? 1024 : 1;
    for (int r = 0; r < ROWS; r++) {
        row_encode(f, x + r * width, width, row);
        memcpy(want + r * bytes, row, (size_t)width);
        memcpy(want + r * bytes + padded, row + (width + 3) / 4 * 4, (size_t)scales);
    }
    void *x_dev = cuda_case_rows(&on, x, n),
         *coded = cuda_case_bytes(&on, got, (size_t)(ROWS * bytes));
    cuda_case_must(on.cuda->code_rows(on.dev, coded, x_dev, ROWS, width, f, &e), &e);
    cuda_case_must(on.cuda->download(on.dev, got, coded, (size_t)(ROWS * bytes), &e), &e);
    for (int64_t i = 0; i < ROWS * bytes && !failed; i++)
        if (got[i] != want[i]) {
            fprintf(stderr, "%s: row %lld, byte %lld is %02x, want %02x\n", name,
                    (long long)(i / bytes), (long long)(i % bytes), got[i], want[i]);
            failed = 1;
        }
    on.cuda->release(on.dev, x_dev);
    on.cuda->release(on.dev, coded);
    free(x);
    free(want);
    free(got);
    free(row);
    return failed;
}

static int check_rows(void)
{
    int failed = check_codes("static", &as_static, 256);
    failed += check_codes("static, odd", &as_static, 333);
    failed += check_codes("per token", &by_token, 2048);
    failed += check_codes("per token, odd", &by_token, 201);
    failed += check_codes("per 128", &by_group, 1536);
    failed += check_codes("per 128, the last shorter", &by_group, 1400);
    failed += check_codes("per 128, powers of two", &by_power, 264);
    return failed;
}

/* --- linear layers --- */

typedef struct MatmulCase {
    const char *name;
    TestScales scales;
    const RowFormat *rows;
    int64_t outputs[MAX_PARTS], cols; /* 0 ends the parts */
    bool bias;
} MatmulCase;

static const MatmulCase matmul_cases[] = {
    {"tensor, static", {SCALE_F32, TEST_ALL, TEST_ALL}, &as_static, {256, 64}, 512, true},
    {"row, per token", {SCALE_BF16, TEST_ALL, 1}, &by_token, {192}, 320, false},
    {"blocks, per 128", {SCALE_F32, 128, 128}, &by_group, {256, 128, 16}, 640, true},
    {"blocks, last ones shorter", {SCALE_F32, 128, 128}, &by_group, {208, 176}, 456, true},
    {"row, per 128", {SCALE_F32, TEST_ALL, 1}, &by_power, {48}, 256, false},
    {"blocks, per token", {SCALE_F32, 128, 128}, &by_token, {272}, 1024, true},
    /* enough outputs for tiles whose tokens are the other side of the product
     */
    {"many outputs", {SCALE_F32, TEST_ALL, TEST_ALL}, &as_static, {4096, 272}, 384, true},
    {"many outputs, blocks", {SCALE_F32, 128, 128}, &by_group, {4096, 272}, 384, true},
};

enum { MOST_ROWS = 1000 };

/* Of a sample of outputs the float64 product of what the codes say, and the sum
 * of magnitudes. */
typedef struct Sample {
    int row, output;
    double want, size;
} Sample;

static void fill_sample(Sample *s, int n, const TestTensor *parts, int n_parts, const float *x,
                        int64_t cols, int64_t outputs, const float *bias)
{
    uint64_t seed = 77;
    for (int i = 0; i < n; i++) {
        int row = (int)(test_random(&seed) % MOST_ROWS),
            output = (int)(test_random(&seed) % (uint32_t)outputs), o = output, p = 0;
        for (; p + 1 < n_parts && o >= parts[p].t.rows; p++)
            o -= (int)parts[p].t.rows;
        s[i] = (Sample){row, output, bias ? (double)bias[output] : 0, 0};
        for (int64_t k = 0; k < cols; k++) {
            double v = (double)parts[p].value[o * cols + k] * (double)x[row * cols + k];
            s[i].want += v;
            s[i].size += fabs(v);
        }
    }
}

static int check_matmul(const MatmulCase *c)
{
    enum { SAMPLES = 1000 };
    TestTensor parts[MAX_PARTS];
    WeightPart shapes[MAX_PARTS];
    int n_parts = 0, failed = 0;
    int64_t outputs = 0, n = MOST_ROWS * c->cols;
    Err e;
    for (; n_parts < MAX_PARTS && c->outputs[n_parts]; n_parts++) {
        parts[n_parts] =
            test_scaled(FORMAT_FP8, c->scales, c->outputs[n_parts], c->cols, (uint64_t)n_parts + 7);
        shapes[n_parts] = weight_part(&parts[n_parts].t);
        outputs += c->outputs[n_parts];
    }
    if (!on.cuda->takes_codes(on.dev, shapes, n_parts, c->cols, c->rows)) {
        fprintf(stderr, "%s: is not taken\n", c->name);
        return 1;
    }
    Weight *w = test_weight(on.cuda, on.dev, WEIGHT_CODED, 1, n_parts, parts);
    float *x = cuda_case_floats(n, 11), *rounded = test_alloc((size_t)n * sizeof *rounded),
          *bias = test_floats(outputs, 12);
    for (int r = 0; r < MOST_ROWS; r++)
        row_round(c->rows, x + r * c->cols, c->cols, rounded + r * c->cols);
    static Sample sample[SAMPLES];
    fill_sample(sample, SAMPLES, parts, n_parts, rounded, c->cols, outputs, c->bias ? bias : NULL);
    size_t row_bytes = on.cuda->code_row_bytes(c->rows->scheme, c->cols);
    void *x_dev = cuda_case_rows(&on, x, n),
         *bias_dev = cuda_case_bytes(&on, bias, (size_t)outputs * sizeof *bias), *coded = NULL,
         *y_dev = NULL;
    cuda_case_must(on.cuda->alloc(on.dev, MOST_ROWS * row_bytes, "codes", &coded, &e), &e);
    cuda_case_must(on.cuda->alloc(on.dev, (size_t)(MOST_ROWS * outputs * 2), "y", &y_dev, &e), &e);
    const float *with = c->bias ? bias_dev : NULL;
    cuda_case_must(on.cuda->code_rows(on.dev, coded, x_dev, MOST_ROWS, (int)c->cols, c->rows, &e),
                   &e);
    cuda_case_must(on.cuda->matmul_codes(on.dev, y_dev, coded, w, with, MOST_ROWS, c->rows, &e),
                   &e);
    float *whole = cuda_case_read(&on, y_dev, MOST_ROWS * outputs);
    for (int i = 0; i < SAMPLES; i++) {
        /* Tensor cores keep 13 bits of what they add up of 128 products. */
        double got = (double)whole[sample[i].row * outputs + sample[i].output],
               slack = sample[i].size * 0x1p-12 + fabs(sample[i].want) * BF16_HALF * 1.01;
        if (!(fabs(got - sample[i].want) <= slack)) {
            fprintf(stderr, "%s: row %d, output %d is %g, want %g +- %g\n", c->name, sample[i].row,
                    sample[i].output, got, sample[i].want, slack);
            failed++;
            break;
        }
    }
    const int pieces[] = {1, 7, 8, 9, 16, 17, 64, 65, 129, 300};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        int first = (int)(i * 61), k = pieces[i];
        cuda_case_must(on.cuda->matmul_codes(on.dev, y_dev,
                                             (char *)coded + (size_t)first * row_bytes, w, with, k,
                                             c->rows, &e),
                       &e);
        float *piece = cuda_case_read(&on, y_dev, k * outputs);
        failed += check_bits(c->name, piece, whole + first * outputs, k * outputs);
        free(piece);
    }
    void *on_dev[] = {x_dev, bias_dev, coded, y_dev};
    for (size_t i = 0; i < sizeof on_dev / sizeof *on_dev; i++)
        on.cuda->release(on.dev, on_dev[i]);
    on.cuda->weight_destroy(on.dev, w);
    for (int p = 0; p < n_parts; p++)
        test_tensor_free(&parts[p]);
    free(x);
    free(rounded);
    free(bias);
    free(whole);
    return failed;
}

/* --- experts --- */

typedef struct FfnCase {
    const char *name;
    TestScales scales;
    const RowFormat *rows, *inner;
    int hidden, inter, first[4]; /* of three experts */
    ActSpec act;
    bool bias;
    FormatId second; /* of W2 */
} FfnCase;

static const RowFormat inner_static = {ROWS_FP8_STATIC, 0.003f, false},
                       none = {ROWS_AS_THEY_ARE, 0, false};

static const FfnCase ffn_cases[] = {
    {"static",
     {SCALE_F32, TEST_ALL, TEST_ALL},
     &as_static,
     &inner_static,
     256,
     208,
     {0, 5, 5, 75},
     {ACT_SWIGLU, 1, 0, INFINITY},
     false,
     FORMAT_FP8},
    {"blocks",
     {SCALE_F32, 128, 128},
     &by_group,
     &by_group,
     384,
     256,
     {0, 400, 401, 690},
     {ACT_SWIGLU, 1, 0, INFINITY},
     false,
     FORMAT_FP8},
    {"gpt-oss",
     {SCALE_F32, TEST_ALL, 1},
     &by_token,
     &by_token,
     320,
     160,
     {0, 1, 70, 75},
     {ACT_SWIGLU, 1.702f, 1, 7},
     true,
     FORMAT_FP8},
    {"static, many rows",
     {SCALE_F32, TEST_ALL, TEST_ALL},
     &as_static,
     &inner_static,
     256,
     336,
     {0, 300, 310, 700},
     {ACT_SWIGLU, 1.702f, 1, 7},
     true,
     FORMAT_FP8},
    {"static, many outputs",
     {SCALE_F32, TEST_ALL, TEST_ALL},
     &as_static,
     &inner_static,
     256,
     3088,
     {0, 300, 310, 700},
     {ACT_SWIGLU, 1, 0, INFINITY},
     true,
     FORMAT_FP8},
    {"blocks, many outputs",
     {SCALE_F32, 128, 128},
     &by_group,
     &by_group,
     256,
     3088,
     {0, 300, 310, 700},
     {ACT_SWIGLU, 1, 0, INFINITY},
     false,
     FORMAT_FP8},
    {"situ",
     {SCALE_F32, 128, 128},
     &by_power,
     &by_power,
     256,
     128,
     {0, 10, 20, 21},
     {ACT_SITU, 0, 2, 3},
     true,
     FORMAT_FP8},
    {"relu2",
     {SCALE_F32, TEST_ALL, TEST_ALL},
     &as_static,
     &inner_static,
     256,
     144,
     {0, 64, 65, 360},
     {ACT_RELU2, 1, 0, INFINITY},
     true,
     FORMAT_FP8},
    {"W2 of another format",
     {SCALE_F32, TEST_ALL, TEST_ALL},
     &as_static,
     &none,
     256,
     128,
     {0, 9, 40, 40},
     {ACT_SWIGLU, 1, 0, INFINITY},
     true,
     FORMAT_BF16},
};

enum { EXPERTS = 3, TOKENS = 50 };

/* Runs the experts on the device over pairs from .. from + n - 1 of the case.
 */
static void run_ffn(const FfnCase *c, const FfnSpec *spec, const void *coded, const int32_t *row_of,
                    int from, int n, void *y, void *scratch)
{
    int32_t first[EXPERTS + 1];
    Err e;
    for (int i = 0; i <= EXPERTS; i++) {
        int at = c->first[i] - from;
        first[i] = at < 0 ? 0 : at > n ? n : at;
    }
    void *first_dev = cuda_case_bytes(&on, first, sizeof first);
    cuda_case_must(on.cuda->ffn(on.dev, y, coded, NULL, row_of + from, first_dev, EXPERTS, n, spec,
                                scratch, &e),
                   &e);
    cuda_case_must(on.cuda->wait(on.dev, &e), &e);
    on.cuda->release(on.dev, first_dev);
}

static int check_ffn(const FfnCase *c)
{
    int per = c->act.kind == ACT_RELU2 ? 1 : 2, n = c->first[EXPERTS], failed = 0;
    TestTensor w13[EXPERTS * 2], w2[EXPERTS];
    Err e;
    for (int i = 0; i < EXPERTS * per; i++)
        w13[i] = test_scaled(FORMAT_FP8, c->scales, c->inter, c->hidden, (uint64_t)i + 1);
    for (int i = 0; i < EXPERTS; i++)
        w2[i] = c->second == FORMAT_FP8
                    ? test_scaled(c->second, c->scales, c->hidden, c->inter, (uint64_t)i + 20)
                    : test_tensor(c->second, c->hidden, c->inter, (uint64_t)i + 20);
    CudaExperts both = {
        .n = EXPERTS,
        .per = per,
        .w13 = w13,
        .w2 = w2,
        .use = {WEIGHT_CODED, c->second == FORMAT_FP8 ? WEIGHT_CODED : WEIGHT_MATMUL},
        .bias = c->bias,
        .host = {.hidden = c->hidden, .inter = c->inter, .act = c->act, .inner = *c->inner}};
    cuda_experts_make(&on, &both);
    both.dev.rows = *c->rows;
    int64_t n_x = (int64_t)TOKENS * c->hidden, n_y = (int64_t)n * c->hidden;
    float *x = cuda_case_floats(n_x, 31), *rounded = test_alloc((size_t)n_x * sizeof *rounded);
    int32_t *row_of = test_alloc((size_t)n * sizeof *row_of);
    for (int i = 0; i < n; i++)
        row_of[i] = i * 7 % TOKENS;
    for (int r = 0; r < TOKENS; r++)
        row_round(c->rows, x + r * c->hidden, c->hidden, rounded + r * c->hidden);
    float *want = cuda_experts_want(&on, &both, rounded, NULL, row_of, c->first, n);
    void *row_dev = cuda_case_bytes(&on, row_of, (size_t)n * sizeof *row_of),
         *x_dev = cuda_case_rows(&on, x, n_x), *y_dev = cuda_case_rows(&on, want, n_y),
         *coded = NULL, *scratch = NULL;
    cuda_case_must(on.cuda->alloc(on.dev,
                                  TOKENS * on.cuda->code_row_bytes(c->rows->scheme, c->hidden),
                                  "codes", &coded, &e),
                   &e);
    cuda_case_must(on.cuda->alloc(on.dev, on.cuda->ffn_scratch_bytes(on.dev, n, c->inter),
                                  "scratch", &scratch, &e),
                   &e);
    cuda_case_must(on.cuda->code_rows(on.dev, coded, x_dev, TOKENS, c->hidden, c->rows, &e), &e);
    run_ffn(c, &both.dev, coded, row_dev, 0, n, y_dev, scratch);
    float *got = cuda_case_read(&on, y_dev, n_y);
    /* Inner products that are rounded to bf16 before they are coded take the
   * other one of two codes now and then, which moves normally distributed ones
   * by 0.011 to 0.017, relative L2. */
    failed += cuda_case_l2(c->name, got, want, n_y, 0.025);
    const int pieces[] = {1, 8, 17, 65, 130};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        for (int from = 0; from < n; from += on.small ? n : n / 5 + 1) {
            int k = n - from < pieces[i] ? n - from : pieces[i];
            run_ffn(c, &both.dev, coded, row_dev, from, k, y_dev, scratch);
            float *piece = cuda_case_read(&on, y_dev, (int64_t)k * c->hidden);
            failed +=
                check_bits(c->name, piece, got + (int64_t)from * c->hidden, (int64_t)k * c->hidden);
            free(piece);
        }
    void *on_dev[] = {row_dev, x_dev, y_dev, coded, scratch};
    for (size_t i = 0; i < sizeof on_dev / sizeof *on_dev; i++)
        on.cuda->release(on.dev, on_dev[i]);
    cuda_experts_free(&on, &both);
    void *on_host[] = {x, rounded, want, row_of, got};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    return failed;
}

/* --- what is not taken --- */

static int check_taken(void)
{
    static const struct {
        const char *name;
        WeightPart part;
        int64_t cols;
        const RowFormat *rows;
        int want;
    } cases[] = {
        {"a row", {FORMAT_FP8, 64, 512, SCALE_F32, 1}, 512, &by_token, 1},
        {"a block", {FORMAT_FP8, 64, 128, SCALE_F32, 128}, 512, &by_group, 1},
        {"rows that are no multiple", {FORMAT_FP8, 72, 512, SCALE_F32, 1}, 512, &by_token, 0},
        {"blocks of 64 columns", {FORMAT_FP8, 64, 64, SCALE_F32, 128}, 512, &by_group, 0},
        {"groups of a row", {FORMAT_FP8, 64, 128, SCALE_F32, 1}, 512, &by_group, 0},
        {"mxfp8", {FORMAT_MXFP8, 64, 32, SCALE_E8M0, 1}, 512, &by_group, 0},
        {"rows of bf16", {FORMAT_FP8, 64, 512, SCALE_F32, 1}, 512, &none, 0},
        {"codes longer than rows", {FORMAT_FP8, 64, 40, SCALE_F32, 1}, 40, &by_token, 0},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed +=
            check_int(cases[i].name,
                      on.cuda->takes_codes(on.dev, &cases[i].part, 1, cases[i].cols, cases[i].rows),
                      cases[i].want);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    cuda_case_arguments(&on, argc, argv);
    WeightPart plain = {FORMAT_FP8, 64, 512, SCALE_F32, 1};
    if (!on.cuda->takes_codes(on.dev, &plain, 1, 512, &by_token)) {
        printf("skipped: this GPU has no kernel for products of codes\n");
        cuda_case_close(&on);
        return 77;
    }
    failed += check_taken();
    failed += check_rows();
    for (size_t i = 0; i < sizeof matmul_cases / sizeof *matmul_cases; i++)
        if (cuda_case_due(&on))
            failed += check_matmul(&matmul_cases[i]);
    for (size_t i = 0; i < sizeof ffn_cases / sizeof *ffn_cases; i++)
        if (cuda_case_due(&on))
            failed += check_ffn(&ffn_cases[i]);
    cuda_case_close(&on);
    return test_result(failed);
}
