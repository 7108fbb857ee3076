/* kernels/cuda/gemm_sm90.cuh - rows times the matrices of a bank of slabs on Hopper's tensor cores;
 * included by gemm_sm90_*.cu, which instantiate it for their codecs.
 * Tile    128 or 256 outputs (one or two slabs for each of two warpgroups) x up to 64 or 128 rows;
 *         fewer of them: gemm_sm90_few.cuh, more: gemm_sm90_pair.cuh. Weights are the left operand,
 *         decoded in registers; rows are the right one, in shared memory. A ring of stages, each
 *         SLAB_K inputs: one thread brings records by bulk copies, and two or four warps gather
 *         rows by cp.async.
 * Budget  2 * rows * outputs * inputs FLOPs; each record read once for each tile of an expert's
 *         rows, from L2 all but the first time, since tiles that share records or rows run side by
 *         side.
 * Why     an output is one chain over the inputs in steps of 16, whatever the tile: the same bits
 *         in any batch. Weights on the left let the number of rows go down to 8, and codes stay
 *         codes until they reach the tensor cores. The grid is fixed: blocks find their tiles from
 *         `first` on the device, so that a step can be captured. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_CUH
#define MB_KERNELS_CUDA_GEMM_SM90_CUH

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/gemm_sm90_codes.cuh"
#include "kernels/cuda/gemm_sm90_tiles.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

/* A block's shape. ROWS: the most rows of a tile; BLOCKS: of a multiprocessor. */
template <int SLABS_, int ROWS_, int PRODUCERS_, int BLOCKS_> struct Shape {
    static constexpr int SLABS = SLABS_, ROWS = ROWS_, PRODUCERS = PRODUCERS_, BLOCKS = BLOCKS_;
    /* A warpgroup decodes a unit while the tensor cores work on the one before: a slab's 4 steps of
     * a stage, or with one slab 2 of them. */
    static constexpr int STEPS = SLABS == 2 ? 4 : 2;
    static constexpr int THREADS = 256 + 32 * PRODUCERS;
    /* Of a warp, that give a stage back: all where consume_few reads it. */
    static constexpr int LANES = SLABS == 2 ? 1 : 32;
    static constexpr int PASS = PRODUCERS * 4; /* rows that the producers load at once */
};

/* Of a warpgroup's buffer, through which results leave: PITCH floats from a row to the next, so that
 * the eight outputs and four rows of a warp's store lie in 32 banks. */
constexpr int BUFFER_ROWS = 32, PITCH = SLAB_ROWS + 4, BUFFER_BYTES = BUFFER_ROWS * PITCH * 4;

#ifdef CUDA_SM90A

/* --- results --- */

/* What a thread's two outputs of a slab are multiplied by and get added. */
struct Finish {
    float scale[2], bias[2];
};

__device__ __forceinline__ Finish finish_at(const CudaGemm &g, int mat, SlabPlace at, int thread)
{
    Finish f = {{0, 0}, {0, 0}};
    bool paired = g.part[0].layout == CUDA_PAIRED;
    int warp = thread / 32, o = thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const CudaPart &p = g.part[paired && g.n_parts == 2 ? i : at.part];
        int row = paired ? at.index * (SLAB_ROWS / 2) + warp * 8 + o
                         : at.index * SLAB_ROWS + warp * 16 + i * 8 + o;
        if (row < p.rows && !(paired && g.n_parts == 1 && p.half != i)) {
            f.scale[i] = p.row_scale[mat * p.row_scale_mat + row];
            if (g.bias)
                f.bias[i] = g.bias[mat * g.bias_mat + p.first_row + row];
        }
    }
    return f;
}

__device__ __forceinline__ Finish finish_of(const CudaGemm &g, const Tile &t, int slab, int thread)
{
    return finish_at(g, t.mat, place_of_slab(g, slab), thread);
}

/* Where eight neighbouring outputs of a slab go: piece 0 .. 7 of a slab's 64, or 0 .. 3 of the 32
 * that gate and up give together. */
struct Piece {
    int64_t place; /* in y, without the row's own */
    int n;         /* outputs that exist and are wanted: 0 .. 8 */
};

