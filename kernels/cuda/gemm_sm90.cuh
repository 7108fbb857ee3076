/* kernels/cuda/gemm_sm90.cuh - rows times the matrices of a bank of slabs on Hopper's tensor cores;
 * included by gemm_sm90_*.cu, which instantiate it for their codecs.
 * Tile    128 or 256 outputs (one or two slabs for each of two warpgroups) x up to 64 or 128 rows.
 *         Weights are the left operand, decoded in registers; rows are the right one, in shared
 *         memory. A ring of stages, each SLAB_K inputs: one thread brings records by bulk copies,
 *         and one or four warps gather rows by cp.async.
 * Budget  2 * rows * outputs * inputs FLOPs; each record read once for each tile of an expert's rows,
 *         from L2 all but the first time, since tiles that share records or rows run side by side.
 * Why     an output is one chain over the inputs in steps of 16, whatever the tile: the same bits
 *         in any batch. Weights on the left let the number of rows go down to 8, and codes stay
 *         codes until they reach the tensor cores. The grid is fixed: blocks find their tiles from
 *         `first` on the device, so that a step can be captured. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_CUH
#define MB_KERNELS_CUDA_GEMM_SM90_CUH

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/gemm_sm90.h"
#include "kernels/cuda/mma_sm90.cuh"

namespace
{

/* A block's shape. rows: the most rows of a tile; lag: stages of rows on their way. */
template <int SLABS_, int ROWS_, int PRODUCERS_> struct Shape {
    static constexpr int SLABS = SLABS_, ROWS = ROWS_, PRODUCERS = PRODUCERS_;
    /* A warpgroup decodes a unit while the tensor cores work on the one before: a slab's 4 steps of
     * a stage, or with one slab 2 of them. */
    static constexpr int STEPS = SLABS == 2 ? 4 : 2;
    static constexpr int FEW = SLABS == 2 ? 64 : 16; /* rows for which there is a loop of its own */
    static constexpr int THREADS = 256 + 32 * PRODUCERS;
    static constexpr int PASS = PRODUCERS * 4; /* rows that the producers load at once */
    static constexpr int BLOCKS = SLABS == 1 ? 2 : 1;
};

#ifdef CUDA_SM90A

constexpr int STAGE_TOKENS = 64; /* of the buffer through which results leave */

struct Tile {
    int mat, row, n, slab;
};

/* The tiles of a launch, in an order in which neighbours share records and rows: an expert's tiles
 * of rows in groups of eight, under every tile of outputs. */
struct Tiles {
    const CudaGemm &g;
    const int *first, *tiles; /* [n_mats + 1], shared: rows before an expert, and tiles of rows */
    int rows, slab_tiles, slabs_each;

    __device__ __forceinline__ int count() const
    {
        int row_tiles = g.first ? tiles[g.n_mats] : g.n_mats * ((g.n_rows + rows - 1) / rows);
        return row_tiles * slab_tiles;
    }

    __device__ __forceinline__ Tile at(int i) const
    {
        Tile t;
        int each = (g.n_rows + rows - 1) / rows, before, n;
        if (g.first) {
            int lo = 0, hi = g.n_mats,
                row_tile = i / slab_tiles; /* tiles[lo] <= row_tile < tiles[hi] */
            while (hi - lo > 1) {
                int mid = (lo + hi) / 2;
                if (tiles[mid] <= row_tile)
                    lo = mid;
                else
                    hi = mid;
            }
            t.mat = lo;
            before = tiles[lo];
            each = tiles[lo + 1] - before;
            n = first[lo + 1] - first[lo];
        } else {
            t.mat = i / (each * slab_tiles);
            before = t.mat * each;
            n = g.n_rows;
        }
        i -= before * slab_tiles;
        int group = i / (8 * slab_tiles);
        i -= group * 8 * slab_tiles;
        int width = each - group * 8 < 8 ? each - group * 8 : 8;
        int row = (group * 8 + i % width) * rows;
        t.slab = i / width * slabs_each;
        t.n = n - row < rows ? n - row : rows;
        t.row = (g.first ? first[t.mat] : 0) + row;
        return t;
    }
};

/* Which rows of which part a slab has. */
struct SlabPlace {
    int part, index; /* index: of the slab within the part */
};

__device__ __forceinline__ SlabPlace place_of_slab(const CudaGemm &g, int slab)
{
    int part = 0;
    if (g.part[0].layout == CUDA_SLABS)
        while (part + 1 < g.n_parts && slab >= slab_count(&g.part[part]))
            slab -= slab_count(&g.part[part++]);
    return {part, slab};
}

