/* kernels/cuda/gemm_sm90_codes.cuh - from the codes and scales of a record (slabs.h) to the bf16 operands
 * of a thread, in registers; included by gemm_sm90.cuh. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_CODES_CUH
#define MB_KERNELS_CUDA_GEMM_SM90_CODES_CUH

#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_sm90.h"

namespace
{

#ifdef CUDA_SM90A

/* BYTES from shared memory into r, aligned likewise. */
template <int BYTES>
static __device__ __forceinline__ void load_shared(uint32_t *r, uint32_t address)
{
    if constexpr (BYTES == 16)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    else if constexpr (BYTES == 8)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
}

__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b)
{
    uint32_t c;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

/* a where the mask has a bit, b elsewhere: one instruction. */
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t c;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(c) : "r"(a), "r"(b), "r"(mask));
    return c;
}

/* Both halves of a, times the low or the high half of s. */
template <bool HIGH> __device__ __forceinline__ uint32_t mul2_half(uint32_t a, uint32_t s)
{
    uint32_t c;
#define MUL2_BY(half)                                                                              \
    asm("{\n.reg .b16 l, h;\n.reg .b32 both;\nmov.b32 {l, h}, %2;\nmov.b32 both, {" half ", " half  \
        "};\nmul.rn.bf16x2 %0, %1, both;\n}"                                                       \
        : "=r"(c)                                                                                  \
        : "r"(a), "r"(s))
    if (HIGH)
        MUL2_BY("h");
    else
        MUL2_BY("l");
#undef MUL2_BY
    return c;
}

__device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b)
{
    uint32_t c;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

__device__ __forceinline__ uint32_t pack2(float low, float high)
{
    uint32_t c;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(c) : "f"(high), "f"(low));
    return c;
}

/* A thread's codes and scales of steps FROM .. FROM + N - 1 of a record, on their way. */
template <SlabCodec CODEC, int FROM, int N> struct Codes {
    static constexpr int PIECES = slab_pieces(CODEC), WORDS = PIECES; /* words of a step */
    static constexpr int LOAD = N * WORDS < 4 ? 8 : 16;               /* bytes */
    uint32_t word[N * WORDS], scales[2];

    /* at: shared address of the record. */
    __device__ __forceinline__ void load(uint32_t at, int thread)
    {
#pragma unroll
        for (int i = 0; i < N * WORDS; i += LOAD / 4)
            load_shared<LOAD>(word + i, at + thread * 16 +
                                            (FROM * WORDS + i) / 4 * SLAB_THREADS * 16 +
                                            FROM * WORDS % 4 * 4);
        uint32_t s = at + PIECES * SLAB_THREADS * 16 + thread / 4 * slab_scales(CODEC);
        if (slab_scales(CODEC) > 0)
            load_shared<slab_scales(CODEC)>(scales, s);
    }

    /* The operands of steps j and j + 1, j even, from words w. */
    __device__ __forceinline__ void decode_pair(int j, const uint32_t *w, uint32_t *a) const
    {
        if (CODEC == SLAB_MXFP4 || CODEC == SLAB_NVFP4) {
            decode_e2m1(j, w, a);
        } else {
            decode_step(j, w, a);
            decode_step(j + 1, w + WORDS, a + 4);
        }
    }

    __device__ __forceinline__ void decode(uint32_t (&a)[4 * N]) const
    {
#pragma unroll
        for (int j = 0; j < N; j += 2)
            decode_pair(j + FROM, word + j * WORDS, a + 4 * j);
    }

    __device__ __forceinline__ void decode_e2m1(int j, const uint32_t *w, uint32_t *a) const
    {
        constexpr uint32_t E2M1 = 0x81c081c0u, OF_FIRST = 0x06030603u;
        uint32_t bits[8], s[2]; /* s: of the first and the second row; a step's in a half */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bits[4 * i] = w[i] & E2M1;
            bits[4 * i + 1] = w[i] << 4 & E2M1;
            bits[4 * i + 2] = __funnelshift_l(w[i], w[i], 10) & E2M1;
        }
        uint32_t rest = select_bits(w[0], w[1] << 2, OF_FIRST);
        bits[3] = rest << 6 & E2M1;
        bits[7] = __funnelshift_l(rest, rest, 12) & E2M1;
        if (CODEC == SLAB_MXFP4) {
            s[0] = scales[0] << 7 & 0x7f807f80u;
            s[1] = scales[0] >> 1 & 0x7f807f80u;
        } else {
            constexpr uint32_t BIAS = SLAB_NVFP4_BIAS * 0x00800080u;
            s[0] = (scales[j / 2] & 0x00ff00ffu) * 16 + BIAS;
            s[1] = (scales[j / 2] >> 8 & 0x00ff00ffu) * 16 + BIAS;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bool high = CODEC == SLAB_MXFP4 ? j >= 2 : i >= 4;
            a[i] = high ? mul2_half<true>(bits[i], s[i % 2]) : mul2_half<false>(bits[i], s[i % 2]);
        }
    }

    __device__ __forceinline__ void decode_step(int j, const uint32_t *w, uint32_t *a) const
    {
        constexpr uint32_t E4M3 = 0x07f007f0u, SIGN = 0x80008000u;
        uint32_t s[2] = {0, 0}; /* of the first and the second row */
        if (CODEC == SLAB_MXFP8) {
            s[0] = __byte_perm(scales[0], 0, 0x4040 + j / 2 * 0x0202) << 7;
            s[1] = __byte_perm(scales[0], 0, 0x4141 + j / 2 * 0x0202) << 7;
        } else if (CODEC == SLAB_INT4 || CODEC == SLAB_INT8) {
            uint32_t pair = j / 2 ? scales[1] : scales[0];
            s[0] = __byte_perm(pair, 0, 0x1010);
            s[1] = __byte_perm(pair, 0, 0x3232);
        } else if (CODEC == SLAB_E4M3 || CODEC == SLAB_BLOCK8) {
            s[0] = s[1] = 0x7b807b80u; /* 2^120 */
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (CODEC == SLAB_BF16) {
                a[i] = w[i];
            } else if (CODEC == SLAB_INT4) { /* 128 + code, less 136 */
                a[i] =
                    mul2(sub2((w[0] >> 4 * i & 0x000f000fu) | 0x43004300u, 0x43084308u), s[i % 2]);
            } else if (CODEC == SLAB_INT8) {
                float scale = __half2float(__ushort_as_half((unsigned short)s[i % 2])), v[2];
#pragma unroll
                for (int n = 0; n < 2; n++) /* 2^23 + code */
                    v[n] = __uint_as_float(
                               __byte_perm(w[i / 2], 0x4b000000u, 0x7440 + i % 2 * 2 + n)) -
                           8388736.0f;
                a[i] = pack2(v[0] * scale, v[1] * scale);
            } else {
                uint32_t c = i % 2 ? w[i / 2] << 8 : w[i / 2];
                a[i] = mul2((c & SIGN) | (c >> 4 & E4M3), s[i % 2]);
                if (CODEC == SLAB_BLOCK8) {
                    float scale = __uint_as_float(i % 2 ? scales[1] : scales[0]);
                    a[i] = pack2(__uint_as_float(a[i] << 16) * scale,
                                 __uint_as_float(a[i] & 0xffff0000u) * scale);
                }
            }
        }
    }
};

#endif

} // namespace

#endif
