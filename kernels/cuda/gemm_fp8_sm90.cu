/* kernels/cuda/gemm_fp8_sm90.cu - rows of E4M3 codes times the matrices of an FP8 bank, on the FP8
 * tensor cores; the experts' gate, up and activation in one pass, and the products coded again where
 * their scale is known beforehand.
 * Tile    128 inputs at a time through a ring in shared memory, which one warpgroup fills and two
 *         consume. Few tokens: 16 or 64 are the columns of the matrix instruction, and each consumer
 *         has 64 weight rows. Many: 128 tokens are its rows, 64 for each consumer, and 256 weight
 *         rows its columns, in two halves. Weights come by bulk tensor copies, whose boxes put gate
 *         and up rows in turns; token rows are gathered, 16 bytes a thread. Blocks stay and walk over
 *         all tiles, which they find from the experts' first pairs.
 * Budget  2 * tokens * outputs * inputs FLOPs; a tile of 128 x 256 loads a byte for 171 of them, and
 *         shared memory gives 96 of its 128 bytes a clock to the tensor cores: scales that many lanes
 *         read from it cost as much as products.
 * Why     Hopper's FP8 accumulators keep some 14 bits, so every 128 inputs are added to float32
 *         registers, times their scales where those are of 128 columns. An output is one chain over
 *         such steps, whatever the tile and whichever side the tokens are: the same bits in any
 *         batch. */
#include "kernels/cuda/fp8_finish.cuh"
#include "kernels/cuda/tensor_map.h"

namespace
{

constexpr int STEP = 128, CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1), MOST_MATS = 1024;

template <int N, int BOXES>
struct Shape { /* BOXES: of 64 weight rows, for each consumer. Two: tokens are rows */
    static constexpr int M = 64 * BOXES * CONSUMERS, STAGE = (M + N) * STEP;
    static constexpr int STAGES = N == 128 ? 4 : N == 64 ? 8 : 10;
    /* Floats of a stage: the step's scales of the tokens and of two blocks of weights; and with the
     * last step the scales of the weights' rows and of the tokens that hold for all inputs. A
     * consumer's factors are [2][2][N], where tokens are columns. */
    static constexpr int ROW_SCALES = N + 4, TOKEN_SCALES = ROW_SCALES + M,
                         FLOATS = TOKEN_SCALES + N;
    static constexpr int FLOATS_AT = STAGES * STAGE, FACTORS_AT = FLOATS_AT + STAGES * FLOATS * 4;
    static constexpr int BARRIERS_AT = FACTORS_AT + (BOXES == 1 ? CONSUMERS * 4 * N * 4 : 0);
    static constexpr int TILES_AT = BARRIERS_AT + STAGES * 16;
    static constexpr int BEFORE_AT = TILES_AT + STAGES * (int)sizeof(Tile);
    static constexpr int BYTES = BEFORE_AT + (MOST_MATS + 1) * 4 + 1024; /* to align */
    static_assert(BYTES <= 227 * 1024, "shared memory of a block");
    static_assert(STAGE % 1024 == 0, "the swizzle repeats every 1024 bytes");
};

#ifdef CUDA_SM90A

constexpr int BOX = 64 * STEP,
              BAND = 8; /* BAND: tiles of tokens that share the weights in the cache */

/* Tiles of tokens before each expert. By one warp. */
template <int N> __device__ void count_tiles(const CudaFp8Gemm &g, int *before)
{
    int lane = threadIdx.x, sum = 0;
    if (lane == 0)
        before[0] = 0;
    for (int base = 0; base < g.n_mats; base += 32) {
        int i = base + lane, n = 0;
        if (i < g.n_mats)
            n = ((g.first ? g.first[i + 1] - g.first[i] : g.n_rows) + N - 1) / N;
        for (int d = 1; d < 32; d *= 2) {
            int left = __shfl_up_sync(0xffffffffu, n, d);
            n += lane >= d ? left : 0;
        }
        n += sum;
        if (i < g.n_mats)
            before[i + 1] = n;
        sum = __shfl_sync(0xffffffffu, n, 31);
    }
}