__device__ __forceinline__ int slabs_of(const CudaGemm &g)
{
    int n = slab_count(&g.part[0]);
    if (g.part[0].layout == CUDA_SLABS)
        for (int i = 1; i < g.n_parts; i++)
            n += slab_count(&g.part[i]);
    return n;
}

/* --- from codes to bf16 --- */

__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b)
{
    uint32_t c;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

__device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b)
{
    uint32_t c;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

__device__ __forceinline__ uint32_t pack2(float low, float high)
{
    uint32_t c;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(c) : "f"(high), "f"(low));
    return c;
}

/* A thread's codes and scales of steps FROM .. FROM + N - 1 of a record, on their way. */
template <SlabCodec CODEC, int FROM, int N> struct Codes {
    static constexpr int PIECES = slab_pieces(CODEC), WORDS = PIECES; /* words of a step */
    static constexpr int LOAD = N * WORDS < 4 ? 8 : 16;               /* bytes */
    using Load = std::conditional_t<LOAD == 8, uint2, uint4>;
    alignas(16) uint32_t word[N * WORDS];
    uint2 scales;

    __device__ __forceinline__ void load(const uint8_t *record, int thread)
    {
#pragma unroll
        for (int i = 0; i < N * WORDS; i += LOAD / 4)
            *(Load *)(word + i) =
                *(const Load *)(record + thread * 16 + (FROM * WORDS + i) / 4 * SLAB_THREADS * 16 +
                                FROM * WORDS % 4 * 4);
        const uint8_t *s = record + PIECES * SLAB_THREADS * 16 + thread / 4 * slab_scales(CODEC);
        if (slab_scales(CODEC) == 4)
            scales.x = *(const uint32_t *)s;
        else if (slab_scales(CODEC) == 8)
            scales = *(const uint2 *)s;
    }

    /* Scale byte i in both halves, times 2^SHIFT. */
    template <int SHIFT> __device__ __forceinline__ uint32_t byte2(int i) const
    {
        return __byte_perm(i < 4 ? scales.x : scales.y, 0, 0x4040 + i % 4 * 0x0101) << SHIFT;
    }

    __device__ __forceinline__ void decode(uint32_t (&a)[4 * N]) const
    {
#pragma unroll
        for (int j = 0; j < N; j++)
            decode_step(j + FROM, word + j * WORDS, a + 4 * j);
    }

    __device__ __forceinline__ void decode_step(int j, const uint32_t *w, uint32_t *a) const
    {
        constexpr uint32_t E2M1 = 0x81c081c0u, E4M3 = 0x07f007f0u, SIGN = 0x80008000u;
        uint32_t s[2] = {0, 0}; /* of the first and the second row */
        if (CODEC == SLAB_MXFP4 || CODEC == SLAB_MXFP8) {
            s[0] = byte2<7>(j / 2 * 2);
            s[1] = byte2<7>(j / 2 * 2 + 1);
        } else if (CODEC == SLAB_NVFP4) {
            s[0] = byte2<4>(j * 2) + SLAB_NVFP4_BIAS * 0x00800080u;
            s[1] = byte2<4>(j * 2 + 1) + SLAB_NVFP4_BIAS * 0x00800080u;
        } else if (CODEC == SLAB_INT4 || CODEC == SLAB_INT8) {
            uint32_t pair = j / 2 ? scales.y : scales.x;
            s[0] = __byte_perm(pair, 0, 0x1010);
            s[1] = __byte_perm(pair, 0, 0x3232);
        } else if (CODEC == SLAB_E4M3 || CODEC == SLAB_BLOCK8) {
            s[0] = s[1] = 0x7b807b80u; /* 2^120 */
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (CODEC == SLAB_MXFP4 || CODEC == SLAB_NVFP4) {
                constexpr int LEFT[4] = {0, 3, 6, 0};
                uint32_t bits = w[0] << LEFT[i] & E2M1;
                if (i == 3)
                    bits =
                        (w[0] << 1 & SIGN) | (w[0] >> 5 & 0x01000100u) | (w[0] >> 4 & 0x00c000c0u);
                a[i] = mul2(bits, s[i % 2]);
            } else if (CODEC == SLAB_BF16) {
                a[i] = w[i];
            } else if (CODEC == SLAB_INT4) { /* 128 + code, less 136 */
                a[i] =
                    mul2(sub2((w[0] >> 4 * i & 0x000f000fu) | 0x43004300u, 0x43084308u), s[i % 2]);
            } else if (CODEC == SLAB_INT8) {
                float scale = __half2float(__ushort_as_half((unsigned short)s[i % 2])), v[2];
#pragma unroll
                for (int n = 0; n < 2; n++) /* 2^23 + code */
                    v[n] = __uint_as_float(
                               __byte_perm(w[i / 2], 0x4b000000u, 0x7440 + i % 2 * 2 + n)) -
                           8388736.0f;
                a[i] = pack2(v[0] * scale, v[1] * scale);
            } else {
                uint32_t c = i % 2 ? w[i / 2] << 8 : w[i / 2];
                a[i] = mul2((c & SIGN) | (c >> 4 & E4M3), s[i % 2]);
                if (CODEC == SLAB_BLOCK8) {
                    float scale = __uint_as_float(i % 2 ? scales.y : scales.x);
                    a[i] = pack2(__uint_as_float(a[i] << 16) * scale,
                                 __uint_as_float(a[i] & 0xffff0000u) * scale);
                }
            }
        }
    }
};

