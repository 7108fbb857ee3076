/* kernels/cuda/attention_sm90.cuh - the kernel of a prompt's tiles by wgmma: groups of four warps with 64
 * pairs of a row and a query head each, and one more group, which brings them queries, keys and values.
 * Of that group a warp feeds, by the copy engine; the three others help, by their own instructions. */
#ifndef MB_KERNELS_CUDA_ATTENTION_SM90_CUH
#define MB_KERNELS_CUDA_ATTENTION_SM90_CUH

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

/* Where keys and values come from: pages of bf16; pages of codes; or rows made from latents, with the
 * rope lanes of keys from the latents' pages. */
enum Source { PAGES, CODED_PAGES, EXPANDED };

constexpr int BLOCK = KV_PAGE * 128; /* bytes of 64 rows of 64 lanes, the tile that wgmma reads */

/* Of heads whose keys have QK lanes and values V: who there is, and what shared memory holds. A place
 * takes the keys of a page, then its values. */
template <int QK, int V, Source FROM> struct Plan {
    static constexpr bool CODED = FROM == CODED_PAGES;
    static constexpr int GROUPS = V > 128 ? 2 : 3, READERS = 4 * GROUPS;
    static constexpr int THREADS = 128 * (GROUPS + 1), HELPERS = 96; /* beside the warp that feeds */
    static constexpr bool BUSY = FROM != PAGES; /* helpers */
    static constexpr int FEED_REGISTERS = CODED     ? (V > 64 ? 56 : 80)
                                          : BUSY    ? (V > 128 ? 40 : 56)
                                          : V > 128 ? 24
                                                    : 32,
                         ROW_REGISTERS = CODED     ? (V > 128 ? 224 : V > 64 ? 152 : 144)
                                         : BUSY    ? (V > 128 ? 232 : 152)
                                         : V > 128 ? 240
                                                   : 160;
    static constexpr int TILE_BYTES = QK / 64 * BLOCK, TILES = QK > 128 ? 1 : 2;
    static constexpr int KEY_BYTES = QK / 64 * BLOCK, PLACE_BYTES = KEY_BYTES + V / 64 * BLOCK;
    static constexpr int PLACES = QK > V     ? 3
                                  : V > 128  ? 2
                                  : V == 64  ? 8
                                  : CODED    ? 3
                                             : 4;
    static constexpr int RAW = !CODED ? 0 : V > 128 ? 1 : V > 64 ? 2 : 4; /* places of codes, */
    static constexpr int RAW_BYTES = KV_PAGE * V; /* and of half of one at most */
    static constexpr int PLACES_AT = TILES * GROUPS * TILE_BYTES,
                         RAW_AT = PLACES_AT + PLACES * PLACE_BYTES,
                         SHARED = RAW_AT + RAW * 2 * RAW_BYTES;
    /* How many tell that a half is full: the copy engine, or helpers, or both. */
    static constexpr int KEY_WRITERS = FROM == PAGES ? 1 : CODED ? HELPERS : HELPERS + 1,
                         VALUE_WRITERS = FROM == PAGES ? 1 : HELPERS;
    static_assert(SHARED <= 226 * 1024, "a multiprocessor's, less what else is shared");
    static_assert(GROUPS * ROW_REGISTERS + FEED_REGISTERS <= 65536 / THREADS / 8 * 8 * (GROUPS + 1),
                  "as many registers as a block begins with, or it waits for ever");
};

/* Barriers of a ring: which of its places are full, and which have been read. */
struct Ring {
    uint32_t full, empty;

    __device__ __forceinline__ void make(int n, int writers, int readers) const
    {
        for (int i = 0; i < n; i++) {
            barrier_make(full + 8 * i, writers);
            barrier_make(empty + 8 * i, readers);
        }
    }
};

