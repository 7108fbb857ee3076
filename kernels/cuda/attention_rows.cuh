/* kernels/cuda/attention_rows.cuh - what a warp of attention does with its rows: scores against a page,
 * weights, sums of values, states merged, outputs. */
#ifndef MB_KERNELS_CUDA_ATTENTION_ROWS_CUH
#define MB_KERNELS_CUDA_ATTENTION_ROWS_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pages.cuh"

namespace
{

constexpr int SPLIT_PAGES = CUDA_SPLIT / KV_PAGE, MOST_PIECES = 4;
constexpr uint32_t ALL = 0xffffffffu;

/* Keys of pages first .. last for n_heads heads from head on of n_rows rows from row on, whose first
 * position is pos. */
struct Job {
    const int32_t *pages;
    int first, last, kv_head, head, n_heads, row, n_rows, pos;
    /* of a row's split: where the results of its splits begin, how many there are, which this is */
    int64_t slot;
    int number, n_splits, split;
};

/* Keys and values of a prompt's sequences that were made from their latents. */
struct Expansion {
    const bf16 *kv; /* of the position that first_page begins with: each column's keys and values */
    int first_page, end_page; /* of the list: pages whose positions are there */
};

struct Params {
    CudaAttention a;
    int columns;   /* KV heads times blocks of heads */
    int blocks;    /* of heads per KV head */
    int per_block; /* heads */
    int n_pieces, half_bytes;
    int64_t slot_floats;
    Expansion expansion;
};

/* per_block: heads of a KV head that go together */
Params params_of(const CudaAttention &a, int per_block)
{
    Params p = {};
    p.a = a;
    p.per_block = per_block;
    p.blocks = (a.n_heads / a.cache.n_kv_heads + per_block - 1) / per_block;
    p.columns = a.cache.n_kv_heads * p.blocks;
    return p;
}

/* The whole of what a row, or a tile's rows, see. */
__device__ __forceinline__ void see(Job &j, int window)
{
    int from = window > 0 && j.pos >= window ? j.pos - window + 1 : 0;
    j.first = from / KV_PAGE;
    j.last = (j.pos + j.n_rows - 1) / KV_PAGE;
}

__device__ __forceinline__ void choose_heads(Job &j, const Params &p, int column)
{
    int per_kv = p.a.n_heads / p.a.cache.n_kv_heads, block = column % p.blocks;
    j.kv_head = column / p.blocks;
    j.head = j.kv_head * per_kv + block * p.per_block;
    j.n_heads = min(p.per_block, per_kv - block * p.per_block);
}

/* Whether results of splits have their places, and so run side by side. */
__device__ __forceinline__ bool side_by_side(const Params &p)
{
    const CudaListHead *h = p.a.list.head;
    return (int64_t)h->n_slots * p.columns * p.slot_floats <= p.a.most_floats &&
           (int64_t)h->n_singles * p.columns <= p.a.most_counters;
}

/* The job of this block in round k: rounds go forth and back over a list that begins with the
 * longest. */
template <bool SINGLE> __device__ __forceinline__ bool find_job(const Params &p, int &k, Job &j)
{
    const CudaListHead *l = p.a.list.head;
    const int32_t *pages = list_pages(l);
    bool splits = SINGLE && side_by_side(p);
    int n = SINGLE ? (splits ? l->n_splits : l->n_singles) : p.a.list.n_tiles[p.a.tile];
    for (;; k++) {
        int64_t at = (int64_t)k * gridDim.x + (k & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if ((int64_t)k * gridDim.x >= (int64_t)n * p.columns)
            return false;
        if (at >= (int64_t)n * p.columns)
            continue;
        int entry = (int)(at / p.columns), column = (int)(at % p.columns);
        choose_heads(j, p, column);
        if (!SINGLE) {
            CudaQueries q = ((const CudaQueries *)list_at(l, l->tiles_at[p.a.tile]))[entry];
            if (p.expansion.kv &&
                (q.pages < p.expansion.first_page || q.pages >= p.expansion.end_page))
                continue;
            j.row = q.row;
            j.n_rows = q.n;
            j.pos = q.pos;
            j.pages = pages + q.pages;
            j.n_splits = 1;
            see(j, p.a.window);
            return true;
        }
        CudaSplit s = ((const CudaSplit *)list_at(l, splits ? l->splits_at : l->singles_at))[entry];
        j.row = s.row;
        j.n_rows = 1;
        j.pos = s.pos;
        j.pages = pages + s.pages;
        see(j, p.a.window);
        j.n_splits = 1;
        if (!splits)
            return true;
        int first = j.first / SPLIT_PAGES, last = j.last / SPLIT_PAGES;
        if (s.split < first || s.split > last)
            continue;
        j.n_splits = last - first + 1;
        j.split = s.split - first;
        j.slot = ((int64_t)s.slot * p.columns + (int64_t)column * s.n_slots) * p.slot_floats;
        j.number = s.number * p.columns + column;
        j.first = max(j.first, s.split * SPLIT_PAGES);
        j.last = min(j.last, s.split * SPLIT_PAGES + SPLIT_PAGES - 1);
        return true;
    }
}

/* Unit u of a head's d lanes: eight of them, or those that there are. whole: 16 bytes may go at once. */
__device__ __forceinline__ void store_lanes(bf16 *to, uint4 w, int u, int d, bool whole)
{
    if (whole && u * 8 + 8 <= d) {
        *(uint4 *)to = w;
    } else {
        const uint32_t v[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int l = 0; l < 8; l++)
            if (u * 8 + l < d)
                ((uint16_t *)to)[l] = (uint16_t)(v[l / 2] >> l % 2 * 16);
    }
}

/* What a warp has of its MT * 16 rows, each a query row and a head. MOST: lanes of a head at most; EXACT:
 * there are as many, and tiles lie in blocks of 64. */
template <int M, int MOST, bool E> struct Rows {
    static constexpr int MT = M, HD = MOST, KS = HD / 16, TILE = M * 16;
    static constexpr bool EXACT = E;
    static constexpr bool HELD = MT * KS <= 8; /* queries in registers */

    float o[MT][2 * KS][4], top[MT][2];
    float sum[MT][4]; /* of a row's weights: 0 and 2, twice each */
    uint32_t q[HELD ? MT : 1][HELD ? KS : 1][4];
    int pos[MT][2];
    int window, n_steps, units;
    uint32_t queries; /* the warp's tile in shared memory */
    float unit;       /* powers of two per score */

    __device__ __forceinline__ void shape(const Params &p, uint32_t tiles)
    {
        int warp = threadIdx.x / 32;
        units = EXACT ? HD / 8 : p.a.cache.lanes / 8;
        n_steps = EXACT ? KS : units / 2;
        queries = tiles + warp * TILE * units * UNIT_BYTES;
        window = p.a.window > 0 ? p.a.window : 1 << 30;
        unit = p.a.scale * p.a.cache.kv.k_scale * 1.44269504f;
    }

    /* Where unit 2 k + half of a row lies in a tile of n_rows; by: the row's exchange. */
    __device__ __forceinline__ int at(int n_rows, int row, int k, int half, int by) const
    {
        if (EXACT)
            return (k / 4 * n_rows + row) * 128 + (((k % 4 * 2 + half) ^ by) * UNIT_BYTES);
        return (row * units + ((2 * k + half) ^ by)) * UNIT_BYTES;
    }

    __device__ __forceinline__ int exchange() const
    {
        return EXACT ? threadIdx.x % 8 : unit_exchange(units, threadIdx.x % 8);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int t = 0; t < MT; t++) {
            top[t][0] = top[t][1] = -INFINITY;
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[t][i] = 0;
#pragma unroll
            for (int n = 0; n < 2 * KS; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o[t][n][i] = 0;
        }
    }

    /* first: of this warp's rows among the job's. Rows beyond those repeat the last row's position. */
    __device__ __forceinline__ void load(const Params &p, const Job &j, int first)
    {
        int lane = threadIdx.x % 32, d = p.a.head_dim;
        bool whole = d % 8 == 0 && p.a.q_stride % 8 == 0 && (uintptr_t)p.a.q % 16 == 0;
        __syncwarp();
        for (int i = lane; i < MT * 16 * units; i += 32) {
            int r = i / units, u = i % units, m = first + r, row = m / j.n_heads;
            uint4 w = make_uint4(0, 0, 0, 0);
            if (row < j.n_rows) {
                const bf16 *from = (const bf16 *)p.a.q + (int64_t)(j.row + row) * p.a.q_stride +
                                   (int64_t)(j.head + m % j.n_heads) * d + u * 8;
                if (whole && u * 8 + 8 <= d) {
                    w = *(const uint4 *)from;
                } else {
                    uint32_t v[8];
#pragma unroll
                    for (int l = 0; l < 8; l++)
                        v[l] = u * 8 + l < d ? ((const uint16_t *)from)[l] : 0;
                    w = pack_unit(v);
                }
            }
            store_unit(queries + unit_at(units, TILE, r, u), w);
        }
        __syncwarp();
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                pos[t][r] =
                    j.pos + min((first + t * 16 + r * 8 + lane / 4) / j.n_heads, j.n_rows - 1);
        if (HELD) {
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int k = 0; k < KS; k++)
                    if (EXACT || k < n_steps)
                        load_queries(q[t][k], t, k);
        }
    }

    __device__ __forceinline__ void load_queries(uint32_t r[4], int t, int k)
    {
        int lane = threadIdx.x % 32;
        load_matrices(r, queries + at(TILE, t * 16 + lane % 16, k, lane / 16, exchange()));
    }

    static __device__ __forceinline__ void clear_scores(float s[MT][8][4])
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[t][n][i] = 0;
    }