/* --- results --- */

/* Sums of a slab, from the registers of a warpgroup to y. */
template <int NT>
__device__ __forceinline__ void store_slab(const CudaGemm &g, const Tile &t, int slab,
                                           float (&acc)[NT / 2], uint8_t *buffer, int group,
                                           int thread, bool vectors)
{
    int warp = thread / 32, lane = thread % 32, o = lane / 4;
    SlabPlace at = place_of_slab(g, slab);
    bool paired = g.part[0].layout == CUDA_PAIRED, gated = g.epilogue == CUDA_GATED;
    float scale[2], bias[2] = {0, 0};
    int which[2], row[2]; /* part and row of this thread's two outputs; part -1: none */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        which[i] = paired && g.n_parts == 2 ? i : at.part;
        row[i] = paired ? at.index * (SLAB_ROWS / 2) + warp * 8 + o
                        : at.index * SLAB_ROWS + warp * 16 + i * 8 + o;
        const CudaPart &p = g.part[which[i]];
        bool wanted = row[i] < p.rows && !(paired && g.n_parts == 1 && p.half != i);
        scale[i] = wanted ? p.row_scale[t.mat * p.row_scale_mat + row[i]] : 0.0f;
        if (wanted && g.bias)
            bias[i] = g.bias[t.mat * g.bias_mat + p.first_row + row[i]];
        which[i] = wanted ? which[i] : -1;
    }
    int64_t base = t.mat * g.y_mat;
    if (g.y_float) {
#pragma unroll
        for (int j = 0; j < NT / 2; j++) {
            int r = j / 4 * 8 + lane % 4 * 2 + j % 2, i = j / 2 % 2;
            if (r >= t.n || which[i] < 0)
                continue;
            int64_t y_row = g.y_row ? g.y_row[t.row + r] : t.row + r;
            ((float *)g.y)[base + y_row * g.y_stride + g.part[which[i]].first_row + row[i]] =
                acc[j] * scale[i] + bias[i];
        }
        return;
    }
    constexpr int PART = NT < STAGE_TOKENS ? NT : STAGE_TOKENS;