template <int N> struct Cursor {
    int place = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next()
    {
        if (++place == N) {
            place = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void wait_full(const Ring &r) const
    {
        barrier_wait(r.full + 8 * place, parity);
    }
    __device__ __forceinline__ void wait_empty(const Ring &r) const
    {
        barrier_wait(r.empty + 8 * place, parity ^ 1);
    }
};

struct Barriers {
    uint64_t keys[2 * 8], values[2 * 8], raw[2][2 * 4], tiles[2 * 2];
};

struct Rings {
    Ring keys, values, raw[2], tiles;

    /* barriers: where Barriers are. */
    template <class PLAN> __device__ __forceinline__ void place(uint32_t barriers)
    {
        auto ring = [=](size_t at, int n) {
            uint32_t full = barriers + (uint32_t)at;
            return Ring{full, full + 8 * n};
        };
        keys = ring(offsetof(Barriers, keys), PLAN::PLACES);
        values = ring(offsetof(Barriers, values), PLAN::PLACES);
        raw[0] = ring(offsetof(Barriers, raw[0]), 4);
        raw[1] = ring(offsetof(Barriers, raw[1]), 4);
        tiles = ring(offsetof(Barriers, tiles), 2);
    }

    template <class PLAN> __device__ __forceinline__ void make() const
    {
        keys.make(PLAN::PLACES, PLAN::KEY_WRITERS, PLAN::READERS);
        values.make(PLAN::PLACES, PLAN::VALUE_WRITERS, PLAN::READERS);
        for (int i = 0; i < 2; i++)
            raw[i].make(PLAN::RAW, 1, PLAN::HELPERS);
        tiles.make(PLAN::TILES, PLAN::HELPERS + 1, 32 * PLAN::READERS);
        barriers_made();
    }
};

#ifdef CUDA_SM90A

/* By one warp: what the copy engine brings, job after job. Of expanded sequences the keys' rope
 * lanes. */
template <int QK, int V, Source FROM>
__device__ __forceinline__ void feed(const Params &p, const Rings &rings, uint32_t shared)
{
    using P = Plan<QK, V, FROM>;
    constexpr int N = P::CODED ? P::RAW : P::PLACES;
    const Ring &keys = P::CODED ? rings.raw[0] : rings.keys,
               &values = P::CODED ? rings.raw[1] : rings.values;
    uint32_t to = shared + (P::CODED ? P::RAW_AT : P::PLACES_AT);
    int lane = threadIdx.x % 32;
    Cursor<N> c;
    Job j;
    auto wait = [&](const Ring &r) {
        c.wait_empty(r);
        __syncwarp(); /* before one lane fills it, and others may empty it again */
    };
    for (int k = 0; find_job<false>(p, k, j); k++) {
        const uint8_t *from =
            (const uint8_t *)p.a.cache.pool +
            (FROM == EXPANDED ? 0 : j.kv_head) * p.a.cache.head_bytes;
        int number = 0;
        for (int page = j.first; page <= j.last; page++, c.next()) {
            if (page == j.first || page % 32 == 0) {
                int at = page / 32 * 32 + lane;
                number = at >= page && at <= j.last ? j.pages[at] : 0;
            }
            const uint8_t *at = from + __shfl_sync(ALL, number, page % 32) * p.a.cache.page_bytes;
            if (FROM == EXPANDED) {
                wait(keys);
                load_bytes(to + c.place * P::PLACE_BYTES + V / 64 * BLOCK,
                           at + p.a.cache.head_bytes, BLOCK, keys.full + 8 * c.place);
                continue;
            }
            uint32_t place = to + c.place * (P::CODED ? 2 * P::RAW_BYTES : P::PLACE_BYTES);
            wait(keys);
            load_bytes(place, at, p.half_bytes, keys.full + 8 * c.place);
            wait(values);
            load_bytes(place + (P::CODED ? P::RAW_BYTES : P::KEY_BYTES), at + p.half_bytes,
                       p.half_bytes, values.full + 8 * c.place);
        }
    }
}

/* m * this >> 16 is m / n_heads, for m of a tile. */
__device__ __forceinline__ uint32_t rows_by(int n_heads)
{
    return (65536u + n_heads - 1) / n_heads;
}

/* By the helpers: the queries of a job, 64 pairs to each group. */
template <int QK, int V, Source FROM>
__device__ __forceinline__ void send_queries(const Params &p, const Job &j, uint32_t tile,
                                             uint32_t full, int helper)
{
    using P = Plan<QK, V, FROM>;
    constexpr int UNITS = QK / 8, STEP = P::HELPERS / UNITS;
    int d = FROM == EXPANDED ? QK : p.a.head_dim, u = helper % UNITS, n_heads = j.n_heads;
    uint32_t by_row = rows_by(n_heads);
    const bf16 *q = (const bf16 *)p.a.q + j.row * p.a.q_stride + (int64_t)j.head * d + u * 8;
    bool whole = d % 8 == 0 && p.a.q_stride % 8 == 0 && (uintptr_t)p.a.q % 16 == 0;
    if (whole) {
        int n = u * 8 < d ? j.n_rows * n_heads : 0;
#pragma unroll 4
        for (int m = helper / UNITS; m < P::GROUPS * 64; m += STEP) {
            int row = (int)(m * by_row >> 16), head = m - row * n_heads;
            copy_16(tile + m / 64 * P::TILE_BYTES + unit_at(UNITS, 64, m % 64, u),
                    m < n ? q + row * p.a.q_stride + head * d : (const bf16 *)p.a.q,
                    m < n ? 16 : 0);
        }
        copies_arrive(full);
        return;
    }
#pragma unroll 1
    for (int m = helper / UNITS; m < P::GROUPS * 64; m += STEP) {
        int row = (int)(m * by_row >> 16), head = m - row * n_heads;
        const uint16_t *from = (const uint16_t *)(q + row * p.a.q_stride + head * d);
        uint32_t v[8];
#pragma unroll
        for (int l = 0; l < 8; l++)
            v[l] = row < j.n_rows && u * 8 + l < d ? from[l] : 0;
        store_unit(tile + m / 64 * P::TILE_BYTES + unit_at(UNITS, 64, m % 64, u),
                   pack_unit(v));
    }
    proxy_fence();
    barrier_arrive(full);
}

/* By one of three warps: 128 lanes of 64 keys, or values, in rows of memory, eight rows at a time; zeros
 * behind n_keys. */
__device__ __forceinline__ void send_rows(uint32_t to, const bf16 *from, int64_t stride, int n_keys,
                                          uint32_t full, int warp)
{
    int lane = threadIdx.x % 32, u = lane % 16, first = lane / 16;
    from += (int64_t)(warp * 8 + first) * stride + u * 8;
    to += (u / 8 * KV_PAGE + warp * 8 + first) * 128;
    for (int r = warp * 8 + first; r < KV_PAGE; r += 24, from += 24 * stride, to += 24 * 128)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool there = r + 2 * i < n_keys;
            copy_16(to + i * 256 + ((u ^ first ^ 2 * i) & 7) * 16,
                    there ? from + 2 * i * stride : from, there ? 16 : 0);
        }
    copies_arrive(full);
}

/* By one of three warps: pages of E4M3 codes as rows of bf16. Of a half of a page a warp has two or three
 * groups of eight rows. Codes are in registers before they are decoded, the first ones of the next half
 * before this one is handed over, so that they come while stores end. Of eight lanes four have a row
 * and four the next, so that what they store lies in different banks. Whatever lies behind the last
 * key is decoded too: no code becomes a NaN, and its weight is zero. */
template <int V>
__device__ __forceinline__ void send_e4m3(const Rings &rings, uint32_t places, uint32_t codes,
                                          int n_pages, Cursor<Plan<V, V, CODED_PAGES>::PLACES> &to,
                                          Cursor<Plan<V, V, CODED_PAGES>::RAW> &raw, int warp)
{
    using P = Plan<V, V, CODED_PAGES>;
    constexpr int RUNS = V / 16, ROWS = 32 / RUNS, EACH = 8 / ROWS; /* a lane's units of a group */
    constexpr int MOST = 3, HELD = V > 64 ? 1 : MOST; /* groups of a half; in registers */
    int lane = threadIdx.x % 32, u = lane / 8 % (RUNS / 4) * 4 + lane % 4,
        first = lane / 4 % 2 + (RUNS == 16 ? 0 : lane / (2 * RUNS) * 2);
    uint4 w[HELD][EACH];
    auto group = [&](int half, int n) { return 3 * n + (half ? 2 - warp : warp); };
    auto load = [&](int half, int n, int i) {
        uint32_t from = codes + (2 * raw.place + half) * P::RAW_BYTES + group(half, 0) * 8 * V +
                        first * V + (u ^ unit_exchange(RUNS, first)) * UNIT_BYTES;
        w[n % HELD][i] = load_unit((from ^ unit_exchange(RUNS, i * ROWS) * UNIT_BYTES) +
                                   (n * 3 * 8 + i * ROWS) * V);
    };
    auto begin = [&](int half) {
        raw.wait_full(rings.raw[half]);
#pragma unroll
        for (int n = 0; n < HELD; n++)
            if (n < 2 || group(half, n) < KV_PAGE / 8)
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    load(half, n, i);
    };

    begin(0);
#pragma unroll 1
    for (; n_pages > 0; n_pages--)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Ring &r = half ? rings.values : rings.keys;
            uint32_t empty = rings.raw[half].empty + 8 * raw.place, full = r.full + 8 * to.place;
            uint32_t rows = places + to.place * P::PLACE_BYTES + half * P::KEY_BYTES +
                            group(half, 0) * 8 * 128 + unit_at(V / 8, KV_PAGE, first, 2 * u);
            to.wait_empty(r);
#pragma unroll(V > 128 ? 1 : MOST)
            for (int n = 0; n < MOST; n++) {
                if (n == 2 && group(half, n) >= KV_PAGE / 8)
                    break;
                if (V > 128)
                    asm volatile("" : "+r"(rows), "+r"(first)); /* addresses are made anew */
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    uint4 c = w[n % HELD][i];
                    uint32_t unit = rows ^ i * ROWS * UNIT_BYTES,
                             further = (n * 3 * 8 + i * ROWS) * 128;
                    store_unit(unit + further, low_from_e4m3(c));
                    store_unit((unit ^ UNIT_BYTES) + further, high_from_e4m3(c));
                    if (n + HELD < MOST && (n + HELD < 2 || group(half, n + HELD) < KV_PAGE / 8))
                        load(half, n + HELD, i);
                }
            }
            if (half) {
                to.next();
                raw.next();
            }
            if (!half || n_pages > 1)
                begin(half ^ 1);
            proxy_fence();
            barrier_arrive(empty);
            barrier_arrive(full);
        }
}