__device__ __forceinline__ Piece piece_of(const CudaGemm &g, const Tile &t, int slab, int piece)
{
    bool paired = g.part[0].layout == CUDA_PAIRED, gated = g.epilogue == CUDA_GATED;
    SlabPlace at = place_of_slab(g, slab);
    const CudaPart &p = g.part[gated ? 0 : paired && g.n_parts == 2 ? piece % 2 : at.part];
    int out = at.index * SLAB_ROWS + piece * 8;
    if (paired)
        out = at.index * (SLAB_ROWS / 2) + (gated ? piece : piece / 2) * 8;
    bool wanted = gated || !paired || g.n_parts == 2 || p.half == piece % 2;
    int n = wanted ? p.rows - out : 0;
    return {t.mat * g.y_mat + p.first_row + out, n < 0 ? 0 : n < 8 ? n : 8};
}

__device__ __forceinline__ int64_t row_of(const CudaGemm &g, int row)
{
    return g.y_row ? g.y_row[row] : row; /* of 32 bits, so that one instruction multiplies */
}

/* What most products want: bf16 results, 16 bytes at a time. GATED: by SwiGLU. Sums become results in
 * registers and are transposed on their way through the buffer, 128 bytes a row. */
template <int NT, bool GATED>
__device__ __forceinline__ void store_fast(const CudaGemm &g, const Tile &t, int slab,
                                           const float (&acc)[NT / 2], const Finish &f,
                                           float *buffer, int group, int thread)
{
    constexpr int ROWS = NT < 64 ? NT : 64, PIECES = GATED ? 4 : 8;
    constexpr int EACH = ROWS * PIECES / SLAB_THREADS > 0 ? ROWS * PIECES / SLAB_THREADS : 1;
    int warp = thread / 32, lane = thread % 32, piece = thread % PIECES, first = thread / PIECES;
    /* Where this lane's row of a matrix lies, and where this thread reads: tokens are 8 further, or
     * SLAB_THREADS / PIECES, so that the swizzle stays. */
    int own = GATED ? warp : warp * 2 + lane / 8 % 2;
    uint32_t put = shared_address(buffer) + lane % 8 * 128 + ((own ^ lane % 8) << 4);
    const uint8_t *get = (const uint8_t *)buffer + first * 128 + ((piece ^ first % 8) << 4);
    Piece to = piece_of(g, t, slab, piece);
    bf16 *y = (bf16 *)g.y + to.place;
    int stride = (int)g.y_stride;
#pragma unroll
    for (int from = 0; from < NT; from += ROWS) {
        group_sync(1 + group, SLAB_THREADS); /* the buffer is free */
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = fmaf(acc[from / 2 + 4 * j + i], f.scale[i / 2], f.bias[i / 2]);
            if (GATED)
                asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(
                                 put + j * 1024),
                             "r"(pack2(swiglu(g.act, v[0], v[2]), swiglu(g.act, v[1], v[3])))
                             : "memory");
            else
                asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                                 put + j * 1024),
                             "r"(pack2(v[0], v[1])), "r"(pack2(v[2], v[3]))
                             : "memory");
        }
        group_sync(1 + group, SLAB_THREADS);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int token = first + i * (SLAB_THREADS / PIECES), row = from + token;
            if (token < ROWS && row < t.n && to.n > 0)
                *(uint4 *)(y + row_of(g, t.row + row) * stride) =
                    *(const uint4 *)(get + i * (SLAB_THREADS / PIECES) * 128);
        }
    }
}

/* Logits and the like: sums as float32, eight outputs of a row by eight lanes. */
template <int NT>
__device__ __forceinline__ void store_floats(const CudaGemm &g, const Tile &t, int slab,
                                             const float (&acc)[NT / 2], const Finish &f,
                                             int thread)
{
    SlabPlace at = place_of_slab(g, slab);
    const CudaPart &p = g.part[at.part];
    int lane = thread % 32, out = at.index * SLAB_ROWS + thread / 32 * 16 + lane / 4;
    float *y = (float *)g.y + t.mat * g.y_mat + p.first_row + out;
#pragma unroll
    for (int j = 0; j < NT / 8; j++) {
        if (j * 8 >= t.n)
            break;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int token = j * 8 + lane % 4 * 2 + i;
            if (token >= t.n)
                continue;
            float *to = y + row_of(g, t.row + token) * g.y_stride;
            if (out < p.rows)
                to[0] = fmaf(acc[4 * j + i], f.scale[0], f.bias[0]);
            if (out + 8 < p.rows)
                to[8] = fmaf(acc[4 * j + 2 + i], f.scale[1], f.bias[1]);
        }
    }
}

