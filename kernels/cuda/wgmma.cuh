/* kernels/cuda/wgmma.cuh - the matrix instruction of a warpgroup, with float32 sums: m64 x N x k16 of
 * bf16, m64 x N x k32 of E4M3.
 *
 * What it reads in shared memory are rows of 128 bytes, eight of them to 1024 bytes: piece p (16 bytes)
 * of row r lies at r * 128 + (p ^ r % 8) * 16. Of the sums d [64, N], thread t of the warpgroup has, for
 * j < N / 8, rows t / 32 * 16 + t % 32 / 4 (d[4 j], d[4 j + 1]) and 8 more (d[4 j + 2], d[4 j + 3]),
 * columns 8 j + t % 4 * 2 and the next: a warp has 16 rows as a fragment of mma.cuh has them. */
#ifndef MB_KERNELS_CUDA_WGMMA_CUH
#define MB_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/hopper.cuh"

#ifdef CUDA_SM90A

static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* The compiler must not move uses of v across this. */
template <int N> static __device__ __forceinline__ void hold(float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(v[i])::"memory");
}

template <int N> static __device__ __forceinline__ void hold(uint32_t (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(v[i])::"memory");
}

/* Until all sums are there, among them d. */
template <int N> static __device__ __forceinline__ void wgmma_end(float (&d)[N])
{
    wgmma_wait<0>();
    hold(d);
}

/* Rows whose values are summed over. address: shared, of row 0, a multiple of 1024, or further by a
 * step's 32 bytes, which is + 2 here. */
static __device__ __forceinline__ uint64_t rows_descriptor(uint32_t address)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (address & 0x3ffffu) >> 4;
}

/* Rows that are summed over. address: of the first of 16 rows, in the first block of 64 columns;
 * block_bytes from one to the next. */
static __device__ __forceinline__ uint64_t columns_descriptor(uint32_t address,
                                                              uint32_t block_bytes)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(block_bytes >> 4) << 16 |
           (address & 0x3ffffu) >> 4;
}

/* Eight rows of 16 values that are summed over, as two matrices of 8 x 16 bytes, one behind the other.
 * address: a multiple of 16. */
static __device__ __forceinline__ uint64_t unit_descriptor(uint32_t address)
{
    return (uint64_t)(128 >> 4) << 32 | (uint64_t)(128 >> 4) << 16 | (address & 0x3ffffu) >> 4;
}

/* The descriptor of a tile so many bytes further, a multiple of 16. */
static __device__ __forceinline__ uint64_t further(uint64_t descriptor, int bytes)
{
    return descriptor >> 32 << 32 | ((uint32_t)descriptor + (uint32_t)(bytes / 16));
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) F4(i), F4(i + 4)
#define F16(i) F8(i), F8(i + 8)
#define F32(i) F16(i), F16(i + 16)
#define D4 "%0, %1, %2, %3"
#define D8 D4 ", %4, %5, %6, %7"
#define D16 D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define D32 D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D48                                                                                        \
    D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define D64                                                                                        \
    D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, "  \
        "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define D80                                                                                        \
    D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define D96                                                                                        \
    D64 ", "                                                                                       \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "         \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D128                                                                                       \
    D96 ", "                                                                                       \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
        "%111, "                                                                                   \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "     \
        "%126, %127"

/* d [64, N] += a [64, 16], in registers, * b [N rows, 16] */
#define MMA_BEGIN(n)                                                                               \
    "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                     \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {"
#define MMA_END(a0, a1, a2, a3, b) "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 0;\n}"
#define A_AND_B "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

static __device__ __forceinline__ void wgmma(float (&d)[4], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(8) D4 MMA_END("%4", "%5", "%6", "%7", "%8") : F4(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[8], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(16) D8 MMA_END("%8", "%9", "%10", "%11", "%12") : F8(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(32) D16 MMA_END("%16", "%17", "%18", "%19", "%20") : F16(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(64) D32 MMA_END("%32", "%33", "%34", "%35", "%36") : F32(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[48], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(96) D48 MMA_END("%48", "%49", "%50", "%51", "%52")
                 : F32(0), F16(32)
                 : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(128) D64 MMA_END("%64", "%65", "%66", "%67", "%68")
                 : F32(0), F32(32)
                 : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[80], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(160) D80 MMA_END("%80", "%81", "%82", "%83", "%84")
                 : F32(0), F32(32), F16(64)
                 : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[96], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(192) D96 MMA_END("%96", "%97", "%98", "%99", "%100")
                 : F32(0), F32(32), F32(64)
                 : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[128], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(256) D128 MMA_END("%128", "%129", "%130", "%131", "%132")
                 : F32(0), F32(32), F32(64), F32(96)
                 : A_AND_B);
}

#undef MMA_BEGIN
#undef MMA_END

/* d [64, 64] = a [64 rows, 16] * b [64 rows, 16], or that added to d. */
static __device__ __forceinline__ void wgmma_rows_by_rows(float (&d)[32], uint64_t a, uint64_t b,
                                                          bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" D32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : F32(0)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* d [64, 64] or [64, 128] += a [64, 16], in registers, * b [16 rows, 64 or 128 columns]. */
static __device__ __forceinline__ void wgmma_by_columns(float (&d)[32], const uint32_t a[4],
                                                        uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" D32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : F32(0)
                 : A_AND_B);
}

static __device__ __forceinline__ void wgmma_by_columns(float (&d)[64], const uint32_t a[4],
                                                        uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" D64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : F32(0), F32(32)
                 : A_AND_B);
}

#undef A_AND_B

/* d [64, N] = a [64 rows, 32] * b [N rows, 32], or that added to d. */
static __device__ __forceinline__ void wgmma_fp8(float (&d)[8], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {" D8
                 "}, %8, %9, p, 1, 1;\n}"
                 : F8(0)
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma_fp8(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" D32
                 "}, %32, %33, p, 1, 1;\n}"
                 : F32(0)
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma_fp8(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" D64
                 "}, %64, %65, p, 1, 1;\n}"
                 : F32(0), F32(32)
                 : "l"(a), "l"(b), "r"((int)add));
}

#undef F4
#undef F8
#undef F16
#undef F32
#undef D4
#undef D8
#undef D16
#undef D32
#undef D48
#undef D64
#undef D80
#undef D96
#undef D128

#endif
#endif
