/* kernels/cuda/mma_sm90.cuh - Hopper's instructions for matrix kernels: barriers in shared memory,
 * bulk copies, and wgmma with weights from registers. */
#ifndef MB_KERNELS_CUDA_MMA_SM90_CUH
#define MB_KERNELS_CUDA_MMA_SM90_CUH

#include "kernels/cuda/arch.cuh"

#include <cstdint>

#ifdef CUDA_SM90A

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- barriers --- */

static __device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* After barrier_init, before any other thread or the copy engine uses them. */
static __device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* --- copies --- */

/* bytes, both addresses: multiples of 16. */
static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* 16 bytes, of which the first `bytes` are read and the rest are zeros. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* The barrier counts this thread once all of its copies so far have landed. Whoever waits for it
 * needs a proxy_fence before tensor cores read them. A fence here instead would wait for the copies:
 * one stage would be on its way at a time. */
static __device__ __forceinline__ void copies_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

/* What this thread wrote to shared memory, or knows to be written, is there for tensor cores and the
 * copy engine. */
static __device__ __forceinline__ void proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- warpgroups --- */

template <int REGISTERS> static __device__ __forceinline__ void registers_up()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void registers_down()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

static __device__ __forceinline__ void group_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

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

/* Rows of 128 bytes with 128-byte swizzle, eight of them to 1024 bytes: piece p (16 bytes) of row r
 * lies at r * 128 + (p ^ r % 8) * 16. address: shared, of row 0, a multiple of 1024. A step of 16
 * bf16 further is + 2. */
static __device__ __forceinline__ uint64_t rows_descriptor(uint32_t address)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (address & 0x3ffffu) >> 4;
}

/* d[64 outputs x N tokens] += a[64 x 16] (registers) * rows[N x 16] (shared). Thread t of the
 * warpgroup has rows o = 16(t / 32) + t % 32 / 4 and o + 8: d[4j], d[4j + 1] are tokens 8j + 2(t % 4)
 * and the next of row o, d[4j + 2], d[4j + 3] of row o + 8. */
#define MMA_BEGIN(n)                                                                               \
    "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                     \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {"
#define MMA_END(a0, a1, a2, a3, b) "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 0;\n}"
#define D_0 "%0, %1, %2, %3"
#define D_1 D_0 ", %4, %5, %6, %7"
#define D_2 D_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define D_3 D_2 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_4                                                                                        \
    D_3 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, "  \
        "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) F4(i), F4(i + 4)
#define F16(i) F8(i), F8(i + 8)
#define F32(i) F16(i), F16(i + 16)
#define A_AND_B "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

static __device__ __forceinline__ void wgmma(float (&d)[4], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(8) D_0 MMA_END("%4", "%5", "%6", "%7", "%8") : F4(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[8], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(16) D_1 MMA_END("%8", "%9", "%10", "%11", "%12") : F8(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(32) D_2 MMA_END("%16", "%17", "%18", "%19", "%20") : F16(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(64) D_3 MMA_END("%32", "%33", "%34", "%35", "%36") : F32(0) : A_AND_B);
}

static __device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile(MMA_BEGIN(128) D_4 MMA_END("%64", "%65", "%66", "%67", "%68")
                 : F32(0), F32(32)
                 : A_AND_B);
}

#undef MMA_BEGIN
#undef MMA_END
#undef D_0
#undef D_1
#undef D_2
#undef D_3
#undef D_4
#undef F4
#undef F8
#undef F16
#undef F32
#undef A_AND_B

/* --- a warp's own --- */

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

/* Four 8 x 8 matrices of bf16; lane i has the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* d[16 outputs x 8 tokens] += a[16 x 16] * b[8 x 16], as wgmma has them for a warp. */
static __device__ __forceinline__ void mma(float *d, const uint32_t (&a)[4], const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
#endif
