/* kernels/cuda/gemm.cu - rows times the matrices of a bank, in every format, by instructions that
 * sm_80 has; the experts' gate, up and activation in one pass. Banks of slabs go to gemm_sm90.cuh.
 * Tile    64 rows x 64 outputs per block of 4 warps, 32 inputs at a time through two buffers in
 *         shared memory; bf16 mma, float32 sums. Codes wait in registers while the tensor cores
 *         work, and become bf16 on their way into shared memory.
 * Budget  2 * rows * outputs * inputs FLOPs against one read of the codes for each 64 rows.
 * Why     an output is one chain over the inputs in steps of 16, whatever the tile, the number of
 *         rows or the expert: the same bits in any batch. Where gate and up are wanted together,
 *         blocks of 8 outputs take turns in the tile, so that a thread holds both. */
#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/gemm_sm90.h"

namespace
{

constexpr int BM = CUDA_TILE_ROWS, BN = CUDA_TILE_COLS, BK = CUDA_TILE_K;
constexpr int THREADS = 128, PITCH = BK + 8; /* 80 bytes: eight rows of ldmatrix, eight places */

static_assert(BM * BK == THREADS * 16 && BN * BK == THREADS * 16, "16 values a thread and tile");

struct Codes { /* 16 weights of a row on their way */
    uint4 a, b;
    float scale;
};

/* Which output of which part is row n of the weights' tile; -1: none. */
struct Place {
    int part, row;
};

__device__ __forceinline__ Place place_of(const CudaGemm &g, int col_tile, int n)
{
    if (g.epilogue == CUDA_GATED) {
        int row = col_tile * (BN / 2) + n / 16 * 8 + n % 8;
        return {n / 8 % 2, row < g.part[0].rows ? row : -1};
    }
    int part = 0;
    while (part + 1 < g.n_parts && col_tile * BN >= (g.part[part].rows + BN - 1) / BN * BN) {
        col_tile -= (g.part[part].rows + BN - 1) / BN;
        part++;
    }
    int row = col_tile * BN + n;
    return {part, row < g.part[part].rows ? row : -1};
}

__device__ __forceinline__ uint32_t pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}

struct WeightRow { /* a thread's row of the weights' tile, and its half of BK */
    const uint8_t *codes, *scales;
    CudaCodes kind;
    ScaleType scale_type;
    int group, n_groups;
};

__device__ __forceinline__ Codes load_codes(const WeightRow &w, int k, int k_in)
{
    Codes c = {{0, 0, 0, 0}, {0, 0, 0, 0}, 1.0f};
    if (w.kind == CUDA_BF16) {
        c.a = __ldg((const uint4 *)(w.codes + 2 * (int64_t)k));
        c.b = __ldg((const uint4 *)(w.codes + 2 * (int64_t)k) + 1);
    } else if (w.kind == CUDA_E4M3 || w.kind == CUDA_INT8) {
        c.a = __ldg((const uint4 *)(w.codes + k));
    } else {
        uint2 v = __ldg((const uint2 *)(w.codes + k / 2));
        c.a.x = v.x;
        c.a.y = v.y;
    }
    if (w.scales && w.group % 16 == 0) {
        int at = k_in / w.group;
        c.scale = load_scale(w.scales, at < w.n_groups ? at : w.n_groups - 1, w.scale_type);
    }
    return c;
}

__device__ __forceinline__ float code_value(CudaCodes kind, const uint32_t *words, int i)
{
    uint32_t byte = words[i / 4] >> i % 4 * 8 & 255u, nibble = words[i / 8] >> i % 8 * 4 & 15u;
    switch (kind) {
    case CUDA_E4M3:
        return from_e4m3(byte);
    case CUDA_INT8:
        return (float)(int8_t)byte;
    case CUDA_INT4:
        return (float)((int)nibble - 8);
    default:
        return from_e2m1(nibble);
    }
}

