/* kernels/cuda/fp8_mma.cuh - Hopper's machinery for products of E4M3 codes: barriers in shared memory,
 * copies that complete on them, and the warpgroup's matrix instruction, m64 x N x k32. */
#ifndef MB_KERNELS_CUDA_FP8_MMA_CUH
#define MB_KERNELS_CUDA_FP8_MMA_CUH

#include "kernels/cuda/device.cuh"

#include <cuda.h>

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint32_t at, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Arrives, and holds the phase open until bytes more have come. */
static __device__ __forceinline__ void barrier_expect(uint32_t at, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

/* Arrives once this thread's copies so far have come. */
static __device__ __forceinline__ void barrier_arrive_after_copies(uint32_t at)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}

/* 16 bytes, or zeros. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map,
                                                uint32_t barrier, int c0, int c1, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(0), "r"(c4)
                 : "memory");
}

/* Rows of 128 codes in shared memory, 16-byte pieces of row r exchanged by r % 8: what the matrix
 * instruction reads as its 128-byte swizzle. at is a multiple of 1024. */
static __device__ __forceinline__ uint64_t swizzled_tile(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* d is complete when this returns. */
template <int N> static __device__ __forceinline__ void wgmma_wait(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define MB_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MB_D8(d, i) MB_D4(d, i), MB_D4(d, i + 4)
#define MB_D16(d, i) MB_D8(d, i), MB_D8(d, i + 8)

/* d [64, N] = a [64, 32] b [N, 32]^T, or that added to d. Thread t of the warpgroup holds of d, for
 * j < N / 8, rows t / 32 * 16 + t % 32 / 4 (d[4 j], d[4 j + 1]) and 8 more (d[4 j + 2], d[4 j + 3]),
 * columns 8 j + t % 4 * 2 and the next. */
static __device__ __forceinline__ void wgmma_fp8(float (&d)[8], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, %8, %9, p, 1, 1;\n}"
                 : MB_D8(d, 0)
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma_fp8(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, p, 1, 1;\n}"
                 : MB_D16(d, 0), MB_D16(d, 16)
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma_fp8(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p, 1, 1;\n}"
                 : MB_D16(d, 0), MB_D16(d, 16), MB_D16(d, 32), MB_D16(d, 48)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* An 8 x 8 matrix of 16-bit values, of which a lane holds row lane / 4, columns lane % 4 * 2 and the
 * next, turned. */
static __device__ __forceinline__ uint32_t turn(uint32_t v)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
    return v;
}

#endif
