/* tests/kernels/test_matmul.c - matmul against a double-precision sum and, bit for bit, against the
 * chain that the interface promises: over formats, parts, odd sizes, numbers of rows, threads and
 * instruction sets. */
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Case {
    const char *name;
    int64_t cols;
    int n_parts;
    FormatId format[MAX_PARTS];
    int64_t rows[MAX_PARTS];
    bool bias;
    TestScales scales;
} Case;

static const Case cases[] = {
    {"one value", 1, 1, {FORMAT_F32}, {1}, false, {0}},
    {"less than a lane", 3, 1, {FORMAT_BF16}, {5}, true, {0}},
    {"a panel and a bit", 37, 1, {FORMAT_F16}, {17}, true, {0}},
    {"q k v", 65, 3, {FORMAT_BF16, FORMAT_BF16, FORMAT_F32}, {48, 16, 19}, true, {0}},
    {"past a tile", 301, 1, {FORMAT_BF16}, {70}, false, {0}},
    {"mxfp4 block", 32, 1, {FORMAT_MXFP4}, {16}, false, {0}},
    {"mxfp4 odd rows", 96, 2, {FORMAT_MXFP4, FORMAT_MXFP4}, {33, 7}, true, {0}},
    {"mxfp4 past a tile", 288, 1, {FORMAT_MXFP4}, {130}, false, {0}},
    {"all formats",
     64,
     4,
     {FORMAT_MXFP4, FORMAT_F16, FORMAT_F32, FORMAT_BF16},
     {31, 1, 20, 64},
     true,
     {0}},
    {"fp8 tensor", 300, 1, {FORMAT_FP8}, {37}, true, {SCALE_F32, 300, 37}},
    {"fp8 channel", 64, 2, {FORMAT_FP8, FORMAT_FP8}, {33, 5}, true, {SCALE_BF16, 64, 1}},
    {"fp8 block", 299, 1, {FORMAT_FP8}, {150}, false, {SCALE_F32, 128, 128}},
    {"fp8 block of powers of two", 256, 1, {FORMAT_FP8}, {40}, false, {SCALE_E8M0, 128, 32}},
    {"fp8 odd groups", 263, 1, {FORMAT_FP8}, {19}, false, {SCALE_F16, 11, 3}},
    {"fp8 groups of one", 9, 1, {FORMAT_FP8}, {16}, false, {SCALE_F32, 1, 1}},
    {"nvfp4", 272, 2, {FORMAT_NVFP4, FORMAT_NVFP4}, {70, 18}, true, {0}},
    {"nvfp4 groups of 32", 544, 1, {FORMAT_NVFP4}, {33}, false, {SCALE_E4M3, 32, 1}},
    {"nvfp4 last group shorter", 41, 1, {FORMAT_NVFP4}, {17}, false, {0}},
    {"mxfp8", 288, 1, {FORMAT_MXFP8}, {67}, true, {0}},
    {"mxfp8 coarse rows", 64, 1, {FORMAT_MXFP8}, {40}, false, {SCALE_E8M0, 32, 7}},
    {"int4", 320, 1, {FORMAT_INT4}, {65}, true, {0}},
    {"int4 last group shorter", 301, 1, {FORMAT_INT4}, {17}, false, {SCALE_F16, 128, 1}},
    {"int4 whole rows", 290, 1, {FORMAT_INT4}, {21}, false, {SCALE_F32, 290, 1}},
    {"q8_0", 320, 2, {FORMAT_Q8_0, FORMAT_Q8_0}, {65, 3}, true, {0}},
    {"q8_0 padded", 301, 1, {FORMAT_Q8_0}, {17}, false, {0}},
    {"iq2_xs padded", 300, 1, {FORMAT_IQ2_XS}, {17}, false, {0}},
    {"iq2_xxs padded", 513, 1, {FORMAT_IQ2_XXS}, {17}, true, {0}},
    {"iq2_xs", 512, 1, {FORMAT_IQ2_XS}, {37}, false, {0}},
    {"iq2_xxs", 512, 1, {FORMAT_IQ2_XXS}, {37}, true, {0}},
    {"ggml side by side",
     256,
     4,
     {FORMAT_IQ2_XXS, FORMAT_NVFP4, FORMAT_Q8_0, FORMAT_IQ2_XS},
     {31, 1, 20, 64},
     true,
     {0}},
};
static const int row_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 29, 100, 113, 227};
enum { MOST_ROWS = 227, N_COUNTS = sizeof row_counts / sizeof *row_counts };

