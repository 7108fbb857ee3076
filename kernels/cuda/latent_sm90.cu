/* kernels/cuda/latent_sm90.cu - latent queries of a row against the latents of its sequence by wgmma.
 * Tile    a row and 64 heads per block of two warpgroups, and a third that feeds them with pages. The
 *         first makes scores and weights; each then sums half of the latent lanes. A grid fills the
 *         device and takes rows, or their splits, round by round.
 * Budget  a page of 64 latents of 512 and 64 lanes is 72 KiB and, for 64 heads, 8.9 Mflop: 2200 clocks of
 *         the matrix unit, 4000 of a multiprocessor's share of memory. From 64 heads on both count.
 * Why     keys and values are one row, which rests in shared memory once: read by rows for scores and by
 *         columns for sums. Weights cross between groups as the registers they are. Order and rounding
 *         are those of attention.cu. */
#include "kernels/cuda/latent_sm90.h"

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pages.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

constexpr int HEADS = 64, ROWS = 256, THREADS = ROWS + 128, BLOCK = KV_PAGE * 128, HALF = 4;
constexpr int SPLIT_PAGES = CUDA_SPLIT / KV_PAGE, STATE_FLOATS = ROWS * (HALF * 32 + 4);
constexpr uint32_t ONES = 0x3f803f80u; /* two of bf16 */
enum { TAKEN = 1, SENT, ALL_ROWS }; /* barriers; SENT: of the message; TAKEN: its place is free */

struct Params {
    CudaLatentAttention a;
    int columns; /* blocks of HEADS heads */
    int n_buffers, buffer_bytes;
};

struct Job {
    const int32_t *pages;
    int64_t row, slot;
    int pos, first, last, head, n_splits, split, number;
};

__device__ __forceinline__ bool find_job(const Params &p, int &k, Job &j)
{
    const CudaListHead *l = p.a.cache.list.head;
    /* Side by side only where rows would leave multiprocessors idle. */
    bool splits = (l->n_multiple + l->n_singles) * p.columns < (int)gridDim.x &&
                  (int64_t)l->n_slots * p.columns * STATE_FLOATS <= p.a.most_floats &&
                  (int64_t)l->n_singles * p.columns <= p.a.most_counters;
    int n = l->n_multiple + (splits ? l->n_splits : l->n_singles);
    for (; k * (int)gridDim.x < n * p.columns; k++) {
        int at = (int)(k * gridDim.x + (k & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x));
        if (at >= n * p.columns)
            continue;
        int entry = at / p.columns;
        j.head = at % p.columns * HEADS;
        j.n_splits = 1;
        j.first = 0;
        if (entry < l->n_multiple) {
            CudaRow r = list_rows(l)[entry];
            j.row = entry;
            j.pos = r.pos;
            j.pages = list_pages(l) + r.pages;
            j.last = j.pos / KV_PAGE;
            return true;
        }
        CudaSplit s = ((const CudaSplit *)list_at(
            l, splits ? l->splits_at : l->singles_at))[entry - l->n_multiple];
        j.row = l->n_multiple + s.number;
        j.pos = s.pos;
        j.pages = list_pages(l) + s.pages;
        j.last = j.pos / KV_PAGE;
        if (splits) {
            j.n_splits = s.n_slots;
            j.split = s.split;
            j.slot = ((int64_t)s.slot * p.columns + at % p.columns * s.n_slots) * STATE_FLOATS;
            j.number = s.number * p.columns + at % p.columns;
            j.first = s.split * SPLIT_PAGES;
            j.last = min(j.last, j.first + SPLIT_PAGES - 1);
        }
        return true;
    }
    return false;
}

/* By one warp: pages into their places, job after job. */
__device__ __forceinline__ void feed(const Params &p, uint32_t buffers, uint32_t full)
{
    const CudaLatents &c = p.a.cache;
    Job j;
    int place = 0, round = 0, lane = threadIdx.x % 32;
    for (int k = 0; find_job(p, k, j); k++) {
        int number = 0;
        for (int page = j.first; page <= j.last; page++) {
            if (page == j.first || page % 32 == 0) {
                int at = page / 32 * 32 + lane;
                number = at >= page && at <= j.last ? j.pages[at] : 0;
            }
            const uint8_t *from = (const uint8_t *)c.pool +
                                  __shfl_sync(0xffffffffu, number, page % 32) * c.page_bytes;
            if (round > 0)
                barrier_wait(full + 8 * (p.n_buffers + place), (round - 1) & 1);
            load_bytes(buffers + place * p.buffer_bytes, from, (uint32_t)c.page_bytes,
                       full + 8 * place);
            if (++place == p.n_buffers) {
                place = 0;
                round++;
            }
        }
    }
}

