/* quant/row_format.c - see row_format.h.
 *
 * A row is worked on group by group: the values that share a scale, or runs of 128 where the whole
 * row shares one. Rounding goes through the codes, so that it cannot differ from encoding and
 * decoding. Codes are made and read 16 at a time without branches, in float32 and integer
 * operations that are exact or IEEE 754, so that the compiler may use vectors of any width. */
#include "quant/row_format.h"

#include "quant/lanes.h"

#include <assert.h>
#include <string.h>

enum { MOST_GROUP = 128 };

/* Where an encoded row has what: codes, then a scale per group, then the row's own. */
typedef struct Layout {
    int group; /* values per scale, or per run where groups have none */
    int code_bits;
    int group_bytes; /* of a group's scale */
    bool row_scale;  /* whether the row has a scale of its own, a float32 */
} Layout;

static const Layout layouts[N_ROW_SCHEMES] = {
    [ROWS_AS_THEY_ARE] = {MOST_GROUP, 32, 0, false},
    [ROWS_FP8_STATIC] = {MOST_GROUP, 8, 0, false},
    [ROWS_FP8_TOKEN] = {MOST_GROUP, 8, 0, true},
    [ROWS_FP8_GROUP] = {MOST_GROUP, 8, 4, false},
    [ROWS_NVFP4_STATIC] = {16, 4, 1, false},
    [ROWS_NVFP4_TOKEN] = {16, 4, 1, true},
    [ROWS_MXFP8] = {32, 8, 1, false},
};

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

const char *row_scheme_name(RowScheme scheme)
{
    static const char *const name[N_ROW_SCHEMES] = {
        [ROWS_AS_THEY_ARE] = "as they are",
        [ROWS_FP8_STATIC] = "fp8 static",
        [ROWS_FP8_TOKEN] = "fp8 per token",
        [ROWS_FP8_GROUP] = "fp8 per 128",
        [ROWS_NVFP4_STATIC] = "nvfp4 static",
        [ROWS_NVFP4_TOKEN] = "nvfp4 per token",
        [ROWS_MXFP8] = "mxfp8",
    };
    return name[scheme];
}

static bool is_static(RowScheme scheme)
{
    return scheme == ROWS_FP8_STATIC || scheme == ROWS_NVFP4_STATIC;
}

bool row_format_same(const RowFormat *a, const RowFormat *b)
{
    return a->scheme == b->scheme && (!is_static(a->scheme) || a->input_scale == b->input_scale) &&
           (a->scheme != ROWS_FP8_GROUP || a->power_of_two == b->power_of_two);
}

int row_format_multiple(RowScheme scheme)
{
    return scheme == ROWS_NVFP4_STATIC || scheme == ROWS_NVFP4_TOKEN ? 16
           : scheme == ROWS_MXFP8                                    ? 32
                                                                     : 1;
}

/* Bytes of codes and group scales, before the row's own scale. */
static int64_t groups_end(const Layout *l, int64_t width)
{
    int64_t codes = width * l->code_bits / 8, groups = (width + l->group - 1) / l->group;
    if (l->group_bytes == 4)
        codes = round_up(codes, 4);
    return round_up(codes + groups * l->group_bytes, 4);
}

int64_t row_encoded_bytes(RowScheme scheme, int64_t width)
{
    return groups_end(&layouts[scheme], width) + (layouts[scheme].row_scale ? 4 : 0);
}

/* The largest of LANES magnitudes; lane does not survive. */
static int32_t largest_lane(int32_t *restrict lane)
{
    for (int i = 0; i < LANES / 2; i++)
        lane[i] = lane[i + LANES / 2] > lane[i] ? lane[i + LANES / 2] : lane[i];
    for (int i = 0; i < LANES / 4; i++)
        lane[i] = lane[i + LANES / 4] > lane[i] ? lane[i + LANES / 4] : lane[i];
    int32_t a = lane[0] > lane[1] ? lane[0] : lane[1], b = lane[2] > lane[3] ? lane[2] : lane[3];
    return a > b ? a : b;
}

/* The largest magnitude, as bits: a NaN counts above infinity. */
static int32_t largest(const float *x, int64_t n)
{
    int32_t lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            int32_t m = lane_bits(x[i + j]) & LANE_MAGNITUDE;
            lane[j] = m > lane[j] ? m : lane[j];
        }
    for (int j = 0; i + j < n; j++) {
        int32_t m = lane_bits(x[i + j]) & LANE_MAGNITUDE;
        lane[j] = m > lane[j] ? m : lane[j];
    }
    return largest_lane(lane);
}

