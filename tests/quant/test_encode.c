/* tests/quant/test_encode.c - quantizers against nvidia-modelopt, compressed-tensors and gguf
 * (tests/data/quant/vectors.json) and the worked vectors of formats.md. */
#include "quant/encode.h"
#include "tests/support/check.h"
#include "tests/support/files.h"
#include "tests/support/quant_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 300 * 260 }; /* values of the largest case */

typedef struct Case {
    const char *format;
    FormatId source;
    int64_t rows, cols, group;
    float amax; /* at least; of another matrix that shares the scale */
} Case;

typedef struct Coded {
    uint8_t codes[MOST], scales[4 * MOST];
    int64_t n_codes, n_scales; /* bytes */
} Coded;

static int64_t number(const JsonValue *row, const char *key, int64_t missing)
{
    int64_t v;
    return json_int64(json_get(row, key), &v) ? v : missing;
}

static FormatId source_of(const char *name)
{
    return strcmp(name, "bf16") == 0  ? FORMAT_BF16
           : strcmp(name, "f16") == 0 ? FORMAT_F16
                                      : FORMAT_F32;
}

static int64_t parts(int64_t n, int64_t size)
{
    return n / size + (n % size != 0);
}

/* False: no such format. */
static bool encode(const Case *c, const float *w, Coded *out)
{
    int64_t n = c->rows * c->cols;
    float amax = encode_amax(w, n);
    amax = amax < c->amax ? c->amax : amax;
    float *floats = (float *)(void *)out->scales;
    uint16_t *halves = (uint16_t *)(void *)out->scales;
    out->n_codes = n;
    if (strcmp(c->format, "fp8") == 0) {
        floats[0] = encode_scale(amax, 448.0f);
        encode_fp8(w, n, c->source, floats[0], out->codes);
        out->n_scales = 4;
    } else if (strcmp(c->format, "fp8_channel") == 0) {
        encode_fp8_channel(w, c->rows, c->cols, out->codes, floats);
        out->n_scales = 4 * c->rows;
    } else if (strcmp(c->format, "fp8_block") == 0) {
        encode_fp8_block(w, c->rows, c->cols, c->group, out->codes, floats);
        out->n_scales = 4 * parts(c->rows, c->group) * parts(c->cols, c->group);
    } else if (strcmp(c->format, "mxfp8") == 0) {
        encode_mxfp8(w, c->rows, c->cols, out->codes, out->scales);
        out->n_scales = n / 32;
    } else if (strcmp(c->format, "mxfp4") == 0) {
        encode_mxfp4(w, c->rows, c->cols, out->codes, out->scales);
        out->n_codes = n / 2;
        out->n_scales = n / 32;
    } else if (strcmp(c->format, "nvfp4") == 0) {
        encode_nvfp4(w, c->rows, c->cols, c->group, encode_scale(amax, 2688.0f), out->codes,
                     out->scales);
        out->n_codes = n / 2;
        out->n_scales = n / c->group;
    } else if (strcmp(c->format, "nvfp4_online") == 0) {
        float factor, scale;
        encode_nvfp4_online_scale(amax, &factor, &scale);
        encode_nvfp4_online(w, c->rows, c->cols, c->source, factor, out->codes, out->scales);
        out->n_codes = n / 2;
        out->n_scales = n / 16;
    } else if (strcmp(c->format, "nvfp4_of_mxfp4") == 0) {
        static uint8_t scales[MOST];
        int low = 127, high = -128;
        encode_mxfp4(w, c->rows, c->cols, out->codes, scales);
        encode_mxfp4_range(out->codes, scales, n / 32, &low, &high);
        encode_nvfp4_of_mxfp4(scales, n / 32, low, high, out->scales);
        out->n_codes = n / 2;
        out->n_scales = n / 16;
    } else if (strcmp(c->format, "int4") == 0) {
        encode_int4(w, c->rows, c->cols, c->group, c->source, out->codes, halves);
        out->n_codes = c->rows * encode_row_bytes(FORMAT_INT4, c->cols);
        out->n_scales = 2 * c->rows * parts(c->cols, c->group);
    } else if (strcmp(c->format, "int4_of_mxfp4") == 0) {
        encode_int4_of_mxfp4(w, c->rows, c->cols, out->codes, halves);
        out->n_codes = n / 2;
        out->n_scales = n / 32 * 2;
    } else if (strcmp(c->format, "q8_0") == 0) {
        encode_q8_0(w, c->rows, c->cols, out->codes);
        out->n_codes = c->rows * encode_row_bytes(FORMAT_Q8_0, c->cols);
        out->n_scales = 0;
    } else {
        return false;
    }
    return true;
}

