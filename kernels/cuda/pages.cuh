/* kernels/cuda/pages.cuh - how keys and values lie in their pages, for those who write them and those
 * who read them.
 *
 * A page is read by the copy engine as it lies and then by matrix instructions, eight rows at a time.
 * The units of 16 bytes of a row are therefore exchanged, so that the same unit of eight rows lies in
 * different banks; bf16 heads of a multiple of 64 lanes lie in blocks of 64, each of whose rows has 128
 * bytes, as wgmma wants it. A unit of E4M3 has 16 lanes: byte 2 j + h is lane j + 8 h, so that the even
 * bytes of a word are a pair of lanes, and the odd ones that 8 lanes further. E2M1 rests in order,
 * block scales behind all codes. */
#ifndef MB_KERNELS_CUDA_PAGES_CUH
#define MB_KERNELS_CUDA_PAGES_CUH

#include "kernels/cuda/device.cuh"

enum { UNIT_LANES = 8, UNIT_BYTES = 16 }; /* of bf16 */

static __device__ __forceinline__ const void *list_at(const CudaListHead *l, int32_t at)
{
    return (const uint8_t *)l + at;
}

static __device__ __forceinline__ const CudaRow *list_rows(const CudaListHead *l)
{
    return (const CudaRow *)list_at(l, l->rows_at);
}

static __device__ __forceinline__ const int32_t *list_pages(const CudaListHead *l)
{
    return (const int32_t *)list_at(l, l->pages_at);
}

/* By what the number of a unit is exchanged (exclusive or) in this row, for rows of n_units: eight where
 * whole groups of eight are exchanged, else as many as fill the row; rows of an odd number of units
 * lie in different banks anyway. */
static __device__ __forceinline__ int unit_exchange(int n_units, int row)
{
    int group = n_units & -n_units;
    return group >= 8 ? row & 7 : group == 4 ? row >> 1 & 3 : group == 2 ? row >> 2 & 1 : 0;
}

/* Where a unit of bf16 lies in a tile of n_rows rows of n_units. */
static __device__ __forceinline__ int unit_at(int n_units, int n_rows, int row, int unit)
{
    if (n_units % 8 == 0)
        return ((unit / 8 * n_rows + row) * 8 + ((unit ^ row) & 7)) * UNIT_BYTES;
    return (row * n_units + (unit ^ unit_exchange(n_units, row))) * UNIT_BYTES;
}

/* The E4M3 codes in the even or odd bytes of a word as a pair of bf16: signs from one word, the rest,
 * which lies in 0x7f0, from another. Moved to the place of its bits in a bf16 a code is worth 2^-120
 * of its value, subnormals too; NaN becomes 480. */
static __device__ __forceinline__ uint32_t pair_from_bits(uint32_t rest, uint32_t signs)
{
    uint32_t bits;
    asm("lop3.b32 %0, %1, 0x07f007f0, %2, 0xe2;" : "=r"(bits) : "r"(rest), "r"(signs));
    __nv_bfloat162 v = __hmul2(*(const __nv_bfloat162 *)&bits, __float2bfloat162_rn(0x1p120f));
    return *(const uint32_t *)&v;
}

/* Once for both pairs: the compiler would rather mask what was moved. */
static __device__ __forceinline__ uint32_t signs_of_e4m3(uint32_t codes)
{
    uint32_t signs;
    asm("and.b32 %0, %1, 0x80808080;" : "=r"(signs) : "r"(codes));
    return signs;
}

static __device__ __forceinline__ uint32_t even_from_e4m3(uint32_t codes)
{
    return pair_from_bits(codes << 4, signs_of_e4m3(codes) << 8);
}

static __device__ __forceinline__ uint32_t odd_from_e4m3(uint32_t codes)
{
    return pair_from_bits(codes >> 4, signs_of_e4m3(codes));
}

/* A unit of 16 codes as two of bf16. */
static __device__ __forceinline__ uint4 low_from_e4m3(uint4 w)
{
    return make_uint4(even_from_e4m3(w.x), even_from_e4m3(w.y), even_from_e4m3(w.z),
                      even_from_e4m3(w.w));
}

static __device__ __forceinline__ uint4 high_from_e4m3(uint4 w)
{
    return make_uint4(odd_from_e4m3(w.x), odd_from_e4m3(w.y), odd_from_e4m3(w.z),
                      odd_from_e4m3(w.w));
}

/* Eight values of 16 bits. */
static __device__ __forceinline__ uint4 pack_unit(const uint32_t v[UNIT_LANES])
{
    return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}

/* Eight codes of E2M1 times their block's scale, which bf16 holds exactly. Moved to the place of its bits
 * in a bf16 a code is worth 2^-126 of its value, its subnormal too. */
static __device__ __forceinline__ uint4 eight_from_e2m1(uint32_t codes, float scale)
{
    uint32_t even = codes << 4, w[4]; /* codes at the top of their bytes, as odd ones are */
    __nv_bfloat162 by = __float2bfloat162_rn(scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t pair = __byte_perm(even, codes, 0x4000 + i * 0x1010);
        uint32_t bits = (pair & 0x80008000u) | (pair >> 6 & 0x01c001c0u);
        __nv_bfloat162 v =
            __hmul2(__hmul2(*(const __nv_bfloat162 *)&bits, __float2bfloat162_rn(0x1p126f)), by);
        w[i] = *(const uint32_t *)&v;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
