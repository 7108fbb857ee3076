/* kernels/cuda/latent_sm90.cu - latent queries of a row against the latents of its sequence by wgmma.
 * Tile    a row and 64 heads per block of two warpgroups, and a third that feeds them with pages: by the
 *         copy engine, or, where they are codes, by its own instructions, which decode a page out of
 *         registers while the next one comes to them from memory. The first makes scores and weights;
 *         each then sums half of the latent lanes. A grid fills the device and takes rows, or their
 *         splits, round by round.
 * Budget  a page of 64 latents of 512 and 64 lanes is 72 KiB and, for 64 heads, 8.9 Mflop: 2200 clocks of
 *         the matrix unit, 4000 of a multiprocessor's share of memory. From 64 heads on both count. Of
 *         codes it is 40 KiB, 2200 clocks, and 1200 of the four warps that decode it.
 * Why     keys and values are one row, which rests in shared memory once: read by rows for scores and by
 *         columns for sums. Weights cross between groups as the registers they are. Two tiles of bf16
 *         and the queries fill shared memory, so codes never rest there. Order and rounding are those
 *         of attention.cu. */
#include "kernels/cuda/latent_sm90.h"

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pages.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

constexpr int HEADS = 64, ROWS = 256, THREADS = ROWS + 128, BLOCK = KV_PAGE * 128, HALF = 4;
constexpr int MOST_BLOCKS = 2 * HALF, PLACES = 2; /* of latent lanes; of pages */
constexpr int SPLIT_PAGES = CUDA_SPLIT / KV_PAGE, STATE_FLOATS = ROWS * (HALF * 32 + 4);
/* Barriers. SENT: of the message; TAKEN: its place is free; CLEARED: rows of a page that nobody wrote. */
enum { TAKEN = 1, SENT, CLEARED, ALL_ROWS };

struct Params {
    CudaLatentAttention a;
    int columns;    /* blocks of HEADS heads */
    int tile_bytes; /* of a page in bf16, or of the queries */
};

struct Job {
    const int32_t *pages;
    int64_t slot;
    int row, pos, first, last, head, n_splits, split, number;
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

/* A page of a job, and how many of its positions the job's row sees. */
struct Piece {
    int page, n_keys; /* page -1: there is none */
};

/* The pages of a block's jobs, one after the other, for a whole warp. */
struct Walk {
    Job j;
    int k, page;
    int number; /* of a page: lane i has that of a multiple of 32, and i more */

    __device__ __forceinline__ void begin()
    {
        k = page = 0;
        j.last = -1;
    }

    __device__ __forceinline__ Piece next(const Params &p)
    {
        bool first = page > j.last;
        if (first) {
            if (!find_job(p, k, j))
                return {-1, 0};
            k++;
            page = j.first;
        }
        if (first || page % 32 == 0) {
            int at = page / 32 * 32 + threadIdx.x % 32;
            number = at >= page && at <= j.last ? j.pages[at] : 0;
        }
        Piece piece = {__shfl_sync(0xffffffffu, number, page % 32),
                       min(j.pos + 1 - page * KV_PAGE, (int)KV_PAGE)};
        page++;
        return piece;
    }
};

/* Places of pages in shared memory, and the barriers that tell which of them are full, and which have
 * been read. */
struct Places {
    uint32_t at, full, empty;
    int place = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ uint32_t here(const Params &p) const
    {
        return at + place * p.tile_bytes;
    }

    __device__ __forceinline__ void next()
    {
        place ^= 1;
        parity ^= place == 0;
    }

    __device__ __forceinline__ void wait_full() const
    {
        barrier_wait(full + 8 * place, parity);
    }