static int test_against_others(const JsonValue *list)
{
    static float w[MOST];
    static Coded coded;
    int failed = check_true("vectors.json has encoders", list && list->len >= 30);
    for (const JsonValue *row = list ? list->child : NULL; row; row = row->next) {
        double amax = 0;
        json_double(json_get(row, "amax"), &amax);
        Case c = {test_text(row, "format"), source_of(test_text(row, "source")),
                  number(row, "rows", 0),   number(row, "cols", 0),
                  number(row, "group", 0),  (float)amax};
        char name[80];
        snprintf(name, sizeof name, "%s of %s, seed %d", c.format, test_text(row, "source"),
                 (int)number(row, "seed", 0));
        if (check_true(name, c.rows > 0 && c.cols > 0 && c.rows * c.cols <= MOST)) {
            failed++;
            continue;
        }
        quant_case_values((uint64_t)number(row, "seed", 0), c.rows * c.cols, c.source,
                          number(row, "spread", 0) != 0, w);
        if (check_true(name, encode(&c, w, &coded))) {
            failed++;
            continue;
        }
        failed += check_sha256(name, coded.codes, coded.n_codes, test_text(row, "codes"));
        if (coded.n_scales > 0)
            failed += check_sha256(name, coded.scales, coded.n_scales, test_text(row, "scales"));
    }
    return failed;
}

static int check_bytes(const char *name, const uint8_t *got, const uint8_t *want, int n)
{
    int failed = 0;
    for (int i = 0; i < n; i++) {
        char at[100];
        snprintf(at, sizeof at, "%s, byte %d", name, i);
        failed += check_int(at, got[i], want[i]);
    }
    return failed;
}

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void round_bf16(float *w, int n)
{
    for (int i = 0; i < n; i++)
        w[i] = bf16_to_float(float_to_bf16(w[i]));
}

/* formats.md 2.6, on disk, and the same row at load (4). */
static int test_nvfp4(void)
{
    float w[16] = {.02f,    -.11f, .37f,  .5f,  -.75f, 0,    1.5f,  -2.25f,
                   .03125f, .9f,   -1.1f, .25f, 3,     -.6f, .001f, 2};
    static const uint8_t want[8] = {0x80, 0x21, 0x0b, 0xe5, 0x40, 0x1c, 0xa7, 0x60};
    uint8_t codes[8], scale;
    round_bf16(w, 16);
    int failed = check_int("scale of 5.25", bits_of(encode_scale(5.25f, 2688.0f)), 0x3b000000);
    encode_nvfp4(w, 1, 16, 16, 0x1p-9f, codes, &scale);
    failed += check_int("nvfp4 block scale", scale, 0x78) + check_bytes("nvfp4", codes, want, 8);

    float factor, tensor;
    encode_nvfp4_online_scale(5.25f, &factor, &tensor);
    failed += check_near("factor", factor, 512, 0) + check_near("tensor", tensor, 0x1p-9, 0);
    encode_nvfp4_online(w, 1, 16, FORMAT_BF16, factor, codes, &scale);
    failed += check_int("online block scale", scale, 0x78);
    failed += check_bytes("nvfp4 online", codes, want, 8);

    /* All zeros: at load scale bytes are 0, on disk 1; -0 stays at load only. */
    memset(w, 0, sizeof w);
    w[3] = -0.0f;
    encode_nvfp4_online_scale(0, &factor, &tensor);
    failed += check_int("factor of zeros", bits_of(factor), 0x527a56ea);
    failed += check_int("scale of zeros", bits_of(tensor), 0x2c82e4ed);
    encode_nvfp4_online(w, 1, 16, FORMAT_BF16, factor, codes, &scale);
    static const uint8_t minus[8] = {0, 0x80}, none[8] = {0};
    failed += check_int("zeros at load", scale, 0) + check_bytes("zeros at load", codes, minus, 8);
    encode_nvfp4(w, 1, 16, 16, encode_scale(0, 2688.0f), codes, &scale);
    failed += check_int("zeros on disk", scale, 0x38) + check_bytes("zeros", codes, none, 8);
    return failed;
}

