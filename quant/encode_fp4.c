/* quant/encode_fp4.c - weights into 4-bit floats: NVFP4 on disk and at load, MXFP4, and from MXFP4
 * to NVFP4. */
#include "quant/encode_internal.h"

#include <math.h>

void encode_nvfp4(const float *w, int64_t rows, int64_t cols, int64_t group, float scale,
                  uint8_t *codes, uint8_t *scales)
{
    float six = 6.0f * scale;
    for (int64_t i = 0; i < rows * (cols / group); i++, w += group, codes += group / 2) {
        float s = encode_amax(w, group) / six;
        if (s == 0)
            s = 1.0f;
        s = s < 0x1p-9f ? 0x1p-9f : s > 448.0f ? 448.0f : s;
        scales[i] = float_to_e4m3(s);
        float effective = e4m3_to_float(scales[i]) * scale;
        for (int64_t j = 0; j < group; j += 2) /* adding 0 makes -0 positive, no more */
            codes[j / 2] = (uint8_t)(float_to_e2m1(w[j] / effective + 0.0f) |
                                     float_to_e2m1(w[j + 1] / effective + 0.0f) << 4);
    }
}

void encode_nvfp4_online_scale(float amax, float *factor, float *scale)
{
    *factor = 2688.0f / (amax < 1e-8f ? 1e-8f : amax);
    *scale = 1.0f / *factor;
}

void encode_nvfp4_online(const float *w, int64_t rows, int64_t cols, FormatId source, float factor,
                         uint8_t *codes, uint8_t *scales)
{
    const float sixth = 1.0f / 6.0f;
    for (int64_t i = 0; i < rows * (cols / 16); i++, w += 16, codes += 8) {
        float scaled[16];
        for (int j = 0; j < 16; j++)
            scaled[j] = round_to(source, w[j] * factor);
        scales[i] = float_to_e4m3(encode_amax(scaled, 16) * sixth);
        float s = e4m3_to_float(scales[i]), up = s == 0 ? 0.0f : 1.0f / s;
        for (int j = 0; j < 16; j += 2)
            codes[j / 2] =
                (uint8_t)(float_to_e2m1(scaled[j] * up) | float_to_e2m1(scaled[j + 1] * up) << 4);
    }
}

/* Ties go towards zero; 0 is stored as -0. */
static unsigned rule_b(float v)
{
    float a = fabsf(v);
    unsigned code = (unsigned)((a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) +
                               (a > 3.5f) + (a > 5.0f));
    return v > 0 ? code : code | 8U;
}

void encode_mxfp4(const float *w, int64_t rows, int64_t cols, uint8_t *codes, uint8_t *scales)
{
    for (int64_t i = 0; i < rows * (cols / 32); i++, w += 32, codes += 16) {
        uint8_t b = ceil_e8m0(encode_amax(w, 32) / 6.0f);
        float down = e8m0_to_float(b);
        scales[i] = b;
        for (int j = 0; j < 32; j += 2)
            codes[j / 2] = (uint8_t)(rule_b(w[j] / down) | rule_b(w[j + 1] / down) << 4);
    }
}

void encode_mxfp4_range(const uint8_t *codes, const uint8_t *scales, int64_t n_blocks, int *low,
                        int *high)
{
    for (int64_t i = 0; i < n_blocks; i++, codes += 16) {
        unsigned any = 0;
        for (int j = 0; j < 16; j++)
            any |= codes[j] & 0x77U;
        if (!any)
            continue;
        int k = scales[i] - 127;
        *low = k < *low ? k : *low;
        *high = k > *high ? k : *high;
    }
}

bool encode_mxfp4_fits_nvfp4(int low, int high)
{
    return high - low <= 17;
}

/* The exponent that becomes 2^8 in E4M3. */
static int top_exponent(int low, int high)
{
    return high < low ? 0 : high;
}

float encode_nvfp4_of_mxfp4_scale(int low, int high)
{
    return ldexpf(1.0f, top_exponent(low, high) - 8);
}

void encode_nvfp4_of_mxfp4(const uint8_t *scales, int64_t n_blocks, int low, int high, uint8_t *out)
{
    int top = top_exponent(low, high);
    for (int64_t i = 0; i < n_blocks; i++) {
        int k = scales[i] - 127 - top + 8;
        k = k < -9 ? -9 : k > 8 ? 8 : k;
        out[2 * i] = out[2 * i + 1] = float_to_e4m3(ldexpf(1.0f, k));
    }
}