/* What a thread has of 16 heads of its warp and of half of the latent lanes. */
struct State {
    float o[HALF][32], sum[4], top[2];

    __device__ __forceinline__ void clear()
    {
        top[0] = top[1] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = 0;
#pragma unroll
        for (int b = 0; b < HALF; b++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[b][i] = 0;
    }

    __device__ __forceinline__ void store(float *slot) const
    {
        slot += threadIdx.x;
#pragma unroll
        for (int b = 0; b < HALF; b++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                slot[(b * 32 + i) * ROWS] = o[b][i];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            slot[(HALF * 32 + r) * ROWS] = top[r];
            slot[(HALF * 32 + 2 + r) * ROWS] = sum[2 * r];
        }
    }

    /* A state in memory, of earlier positions (EARLIER) or later ones, joins; NULL: of none. */
    template <bool EARLIER> __device__ __forceinline__ void merge(const float *slot)
    {
        float mine[2], other[2];
        if (slot)
            slot += threadIdx.x;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float theirs = slot ? __ldcg(slot + (HALF * 32 + r) * ROWS) : -INFINITY;
            float their_sum = slot ? __ldcg(slot + (HALF * 32 + 2 + r) * ROWS) : 0.0f;
            float most = fmaxf(theirs, top[r]), base = most == -INFINITY ? 0.0f : most;
            mine[r] = power_of_two(top[r] - base);
            other[r] = power_of_two(theirs - base);
            top[r] = most;
            sum[2 * r] = EARLIER ? fmaf(their_sum, other[r], sum[2 * r] * mine[r])
                                 : fmaf(sum[2 * r], mine[r], their_sum * other[r]);
        }
#pragma unroll
        for (int b = 0; b < HALF; b++)
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int r = i / 2 % 2;
                float theirs = slot ? __ldcg(slot + (b * 32 + i) * ROWS) : 0.0f;
                o[b][i] = EARLIER ? fmaf(theirs, other[r], o[b][i] * mine[r])
                                  : fmaf(o[b][i], mine[r], theirs * other[r]);
            }
    }
};

/* The queries of the job's heads as blocks of 64 lanes, zeros where there are none. */
__device__ __forceinline__ void load_queries(const Params &p, const Job &j, uint32_t queries)
{
    const CudaLatents &c = p.a.cache;
    int d = p.a.q_split + p.a.q_rest, units = 8 * (c.latent_blocks + 1);
    for (int i = threadIdx.x; i < HEADS * units; i += ROWS) {
        int h = i / units, u = i % units;
        bool rope = u >= 8 * c.latent_blocks;
        int lane = rope ? (u - 8 * c.latent_blocks) * 8 : u * 8,
            end = rope ? p.a.q_rest : p.a.q_split;
        const bf16 *from = (const bf16 *)p.a.q + j.row * p.a.q_stride + (int64_t)(j.head + h) * d +
                           (rope ? p.a.q_split : 0) + lane;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (j.head + h < p.a.n_heads && lane + 8 <= end && (uintptr_t)from % 16 == 0) {
            w = *(const uint4 *)from;
        } else if (j.head + h < p.a.n_heads) {
            uint32_t v[8];
#pragma unroll
            for (int l = 0; l < 8; l++)
                v[l] = lane + l < end ? ((const uint16_t *)from)[l] : 0;
            w = make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16,
                           v[6] | v[7] << 16);
        }
        store_unit(queries + unit_at(units, HEADS, h, u), w);
    }
}