    __device__ __forceinline__ void score(float s[MT][8][4], uint32_t keys)
    {
        int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, by = exchange();
        clear_scores(s);
#pragma unroll
        for (int k = 0; k < KS; k++) {
            if (!EXACT && k >= n_steps)
                break;
            uint32_t mine[HELD ? 1 : MT][4];
            if (!HELD) {
#pragma unroll
                for (int t = 0; t < MT; t++)
                    load_queries(mine[t], t, k);
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t b[4];
                load_matrices(b, keys + at(KV_PAGE, n * 16 + row, k, lane / 8 % 2, by));
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma(s[t][2 * n], HELD ? q[HELD ? t : 0][HELD ? k : 0] : mine[HELD ? 0 : t],
                        b[0], b[1]);
                    mma(s[t][2 * n + 1], HELD ? q[HELD ? t : 0][HELD ? k : 0] : mine[HELD ? 0 : t],
                        b[2], b[3]);
                }
            }
        }
    }

    /* Scores of the page that begins at this position become weights, rounded two by two into the
     * place of the first. Sums of earlier pages are then to be scaled by `by`. masked: some scores
     * are of keys that are not seen. */
    __device__ __forceinline__ void powers(float by[MT][2], float s[MT][8][4], int start,
                                           bool masked)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (masked) {
                    int seen = pos[t][r] - start - lane % 4 * 2;
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if ((unsigned)(seen - n * 8 - i) >= (unsigned)window)
                                s[t][n][2 * r + i] = -INFINITY;
                }
                float most = s[t][0][2 * r];