/* Tiles of tokens in bands, all outputs of a band before the next. */
template <int N, int M>
__device__ __forceinline__ Tile find_tile(const CudaFp8Gemm &g, const int *before, int index)
{
    Tile t;
    int m_tiles = g.m_tiles, lo = 0, hi = g.n_mats;
    while (hi - lo > 1) { /* the last expert with before[e] * m_tiles <= index */
        int mid = (lo + hi) / 2;
        if (before[mid] * m_tiles <= index)
            lo = mid;
        else
            hi = mid;
    }
    t.mat = lo;
    int n_tiles = before[lo + 1] - before[lo];
    index -= before[lo] * m_tiles;
    int band = index / (BAND * m_tiles), width = min(BAND, n_tiles - band * BAND);
    index -= band * BAND * m_tiles;
    int m = index / width, n = (band * BAND + index % width) * N;
    int first = g.first ? g.first[lo] : 0, rows = g.first ? g.first[lo + 1] - first : g.n_rows;
    t.row = first + n;
    t.n = min(N, rows - n);
    int outs = gated(g) ? M / 2 : M;
    t.part = 0;
    if (!gated(g))
        while (m * outs >= (g.part[t.part].rows + outs - 1) / outs * outs)
            m -= (g.part[t.part++].rows + outs - 1) / outs;
    t.out = m * outs;
    t.part_rows = g.part[t.part].rows;
    return t;
}

/* Of a row of the weights' tile, the row of the matrix. Within 16, rows 4 a + 2
 * b + c of a matrix lie at 8 b + 2 a + c, so that a lane ends with four outputs
 * in a row; gate and up take turns of 8, and a consumer's two boxes share 16
 * outputs in the same way. */
template <int BOXES>
__device__ __forceinline__ int matrix_row(const CudaFp8Gemm &g, const Tile &t, int i)
{
    int box = i / 64, group = i % 64 / 16, half = i % 16 / 8, a = i % 8 / 2, c = i % 2;
    if (!gated(g))
        return g.part[t.part].first_row + t.out + box * 64 + group * 16 + 4 * a + 2 * half + c;
    int out = BOXES == 2 ? box / 2 * 64 + group * 16 + 4 * a + box % 2 * 2 + c
                         : box * 32 + group * 8 + i % 8;
    return g.part[half].first_row + t.out + out;
}

struct Ring { /* stages in shared memory; full and empty barriers of each */
    uint32_t data, barriers;
    float *floats;
    Tile *tiles;
    int stage;
    uint32_t parity;
};

template <int STAGES> __device__ __forceinline__ void next_stage(Ring &r)
{
    if (++r.stage == STAGES) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

__device__ __forceinline__ uint32_t full_at(const Ring &r)
{
    return r.barriers + r.stage * 16;
}

__device__ __forceinline__ uint32_t empty_at(const Ring &r)
{
    return r.barriers + r.stage * 16 + 8;
}

/* A box of codes, by the copy engine; the barrier counts its bytes. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                         int c0, int c1, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(0), "r"(c4)
                 : "memory");
}

/* --- what fills the ring --- */

template <int N, int BOXES>
__device__ __forceinline__ void copy_weights(const CudaFp8Gemm &g, const CUtensorMap *map,
                                             const Tile &t, uint32_t to, uint32_t barrier, int k)
{
    int row = t.mat * g.mat_rows + g.part[t.part].first_row + t.out;
    int unit = gated(g) && BOXES == 1 ? 8 : 16;
    barrier_expect(barrier, Shape<N, BOXES>::M * STEP);
#pragma unroll
    for (int b = 0; b < CONSUMERS * BOXES; b++) {
        bool shared = gated(g) && BOXES == 2; /* the boxes' 16 outputs are the same */
        copy_box(to + b * BOX, map, barrier, k, shared ? b % 2 * 2 : 0,
                 row / unit + (shared ? b / 2 : b) * 4);
    }
}

/* A scale, or 1. */
__device__ __forceinline__ void bring(float *to, const float *from)
{
    if (from)
        copy_4(shared_address(to), from);
    else
        *to = 1.0f;
}

/* The scales that hold for all inputs, and the tile itself. */
template <int N, int BOXES>
__device__ __forceinline__ void bring_last(const CudaFp8Gemm &g, const Tile &t, const Ring &r,
                                           const float *token)
{
    using S = Shape<N, BOXES>;
    int tid = threadIdx.x;
    float *floats = r.floats + r.stage * S::FLOATS;
#pragma unroll
    for (int i = 0; i < S::M / 128; i++) {
        int row = matrix_row<BOXES>(g, t, tid + i * 128);
        bool there = !g.blocks && row < g.mat_rows;
        bring(floats + S::ROW_SCALES + tid + i * 128,
              there ? g.scales + (int64_t)t.mat * g.scales_mat + row : nullptr);
    }
    if (tid < N)
        bring(floats + S::TOKEN_SCALES + tid, g.x_scales_step ? nullptr : token);
    if (tid == 0)
        r.tiles[r.stage] = t;
}

/* All steps of a tile. */
template <int N, int BOXES>
__device__ __forceinline__ void produce(const CudaFp8Gemm &g, const CUtensorMap *map, const Tile &t,
                                        Ring &r)
{
    using S = Shape<N, BOXES>;
    constexpr int PIECES = N * 8 / 128;
    int tid = threadIdx.x, piece = tid % 8, steps = g.k_padded / STEP;
    uint32_t from[PIECES], to = (tid / 8) * STEP + ((piece ^ (tid / 8 % 8)) << 4);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int row = tid / 8 + 16 * i;
        bool there = row < t.n;
        from[i] = (uint32_t)(!there    ? 0
                             : g.x_row ? g.x_row[t.row + row]
                                       : t.row + row) *
                  (uint32_t)(g.x_pitch / 16);
    }
    const uint8_t *x = (const uint8_t *)g.x + piece * 16;
    const float *token = nullptr, *block = nullptr;
    if (g.x_scales_at && tid < t.n) {
        int row = g.x_row ? g.x_row[t.row + tid] : t.row + tid;
        token = (const float *)((const uint8_t *)g.x + row * g.x_pitch + g.x_scales_at);
    }
    if (g.blocks && tid < 2) { /* the second 128 rows may be past the end */
        const CudaFp8Part &p = g.part[gated(g) ? tid : t.part];
        int out = gated(g) || BOXES == 1 ? t.out : t.out + tid * 128;
        block = g.scales + (int64_t)t.mat * g.scales_mat +
                (p.first_block + min(out, p.rows - 1) / 128) * steps;
    }
    for (int k = 0; k < steps; k++) {
        uint32_t base = r.data + r.stage * S::STAGE, rows = base + S::M * STEP;
        float *floats = r.floats + r.stage * S::FLOATS + tid;
        barrier_wait(empty_at(r), r.parity ^ 1);
        if (tid == 0)
            copy_weights<N, BOXES>(g, map, t, base, full_at(r), k * STEP);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            copy_16(rows + to + i * 16 * STEP, x + (int64_t)from[i] * 16 + k * STEP,
                    tid / 8 + 16 * i < t.n ? 16 : 0);
        if (g.grouped && tid < N)
            bring(floats, token && g.x_scales_step ? token + k : nullptr);
        if (g.grouped && tid < 2)
            bring(floats + N, block ? block + k : nullptr);
        if (k + 1 == steps)
            bring_last<N, BOXES>(g, t, r, token);
        copies_arrive(full_at(r));
        barrier_arrive(full_at(r));
        next_stage<S::STAGES>(r);
    }
}

