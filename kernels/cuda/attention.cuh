/* kernels/cuda/attention.cuh - the kernel of attention, made of what warps do with their rows and of
 * how pages come to them. */
#ifndef MB_KERNELS_CUDA_ATTENTION_CUH
#define MB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention_rows.cuh"

namespace
{

/* Brings pieces, keys and values of one page after the other, job after job; run by one warp, which
 * waits for the readers of a place, unless it is the reader. */
template <bool SINGLE> struct Feed {
    const uint8_t *from; /* the head's place in page 0 of the pool */
    const int32_t *pages;
    int number; /* of a page: lane i has that of a multiple of 32, and i more */
    int k, page, last, piece, round;
    bool values;

    __device__ __forceinline__ void begin()
    {
        k = page = piece = round = 0;
        last = -1;
        values = false;
    }

    __device__ __forceinline__ bool next(const Params &p, uint32_t ring, uint32_t full)
    {
        int lane = threadIdx.x % 32;
        if (!values && (page > last || page % 32 == 0)) {
            if (page > last) {
                Job j;
                if (!find_job<SINGLE>(p, k, j))
                    return false;
                k++;
                page = j.first;
                last = j.last;
                pages = j.pages;
                from = (const uint8_t *)p.a.cache.pool + j.kv_head * p.a.cache.head_bytes;
            }
            int at = page / 32 * 32 + lane;
            number = at >= page && at <= last ? pages[at] : 0;
        }
        if (!SINGLE && round > 0)
            barrier_wait(full + 8 * (p.n_pieces + piece), (round - 1) & 1);
        int64_t at = __shfl_sync(ALL, number, page % 32) * p.a.cache.page_bytes;
        load_bytes(ring + piece * p.half_bytes, from + at + (values ? p.half_bytes : 0),
                   p.half_bytes, full + 8 * piece);
        page += values;
        values = !values;
        if (++piece == p.n_pieces) {
            piece = 0;
            round++;
        }
        return true;
    }
};

template <class ROWS, int WARPS, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_kernel(const __grid_constant__ Params p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t barriers[2 * MOST_PIECES];
    constexpr bool SINGLE = WARPS == 1;
    constexpr int MT = ROWS::MT;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    KvDtype dtype = p.a.cache.kv.dtype;
    bool direct = SINGLE && dtype == KV_FP8, coded = dtype != KV_BF16 && !direct;
    ROWS rows;
    uint32_t base = shared_address(shared), full = shared_address(barriers);
    rows.shape(p, base);
    uint32_t row_bytes = rows.units * UNIT_BYTES, ring = base + WARPS * MT * 16 * row_bytes,
             decoded = ring + p.n_pieces * p.half_bytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.n_pieces; i++) {
            barrier_make(full + 8 * i, 1);
            barrier_make(full + 8 * (p.n_pieces + i), 32 * WARPS);
        }
        barriers_made();
    }
    __syncthreads();
    Feed<SINGLE> feed;
    feed.begin();
    if (warp == 0)
        for (int i = 0; i < p.n_pieces; i++)
            feed.next(p, ring, full);

    int piece = 0;
    uint32_t parity = 0;
    bool taken = false;
    /* Where the next piece lies, once it is there, decoded if need be. n_keys: of values, how many of
     * them were ever written. */
    auto take = [&](int which, int n_keys) -> uint32_t {
        if (!SINGLE && warp == 0 && taken)
            feed.next(p, ring, full); /* into the place of the piece before this one */
        taken = true;
        barrier_wait(full + 8 * piece, parity);
        uint32_t at = ring + piece * p.half_bytes;
        if (!coded)
            return at;
        uint32_t to = decoded + (SINGLE ? 0 : which * KV_PAGE * row_bytes);
        decode<32 * WARPS>(to, shared + (at - base), rows.units, n_keys, dtype, threadIdx.x);
        if (SINGLE)
            __syncwarp();
        else
            __syncthreads();
        return to;
    };
    /* Of a __syncwarp that finds the lanes together compute-sanitizer sees nothing. */
    auto give = [&] {
        proxy_fence();
        if (SINGLE) {
            meet<32>(1);
            feed.next(p, ring, full);
        } else {
            barrier_arrive(full + 8 * (p.n_pieces + piece));
        }
        if (++piece == p.n_pieces) {
            piece = 0;
            parity ^= 1;
        }
    };

    float *mine = p.a.states + ((int64_t)blockIdx.x * WARPS + warp) * MT * p.slot_floats;
    Job j;
    for (int k = 0; find_job<SINGLE>(p, k, j); k++) {
        int first = warp * ROWS::TILE, end = j.pos + j.n_rows - 1;
        int least = min(j.pos + first / j.n_heads, end),
            most = min(j.pos + (first + ROWS::TILE - 1) / j.n_heads, end);
        bool idle = first >= j.n_rows * j.n_heads, any = false;
        rows.load(p, j, first);
        rows.clear();
        for (int page = j.first; page <= j.last; page++) {
            int start = page * KV_PAGE, n_keys = min(end + 1 - start, (int)KV_PAGE);
            bool sees = !idle && start <= most && start + KV_PAGE > least - rows.window + 1,
                 masked = start + KV_PAGE - 1 > least || start <= most - rows.window;
            float s[MT][8][4];
            uint32_t w[MT][4][4];
            uint32_t at = take(0, KV_PAGE);
            if (sees) {
                if constexpr (SINGLE) {
                    if (direct)
                        rows.score_e4m3(s, at);
                    else
                        rows.score(s, at);
                } else {
                    rows.score(s, at);
                }
            }
            give();
            if (sees)
                rows.weigh(w, s, start, masked);
            at = take(1, n_keys);
            if (sees) {
                if constexpr (SINGLE) {
                    if (direct)
                        rows.add_e4m3(w, at);
                    else
                        rows.add(w, at, n_keys);
                } else {
                    rows.add(w, at, n_keys);
                }
            }
            give();
            if (page < j.last && page % SPLIT_PAGES == SPLIT_PAGES - 1) {
                if (any)
                    rows.template merge<true>(mine);
                rows.store(mine);
                rows.clear();
                any = true;
            }
        }
        if (SINGLE && j.n_splits > 1) {
            /* The last to finish merges them all. */
            float *slots = p.a.partials + j.slot;
            unsigned before = 0;
            rows.store(slots + j.split * p.slot_floats);
            __threadfence();
            __syncwarp();
            if (lane == 0)
                before = atomicAdd(p.a.counters + j.number, 1u);
            if (__shfl_sync(ALL, before, 0) != (unsigned)j.n_splits - 1)
                continue;
            __threadfence();
            if (lane == 0)
                p.a.counters[j.number] = 0;
            rows.clear();
            for (int i = 0; i < j.n_splits; i++)
                rows.template merge<false>(slots + i * p.slot_floats);
        } else if (any) {
            rows.template merge<true>(mine);
        }
        if (!idle)
            rows.finish(p, j, first);
    }
}

