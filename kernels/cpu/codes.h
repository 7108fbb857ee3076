/* kernels/cpu/codes.h - codes and scales of the quantized formats into vectors of float32, for the
 * three instruction sets. Included after simd.h; cpu.h says how a panel keeps them.
 *
 * Codes become floats by moving their bits to where float32 has them; exponents that are then off
 * by a constant are put right by the multiplication with the scale, into which the constant has
 * gone as a power of two. A product is rounded once, like that of code and scale. */
#ifndef MB_CPU_CODES_H
#define MB_CPU_CODES_H

#include "kernels/cpu/simd.h"

enum {
    BYTE_UNIT = 4, /* inputs whose 8-bit codes lie together, BYTE_UNIT_BYTES of a panel */
    BYTE_UNIT_BYTES = BYTE_UNIT * PANEL,
    NIBBLE_UNIT = 8, /* and of 4-bit codes */
    NIBBLE_UNIT_BYTES = NIBBLE_UNIT * PANEL / 2
};

typedef enum NibbleKind { NIBBLE_E2M1, NIBBLE_INT4, NIBBLE_IQ2, N_NIBBLE_KINDS } NibbleKind;

/* The sixteen values as bf16. IQ2: levels 8, 25, 43, and bit 3 for the sign. */
static const uint16_t nibble_bf16[N_NIBBLE_KINDS][16] = {
    {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0,
     0xc000, 0xc040, 0xc080, 0xc0c0},
    {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040,
     0x4080, 0x40a0, 0x40c0, 0x40e0},
    {0x4100, 0x41c8, 0x422c, 0, 0, 0, 0, 0, 0xc100, 0xc1c8, 0xc22c, 0, 0, 0, 0, 0}};

/* E4M3's bits in float32's places are its value times 2^-120, subnormals included. */
#define E4M3_OFFSET 0x1p120f

/* Vectors of 8-bit codes: a lane is one output, its four bytes are four inputs. A step of nibbles
 * is NIBBLE_STEP inputs of NIBBLE_LOAD, a part of a unit that is loaded at once. */
#if CPU_ISA == 0

typedef const uint8_t *Nibbles; /* [PANEL] of two inputs */
typedef struct NibbleTable {
    const uint16_t *value;
} NibbleTable;
typedef struct MxScale {
    V s[NV];
} MxScale;
enum { NIBBLE_LOAD = 2, NIBBLE_STEP = 2 };