/* formats.md 1.3's table of scale rules, ceil column; 2.8's block. */
static int test_mx(void)
{
    static const struct {
        float amax;
        int mxfp4, mxfp8; /* -1: not in the table */
    } cases[] = {{3.4f, 127, -1}, {3.5f, 127, -1}, {4, 127, -1},     {6.1f, 128, -1},
                 {7, 128, -1},    {8, 128, -1},    {256, -1, 127},   {447, -1, 127},
                 {448, -1, 127},  {449, -1, 128},  {511, -1, 128},   {0, 0, 0},
                 {6, 127, -1},    {12, 128, -1},   {0x1p-140f, 0, 0}};
    int failed = 0;
    uint8_t codes[32], scale;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float w[32] = {0};
        char name[40];
        snprintf(name, sizeof name, "scale of amax %g", (double)cases[i].amax);
        w[i] = -cases[i].amax;
        encode_mxfp4(w, 1, 32, codes, &scale);
        if (cases[i].mxfp4 >= 0)
            failed += check_int(name, scale, cases[i].mxfp4);
        encode_mxfp8(w, 1, 32, codes, &scale);
        if (cases[i].mxfp8 >= 0)
            failed += check_int(name, scale, cases[i].mxfp8);
    }
    float w[32] = {1, -.3f, .007f, 2.5f};
    static const uint8_t want[4] = {0x70, 0xe2, 0x36, 0x7a};
    encode_mxfp8(w, 1, 32, codes, &scale);
    failed += check_int("mxfp8 scale", scale, 0x78) + check_bytes("mxfp8", codes, want, 4);

    /* Rule B: ties go down, zeros are stored as -0. Scale 1. */
    static const struct {
        float v;
        unsigned code;
    } ties[] = {{0, 8},       {-0.0f, 8}, {.25f, 0}, {-.25f, 8}, {.75f, 1},  {1.25f, 2},
                {-1.75f, 11}, {2.5f, 4},  {3.5f, 5}, {5, 6},     {5.01f, 7}, {6, 7}};
    memset(w, 0, sizeof w);
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
        w[i] = ties[i].v;
    encode_mxfp4(w, 1, 32, codes, &scale);
    failed += check_int("scale of ties", scale, 127);
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
        failed += check_int("rule b", codes[i / 2] >> (i % 2 * 4) & 15, ties[i].code);
    return failed;
}

/* formats.md 2.12: from a group's largest MXFP4 magnitude (row) and a value's (column) to the int4
 * magnitude, whatever the exponent. */
static int test_int4_of_mxfp4(void)
{
    static const struct {
        unsigned largest; /* E2M1 code */
        uint16_t scale;   /* bf16 */
        int want[8];
    } table[] = {
        {7, 0x3f5b, {0, 1, 1, 2, 2, 4, 5, 7}},
        {6, 0x3f12, {0, 1, 2, 3, 4, 5, 7}},
        {5, 0x3edb, {0, 1, 2, 4, 5, 7}},
        {4, 0x3e92, {0, 2, 4, 5, 7}},
        {3, 0x3e5b, {0, 2, 5, 7}},
        {2, 0x3e12, {0, 4, 7}},
        {1, 0x3d92, {0, 7}},
    };
    int failed = 0;
    float w[32];
    uint8_t codes[16];
    uint16_t scale;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int k = -12; k <= 12; k += 6) {
            for (unsigned j = 0; j < 32; j++) /* both signs of all smaller codes, in turn */
                w[j] = ldexpf(e2m1_to_float(j % (table[i].largest + 1) + (j % 2 ? 8 : 0)), k);
            w[31] = ldexpf(e2m1_to_float(table[i].largest), k);
            encode_int4_of_mxfp4(w, 1, 32, codes, &scale);
            failed += check_int("int4 scale", scale, table[i].scale + k * 128);
            for (unsigned j = 0; j < 31; j++) {
                int q = table[i].want[j % (table[i].largest + 1)];
                failed +=
                    check_int("int4 code", codes[j / 2] >> (j % 2 * 4) & 15, 8 + (j % 2 ? -q : q));
            }
        }
    memset(w, 0, sizeof w);
    encode_int4_of_mxfp4(w, 1, 32, codes, &scale);
    failed += check_int("scale of zeros", scale, float_to_bf16(bf16_to_float(0x3586) / 7));
    return failed + check_int("code of zero", codes[15], 0x88);
}

static int test_q8_0(void)
{
    static const uint8_t want[34] = {0xce, 0x27, 0x00, 0x17, 0x27, 0x25, 0x0f, 0xef, 0xd2,
                                     0xc9, 0xdb, 0x01, 0x2b, 0x44, 0x3e, 0x18, 0xe3, 0xb8,
                                     0xac, 0xc9, 0x03, 0x40, 0x61, 0x56, 0x20, 0xd7, 0x9d,
                                     0x90, 0xb9, 0x06, 0x55, 0x7f, 0x6e, 0x27};
    static const uint8_t zeros[34] = {0};
    float w[32];
    uint8_t block[34];
    for (int i = 0; i < 32; i++)
        w[i] = (float)(sin(.7 * i) * (1 + i / 10.0));
    encode_q8_0(w, 1, 32, block);
    int failed = check_bytes("q8_0", block, want, 34);
    memset(w, 0, sizeof w);
    w[7] = -0.0f;
    encode_q8_0(w, 1, 32, block);
    failed += check_bytes("q8_0 of zeros", block, zeros, 34);
    w[3] = 3e38f; /* beyond binary16: the largest d, codes that saturate */
    w[4] = -3e38f;
    encode_q8_0(w, 1, 32, block);
    failed += check_int("largest d", block[0] | block[1] << 8, 0x7bff);
    failed += check_int("largest code", (int8_t)block[2 + 3], 127);
    failed += check_int("least code", (int8_t)block[2 + 4], -127);
    w[3] = w[4] = 0x1p-140f;
    encode_q8_0(w, 1, 32, block);
    return failed + check_bytes("values too small for d", block, zeros, 34);
}

