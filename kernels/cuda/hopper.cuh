/* kernels/cuda/hopper.cuh - Hopper's instructions around its matrix instruction: copies that complete on
 * barriers, pairs of blocks, registers that move between warpgroups. What all
 * architectures have is mma.cuh's; the products are wgmma.cuh's. */
#ifndef MB_KERNELS_CUDA_HOPPER_CUH
#define MB_KERNELS_CUDA_HOPPER_CUH

#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/mma.cuh"

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

/* bytes, both addresses: multiples of 16. What lay there before was read by tensor cores, or by instructions
 * and a proxy_fence. */
static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* The box of a tensor map at (column, row), to the same place in both blocks of a pair, and to the same
 * barrier of each. */
static __device__ __forceinline__ void tensor_copy_to_pair(uint32_t to, const void *map, int column,
                                                           int row, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(bar), "h"((uint16_t)3)
                 : "memory");
}

/* A box from shared memory to (column, row); the thread's stores until a commit are one group. */
static __device__ __forceinline__ void tensor_store(const void *map, int column, int row,
                                                    uint32_t from)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(column), "r"(row), "r"(from)
        : "memory");
}

static __device__ __forceinline__ void tensor_stores_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until all groups but the last LEFT have been read from shared memory. */
template <int LEFT> static __device__ __forceinline__ void tensor_stores_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* Four matrices of 8 x 8 bf16 as fragments hold them: lane l's address is where row l % 8 of the
 * transposed matrix l / 8 goes, 16 bytes. */
static __device__ __forceinline__ void store_matrices_transposed(uint32_t to,
                                                                 const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* At the barrier of block `rank` of the cluster that lies where bar does here. */
static __device__ __forceinline__ void barrier_arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Of all threads of a cluster's blocks. */
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* True in one thread of the warp. */
static __device__ __forceinline__ bool elect()
{
    uint32_t yes;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(yes));
    return yes != 0;
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
