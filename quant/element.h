/* quant/element.h - the codes that single values are stored in, to the bit.
 *
 * Decoders are exact in float32. Encoders round to nearest, ties to the even code, and saturate;
 * what a format does differently stands with its quantizer. */
#ifndef MB_QUANT_ELEMENT_H
#define MB_QUANT_ELEMENT_H

#include <stdint.h>
#include <string.h>

/* The same 32 bits as the other type. */
static inline float float_of_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint32_t bits_of_float(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* IEEE 754 binary16, and the upper half of a binary32. */
float bf16_to_float(uint16_t bits);
float f16_to_float(uint16_t bits);
uint16_t float_to_bf16(float v);
uint16_t float_to_f16(float v);

/* OCP 8-bit floats, "FN" variant: no infinities, 0x7f and 0xff are NaN, the largest is 448. */
float e4m3_to_float(uint8_t b);
/* Saturates to 448 of v's sign, infinities too; NaN keeps its sign. */
uint8_t float_to_e4m3(float v);

/* OCP MX v1.0: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign bit; E8M0 is 2^(b - 127), 255 is NaN. */
float e2m1_to_float(unsigned nibble);
unsigned float_to_e2m1(float v); /* saturates to 6; NaN gives 7 or 15 by its sign */
float e8m0_to_float(uint8_t b);
/* As PyTorch casts a float to E8M0: the exponent, one more from 1.5 on; the sign is ignored;
 * 255 for what is beyond, infinite or NaN. (Quantizers have rules of their own.) */
uint8_t float_to_e8m0(float v);

#endif