/* By the helpers: jobs and their queries; and what is codes, or rows, into places. */
template <int QK, int V, Source FROM>
__device__ __forceinline__ void help(const Params &p, const Rings &rings, uint8_t *shared,
                                     Job *jobs)
{
    using P = Plan<QK, V, FROM>;
    int helper = threadIdx.x % 128 - 32;
    uint32_t base = shared_address(shared), places = base + P::PLACES_AT;
    Cursor<P::TILES> tile;
    Cursor<P::PLACES> to;
    Cursor<P::RAW ? P::RAW : 1> raw;
    Job j;
    for (int k = 0;; k++, tile.next()) {
        if (FROM == CODED_PAGES)
            asm volatile("" : "+r"(helper)); /* what follows from it is made anew, not kept */
        bool any = find_job<false>(p, k, j);
        uint32_t full = rings.tiles.full + 8 * tile.place;
        if (!any)
            j.n_rows = 0;
        tile.wait_empty(rings.tiles);
        if (helper == 0) {
            jobs[tile.place] = j;
            barrier_arrive(full);
        }
        if (!any) {
            barrier_arrive(full);
            return;
        }
        send_queries<QK, V, FROM>(p, j, base + tile.place * P::GROUPS * P::TILE_BYTES, full,
                                  helper);
        if constexpr (FROM == CODED_PAGES)
            if (p.a.cache.kv.dtype == KV_FP8) {
                send_e4m3<V>(rings, places, base + P::RAW_AT, j.last - j.first + 1, to, raw,
                             helper / 32);
                continue;
            }
        for (int page = j.first; FROM != PAGES && page <= j.last; page++, to.next(), raw.next()) {
            int n_keys = min(j.pos + j.n_rows - page * KV_PAGE, (int)KV_PAGE);
            uint32_t place = places + to.place * P::PLACE_BYTES;
            if (FROM == EXPANDED) {
                const CudaListHead *l = p.a.list.head;
                int64_t row = ((int64_t)(j.pages - list_pages(l)) - p.expansion.first_page + page) *
                              KV_PAGE,
                        stride = (int64_t)p.columns * 2 * V;
                const bf16 *from = p.expansion.kv + row * stride + (int64_t)j.kv_head * 2 * V;
                to.wait_empty(rings.keys);
                send_rows(place, from, stride, n_keys, rings.keys.full + 8 * to.place, helper / 32);
                to.wait_empty(rings.values);
                send_rows(place + P::KEY_BYTES, from + V, stride, n_keys,
                          rings.values.full + 8 * to.place, helper / 32);
            }
#pragma unroll
            for (int half = 0; FROM == CODED_PAGES && half < 2; half++) {
                const Ring &r = half ? rings.values : rings.keys;
                const uint8_t *codes = shared + P::RAW_AT + (2 * raw.place + half) * P::RAW_BYTES;
                raw.wait_full(rings.raw[half]);
                to.wait_empty(r);
                decode_e2m1<P::HELPERS>(place + half * P::KEY_BYTES, codes, V / 8,
                                        half ? n_keys : KV_PAGE, helper);
                proxy_fence();
                barrier_arrive(rings.raw[half].empty + 8 * raw.place);
                barrier_arrive(r.full + 8 * to.place);
            }
        }
    }
}

