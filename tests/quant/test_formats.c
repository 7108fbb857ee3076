/* tests/quant/test_formats.c - decoders against the worked vectors of formats.md, gguf's blocks,
 * and layouts: partial blocks, transposes, interleaved rows, matrices that begin inside a block
 * of rows. */
#include "quant/tensor.h"
#include "tests/support/check.h"
#include "tests/support/files.h"
#include "tests/support/quant_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* formats.md 2.9: scale byte 121, bytes 10 32 ... FE give all sixteen codes in order, times 2^-6.
 */
static int test_mxfp4(void)
{
    enum { ROWS = 3, COLS = 64 };
    int failed = 0;
    uint8_t data[ROWS][COLS / 2], scales[ROWS][COLS / 32];
    static const uint8_t vector[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < COLS / 2; j++)
            data[r][j] = vector[j % 8];
    for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < COLS / 32; g++)
            scales[r][g] = (uint8_t)(121 + r * 2 + g);
    const QuantFormat *f = quant_format(FORMAT_MXFP4);
    QuantTensor t = {.format = f,
                     .rows = ROWS,
                     .cols = COLS,
                     .data = data[0],
                     .row_bytes = COLS / 2,
                     .unit_stride = 1,
                     .scales = scales[0],
                     .scale_type = SCALE_E8M0,
                     .group = 32,
                     .scale_rows = 1,
                     .scale_col_bytes = 1,
                     .scale_row_bytes = COLS / 32};
    float out[COLS];
    for (int r = 0; r < ROWS; r++) {
        f->decode(&t, r, 0, COLS, out);
        for (int k = 0; k < COLS; k++) {
            float want = e2m1_to_float((unsigned)k % 16) * ldexpf(1.0f, -6 + r * 2 + k / 32);
            failed += check_int("mxfp4 value", bits_of(out[k]), bits_of(want));
        }
    }
    f->decode(&t, 2, 31, 3, out); /* from the last of one block into the next */
    failed += check_near("mxfp4 offset, 31", out[0], -6.0 * 0x1p-2, 0);
    failed += check_near("mxfp4 offset, 33", out[2], 0.5 * 0x1p-1, 0);

    /* Interleaved gate and up rows are seen with a doubled stride. */
    t.row_bytes *= 2;
    t.scale_row_bytes *= 2;
    t.rows = 2;
    f->decode(&t, 1, 3, 1, out);
    failed += check_near("mxfp4 every other row", out[0], 1.5 * 0x1p-2, 0);
    failed += check_int("mxfp4 row bytes", quant_row_bytes(f, 2880, 32, SCALE_E8M0), 90 * 17);
    return failed;
}

static int test_plain(void)
{
    enum { ROWS = 3, COLS = 5 };
    int failed = 0;
    float f32[ROWS * COLS], out[COLS];
    uint16_t bf16[ROWS * COLS], f16[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) {
        f32[i] = (float)(i - 7);
        bf16[i] = float_to_bf16(f32[i]);
        f16[i] = (uint16_t)(0x3c00 + i); /* 1 + i/1024 */
    }
    const struct {
        FormatId id;
        const char *name;
        const void *data;
        int64_t row_bytes;
    } cases[] = {{FORMAT_F32, "f32", f32, 20},
                 {FORMAT_BF16, "bf16", bf16, 10},
                 {FORMAT_F16, "f16", f16, 10}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        QuantTensor t = quant_plain(cases[c].id, cases[c].data, ROWS, COLS);
        failed += check_str("name", t.format->name, cases[c].name);
        failed += check_int("row bytes", quant_row_bytes(t.format, COLS, 1, SCALE_NONE),
                            cases[c].row_bytes);
        t.format->decode(&t, 2, 1, 4, out);
        for (int i = 0; i < 4; i++) {
            double want = cases[c].id == FORMAT_F16 ? 1 + (11 + i) / 1024.0 : 11 + i - 7;
            failed += check_near(cases[c].name, out[i], want, 0);
        }
        QuantTensor turned = t; /* [COLS, ROWS]: the same bytes read as y = x * W */
        turned.rows = COLS;
        turned.cols = ROWS;
        turned.row_bytes = t.unit_stride;
        turned.unit_stride = t.row_bytes;
        turned.format->decode(&turned, 4, 0, ROWS, out);
        for (int i = 0; i < ROWS; i++) {
            double want =
                cases[c].id == FORMAT_F16 ? 1 + (4 + COLS * i) / 1024.0 : 4 + COLS * i - 7;
            failed += check_near("transposed", out[i], want, 0);
        }
    }
    return failed;
}