/* formats.md 2.5. */
static int test_nvfp4_of_mxfp4(void)
{
    enum { N = 5 };
    static const uint8_t scales[N] = {120, 124, 118, 3, 250};
    static const uint8_t want[2 * N] = {0x58, 0x58, 0x78, 0x78, 0x48, 0x48, 0x01, 0x01, 0x78, 0x78};
    uint8_t codes[N][16] = {{0x01}, {0, 0x70}, {0x9f}, {0x88, 0x08}, {0x80}}, out[2 * N];
    int low = 127, high = -128;
    int failed = check_near("scale of nothing", encode_nvfp4_of_mxfp4_scale(low, high), 0x1p-8, 0);
    encode_mxfp4_range(codes[0], scales, N, &low, &high); /* the last two hold zeros only */
    failed += check_int("low", low, -9) + check_int("high", high, -3);
    failed +=
        check_int("tensor scale", bits_of(encode_nvfp4_of_mxfp4_scale(low, high)), 0x3a000000);
    encode_nvfp4_of_mxfp4(scales, N, low, high, out);
    failed += check_bytes("scales", out, want, 2 * N);
    failed += check_true("17 apart fits", encode_mxfp4_fits_nvfp4(-20, -3));
    failed += check_true("18 apart does not", !encode_mxfp4_fits_nvfp4(-21, -3));
    for (int high_at = -110; high_at <= 120; high_at += 23) /* decoded values stay the same */
        for (int k = high_at - 17; k <= high_at; k++) {
            uint8_t scale = (uint8_t)(k + 127), pair[2];
            encode_nvfp4_of_mxfp4(&scale, 1, k, high_at, pair);
            float tensor = encode_nvfp4_of_mxfp4_scale(k, high_at);
            failed +=
                check_near("same scale", e4m3_to_float(pair[1]) * tensor, e8m0_to_float(scale), 0);
        }
    return failed;
}

/* Partial blocks have scales of their own, and rows may come in parts. */
static int test_parts(void)
{
    enum { ROWS = 21, COLS = 37, BLOCK = 8 };
    static float w[ROWS * COLS];
    uint8_t codes[ROWS * COLS], again[ROWS * COLS];
    float scales[3 * 5], part[3 * 5];
    quant_case_values(7, ROWS * COLS, FORMAT_BF16, false, w);
    w[20 * COLS + 36] = 100; /* alone in the last block */
    w[20 * COLS + 32] = 0;
    encode_fp8_block(w, ROWS, COLS, BLOCK, codes, scales);
    int failed = check_near("last block", scales[14], 100.0f / 448.0f, 0);
    failed += check_int("its largest", codes[20 * COLS + 36], 0x7e);
    encode_fp8_block(w, 16, COLS, BLOCK, again, part);
    encode_fp8_block(w + 16 * COLS, ROWS - 16, COLS, BLOCK, again + 16 * COLS, part + 2 * 5);
    failed += check_bytes("in parts", again, codes, ROWS * COLS);
    failed += check_int("scales in parts", memcmp(part, scales, sizeof part), 0);

    static const float odd[3] = {1, INFINITY, NAN};
    failed += check_near("amax", encode_amax(odd, 1), 1, 0) +
              check_near("none", encode_amax(odd, 0), 0, 0);
    failed += check_true("infinite", isinf(encode_amax(odd, 2)));
    failed += check_true("not a number", isnan(encode_amax(odd, 3)));
    failed += check_near("scale of 0", encode_scale(0, 448), 1, 0);
    failed += check_true("scale of next to nothing", encode_scale(0x1p-149f, 2688) > 0);
    failed += check_int("row of 4-bit words", encode_row_bytes(FORMAT_INT4, 33), 20);
    failed += check_int("row of bytes", encode_row_bytes(FORMAT_FP8, 33), 33);
    failed += check_int("row of nibbles", encode_row_bytes(FORMAT_MXFP4, 64), 32);
    failed += check_int("row of blocks", encode_row_bytes(FORMAT_Q8_0, 64), 68);
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
        failed += test_against_others(json_get(j.value, "encoders"));
    test_json_close(&j);
    failed += test_nvfp4() + test_mx() + test_int4_of_mxfp4() + test_q8_0();
    failed += test_nvfp4_of_mxfp4() + test_parts();
    return test_result(failed);
}
