/* tests/quant/test_element.c - codes of single values: every code and every tie against ml_dtypes
 * and PyTorch (tests/data/quant/vectors.json), and the vectors of formats.md section 1. */
#include "quant/element.h"
#include "tests/support/check.h"
#include "tests/support/files.h"
#include "tests/support/quant_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float of_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return isnan(v) ? 0x7fc00000U : bits; /* NaN is compared as one value */
}

enum { N_LOW = 11, N_INPUTS = 65536 * N_LOW };

/* Every upper half of a float with lower halves around the ties of all formats. */
static float input(int i)
{
    static const uint32_t low[N_LOW] = {0x0000, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000,
                                        0x3001, 0x7fff, 0x8000, 0x8001, 0xffff};
    return of_bits((uint32_t)(i / N_LOW) << 16 | low[i % N_LOW]);
}

static float input_number(int i)
{
    return isnan(input(i)) ? 0.0f : input(i);
}

static uint32_t decode(const char *name, unsigned code)
{
    switch (name[strlen("decode ")]) {
    case 'b':
        return bits_of(bf16_to_float((uint16_t)code));
    case 'f':
        return bits_of(f16_to_float((uint16_t)code));
    default:
        return strcmp(name, "decode e4m3") == 0   ? bits_of(e4m3_to_float((uint8_t)code))
               : strcmp(name, "decode e2m1") == 0 ? bits_of(e2m1_to_float(code))
                                                  : bits_of(e8m0_to_float((uint8_t)code));
    }
}

static int test_against_others(const JsonValue *want)
{
    static const struct {
        const char *name;
        int n;
    } decoded[] = {{"decode e4m3", 256},
                   {"decode e8m0", 256},
                   {"decode e2m1", 16},
                   {"decode f16", 65536},
                   {"decode bf16", 65536}};
    static uint32_t value[65536];
    static uint16_t half[N_INPUTS];
    static uint8_t byte[N_INPUTS];
    int failed = 0;
    for (size_t c = 0; c < sizeof decoded / sizeof *decoded; c++) {
        for (int i = 0; i < decoded[c].n; i++)
            value[i] = decode(decoded[c].name, (unsigned)i);
        failed += check_sha256(decoded[c].name, value, 4 * (int64_t)decoded[c].n,
                               test_text(want, decoded[c].name));
    }
    for (int i = 0; i < N_INPUTS; i++)
        half[i] = float_to_bf16(input_number(i));
    failed += check_sha256("encode bf16", half, sizeof half, test_text(want, "encode bf16"));
    for (int i = 0; i < N_INPUTS; i++)
        half[i] = float_to_f16(input_number(i));
    failed += check_sha256("encode f16", half, sizeof half, test_text(want, "encode f16"));
    for (int i = 0; i < N_INPUTS; i++)
        byte[i] = float_to_e4m3(input_number(i));
    failed += check_sha256("encode e4m3", byte, sizeof byte, test_text(want, "encode e4m3"));
    for (int i = 0; i < N_INPUTS; i++)
        byte[i] = (uint8_t)float_to_e2m1(input_number(i));
    failed += check_sha256("encode e2m1", byte, sizeof byte, test_text(want, "encode e2m1"));
    for (int i = 0; i < N_INPUTS; i++)
        byte[i] = float_to_e8m0(input_number(i));
    return failed + check_sha256("encode e8m0", byte, sizeof byte, test_text(want, "encode e8m0"));
}