/* Sixteen bf16 weights from inputs k_in on. */
__device__ __forceinline__ void decode(const WeightRow &w, const Codes &c, int k_in, uint4 out[2])
{
    if (w.kind == CUDA_BF16) {
        out[0] = c.a;
        out[1] = c.b;
        return;
    }
    const uint32_t words[4] = {c.a.x, c.a.y, c.a.z, c.a.w};
    uint32_t pairs[8];
    bool uneven = w.scales && w.group % 16 != 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float s0 = c.scale, s1 = c.scale;
        if (uneven) {
            int last = w.n_groups - 1, g0 = (k_in + 2 * i) / w.group,
                g1 = (k_in + 2 * i + 1) / w.group;
            s0 = load_scale(w.scales, g0 < last ? g0 : last, w.scale_type);
            s1 = load_scale(w.scales, g1 < last ? g1 : last, w.scale_type);
        }
        pairs[i] =
            pack(code_value(w.kind, words, 2 * i) * s0, code_value(w.kind, words, 2 * i + 1) * s1);
    }
    out[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    out[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
}

/* Eight inputs of a row from column k on; zeros past its end. */
__device__ __forceinline__ uint4 load_inputs(const bf16 *row, int k, int width, bool vectors)
{
    uint4 v = {0, 0, 0, 0};
    if (!row)
        return v;
    if (vectors && k + 8 <= width)
        return *(const uint4 *)(row + k);
    bf16 *each = (bf16 *)&v;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (k + i < width)
            each[i] = row[k + i];
    return v;
}

__device__ __forceinline__ void load_fragment(uint32_t r[4], const bf16 *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* A warp's 32 x 32 results after one step of BK inputs. */
__device__ __forceinline__ void step(float acc[2][4][4], const bf16 *xs, const bf16 *ws, int lane)
{
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_fragment(a[i], xs + (i * 16 + lane % 16) * PITCH + k + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_fragment(b[j],
                          ws + (j * 16 + lane / 16 * 8 + lane % 8) * PITCH + k + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                multiply(acc[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

struct Tile { /* rows row .. row+n-1 of one matrix */
    int mat, row, n;
};

/* The tile of this block; n is 0 where there are fewer tiles than blocks. */
__device__ __forceinline__ Tile find_tile(const CudaGemm &g)
{
    int left = (int)blockIdx.x;
    if (!g.first) {
        int each = (g.n_rows + BM - 1) / BM, row = left % each * BM;
        return {left / each, row, g.n_rows - row < BM ? g.n_rows - row : BM};
    }
    int lane = (int)threadIdx.x % 32;
    for (int base = 0; base < g.n_mats; base += 32) { /* every warp finds the same */
        int m = base + lane, from = 0, n = 0;
        if (m < g.n_mats) {
            from = g.first[m];
            n = g.first[m + 1] - from;
        }
        int tiles = (n + BM - 1) / BM, upto = tiles;
        for (int d = 1; d < 32; d *= 2) {
            int v = __shfl_up_sync(0xffffffffu, upto, d);
            upto += lane >= d ? v : 0;
        }
        unsigned here = __ballot_sync(0xffffffffu, left < upto);
        if (here) {
            int at = __ffs((int)here) - 1;
            int row = (left - __shfl_sync(0xffffffffu, upto - tiles, at)) * BM;
            from = __shfl_sync(0xffffffffu, from, at);
            n = __shfl_sync(0xffffffffu, n, at) - row;
            return {base + at, from + row, n < BM ? n : BM};
        }
        left -= __shfl_sync(0xffffffffu, upto, 31);
    }
    return {0, 0, 0};
}

__device__ __forceinline__ void store(const CudaGemm &g, int64_t at, float v)
{
    if (g.y_float)
        ((float *)g.y)[at] = v;
    else
        ((bf16 *)g.y)[at] = __float2bfloat16_rn(v);
}

__global__ void __launch_bounds__(THREADS)
    gemm_kernel(const __grid_constant__ CudaGemm g, bool vectors)
{
    __shared__ alignas(16) bf16 xs[2][BM][PITCH], ws[2][BN][PITCH];
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, col_tile = blockIdx.y;
    Tile t = find_tile(g);
    if (t.n == 0)
        return;

    /* What this thread brings: two runs of 8 inputs, and 16 weights of one row. */
    const bf16 *from[2], *from_up[2];
    for (int i = 0; i < 2; i++) {
        int r = tid / 4 + i * 32;
        int64_t row = r < t.n ? (g.x_row ? g.x_row[t.row + r] : t.row + r) : 0;
        int64_t at = row * g.x_stride + t.mat * g.x_mat;
        from[i] = r < t.n ? (const bf16 *)g.x + at : nullptr;
        from_up[i] = r < t.n && g.x_up ? (const bf16 *)g.x_up + at : nullptr;
    }
    Place mine = place_of(g, col_tile, tid / 2);
    const CudaPart &p = g.part[mine.part];
    int64_t w_row = mine.row < 0 ? 0 : mine.row;
    WeightRow w = {p.codes + t.mat * p.codes_mat + w_row * p.codes_row,
                   p.scales ? p.scales + t.mat * p.scales_mat + w_row * p.scales_row : nullptr,
                   p.kind,
                   p.scale_type,
                   p.group,
                   p.n_groups};

    int k_steps = g.k_padded / BK, passes = g.x_up ? 2 : g.planes, n_steps = passes * k_steps;
    uint4 x_next[2];
    Codes w_next;
    float acc[2][4][4] = {};

    auto fetch = [&](int s) {
        int pass = s / k_steps, k = s % k_steps * BK;
        for (int i = 0; i < 2; i++)
            x_next[i] =
                load_inputs(g.x_up && pass ? from_up[i] : from[i], k + tid % 4 * 8, g.k, vectors);
        int k_in = k + tid % 2 * 16;
        w_next = load_codes(w, (g.x_up ? 0 : pass * g.k_padded) + k_in, k_in);
    };
    auto put = [&](int s, int buffer) {
        for (int i = 0; i < 2; i++)
            *(uint4 *)&xs[buffer][tid / 4 + i * 32][tid % 4 * 8] = x_next[i];
        uint4 v[2];
        decode(w, w_next, s % k_steps * BK + tid % 2 * 16, v);
        /* With inputs of its own, each part is idle in the other's pass. */
        if (mine.row < 0 || (g.x_up && mine.part != s / k_steps))
            v[0] = v[1] = {0, 0, 0, 0};
        uint4 *to = (uint4 *)&ws[buffer][tid / 2][tid % 2 * 16];
        to[0] = v[0];
        to[1] = v[1];
    };

    fetch(0);
    put(0, 0);
    __syncthreads();
    for (int s = 0; s < n_steps; s++) {
        if (s + 1 < n_steps)
            fetch(s + 1);
        step(acc, &xs[s % 2][warp % 2 * 32][0], &ws[s % 2][warp / 2 * 32][0], lane);
        if (s + 1 < n_steps)
            put(s + 1, (s + 1) % 2);
        __syncthreads();
    }

    const float *bias = g.bias ? g.bias + t.mat * g.bias_mat : nullptr;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = warp % 2 * 32 + i * 16 + e / 2 * 8 + lane / 4;
            if (r >= t.n)
                continue;
            int64_t y_row = g.y_row ? g.y_row[t.row + r] : t.row + r;
            int64_t at = y_row * g.y_stride + t.mat * g.y_mat;
            float value[4];
            Place where[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                where[j] = place_of(g, col_tile, warp / 2 * 32 + j * 8 + lane % 4 * 2 + e % 2);
                if (where[j].row < 0)
                    continue;
                const CudaPart &q = g.part[where[j].part];
                value[j] = acc[i][j][e] * q.row_scale[t.mat * q.row_scale_mat + where[j].row];
                if (bias)
                    value[j] += bias[q.first_row + where[j].row];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (where[j].row < 0)
                    continue;
                if (g.epilogue == CUDA_GATED) {
                    if (j % 2 == 0)
                        store(g, at + where[j].row, activate(g.act, value[j], value[j | 1]));
                } else {
                    float v = value[j];
                    if (g.epilogue == CUDA_RELU2)
                        v = square_of_positive(v);
                    store(g, at + g.part[where[j].part].first_row + where[j].row, v);
                }
            }
        }
}

bool aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* A warp copies a row, 16 bytes a lane. end: how many rows there are; NULL: n. */
__global__ void __launch_bounds__(256)
    gather_kernel(uint4 *to, const uint4 *from, const int32_t *row, const int32_t *end, int n,
                  int pieces, int64_t stride)
{
    int live = end ? *end : n;
    for (int r = (blockIdx.x * 256 + threadIdx.x) / 32; r < live; r += gridDim.x * 8) {
        const uint4 *x = from + row[r] * stride;
        uint4 *y = to + (int64_t)r * pieces;
#pragma unroll 4
        for (int i = threadIdx.x % 32; i < pieces; i += 32)
            y[i] = x[i];
    }
}

/* Puts the rows of g together. */
cudaError_t gather_rows(CudaGemm *g, int n_sm, void *stream)
{
    gather_kernel<<<n_sm * 8, 256, 0, (cudaStream_t)stream>>>(
        (uint4 *)g->x_room, (const uint4 *)g->x, g->x_row, g->first ? g->first + g->n_mats : NULL,
        g->n_rows, g->k / 8, g->x_stride / 8);
    g->x = g->x_room;
    g->x_stride = g->k;
    g->x_row = NULL;
    return cudaGetLastError();
}

/* How a launch is cut into tiles: bits are the same. tiles(outputs, rows): how many there would be. */
template <typename F>
void choose_shape(SlabLaunch *l, const CudaGemm *g, int64_t each, int n_sm, F tiles)
{
    /* Pairs of blocks read rows by the copy engine: rows that lie together, or can be put so. */
    bool pairs = !g->x_up && (g->first || g->n_mats == 1) && (!g->x_row || g->x_room);
    /* Tiles of few rows have no masks; they are also what spreads a router over multiprocessors. */
    if ((each <= 10 || tiles(128, 16) <= n_sm) && !g->x_up) {
        l->shape = tiles(128, 16) <= n_sm ? SLAB_FEWEST : SLAB_FEW;
        l->most_tiles = l->shape == SLAB_FEWEST ? tiles(64, 16) : tiles(128, 16);
        return;
    }
    l->shape = SLAB_NARROW;
    l->most_tiles = tiles(128, 64);
    if (!g->first && pairs) {
        /* What a stage takes of a pair's tile, at least and besides its rows, and of all narrow tiles
         * side by side, one or two a multiprocessor; as bench_linear has it on an H200, in the time
         * of one row of a pair's tile. */
        bool codes = g->part[0].codec != SLAB_BF16;
        int least = codes ? 88 : 112, beside = 40, one = codes ? 177 : 150, two = 240;
        auto rounds = [](int64_t n, int places) { return (n + places - 1) / places; };
        int64_t best = l->most_tiles <= n_sm ? one : rounds(l->most_tiles, 2 * n_sm) * two;
        for (int rows : {96, 128, 160, 192, 256}) {
            int held = each < rows ? ((int)each + 31) / 32 * 32 : rows;
            int64_t n = tiles(256, rows),
                    time = rounds(n, n_sm / 2) * ((held > least ? held : least) + beside);
            if (time < best) {
                best = time;
                l->shape = SLAB_PAIR;
                l->rows = rows;
                l->most_tiles = n;
            }
        }
    } else if (pairs && each >= 56 && tiles(256, 256) >= n_sm / 2) {
        l->shape = SLAB_PAIR;
        l->rows = each <= 152 ? 160 : 256;
        l->most_tiles = tiles(256, l->rows);
    } else if (each > 64 && tiles(256, 128) >= n_sm) {
        l->shape = SLAB_WIDE;
        l->most_tiles = tiles(256, 128);
    }
}

int launch_slabs(const CudaGemm *g, bool vectors, void *stream)
{
    int n_sm, shared_bytes;
    cudaError_t err = count_multiprocessors(&n_sm);
    if (err == cudaSuccess)
        err = device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(&shared_bytes);
    if (err != cudaSuccess)
        return err;
    if (!vectors || g->k % 8 != 0) /* what the bank was laid out for */
        return cudaErrorInvalidValue;
    int64_t slabs = 0, most = g->first && g->n_mats > g->n_rows ? g->n_rows : g->n_mats;
    for (int i = 0; i < (g->part[0].layout == CUDA_PAIRED ? 1 : g->n_parts); i++)
        slabs += slab_count(&g->part[i]);
    SlabLaunch l = {};
    choose_shape(&l, g, g->first ? g->n_rows / g->n_mats : g->n_rows, n_sm,
                 [&](int outputs, int rows) {
                     int64_t row_tiles = g->first ? g->n_rows / rows + most
                                                  : most * ((g->n_rows + rows - 1) / rows);
                     return (slabs * SLAB_ROWS + outputs - 1) / outputs * row_tiles;
                 });
    l.n_sm = n_sm;
    l.shared_bytes = shared_bytes;
    l.vectors = !g->y_float && g->epilogue != CUDA_RELU2 && aligned(g->y) && g->y_stride % 8 == 0 &&
                g->y_mat % 8 == 0 && !(g->epilogue == CUDA_GATED && g->act.kind == ACT_SITU);
    for (int i = 0; i < g->n_parts; i++)
        l.vectors = l.vectors && g->part[i].first_row % 8 == 0 && g->part[i].rows % 8 == 0;
    CudaGemm together = *g;
    if (l.shape == SLAB_PAIR && g->x_row) {
        err = gather_rows(&together, n_sm, stream);
        if (err != cudaSuccess)
            return err;
        g = &together;
    }
    switch (g->part[0].codec) {
    case SLAB_BF16:
        return cuda_slabs_bf16(g, &l, stream);
    case SLAB_MXFP4:
    case SLAB_NVFP4:
        return cuda_slabs_fp4(g, &l, stream);
    case SLAB_INT4:
    case SLAB_INT8:
        return cuda_slabs_int(g, &l, stream);
    default:
        return cuda_slabs_fp8(g, &l, stream);
    }
}

} // namespace

int cuda_gemm_launch(const CudaGemm *g, void *stream)
{
    int64_t tiles = g->first
                        ? (int64_t)g->n_rows / BM + (g->n_mats < g->n_rows ? g->n_mats : g->n_rows)
                        : (int64_t)g->n_mats * ((g->n_rows + BM - 1) / BM);
    int cols = 0;
    for (int i = 0; i < g->n_parts; i++)
        cols += (g->part[i].rows + BN - 1) / BN;
    if (g->epilogue == CUDA_GATED)
        cols = (g->part[0].rows + BN / 2 - 1) / (BN / 2);
    if (tiles == 0)
        return cudaSuccess;
    bool vectors = aligned(g->x) && (!g->x_up || aligned(g->x_up)) && g->x_stride % 8 == 0 &&
                   g->x_mat % 8 == 0;
    if (g->part[0].layout != CUDA_ROWS)
        return launch_slabs(g, vectors, stream);
    gemm_kernel<<<dim3((unsigned)tiles, (unsigned)cols), THREADS, 0, (cudaStream_t)stream>>>(
        *g, vectors);
    return cudaGetLastError();
}