    __device__ __forceinline__ void wait_empty() const
    {
        barrier_wait(empty + 8 * place, parity ^ 1);
        __syncwarp(); /* before one lane fills it, and others may empty it again */
    }
};

__device__ __forceinline__ const uint8_t *page_at(const CudaLatents &c, int page)
{
    return (const uint8_t *)c.pool + page * c.page_bytes;
}

/* By one warp: pages of bf16 into their places, job after job. */
__device__ __forceinline__ void feed(const Params &p, Places to)
{
    const CudaLatents &c = p.a.cache;
    Walk walk;
    walk.begin();
    for (;; to.next()) {
        Piece piece = walk.next(p);
        if (piece.page < 0)
            return;
        to.wait_empty();
        load_bytes(to.here(p), page_at(c, piece.page), (uint32_t)c.page_bytes,
                   to.full + 8 * to.place);
    }
}

/* What is read once, or by few blocks at the same time. */
__device__ __forceinline__ uint4 load_once(const uint8_t *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* A thread's codes of a page: a unit of each block in two rows, 32 apart. Of eight lanes of a warp four have
 * a row and four the next, so that what they store lies in different banks. BLOCKS of latent lanes, or
 * 0: as many as the cache has. */
template <int BLOCKS> struct Codes {
    uint4 w[2][MOST_BLOCKS];
    int n_blocks;
    int at, over; /* in a page: the first unit, and how much further even blocks' are exchanged */
    uint32_t to;  /* in a tile: the first of its two units */

    __device__ __forceinline__ void begin(int latent_blocks)
    {
        int row = threadIdx.x % 128 / 4, u = threadIdx.x % 4;
        n_blocks = BLOCKS > 0 ? BLOCKS : latent_blocks;
        int by = unit_exchange(4 * n_blocks, row); /* and of the row 32 further */
        at = row * 64 * n_blocks + ((u ^ by) & 3) * UNIT_BYTES;
        over = (by & 4) * UNIT_BYTES;
        to = row * 128 + ((2 * u ^ row) & 7) * UNIT_BYTES;
    }

    /* Loads a page; STORE: into the registers of the one that goes to the tile meanwhile. */
    template <bool STORE> __device__ __forceinline__ void pass(uint32_t tile, const uint8_t *page)
    {
        uint32_t first = tile + to, second = first ^ UNIT_BYTES;
        /* The exchange takes a unit to the next block, or that of an odd block to the one before. */
        const uint8_t *even = page + at + over, *odd = page + at - over;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            /* Not to be made anew for each load. */
            asm volatile("" : "+l"(even), "+l"(odd));
#pragma unroll
            for (int b = 0; b < MOST_BLOCKS; b++)
                if (BLOCKS > 0 || b < n_blocks) {
                    uint4 v = w[i][b];
                    w[i][b] = load_once((b % 2 ? odd : even) + b * 64);
                    if (STORE) {
                        int further = b * BLOCK + i * 32 * 128;
                        store_unit(first + further, low_from_e4m3(v));
                        store_unit(second + further, high_from_e4m3(v));
                    }
                }
            even += 32 * 64 * n_blocks;
            odd += 32 * 64 * n_blocks;
            __syncwarp(); /* the compiler moves no load across this: all of them would be last */
        }
    }

    /* Rows behind n_keys become zeros. */
    __device__ __forceinline__ void clear(int n_keys)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if ((int)threadIdx.x % 128 / 4 + i * 32 >= n_keys)
#pragma unroll
                for (int b = 0; b < MOST_BLOCKS; b++)
                    w[i][b] = make_uint4(0, 0, 0, 0);
    }
};

/* By the four warps of the third group: pages of codes into their places as bf16, rope lanes by the copy
 * engine. A page's codes are asked for while those of the page before are decoded, whose registers
 * they take. */
