/* kernels/cpu/simd.h - one small vector vocabulary for the three instruction sets.
 *
 * The kernels are written once over V (VL float lanes) and included by kernels_scalar.c,
 * kernels_avx2.c and kernels_avx512.c, each of which defines CPU_ISA first. A panel of 16 outputs
 * is NV vectors. Every operation here is IEEE 754 and lane by lane, and the only reductions are the
 * two trees below, so that all levels give the same bits. */
#ifndef MB_CPU_SIMD_H
#define MB_CPU_SIMD_H

#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#if CPU_ISA > 0
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
/* for (int i = 0; i < n; i++), n a constant, as straight code: what it indexes can then be
 * registers. */
#ifdef __clang__
#define UNROLLED(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define UNROLLED(i, n) _Pragma("GCC unroll 64") for (int i = 0; i < (n); i++)
#endif

/* min and max return their second argument when one is NaN: put the data there. */
#if CPU_ISA == 0

typedef float V;
enum { VL = 1, NV = PANEL };
#define v_zero() 0.0f
#define v_set1(s) ((V)(s))
#define v_load(p) (*(p))
#define v_store(p, v) (*(p) = (v))
#define v_load_n(p, n) ((void)(n), *(p))
#define v_store_n(p, v, n) ((void)(n), *(p) = (v))
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_div(a, b) ((a) / (b))
#define v_fma(a, b, c) fmaf(a, b, c)
INLINE V v_min(V a, V b)
{
    return a < b ? a : b;
}
INLINE V v_max(V a, V b)
{
    return a > b ? a : b;
}
INLINE V v_from_bf16(const uint8_t *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return bf16_to_float(bits);
}
INLINE V v_from_f16(const uint8_t *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return f16_to_float(bits);
}
INLINE V v_power(V t)
{
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 23) + 0x3f800000U;
    memcpy(&t, &bits, sizeof t);
    return t;
}
INLINE V v_where_less(V a, V b, V yes, V no)
{
    return a < b ? yes : no;
}
INLINE V v_keep(V v, int first, int lo, int hi)
{
    return lo <= first && first < hi ? v : -INFINITY;
}
INLINE float v_first(V v)
{
    return v;
}

#elif CPU_ISA == 1

typedef __m256 V;
enum { VL = 8, NV = 2 };
#define v_zero() _mm256_setzero_ps()
#define v_set1(s) _mm256_set1_ps(s)
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_min(a, b) _mm256_min_ps(a, b)
#define v_max(a, b) _mm256_max_ps(a, b)
static const int32_t lane_masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
INLINE __m256i mask_n(int n)
{
    return _mm256_loadu_si256((const __m256i *)(lane_masks + 8 - n));
}
INLINE V v_load_n(const float *p, int n)
{
    return _mm256_maskload_ps(p, mask_n(n));
}
INLINE void v_store_n(float *p, V v, int n)
{
    _mm256_maskstore_ps(p, mask_n(n), v);
}
INLINE V v_from_bf16(const uint8_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE V v_from_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
/* 2^n for t = n + 1.5 * 2^23, which holds n in its low bits: 0 for n = -127, infinity for n =
 * 128. */
INLINE V v_power(V t)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
/* yes where a < b, else (and where one is NaN) no. */
INLINE V v_where_less(V a, V b, V yes, V no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
/* Lane i stays when lo <= first + i < hi; the others become -infinity. */
INLINE V v_keep(V v, int first, int lo, int hi)
{
    __m256i at =
        _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), at),
                                     _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), at));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(in));
}
INLINE float v_first(V v)
{
    return _mm256_cvtss_f32(v);
}

#else