/* A tensor laid out as a case says, and what it means: codes and scales at random, the value of
 * each from the definition. */
typedef struct Layout {
    const char *name;
    FormatId id;
    ScaleType scale;
    int64_t rows, cols, group, scale_rows, first_row;
    bool one_scale, transposed, every_other_row;
    float global;
    bool divides;
} Layout;

static const Layout layouts[] = {
    {"fp8, one scale", FORMAT_FP8, SCALE_F32, 3, 7, 7, 3, 0, true, false, false, 0, false},
    {"fp8, one bf16 scale", FORMAT_FP8, SCALE_BF16, 3, 7, 7, 3, 0, true, false, false, 0, false},
    {"fp8, a row's", FORMAT_FP8, SCALE_F32, 5, 9, 9, 1, 0, false, false, false, 0, false},
    {"fp8, a row's, bf16", FORMAT_FP8, SCALE_BF16, 5, 9, 9, 1, 0, false, false, false, 0, false},
    {"fp8, a row's, f16", FORMAT_FP8, SCALE_F16, 5, 9, 9, 1, 0, false, false, false, 0, false},
    {"fp8 blocks", FORMAT_FP8, SCALE_F32, 192, 300, 128, 128, 0, false, false, false, 0, false},
    {"fp8 blocks, bf16", FORMAT_FP8, SCALE_BF16, 130, 129, 128, 128, 0, false, false, false, 0,
     false},
    {"fp8 blocks, e8m0", FORMAT_FP8, SCALE_E8M0, 129, 40, 128, 128, 0, false, false, false, 0,
     false},
    {"fp8, one block", FORMAT_FP8, SCALE_F32, 128, 128, 128, 128, 0, true, false, false, 0, false},
    {"fp8 blocks, from row 64 on", FORMAT_FP8, SCALE_F32, 100, 140, 128, 128, 64, false, false,
     false, 0, false},
    {"fp8 blocks, from row 320 on", FORMAT_FP8, SCALE_F32, 128, 140, 128, 128, 320, false, false,
     false, 0, false},
    {"fp8, transposed", FORMAT_FP8, SCALE_F32, 5, 6, 6, 5, 0, true, true, false, 0, false},
    {"fp8, every other row", FORMAT_FP8, SCALE_F32, 4, 6, 6, 1, 0, false, false, true, 0, false},
    {"nvfp4", FORMAT_NVFP4, SCALE_E4M3, 3, 48, 16, 1, 0, false, false, false, 0.0123f, false},
    {"nvfp4, divisor", FORMAT_NVFP4, SCALE_E4M3, 3, 48, 16, 1, 0, false, false, false, 773.3f,
     true},
    {"nvfp4, groups of 32", FORMAT_NVFP4, SCALE_E4M3, 3, 96, 32, 1, 0, false, false, false, 3e-5f,
     false},
    {"nvfp4, transposed", FORMAT_NVFP4, SCALE_E4M3, 5, 32, 16, 1, 0, false, true, false, 0.7f,
     false},
    {"nvfp4, transposed, interleaved", FORMAT_NVFP4, SCALE_E4M3, 5, 32, 16, 1, 0, false, true, true,
     0.7f, false},
    {"mxfp8", FORMAT_MXFP8, SCALE_E8M0, 3, 96, 32, 1, 0, false, false, false, 0, false},
    {"mxfp8, four rows a scale", FORMAT_MXFP8, SCALE_E8M0, 10, 64, 32, 4, 0, false, false, false, 0,
     false},
    {"mxfp8, four rows a scale, from row 6 on", FORMAT_MXFP8, SCALE_E8M0, 7, 64, 32, 4, 6, false,
     false, false, 0, false},
    {"mxfp4, every other row", FORMAT_MXFP4, SCALE_E8M0, 4, 64, 32, 1, 0, false, false, true, 0,
     false},
    {"mxfp4, transposed", FORMAT_MXFP4, SCALE_E8M0, 3, 64, 32, 1, 0, false, true, false, 0, false},
    {"int4, groups of 32", FORMAT_INT4, SCALE_BF16, 3, 96, 32, 1, 0, false, false, false, 0, false},
    {"int4, groups of 64", FORMAT_INT4, SCALE_BF16, 3, 100, 64, 1, 0, false, false, false, 0,
     false},
    {"int4, groups of 128", FORMAT_INT4, SCALE_F16, 3, 200, 128, 1, 0, false, false, false, 0,
     false},
    {"int4, a row's", FORMAT_INT4, SCALE_F32, 4, 37, 37, 1, 0, false, false, false, 0, false},
};