/* The promised result: chains of fused multiply-adds, then the bias. */
static void expected(const Case *c, const TestTensor *parts, const float *x, const float *bias,
                     int64_t outputs, float *want, double *exact)
{
    for (int r = 0; r < MOST_ROWS; r++) {
        int64_t o = 0;
        for (int p = 0; p < c->n_parts; p++)
            for (int64_t i = 0; i < c->rows[p]; i++, o++) {
                const float *w = parts[p].value + i * c->cols;
                float acc = test_chains(x + r * c->cols, w, c->cols);
                double sum = 0;
                for (int64_t k = 0; k < c->cols; k++)
                    sum += (double)x[r * c->cols + k] * w[k];
                want[r * outputs + o] = bias ? acc + bias[o] : acc;
                exact[r * outputs + o] = sum + (bias ? bias[o] : 0);
            }
    }
}

static int run_case(const BackendOps *ops, const TestBackend *backends, int n_backends,
                    const Case *c)
{
    int failed = 0;
    Err e;
    TestTensor parts[MAX_PARTS];
    int64_t outputs = 0;
    for (int p = 0; p < c->n_parts; p++) {
        parts[p] = test_scaled(c->format[p], c->scales, c->rows[p], c->cols, (uint64_t)(p + 1));
        outputs += c->rows[p];
    }
    float *x = test_floats(MOST_ROWS * c->cols, 77),
          *bias = c->bias ? test_floats(outputs, 78) : NULL;
    float *want = test_alloc((size_t)(MOST_ROWS * outputs) * sizeof *want);
    double *exact = test_alloc((size_t)(MOST_ROWS * outputs) * sizeof *exact);
    expected(c, parts, x, bias, outputs, want, exact);
    failed += check_close(c->name, want, exact, MOST_ROWS * outputs, 2e-6 * sqrt((double)c->cols));
    for (int i = 0; i < n_backends; i++) {
        Weight *w = test_weight(ops, backends[i].b, WEIGHT_MATMUL, 1, c->n_parts, parts);
        for (int j = 0; j < N_COUNTS; j++) {
            int n = row_counts[j],
                skip = MOST_ROWS - n; /* the last rows, so that each count sees other ones */
            if (strncmp(backends[i].name, "scalar", 6) == 0 && n > 15 && n < 113)
                continue; /* slow, and more of the same */
            float *y = test_alloc((size_t)(n * outputs) * sizeof *y);
            failed += check_int(
                c->name,
                ops->matmul(backends[i].b, y, x + skip * c->cols, w, ALL_PARTS, bias, n, &e),
                ST_OK);
            char name[600];
            snprintf(name, sizeof name, "%s, %d rows, %s", c->name, n, backends[i].name);
            failed += check_bits(name, y, want + skip * outputs, n * outputs);
            free(y);
        }
        ops->weight_destroy(backends[i].b, w);
    }
    for (int p = 0; p < c->n_parts; p++)
        test_tensor_free(&parts[p]);
    free(x);
    free(bias);
    free(want);
    free(exact);
    return failed;
}

