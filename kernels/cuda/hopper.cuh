/* kernels/cuda/hopper.cuh - Hopper's instructions around its matrix instruction: copies that complete on
 * barriers, fences between threads and engines, registers that move between warpgroups. What all
 * architectures have is mma.cuh's; the products are wgmma.cuh's. */
#ifndef MB_KERNELS_CUDA_HOPPER_CUH
#define MB_KERNELS_CUDA_HOPPER_CUH

#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/mma.cuh"

/* What this thread wrote to shared memory, or knows to be written, is there for tensor cores and the
 * copy engine. */
static __device__ __forceinline__ void proxy_fence()
{
#ifdef CUDA_SM90A
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Of each thread of the warpgroup, from now on. */
template <int REGISTERS> static __device__ __forceinline__ void registers_up()
{
#ifdef CUDA_SM90A
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

template <int REGISTERS> static __device__ __forceinline__ void registers_down()
{
#ifdef CUDA_SM90A
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

static __device__ __forceinline__ void group_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#ifdef CUDA_SM90A

/* Arrives, and holds the phase open until bytes more have come. */
static __device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

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

static __device__ __forceinline__ void copy_4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The barrier counts this thread once all of its copies so far have landed. Whoever waits for it
 * needs a proxy_fence before tensor cores read them. A fence here instead would wait for the copies:
 * one stage would be on its way at a time. */
static __device__ __forceinline__ void copies_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

#endif
#endif
