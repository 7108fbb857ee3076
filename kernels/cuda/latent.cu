/* kernels/cuda/latent.cu - latents into their pages, and latent queries against them.
 * Tile    one row and up to 8 query heads per block of 4 warps; a page of 64 positions at a time, two
 *         threads to a key for scores, a thread to a lane for values.
 * Budget  a row reads its latents once for each 8 heads: bandwidth of the L2, and float32 arithmetic.
 * Why     online softmax over pages of absolute position, ascending, and within one a fixed order:
 *         a row's bits depend neither on its chunk nor on the batch. */
#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/latent_sm90.h"
#include "kernels/cuda/pages.cuh"

namespace
{

constexpr int HEADS = 8, THREADS = 128;
static_assert(THREADS == 2 * KV_PAGE, "two threads to a key");

__device__ __forceinline__ const uint8_t *page_of(const CudaLatents &c, int64_t page)
{
    return (const uint8_t *)c.pool + page * c.page_bytes;
}

/* Block b of a page, in bf16. */
__device__ __forceinline__ const uint8_t *block_of(const CudaLatents &c, const uint8_t *page, int b)
{
    int coded = c.kv.dtype == KV_FP8 ? c.latent_blocks : 0;
    return page + (2 * b - (b < coded ? b : coded)) * (KV_PAGE * 64);
}

/* Eight lanes of block b, from a multiple of 8 on. */
__device__ __forceinline__ void load_lanes(float v[8], const CudaLatents &c, const uint8_t *page,
                                           int row, int b, int i)
{
    if (c.kv.dtype == KV_FP8 && b < c.latent_blocks) {
        int runs = 4 * c.latent_blocks, u = b * 4 + i / 16;
        const uint8_t *from = page + (row * runs + (u ^ unit_exchange(runs, row))) * UNIT_BYTES;
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = from_e4m3(from[2 * j + i / 8 % 2]) * c.kv.k_scale;
        return;
    }
    uint4 w = *(const uint4 *)(block_of(c, page, b) + row * 128 + ((i / 8 ^ row) & 7) * UNIT_BYTES);
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[2 * j] = __uint_as_float(words[j] << 16);
        v[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    }
}

/* One lane of the latent. */
__device__ __forceinline__ float load_value(const CudaLatents &c, const uint8_t *page, int row,
                                            int i)
{
    if (c.kv.dtype == KV_FP8) {
        int runs = 4 * c.latent_blocks;
        return from_e4m3(page[(row * runs + (i / 16 ^ unit_exchange(runs, row))) * UNIT_BYTES +
                              i % 8 * 2 + i / 8 % 2]) *
               c.kv.k_scale;
    }
    return __bfloat162float(*(const bf16 *)(block_of(c, page, i / 64) + row * 128 +
                                            ((i / 8 ^ row) & 7) * UNIT_BYTES + i % 8 * 2));
}

/* RUN: lanes of the output for each thread. */
template <int RUN>
__global__ void __launch_bounds__(THREADS)
    attention_kernel(const __grid_constant__ CudaLatentAttention a)
{
    extern __shared__ float q[]; /* [HEADS][lanes], lanes in blocks as they lie in pages */
    __shared__ float weight[HEADS][KV_PAGE], factor[HEADS], total[HEADS];
    const CudaLatents &c = a.cache;
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int head = (int)blockIdx.y * HEADS, n = min(HEADS, a.n_heads - head);
    CudaRow row = list_rows(c.list.head)[blockIdx.x];
    if (row.pos < 0)
        return;
    int64_t at = blockIdx.x;
    const int32_t *pages = list_pages(c.list.head) + row.pages;

    int q_dim = a.q_split + a.q_rest, lanes = (c.latent_blocks + c.rope_blocks) * 64,
        rope = c.latent_blocks * 64;
    const bf16 *from = (const bf16 *)a.q + at * a.q_stride + (int64_t)head * q_dim;
    for (int i = tid; i < HEADS * lanes; i += THREADS) {
        int h = i / lanes, l = i % lanes;
        int source = l < a.q_split                      ? l
                     : l >= rope && l - rope < a.q_rest ? a.q_split + l - rope
                                                        : -1;
        q[i] = h < n && source >= 0 ? __bfloat162float(from[h * q_dim + source]) * a.scale : 0.0f;
    }

    /* Warp w keeps the running maximum and sum of heads w and w + 4. */
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, acc[HEADS][RUN] = {};
    for (int page = 0; page <= row.pos / KV_PAGE; page++) {
        int hi = row.pos + 1 - page * KV_PAGE < KV_PAGE ? row.pos + 1 - page * KV_PAGE : KV_PAGE;
        const uint8_t *latents = page_of(c, pages[page]);
        __syncthreads();

        int key = tid / 2;
        float score[HEADS] = {};
        if (key < hi) {
            for (int l = tid % 2 * 8; l < lanes; l += 16) {
                float k[8];
                load_lanes(k, c, latents, key, l / 64, l % 64);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < n) {
                        const float *p = q + h * lanes + l;
#pragma unroll
                        for (int j = 0; j < 8; j++)
                            score[h] = fmaf(k[j], p[j], score[h]);
                    }
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            score[h] += __shfl_xor_sync(0xffffffffu, score[h], 1);
            if (tid % 2 == 0)
                weight[h][key] = key < hi ? score[h] : -INFINITY;
        }
        __syncthreads();

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int h = warp + 4 * i;
            if (h >= n)
                continue;
            float s0 = weight[h][lane], s1 = weight[h][lane + 32];
            float most = fmaxf(top[i], warp_max(fmaxf(s0, s1)));
            float by = expf(top[i] - most);
            s0 = expf(s0 - most);
            s1 = expf(s1 - most);
            sum[i] = fmaf(sum[i], by, warp_sum(s0 + s1));
            top[i] = most;
            weight[h][lane] = s0;
            weight[h][lane + 32] = s1;
            if (lane == 0)
                factor[h] = by;
        }
        __syncthreads();

#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < n)
#pragma unroll
                for (int r = 0; r < RUN; r++)
                    acc[h][r] *= factor[h];
        for (int j = 0; j < hi; j++) {
            float v[RUN];
#pragma unroll
            for (int r = 0; r < RUN; r++) {
                int l = tid + r * THREADS;
                v[r] = l < a.out_dim ? load_value(c, latents, j, l) : 0.0f;
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                if (h < n)
#pragma unroll
                    for (int r = 0; r < RUN; r++)
                        acc[h][r] = fmaf(weight[h][j], v[r], acc[h][r]);
        }
    }

    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int h = warp + 4 * i;
        if (h >= n || lane != 0)
            continue;
        total[h] = sum[i];
    }
    __syncthreads();
    bf16 *out = (bf16 *)a.out + at * a.out_stride + (int64_t)head * a.out_dim;
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (h < n)
#pragma unroll
            for (int r = 0; r < RUN; r++) {
                int l = tid + r * THREADS;
                if (l < a.out_dim)
                    out[h * a.out_dim + l] = __float2bfloat16_rn(acc[h][r] / total[h]);
            }
}

