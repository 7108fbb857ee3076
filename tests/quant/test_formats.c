/* tests/quant/test_formats.c - codecs against published vectors and exhaustive identities; decoders
 * against strides, transposes and interleaved rows. */
#include "quant/tensor.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static int test_elements(void)
{
    int failed = 0;
    static const struct {
        const char *name;
        uint16_t in;
        uint32_t want;
    } half[] = {
        {"f16 zero", 0x0000, 0x00000000},         {"f16 -zero", 0x8000, 0x80000000},
        {"f16 one", 0x3c00, 0x3f800000},          {"f16 largest", 0x7bff, 0x477fe000},
        {"f16 least normal", 0x0400, 0x38800000}, {"f16 least", 0x0001, 0x33800000},
        {"f16 subnormal", 0x83ff, 0xb87fc000},    {"f16 inf", 0x7c00, 0x7f800000},
        {"f16 -inf", 0xfc00, 0xff800000},         {"f16 nan", 0x7e01, 0x7fc02000},
    };
    for (size_t i = 0; i < sizeof half / sizeof *half; i++)
        failed += check_int(half[i].name, bits_of(f16_to_float(half[i].in)), half[i].want);

    static const struct {
        const char *name;
        uint8_t in;
        uint32_t want;
    } scale[] = {
        {"e8m0 0 is subnormal", 0, 0x00400000}, {"e8m0 1", 1, 0x00800000},
        {"e8m0 127 is one", 127, 0x3f800000},   {"e8m0 121", 121, 0x3c800000},
        {"e8m0 254", 254, 0x7f000000},
    };
    for (size_t i = 0; i < sizeof scale / sizeof *scale; i++)
        failed += check_int(scale[i].name, bits_of(e8m0_to_float(scale[i].in)), scale[i].want);
    failed += check_true("e8m0 255 is NaN", isnan(e8m0_to_float(255)));

    /* formats.md 1.4: the bf16 bits of the eight magnitudes. */
    static const uint16_t magnitude[8] = {0x0000, 0x3F00, 0x3F80, 0x3FC0,
                                          0x4000, 0x4040, 0x4080, 0x40C0};
    for (unsigned code = 0; code < 16; code++) {
        uint32_t want = (uint32_t)(magnitude[code & 7] | (code & 8) << 12) << 16;
        failed += check_int("e2m1", bits_of(e2m1_to_float(code)), want);
    }

    static const struct {
        const char *name;
        uint32_t in;
        uint16_t want;
    } round[] = {
        {"bf16 tie to even, down", 0x3f808000, 0x3f80},
        {"bf16 tie to even, up", 0x3f818000, 0x3f82},
        {"bf16 above tie", 0x3f808001, 0x3f81},
        {"bf16 -zero", 0x80000000, 0x8000},
        {"bf16 overflow", 0x7f7fffff, 0x7f80},
        {"bf16 inf", 0xff800000, 0xff80},
        {"bf16 low NaN stays NaN", 0x7f800001, 0x7fc0},
        {"bf16 -NaN", 0xffffffff, 0xffff},
        {"bf16 subnormal", 0x00008001, 0x0001},
    };
    for (size_t i = 0; i < sizeof round / sizeof *round; i++) {
        float v;
        memcpy(&v, &round[i].in, sizeof v);
        failed += check_int(round[i].name, float_to_bf16(v), round[i].want);
    }
    int changed = 0;
    for (unsigned b = 0; b < 0x10000; b++) {
        float v = bf16_to_float((uint16_t)b);
        changed += isnan(v) ? !isnan(bf16_to_float(float_to_bf16(v))) : float_to_bf16(v) != b;
    }
    failed += check_int("bf16 there and back", changed, 0);
    return failed;
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

int main(void)
{
    int failed = test_elements() + test_mxfp4() + test_plain();
    return test_result(failed);
}