/* What a warp has of its 16 of a group's 64 pairs. */
template <int QK, int V, Source FROM> struct GroupRows : Rows<1, V, true> {
    using Base = Rows<1, V, true>;
    using Base::o;
    using Base::pos;
    using Base::sum;
    static constexpr bool IN_REGISTERS = QK == 64; /* queries */

    uint32_t tile, ones; /* of the group; a step's, of which weights are summed */
    uint32_t in_registers[IN_REGISTERS ? QK / 16 : 1][4];
    float sink[2];

    __device__ __forceinline__ void begin(const Params &p, const Job &j, uint32_t group_tile)
    {
        int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
        uint32_t by_row = rows_by(j.n_heads);
        tile = group_tile;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int m = first + r * 8, row = (int)(m * by_row >> 16);
            pos[0][r] = j.pos + min(row, j.n_rows - 1);
            sink[r] = p.a.sinks ? p.a.sinks[j.head + m - row * j.n_heads] : -INFINITY;
        }
        if (IN_REGISTERS) {
            int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
            for (int k = 0; k < QK / 16; k++)
                load_matrices(in_registers[IN_REGISTERS ? k : 0],
                              tile + unit_at(QK / 8, 64, row, 2 * k + lane / 16));
        }
        Base::clear();
    }

    /* Begins them; they are there after the next wgmma_wait. */
    __device__ __forceinline__ void begin_scores(float s[1][8][4], uint32_t keys)
    {
        float(&d)[32] = *reinterpret_cast<float(*)[32]>(&s[0][0][0]);
        uint32_t queries = tile;
        asm volatile("" : "+r"(queries)); /* descriptors are made anew, not kept */
        uint64_t a = rows_descriptor(queries), b = rows_descriptor(keys);
        /* Zeros, though the first step need not add: where old sums seem to go into a product, the
         * compiler waits for each before the next. */
        Base::clear_scores(s);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < QK / 16; k++) {
            int step = k / 4 * BLOCK + k % 4 * 32;
            if (IN_REGISTERS)
                wgmma(d, in_registers[IN_REGISTERS ? k : 0], further(b, step));
            else
                wgmma_rows_by_rows(d, further(a, step), further(b, step), true);
        }
        wgmma_commit();
    }

    __device__ __forceinline__ void end_scores(float s[1][8][4])
    {
        hold(*reinterpret_cast<float(*)[32]>(&s[0][0][0]));
    }

    /* Likewise; w must stay as it is meanwhile. */
    __device__ __forceinline__ void begin_add(const uint32_t w[1][4][4], uint32_t values)
    {
        constexpr int N = V == 64 ? 32 : 64; /* sums of an instruction */
        float(&all)[V / 2] = *reinterpret_cast<float(*)[V / 2]>(&o[0][0][0]);
        uint64_t b = columns_descriptor(values, BLOCK);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int n = 0; n < V / 2; n += N)
                wgmma_by_columns(*reinterpret_cast<float(*)[N]>(&all[n]), w[0][k],
                                 further(b, n / 32 * BLOCK + k * 16 * 128));
            wgmma(sum[0], w[0][k], unit_descriptor(ones));
        }
        wgmma_commit();
    }

    __device__ __forceinline__ void end_add(uint32_t w[1][4][4])
    {
        wgmma_wait<0>();
        hold(*reinterpret_cast<float(*)[V / 2]>(&o[0][0][0]));
        hold(sum[0]);
        hold(*reinterpret_cast<uint32_t(*)[16]>(&w[0][0][0]));
    }

    /* Outputs go out by way of the memory of the queries. */
    __device__ __forceinline__ void finish(const Params &p, const Job &j)
    {
        constexpr int UNITS = V / 8, STEP = 32 / UNITS;
        int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
        int d = FROM == EXPANDED ? V : p.a.head_dim;
        float by[2] = {Base::last_factor(0, 0, sink[0], p.a.cache.kv.v_scale),
                       Base::last_factor(0, 1, sink[1], p.a.cache.kv.v_scale)};
#pragma unroll
        for (int n = 0; n < UNITS; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                store_word(tile + unit_at(UNITS, 64, first + r * 8 + lane / 4, n) + lane % 4 * 4,
                           Base::last_pair(0, n, r, by[r]));
        __syncwarp();
        bool whole = d % 8 == 0 && p.a.out_stride % 8 == 0 && (uintptr_t)p.a.out % 16 == 0;
        int u = lane % UNITS, n_heads = j.n_heads, n_rows = j.n_rows;
        uint32_t by_row = rows_by(n_heads);
        bf16 *out = (bf16 *)p.a.out + j.row * p.a.out_stride + (int64_t)j.head * d + u * 8;
#pragma unroll 4
        for (int r = lane / UNITS; r < 16; r += STEP) {
            int m = threadIdx.x / 32 * 16 + r, row = (int)(m * by_row >> 16);
            if (row >= n_rows)
                break;
            uint4 w = load_unit(tile + unit_at(UNITS, 64, first + r, u));
            bf16 *to = out + row * p.a.out_stride + (m - row * n_heads) * d;
            store_lanes(to, w, u, d, whole);
        }
    }
};