/* A page of codes, and rope lanes behind them, as blocks of bf16; rows behind n_keys become zeros. */
__device__ __forceinline__ void decode(const CudaLatents &c, uint32_t to, const uint8_t *from,
                                       int n_keys)
{
    int runs = 4 * c.latent_blocks, units = 2 * runs;
    const uint4 *rope = (const uint4 *)(from + KV_PAGE * runs * 16);
    for (int i = threadIdx.x; i < KV_PAGE * runs; i += ROWS) {
        int r = i / runs, u = i % runs;
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (r < n_keys) {
            uint4 w = ((const uint4 *)from)[r * runs + (u ^ unit_exchange(runs, r))];
            low = make_uint4(even_from_e4m3(w.x), even_from_e4m3(w.y), even_from_e4m3(w.z),
                             even_from_e4m3(w.w));
            high = make_uint4(odd_from_e4m3(w.x), odd_from_e4m3(w.y), odd_from_e4m3(w.z),
                              odd_from_e4m3(w.w));
        }
        store_unit(to + unit_at(units, KV_PAGE, r, 2 * u), low);
        store_unit(to + unit_at(units, KV_PAGE, r, 2 * u + 1), high);
    }
    for (int i = threadIdx.x; i < KV_PAGE * 8; i += ROWS)
        store_unit(to + c.latent_blocks * BLOCK + i * UNIT_BYTES, rope[i]);
}

/* Rows of latents behind n_keys become zeros, by one group. */
__device__ __forceinline__ void clear_rows(const CudaLatents &c, uint32_t page, int n_keys)
{
    int each = (KV_PAGE - n_keys) * 8;
    for (int i = threadIdx.x % 128; i < c.latent_blocks * each; i += 128)
        store_unit(page + (i / each * KV_PAGE + n_keys) * 128 + i % each * UNIT_BYTES,
                   make_uint4(0, 0, 0, 0));
}

/* Weights of a page from scores, as attention_rows.cuh has it; by: what earlier sums are scaled by. */
__device__ __forceinline__ void weigh(uint32_t w[4][4], float by[2], State &t, float s[32],
                                      float unit, int n_keys)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            float &v = s[n / 2 * 4 + 2 * r + n % 2];
            if (n_keys < KV_PAGE && n / 2 * 8 + lane % 4 * 2 + n % 2 >= n_keys)
                v = -INFINITY;
            most = fmaxf(most, v);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(t.top[r], ceilf(most * unit));
        float base = most == -INFINITY ? 0.0f : most;
        by[r] = power_of_two(t.top[r] - base);
        t.top[r] = most;
#pragma unroll
        for (int n = 0; n < 8; n++)
            w[n / 2][n % 2 * 2 + r] =
                pack_bf16(power_of_two(fmaf(s[n * 4 + 2 * r], unit, -base)),
                          power_of_two(fmaf(s[n * 4 + 2 * r + 1], unit, -base)));
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        t.sum[i] *= by[i / 2];
#pragma unroll
    for (int k = 0; k < 4; k++)
        mma(t.sum, w[k], ONES, ONES);
}

template <bool CODED>
__device__ __forceinline__ void score(float (&s)[32], const CudaLatents &c, uint32_t queries,
                                      uint32_t page)
{
#ifdef CUDA_SM90A
    /* Rope lanes first: they have no scale of their own, and take the latents' in advance. */
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rows_by_rows(s, rows_descriptor(queries + c.latent_blocks * BLOCK + k * 32),
                           rows_descriptor(page + c.latent_blocks * BLOCK + k * 32), k > 0);
    if (CODED) {
        wgmma_commit();
        wgmma_end(s);
        float over = 1.0f / c.kv.k_scale;
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] *= over;
        wgmma_fence();
    }
    for (int b = 0; b < c.latent_blocks; b++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_rows_by_rows(s, rows_descriptor(queries + b * BLOCK + k * 32),
                               rows_descriptor(page + b * BLOCK + k * 32), true);
    wgmma_commit();
    wgmma_end(s);
#endif
}