/* Of finite value, and not zero where it divides. */
static void fill_scale(ScaleType type, uint64_t i, uint8_t *p)
{
    float v = 0.37f + 0.11f * (float)(i * 7 % 23);
    uint16_t half = type == SCALE_BF16 ? float_to_bf16(v) : float_to_f16(v);
    if (type == SCALE_F32)
        memcpy(p, &v, sizeof v);
    else if (type == SCALE_E8M0)
        *p = (uint8_t)(120 + i * 7 % 13);
    else if (type == SCALE_E4M3)
        *p = (uint8_t)(1 + i * 37 % 126);
    else
        memcpy(p, &half, sizeof half);
}

static int64_t parts(int64_t n, int64_t size)
{
    return n / size + (n % size != 0);
}

static int test_layout(const Layout *l)
{
    const QuantFormat *f = quant_format(l->id);
    int64_t all_rows = l->first_row + l->rows, step = l->every_other_row ? 2 : 1;
    int64_t units = parts(l->cols, f->unit), groups = l->one_scale ? 1 : parts(l->cols, l->group);
    int64_t scale_rows = l->one_scale ? 1 : parts(all_rows, l->scale_rows) * step;
    int bytes = scale_bytes(l->scale);
    uint8_t *data = malloc((size_t)(l->rows * step * units)),
            *scales = malloc((size_t)(scale_rows * groups * bytes));
    float *out = malloc((size_t)(l->rows * l->cols) * sizeof *out);
    if (!data || !scales || !out)
        exit(1);
    quant_case_bytes((uint64_t)l->cols, l->rows * step * units, data);
    for (int64_t i = 0; i < l->rows * step * units; i++)
        if (f->unit == 1 && (data[i] & 0x7f) == 0x7f)
            data[i] = 0x3b; /* no NaN: they are not compared */
    for (int64_t i = 0; i < scale_rows * groups; i++)
        fill_scale(l->scale, (uint64_t)i, scales + i * bytes);

    QuantTensor t = {.format = f,
                     .rows = l->rows,
                     .cols = l->cols,
                     .data = data,
                     .row_bytes = units * step,
                     .unit_stride = 1,
                     .scales = scales,
                     .scale_type = l->scale,
                     .group = l->group,
                     .scale_rows = l->scale_rows,
                     .first_row = l->first_row,
                     .scale_row_bytes = l->one_scale ? 0 : groups * bytes * step,
                     .scale_col_bytes = l->one_scale ? 0 : bytes,
                     .global = l->global,
                     .global_divides = l->divides};
    if (l->transposed) { /* [cols, rows * step] */
        t.row_bytes = step;
        t.unit_stride = l->rows * step;
        t.scale_row_bytes = l->one_scale ? 0 : bytes * step;
        t.scale_col_bytes = l->one_scale ? 0 : bytes * l->rows * step;
    }
    quant_decode(&t, out);
    int wrong = 0;
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t k = 0; k < l->cols; k++) {
            int64_t unit = l->transposed ? k / f->unit * l->rows * step + r * step
                                         : r * step * units + k / f->unit;
            int64_t scale_row = (l->first_row + r) / l->scale_rows * step;
            int64_t at = l->one_scale    ? 0
                         : l->transposed ? k / l->group * l->rows * step + scale_row
                                         : scale_row * groups + k / l->group;
            unsigned byte = data[unit], nibble = k % 2 ? byte >> 4 : byte & 15;
            float code = l->id == FORMAT_INT4 ? (float)nibble - 8.0f
                         : f->unit == 2       ? e2m1_to_float(nibble)
                                              : e4m3_to_float((uint8_t)byte);
            float scale = scale_value(l->scale, scales + at * bytes);
            if (l->id == FORMAT_NVFP4)
                scale = l->divides ? scale / l->global : scale * l->global;
            wrong += bits_of(out[r * l->cols + k]) != bits_of(code * scale);
        }
    int failed = check_int(l->name, wrong, 0);

    /* Any part of any row is the same as in the whole. */
    float part[40];
    int64_t from = l->rows > 2 ? 2 : l->rows - 1;
    QuantTensor rest = quant_rows(&t, from, l->rows - from);
    wrong = 0;
    for (int64_t col = 0; col < l->cols; col += 13) {
        int64_t n = l->cols - col < 40 ? l->cols - col : 40;
        rest.format->decode(&rest, rest.rows - 1, col, n, part);
        for (int64_t i = 0; i < n; i++)
            wrong += bits_of(part[i]) != bits_of(out[(l->rows - 1) * l->cols + col + i]);
    }
    char name[80];
    snprintf(name, sizeof name, "%s, in part", l->name);
    failed += check_int(name, wrong, 0);
    free(data);
    free(scales);
    free(out);
    return failed;
}