/* --- the sums --- */

/* What the step's sums are multiplied by, of the lower and upper rows of each
 * 16: while the tensor cores are busy. */
template <int N>
__device__ __forceinline__ void put_factors(const CudaFp8Gemm &g, const float *floats, float *lower,
                                            float *upper)
{
    int i = threadIdx.x % 128;
    float w0 = floats[N], w1 = floats[N + (gated(g) ? 1 : 0)];
    if (i < N) {
        lower[i] = floats[i] * w0;
        upper[i] = floats[i] * w1;
    }
}

/* part = a b^T over one step, of rows of swizzled tiles at a and b. */
template <int N> __device__ __forceinline__ void multiply(float (&part)[N], uint32_t a, uint32_t b)
{
    uint64_t rows = rows_descriptor(a), columns = rows_descriptor(b);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEP / 32; i++)
        wgmma_fp8(part, rows + 2 * i, columns + 2 * i, i > 0);
    wgmma_commit();
}

/* What a step reads. */
struct Step {
    uint32_t weights, tokens; /* of the tile, in shared memory */
    const float *floats;
    uint32_t empty; /* the barrier that says so, once nothing is read any more; 0: not yet */
};

__device__ __forceinline__ void give_back(const Step &k)
{
    if (k.empty)
        barrier_arrive(k.empty);
}

/* A step of a tile whose tokens are the columns. factors [2][N]: the consumer's own. */
template <int N, bool GROUPED>
__device__ __forceinline__ void add_step(const CudaFp8Gemm &g, const Step &k, float *factors,
                                         int consumer, float (&acc)[1][N / 2])
{
    float part[N / 2], *lower = factors, *upper = factors + N;
    multiply(part, k.weights + consumer * BOX, k.tokens);
    if (GROUPED) {
        put_factors<N>(g, k.floats, lower, upper);
        group_sync(1 + consumer, 128);
    }
    wgmma_end(part);
    give_back(k);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 lo = {1.0f, 1.0f}, hi = lo;
        if (GROUPED) {
            lo = *(const float2 *)(lower + 8 * j + threadIdx.x % 4 * 2);
            hi = *(const float2 *)(upper + 8 * j + threadIdx.x % 4 * 2);
        }
        float *a = acc[0] + 4 * j, *d = part + 4 * j;
        a[0] = GROUPED ? fmaf(d[0], lo.x, a[0]) : a[0] + d[0];
        a[1] = GROUPED ? fmaf(d[1], lo.y, a[1]) : a[1] + d[1];
        a[2] = GROUPED ? fmaf(d[2], hi.x, a[2]) : a[2] + d[2];
        a[3] = GROUPED ? fmaf(d[3], hi.y, a[3]) : a[3] + d[3];
    }
}