template <int BLOCKS> __device__ __forceinline__ void feed_codes(const Params &p, Places to)
{
    const CudaLatents &c = p.a.cache;
    Piece here = {-1, 0}, next = {-1, 0};
    Codes<BLOCKS> codes;
    Walk walk;
    bool leads = threadIdx.x / 32 == ROWS / 32;
    codes.begin(c.latent_blocks);
    walk.begin();
    do {
        if (here.page >= 0) {
            uint32_t tile = to.here(p), full = to.full + 8 * to.place;
            if (here.n_keys < KV_PAGE)
                codes.clear(here.n_keys);
            to.wait_empty();
            if (leads)
                load_bytes(tile + codes.n_blocks * BLOCK,
                           page_at(c, here.page) + codes.n_blocks * (BLOCK / 2), BLOCK, full);
            codes.template pass<true>(tile, page_at(c, next.page >= 0 ? next.page : here.page));
            proxy_fence();
            barrier_arrive(full);
            to.next();
        } else if (next.page >= 0) {
            codes.template pass<false>(0, page_at(c, next.page));
        }
        here = next;
        next = walk.next(p);
    } while (here.page >= 0 || next.page >= 0);
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
    int n_blocks = p.a.cache.latent_blocks, d = p.a.q_split + p.a.q_rest, u = threadIdx.x % 8;
    int most = p.a.n_heads - j.head;
    const bf16 *q = (const bf16 *)p.a.q + j.row * p.a.q_stride + (int64_t)j.head * d;
    if (p.a.q_split % 8 != 0 || p.a.q_rest % 8 != 0 || p.a.q_stride % 8 != 0 ||
        (uintptr_t)p.a.q % 16 != 0) {
        for (int i = threadIdx.x / 8; i < HEADS * (n_blocks + 1); i += ROWS / 8) {
            int b = i / HEADS, h = i % HEADS;
            bool rope = b == n_blocks;
            int lane = (rope ? 0 : b * 64) + u * 8, end = rope ? p.a.q_rest : p.a.q_split;
            const uint16_t *from =
                (const uint16_t *)(q + (int64_t)h * d + (rope ? p.a.q_split : 0) + lane);
            uint32_t v[8];
#pragma unroll
            for (int l = 0; l < 8; l++)
                v[l] = h < most && lane + l < end ? from[l] : 0;
            store_unit(queries + b * BLOCK + h * 128 + ((u ^ h) & 7) * UNIT_BYTES, pack_unit(v));
        }
        return;
    }
    /* A unit of each block of two heads: all are asked for before the first is stored. */
    uint4 w[2][MOST_BLOCKS + 1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int h = threadIdx.x / 8 + i * 32;
        const bf16 *from = q + (int64_t)h * d + u * 8;
#pragma unroll
        for (int b = 0; b <= MOST_BLOCKS; b++) {
            bool rope = b == MOST_BLOCKS;
            bool there =
                h < most && (rope ? 0 : b * 64) + u * 8 < (rope ? p.a.q_rest : p.a.q_split);
            w[i][b] = make_uint4(0, 0, 0, 0);
            if (there)
                w[i][b] = *(const uint4 *)(from + (rope ? p.a.q_split : b * 64));
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int h = threadIdx.x / 8 + i * 32;
        uint32_t to = queries + h * 128 + ((u ^ h) & 7) * UNIT_BYTES;
#pragma unroll
        for (int b = 0; b < MOST_BLOCKS; b++)
            if (b < n_blocks)
                store_unit(to + b * BLOCK, w[i][b]);
        store_unit(to + n_blocks * BLOCK, w[i][MOST_BLOCKS]);
    }
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

#ifdef CUDA_SM90A

/* Scores += the queries' lanes of a block against the page's. */
__device__ __forceinline__ void score_block(float (&s)[32], uint64_t queries, uint64_t page,
                                            bool add)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rows_by_rows(s, further(queries, k * 32), further(page, k * 32), add || k > 0);
}

#endif

template <bool CODED>
__device__ __forceinline__ void score(float (&s)[32], const CudaLatents &c, uint32_t queries,
                                      uint32_t page)
{
#ifdef CUDA_SM90A
    uint64_t q = rows_descriptor(queries), k = rows_descriptor(page);
    int rope = c.latent_blocks * BLOCK;
    /* Rope lanes first: they have no scale of their own, and take the latents' in advance. */
    wgmma_fence();
    score_block(s, further(q, rope), further(k, rope), false);
    if (CODED) {
        wgmma_commit();
        wgmma_end(s);
        float over = 1.0f / c.kv.k_scale;
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] *= over;
        wgmma_fence();
    }
#pragma unroll 1
    for (int b = 0; b < c.latent_blocks; b++)
        score_block(s, further(q, b * BLOCK), further(k, b * BLOCK), true);
    wgmma_commit();
    wgmma_end(s);
#endif
}