INLINE V v_bits(uint32_t bits)
{
    V v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
INLINE V v_from_e4m3_scale(const uint8_t *p)
{
    return v_bits((uint32_t)*p << 20);
}
INLINE V v_from_e8m0(const uint8_t *p)
{
    return v_bits(*p ? (uint32_t)*p << 23 : 0x00400000U);
}
INLINE V v_from_nibble(const uint8_t *p, int high)
{
    return (float)(*p >> 4 * high & 15);
}
INLINE Nibbles nibbles_load(const uint8_t *p)
{
    return p;
}
INLINE NibbleTable nibble_table(NibbleKind kind)
{
    return (NibbleTable){nibble_bf16[kind]};
}
INLINE void nibbles_decode(Nibbles codes, int step, NibbleTable t, V w[NIBBLE_STEP][NV])
{
    (void)step;
    for (int v = 0; v < NV; v++) {
        w[0][v] = bf16_to_float(t.value[codes[v] & 15U]);
        w[1][v] = bf16_to_float(t.value[codes[v] >> 4]);
    }
}
INLINE MxScale mx_scale(const uint8_t *scales)
{
    MxScale m;
    for (int v = 0; v < NV; v++)
        m.s[v] = v_from_e8m0(scales + v);
    return m;
}
INLINE void mx_decode(Nibbles codes, int step, MxScale m, V w[NIBBLE_STEP][NV])
{
    nibbles_decode(codes, step, nibble_table(NIBBLE_E2M1), w);
    for (int v = 0; v < NV; v++)
        for (int i = 0; i < NIBBLE_STEP; i++)
            w[i][v] *= m.s[v];
}
INLINE void e4m3_decode(const uint8_t *unit, int v, V w[BYTE_UNIT])
{
    for (int k = 0; k < BYTE_UNIT; k++) {
        uint32_t code = unit[BYTE_UNIT * v + k];
        w[k] = v_bits((code & 0x80U) << 24 | (code & 0x7fU) << 20);
    }
}
INLINE void int8_decode(const uint8_t *unit, int v, V w[BYTE_UNIT])
{
    for (int k = 0; k < BYTE_UNIT; k++)
        w[k] = (float)(int8_t)unit[BYTE_UNIT * v + k];
}

#elif CPU_ISA == 1

/* A unit is two loads of 32 bytes: low nibbles are inputs 0 and 1, high nibbles 2 and 3. Two byte
 * shuffles give the two bytes of a bf16; unpacking them leaves inputs k and k + 1 of one output in
 * one 32-bit lane. */
typedef __m256i Nibbles;
typedef struct NibbleTable {
    __m256i high, low;
} NibbleTable;
typedef struct MxScale {
    __m256i down[2]; /* what to subtract, in both halves of each 32-bit lane */
} MxScale;
enum { NIBBLE_LOAD = 4, NIBBLE_STEP = 2 };

INLINE __m256i bytes_to_32(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
INLINE V v_from_e4m3_scale(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(bytes_to_32(p), 20));
}
INLINE V v_from_e8m0(const uint8_t *p)
{
    __m256i bits = _mm256_slli_epi32(bytes_to_32(p), 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(0x00400000)));
}
/* The low or high nibbles of VL bytes. */
INLINE V v_from_nibble(const uint8_t *p, int high)
{
    __m256i wide = bytes_to_32(p);
    wide = high ? _mm256_srli_epi32(wide, 4) : _mm256_and_si256(wide, _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(wide);
}
INLINE Nibbles nibbles_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
INLINE NibbleTable nibble_table(NibbleKind kind)
{
    const __m128i *value = (const __m128i *)(const void *)nibble_bf16[kind];
    __m128i a = _mm_loadu_si128(value), b = _mm_loadu_si128(value + 1);
    __m128i byte = _mm_set1_epi16(255);
    __m128i high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    __m128i low = _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte));
    return (NibbleTable){_mm256_broadcastsi128_si256(high), _mm256_broadcastsi128_si256(low)};
}
/* The pairs of inputs of a step: outputs 0-7 in a, 8-15 in b. */
INLINE void nibble_pairs(Nibbles codes, int step, NibbleTable t, __m256i *a, __m256i *b)
{
    codes = _mm256_and_si256(step ? _mm256_srli_epi16(codes, 4) : codes, _mm256_set1_epi8(15));
    __m256i h = _mm256_shuffle_epi8(t.high, codes), l = _mm256_shuffle_epi8(t.low, codes);
    *a = _mm256_unpacklo_epi8(l, h);
    *b = _mm256_unpackhi_epi8(l, h);
}
INLINE void split_pairs(__m256i a, __m256i b, V w[NIBBLE_STEP][NV])
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    w[0][0] = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    w[0][1] = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    w[1][0] = _mm256_castsi256_ps(_mm256_and_si256(a, upper));
    w[1][1] = _mm256_castsi256_ps(_mm256_and_si256(b, upper));
}
INLINE void nibbles_decode(Nibbles codes, int step, NibbleTable t, V w[NIBBLE_STEP][NV])
{
    __m256i a, b;
    nibble_pairs(codes, step, t, &a, &b);
    split_pairs(a, b, w);
}
/* MXFP4's values are made as 2^125 times what they are; the scale is then a subtraction from the
 * exponent, which leaves 0 alone because it saturates. So it holds for scale bytes MX_LEAST ..
 * MX_MOST, where no value leaves the normal numbers, and for all bytes where all codes are 0. Code
 * 8, which is -0, becomes 0: adding x * -0 or x * +0 to a sum that began as +0 is the same. */
INLINE MxScale mx_scale(const uint8_t *scales)
{
    MxScale m;
    UNROLLED (v, NV) {
        __m256i b = bytes_to_32(scales + v * VL);
        b = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(MX_MOST), b), 7);
        m.down[v] = _mm256_or_si256(b, _mm256_slli_epi32(b, 16));
    }
    return m;
}
INLINE void mx_decode(Nibbles codes, int step, MxScale m, V w[NIBBLE_STEP][NV])
{
    /* bf16 0x7e00 is 2^125; 0.5, 1, 1.5 ... 6 times that is 0x7d80, 0x7e00, 0x7e40 ... 0x7f40. */
    const NibbleTable t = {
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x7d, 0x7e, 0x7e, 0x7e, 0x7e, 0x7f, 0x7f, 0,
                                                  (char)0xfd, (char)0xfe, (char)0xfe, (char)0xfe,
                                                  (char)0xfe, (char)0xff, (char)0xff)),
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, (char)0x80, 0, 0x40, (char)0x80, (char)0xc0, 0,
                                                  0x40, 0, (char)0x80, 0, 0x40, (char)0x80,
                                                  (char)0xc0, 0, 0x40))};
    __m256i a, b;
    nibble_pairs(codes, step, t, &a, &b);
    split_pairs(_mm256_subs_epu16(a, m.down[0]), _mm256_subs_epu16(b, m.down[1]), w);
}
/* Two codes of a lane at a time become bf16s: in each 16-bit half the sign stays on top, the rest
 * moves down by four. */
