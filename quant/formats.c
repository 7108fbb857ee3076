/* quant/formats.c - the table of element formats and their scalar reference decoders.
 *
 * Every decoder here is exact in float32: a stored element has at most 11 significant bits, and a
 * block scale is a power of two. Kernels of all backends are held to these functions. */
#include "quant/tensor.h"

#include <string.h>

static float float_of_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint32_t bits_of_float(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

float bf16_to_float(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

uint16_t float_to_bf16(float v)
{
    uint32_t bits = bits_of_float(v);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)(bits >> 16 |
                          0x40U); /* quiet, so that truncation cannot make it infinite */
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

float f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16, exponent = half >> 10 & 31U,
             fraction = half & 0x3ffU;
    if (exponent == 0) { /* fraction * 2^-24, exact as a product of two normal numbers */
        float v = (float)fraction * 0x1p-24f;
        return sign ? -v : v;
    }
    if (exponent == 31) /* processors quiet a signalling NaN when they convert; so does this */
        return float_of_bits(sign | 0x7f800000U | fraction << 13 | (fraction ? 0x400000U : 0U));
    return float_of_bits(sign | (exponent + 112U) << 23 | fraction << 13);
}

float e2m1_to_float(unsigned nibble)
{
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return value[nibble & 15U];
}

float e8m0_to_float(uint8_t b)
{
    if (b == 0)
        return float_of_bits(0x00400000U); /* 2^-127 is subnormal in float32 */
    if (b == 255)
        return float_of_bits(0x7fc00000U);
    return float_of_bits((uint32_t)b << 23);
}

static const uint8_t *element(const QuantTensor *t, int64_t row, int64_t col)
{
    return t->data + row * t->row_bytes + col * t->col_bytes;
}

static void decode_f32(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = element(t, row, col);
    for (int64_t i = 0; i < n; i++, p += t->col_bytes)
        memcpy(out + i, p, sizeof *out);
}

static void decode_bf16(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = element(t, row, col);
    for (int64_t i = 0; i < n; i++, p += t->col_bytes) {
        uint16_t bits;
        memcpy(&bits, p, sizeof bits);
        out[i] = bf16_to_float(bits);
    }
}

static void decode_f16(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *p = element(t, row, col);
    for (int64_t i = 0; i < n; i++, p += t->col_bytes) {
        uint16_t bits;
        memcpy(&bits, p, sizeof bits);
        out[i] = f16_to_float(bits);
    }
}

/* Blocks of 32 along the row; byte j of a block holds element 2j in its low nibble, 2j + 1 in its
 * high. */
static void decode_mxfp4(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const uint8_t *codes = t->data + row * t->row_bytes;
    const uint8_t *scales = t->scales + row * t->scale_row_bytes;
    for (int64_t i = 0; i < n; i++) {
        int64_t k = col + i;
        unsigned byte = codes[k / 2];
        out[i] = e2m1_to_float(k % 2 ? byte >> 4 : byte) * e8m0_to_float(scales[k / 32]);
    }
}

static const QuantFormat formats[N_FORMATS] = {
    [FORMAT_F32] = {FORMAT_F32, "f32", 1, 4, 0, decode_f32},
    [FORMAT_BF16] = {FORMAT_BF16, "bf16", 1, 2, 0, decode_bf16},
    [FORMAT_F16] = {FORMAT_F16, "f16", 1, 2, 0, decode_f16},
    [FORMAT_MXFP4] = {FORMAT_MXFP4, "mxfp4", 32, 16, 1, decode_mxfp4},
};

const QuantFormat *quant_format(FormatId id)
{
    return &formats[id];
}

int64_t quant_row_bytes(const QuantFormat *f, int64_t cols)
{
    int64_t blocks = cols / f->block + (cols % f->block != 0);
    return blocks * (f->block_bytes + f->scale_bytes);
}

QuantTensor quant_plain(FormatId id, const void *data, int64_t rows, int64_t cols)
{
    const QuantFormat *f = quant_format(id);
    return (QuantTensor){.format = f,
                         .rows = rows,
                         .cols = cols,
                         .data = data,
                         .row_bytes = cols * f->block_bytes,
                         .col_bytes = f->block_bytes};
}