#pragma unroll
    for (int from = 0; from < NT; from += PART) {
        group_sync(1 + group, SLAB_THREADS); /* the buffer is free */
#pragma unroll
        for (int j = 0; j < PART / 8; j++) {
            const float *d = acc + from / 2 + j * 4;
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = d[i] * scale[i / 2] + bias[i / 2];
            uint32_t at_shared = shared_address(buffer);
            int token = j * 8 + lane % 8;
            if (gated) {
                uint32_t out = pack2(activate(g.act, v[0], v[2]), activate(g.act, v[1], v[3]));
                asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(
                                 at_shared + token * 128 + ((warp ^ token % 8) << 4)),
                             "r"(out)
                             : "memory");
            } else {
                if (g.epilogue == CUDA_RELU2)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        v[i] = square_of_positive(v[i]);
                int piece = warp * 2 + lane / 8 % 2;
                asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                                 at_shared + token * 128 + ((piece ^ token % 8) << 4)),
                             "r"(pack2(v[0], v[1])), "r"(pack2(v[2], v[3]))
                             : "memory");
            }
        }
        group_sync(1 + group, SLAB_THREADS);
        int pieces = gated ? 4 : 8, piece = thread % pieces;
        int part = gated ? 0 : paired && g.n_parts == 2 ? piece % 2 : at.part;
        const CudaPart &p = g.part[part];
        int out = gated    ? at.index * (SLAB_ROWS / 2) + piece * 8
                  : paired ? at.index * (SLAB_ROWS / 2) + piece / 2 * 8
                           : at.index * SLAB_ROWS + piece * 8;
        if (!gated && paired && g.n_parts == 1 && p.half != piece % 2)
            out = p.rows;
        int n_out = p.rows - out < 8 ? p.rows - out : 8;
        for (int token = thread / pieces; token < PART && from + token < t.n && n_out > 0;
             token += SLAB_THREADS / pieces) {
            int r = t.row + from + token;
            int64_t y_row = g.y_row ? g.y_row[r] : r;
            bf16 *to = (bf16 *)g.y + base + y_row * g.y_stride + p.first_row + out;
            uint4 v = *(const uint4 *)(buffer + token * 128 + ((piece ^ token % 8) << 4));
            if (vectors && n_out == 8) {
                *(uint4 *)to = v;
            } else {
                const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (i < n_out)
                        to[i] = __ushort_as_bfloat16((unsigned short)(words[i / 2] >> i % 2 * 16));
            }
        }
    }
}

/* --- the ring --- */

struct Ring {
    uint32_t full, empty; /* shared: barriers, 8 bytes a stage */
    int stages, stage;
    uint32_t parity;