/* Shapes and scales are checked when weights come in, since they come from files. */
static int test_refusals(const BackendOps *ops, Backend *b)
{
    int failed = 0;
    Err e;
    Weight *w = NULL;
    const struct {
        const char *name;
        WeightPart part;
        int64_t cols;
        const char *says;
    } bad[] = {
        {"no rows", {FORMAT_BF16, 0, 1, SCALE_NONE, 1}, 8, "has 0 rows"},
        {"no inputs", {FORMAT_BF16, 8, 1, SCALE_NONE, 1}, 0, "cannot be a weight"},
        {"half a block", {FORMAT_MXFP4, 8, 32, SCALE_E8M0, 1}, 48, "not whole mxfp4 blocks"},
        {"another group", {FORMAT_MXFP4, 8, 16, SCALE_E8M0, 1}, 64, "not whole mxfp4 blocks"},
        {"a scale of bf16", {FORMAT_BF16, 8, 1, SCALE_F32, 1}, 8, "scales that bf16 has not"},
        {"float scales", {FORMAT_NVFP4, 8, 16, SCALE_F32, 1}, 32, "scales that nvfp4 has not"},
        {"too large",
         {FORMAT_F32, INT32_MAX, 1, SCALE_NONE, 1},
         INT32_MAX,
         "more than any memory holds"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Status st =
            ops->weight_create(b, "bank", WEIGHT_MATMUL, 1, &bad[i].part, 1, bad[i].cols, &w, &e);
        failed += check_true(bad[i].name, st != ST_OK);
        failed += check_has(bad[i].name, e.text, bad[i].says);
    }
    TestTensor t = test_tensor(FORMAT_MXFP4, 20, 64, 5);
    WeightPart part = {FORMAT_MXFP4, 20, 32, SCALE_E8M0, 1};
    failed += check_int(
        "create", ops->weight_create(b, "bank", WEIGHT_MATMUL, 2, &part, 1, 64, &w, &e), ST_OK);
    if (failed)
        return failed;
    failed += check_int("bytes", (int64_t)ops->weight_bytes(w), 2 * (64 + 2 * 2 * 272));
    failed += check_int("no such matrix", ops->weight_set(b, w, 2, 0, &t.t, &e), ST_INPUT);
    failed += check_int("no such part", ops->weight_set(b, w, 0, 1, &t.t, &e), ST_INPUT);
    t.t.rows = 19;
    failed += check_int("other shape", ops->weight_set(b, w, 1, 0, &t.t, &e), ST_INPUT);
    failed += check_has("other shape", e.text, "mxfp4 [19, 64], expected mxfp4 [20, 64]");
    t.t.rows = 20;
    ((uint8_t *)t.scales)[18 * 2 + 1] = 255;
    failed += check_int("NaN scale", ops->weight_set(b, w, 1, 0, &t.t, &e), ST_INPUT);
    failed += check_has("NaN scale", e.text, "matrix 1, part 0, row 18: a block scale is 0xFF");
    ops->weight_destroy(b, w);
    ops->weight_destroy(b, NULL);
    test_tensor_free(&t);
    return failed;
}

/* Codes and scales that mean no number, or that no writer means, are refused with their row. */
static int test_bad_values(const BackendOps *ops, Backend *b)
{
    enum { ROWS = 20, COLS = 256 };
    static const struct {
        const char *name;
        FormatId format;
        ScaleType type;
        int code_row;    /* whose first bytes become code, or -1 */
        uint8_t code[2]; /* of a code, or a block's d */
        int scale_row;   /* whose first scale becomes scale, or -1 */
        uint8_t scale[4];
        float global;
        const char *says;
    } bad[] = {
        {"e4m3 NaN", FORMAT_FP8, SCALE_F32, 3, {0x7f, 0}, -1, {0}, 1, "row 3: a code is 0x7F"},
        {"e4m3 -NaN",
         FORMAT_MXFP8,
         SCALE_E8M0,
         19,
         {0, 0xff},
         -1,
         {0},
         1,
         "row 19: a code is 0x7F"},
        {"both",
         FORMAT_FP8,
         SCALE_F32,
         9,
         {0x7f, 0},
         2,
         {0, 0, 0xc0, 0x7f},
         1,
         "row 2: a scale is not"},
        {"inf scale",
         FORMAT_FP8,
         SCALE_BF16,
         -1,
         {0},
         5,
         {0x80, 0x7f},
         1,
         "row 5: a scale is not finite"},
        {"f16 NaN",
         FORMAT_INT4,
         SCALE_F16,
         -1,
         {0},
         5,
         {1, 0x7c},
         1,
         "row 5: a scale is not finite"},
        {"negative",
         FORMAT_INT4,
         SCALE_BF16,
         -1,
         {0},
         1,
         {0x80, 0xbf},
         1,
         "row 1: a scale is negative"},
        {"signed block scale",
         FORMAT_NVFP4,
         SCALE_E4M3,
         -1,
         {0},
         17,
         {0x80},
         1,
         "row 17: a scale is neg"},
        {"NaN block scale",
         FORMAT_NVFP4,
         SCALE_E4M3,
         -1,
         {0},
         17,
         {0x7f},
         1,
         "row 17: a scale is not"},
        {"too much",
         FORMAT_NVFP4,
         SCALE_E4M3,
         -1,
         {0},
         7,
         {0x7e},
         3e38f,
         "row 7: a scale is not finite"},
        {"global NaN", FORMAT_NVFP4, SCALE_E4M3, -1, {0}, -1, {0}, NAN, "the tensor's scale is "},
        {"global < 0", FORMAT_NVFP4, SCALE_E4M3, -1, {0}, -1, {0}, -1, "the tensor's scale is -1"},
        {"0xff", FORMAT_FP8, SCALE_E8M0, -1, {0}, 6, {0xff}, 1, "row 6: a block scale is 0xFF"},
        {"mx 0xff",
         FORMAT_MXFP8,
         SCALE_E8M0,
         -1,
         {0},
         6,
         {0xff},
         1,
         "row 6: a block scale is 0xFF"},
        {"inf d",
         FORMAT_Q8_0,
         SCALE_NONE,
         0,
         {0, 0x7c},
         -1,
         {0},
         1,
         "row 0: a block's scale is not"},
        {"NaN d",
         FORMAT_IQ2_XS,
         SCALE_NONE,
         16,
         {1, 0xfc},
         -1,
         {0},
         1,
         "row 16: a block's scale is not"},
        {"-inf d",
         FORMAT_IQ2_XXS,
         SCALE_NONE,
         2,
         {0, 0xfc},
         -1,
         {0},
         1,
         "row 2: a block's scale is not"},
    };
    int failed = 0;
    Err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        TestTensor t = test_scaled(bad[i].format, (TestScales){bad[i].type, 0, 1}, ROWS, COLS, i);
        if (bad[i].format == FORMAT_NVFP4 && bad[i].scale[0] == 0x7e) /* one alone is too large */
            memset(t.scales, 0x08, ROWS * COLS / 16);
        Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &t);
        if (bad[i].code_row >= 0)
            memcpy((uint8_t *)t.data + bad[i].code_row * t.t.row_bytes, bad[i].code, 2);
        if (bad[i].scale_row >= 0)
            memcpy((uint8_t *)t.scales + bad[i].scale_row * t.t.scale_row_bytes, bad[i].scale,
                   (size_t)scale_bytes(bad[i].type));
        t.t.global = bad[i].global;
        failed += check_int(bad[i].name, ops->weight_set(b, w, 0, 0, &t.t, &e), ST_INPUT);
        failed += check_has(bad[i].name, e.text, "test: matrix 0, part 0");
        failed += check_has(bad[i].name, e.text, bad[i].says);
        ops->weight_destroy(b, w);
        test_tensor_free(&t);
    }
    /* A bank takes scales of its own grid and type, and coarser ones where its own are float32. */
    TestTensor block = test_scaled(FORMAT_FP8, (TestScales){SCALE_F32, 64, 64}, ROWS, COLS, 1);
    TestTensor whole = test_scaled(FORMAT_FP8, (TestScales){SCALE_BF16, COLS, ROWS}, ROWS, COLS, 2);
    Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &block);
    float *x = test_floats(COLS, 3), y[ROWS];
    failed += check_int("coarser", ops->weight_set(b, w, 0, 0, &whole.t, &e), ST_OK);
    failed += check_int("coarser", ops->matmul(b, y, x, w, ALL_PARTS, NULL, 1, &e), ST_OK);
    for (int o = 0; o < ROWS; o++) {
        float acc = test_chains(x, whole.value + o * COLS, COLS);
        failed += check_near("coarser", y[o], acc, 0);
    }
    whole.t.group = 96;
    failed += check_int("other grid", ops->weight_set(b, w, 0, 0, &whole.t, &e), ST_INPUT);
    failed += check_has("other grid", e.text, "scales of other columns or another type");
    ops->weight_destroy(b, w);
    test_tensor_free(&block);
    test_tensor_free(&whole);
    free(x);
    return failed;
}

