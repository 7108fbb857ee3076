/* tests/quant/test_row_format.c - rounding of activation rows against the published vectors, an
 * independent implementation (tests/oracle/make_row_formats.py), and the scalar codecs. */
#include "io/file.h"
#include "io/safetensors.h"
#include "quant/row_format.h"
#include "tests/support/check.h"
#include "tests/support/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WIDTH = 300, MOST_BYTES = MOST_WIDTH * 5 };

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* NaNs of any payload are alike. */
static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : bits_of(a) == bits_of(b);
}

/* Rounding must be encoding and decoding to the bit, in place too, and the gaps of an encoding
 * must not be left over from before. */
static int check_row(const char *name, const RowFormat *f, const float *x, int64_t width,
                     const float *want)
{
    _Alignas(4) uint8_t coded[MOST_BYTES], again[MOST_BYTES];
    float decoded[MOST_WIDTH], rounded[MOST_WIDTH];
    int64_t bytes = row_encoded_bytes(f->scheme, width);
    int failed = check_int(name, bytes % 4, 0);
    memset(coded, 0xab, sizeof coded);
    memset(again, 0x11, sizeof again);
    row_encode(f, x, width, coded);
    row_encode(f, x, width, again);
    failed += check_int(name, memcmp(coded, again, (size_t)bytes), 0);
    failed += check_int(name, coded[bytes], 0xab);
    row_decode(f, coded, width, decoded);
    row_round(f, x, width, rounded);
    failed += check_int(name, memcmp(decoded, rounded, (size_t)width * sizeof *x), 0);
    memcpy(rounded, x, (size_t)width * sizeof *x);
    row_round(f, rounded, width, rounded);
    failed += check_int(name, memcmp(decoded, rounded, (size_t)width * sizeof *x), 0);
    for (int64_t i = 0; want && i < width; i++)
        if (!same(decoded[i], want[i])) {
            printf("%s: value %lld of %a became %a, expected %a\n", name, (long long)i,
                   (double)x[i], (double)decoded[i], (double)want[i]);
            return failed + 1;
        }
    return failed;
}

/* The rows of formats.md, codes first. */
static int test_published(void)
{
    static const struct {
        const char *name;
        RowFormat f;
        int width;
        float x[16];
        int n_bytes, scale_at; /* bytes to compare from 0, and 4 of the scale, or -1 */
        uint8_t bytes[9];
        uint32_t scale;
    } cases[] = {
        {"2.2 per token",
         {.scheme = ROWS_FP8_TOKEN},
         4,
         {0.5f, -1.25f, 3, 0.01f},
         4,
         4,
         {0x69, 0xF4, 0x7E, 0x3C},
         0x3BDB6DB7},
        {"2.2 least scale",
         {.scheme = ROWS_FP8_TOKEN},
         4,
         {0, -0.0f, 0, 0x1p-30f},
         4,
         4,
         {0x00, 0x80, 0x00, 0x00},
         0x36924925},
        {"1.1 codes",
         {.scheme = ROWS_FP8_STATIC, .input_scale = 1},
         16,
         {0.1f, 1.0f / 3, 17, 18, 19, -3.3f, 0x1p-10f, 0x1.8p-10f, 0x1.8p-9f},
         9,
         -1,
         {0x1D, 0x2B, 0x58, 0x59, 0x5A, 0xC5, 0x00, 0x01, 0x02},
         0},
        {"1.1 saturation",
         {.scheme = ROWS_FP8_STATIC, .input_scale = 1},
         6,
         {449, 464, 465, 480, INFINITY, -INFINITY},
         6,
         -1,
         {0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE},
         0},
        {"2.6 static",
         {.scheme = ROWS_NVFP4_STATIC, .input_scale = 0.01f},
         16,
         {1, -2, 3, 4, -5, 6, 7, 8, 0.1f, 0.2f, -0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 10},
         9,
         -1,
         {0x01, 0x0B, 0x84, 0x15, 0x1D, 0x16, 0x16, 0x77, 0x72}, /* byte j: codes j and j + 8 */
         0},
    };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        _Alignas(4) uint8_t coded[80];
        row_encode(&cases[c].f, cases[c].x, cases[c].width, coded);
        for (int i = 0; i < cases[c].n_bytes; i++)
            failed += check_int(cases[c].name, coded[i], cases[c].bytes[i]);
        if (cases[c].scale_at >= 0) {
            uint32_t scale;
            memcpy(&scale, coded + cases[c].scale_at, sizeof scale);
            failed += check_int(cases[c].name, scale, cases[c].scale);
        }
        failed += check_row(cases[c].name, &cases[c].f, cases[c].x, cases[c].width, NULL);
    }
    static const float x[32] = {1, -0.3f, 0.007f, 2.5f};
    static const float want[32] = {1, -0.3125f, 0.0068359375f, 2.5f};
    static const uint8_t codes[4] = {0x70, 0xE2, 0x36, 0x7A};
    _Alignas(4) uint8_t coded[36];
    row_encode(&(RowFormat){.scheme = ROWS_MXFP8}, x, 32, coded);
    for (int i = 0; i < 4; i++)
        failed += check_int("2.8 codes", coded[i], codes[i]);
    failed += check_int("2.8 scale", coded[32], 120);
    failed += check_row("2.8", &(RowFormat){.scheme = ROWS_MXFP8}, x, 32, want);
    return failed;
}