/* The group's half of the lanes. */
__device__ __forceinline__ void add(State &t, const uint32_t w[4][4], const float by[2],
                                    const CudaLatents &c, uint32_t page)
{
#ifdef CUDA_SM90A
    int first = threadIdx.x / 128 * HALF;
    if (__any_sync(0xffffffffu, by[0] != 1.0f || by[1] != 1.0f)) {
#pragma unroll
        for (int b = 0; b < HALF; b++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                t.o[b][i] *= by[i / 2 % 2];
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int b = 0; b < HALF; b++)
            /* Of blocks that are not there, sums that nobody reads. */
            wgmma_by_columns(
                t.o[b], w[k],
                columns_descriptor(page + min(first + b, c.latent_blocks - 1) * BLOCK + k * 16 * 128,
                              BLOCK));
    wgmma_commit();
#pragma unroll
    for (int b = 0; b < HALF; b++)
        wgmma_end(t.o[b]);
#endif
}

__device__ __forceinline__ void finish(const Params &p, const Job &j, const State &t)
{
    const CudaLatents &c = p.a.cache;
    int lane = threadIdx.x % 32, half = threadIdx.x / 128 * HALF * 64;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = j.head + threadIdx.x % 128 / 32 * 16 + r * 8 + lane / 4;
        float by = c.kv.k_scale / t.sum[2 * r];
        bf16 *out = (bf16 *)p.a.out + j.row * p.a.out_stride + (int64_t)head * p.a.out_dim;
        if (head >= p.a.n_heads)
            continue;
#pragma unroll
        for (int n = 0; n < HALF * 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int l = half + n * 8 + lane % 4 * 2 + i;
                if (l < p.a.out_dim)
                    out[l] = __float2bfloat16_rn(t.o[n / 8][n % 8 * 4 + 2 * r + i] * by);
            }
    }
}