/* Steep scales of E4M3 codes, subnormal products, and both ways of NVFP4's global scale. */
static int test_steep(const BackendOps *ops, Backend *b)
{
    enum { ROWS = 40, COLS = 64 };
    static const struct {
        const char *name;
        FormatId format;
        ScaleType type;
        float low, high; /* what scales are multiplied by, row by row, in 2^ steps */
        float global;
        bool divides;
    } steep[] = {
        {"fp8 huge", FORMAT_FP8, SCALE_F32, 0x1p8f, 0x1p120f, 0, false},
        {"fp8 tiny", FORMAT_FP8, SCALE_F32, 0x1p-130f, 0x1p-110f, 0, false},
        {"nvfp4 tiny", FORMAT_NVFP4, SCALE_E4M3, 1, 1, 0x1.3p-140f, false},
        {"nvfp4 divides", FORMAT_NVFP4, SCALE_E4M3, 1, 1, 1234.567f, true},
        {"int4 tiny", FORMAT_INT4, SCALE_F32, 0x1p-146f, 0x1p-120f, 0, false},
        {"mxfp8 all", FORMAT_MXFP8, SCALE_E8M0, 0, 0, 0, false},
    };
    int failed = 0;
    Err e;
    for (size_t i = 0; i < sizeof steep / sizeof *steep; i++) {
        TestTensor t =
            test_scaled(steep[i].format, (TestScales){steep[i].type, 32, 1}, ROWS, COLS, i);
        for (int r = 0; r < ROWS; r++)
            for (int g = 0; g < 2; g++) {
                if (steep[i].type == SCALE_F32) {
                    float f = steep[i].low * powf(steep[i].high / steep[i].low, (float)r / ROWS);
                    ((float *)t.scales)[2 * r + g] *= f;
                } else if (steep[i].type == SCALE_E8M0) {
                    ((uint8_t *)t.scales)[2 * r + g] = (uint8_t)((2 * r + g) * 3);
                }
            }
        if (steep[i].global != 0)
            t.t.global = steep[i].global;
        t.t.global_divides = steep[i].divides;
        test_tensor_decode(&t);
        Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &t);
        TestTensor plain = {.t = quant_plain(FORMAT_F32, t.value, ROWS, COLS)};
        Weight *f = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &plain);
        float *x = test_floats(9 * COLS, 13), y[9 * ROWS], want[9 * ROWS];
        for (int n = 1; n <= 9; n += 4) {
            failed += check_int("f32", ops->matmul(b, want, x, f, ALL_PARTS, NULL, n, &e), ST_OK);
            failed += check_int("steep", ops->matmul(b, y, x, w, ALL_PARTS, NULL, n, &e), ST_OK);
            failed += check_bits(steep[i].name, y, want, n * ROWS);
        }
        ops->weight_destroy(b, w);
        ops->weight_destroy(b, f);
        test_tensor_free(&t);
        free(x);
    }
    return failed;
}

