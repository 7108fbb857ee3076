/* quant/encode_internal.h - what the encoders of encode.h share. */
#ifndef MB_QUANT_ENCODE_INTERNAL_H
#define MB_QUANT_ENCODE_INTERNAL_H

#include "quant/encode.h"

/* v as the weights' own type holds it. */
static inline float round_to(FormatId source, float v)
{
    switch (source) {
    case FORMAT_BF16:
        return bf16_to_float(float_to_bf16(v));
    case FORMAT_F16:
        return f16_to_float(float_to_f16(v));
    default:
        return v;
    }
}

/* The least power of two that is at least ratio >= 0, as E8M0, no less than 2^-127 and no more than
 * 2^127. */
static inline uint8_t ceil_e8m0(float ratio)
{
    uint32_t bits = bits_of_float(ratio);
    if (bits <= 0x00400000U) /* 2^-127 */
        return 0;
    uint32_t b = (bits >> 23) + ((bits & 0x7fffffU) != 0);
    return (uint8_t)(b > 254 ? 254 : b);
}

#endif