#pragma unroll
                for (int n = 0; n < 8; n++)
                    most = fmaxf(most, fmaxf(s[t][n][2 * r], s[t][n][2 * r + 1]));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
                most = fmaxf(top[t][r], ceilf(most * unit));
                float base = most == -INFINITY ? 0.0f : most;
                by[t][r] = power_of_two(top[t][r] - base);
                top[t][r] = most;
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    float *pair = &s[t][n][2 * r];
                    pair[0] = __uint_as_float(pack_bf16(power_of_two(fmaf(pair[0], unit, -base)),
                                                        power_of_two(fmaf(pair[1], unit, -base))));
                }
            }
    }

    /* The weights that powers left, as an operand. */
    static __device__ __forceinline__ void take(uint32_t w[MT][4][4], const float s[MT][8][4])
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    w[t][n / 2][n % 2 * 2 + r] = __float_as_uint(s[t][n][2 * r]);
    }

    /* Sums of earlier pages, to the new maxima. */
    __device__ __forceinline__ void rescale(const float by[MT][2])
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
            if (__any_sync(ALL, by[t][0] != 1.0f || by[t][1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[t][i] *= by[t][i / 2];
#pragma unroll
                for (int n = 0; n < 2 * KS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        o[t][n][i] *= by[t][i / 2];
            }
    }

    __device__ __forceinline__ void weigh(uint32_t w[MT][4][4], float s[MT][8][4], int start,
                                          bool masked)
    {
        float by[MT][2];
        powers(by, s, start, masked);
        take(w, s);
        rescale(by);
    }

    /* n_keys: beyond them the page may hold anything. */
    __device__ __forceinline__ void add(const uint32_t w[MT][4][4], uint32_t values, int n_keys)
    {
        if (n_keys < KV_PAGE)
            add_some<true>(w, values, n_keys);
        else
            add_some<false>(w, values, n_keys);
    }

    /* Weights of step k to the sums of weights, as rounded: of one key the output is its value. */
    __device__ __forceinline__ void add_weights(const uint32_t w[MT][4][4], int k)
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
            mma(sum[t], w[t][k], ONES, ONES);
    }

    template <bool PART>
    __device__ __forceinline__ void add_some(const uint32_t w[MT][4][4], uint32_t values,
                                             int n_keys)
    {
        int lane = threadIdx.x % 32, by = exchange();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t keep[2] = {ALL, ALL};
            if (PART) {
                if (k * 16 >= n_keys)
                    break;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int left = n_keys - k * 16 - i * 8 - lane % 4 * 2;
                    keep[i] = left >= 2 ? ALL : left == 1 ? 0xffffu : 0u;
                }
            }
            add_weights(w, k);
#pragma unroll
            for (int n = 0; n < KS; n++) {
                if (!EXACT && n >= n_steps)
                    break;
                uint32_t b[4];
                load_transposed(b, values + at(KV_PAGE, k * 16 + lane % 16, n, lane / 16, by));
                if (PART) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        b[i] &= keep[i % 2];
                }
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma(o[t][2 * n], w[t][k], b[0], b[1]);
                    mma(o[t][2 * n + 1], w[t][k], b[2], b[3]);
                }
            }
        }
    }

    /* The same for E4M3, as its piece lies: a word of a matrix has a pair of each of two units. */
    __device__ __forceinline__ void score_e4m3(float s[MT][8][4], uint32_t keys)
    {
        int lane = threadIdx.x % 32, by = unit_exchange(n_steps, lane % 8);
        static_assert(HELD || MT == 1, "single rows");
        clear_scores(s);
#pragma unroll
        for (int k = 0; k < KS; k++) {
            if (!EXACT && k >= n_steps)
                break;
            uint32_t a[4];
            if (!HELD)
                load_queries(a, 0, k);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                uint32_t b[4];
                load_matrices(b, keys + ((n * 32 + lane) * n_steps + (k ^ by)) * UNIT_BYTES);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mma(s[0][n * 4 + i], HELD ? q[0][HELD ? k : 0] : a, even_from_e4m3(b[i]),
                        odd_from_e4m3(b[i]));
            }
        }
    }

    __device__ __forceinline__ void add_e4m3(const uint32_t w[MT][4][4], uint32_t values)
    {
        int lane = threadIdx.x % 32, by = unit_exchange(n_steps, lane % 8);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            add_weights(w, 2 * k);
            add_weights(w, 2 * k + 1);
#pragma unroll
            for (int n = 0; n < KS; n++) {
                if (!EXACT && n >= n_steps)
                    break;
                uint32_t b[4];
                load_transposed(b, values + ((k * 32 + lane) * n_steps + (n ^ by)) * UNIT_BYTES);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma(o[0][2 * n], w[0][2 * k + i], even_from_e4m3(b[2 * i]),
                        even_from_e4m3(b[2 * i + 1]));
                    mma(o[0][2 * n + 1], w[0][2 * k + i], odd_from_e4m3(b[2 * i]),
                        odd_from_e4m3(b[2 * i + 1]));
                }
            }
        }
    }

    /* A value of a state in memory, which lies as registers do. */
    static __device__ __forceinline__ float *place(float *slot, int t, int i)
    {
        return slot + (t * (2 * KS * 4 + 4) + i) * 32 + threadIdx.x % 32;
    }

    __device__ __forceinline__ void store(float *slot)
    {
#pragma unroll
        for (int t = 0; t < MT; t++) {
#pragma unroll
            for (int n = 0; n < 2 * KS; n++)
                if (EXACT || n < 2 * n_steps)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        *place(slot, t, n * 4 + i) = o[t][n][i];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                *place(slot, t, 2 * KS * 4 + r) = top[t][r];
                *place(slot, t, 2 * KS * 4 + 2 + r) = sum[t][2 * r];
            }
        }
    }

    /* The state in memory, of earlier positions (EARLIER) or later ones, joins. */
    template <bool EARLIER> __device__ __forceinline__ void merge(float *slot)
    {
#pragma unroll
        for (int t = 0; t < MT; t++) {
            float mine[2], other[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float theirs = __ldcg(place(slot, t, 2 * KS * 4 + r));
                float their_sum = __ldcg(place(slot, t, 2 * KS * 4 + 2 + r));
                float most = fmaxf(theirs, top[t][r]), base = most == -INFINITY ? 0.0f : most;
                mine[r] = power_of_two(top[t][r] - base);
                other[r] = power_of_two(theirs - base);
                top[t][r] = most;
                sum[t][2 * r] = EARLIER ? fmaf(their_sum, other[r], sum[t][2 * r] * mine[r])
                                        : fmaf(sum[t][2 * r], mine[r], their_sum * other[r]);
            }
#pragma unroll
            for (int n = 0; n < 2 * KS; n++)
                if (EXACT || n < 2 * n_steps)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float theirs = __ldcg(place(slot, t, n * 4 + i));
                        o[t][n][i] = EARLIER ? fmaf(theirs, other[i / 2], o[t][n][i] * mine[i / 2])
                                             : fmaf(o[t][n][i], mine[i / 2], theirs * other[i / 2]);
                    }
        }
    }

    /* By what the sums of a row become outputs, once the sink has joined; sink -INFINITY: there is
     * none. */
    __device__ __forceinline__ float last_factor(int t, int r, float sink, float v_scale) const
    {
        float total = sum[t][2 * r], factor = 1.0f;
        if (sink != -INFINITY) {
            sink *= 1.44269504f;
            float most = fmaxf(top[t][r], ceilf(sink));
            factor = power_of_two(top[t][r] - most);
            total = fmaf(total, factor, power_of_two(sink - most));
        }
        return factor * v_scale / total;
    }

    /* A zero has no sign, merged or not. */
    __device__ __forceinline__ uint32_t last_pair(int t, int n, int r, float by) const
    {
        return pack_bf16(fmaf(o[t][n][2 * r], by, 0.0f), fmaf(o[t][n][2 * r + 1], by, 0.0f));
    }

    /* The sink joins, and outputs go out by way of the memory of the queries. */
    __device__ __forceinline__ void finish(const Params &p, const Job &j, int first)
    {
        int lane = threadIdx.x % 32, d = p.a.head_dim;
        __syncwarp();
#pragma unroll
        for (int t = 0; t < MT; t++) {
            float by[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int m = (first + t * 16 + r * 8 + lane / 4) % j.n_heads;
                by[r] = last_factor(t, r, p.a.sinks ? p.a.sinks[j.head + m] : -INFINITY,
                                    p.a.cache.kv.v_scale);
            }
#pragma unroll
            for (int n = 0; n < 2 * KS; n++)
                if (EXACT || n < 2 * n_steps)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        uint32_t w = last_pair(t, n, r, by[r]);
                        int row = t * 16 + r * 8 + lane / 4;
                        store_word(queries + unit_at(units, TILE, row, n) + lane % 4 * 4, w);
                    }
        }
        __syncwarp();
        bool whole = d % 8 == 0 && p.a.out_stride % 8 == 0 && (uintptr_t)p.a.out % 16 == 0;
        for (int i = lane; i < MT * 16 * units; i += 32) {
            int r = i / units, u = i % units, m = first + r, row = m / j.n_heads;
            if (row >= j.n_rows)
                break;
            uint4 w = load_unit(queries + unit_at(units, TILE, r, u));
            bf16 *to = (bf16 *)p.a.out + (int64_t)(j.row + row) * p.a.out_stride +
                       (int64_t)(j.head + m % j.n_heads) * d + u * 8;
            store_lanes(to, w, u, d, whole);
        }
    }
};