template <bool CODED>
__global__ void __launch_bounds__(THREADS, 1) latent_kernel(const __grid_constant__ Params p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t barriers[4];
    __shared__ unsigned before;
    const CudaLatents &c = p.a.cache;
    int n_blocks = c.latent_blocks + 1, group = threadIdx.x / 128;
    uint32_t queries = shared_address(shared), full = shared_address(barriers);
    uint32_t buffers = queries + n_blocks * BLOCK, decoded = buffers + p.n_buffers * p.buffer_bytes,
             message = decoded + (CODED ? n_blocks * BLOCK : 0) + threadIdx.x % 128 * 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.n_buffers; i++) {
            barrier_make(full + 8 * i, 1);
            barrier_make(full + 8 * (p.n_buffers + i), ROWS / 32);
        }
        barriers_made();
    }
    __syncthreads();
    if (group == 2) {
        registers_down<24>();
        if (threadIdx.x == ROWS || threadIdx.x / 32 == ROWS / 32)
            feed(p, buffers, full);
        return;
    }
    registers_up<240>();

    float unit = p.a.scale * c.kv.k_scale * 1.44269504f;
    float *state = p.a.partials + (int64_t)blockIdx.x * STATE_FLOATS,
          *slots = p.a.partials + (int64_t)gridDim.x * STATE_FLOATS;
    uint32_t parity = 0;
    int place = 0;
    State t;
    Job j;
    if (group == 1)
        meet_later<ROWS>(TAKEN);
    for (int k = 0; find_job(p, k, j); k++) {
        bool any = false;
        meet<ROWS>(ALL_ROWS); /* the last job's queries have been read */
        load_queries(p, j, queries);
        proxy_fence();
        meet<ROWS>(ALL_ROWS);
        t.clear();
        for (int page = j.first; page <= j.last; page++) {
            int n_keys = min(j.pos + 1 - page * KV_PAGE, (int)KV_PAGE);
            uint32_t at = buffers + place * p.buffer_bytes, w[4][4];
            float by[2];
            barrier_wait(full + 8 * place, parity);
            if (CODED) {
                meet<ROWS>(ALL_ROWS); /* the last page has been read */
                decode(c, decoded, shared + (at - queries), n_keys);
                proxy_fence();
                meet<ROWS>(ALL_ROWS);
                at = decoded;
                if (threadIdx.x % 32 == 0) /* the next page may come */
                    barrier_arrive(full + 8 * (p.n_buffers + place));
            }
            if (group == 0) {
                float s[32];
                score<CODED>(s, c, queries, at);
                weigh(w, by, t, s, unit, n_keys);
                meet<ROWS>(TAKEN);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    store_unit(message + i * 2048, make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]));
                store_unit(message + 4 * 2048,
                           make_uint4(__float_as_uint(by[0]), __float_as_uint(by[1]), 0, 0));
                meet_later<ROWS>(SENT);
                if (!CODED && n_keys < KV_PAGE) /* the other group has cleared what nobody wrote */
                    meet<ROWS>(ALL_ROWS);
            } else {
                if (!CODED && n_keys < KV_PAGE) {
                    clear_rows(c, at, n_keys);
                    proxy_fence();
                    meet<ROWS>(ALL_ROWS);
                }
                meet<ROWS>(SENT);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint4 v = load_unit(message + i * 2048);
                    w[i][0] = v.x;
                    w[i][1] = v.y;
                    w[i][2] = v.z;
                    w[i][3] = v.w;
                }
                uint4 v = load_unit(message + 4 * 2048);
                by[0] = __uint_as_float(v.x);
                by[1] = __uint_as_float(v.y);
            }
            add(t, w, by, c, at);
            if (group == 1)
                meet_later<ROWS>(TAKEN);
            __syncwarp();
            if (!CODED && threadIdx.x % 32 == 0)
                barrier_arrive(full + 8 * (p.n_buffers + place));
            if (++place == p.n_buffers) {
                place = 0;
                parity ^= 1;
            }
            if (page < j.last && page % SPLIT_PAGES != SPLIT_PAGES - 1)
                continue;
            /* The second group learns the maxima and sums of the split. */
            if (group == 0) {
                meet<ROWS>(TAKEN);
                store_unit(message,
                           make_uint4(__float_as_uint(t.top[0]), __float_as_uint(t.top[1]),
                                      __float_as_uint(t.sum[0]), __float_as_uint(t.sum[2])));
                meet_later<ROWS>(SENT);
            } else {
                meet<ROWS>(SENT);
                uint4 v = load_unit(message);
                t.top[0] = __uint_as_float(v.x);
                t.top[1] = __uint_as_float(v.y);
                t.sum[0] = __uint_as_float(v.z);
                t.sum[2] = __uint_as_float(v.w);
                meet_later<ROWS>(TAKEN);
            }
            if (page < j.last) {
                t.merge<true>(any ? state : NULL);
                t.store(state);
                t.clear();
                any = true;
            }
        }
        if (j.n_splits > 1) {
            /* The last to finish merges them all. */
            t.store(slots + j.slot + (int64_t)j.split * STATE_FLOATS);
            __threadfence();
            meet<ROWS>(ALL_ROWS);
            if (threadIdx.x == 0)
                before = atomicAdd(p.a.counters + j.number, 1u);
            meet<ROWS>(ALL_ROWS);
            if (before != (unsigned)j.n_splits - 1)
                continue;
            __threadfence();
            if (threadIdx.x == 0)
                p.a.counters[j.number] = 0;
            t.clear();
            for (int i = 0; i < j.n_splits; i++)
                t.merge<false>(slots + j.slot + (int64_t)i * STATE_FLOATS);
        } else {
            t.merge<true>(any ? state : NULL);
        }
        finish(p, j, t);
    }
}

} // namespace

cudaError_t cuda_latent_sm90(const CudaLatentAttention *a, cudaStream_t stream)
{
    static int grid = 0;
    static bool known[2];
    const CudaLatents &c = a->cache;
    bool coded = c.kv.dtype == KV_FP8;
    int tile = (c.latent_blocks + 1) * BLOCK;
    Params p = {};
    p.a = *a;
    p.columns = (a->n_heads + HEADS - 1) / HEADS;
    p.n_buffers = coded ? 1 : 2;
    p.buffer_bytes = (int)c.page_bytes;
    int shared = tile + p.n_buffers * p.buffer_bytes + (coded ? tile : 0) + 5 * 2048;
    auto kernel = coded ? latent_kernel<true> : latent_kernel<false>;
    if (!known[coded]) {
        int device = 0, n = 0, most = 0;
        cudaError_t code = cudaGetDevice(&device);
        if (code == cudaSuccess)
            code = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
        if (code == cudaSuccess)
            code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        if (code == cudaSuccess)
            code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        most - 1024);
        if (code != cudaSuccess)
            return code;
        grid = n;
        known[coded] = true;
    }
    p.a.most_floats -= (int64_t)grid * STATE_FLOATS;
    if (p.a.most_floats < 0)
        return cudaErrorInvalidValue;
    kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}