/* The same for a tile whose tokens are the rows, 64 for each consumer: two for a lane, so that
 * factors stay in registers. */
template <int N, bool GROUPED>
__device__ __forceinline__ void add_step(const CudaFp8Gemm &g, const Step &k, float *, int consumer,
                                         float (&acc)[2][N / 2])
{
    float s[2] = {}, w[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float part[N / 2];
        multiply(part, k.tokens + consumer * BOX, k.weights + half * 2 * BOX);
        if (GROUPED && half == 0) {
            int token = consumer * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
            s[0] = k.floats[token];
            s[1] = k.floats[token + 8];
            w[0] = k.floats[N];
            w[1] = k.floats[N + 1];
        }
        /* Runs of 8 columns are gate and up in turns, or one block of 128. */
        float even = gated(g) ? w[0] : w[half], odd = gated(g) ? w[1] : w[half];
        float by[2][2] = {{s[0] * even, s[1] * even}, {s[0] * odd, s[1] * odd}};
        wgmma_end(part);
        if (half == 1)
            give_back(k);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float *a = &acc[half][i];
            *a = GROUPED ? fmaf(part[i], by[i / 4 % 2][i / 2 % 2], *a) : *a + part[i];
        }
    }
}

/* All steps of a tile. The last one's stage is still held when this returns. */
template <int N, int BOXES, bool GROUPED>
__device__ __forceinline__ void consume(const CudaFp8Gemm &g, int consumer, Ring &r, float *factors,
                                        float (&acc)[BOXES][N / 2])
{
    using S = Shape<N, BOXES>;
    int steps = g.k_padded / STEP;
#pragma unroll
    for (int b = 0; b < BOXES; b++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[b][i] = 0.0f;
    for (int k = 0; k < steps; k++) {
        uint32_t base = r.data + r.stage * S::STAGE;
        barrier_wait(full_at(r), r.parity);
        /* Token rows came as ordinary writes; the tensor cores read through the async proxy. */
        proxy_fence();
        bool last = k + 1 == steps;
        Step step = {base, base + S::M * STEP, r.floats + r.stage * S::FLOATS,
                     last ? 0 : empty_at(r)};
        add_step<N, GROUPED>(g, step, factors + k % 2 * 2 * N, consumer, acc);
        if (!last)
            next_stage<S::STAGES>(r);
    }
}

#endif

template <int N, int BOXES, bool GROUPED>
__global__ void __launch_bounds__(THREADS, 1)
    fp8_kernel(const __grid_constant__ CudaFp8Gemm g, const __grid_constant__ CUtensorMap map)
{
#ifdef CUDA_SM90A
    using S = Shape<N, BOXES>;
    extern __shared__ uint8_t raw[];
    uint8_t *memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
    int *before = (int *)(memory + S::BEFORE_AT);
    /* The same in all lanes, which the compiler cannot see in threadIdx. */
    int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    Ring r = {shared_address(memory),
              shared_address(memory + S::BARRIERS_AT),
              (float *)(memory + S::FLOATS_AT),
              (Tile *)(memory + S::TILES_AT),
              0,
              0};
    if (threadIdx.x < 32)
        count_tiles<N>(g, before);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_make(r.barriers + i * 16, 1 + 128 + 128); /* weights, tokens, floats */
            barrier_make(r.barriers + i * 16 + 8, CONSUMERS * 128);
        }
        barriers_made();
    }
    __syncthreads();
    int n_tiles = before[g.n_mats] * g.m_tiles;
    if (role == 0) {
        registers_down<56>();
        for (int i = blockIdx.x; i < n_tiles; i += gridDim.x)
            produce<N, BOXES>(g, &map, find_tile<N, S::M>(g, before, i), r);
    } else {
        registers_up<224>();
        float acc[BOXES][N / 2];
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float *factors = (float *)(memory + S::FACTORS_AT) + (role - 1) * 4 * N;
        for (int i = blockIdx.x; i < n_tiles; i += gridDim.x) {
            consume<N, BOXES, GROUPED>(g, role - 1, r, factors, acc);
            const float *floats = r.floats + r.stage * S::FLOATS;
            Place p = {role - 1, warp, lane, floats + S::ROW_SCALES, floats + S::TOKEN_SCALES};
            finish<N, BOXES>(g, r.tiles[r.stage], p, acc);
            barrier_arrive(empty_at(r));
            next_stage<S::STAGES>(r);
        }
    }