template <class ROWS, int WARPS, int BLOCKS>
cudaError_t launch_attention(Params p, int n_pieces, cudaStream_t stream)
{
    constexpr int THREADS = 32 * WARPS;
    auto kernel = attention_kernel<ROWS, WARPS, BLOCKS>;
    const CudaCache &c = p.a.cache;
    int tile = KV_PAGE * c.lanes * 2;
    p.half_bytes = (int)(c.head_bytes / 2);
    p.n_pieces = n_pieces;
    p.slot_floats = 32 * (ROWS::HD / 8 * 4 + 4);
    size_t shared = (size_t)(WARPS * ROWS::MT * 16 * c.lanes * 2 + p.n_pieces * p.half_bytes +
                             (c.kv.dtype == KV_BF16  ? 0
                              : WARPS > 1            ? 2 * tile
                              : c.kv.dtype == KV_FP8 ? 0
                                                     : tile));
    static size_t known = 0; /* the shared memory of which `per` is known */
    static int per = 0;
    if (shared != known) {
        cudaError_t code =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (code == cudaSuccess)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, kernel, THREADS, shared);
        if (code != cudaSuccess)
            return code;
        known = shared;
    }
    if (per == 0)
        return cudaErrorInvalidConfiguration;
    int n_multiprocessors;
    cudaError_t code = count_multiprocessors(&n_multiprocessors);
    if (code != cudaSuccess)
        return code;
    int grid = per * n_multiprocessors;
    /* The blocks' own states and the places for splits share one memory. */
    int64_t own = (int64_t)grid * WARPS * ROWS::MT * p.slot_floats;
    if (own > p.a.most_floats)
        return cudaErrorInvalidValue;
    p.a.states = p.a.partials;
    p.a.partials += own;
    p.a.most_floats -= own;
    kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

#endif