/* The group's half of the lanes. */
__device__ __forceinline__ void add(State &t, uint32_t (&w)[4][4], const float by[2],
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
    for (int b = 0; b < HALF; b += 2) {
        /* Of blocks that are not there, sums that nobody reads, of lanes that are: behind the last
         * block are those of rope. */
        uint64_t v = columns_descriptor(page + min(first + b, c.latent_blocks - 1) * BLOCK, BLOCK);
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_by_columns(*reinterpret_cast<float(*)[64]>(&t.o[b][0]), w[k],
                             further(v, k * 16 * 128));
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(*reinterpret_cast<float(*)[HALF * 32]>(&t.o[0][0]));
    hold(*reinterpret_cast<uint32_t(*)[16]>(&w[0][0]));
#endif
}

__device__ __forceinline__ void finish(const Params &p, const Job &j, const State &t)
{
    const CudaLatents &c = p.a.cache;
    int lane = threadIdx.x % 32, half = threadIdx.x / 128 * HALF * 64;
    bool pairs = p.a.out_dim % 2 == 0 && p.a.out_stride % 2 == 0 &&
                 (uintptr_t)p.a.out % sizeof(uint32_t) == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = j.head + threadIdx.x % 128 / 32 * 16 + r * 8 + lane / 4;
        float by = c.kv.k_scale / t.sum[2 * r];
        bf16 *out = (bf16 *)p.a.out + j.row * p.a.out_stride + (int64_t)head * p.a.out_dim;
        if (head >= p.a.n_heads)
            continue;
#pragma unroll
        for (int n = 0; n < HALF * 8; n++) {
            int l = half + n * 8 + lane % 4 * 2;
            uint32_t pair = pack_bf16(t.o[n / 8][n % 8 * 4 + 2 * r] * by,
                                      t.o[n / 8][n % 8 * 4 + 2 * r + 1] * by);
            if (l + 1 < p.a.out_dim && pairs) {
                *(uint32_t *)(out + l) = pair;
            } else {
                if (l < p.a.out_dim)
                    ((uint16_t *)out)[l] = (uint16_t)pair;
                if (l + 1 < p.a.out_dim)
                    ((uint16_t *)out)[l + 1] = (uint16_t)(pair >> 16);
            }
        }
    }
}

template <bool CODED>
__global__ void __launch_bounds__(THREADS, 1) latent_kernel(const __grid_constant__ Params p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t barriers[2 * PLACES];
    __shared__ unsigned before;
    const CudaLatents &c = p.a.cache;
    int group = threadIdx.x / 128;
    uint32_t queries = shared_address(shared);
    Places pages = {queries + p.tile_bytes, shared_address(barriers),
                    shared_address(barriers + PLACES)};
    uint32_t message = pages.at + PLACES * p.tile_bytes + threadIdx.x % 128 * 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; i++) {
            /* Threads of four warps decode, and the copy engine brings rope lanes. */
            barrier_make(pages.full + 8 * i, CODED ? 128 + 1 : 1);
            barrier_make(pages.empty + 8 * i, ROWS / 32);
        }
        barriers_made();
    }
    __syncthreads();
    if (group == 2) {
        registers_down<CODED ? 104 : 24>();
        if (CODED && c.latent_blocks == MOST_BLOCKS)
            feed_codes<MOST_BLOCKS>(p, pages);
        else if (CODED)
            feed_codes<0>(p, pages);
        else if (threadIdx.x / 32 == ROWS / 32)
            feed(p, pages);
        return;
    }
    registers_up<CODED ? 200 : 240>();

    float unit = p.a.scale * c.kv.k_scale * 1.44269504f;
    float *state = p.a.partials + (int64_t)blockIdx.x * STATE_FLOATS,
          *slots = p.a.partials + (int64_t)gridDim.x * STATE_FLOATS;
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
            uint32_t at = pages.here(p), w[4][4];
            float by[2];
            pages.wait_full();
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
                if (!CODED && n_keys < KV_PAGE)
                    meet<ROWS>(CLEARED);
            } else {
                if (!CODED && n_keys < KV_PAGE) {
                    clear_rows(c, at, n_keys);
                    proxy_fence();
                    meet_later<ROWS>(CLEARED);
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
            if (threadIdx.x % 32 == 0)
                barrier_arrive(pages.empty + 8 * pages.place);
            pages.next();
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
    static bool may_take[2];
    const CudaLatents &c = a->cache;
    bool coded = c.kv.dtype == KV_FP8;
    Params p = {};
    p.a = *a;
    p.columns = (a->n_heads + HEADS - 1) / HEADS;
    p.tile_bytes = (c.latent_blocks + 1) * BLOCK;
    int shared = (1 + PLACES) * p.tile_bytes + 5 * 2048;
    auto kernel = coded ? latent_kernel<true> : latent_kernel<false>;
    int grid, most;
    cudaError_t code = count_multiprocessors(&grid);
    if (code == cudaSuccess)
        code = device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(&most);
    if (code == cudaSuccess)
        code = allow_shared(kernel, most - 1024, &may_take[coded]);
    if (code != cudaSuccess)
        return code;
    p.a.most_floats -= (int64_t)grid * STATE_FLOATS;
    if (p.a.most_floats < 0)
        return cudaErrorInvalidValue;
    kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}