/* A bank of a stacked, transposed tensor whose gate and up rows alternate, as ModelOpt writes
 * gpt_oss: [cols / unit, rows] codes, [cols / group, rows] scales. */
static int test_turned(const BackendOps *ops, Backend *b)
{
    enum { ROWS = 2 * 19, COLS = 96 };
    static const FormatId formats[] = {FORMAT_FP8, FORMAT_MXFP8, FORMAT_NVFP4, FORMAT_MXFP4,
                                       FORMAT_INT4};
    int failed = 0;
    Err e;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        TestTensor t = test_scaled(formats[i], (TestScales){SCALE_NONE, 0, 1}, ROWS, COLS, i + 3);
        int64_t units = t.t.row_bytes, groups = t.t.scale_row_bytes / t.t.scale_col_bytes;
        size_t size = (size_t)t.t.scale_col_bytes;
        uint8_t *codes = test_alloc((size_t)(units * ROWS));
        uint8_t *scales = test_alloc((size_t)(groups * ROWS) * size);
        for (int r = 0; r < ROWS; r++) {
            for (int64_t k = 0; k < units; k++)
                codes[k * ROWS + r] = ((uint8_t *)t.data)[r * units + k];
            for (int64_t g = 0; g < groups; g++)
                memcpy(scales + (size_t)(g * ROWS + r) * size,
                       (uint8_t *)t.scales + (size_t)(r * groups + g) * size, size);
        }
        TestTensor parts[2];
        for (int p = 0; p < 2; p++) {
            parts[p] = t;
            QuantTensor *q = &parts[p].t;
            q->rows = ROWS / 2;
            q->data = codes + p;
            q->row_bytes = 2;
            q->unit_stride = ROWS;
            q->scales = scales + (size_t)p * size;
            q->scale_row_bytes = 2 * (int64_t)size;
            q->scale_col_bytes = ROWS * (int64_t)size;
        }
        Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 2, parts);
        float *x = test_floats(7 * COLS, 13), y[7][ROWS];
        for (int n = 1; n <= 7; n += 6) {
            failed += check_int("turned", ops->matmul(b, y, x, w, ALL_PARTS, NULL, n, &e), ST_OK);
            for (int r = 0; r < n; r++)
                for (int o = 0; o < ROWS; o++) {
                    const float *value = t.value + (o % (ROWS / 2) * 2 + o / (ROWS / 2)) * COLS;
                    float acc = test_chains(x + r * COLS, value, COLS);
                    failed += check_near(quant_format(formats[i])->name, y[r][o], acc, 0);
                }
        }
        ops->weight_destroy(b, w);
        test_tensor_free(&t);
        free(codes);
        free(scales);
        free(x);
    }
    /* Rows from the middle of a block of rows that share scales. */
    TestTensor all = test_scaled(FORMAT_FP8, (TestScales){SCALE_F32, 32, 10}, 45, COLS, 5),
               cut = all;
    cut.t = quant_rows(&all.t, 7, 21);
    Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &cut);
    float *x = test_floats(COLS, 14), y[21];
    failed += check_int("cut", ops->matmul(b, y, x, w, ALL_PARTS, NULL, 1, &e), ST_OK);
    for (int o = 0; o < 21; o++) {
        float acc = test_chains(x, all.value + (7 + o) * COLS, COLS);
        failed += check_near("cut", y[o], acc, 0);
    }
    ops->weight_destroy(b, w);
    test_tensor_free(&all);
    free(x);
    return failed;
}

