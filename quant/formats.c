/* quant/formats.c - the table of formats and their scalar reference decoders.
 *
 * Kernels of all backends are held to these functions. A product of a code and a power of two is
 * exact; where a scale has a fraction, the product is rounded once to float32. */
#include "quant/ggml_grids.h"
#include "quant/tensor.h"

#include <string.h>

int scale_bytes(ScaleType type)
{
    static const int bytes[N_SCALE_TYPES] = {
        [SCALE_F32] = 4, [SCALE_BF16] = 2, [SCALE_F16] = 2, [SCALE_E4M3] = 1, [SCALE_E8M0] = 1};
    return bytes[type];
}

static float load_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

float scale_value(ScaleType type, const uint8_t *p)
{
    switch (type) {
    case SCALE_F32:
        return load_f32(p);
    case SCALE_BF16:
        return bf16_to_float(load_u16(p));
    case SCALE_F16:
        return f16_to_float(load_u16(p));
    case SCALE_E4M3:
        return e4m3_to_float(*p);
    case SCALE_E8M0:
        return e8m0_to_float(*p);
    default:
        return 1.0f;
    }
}

bool quant_scale_fits(FormatId format, ScaleType scale)
{
    switch (format) {
    case FORMAT_FP8:
        return scale == SCALE_F32 || scale == SCALE_BF16 || scale == SCALE_F16 ||
               scale == SCALE_E8M0;
    case FORMAT_INT4:
        return scale == SCALE_F32 || scale == SCALE_BF16 || scale == SCALE_F16;
    case FORMAT_NVFP4:
        return scale == SCALE_E4M3;
    case FORMAT_MXFP8:
    case FORMAT_MXFP4:
        return scale == SCALE_E8M0;
    default:
        return scale == SCALE_NONE;
    }
}

float quant_scale(const QuantTensor *t, int64_t row, int64_t col)
{
    if (!t->scales)
        return 1.0f;
    float s = scale_value(t->scale_type,
                          t->scales + (t->first_row + row) / t->scale_rows * t->scale_row_bytes +
                              col / t->group * t->scale_col_bytes);
    if (t->format->id != FORMAT_NVFP4)
        return s;
    return t->global_divides ? s / t->global : s * t->global;
}

static const uint8_t *unit_at(const QuantTensor *t, int64_t row, int64_t col)
{
    return t->data + row * t->row_bytes + col / t->format->unit * t->unit_stride;
}

static void decode_f32(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = unit_at(t, row, col);
    for (int64_t i = 0; i < n; i++, p += t->unit_stride)
        out[i] = load_f32(p);
}

static void decode_bf16(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = unit_at(t, row, col);
    for (int64_t i = 0; i < n; i++, p += t->unit_stride)
        out[i] = bf16_to_float(load_u16(p));
}

static void decode_f16(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = unit_at(t, row, col);
    for (int64_t i = 0; i < n; i++, p += t->unit_stride)
        out[i] = f16_to_float(load_u16(p));
}

/* FP8 and MXFP8. */
static void decode_e4m3(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = unit_at(t, row, col);
    float scale = 1.0f;
    for (int64_t i = 0; i < n; i++, p += t->unit_stride) {
        if (i == 0 || (col + i) % t->group == 0)
            scale = quant_scale(t, row, col + i);
        out[i] = e4m3_to_float(*p) * scale;
    }
}

static unsigned nibble_at(const QuantTensor *t, int64_t row, int64_t col)
{
    unsigned byte = *unit_at(t, row, col);
    return col % 2 ? byte >> 4 : byte & 15U;
}

/* NVFP4 and MXFP4. */
static void decode_e2m1(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    float scale = 1.0f;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || (col + i) % t->group == 0)
            scale = quant_scale(t, row, col + i);
        out[i] = e2m1_to_float(nibble_at(t, row, col + i)) * scale;
    }
}

static void decode_int4(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    float scale = 1.0f;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || (col + i) % t->group == 0)
            scale = quant_scale(t, row, col + i);
        out[i] = (float)((int)nibble_at(t, row, col + i) - 8) * scale;
    }
}

/* Blocks of 32: binary16 d, then 32 signed bytes. */
static void decode_q8_0(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *block = unit_at(t, row, col + i);
        out[i] = f16_to_float(load_u16(block)) * (float)(int8_t)block[2 + (col + i) % 32];
    }
}

/* Both IQ2 formats: eight values share a codebook entry and a byte of signs, 16 or 32 a scale
 * db = d * (0.5 + nibble) / 4. The product is exact (22 bits), in whatever order. */