/* A piece of E2M1 codes as rows of bf16, by THREADS threads, of which this is one: 16 lanes by each, a few
 * times over, so that it waits for the codes of all at once. Of eight neighbours four have a row and
 * four the next, where rows are long enough, so that what they store lies in different banks. */
template <int THREADS>
__device__ __forceinline__ void decode_e2m1(uint32_t to, const uint8_t *from, int units, int n_keys,
                                            int thread)
{
    constexpr unsigned TIMES = THREADS == 32 ? 4 : 1; /* the helpers have no registers for more */
    unsigned runs = (unsigned)units / 2, n = KV_PAGE * runs;
    bool by_fours = runs % 4 == 0, whole = n % (TIMES * THREADS) == 0;
    const uint8_t *scales = from + n * 8;
#pragma unroll 1
    for (unsigned first = (unsigned)thread; first < n; first += TIMES * THREADS) {
        uint2 w[TIMES];
        uint32_t scale[TIMES];
        int row[TIMES], run[TIMES];
#pragma unroll
        for (unsigned t = 0; t < TIMES; t++) {
            unsigned i = first + t * THREADS, in_two = i % (2 * runs);
            row[t] = (int)(by_fours ? i / (2 * runs) * 2 + in_two / 4 % 2 : i / runs);
            run[t] = (int)(by_fours ? in_two / 8 * 4 + in_two % 4 : i % runs);
            int at = row[t] * (int)runs + run[t];
            w[t] = make_uint2(0, 0);
            scale[t] = 0;
            if ((whole || i < n) && row[t] < n_keys) {
                w[t] = ((const uint2 *)from)[at];
                scale[t] = scales[at];
            }
        }
#pragma unroll
        for (unsigned t = 0; t < TIMES; t++) {
            float by = from_e4m3(scale[t]);
            if (!whole && first + t * THREADS >= n)
                break;
            store_unit(to + unit_at(units, KV_PAGE, row[t], 2 * run[t]),
                       eight_from_e2m1(w[t].x, by));
            store_unit(to + unit_at(units, KV_PAGE, row[t], 2 * run[t] + 1),
                       eight_from_e2m1(w[t].y, by));
        }
    }
}

/* A piece of codes as rows of bf16. Rows behind the first n_keys become zeros. */
template <int THREADS>
__device__ __forceinline__ void decode(uint32_t to, const uint8_t *from, int units, int n_keys,
                                       KvDtype dtype, int thread)
{
    int runs = units / 2;
    if (dtype == KV_NVFP4) {
        decode_e2m1<THREADS>(to, from, units, n_keys, thread);
        return;
    }
    for (int i = thread; i < KV_PAGE * runs; i += THREADS) {
        int r = i / runs, u = i % runs;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (r < n_keys)
            w = ((const uint4 *)from)[r * runs + (u ^ unit_exchange(runs, r))];
        store_unit(to + unit_at(units, KV_PAGE, r, 2 * u), low_from_e4m3(w));
        store_unit(to + unit_at(units, KV_PAGE, r, 2 * u + 1), high_from_e4m3(w));
    }
}

} // namespace

#endif
