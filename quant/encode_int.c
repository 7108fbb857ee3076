/* quant/encode_int.c - weights into integers: int4 groups, and ggml's Q8_0. */
#include "quant/encode_internal.h"

#include <math.h>

static void put_nibble(uint8_t *codes, int64_t i, int value)
{
    codes[i / 2] |= (uint8_t)((value + 8) << (i % 2 * 4));
}

/* One group into a row's codes, which are 0, from column first on. */
static void int4_group(const float *w, int64_t n, FormatId source, float scale, float low,
                       int64_t first, uint8_t *codes)
{
    for (int64_t j = 0; j < n; j++) {
        float q = round_to(source, w[j] / scale);
        q = q < low ? low : q > 7.0f ? 7.0f : q;
        put_nibble(codes, first + j, (int)rintf(q)); /* ties to even */
    }
}

void encode_int4(const float *w, int64_t rows, int64_t cols, int64_t group, FormatId source,
                 uint8_t *codes, uint16_t *scales)
{
    int64_t row_bytes = encode_row_bytes(FORMAT_INT4, cols);
    for (int64_t r = 0; r < rows; r++, w += cols, codes += row_bytes) {
        memset(codes, 0, (size_t)row_bytes);
        for (int64_t c = 0; c < cols; c += group) {
            int64_t n = cols - c < group ? cols - c : group;
            uint16_t s = float_to_bf16(round_to(source, encode_amax(w + c, n) / 7.5f));
            if (s == 0)
                s = 0x3c00; /* 2^-7, what compressed-tensors puts where a scale would be 0 */
            *scales++ = s;
            int4_group(w + c, n, source, bf16_to_float(s), -8.0f, c, codes);
        }
    }
}

void encode_int4_of_mxfp4(const float *w, int64_t rows, int64_t cols, uint8_t *codes,
                          uint16_t *scales)
{
    const float least = bf16_to_float(float_to_bf16(1e-6f));
    int64_t row_bytes = encode_row_bytes(FORMAT_INT4, cols);
    for (int64_t r = 0; r < rows; r++, w += cols, codes += row_bytes) {
        memset(codes, 0, (size_t)row_bytes);
        for (int64_t c = 0; c < cols; c += 32) {
            float amax = encode_amax(w + c, 32);
            uint16_t s = float_to_bf16((amax < least ? least : amax) / 7.0f);
            *scales++ = s;
            int4_group(w + c, 32, FORMAT_BF16, bf16_to_float(s), -7.0f, c, codes);
        }
    }
}

void encode_q8_0(const float *w, int64_t rows, int64_t cols, uint8_t *blocks)
{
    for (int64_t i = 0; i < rows * (cols / 32); i++, w += 32, blocks += 34) {
        float d = encode_amax(w, 32) / 127.0f;
        d = d > 65504.0f ? 65504.0f : d; /* the largest binary16 */
        /* Where the reciprocal would be infinite, d is 0 as binary16. */
        float up = d > 0x1p-126f ? 1.0f / d : 0.0f;
        uint16_t half = float_to_f16(d);
        memcpy(blocks, &half, sizeof half);
        for (int j = 0; j < 32; j++) {
            float q = roundf(w[j] * up); /* ties away from zero */
            q = q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q;
            blocks[2 + j] = (uint8_t)(int8_t)q;
        }
    }
}