    __device__ __forceinline__ void next()
    {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Stages { /* shared memory */
    uint8_t *rows, *records, *buffer;
};

/* One tile for a warpgroup that has slabs. */
template <SlabCodec CODEC, typename S, int NT>
__device__ __forceinline__ void consume(const CudaGemm &g, const Tile &t, int slab, int n_slabs,
                                        int chunks, int half_at, const Stages &m, Ring &ring,
                                        int group, int thread, bool vectors)
{
    constexpr int SLABS = S::SLABS, STEPS = S::STEPS, BYTES = slab_record_bytes(CODEC);
    float acc[SLABS][NT / 2];
    uint32_t a[2][4 * STEPS] = {};
#pragma unroll
    for (int s = 0; s < SLABS; s++)
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            acc[s][i] = 0.0f;
    int last = -1; /* the stage before this one, to be given back */

    auto unit = [&](auto set_, int c) {
        constexpr int SET = decltype(set_)::value, SLAB = SLABS == 2 ? SET : 0;
        constexpr int FROM = SLABS == 2 ? 0 : SET * STEPS;
        Codes<CODEC, FROM, STEPS> codes;
        const uint8_t *record = m.records + (ring.stage * 2 * SLABS + group * SLABS + SLAB) * BYTES;
        if (CODEC != SLAB_BF16)
            codes.load(record, thread);
        wgmma_wait<1>(); /* all but the unit before: the operands of this set are free */
        hold(a[SET]);
        if (CODEC == SLAB_BF16) /* they are the operands */
            codes.load(record, thread);
        if (SET == 1 && last >= 0 && thread % 32 == 0)
            barrier_arrive(ring.empty + 8 * last);
        codes.decode(a[SET]);
        if (half_at) { /* rows of their own for gate and up: the other's weights are zeros */
#pragma unroll
            for (int i = 0; i < 4 * STEPS; i++)
                a[SET][i] = (i % 2 == 0) == (c < half_at) ? a[SET][i] : 0;
        }
        hold(a[SET]);
        uint64_t rows = rows_descriptor(shared_address(m.rows) + ring.stage * S::ROWS * 128);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < STEPS; j++)
            wgmma(acc[SLAB], &a[SET][4 * j], rows + 2 * (FROM + j));
        wgmma_commit();
    };
#pragma unroll 1 /* more operands under way than registers hold would be made one after the other */
    for (int c = 0; c < chunks; c++) {
        barrier_wait(ring.full + 8 * ring.stage, ring.parity);
        unit(std::integral_constant<int, 0>(), c);
        unit(std::integral_constant<int, 1>(), c);
        last = ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    hold(a[0]);
    hold(a[1]);
#pragma unroll
    for (int s = 0; s < SLABS; s++)
        hold(acc[s]);
    if (thread % 32 == 0)
        barrier_arrive(ring.empty + 8 * last);
#pragma unroll
    for (int s = 0; s < SLABS; s++)
        if (s < n_slabs)
            store_slab<NT>(g, t, slab + s, acc[s], m.buffer, group, thread, vectors);
}

template <SlabCodec CODEC, typename S, int LAG>
__device__ __forceinline__ void produce(const CudaGemm &g, const Tiles &tiles, int n_tiles,
                                        int n_slabs, int chunks, int passes_k, const Stages &m,
                                        Ring ring, int thread)
{
    constexpr int SLABS = S::SLABS, BYTES = slab_record_bytes(CODEC), EACH = S::ROWS / S::PASS;
    int piece = thread % 8, landed = 0, begun = 0; /* landed: the stage that is told about next */
    auto tell = [&]() {
        proxy_fence();
        __syncwarp();
        if (thread % 32 == 0)
            barrier_arrive(ring.full + 8 * landed);
        landed = landed + 1 == ring.stages ? 0 : landed + 1;
    };
    for (int i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        Tile t = tiles.at(i);
        uint32_t from[EACH]; /* in units of 16 bytes */
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int r = thread / 8 + e * S::PASS;
            int64_t row = r < t.n ? (g.x_row ? g.x_row[t.row + r] : t.row + r) : 0;
            from[e] = (uint32_t)((row * g.x_stride + t.mat * g.x_mat) / 8);
        }
        const uint8_t *record[2 * SLABS];
        int have = n_slabs - t.slab < 2 * SLABS ? n_slabs - t.slab : 2 * SLABS;
#pragma unroll
        for (int s = 0; s < 2 * SLABS; s++) {
            SlabPlace at = place_of_slab(g, s < have ? t.slab + s : t.slab);
            const CudaPart &p = g.part[at.part];
            record[s] = p.codes + t.mat * p.codes_mat + at.index * p.codes_row;
        }
        const uint4 *x = (const uint4 *)g.x;
        int k = 0, k_record = 0;
        for (int c = 0; c < chunks; c++) {
            barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            if (thread == 0) {
                uint32_t bar = ring.full + 8 * ring.stage;
                uint32_t to = shared_address(m.records) + ring.stage * 2 * SLABS * BYTES;
                barrier_expect(bar, have * BYTES);
#pragma unroll
                for (int s = 0; s < 2 * SLABS; s++)
                    if (s < have)
                        bulk_copy(to + s * BYTES, record[s] + (int64_t)k_record * BYTES, BYTES,
                                  bar);
            }
            uint32_t to = shared_address(m.rows) + ring.stage * S::ROWS * 128;
            uint32_t size = k * SLAB_K + piece * 8 < g.k ? 16 : 0;
            uint32_t at = size ? k * (SLAB_K / 8) + piece : 0;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int r = thread / 8 + e * S::PASS;
                if (r < t.n)
                    copy_16(to + r * 128 + ((piece ^ r % 8) << 4), x + (from[e] + at), size);
            }
            copies_commit();
            if (begun >= LAG) {
                copies_wait<LAG>();
                tell();
            } else {
                begun++;
            }
            ring.next();
            k_record++;
            if (++k == passes_k) {
                k = 0;
                if (g.x_up) {
                    k_record = 0;
                    x = (const uint4 *)g.x_up;
                }
            }
        }
    }
    copies_wait<0>();
    for (; begun > 0; begun--)
        tell();
}

#endif

