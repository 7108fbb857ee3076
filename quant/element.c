/* quant/element.c - see element.h. */
#include "quant/element.h"

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

/* |v| in units of 2^(1 - bias - fraction bits) as an integer, when it is below the least normal
 * number 2^(1 - bias): adding 2^23 of those units rounds to a whole one, nearest even. */
static uint32_t subnormal_code(float magnitude, float unit)
{
    float anchor = unit * 0x1p23f;
    return bits_of_float(magnitude + anchor) - bits_of_float(anchor);
}

/* Drops n fraction bits, nearest even, and moves the exponent's bias by less. */
static uint32_t normal_code(uint32_t bits, int n, uint32_t less)
{
    bits += (1U << (n - 1)) - 1U + (bits >> n & 1U);
    return (bits >> n) - (less << (23 - n));
}

uint16_t float_to_f16(float v)
{
    uint32_t bits = bits_of_float(v), sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U);
    if (magnitude >= 0x477ff000U) /* 65520, from where on nearest is infinity */
        return (uint16_t)(sign | 0x7c00U);
    if (magnitude < 0x38800000U)
        return (uint16_t)(sign | subnormal_code(float_of_bits(magnitude), 0x1p-24f));
    return (uint16_t)(sign | normal_code(magnitude, 13, 112));
}

float e4m3_to_float(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80U) << 24, exponent = b >> 3 & 15U, fraction = b & 7U;
    if (exponent == 0) {
        float v = (float)fraction * 0x1p-9f;
        return sign ? -v : v;
    }
    if (exponent == 15 && fraction == 7)
        return float_of_bits(sign | 0x7fc00000U);
    return float_of_bits(sign | (exponent + 120U) << 23 | fraction << 20);
}

uint8_t float_to_e4m3(float v)
{
    uint32_t bits = bits_of_float(v), sign = bits >> 24 & 0x80U, magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint8_t)(sign | 0x7fU);
    if (magnitude >= 0x43e00000U) /* 448 */
        return (uint8_t)(sign | 0x7eU);
    if (magnitude < 0x3c800000U) /* 2^-6 */
        return (uint8_t)(sign | subnormal_code(float_of_bits(magnitude), 0x1p-9f));
    return (uint8_t)(sign | normal_code(magnitude, 20, 120));
}

float e2m1_to_float(unsigned nibble)
{
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return value[nibble & 15U];
}

unsigned float_to_e2m1(float v)
{
    uint32_t bits = bits_of_float(v);
    float a = float_of_bits(bits & 0x7fffffffU);
    /* Counts the middles that a is beyond; one that ties to the upper code counts at once. Written
     * so that NaN is beyond them all, and without branches, which weights would not let predict. */
    unsigned code = (unsigned)(!(a <= 0.25f) + !(a < 0.75f) + !(a <= 1.25f) + !(a < 1.75f) +
                               !(a <= 2.5f) + !(a < 3.5f) + !(a <= 5.0f));
    return (bits >> 28 & 8U) | code;
}

float e8m0_to_float(uint8_t b)
{
    if (b == 0)
        return float_of_bits(0x00400000U); /* 2^-127 is subnormal in float32 */
    if (b == 255)
        return float_of_bits(0x7fc00000U);
    return float_of_bits((uint32_t)b << 23);
}

uint8_t float_to_e8m0(float v)
{
    uint32_t bits = bits_of_float(v) & 0x7fffffffU, exponent = bits >> 23;
    if (exponent == 255)
        return 255;
    /* Subnormal numbers: 2^-127 itself, fraction one half, is 0; above it 1 is taken. */
    uint32_t up = exponent ? 0x400000U : 0x400001U;
    return (uint8_t)(exponent + ((bits & 0x7fffffU) >= up));
}