/* Values behind n_keys become zeros, by one group. */
template <int V> __device__ __forceinline__ void clear_values(uint32_t values, int n_keys)
{
    int each = (KV_PAGE - n_keys) * 8;
    for (int i = threadIdx.x % 128; i < V / 64 * each; i += 128)
        store_unit(values + (i / each * KV_PAGE + n_keys) * 128 + i % each * UNIT_BYTES,
                   make_uint4(0, 0, 0, 0));
    proxy_fence();
    meet<128>(1 + threadIdx.x / 128);
}

/* By a group: its pairs of each job against the pages that they see. While weights are made of one
 * page's scores, the values of the page before are added; the other groups fill what gaps remain. */
template <int QK, int V, Source FROM>
__device__ __forceinline__ void attend(const Params &p, const Rings &rings, uint32_t base,
                                       uint32_t ones, const Job *jobs)
{
    using P = Plan<QK, V, FROM>;
    constexpr bool COPIED = FROM == EXPANDED; /* by threads, not the copy engine */
    int warp = threadIdx.x / 32, group = warp / 4;
    uint32_t places = base + P::PLACES_AT;
    float *mine = p.a.states + ((int64_t)blockIdx.x * P::READERS + warp) * p.slot_floats;
    Cursor<P::PLACES> key, value;
    Cursor<P::TILES> tile;
    GroupRows<QK, V, FROM> rows;
    rows.ones = ones;
    rows.window = p.a.window > 0 ? p.a.window : 1 << 30;
    rows.unit = p.a.scale * p.a.cache.kv.k_scale * 1.44269504f;

    auto free_keys = [&] {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(rings.keys.empty + 8 * key.place);
        key.next();
    };
    auto free_values = [&] {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(rings.values.empty + 8 * value.place);
        value.next();
    };
    auto skip = [&](int n) {
#pragma unroll 1
        for (; n > 0; n--) {
            key.wait_full(rings.keys);
            free_keys();
            value.wait_full(rings.values);
            free_values();
        }
    };

    for (;; tile.next()) {
        tile.wait_full(rings.tiles);
        const Job &j = jobs[tile.place];
        if (j.n_rows == 0)
            return;
        proxy_fence(); /* queries were copied by threads */
        int end = j.pos + j.n_rows - 1, of_group = group * 64;
        uint32_t by_row = rows_by(j.n_heads);
        int least = min(j.pos + (int)(of_group * by_row >> 16), end),
            most = min(j.pos + (int)((of_group + 63) * by_row >> 16), end);
        bool any = false, idle = of_group >= j.n_rows * j.n_heads;
        /* Pages that the group sees. */
        int page = max(max(least - rows.window + 1, 0) / KV_PAGE, j.first),
            last = idle ? page - 1 : min(most / KV_PAGE, j.last), behind = j.last - last;
        rows.begin(p, j, base + (tile.place * P::GROUPS + group) * P::TILE_BYTES);
        skip(page - j.first);

        auto begin_scores = [&](float s[1][8][4]) { /* of keys that are there */
            if (COPIED)
                proxy_fence();
            rows.begin_scores(s, places + key.place * P::PLACE_BYTES);
        };
        auto begin_add = [&](const uint32_t w[1][4][4]) {
            value.wait_full(rings.values);
            if (COPIED)
                proxy_fence();
            rows.begin_add(w, places + value.place * P::PLACE_BYTES + P::KEY_BYTES);
        };
        auto weigh = [&](float by[1][2], float s[1][8][4], int of_page) {
            int start = of_page * KV_PAGE;
            rows.end_scores(s);
            free_keys();
            rows.powers(by, s, start,
                        start + KV_PAGE - 1 > least || start <= most - rows.window);
        };
        while (page <= last) { /* split after split */
            int end_page = min(last, page | (SPLIT_PAGES - 1));
            float s[1][8][4], by[1][2];
            uint32_t w[1][4][4];
            key.wait_full(rings.keys);
            begin_scores(s);
            wgmma_wait<0>();
            weigh(by, s, page); /* sums are zeros yet */
            rows.take(w, s);
            if (page < end_page)
                key.wait_full(rings.keys);
            for (; page < end_page; page++) {
                begin_scores(s);
                begin_add(w);
                wgmma_wait<1>();
                weigh(by, s, page + 1);
                /* No weight is negative; but the branch needs them all, so that the compiler leaves
                 * the powers before it, where they run beside the products. */
                uint32_t signs = 0;
#pragma unroll
                for (int n = 0; n < 8; n++)
                    signs |= __float_as_uint(s[0][n][0]) | __float_as_uint(s[0][n][2]);
                if ((page + 1 < end_page) | ((int)signs < 0))
                    key.wait_full(rings.keys);
                rows.end_add(w);
                free_values();
                rows.take(w, s);
                rows.rescale(by);
                hold(*reinterpret_cast<uint32_t(*)[16]>(&w[0][0][0])); /* before the next scores */
            }
            int n_keys = end + 1 - page * KV_PAGE;
            if (FROM == PAGES && n_keys < KV_PAGE) { /* nobody knows what lies behind them */
                value.wait_full(rings.values);
                clear_values<V>(places + value.place * P::PLACE_BYTES + P::KEY_BYTES, n_keys);
            }
            begin_add(w);
            rows.end_add(w);
            free_values();
            if (++page <= last) {
                if (any)
                    rows.template merge<true>(mine);
                rows.store(mine);
                rows.clear();
                any = true;
            }
        }
        if (any)
            rows.template merge<true>(mine);
        meet<128>(1 + group); /* all have read their queries */
        if (!idle)
            rows.finish(p, j);
        barrier_arrive(rings.tiles.empty + 8 * tile.place);
        skip(behind);
    }
}