/* formats.md 2.2, 2.3, 2.6, 2.8. */
static int test_worked(void)
{
    int failed = 0;
    /* 2.3: out 200, in 256: element (150, 130) uses scale 3. */
    static uint8_t block[200 * 256];
    float scales[4] = {1, 2, 4, 8}, out[16];
    memset(block, 0x38, sizeof block);
    QuantTensor t = {.format = quant_format(FORMAT_FP8),
                     .rows = 200,
                     .cols = 256,
                     .data = block,
                     .row_bytes = 256,
                     .unit_stride = 1,
                     .scales = (const uint8_t *)scales,
                     .scale_type = SCALE_F32,
                     .group = 128,
                     .scale_rows = 128,
                     .scale_row_bytes = 8,
                     .scale_col_bytes = 4};
    t.format->decode(&t, 150, 130, 1, out);
    failed += check_near("element (150, 130)", out[0], 8, 0);
    t.format->decode(&t, 127, 127, 2, out);
    failed +=
        check_near("element (127, 127)", out[0], 1, 0) + check_near("(127, 128)", out[1], 2, 0);

    /* 2.2 and 2.8: one row, its scale and codes. */
    static const uint8_t token[4] = {0x69, 0xf4, 0x7e, 0x3c}, mx[4] = {0x70, 0xe2, 0x36, 0x7a};
    uint32_t bits = 0x3bdb6db7;
    uint8_t exponent = 0x78;
    t = (QuantTensor){.format = quant_format(FORMAT_FP8),
                      .rows = 1,
                      .cols = 4,
                      .data = token,
                      .unit_stride = 1,
                      .scales = (const uint8_t *)&bits,
                      .scale_type = SCALE_F32,
                      .group = 4,
                      .scale_rows = 1};
    quant_decode(&t, out);
    failed += check_near("third of the row", out[2], 3, 0); /* 448 * 3/448 */
    failed += check_near("first of the row", out[0], 72 * (double)0x1.b6db6ep-8, 1e-7);
    t.format = quant_format(FORMAT_MXFP8);
    t.data = mx;
    t.scales = &exponent;
    t.scale_type = SCALE_E8M0;
    t.group = 32;
    quant_decode(&t, out);
    static const float mx_want[4] = {1, -.3125f, .0068359375f, 2.5f};
    for (int i = 0; i < 4; i++)
        failed += check_near("mxfp8", out[i], mx_want[i], 0);

    /* 2.6's block. */
    static const uint8_t codes[8] = {0x80, 0x21, 0x0b, 0xe5, 0x40, 0x1c, 0xa7, 0x60};
    static const float want[16] = {0, -0.0f, .25f, .5f,  -.75f, 0,    1.5f, -2,
                                   0, 1,     -1,   .25f, 3,     -.5f, 0,    2};
    uint8_t scale = 0x78;
    t = (QuantTensor){.format = quant_format(FORMAT_NVFP4),
                      .rows = 1,
                      .cols = 16,
                      .data = codes,
                      .unit_stride = 1,
                      .scales = &scale,
                      .scale_type = SCALE_E4M3,
                      .group = 16,
                      .scale_rows = 1,
                      .global = 0x1p-9f};
    for (int divides = 0; divides < 2; divides++) {
        t.global = divides ? 0x1p9f : 0x1p-9f;
        t.global_divides = divides;
        quant_decode(&t, out);
        for (int i = 0; i < 16; i++)
            failed +=
                check_int(divides ? "nvfp4, divisor" : "nvfp4", bits_of(out[i]), bits_of(want[i]));
        failed += check_near("its scale", quant_scale(&t, 0, 5), .5, 0);
    }
    return failed;
}