template <SlabCodec CODEC, typename S, int LAG>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    slab_kernel(const __grid_constant__ CudaGemm g, int stages, bool vectors)
{
#ifdef CUDA_SM90A
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr int SLABS = S::SLABS, BYTES = slab_record_bytes(CODEC);
    int thread = threadIdx.x, warp = thread / 32;
    Stages m;
    m.rows = shared;
    m.records = m.rows + stages * S::ROWS * 128;
    uint8_t *buffers = m.records + stages * 2 * SLABS * BYTES;
    uint64_t *barriers = (uint64_t *)(buffers + 2 * STAGE_TOKENS * 128);
    int *first = (int *)(barriers + 2 * stages), *row_tiles = first + g.n_mats + 1;
    Ring ring = {shared_address(barriers), shared_address(barriers + stages), stages, 0, 0};

    if (thread == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(ring.full + 8 * i, 1 + S::PRODUCERS);
            barrier_init(ring.empty + 8 * i, 8);
        }
        barrier_init_done();
    }
    if (g.first) {
        for (int i = thread; i <= g.n_mats; i += S::THREADS)
            first[i] = g.first[i];
        __syncthreads();
        if (warp == 0) {
            int sum = 0;
            for (int i = 0; i < g.n_mats; i += 32) {
                int e = i + thread, n = 0;
                if (e < g.n_mats)
                    n = (first[e + 1] - first[e] + S::ROWS - 1) / S::ROWS;
                int upto = n;
                for (int d = 1; d < 32; d *= 2) {
                    int v = __shfl_up_sync(0xffffffffu, upto, d);
                    upto += thread >= d ? v : 0;
                }
                if (e < g.n_mats)
                    row_tiles[e + 1] = sum + upto;
                sum += __shfl_sync(0xffffffffu, upto, 31);
            }
            if (thread == 0)
                row_tiles[0] = 0;
        }
    }
    __syncthreads();

    int n_slabs = slabs_of(g), k_chunks = (g.k + SLAB_K - 1) / SLAB_K;
    int chunks = k_chunks * (g.x_up ? 2 : g.planes);
    Tiles tiles = {g,        first, row_tiles, S::ROWS, (n_slabs + 2 * SLABS - 1) / (2 * SLABS),
                   2 * SLABS};
    int n_tiles = tiles.count();
    if (warp >= 8) {
        if constexpr (S::PRODUCERS == 4)
            registers_down<56>();
        produce<CODEC, S, LAG>(g, tiles, n_tiles, n_slabs, chunks, k_chunks, m, ring, thread - 256);
    } else {
        if constexpr (S::PRODUCERS == 4)
            registers_up<224>();
        int group = warp / 4;
        m.buffer = buffers + group * STAGE_TOKENS * 128;
        thread %= 128;
        for (int i = blockIdx.x; i < n_tiles; i += gridDim.x) {
            Tile t = tiles.at(i);
            int slab = t.slab + group * SLABS, have = n_slabs - slab;
            int half_at = g.x_up ? k_chunks : 0;
            if (have <= 0) {
                for (int c = 0; c < chunks; c++, ring.next()) {
                    barrier_wait(ring.full + 8 * ring.stage, ring.parity);
                    if (thread % 32 == 0)
                        barrier_arrive(ring.empty + 8 * ring.stage);
                }
            } else if (t.n > S::FEW) {
                consume<CODEC, S, S::ROWS>(g, t, slab, have, chunks, half_at, m, ring, group,
                                           thread, vectors);
            } else {
                consume<CODEC, S, S::FEW>(g, t, slab, have, chunks, half_at, m, ring, group, thread,
                                          vectors);
            }
        }
    }
#endif
}

template <SlabCodec CODEC, typename S, int LAG>
int launch_shape(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    constexpr int STAGE = S::ROWS * 128 + 2 * S::SLABS * slab_record_bytes(CODEC);
    constexpr int MOST = 16;
    auto kernel = slab_kernel<CODEC, S, LAG>;
    int fixed = 2 * 64 * 128 + 2 * MOST * 8 + (g->first ? 2 * (g->n_mats + 1) * 4 : 0);
    int room = (l->shared_bytes - (S::BLOCKS - 1) * 1024) / S::BLOCKS - fixed;
    int stages = room / STAGE < MOST ? room / STAGE : MOST;
    if (stages < LAG + 2)
        return cudaErrorInvalidValue;
    static bool ready = false; /* once a process, which has one device */
    if (!ready) {
        cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               l->shared_bytes);
        if (err != cudaSuccess)
            return err;
        ready = true;
    }
    int most = l->n_sm * S::BLOCKS;
    int blocks = l->most_tiles < most ? (int)l->most_tiles : most;
    kernel<<<blocks, S::THREADS, fixed + stages * STAGE, (cudaStream_t)stream>>>(*g, stages,
                                                                                 l->vectors);
    return cudaGetLastError();
}

using Narrow = Shape<1, 64, 2>;
using Wide = Shape<2, 128, 4>;

/* Stages that rows may be behind: as many as the ring allows with what a stage weighs. */
template <SlabCodec CODEC> int launch_codec(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    constexpr int PIECES = slab_pieces(CODEC);
    return l->wide                              ? launch_shape < CODEC, Wide,
           PIECES == 4 ? 1 : 3 > (g, l, stream) : launch_shape < CODEC, Narrow,
           PIECES == 4   ? 1
                                        : PIECES == 2 ? 2
                                                      : 4 > (g, l, stream);
}

} // namespace

#endif