static int32_t largest_of_16(const float *x)
{
    int32_t lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = lane_bits(x[j]) & LANE_MAGNITUDE;
    return largest_lane(lane);
}

/* E4M3 codes of x[i] * by, or x[i] / by. */
static void encode_e4m3(uint8_t *code, const float *x, int64_t n, float by, bool divide)
{
    float v[LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        float rest[LANES] = {0};
        uint8_t rest_code[LANES];
        bool whole = n - i >= LANES;
        if (!whole)
            memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        const float *from = whole ? x + i : rest;
        if (divide)
            for (int j = 0; j < LANES; j++)
                v[j] = from[j] / by;
        else
            for (int j = 0; j < LANES; j++)
                v[j] = from[j] * by;
        lanes_to_e4m3(whole ? code + i : rest_code, v);
        if (!whole)
            memcpy(code + i, rest_code, (size_t)(n - i));
    }
}

static void decode_e4m3(float *x, const uint8_t *code, int64_t n, float scale)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_from_e4m3(x + i, code + i, scale);
    if (i < n) {
        uint8_t rest_code[LANES] = {0};
        float rest[LANES];
        memcpy(rest_code, code + i, (size_t)(n - i));
        lanes_from_e4m3(rest, rest_code, scale);
        memcpy(x + i, rest, (size_t)(n - i) * sizeof *x);
    }
}

/* The next power of two from a finite positive s on upwards. */
static float power_of_two_from(float s)
{
    int32_t bits = lane_bits(s);
    return bits < LANE_INFINITE ? lane_float((bits + 0x7fffff) & LANE_INFINITE) : s;
}

/* What all groups of a row have in common: the calibrated or the row's own scale. */
static float row_scale(const RowFormat *f, const float *x, int64_t width)
{
    if (is_static(f->scheme))
        return f->input_scale;
    if (!layouts[f->scheme].row_scale)
        return 1.0f;
    float most = lane_float(largest(x, width));
    if (f->scheme == ROWS_NVFP4_TOKEN)
        return most * (1.0f / 2688.0f);
    float s = most / 448.0f, least = 1.0f / (448.0f * 512.0f);
    return s < least ? least : s;
}

static void encode_fp8_group(const RowFormat *f, const float *x, int64_t n, uint8_t *code,
                             uint8_t *scale)
{
    float most = lane_float(largest(x, n));
    float s = (most < 1e-10f ? 1e-10f : most) / 448.0f;
    if (f->power_of_two)
        s = power_of_two_from(s);
    memcpy(scale, &s, sizeof s);
    encode_e4m3(code, x, n, s, true);
}

/* Of 16 values. g is 1 / input_scale. */
static void encode_nvfp4_static(float input_scale, const float *x, uint8_t *code, uint8_t *scale)
{
    float g = 1.0f / input_scale, most = lane_float(largest_of_16(x));
    *scale = float_to_e4m3(g * (most * (1.0f / 6.0f)));
    float s = e4m3_to_float(*scale), o = *scale == 0 ? 0.0f : 1.0f / (s * (1.0f / g)), v[LANES];
    for (int i = 0; i < LANES; i++)
        v[i] = x[i] * o;
    lanes_to_e2m1(code, v);
}

static void encode_nvfp4_token(float row, const float *x, uint8_t *code, uint8_t *scale)
{
    float e = row > 0.0f ? 1.0f / row : 0.0f, most = lane_float(largest_of_16(x)), v[LANES];
    if (lane_bits(e) == LANE_INFINITE)
        e = 0.0f;
    *scale = float_to_e4m3(e * most / 6.0f);
    float s = e4m3_to_float(*scale);
    if (*scale == 0) { /* zeros that keep their sign */
        e = 0.0f;
        s = 1.0f;
    }
    for (int i = 0; i < LANES; i++)
        v[i] = x[i] * e / s;
    lanes_to_e2m1(code, v);
}

static void encode_mxfp8(const float *x, int64_t n, uint8_t *code, uint8_t *scale)
{
    /* The exponent of the next power of two, biased. Up to 2^-127, which is subnormal, it is 0. */
    int32_t bits = lane_bits(lane_float(largest(x, n)) / 448.0f);
    int32_t b = bits <= 0x00400000 ? 0 : bits > LANE_INFINITE ? 255 : (bits + 0x7fffff) >> 23;
    *scale = (uint8_t)(b == 255 && bits == LANE_INFINITE ? 254 : b);
    /* 2^(127 - b) */
    float by = *scale == 255   ? lane_float(0x7fc00000)
               : *scale == 254 ? lane_float(0x00400000)
                               : lane_float((254 - *scale) << 23);
    encode_e4m3(code, x, n, by, false);
}