/* Random blocks, as gguf reads them. */
static int test_ggml(const JsonValue *list)
{
    int failed = check_true("vectors.json has decoders", list && list->len == 3);
    for (const JsonValue *row = list ? list->child : NULL; row; row = row->next) {
        int64_t rows = 0, n_blocks = 0, seed = 0;
        const char *name = test_text(row, "format");
        const QuantFormat *f = quant_format(strcmp(name, "q8_0") == 0     ? FORMAT_Q8_0
                                            : strcmp(name, "iq2_xs") == 0 ? FORMAT_IQ2_XS
                                                                          : FORMAT_IQ2_XXS);
        failed += check_str("format", f->name, name);
        json_int64(json_get(row, "rows"), &rows);
        json_int64(json_get(row, "blocks"), &n_blocks);
        json_int64(json_get(row, "seed"), &seed);
        int64_t bytes = rows * n_blocks * f->unit_bytes, n = rows * n_blocks * f->unit;
        uint8_t *data = malloc((size_t)bytes);
        float *out = malloc((size_t)n * sizeof *out);
        if (!data || !out)
            exit(1);
        quant_case_bytes((uint64_t)seed, bytes, data);
        for (int64_t b = 0; b < rows * n_blocks; b++)
            data[b * f->unit_bytes + 1] &= 0xbf;
        QuantTensor t = {.format = f,
                         .rows = rows,
                         .cols = n_blocks * f->unit,
                         .data = data,
                         .row_bytes = n_blocks * f->unit_bytes,
                         .unit_stride = f->unit_bytes,
                         .group = 1,
                         .scale_rows = 1};
        quant_decode(&t, out);
        failed += check_sha256(name, out, 4 * n, test_text(row, "values"));
        failed += check_int("row bytes", quant_row_bytes(f, t.cols, 1, SCALE_NONE), t.row_bytes);
        free(data);
        free(out);
    }
    return failed;
}

int main(void)
{
    char path[4096];
    const char *source = getenv("SOURCE");
    if (!source)
        return test_skip("SOURCE is not set");
    test_path(path, sizeof path, "%s/tests/data/quant/vectors.json", source);
    TestJson j;
    int failed = !test_json_open(&j, path);
    if (!failed)
        failed += test_ggml(json_get(j.value, "decoders"));
    test_json_close(&j);
    failed += test_mxfp4() + test_plain() + test_worked();
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        failed += test_layout(&layouts[i]);
    return test_result(failed);
}