/* Whether results are what store_floats stores. */
__device__ __forceinline__ bool plain_floats(const CudaGemm &g)
{
    return g.y_float && g.epilogue == CUDA_STORE && g.part[0].layout == CUDA_SLABS;
}

/* Everything else: odd strides, rare activations. The loop is not unrolled, since it
 * would be longer than what the instruction cache holds; sums move down in their registers. */
template <int NT>
__device__ __forceinline__ void store_any(const CudaGemm &g, const Tile &t, int slab,
                                          float (&acc)[NT / 2], const Finish &f, float *buffer,
                                          int group, int thread)
{
    constexpr int ROWS = NT < BUFFER_ROWS ? NT : BUFFER_ROWS;
    bool gated = g.epilogue == CUDA_GATED;
    int warp = thread / 32, lane = thread % 32, pieces = gated ? 4 : 8;
    float *mine = buffer + lane % 4 * 2 * PITCH + warp * 16 + lane / 4;
    Piece to = piece_of(g, t, slab, thread % pieces);
#pragma unroll 1
    for (int from = 0; from < t.n; from += ROWS) {
        group_sync(1 + group, SLAB_THREADS); /* the buffer is free */
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++)
            mine[(j / 4 * 8 + j % 2) * PITCH + j / 2 % 2 * 8] =
                fmaf(acc[j], f.scale[j / 2 % 2], f.bias[j / 2 % 2]);
        group_sync(1 + group, SLAB_THREADS);
#pragma unroll 1
        for (int token = thread / pieces; token < ROWS && from + token < t.n;
             token += SLAB_THREADS / pieces) {
            const float *v = buffer + token * PITCH + thread % pieces * (gated ? 16 : 8);
            int64_t at = to.place + row_of(g, t.row + from + token) * g.y_stride;
#pragma unroll 1
            for (int i = 0; i < to.n; i++) {
                float r = gated                      ? activate(g.act, v[i], v[i + 8])
                          : g.epilogue == CUDA_RELU2 ? square_of_positive(v[i])
                                                     : v[i];
                if (g.y_float)
                    ((float *)g.y)[at + i] = r;
                else
                    ((bf16 *)g.y)[at + i] = __float2bfloat16_rn(r);
            }
        }
#pragma unroll
        for (int j = 0; j < (NT - ROWS) / 2; j++)
            acc[j] = acc[j + ROWS / 2];
    }
}

template <int NT>
__device__ __forceinline__ void store_slab(const CudaGemm &g, const Tile &t, int slab,
                                           float (&acc)[NT / 2], const Finish &f, float *buffer,
                                           int group, int thread, bool vectors)
{
    if (vectors && g.epilogue == CUDA_GATED)
        store_fast<NT, true>(g, t, slab, acc, f, buffer, group, thread);
    else if (vectors)
        store_fast<NT, false>(g, t, slab, acc, f, buffer, group, thread);
    else if (plain_floats(g))
        store_floats<NT>(g, t, slab, acc, f, thread);
    else
        store_any<NT>(g, t, slab, acc, f, buffer, group, thread);
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
    uint8_t *rows, *records;
    float *buffer;
};

/* One tile for a warpgroup that has slabs. */
template <SlabCodec CODEC, typename S, int NT>
__device__ __forceinline__ void consume(const CudaGemm &g, const Tile &t, int slab, int n_slabs,
                                        int chunks, int half_at, int signal, const Stages &m,
                                        Ring &ring, int group, int thread, bool vectors)
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
        uint32_t record =
            shared_address(m.records) + (ring.stage * 2 * SLABS + group * SLABS + SLAB) * BYTES;
        if (CODEC != SLAB_BF16)
            codes.load(record, thread);
        wgmma_wait<1>(); /* all but the unit before: the operands of this set are free */
        hold(a[SET]);
        if (CODEC == SLAB_BF16) /* they are the operands */
            codes.load(record, thread);
        if (SET == 1 && last >= 0 && thread % 32 < S::LANES)
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
        proxy_fence();
        unit(std::integral_constant<int, 0>(), c);
        unit(std::integral_constant<int, 1>(), c);
        if (c == signal) /* the other warpgroup may begin */
            asm volatile("bar.arrive 3, 256;" ::: "memory");
        last = ring.stage;
        ring.next();
    }
    Finish finish[SLABS]; /* on its way while the tensor cores end */
#pragma unroll
    for (int s = 0; s < SLABS; s++)
        if (s < n_slabs)
            finish[s] = finish_of(g, t, slab + s, thread);
    wgmma_wait<0>();
    hold(a[0]);
    hold(a[1]);