/* One group: n values, its codes and its scale. */
static void encode_group(const RowFormat *f, float row, const float *x, int64_t n, uint8_t *code,
                         uint8_t *scale)
{
    switch (f->scheme) {
    case ROWS_FP8_STATIC:
        encode_e4m3(code, x, n, 1.0f / row, false);
        break;
    case ROWS_FP8_TOKEN:
        encode_e4m3(code, x, n, row, true);
        break;
    case ROWS_FP8_GROUP:
        encode_fp8_group(f, x, n, code, scale);
        break;
    case ROWS_NVFP4_STATIC:
        encode_nvfp4_static(row, x, code, scale);
        break;
    case ROWS_NVFP4_TOKEN:
        encode_nvfp4_token(row, x, code, scale);
        break;
    case ROWS_MXFP8:
        encode_mxfp8(x, n, code, scale);
        break;
    default:
        memcpy(code, x, (size_t)n * sizeof *x);
    }
}

static void decode_group(const RowFormat *f, float row, const uint8_t *code, const uint8_t *scale,
                         int64_t n, float *x)
{
    float s;
    switch (f->scheme) {
    case ROWS_FP8_STATIC:
    case ROWS_FP8_TOKEN:
        decode_e4m3(x, code, n, row);
        break;
    case ROWS_FP8_GROUP:
        memcpy(&s, scale, sizeof s);
        decode_e4m3(x, code, n, s);
        break;
    case ROWS_NVFP4_STATIC:
    case ROWS_NVFP4_TOKEN:
        lanes_from_e2m1(x, code, e4m3_to_float(*scale) * row);
        break;
    case ROWS_MXFP8:
        decode_e4m3(x, code, n, e8m0_to_float(*scale));
        break;
    default:
        memcpy(x, code, (size_t)n * sizeof *x);
    }
}

void row_encode(const RowFormat *f, const float *x, int64_t width, uint8_t *out)
{
    const Layout *l = &layouts[f->scheme];
    assert(width % row_format_multiple(f->scheme) == 0);
    int64_t bytes = row_encoded_bytes(f->scheme, width), codes = width * l->code_bits / 8;
    float row = row_scale(f, x, width);
    if (l->row_scale)
        memcpy(out + bytes - 4, &row, sizeof row);
    uint8_t *scale = out + (l->group_bytes == 4 ? round_up(codes, 4) : codes);
    if (l->code_bits < 32) { /* gaps are zeros: equal rows are equal bytes */
        int64_t groups = (width + l->group - 1) / l->group;
        memset(out + codes, 0, (size_t)(scale - out - codes));
        uint8_t *end = scale + groups * l->group_bytes;
        memset(end, 0, (size_t)(out + groups_end(l, width) - end));
    }
    for (int64_t i = 0; i < width; i += l->group, scale += l->group_bytes)
        encode_group(f, row, x + i, width - i < l->group ? width - i : l->group,
                     out + i * l->code_bits / 8, scale);
}

void row_decode(const RowFormat *f, const uint8_t *in, int64_t width, float *x)
{
    const Layout *l = &layouts[f->scheme];
    int64_t bytes = row_encoded_bytes(f->scheme, width), codes = width * l->code_bits / 8;
    float row = is_static(f->scheme) ? f->input_scale : 1.0f;
    if (l->row_scale)
        memcpy(&row, in + bytes - 4, sizeof row);
    const uint8_t *scale = in + (l->group_bytes == 4 ? round_up(codes, 4) : codes);
    for (int64_t i = 0; i < width; i += l->group, scale += l->group_bytes)
        decode_group(f, row, in + i * l->code_bits / 8, scale,
                     width - i < l->group ? width - i : l->group, x + i);
}

void row_round(const RowFormat *f, const float *x, int64_t width, float *y)
{
    const Layout *l = &layouts[f->scheme];
    assert(width % row_format_multiple(f->scheme) == 0);
    if (f->scheme == ROWS_AS_THEY_ARE) {
        memmove(y, x, (size_t)width * sizeof *x);
        return;
    }
    float row = row_scale(f, x, width);
    uint8_t code[MOST_GROUP], scale[4];
    for (int64_t i = 0; i < width; i += l->group) {
        int64_t n = width - i < l->group ? width - i : l->group;
        encode_group(f, row, x + i, n, code, scale);
        decode_group(f, row, code, scale, n, y + i);
    }
}