#endif

template <int QK, int V, Source FROM>
__global__ void __launch_bounds__(Plan<QK, V, FROM>::THREADS, 1)
    prompt_kernel(const __grid_constant__ Params p)
{
#ifdef CUDA_SM90A
    extern __shared__ __align__(1024) uint8_t shared[];
    using P = Plan<QK, V, FROM>;
    __shared__ Barriers barriers;
    __shared__ Job jobs[P::TILES];
    __shared__ __align__(128) uint32_t ones[8 * 16 / 2]; /* eight columns of a step */
    Rings rings;
    rings.place<P>(shared_address(&barriers));
    if (threadIdx.x == 0)
        rings.make<P>();
    if (threadIdx.x < 8 * 16 / 2)
        ones[threadIdx.x] = ONES;
    proxy_fence();
    __syncthreads();
    if (threadIdx.x / 128 == P::GROUPS) {
        registers_down<P::FEED_REGISTERS>();
        if (threadIdx.x % 128 < 32)
            feed<QK, V, FROM>(p, rings, shared_address(shared));
        else
            help<QK, V, FROM>(p, rings, shared, jobs);
    } else {
        registers_up<P::ROW_REGISTERS>();
        attend<QK, V, FROM>(p, rings, shared_address(shared), shared_address(ones), jobs);
    }
#endif
}

template <int QK, int V, Source FROM> cudaError_t launch_prompt(Params p, cudaStream_t stream)
{
    using P = Plan<QK, V, FROM>;
    auto kernel = prompt_kernel<QK, V, FROM>;
    static bool may_take = false;
    int grid;
    cudaError_t code = allow_shared(kernel, P::SHARED, &may_take);
    if (code == cudaSuccess)
        code = count_multiprocessors(&grid);
    if (code != cudaSuccess)
        return code;
    p.half_bytes = (int)(p.a.cache.head_bytes / 2);
    p.slot_floats = 32 * (V / 8 * 4 + 4);
    p.a.states = p.a.partials;
    if ((int64_t)grid * P::READERS * p.slot_floats > p.a.most_floats)
        return cudaErrorInvalidValue;
    kernel<<<grid, P::THREADS, P::SHARED, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

#endif