INLINE void e4m3_decode(const uint8_t *unit, int v, V w[BYTE_UNIT])
{
    const __m256i keep = _mm256_set1_epi16((short)0x87f0),
                  upper = _mm256_set1_epi32((int)0xffff0000);
    __m256i x = _mm256_loadu_si256((const __m256i *)(unit + 32 * v));
    __m256i odd = _mm256_and_si256(_mm256_srai_epi16(x, 4), keep);
    __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 4), keep);
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(even, 16));
    w[1] = _mm256_castsi256_ps(_mm256_slli_epi32(odd, 16));
    w[2] = _mm256_castsi256_ps(_mm256_and_si256(even, upper));
    w[3] = _mm256_castsi256_ps(_mm256_and_si256(odd, upper));
}
INLINE void int8_decode(const uint8_t *unit, int v, V w[BYTE_UNIT])
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(unit + 32 * v));
    w[0] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24));
    w[1] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 24));
    w[2] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 8), 24));
    w[3] = _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 24));
}

#else

/* A unit is one load: the 32-bit lane of an output holds its eight inputs, lowest nibble first; a
 * permute looks up the low four bits of each lane. */
typedef __m512i Nibbles;
typedef struct NibbleTable {
    V value;
} NibbleTable;
typedef struct MxScale {
    V s;
} MxScale;
enum { NIBBLE_LOAD = 8, NIBBLE_STEP = 1 };

INLINE __m512i bytes_to_32(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE V v_from_e4m3_scale(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(bytes_to_32(p), 20));
}
INLINE V v_from_e8m0(const uint8_t *p)
{
    __m512i bits = _mm512_slli_epi32(bytes_to_32(p), 23);
    return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));
}
INLINE V v_from_nibble(const uint8_t *p, int high)
{
    __m512i wide = bytes_to_32(p);
    wide = high ? _mm512_srli_epi32(wide, 4) : _mm512_and_si512(wide, _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(wide);
}
INLINE Nibbles nibbles_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
INLINE NibbleTable nibble_table(NibbleKind kind)
{
    return (NibbleTable){v_from_bf16((const uint8_t *)nibble_bf16[kind])};
}
INLINE void nibbles_decode(Nibbles codes, int step, NibbleTable t, V w[NIBBLE_STEP][NV])
{
    w[0][0] = _mm512_permutexvar_ps((__m512i)((__v16su)codes >> (4 * step)), t.value);
}
INLINE MxScale mx_scale(const uint8_t *scales)
{
    return (MxScale){v_from_e8m0(scales)};
}
INLINE void mx_decode(Nibbles codes, int step, MxScale m, V w[NIBBLE_STEP][NV])
{
    nibbles_decode(codes, step, nibble_table(NIBBLE_E2M1), w);
    w[0][0] = _mm512_mul_ps(w[0][0], m.s);
}
INLINE void e4m3_decode(const uint8_t *unit, int v, V w[BYTE_UNIT])
{
    (void)v;
    const __m512i keep = _mm512_set1_epi16((short)0x87f0),
                  upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i x = _mm512_loadu_si512(unit);
    __m512i odd = _mm512_and_si512(_mm512_srai_epi16(x, 4), keep);
    __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 4), keep);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(even, 16));
    w[1] = _mm512_castsi512_ps(_mm512_slli_epi32(odd, 16));
    w[2] = _mm512_castsi512_ps(_mm512_and_si512(even, upper));
    w[3] = _mm512_castsi512_ps(_mm512_and_si512(odd, upper));
}
INLINE void int8_decode(const uint8_t *unit, int v, V w[BYTE_UNIT])
{
    (void)v;
    __m512i x = _mm512_loadu_si512(unit);
    w[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24));
    w[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24));
    w[2] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 8), 24));
    w[3] = _mm512_cvtepi32_ps(_mm512_srai_epi32(x, 24));
}

#endif

/* Lanes v * VL .. of a group's PANEL scales, as quant_scale() gives them. */
INLINE V group_scale(const Panel *p, const uint8_t *scales, int v)
{
    switch (p->scale) {
    case SCALE_F32:
        return v_load((const float *)(const void *)scales + v * VL);
    case SCALE_BF16:
        return v_from_bf16(scales + 2 * v * VL);
    case SCALE_F16:
        return v_from_f16(scales + 2 * v * VL);
    case SCALE_E8M0:
        return v_from_e8m0(scales + v * VL);
    default: {
        V s = v_mul(v_from_e4m3_scale(scales + v * VL), v_set1(E4M3_OFFSET));
        if (p->format != FORMAT_NVFP4)
            return s;
        return p->divides ? v_div(s, v_set1(p->global)) : v_mul(s, v_set1(p->global));
    }
    }
}

#endif