#pragma unroll
    for (int s = 0; s < SLABS; s++)
        hold(acc[s]);
    proxy_fence(); /* of the codes it has read, as each stage's is of those of the stage before */
    if (thread % 32 < S::LANES)
        barrier_arrive(ring.empty + 8 * last);
#pragma unroll
    for (int s = 0; s < SLABS; s++)
        if (s < n_slabs)
            store_slab<NT>(g, t, slab + s, acc[s], finish[s], m.buffer, group, thread, vectors);
}

/* The same for up to 32 rows, by mma: of wgmma a step takes as long for 8 rows as for 32. It adds up the
 * same products in the same order, to the same bits. Rows of their own for up are not its business. */
template <SlabCodec CODEC, typename S, int NT>
__device__ __forceinline__ void consume_few(const CudaGemm &g, const Tile &t, int slab, int chunks,
                                            const Stages &m, Ring &ring, int group, int thread,
                                            bool vectors)
{
    constexpr int BYTES = slab_record_bytes(CODEC);
    int lane = thread % 32;
    float acc[NT / 2];
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        acc[i] = 0.0f;
    /* This lane's row of the matrices of the first two steps; of the others 64 bytes on, swizzled. */
    uint32_t rows_0 = shared_address(m.rows) + lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4);
    uint32_t record_0 = shared_address(m.records) + group * BYTES;
    uint32_t rows = rows_0 + ring.stage * S::ROWS * 128;
    uint32_t record = record_0 + ring.stage * 2 * BYTES;
    uint32_t bar = ring.full + 8 * ring.stage, to_empty = ring.empty - ring.full;
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        Codes<CODEC, 0, 4> codes;
        uint32_t b[2][NT / 8][4];
        barrier_wait(bar, ring.parity);
        codes.load(record, thread);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < NT / 8; n++)
                load_matrices(b[h][n], (rows ^ h * 64) + n * 1024);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t a[8];
            codes.decode_pair(h * 2, codes.word + h * 2 * Codes<CODEC, 0, 4>::WORDS, a);
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int n = 0; n < NT / 8; n++)
                    mma(acc + 4 * n, a + 4 * j, b[h][n][j * 2], b[h][n][j * 2 + 1]);
        }
        proxy_fence();
        barrier_arrive(bar + to_empty);
        rows += S::ROWS * 128;
        record += 2 * BYTES;
        bar += 8;
        ring.next();
        if (ring.stage == 0) {
            rows = rows_0;
            record = record_0;
            bar = ring.full;
        }
    }
    Finish finish = finish_of(g, t, slab, thread);
    store_slab<NT>(g, t, slab, acc, finish, m.buffer, group, thread, vectors);
}

template <SlabCodec CODEC, typename S>
__device__ __forceinline__ void produce(const CudaGemm &g, const Tiles &tiles, int n_tiles,
                                        int n_slabs, int chunks, int passes_k, const Stages &m,
                                        Ring ring, int thread)
{
    constexpr int SLABS = S::SLABS, BYTES = slab_record_bytes(CODEC), EACH = S::ROWS / S::PASS;
    int piece = thread % 8;
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
            copies_arrive(ring.full + 8 * ring.stage);
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
}

#endif