/* Interleaved rows and transposed storage are read where they lie. */
static int test_strides(const BackendOps *ops, Backend *b)
{
    enum { ROWS = 21, COLS = 50, N = 9 };
    int failed = 0;
    Err e;
    TestTensor all = test_tensor(FORMAT_BF16, 2 * ROWS, COLS, 9),
               turned = test_tensor(FORMAT_F32, COLS, ROWS, 10);
    float *x = test_floats(N * COLS, 11), y[N][ROWS];
    for (int which = 0; which < 2; which++) {
        TestTensor view = which ? turned : all;
        view.t.rows = ROWS;
        view.t.cols = COLS;
        if (which) {
            view.t.row_bytes = turned.t.unit_stride;
            view.t.unit_stride = turned.t.row_bytes;
        } else { /* rows 1, 3, 5, ... */
            view.t.data += view.t.row_bytes;
            view.t.row_bytes *= 2;
        }
        Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &view);
        failed += check_int("matmul", ops->matmul(b, y, x, w, ALL_PARTS, NULL, N, &e), ST_OK);
        for (int r = 0; r < N; r++)
            for (int o = 0; o < ROWS; o++) {
                float row[COLS];
                for (int k = 0; k < COLS; k++)
                    row[k] = which ? turned.value[k * ROWS + o] : all.value[(2 * o + 1) * COLS + k];
                float acc = test_chains(x + r * COLS, row, COLS);
                failed += check_near(which ? "transposed" : "interleaved", y[r][o], acc, 0);
            }
        ops->weight_destroy(b, w);
    }
    test_tensor_free(&all);
    test_tensor_free(&turned);
    free(x);
    return failed;
}

