/* quant/lanes.h - 16 small codes at a time, to and from float32.
 *
 * The same codes as element.h, without branches, in float32 and integer operations that are exact
 * or IEEE 754: compilers turn the loops into vectors of whatever width the including file is
 * compiled for, with the same bits. */
#ifndef MB_QUANT_LANES_H
#define MB_QUANT_LANES_H

#include <stdint.h>
#include <string.h>

enum {
    LANES = 16,
    E4M3_LARGEST = 0x43e00000, /* 448 and 2^-6 as float32 bits */
    E4M3_NORMAL = 0x3c800000,
    E2M1_LARGEST = 0x40c00000, /* 6 and 1 */
    E2M1_NORMAL = 0x3f800000,
    LANE_INFINITE = 0x7f800000,
    LANE_MAGNITUDE = 0x7fffffff
};

static inline int32_t lane_bits(float v)
{
    int32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline float lane_float(int32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* All bits where a < b, else none: a condition that loops can do arithmetic with. */
static inline int32_t lane_less(int32_t a, int32_t b)
{
    return -(int32_t)(a < b);
}

/* Nearest E4M3 codes, ties to even, saturating. Adding a power of two whose last bit is the unit of
 * v's own octave (of the least normal one at least) rounds v to whole units. */
static inline void lanes_to_e4m3(uint8_t *restrict code, const float *restrict v)
{
    int32_t c[LANES];
    for (int i = 0; i < LANES; i++) {
        int32_t bits = lane_bits(v[i]), magnitude = bits & LANE_MAGNITUDE;
        int32_t m = magnitude < E4M3_LARGEST ? magnitude : E4M3_LARGEST;
        int32_t octave = (m > E4M3_NORMAL ? m : E4M3_NORMAL) >> 23;
        int32_t anchor = (octave + 20) << 23;
        int32_t units = lane_bits(lane_float(m) + lane_float(anchor)) - anchor;
        int32_t nan = lane_less(LANE_INFINITE, magnitude) & 0x7f;
        c[i] = ((octave - (E4M3_NORMAL >> 23)) << 3) + units;
        c[i] |= nan | (bits >> 24 & 0x80);
    }
    for (int i = 0; i < LANES; i++)
        code[i] = (uint8_t)c[i];
}

static inline float lane_from_e4m3(int32_t code)
{
    int32_t m = code & 0x7f, tiny = lane_less(m, 8), nan = lane_less(0x7e, m);
    /* Below the least normal number: its octave, minus that number. */
    float t =
        lane_float((m << 20) + (120 << 23) + (tiny & 1 << 23)) - lane_float(tiny & E4M3_NORMAL);
    int32_t bits = (lane_bits(t) & ~nan) | (0x7fc00000 & nan);
    return lane_float(bits | (int32_t)((uint32_t)(code & 0x80) << 24));
}

static inline void lanes_from_e4m3(float *restrict v, const uint8_t *restrict code, float scale)
{
    for (int i = 0; i < LANES; i++)
        v[i] = lane_from_e4m3(code[i]) * scale;
}

/* The same for E2M1. Byte j holds the codes of values j, in its low half, and j + 8, so that
 * vectors need no shuffles. NaN saturates. */
static inline void lanes_to_e2m1(uint8_t *restrict packed, const float *restrict v)
{
    int32_t code[LANES];
    for (int i = 0; i < LANES; i++) {
        int32_t bits = lane_bits(v[i]), magnitude = bits & LANE_MAGNITUDE;
        int32_t m = magnitude < E2M1_LARGEST ? magnitude : E2M1_LARGEST;
        int32_t octave = (m > E2M1_NORMAL ? m : E2M1_NORMAL) >> 23;
        int32_t anchor = (octave + 22) << 23;
        int32_t units = lane_bits(lane_float(m) + lane_float(anchor)) - anchor;
        code[i] = ((octave - (E2M1_NORMAL >> 23)) << 1) + units + (bits >> 28 & 8);
    }
    for (int i = 0; i < LANES / 2; i++)
        packed[i] = (uint8_t)(code[i] | code[i + LANES / 2] << 4);
}

static inline float lane_from_e2m1(int32_t code)
{
    int32_t m = code & 7, tiny = lane_less(m, 2);
    float t =
        lane_float((m << 22) + (126 << 23) + (tiny & 1 << 23)) - lane_float(tiny & E2M1_NORMAL);
    return lane_float(lane_bits(t) | (int32_t)((uint32_t)(code & 8) << 28));
}

static inline void lanes_from_e2m1(float *restrict v, const uint8_t *restrict packed, float scale)
{
    int32_t code[LANES];
    for (int i = 0; i < LANES / 2; i++)
        code[i] = packed[i] & 15;
    for (int i = 0; i < LANES / 2; i++)
        code[i + LANES / 2] = packed[i] >> 4;
    for (int i = 0; i < LANES; i++)
        v[i] = lane_from_e2m1(code[i]) * scale;
}

#endif