static int test_layout(void)
{
    static const struct {
        const char *name;
        RowScheme scheme;
        int multiple;
        int64_t width, bytes;
    } cases[] = {
        {"as they are", ROWS_AS_THEY_ARE, 1, 7, 28},
        {"fp8 static", ROWS_FP8_STATIC, 1, 7, 8},
        {"fp8 per token", ROWS_FP8_TOKEN, 1, 7, 12},
        {"fp8 per 128", ROWS_FP8_GROUP, 1, 129, 140},
        {"fp8 per 128", ROWS_FP8_GROUP, 1, 128, 132},
        {"nvfp4 static", ROWS_NVFP4_STATIC, 16, 48, 28},
        {"nvfp4 per token", ROWS_NVFP4_TOKEN, 16, 48, 32},
        {"mxfp8", ROWS_MXFP8, 32, 96, 100},
        {"mxfp8", ROWS_MXFP8, 32, 2880, 2972},
    };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        failed += check_str("name", row_scheme_name(cases[c].scheme), cases[c].name);
        failed += check_int(cases[c].name, row_format_multiple(cases[c].scheme), cases[c].multiple);
        failed += check_int(cases[c].name, row_encoded_bytes(cases[c].scheme, cases[c].width),
                            cases[c].bytes);
    }
    static const struct {
        const char *name;
        RowFormat a, b;
        bool same;
    } pairs[] = {
        {"equal", {ROWS_FP8_STATIC, 0.5f, false}, {ROWS_FP8_STATIC, 0.5f, false}, true},
        {"other scale", {ROWS_FP8_STATIC, 0.5f, false}, {ROWS_FP8_STATIC, 0.25f, false}, false},
        {"nvfp4 scale", {ROWS_NVFP4_STATIC, 0.5f, false}, {ROWS_NVFP4_STATIC, 1, false}, false},
        {"scale unused", {ROWS_FP8_TOKEN, 0.5f, false}, {ROWS_FP8_TOKEN, 0, true}, true},
        {"powers of two", {ROWS_FP8_GROUP, 0, true}, {ROWS_FP8_GROUP, 0, false}, false},
        {"other scheme", {ROWS_MXFP8, 0, false}, {ROWS_AS_THEY_ARE, 0, false}, false},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        failed +=
            check_int(pairs[i].name, row_format_same(&pairs[i].a, &pairs[i].b), pairs[i].same);
    return failed;
}