static void iq2_eight(uint16_t d, unsigned nibble, uint16_t code, unsigned signs, int first, int n,
                      float *out)
{
    float db = f16_to_float(d) * (0.5f + (float)nibble) * 0.25f;
    uint64_t levels = iq2_levels(code);
    unsigned minus = iq2_signs(signs);
    for (int j = first; j < first + n; j++) {
        float v = db * (float)(levels >> 8 * j & 255U);
        out[j - first] = minus >> j & 1U ? -v : v;
    }
}

/* Values of the group of eight that column col lies in, from col on and at most n: how many. */
static int of_eight(int64_t col, int64_t n)
{
    int64_t left = 8 - col % 8;
    return (int)(n < left ? n : left);
}

/* Blocks of 256: binary16 d; 32 x 16 bits, an entry (9 bits) and signs (7); 16 scale nibbles. */
static void decode_iq2_xs(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    for (int64_t i = 0; i < n;) {
        const uint8_t *block = unit_at(t, row, col + i);
        unsigned eight = (unsigned)((col + i) % 256 / 8);
        unsigned code = load_u16(block + 2 + 2 * eight);
        unsigned nibble = block[66 + eight / 4] >> (eight % 4 / 2 * 4) & 15U;
        int m = of_eight(col + i, n - i);
        iq2_eight(load_u16(block), nibble, iq2_xs_codes[code & 511U], code >> 9,
                  (int)((col + i) % 8), m, out + i);
        i += m;
    }
}

/* Blocks of 256: binary16 d; for each 32 values, four entries of 8 bits, then 32 bits: four times
 * signs (7), and the scale nibble. */
static void decode_iq2_xxs(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    for (int64_t i = 0; i < n;) {
        const uint8_t *block = unit_at(t, row, col + i);
        unsigned eight = (unsigned)((col + i) % 256 / 8);
        const uint8_t *record = block + 2 + eight / 4 * 8;
        uint32_t rest = load_u16(record + 4) | (uint32_t)load_u16(record + 6) << 16;
        int m = of_eight(col + i, n - i);
        iq2_eight(load_u16(block), rest >> 28, iq2_xxs_codes[record[eight % 4]],
                  rest >> 7 * (eight % 4) & 127U, (int)((col + i) % 8), m, out + i);
        i += m;
    }
}

static const QuantFormat formats[N_FORMATS] = {
    [FORMAT_F32] = {FORMAT_F32, "f32", 1, 4, decode_f32},
    [FORMAT_BF16] = {FORMAT_BF16, "bf16", 1, 2, decode_bf16},
    [FORMAT_F16] = {FORMAT_F16, "f16", 1, 2, decode_f16},
    [FORMAT_FP8] = {FORMAT_FP8, "fp8", 1, 1, decode_e4m3},
    [FORMAT_NVFP4] = {FORMAT_NVFP4, "nvfp4", 2, 1, decode_e2m1},
    [FORMAT_MXFP8] = {FORMAT_MXFP8, "mxfp8", 1, 1, decode_e4m3},
    [FORMAT_MXFP4] = {FORMAT_MXFP4, "mxfp4", 2, 1, decode_e2m1},
    [FORMAT_INT4] = {FORMAT_INT4, "int4", 2, 1, decode_int4},
    [FORMAT_Q8_0] = {FORMAT_Q8_0, "q8_0", 32, 34, decode_q8_0},
    [FORMAT_IQ2_XS] = {FORMAT_IQ2_XS, "iq2_xs", 256, 74, decode_iq2_xs},
    [FORMAT_IQ2_XXS] = {FORMAT_IQ2_XXS, "iq2_xxs", 256, 66, decode_iq2_xxs},
};

const QuantFormat *quant_format(FormatId id)
{
    return &formats[id];
}

int64_t quant_row_bytes(const QuantFormat *f, int64_t cols, int64_t group, ScaleType scale)
{
    int64_t units = cols / f->unit + (cols % f->unit != 0);
    int64_t groups = scale == SCALE_NONE ? 0 : cols / group + (cols % group != 0);
    return units * f->unit_bytes + groups * scale_bytes(scale);
}

QuantTensor quant_plain(FormatId id, const void *data, int64_t rows, int64_t cols)
{
    const QuantFormat *f = quant_format(id);
    return (QuantTensor){.format = f,
                         .rows = rows,
                         .cols = cols,
                         .data = data,
                         .row_bytes = cols * f->unit_bytes,
                         .unit_stride = f->unit_bytes,
                         .group = 1,
                         .scale_rows = 1};
}

QuantTensor quant_rows(const QuantTensor *t, int64_t first, int64_t n)
{
    QuantTensor rows = *t;
    rows.rows = n;
    rows.data += first * t->row_bytes;
    rows.first_row += first;
    return rows;
}

void quant_decode(const QuantTensor *t, float *out)
{
    for (int64_t r = 0; r < t->rows; r++)
        t->format->decode(t, r, 0, t->cols, out + r * t->cols);
}