__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float by)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(__uint_as_float(pair << 16) * by,
                                             __uint_as_float(pair & 0xffff0000u) * by);
    return *(const uint32_t *)&v;
}

__device__ __forceinline__ uint4 scaled_unit(uint4 w, float by)
{
    return make_uint4(scaled_pair(w.x, by), scaled_pair(w.y, by), scaled_pair(w.z, by),
                      scaled_pair(w.w, by));
}

/* A block per row, a thread for 16 lanes; pages that no later step can see are not there. */
__global__ void write_latents_kernel(const __grid_constant__ CudaLatents c, const bf16 *rows,
                                     int64_t stride, int latent_dim, int rope_dim)
{
    CudaRow row = list_rows(c.list.head)[blockIdx.x];
    int number = row.pos < 0 ? -1 : list_pages(c.list.head)[row.pages + row.pos / KV_PAGE];
    if (number < 0)
        return;
    int at = row.pos % KV_PAGE, runs = 4 * c.latent_blocks;
    uint8_t *page = (uint8_t *)page_of(c, number);
    for (int i = threadIdx.x; i < 4 * (c.latent_blocks + c.rope_blocks); i += blockDim.x) {
        bool rope = i >= runs;
        int lane = (rope ? i - runs : i) * 16, n = (rope ? rope_dim : latent_dim) - lane;
        const bf16 *from = rows + row.row * stride + (rope ? latent_dim : 0) + lane;
        float v[16];
        for (int l = 0; l < 16; l++)
            v[l] = l < n ? __bfloat162float(from[l]) : 0.0f;
        if (!rope && c.kv.dtype == KV_FP8) {
            uint32_t w[4] = {};
            for (int l = 0; l < 16; l++)
                w[l % 8 / 2] |= to_e4m3(__fdiv_rn(v[l], c.kv.k_scale)) << (l % 2 * 2 + l / 8) * 8;
            *(uint4 *)(page + (at * runs + (i ^ unit_exchange(runs, at))) * UNIT_BYTES) =
                make_uint4(w[0], w[1], w[2], w[3]);
            continue;
        }
        for (int half = 0; half < 2; half++) {
            uint32_t w[4];
            for (int l = 0; l < 4; l++) {
                __nv_bfloat162 pair =
                    __floats2bfloat162_rn(v[half * 8 + 2 * l], v[half * 8 + 2 * l + 1]);
                w[l] = *(const uint32_t *)&pair;
            }
            *(uint4 *)((uint8_t *)block_of(c, page, i / 4) + at * 128 +
                       ((i % 4 * 2 + half ^ at) & 7) * UNIT_BYTES) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* A block per page, a thread for 16 lanes: rows in memory, of bf16. Positions that nobody has written
 * yet have anything. */
__global__ void read_latents_kernel(bf16 *rows, const __grid_constant__ CudaLatents c,
                                    int first_page, int dim)
{
    int runs = 4 * c.latent_blocks;
    int64_t at = blockIdx.x;
    const uint8_t *page = page_of(c, list_pages(c.list.head)[first_page + at]);
    for (int i = threadIdx.x; i < KV_PAGE * runs; i += blockDim.x) {
        int r = i / runs, u = i % runs;
        uint4 v[2];
        if (c.kv.dtype == KV_FP8) {
            uint4 w = ((const uint4 *)page)[r * runs + (u ^ unit_exchange(runs, r))];
            v[0] = scaled_unit(low_from_e4m3(w), c.kv.k_scale);
            v[1] = scaled_unit(high_from_e4m3(w), c.kv.k_scale);
        } else {
            const uint8_t *from = block_of(c, page, u / 4) + r * 128;
#pragma unroll
            for (int half = 0; half < 2; half++)
                v[half] = *(const uint4 *)(from + ((u % 4 * 2 + half ^ r) & 7) * UNIT_BYTES);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (u * 16 + half * 8 < dim)
                *(uint4 *)(rows + (at * KV_PAGE + r) * dim + u * 16 + half * 8) = v[half];
    }
}

} // namespace

int cuda_latent_attention_launch(const CudaLatentAttention *a, void *stream)
{
    dim3 grid((unsigned)a->cache.list.n_rows, (unsigned)((a->n_heads + HEADS - 1) / HEADS));
    int blocks = a->cache.latent_blocks + a->cache.rope_blocks;
    size_t shared = (size_t)HEADS * (size_t)blocks * 64 * sizeof(float);
    if (grid.x == 0)
        return cudaSuccess;
    if (!a->portable && cuda_has_sm90a() && a->cache.latent_blocks <= 8 &&
        a->cache.rope_blocks == 1)
        return cuda_latent_sm90(a, (cudaStream_t)stream);
    if (a->out_dim <= THREADS)
        attention_kernel<1><<<grid, THREADS, shared, (cudaStream_t)stream>>>(*a);
    else if (a->out_dim <= 2 * THREADS)
        attention_kernel<2><<<grid, THREADS, shared, (cudaStream_t)stream>>>(*a);
    else
        attention_kernel<4><<<grid, THREADS, shared, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int cuda_write_latents_launch(const CudaLatents *c, const void *rows, int64_t stride,
                              int latent_dim, int rope_dim, void *stream)
{
    if (c->list.n_rows > 0)
        write_latents_kernel<<<c->list.n_rows, 64, 0, (cudaStream_t)stream>>>(
            *c, (const bf16 *)rows, stride, latent_dim, rope_dim);
    return cudaGetLastError();
}

int cuda_read_latents_launch(void *rows, const CudaLatents *c, int first_page, int n_pages, int dim,
                             void *stream)
{
    if (dim % 8 != 0)
        return cudaErrorInvalidValue;
    if (n_pages > 0)
        read_latents_kernel<<<n_pages, 256, 0, (cudaStream_t)stream>>>((bf16 *)rows, *c, first_page,
                                                                       dim);
    return cudaGetLastError();
}