/* formats.md 1.1 to 1.4. */
static int test_vectors(void)
{
    static const struct {
        uint8_t code;
        float value;
    } e4m3[] = {{0x00, 0},       {0x01, 0x1p-9f},   {0x07, 0x7p-9f}, {0x08, 0x1p-6f},
                {0x10, 0x1p-5f}, {0x1d, .1015625f}, {0x30, .5f},     {0x38, 1},
                {0x3c, 1.5f},    {0x40, 2},         {0x58, 16},      {0x77, 240},
                {0x78, 256},     {0x7d, 416},       {0x7e, 448},     {0xb8, -1},
                {0xfe, -448}};
    static const struct {
        float value;
        uint8_t code;
    } to_e4m3[] = {{.1f, 0x1d},   {1.0f / 3, 0x2b}, {17, 0x58},     {18, 0x59},
                   {19, 0x5a},    {-3.3f, 0xc5},    {0x1p-10f, 0},  {0x3p-11f, 0x01},
                   {0x3p-10f, 2}, {449, 0x7e},      {464, 0x7e},    {465, 0x7e},
                   {480, 0x7e},   {INFINITY, 0x7e}, {-1e30f, 0xfe}, {-INFINITY, 0xfe},
                   {-0.0f, 0x80}, {-0x1p-11f, 0x80}};
    static const struct {
        float value;
        unsigned code;
    } to_e2m1[] = {{.25f, 0}, {.2500001f, 1}, {.75f, 2},   {1.25f, 2},     {1.26f, 3}, {1.75f, 4},
                   {2.5f, 4}, {2.6f, 5},      {3.5f, 6},   {5, 6},         {5.1f, 7},  {1e30f, 7},
                   {-.1f, 8}, {-0.0f, 8},     {-.75f, 10}, {-INFINITY, 15}},
      to_e8m0[] = {{.75f, 127},     {1, 127},         {1.49f, 127},   {1.5f, 128},
                   {2, 128},        {0, 0},           {-1, 127},      {3e38f, 255},
                   {INFINITY, 255}, {NAN, 255},       {0x1p-127f, 0}, {0x1.000004p-127f, 1},
                   {0x1p-126f, 1},  {0x1.fp127f, 255}};
    int failed = 0;
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++)
        failed += check_near("e4m3", e4m3_to_float(e4m3[i].code), e4m3[i].value, 0);
    for (size_t i = 0; i < sizeof to_e4m3 / sizeof *to_e4m3; i++)
        failed += check_int("to e4m3", float_to_e4m3(to_e4m3[i].value), to_e4m3[i].code);
    for (size_t i = 0; i < sizeof to_e2m1 / sizeof *to_e2m1; i++)
        failed += check_int("to e2m1", float_to_e2m1(to_e2m1[i].value), to_e2m1[i].code);
    for (size_t i = 0; i < sizeof to_e8m0 / sizeof *to_e8m0; i++)
        failed += check_int("to e8m0", float_to_e8m0(to_e8m0[i].value), to_e8m0[i].code);

    /* 1.4: the magnitudes as E4M3 codes; 1.3: 2^-127 is subnormal, 255 is no number. */
    static const uint8_t magnitude[8] = {0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c};
    for (unsigned i = 0; i < 8; i++)
        failed += check_int("e2m1 as e4m3", float_to_e4m3(e2m1_to_float(i)), magnitude[i]);
    failed += check_int("e8m0 0", bits_of(e8m0_to_float(0)), 0x00400000);
    failed += check_int("e8m0 127", bits_of(e8m0_to_float(127)), 0x3f800000);

    /* NaN has no counterpart in the file. */
    failed += check_int("e4m3 of NaN", float_to_e4m3(of_bits(0x7fc00000)), 0x7f);
    failed += check_int("e4m3 of -NaN", float_to_e4m3(of_bits(0xff800001)), 0xff);
    failed += check_int("e2m1 of NaN", float_to_e2m1(of_bits(0x7f800001)), 7);
    failed += check_int("e2m1 of -NaN", float_to_e2m1(of_bits(0xffffffff)), 15);
    failed += check_int("f16 of -NaN", float_to_f16(of_bits(0xff800001)), 0xfe00);
    failed += check_int("bf16 of a low NaN", float_to_bf16(of_bits(0x7f800001)), 0x7fc0);
    failed += check_int("bf16 of -NaN", float_to_bf16(of_bits(0xffffffff)), 0xffff);
    return failed;
}

/* What kernels rely on (formats.md 1.7): products that bf16 holds exactly. */
static int test_exact_products(void)
{
    int inexact = 0, not_e4m3 = 0;
    for (unsigned code = 1; code < 8; code++)
        for (unsigned s = 1; s < 0x7f; s++) {
            float v = e2m1_to_float(code) * e4m3_to_float((uint8_t)s);
            inexact += bf16_to_float(float_to_bf16(v)) != v || f16_to_float(float_to_f16(v)) != v;
            not_e4m3 += e4m3_to_float(float_to_e4m3(v)) != v;
        }
    int failed = check_int("e2m1 x e4m3 in 16 bits", inexact, 0);
    failed += check_int("e2m1 x e4m3 in e4m3", not_e4m3, 275);
    for (unsigned b = 0; b <= 252; b++)
        for (unsigned code = 0; code < 8; code++) {
            float v = e2m1_to_float(code) * e8m0_to_float((uint8_t)b);
            inexact += bf16_to_float(float_to_bf16(v)) != v;
        }
    for (unsigned b = 3; b <= 246; b++)
        for (unsigned code = 0; code < 0x7f; code++) {
            float v = e4m3_to_float((uint8_t)code) * e8m0_to_float((uint8_t)b);
            inexact += bf16_to_float(float_to_bf16(v)) != v;
        }
    return failed + check_int("times e8m0 in bf16", inexact, 0);
}

int main(void)
{
    char path[4096];
    const char *source = getenv("SOURCE");
    if (!source)
        return test_skip("SOURCE is not set");
    test_path(path, sizeof path, "%s/tests/data/quant/vectors.json", source);
    TestJson j;
    int failed = 1;
    if (test_json_open(&j, path)) {
        const JsonValue *elements = json_get(j.value, "elements");
        failed = elements && elements->child
                     ? test_against_others(elements->child) + test_vectors() + test_exact_products()
                     : check_true("vectors.json has elements", false);
    }
    test_json_close(&j);
    return test_result(failed);
}