#endif
}

/* --- launching --- */

/* Boxes of 64 weight rows in the order that matrix_row says; the last dimension
 * counts 16 rows, or 8 where gate and up have one box. */
int map_weights(const CudaFp8Gemm &g, int boxes, CUtensorMap *out)
{
    TensorMapEncode encode;
    int err = cuda_tensor_map_encode(&encode);
    if (err != cudaSuccess)
        return err;
    cuuint64_t row = (cuuint64_t)g.k_padded, rows = (cuuint64_t)g.n_mats * (cuuint64_t)g.mat_rows;
    cuuint64_t up = (cuuint64_t)g.part[1].first_row;
    cuuint64_t dims[5] = {row, 2, 4, 2, rows / 16}, strides[4] = {row, 4 * row, 2 * row, 16 * row};
    cuuint32_t box[5] = {STEP, 2, 4, 2, 4}, each[5] = {1, 1, 1, 1, 1};
    if (g.epilogue == CUDA_GATED) {
        dims[1] = 4;
        dims[4] = (rows - up) / 16;
        strides[2] = up * row;
    }
    if (g.epilogue == CUDA_GATED && boxes == 1) {
        dims[1] = box[1] = 8;
        dims[2] = box[2] = 1;
        dims[4] = (rows - up) / 8;
        strides[1] = strides[3] = 8 * row;
    }
    CUresult result =
        encode(out, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, (void *)(uintptr_t)g.codes, dims, strides,
               box, each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <int N, int BOXES, bool GROUPED>
int launch(CudaFp8Gemm g, int blocks, cudaStream_t stream)
{
    using S = Shape<N, BOXES>;
    CUtensorMap map;
    static bool may_take = false;
    int err = map_weights(g, BOXES, &map);
    if (err == cudaSuccess)
        err = allow_shared(fp8_kernel<N, BOXES, GROUPED>, S::BYTES, &may_take);
    if (err != cudaSuccess)
        return err;
    fp8_kernel<N, BOXES, GROUPED><<<blocks, THREADS, S::BYTES, stream>>>(g, map);
    return cudaGetLastError();
}

int tiles_of(const CudaFp8Gemm &g, int outs)
{
    int n = 0;
    for (int i = 0; i < (g.epilogue == CUDA_GATED ? 1 : g.n_parts); i++)
        n += ((g.y_fill > g.part[i].rows ? g.y_fill : g.part[i].rows) + outs - 1) / outs;
    return n;
}

} // namespace

int cuda_fp8_gemm_launch(const CudaFp8Gemm *from, void *stream)
{
    CudaFp8Gemm g = *from;
    int n_blocks;
    if (!cuda_has_sm90a())
        return cudaErrorNotSupported;
    cudaError_t err = count_multiprocessors(&n_blocks);
    if (err != cudaSuccess)
        return err;
    if (g.n_rows == 0)
        return cudaSuccess;
    if (g.n_mats > MOST_MATS)
        return cudaErrorInvalidValue;
    bool turns = g.epilogue == CUDA_GATED;
    /* How many rows an expert has, if all have alike; tile widths do not change
     * bits. */
    int mats = g.first ? g.n_mats : 1, each = (g.n_rows + mats - 1) / mats;
    int wide_tiles = tiles_of(g, turns ? 128 : 256) * ((each + 127) / 128) * mats;
    int n = each <= 16 ? 16 : each <= 64 || wide_tiles < n_blocks ? 64 : 128;
    int m = n == 128 ? 256 : 128;
    g.m_tiles = tiles_of(g, turns ? m / 2 : m);
    int64_t tiles = (int64_t)(g.n_rows / n + mats) * g.m_tiles;
    int blocks = tiles < n_blocks ? (int)tiles : n_blocks;
    g.grouped = g.blocks || g.x_scales_step;
    cudaStream_t s = (cudaStream_t)stream;
    if (n == 128)
        return g.grouped ? launch<128, 2, true>(g, blocks, s) : launch<128, 2, false>(g, blocks, s);
    if (n == 64)
        return g.grouped ? launch<64, 1, true>(g, blocks, s) : launch<64, 1, false>(g, blocks, s);
    return g.grouped ? launch<16, 1, true>(g, blocks, s) : launch<16, 1, false>(g, blocks, s);
}
