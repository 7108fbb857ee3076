/* quant/encode_fp8.c - weights into 8-bit floats: per tensor, row and block, and MXFP8. */
#include "quant/encode_internal.h"

#include <float.h>

float encode_amax(const float *w, int64_t n)
{
    /* Magnitudes of floats are ordered as their bits are, infinity and NaN above all. */
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of_float(w[i]) & 0x7fffffffU;
        top = bits > top ? bits : top;
    }
    return float_of_bits(top);
}

float encode_scale(float amax, float largest)
{
    if (amax == 0)
        return 1.0f;
    return (amax < FLT_MIN ? FLT_MIN : amax) / largest;
}

int64_t encode_row_bytes(FormatId id, int64_t cols)
{
    if (id == FORMAT_INT4)
        return (cols / 8 + (cols % 8 != 0)) * 4;
    return quant_row_bytes(quant_format(id), cols, 1, SCALE_NONE);
}

void encode_fp8(const float *w, int64_t n, FormatId source, float scale, uint8_t *codes)
{
    switch (source) {
    case FORMAT_BF16:
        for (int64_t i = 0; i < n; i++)
            codes[i] = float_to_e4m3(bf16_to_float(float_to_bf16(w[i] / scale)));
        break;
    case FORMAT_F16:
        for (int64_t i = 0; i < n; i++)
            codes[i] = float_to_e4m3(f16_to_float(float_to_f16(w[i] / scale)));
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            codes[i] = float_to_e4m3(w[i] / scale);
    }
}

void encode_fp8_channel(const float *w, int64_t rows, int64_t cols, uint8_t *codes, float *scales)
{
    for (int64_t r = 0; r < rows; r++) {
        scales[r] = encode_scale(encode_amax(w + r * cols, cols), 448.0f);
        encode_fp8(w + r * cols, cols, FORMAT_F32, scales[r], codes + r * cols);
    }
}

void encode_fp8_block(const float *w, int64_t rows, int64_t cols, int64_t block, uint8_t *codes,
                      float *scales)
{
    for (int64_t r = 0; r < rows; r += block) {
        int64_t n_rows = rows - r < block ? rows - r : block;
        for (int64_t c = 0; c < cols; c += block) {
            int64_t n_cols = cols - c < block ? cols - c : block;
            float amax = 0;
            for (int64_t i = 0; i < n_rows; i++) {
                float row = encode_amax(w + (r + i) * cols + c, n_cols);
                amax = row > amax ? row : amax;
            }
            float scale = encode_scale(amax, 448.0f);
            *scales++ = scale;
            for (int64_t i = 0; i < n_rows; i++)
                encode_fp8(w + (r + i) * cols + c, n_cols, FORMAT_F32, scale,
                           codes + (r + i) * cols + c);
        }
    }
}

void encode_mxfp8(const float *w, int64_t rows, int64_t cols, uint8_t *codes, uint8_t *scales)
{
    for (int64_t i = 0; i < rows * (cols / 32); i++, w += 32, codes += 32) {
        uint8_t b = ceil_e8m0(encode_amax(w, 32) / 448.0f);
        float up = e8m0_to_float((uint8_t)(254 - b)); /* 2^(127 - b): a power of two, exact */
        scales[i] = b;
        for (int j = 0; j < 32; j++)
            codes[j] = float_to_e4m3(w[j] * up);
    }
}