/* Every 4099th float32 against the codecs of element.h; scales of 1, so that only codes count. */
static int test_codes(void)
{
    RowFormat fp8 = {.scheme = ROWS_FP8_STATIC, .input_scale = 1},
              nvfp4 = {.scheme = ROWS_NVFP4_STATIC, .input_scale = 1};
    int wrong_fp8 = 0, wrong_nvfp4 = 0;
    float x[16], y[16];
    for (uint64_t bits = 0; bits < 1ULL << 32;) {
        for (int i = 0; i < 16; i++, bits += 4099)
            x[i] = float_of((uint32_t)bits);
        row_round(&fp8, x, 16, y);
        for (int i = 0; i < 16; i++)
            wrong_fp8 += bits_of(y[i]) != bits_of(e4m3_to_float(float_to_e4m3(x[i])));
        bool beyond = false; /* a larger value than 6 would change the scale */
        for (int i = 0; i < 16; i++)
            beyond |= !(fabsf(x[i]) <= 6);
        x[15] = 6;
        row_round(&nvfp4, x, 16, y);
        for (int i = 0; i < 16 && !beyond; i++)
            wrong_nvfp4 += bits_of(y[i]) != bits_of(e2m1_to_float(float_to_e2m1(x[i])));
    }
    return check_int("e4m3", wrong_fp8, 0) + check_int("e2m1", wrong_nvfp4, 0);
}

static const TensorEntry *find(const SafeTensors *s, const char *case_name, const char *what)
{
    char name[80];
    snprintf(name, sizeof name, "%s.%s", case_name, what);
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->entries[i].name, name) == 0)
            return &s->entries[i];
    printf("no tensor %s\n", name);
    exit(1);
}

static int test_oracle(const char *source)
{
    static const struct {
        const char *name;
        RowScheme scheme;
        bool power_of_two;
    } cases[] = {
        {"fp8_static", ROWS_FP8_STATIC, false},
        {"fp8_static_two", ROWS_FP8_STATIC, false},
        {"fp8_token", ROWS_FP8_TOKEN, false},
        {"fp8_group", ROWS_FP8_GROUP, false},
        {"fp8_group_two", ROWS_FP8_GROUP, true},
        {"nvfp4_static", ROWS_NVFP4_STATIC, false},
        {"nvfp4_static_odd", ROWS_NVFP4_STATIC, false},
        {"nvfp4_token", ROWS_NVFP4_TOKEN, false},
        {"mxfp8", ROWS_MXFP8, false},
    };
    char path[FILE_PATH_MAX];
    test_path(path, sizeof path, "%s/tests/data/quant/row_formats.safetensors", source);
    Err e;
    FileMap map;
    SafeTensors s;
    if (file_map(path, &map, &e) != ST_OK || safetensors_parse(map.data, map.len, &s, &e) != ST_OK)
        return check_str("oracle", e.text, "");
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const TensorEntry *x = find(&s, cases[c].name, "x"), *y = find(&s, cases[c].name, "y");
        RowFormat f = {.scheme = cases[c].scheme, .power_of_two = cases[c].power_of_two};
        memcpy(&f.input_scale, find(&s, cases[c].name, "input_scale")->data, 4);
        int64_t rows = x->shape[0], width = x->shape[1];
        failed += check_true(cases[c].name, rows >= 10 && width <= MOST_WIDTH);
        for (int64_t r = 0; r < rows && width <= MOST_WIDTH; r++) {
            char name[80];
            float in[MOST_WIDTH], want[MOST_WIDTH];
            snprintf(name, sizeof name, "%s, row %d", cases[c].name, (int)r);
            memcpy(in, x->data + r * width * 4, (size_t)width * 4);
            memcpy(want, y->data + r * width * 4, (size_t)width * 4);
            failed += check_row(name, &f, in, width, want);
            bool nan_in = false, nan_out = false;
            for (int64_t i = 0; i < width; i++) {
                nan_in |= isnan(in[i]);
                nan_out |= isnan(want[i]);
            }
            failed += check_true(name, nan_out || !nan_in);
        }
    }
    safetensors_free(&s);
    file_unmap(&map);
    return failed;
}

static int test_as_they_are(void)
{
    float x[7] = {0, -0.0f, 1, INFINITY, -3e-42f, 2e38f, NAN};
    return check_row("as they are", &(RowFormat){.scheme = ROWS_AS_THEY_ARE}, x, 7, x);
}

int main(void)
{
    const char *source = getenv("SOURCE");
    if (!source)
        return test_skip("SOURCE is not set");
    int failed =
        test_published() + test_layout() + test_codes() + test_oracle(source) + test_as_they_are();
    return test_result(failed);
}
