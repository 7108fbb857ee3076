/* kernels/cuda/wgmma.cuh - the matrix instruction of a warpgroup on tiles of 128-byte rows, bf16 with
 * float32 sums.
 *
 * A tile has blocks of 64 values by n_rows rows; unit u (16 bytes) of row r of a block lies at r * 128 +
 * (u ^ r % 8) * 16, and a block is a multiple of 1024 bytes. The values of rows are what is summed over
 * where a tile is read as rows, and its rows where it is read as columns. Of the sums, warp w of the
 * group has rows 16 w .. 16 w + 15 as a fragment of mma.cuh has them, 8 columns after the other. */
#ifndef MB_KERNELS_CUDA_WGMMA_CUH
#define MB_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/arch.cuh"

#include <cstdint>

/* What threads wrote to shared memory is there for the matrix and copy engines. */
static __device__ __forceinline__ void fence_for_engines()
{
#ifdef CUDA_SM90A
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Of each thread of the warpgroup, from now on. */
template <int N> static __device__ __forceinline__ void more_registers()
{
#ifdef CUDA_SM90A
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N> static __device__ __forceinline__ void fewer_registers()
{
#ifdef CUDA_SM90A
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#ifdef CUDA_SM90A

static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all sums are there, among them d. */
template <int N> static __device__ __forceinline__ void wgmma_end(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* at: of the first row of 8, at the first value of 16. */
static __device__ __forceinline__ uint64_t wgmma_rows(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* at: of the first of 16 rows, in the first block; block_bytes from one to the next. */
static __device__ __forceinline__ uint64_t wgmma_columns(uint32_t at, uint32_t block_bytes)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(block_bytes >> 4) << 16 | 64ull << 32 |
           1ull << 62;
}

#define WG_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_F16(i) WG_F4(i), WG_F4(i + 4), WG_F4(i + 8), WG_F4(i + 12)
#define WG_D32                                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_D64                                                                                     \
    WG_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "    \
           "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* d [64, 64] = a [64 rows, 16] * b [64 rows, 16], or that added to d. */
static __device__ __forceinline__ void wgmma_rows_by_rows(float (&d)[32], uint64_t a, uint64_t b,
                                                          bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WG_D32
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : WG_F16(0), WG_F16(16)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d [64, 64] or [64, 128] += a [64, 16], in registers, * b [16 rows, 64 or 128 columns]. */
static __device__ __forceinline__ void wgmma_by_columns(float (&d)[32], const uint32_t a[4],
                                                        uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WG_D32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : WG_F16(0), WG_F16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ __forceinline__ void wgmma_by_columns(float (&d)[64], const uint32_t a[4],
                                                        uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WG_D64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : WG_F16(0), WG_F16(16), WG_F16(32), WG_F16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef WG_F4
#undef WG_F16
#undef WG_D32
#undef WG_D64

#endif
#endif
