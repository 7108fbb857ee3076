/* kernels/cuda/group.cu - sorts the rows' choices by expert, so that each expert finds its rows
 * together (kernels/exchange_ops.h, group).
 * Tile    256 threads, or 1024; a block has a run of choices, each of its warps a part of it. Up to
 *         four choices for each of 1024 threads are one block and one launch, whose threads keep what
 *         they read; else there is a launch that counts, and every block of the second adds up what
 *         blocks before it have.
 * Budget  8 bytes read and 8 written per choice, and blocks^2 * experts * 4 bytes of counts out of
 *         L2: 32k tokens, top 8 of 128 experts: 4 MB and 8 MB. For a few tokens one launch decides.
 * Why     atomics only count; the order is that of blocks, warps and lanes, which is the order of
 *         (list, row, choice), so results lie at the same places in every run. */
#include "kernels/cuda/exchange_api.h"
#include "kernels/cuda/launch.cuh"

#include <cuda_runtime.h>

namespace
{

constexpr int BLOCK = 256, LARGE_BLOCK = 1024;    /* threads */
constexpr size_t SHARED_BYTES = (48 << 10) - 256; /* unasked; the rest is for static ones */
static_assert(EXCHANGE_MAX_EXPERTS <= 4 * BLOCK, "the scan gives each thread four experts");

struct Choice {
    int32_t expert; /* here; -1: none */
    int32_t row;
    int32_t *place; /* NULL: not to be told */
};

__device__ Choice choice_at(const GroupSpec &g, int at)
{
    int row = at / g.top_k, s = at - row * g.top_k, low = 0, high = g.n_lists - 1;
    while (low < high) { /* the last list that begins at or before row */
        int middle = (low + high + 1) / 2;
        if (g.list[middle].at <= row)
            low = middle;
        else
            high = middle - 1;
    }
    const ChoiceRows &list = g.list[low];
    int64_t i = row - list.at;
    int32_t expert = list.choice[i * list.stride + s];
    Choice c = {expert, list.row + (int32_t)i, list.place + i * g.top_k + s};
    if (low == g.own && g.local && expert >= 0) {
        c.expert = g.local[expert];
        if (c.expert < 0)
            c.place = nullptr;
    }
    return c;
}

__global__ void count_kernel(const __grid_constant__ GroupSpec g, int n, int run)
{
    extern __shared__ int32_t memory[];
    launch_next();
    for (int i = threadIdx.x; i < g.n_local; i += BLOCK)
        memory[i] = 0;
    __syncthreads();
    launch_wait();
    int first = (int)blockIdx.x * run, end = min(n, first + run);
    for (int at = first + (int)threadIdx.x; at < end; at += BLOCK) {
        int32_t expert = choice_at(g, at).expert;
        if (expert >= 0)
            atomicAdd(&memory[expert], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < g.n_local; i += BLOCK)
        g.counts[(int64_t)blockIdx.x * g.n_local + i] = memory[i];
}

/* sum[i] becomes the sum of all before it, *all that of all n. */
template <int THREADS> __device__ void scan(int32_t *sum, int n, int32_t *all)
{
    __shared__ int32_t warp_sum[THREADS / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = (int)threadIdx.x * 4;
    int32_t own[4], total = 0;
    for (int i = 0; i < 4; i++) {
        own[i] = total;
        total += first + i < n ? sum[first + i] : 0;
    }
    int32_t upto = total;
    for (int d = 1; d < 32; d *= 2) {
        int32_t other = __shfl_up_sync(0xffffffffu, upto, d);
        upto += lane >= d ? other : 0;
    }
    if (lane == 31)
        warp_sum[warp] = upto;
    __syncthreads();
    int32_t before = upto - total;
    for (int w = 0; w < warp; w++)
        before += warp_sum[w];
    for (int i = 0; i < 4; i++)
        if (first + i < n)
            sum[first + i] = before + own[i];
    if (threadIdx.x == THREADS - 1)
        *all = before + total;
    __syncthreads();
}

size_t place_bytes(int n_local, int threads) /* of shared memory */
{
    return (size_t)(threads / 32 + 1) * (size_t)n_local * sizeof(int32_t);
}

/* A run is a multiple of THREADS. KEPT: choices of a lane at most, where one block has all; 0: there
 * are several. */
template <int THREADS, int KEPT>
__global__ void __launch_bounds__(THREADS)
    place_kernel(const __grid_constant__ GroupSpec g, int n, int run)
{
    constexpr int WARPS = THREADS / 32;
    extern __shared__ int32_t memory[];
    __shared__ int32_t all; /* pairs */
    int n_local = g.n_local, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t *next = memory;                    /* [WARPS, n_local] */
    int32_t *first = memory + WARPS * n_local; /* [n_local] */
    int32_t *mine = next + warp * n_local;
    launch_next();
    for (int i = threadIdx.x; i < WARPS * n_local; i += THREADS)
        next[i] = 0;
    __syncthreads();
    int part = run / WARPS, begin = (int)blockIdx.x * run + warp * part, end = min(n, begin + part);
    Choice kept[KEPT > 0 ? KEPT : 1];
    launch_wait();
    if (KEPT > 0) {
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            kept[i] = {-1, 0, nullptr};
            if (begin + 32 * i + lane < end)
                kept[i] = choice_at(g, begin + 32 * i + lane);
        }
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (kept[i].expert >= 0)
                atomicAdd(&mine[kept[i].expert], 1);
    } else {
        for (int at = begin + lane; at < end; at += 32) {
            int32_t expert = choice_at(g, at).expert;
            if (expert >= 0)
                atomicAdd(&mine[expert], 1);
        }
    }
    __syncthreads();

    int32_t before[4] = {0, 0, 0, 0}; /* of this thread's experts, in blocks before this one */
    for (int k = 0, i = threadIdx.x; i < n_local; i += THREADS, k++) {
        int32_t total = 0;
        if (KEPT > 0)
            for (int w = 0; w < WARPS; w++)
                total += next[w * n_local + i];
        for (unsigned b = 0; KEPT == 0 && b < gridDim.x; b++) {
            int32_t count = g.counts[(int64_t)b * n_local + i];
            before[k] += b < blockIdx.x ? count : 0;
            total += count;
        }
        first[i] = total;
    }
    __syncthreads();
    scan<THREADS>(first, n_local, &all);
    for (int k = 0, i = threadIdx.x; i < n_local; i += THREADS, k++) {
        int32_t at = first[i] + (KEPT > 0 ? 0 : before[k]);
        if (blockIdx.x == 0)
            g.first[i] = first[i];
        for (int w = 0; w < WARPS; w++) {
            int32_t count = next[w * n_local + i];
            next[w * n_local + i] = at;
            at += count;
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        g.first[n_local] = all;
    __syncthreads();

    /* By all lanes, also those beyond the end. */
    auto place = [&](const Choice &c) {
        unsigned same = __match_any_sync(0xffffffffu, c.expert);
        int32_t pair = -1;
        if (c.expert >= 0) {
            pair = mine[c.expert] + __popc(same & ((1u << lane) - 1));
            g.row_of[pair] = c.row;
        }
        if (c.place)
            *c.place = pair;
        __syncwarp();
        if (c.expert >= 0 && (same >> lane) == 1) /* the last of its kind */
            mine[c.expert] = pair + 1;
        __syncwarp();
    };
    if (KEPT > 0) {
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (begin + 32 * i < end)
                place(kept[i]);
    } else {
        for (int at = begin; at < begin + part; at += 32) {
            Choice c = {-1, 0, nullptr};
            if (at + lane < end)
                c = choice_at(g, at + lane);
            place(c);
        }
    }
}

} // namespace

int cuda_group_launch(const GroupSpec *g, void *stream)
{
    const ChoiceRows *last = &g->list[g->n_lists - 1];
    int n = (last->at + last->n) * g->top_k;
    size_t small = place_bytes(g->n_local, BLOCK), large = place_bytes(g->n_local, LARGE_BLOCK);
    auto round_up = [](int v, int to) { return (v + to - 1) / to * to; };
    if (n <= BLOCK)
        return launch_early(place_kernel<BLOCK, 1>, 1, BLOCK, small, stream, *g, n, BLOCK);
    if (n <= 4 * BLOCK)
        return launch_early(place_kernel<BLOCK, 4>, 1, BLOCK, small, stream, *g, n,
                            round_up(n, BLOCK));
    if (n <= 4 * LARGE_BLOCK && large <= SHARED_BYTES)
        return launch_early(place_kernel<LARGE_BLOCK, 4>, 1, LARGE_BLOCK, large, stream, *g, n,
                            round_up(n, LARGE_BLOCK));
    int run = round_up((n + EXCHANGE_GROUP_BLOCKS - 1) / EXCHANGE_GROUP_BLOCKS, BLOCK);
    int blocks = (n + run - 1) / run;
    cudaError_t err = launch_early(count_kernel, (unsigned)blocks, BLOCK,
                                   (size_t)g->n_local * sizeof(int32_t), stream, *g, n, run);
    return err != cudaSuccess ? err
                              : launch_early(place_kernel<BLOCK, 0>, (unsigned)blocks, BLOCK, small,
                                             stream, *g, n, run);
}