typedef __m512 V;
enum { VL = 16, NV = 1 };
#define v_zero() _mm512_setzero_ps()
#define v_set1(s) _mm512_set1_ps(s)
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
INLINE __mmask16 mask_n(int n)
{
    return (__mmask16)((1U << n) - 1U);
}
INLINE V v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(mask_n(n), p);
}
INLINE void v_store_n(float *p, V v, int n)
{
    _mm512_mask_storeu_ps(p, mask_n(n), v);
}
INLINE V v_from_bf16(const uint8_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE V v_from_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE V v_power(V t)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
}
INLINE V v_where_less(V a, V b, V yes, V no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}
INLINE V v_keep(V v, int first, int lo, int hi)
{
    __m512i at =
        _mm512_add_epi32(_mm512_set1_epi32(first),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 in = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(lo)) &
                   _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32(hi));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), in, v);
}
INLINE float v_first(V v)
{
    return _mm512_cvtss_f32(v);
}

#endif

/* Lanes i and i + 8, then 4, 2, 1 apart: the same trees at every level. */
#if CPU_ISA == 0
INLINE float sum16(const V s[NV])
{
    float lane[PANEL / 2];
    for (int i = 0; i < PANEL / 2; i++)
        lane[i] = s[i] + s[i + PANEL / 2];
    for (int half = PANEL / 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}
INLINE float max16(const V s[NV])
{
    float top = s[0];
    for (int i = 1; i < PANEL; i++)
        top = v_max(top, s[i]);
    return top;
}
#else
INLINE float sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE float max8(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
#if CPU_ISA == 1
#define LOWER_HALF(s) (s)[0]
#define UPPER_HALF(s) (s)[1]
#else
#define LOWER_HALF(s) _mm512_castps512_ps256((s)[0])
#define UPPER_HALF(s) _mm512_extractf32x8_ps((s)[0], 1)
#endif
INLINE float sum16(const V s[NV])
{
    return sum8(_mm256_add_ps(LOWER_HALF(s), UPPER_HALF(s)));
}
INLINE float max16(const V s[NV])
{
    return max8(_mm256_max_ps(LOWER_HALF(s), UPPER_HALF(s)));
}
#endif

/* e^v within 2 ulp: v = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial that is within 2^-28 of
 * e^r. Below -126.5 ln 2 (1e-38) it is 0, above 127.5 ln 2 (2e38) infinite; NaN stays NaN. */
INLINE V v_exp(V v)
{
    const float shift = 0x1.8p23f; /* adding it rounds to an integer, nearest even */
    v = v_max(v_set1(-88.0f), v_min(v_set1(89.0f), v));
    V t = v_fma(v, v_set1(0x1.715476p+0f), v_set1(shift)), n = v_sub(t, v_set1(shift));
    V r = v_fma(n, v_set1(-0x1.62e4p-1f), v); /* ln 2 in two pieces; n * the first is exact */
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    V p = v_set1(0x1.6a5234p-10f);
    p = v_fma(p, r, v_set1(0x1.12396cp-7f));
    p = v_fma(p, r, v_set1(0x1.5558aap-5f));
    p = v_fma(p, r, v_set1(0x1.555492p-3f));
    p = v_fma(p, r, v_set1(0x1.fffffcp-2f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_mul(p, v_power(t));
}

/* tanh v within 3 ulp: below 0.625 an odd polynomial that is within 2^-26.8 of it, above it
 * 1 - 2 / (e^2v + 1), where little cancels. NaN stays NaN. */
INLINE V v_tanh(V v)
{
    V z = v_mul(v, v), p = v_set1(-0x1.75e1cap-8f);
    p = v_fma(p, z, v_set1(0x1.52269ap-6f));
    p = v_fma(p, z, v_set1(-0x1.b83c5ap-5f));
    p = v_fma(p, z, v_set1(0x1.110726p-3f));
    p = v_fma(p, z, v_set1(-0x1.555532p-2f));
    p = v_fma(v_mul(p, z), v, v);
    V e = v_exp(v_add(v, v));
    V q = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    return v_where_less(z, v_set1(0x1.9p-2f), p, q);
}

#endif