template <SlabCodec CODEC, typename S>
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
    uint64_t *barriers = (uint64_t *)(buffers + 2 * BUFFER_BYTES);
    int *first = (int *)(barriers + 2 * stages), *row_tiles = first + g.n_mats + 1;
    Ring ring = {shared_address(barriers), shared_address(barriers + stages), stages, 0, 0};

    if (thread == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_make(ring.full + 8 * i, 1 + 32 * S::PRODUCERS);
            barrier_make(ring.empty + 8 * i, 8 * S::LANES);
        }
        barriers_made();
    }
    if (g.first)
        load_tiles(g, first, row_tiles, S::ROWS, thread, S::THREADS);
    __syncthreads();

    int n_slabs = slabs_of(g), k_chunks = (g.k + SLAB_K - 1) / SLAB_K;
    int chunks = k_chunks * (g.x_up ? 2 : g.planes);
    Tiles tiles = {g,        first, row_tiles, S::ROWS, (n_slabs + 2 * SLABS - 1) / (2 * SLABS),
                   2 * SLABS};
    int n_tiles = tiles.count();
    if (warp >= 8) {
        if constexpr (S::PRODUCERS == 4)
            registers_down<40>();
        produce<CODEC, S>(g, tiles, n_tiles, n_slabs, chunks, k_chunks, m, ring, thread - 256);
    } else {
        if constexpr (S::PRODUCERS == 4)
            registers_up<232>();
        int group = warp / 4;
        m.buffer = (float *)(buffers + group * BUFFER_BYTES);
        thread %= 128;
        /* The second warpgroup begins half a ring later, so that one of them has work for the tensor
         * cores while the other stores its results. */
        int signal = stages / 2 < chunks ? stages / 2 : chunks - 1;
        if (SLABS == 2 && group == 1 && (int)blockIdx.x < n_tiles)
            group_sync(3, 256);
        for (int i = blockIdx.x; i < n_tiles; i += gridDim.x) {
            Tile t = tiles.at(i);
            int slab = t.slab + group * SLABS, have = n_slabs - slab;
            int half_at = g.x_up ? k_chunks : 0;
            if (have <= 0) {
                for (int c = 0; c < chunks; c++, ring.next()) {
                    barrier_wait(ring.full + 8 * ring.stage, ring.parity);
                    if (thread % 32 < S::LANES)
                        barrier_arrive(ring.empty + 8 * ring.stage);
                }
            } else if constexpr (SLABS == 2) {
                if (group == 1)
                    signal = -1;
                if (t.n > S::ROWS / 2)
                    consume<CODEC, S, S::ROWS>(g, t, slab, have, chunks, half_at, signal, m, ring,
                                               group, thread, vectors);
                else
                    consume<CODEC, S, S::ROWS / 2>(g, t, slab, have, chunks, half_at, signal, m,
                                                   ring, group, thread, vectors);
                signal = -1;
            } else {
                if (t.n > 32 || g.x_up)
                    consume<CODEC, S, 64>(g, t, slab, have, chunks, half_at, -1, m, ring, group,
                                          thread, vectors);
                else if (t.n > 16)
                    consume_few<CODEC, S, 32>(g, t, slab, chunks, m, ring, group, thread, vectors);
                else
                    consume_few<CODEC, S, 16>(g, t, slab, chunks, m, ring, group, thread, vectors);
            }
        }
    }
#endif
}

template <SlabCodec CODEC, typename S>
int launch_shape(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    constexpr int STAGE = S::ROWS * 128 + 2 * S::SLABS * slab_record_bytes(CODEC);
    constexpr int MOST = 16;
    auto kernel = slab_kernel<CODEC, S>;
    int fixed = 2 * BUFFER_BYTES + 2 * MOST * 8 + (g->first ? 2 * (g->n_mats + 1) * 4 : 0);
    /* With a multiprocessor for each tile, a block has all its memory for records on their way. */
    int most = l->n_sm * S::BLOCKS, blocks = l->most_tiles < most ? (int)l->most_tiles : most;
    int share = blocks <= l->n_sm ? 1 : S::BLOCKS;
    int room = (l->shared_bytes - (share - 1) * 1024) / share - fixed;
    int stages = room / STAGE < MOST ? room / STAGE : MOST;
    if (stages < 3)
        return cudaErrorInvalidValue;
    static bool may_take = false;
    cudaError_t err = allow_shared(kernel, l->shared_bytes, &may_take);
    if (err != cudaSuccess)
        return err;
    kernel<<<blocks, S::THREADS, fixed + stages * STAGE, (cudaStream_t)stream>>>(*g, stages,
                                                                                 l->vectors);
    return cudaGetLastError();
}

} // namespace

#include "kernels/cuda/gemm_sm90_few.cuh"
#include "kernels/cuda/gemm_sm90_pair.cuh"

namespace
{

using Narrow = Shape<1, 64, 2, 2>;
using Wide = Shape<2, 128, 4, 1>;

template <SlabCodec CODEC> int launch_codec(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    return l->shape == SLAB_PAIR     ? (l->rows > 160 ? launch_pair<CODEC, 256>(g, l, stream)
                                                      : launch_pair<CODEC, 160>(g, l, stream))
           : l->shape == SLAB_WIDE   ? launch_shape<CODEC, Wide>(g, l, stream)
           : l->shape == SLAB_NARROW ? launch_shape<CODEC, Narrow>(g, l, stream)
           : l->shape == SLAB_FEW    ? launch_few<CODEC, FewShape<CODEC, 2>>(g, l, stream)
                                     : launch_few<CODEC, FewShape<CODEC, 1>>(g, l, stream);
}

} // namespace

#endif