/* Every scale byte but NaN, and code 8 (-0), next to the decoded values as float32. */
static int test_mxfp4_scales(const BackendOps *ops, Backend *b)
{
    enum { ROWS = 255, COLS = 64 };
    int failed = 0;
    Err e;
    TestTensor t = test_tensor(FORMAT_MXFP4, ROWS, COLS, 12);
    uint8_t *scales = t.scales;
    for (int r = 0; r < ROWS; r++)
        scales[2 * r] = scales[2 * r + 1] = (uint8_t)r;
    for (int r = 0; r < ROWS; r++)
        t.t.format->decode(&t.t, r, 0, COLS, t.value + r * COLS);
    TestTensor plain = {.t = quant_plain(FORMAT_F32, t.value, ROWS, COLS)};
    TestTensor common = t, zeros = t; /* scales that the fast way decodes, and blocks of zeros */
    common.t.rows = 251;
    common.t.data += 2 * t.t.row_bytes;
    common.t.scales += 2 * t.t.scale_row_bytes;
    uint8_t nothing[ROWS * COLS / 2] = {0};
    nothing[5] = 0x80;
    zeros.t.data = nothing;
    float *x = test_floats(9 * COLS, 13), *y = test_alloc(9 * ROWS * sizeof *y);
    float *want = test_alloc(9 * ROWS * sizeof *want);
    Weight *w = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &t);
    Weight *f = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &plain);
    Weight *c = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &common);
    Weight *z = test_weight(ops, b, WEIGHT_MATMUL, 1, 1, &zeros);
    for (int n = 1; n <= 9; n++) {
        failed += check_int("f32", ops->matmul(b, want, x, f, ALL_PARTS, NULL, n, &e), ST_OK);
        failed += check_int("mxfp4", ops->matmul(b, y, x, w, ALL_PARTS, NULL, n, &e), ST_OK);
        failed += check_bits("all scales", y, want, n * ROWS);
        failed += check_int("mxfp4", ops->matmul(b, y, x, c, ALL_PARTS, NULL, n, &e), ST_OK);
        for (int r = 0; r < n; r++)
            failed += check_bits("common scales", y + r * 251, want + r * ROWS + 2, 251);
        failed += check_int("mxfp4", ops->matmul(b, y, x, z, ALL_PARTS, NULL, n, &e), ST_OK);
        for (int i = 0; i < n * ROWS; i++)
            failed += check_true("zeros", y[i] == 0);
    }
    ops->weight_destroy(b, w);
    ops->weight_destroy(b, f);
    ops->weight_destroy(b, c);
    ops->weight_destroy(b, z);
    test_tensor_free(&t);
    free(x);
    free(y);
    free(want);
    return failed;
}

static int test_names(void)
{
    int failed = 0;
    Err e;
    IsaLevel isa;
    failed += check_int("auto", isa_parse("auto", &isa, &e), ST_OK);
    failed += check_int("auto is the best", isa, isa_best());
    failed += check_int("scalar", isa_parse("scalar", &isa, &e), ST_OK);
    failed += check_int("scalar", isa, ISA_SCALAR);
    failed += check_int("unknown", isa_parse("sse9", &isa, &e), ST_USAGE);
    failed += check_has("unknown", e.text, "unknown instruction set \"sse9\"");
    if (isa_best() < ISA_AVX512) {
        failed += check_int("lacking", isa_parse("avx512", &isa, &e), ST_USAGE);
        BackendConfig config = {.isa = ISA_AVX512};
        Backend *b = NULL;
        failed += check_int("lacking", backend_find("cpu")->create(&config, &b, &e), ST_USAGE);
    }
    failed += check_true("no such backend", backend_find("abacus") == NULL);
    return failed;
}

int main(void)
{
    const BackendOps *ops = backend_find("cpu");
    TestBackend backends[MAX_TEST_BACKENDS];
    int n = test_backends(ops, backends), failed = test_names();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += run_case(ops, backends, n, &cases[i]);
    failed += test_refusals(ops, backends[0].b) + test_bad_values(ops, backends[0].b);
    for (int i = 0; i < n; i++)
        failed += test_strides(ops, backends[i].b) + test_mxfp4_scales(ops, backends[i].b) +
                  test_steep(ops, backends[i].b) + test_turned(ops, backends[i].b);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
