/* kernels/cuda/mma.cuh - one function for each instruction that tensor-core kernels are made of: matrix
 * fragments, the copy engine and its barriers. Addresses are those of shared memory.
 *
 * Fragments (PTX, mma.m16n8k16). Lane l holds row l / 4 and column pair l % 4: of A a[0] rows 0-7 and
 * k 0-7, a[1] rows 8-15, a[2] and a[3] the same of k 8-15; of B b0 k 0-7 and b1 k 8-15, a column per
 * l / 4; of C c[0], c[1] row l / 4 and c[2], c[3] row l / 4 + 8. */
#ifndef MB_KERNELS_CUDA_MMA_CUH
#define MB_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8 x 8 matrices of 16-bit values; lane l brings the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

constexpr uint32_t ONES = 0x3f803f80u; /* two of bf16: of which an operand is made that sums */

/* c += a * b, products of bf16 summed in float32 */
static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0,
                                           uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&v;
}

/* 2^x within 2 units of the last place; 0 below 2^-126. */
static __device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* --- barriers in shared memory, 8 bytes each --- */

/* Where threads give back what instructions read, each of them arrives: compute-sanitizer takes one that
 * arrives for others, however they met before, to speak for itself alone. Where a wgmma began in
 * between, one of each warp will do. */
static __device__ __forceinline__ void barrier_make(uint32_t at, int n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n_arrivals) : "memory");
}

/* After barrier_make, before any other thread or the copy engine sees them. */
static __device__ __forceinline__ void barriers_made()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void barrier_arrive(uint32_t at)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(at) : "memory");
}

/* Until the phase of this parity, 0 first, is over. */
static __device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(at),
                 "r"(parity)
                 : "memory");
#else
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(at),
                 "r"(parity)
                 : "memory");
#endif
}

/* What this thread wrote to shared memory or read there, or knows to be written or read, comes before what
 * tensor cores and the copy engine do there next. It waits for the thread's own cp.async. */
static __device__ __forceinline__ void proxy_fence()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* By all lanes of a warp: bytes, a multiple of 16, from device memory to shared memory, and one arrival
 * at the barrier once they are there. Whoever read by instructions what lay there before had a proxy_fence
 * before giving the place back. Before sm_90 the warp copies them itself. */
static __device__ __forceinline__ void load_bytes(uint32_t to, const void *from, uint32_t bytes,
                                                  uint32_t barrier)
{
    int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        asm volatile(
            "{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(
                barrier),
            "r"(bytes)
            : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
            "%2, [%3];" ::"r"(to),
            "l"(from), "r"(bytes), "r"(barrier)
            : "memory");
    }
#else
    for (uint32_t i = (uint32_t)lane * 16; i < bytes; i += 32 * 16) {
        uint4 w = *(const uint4 *)((const uint8_t *)from + i);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + i), "r"(w.x), "r"(w.y),
                     "r"(w.z), "r"(w.w)
                     : "memory");
    }
    __syncwarp();
    if (lane == 0)
        barrier_arrive(barrier);
#endif
    __syncwarp();
}

/* Until THREADS threads, whole warps, are at this barrier, one of 1 to 15. */
template <int THREADS> static __device__ __forceinline__ void meet(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

/* One of THREADS at the barrier without waiting for the others. */
template <int THREADS> static __device__ __forceinline__ void meet_later(int barrier)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

static __device__ __forceinline__ void store_unit(uint32_t at, uint4 w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w.x), "r"(w.y), "r"(w.z),
                 "r"(w.w)
                 : "memory");
}

static __device__ __forceinline__ void store_word(uint32_t at, uint32_t w)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(w) : "memory");
}

static __device__ __forceinline__ uint4 load_unit(uint32_t at)
{
    uint4 w;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "r"(at)
                 : "memory");
    return w;
}

#endif
