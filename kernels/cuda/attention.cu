/* kernels/cuda/attention.cu - keys, values and latents into their pages, and queries against them.
 * Tile    one row and up to 8 query heads of one KV head per block of 4 warps; a page of 64
 *         positions at a time, two threads to a key for scores, a thread to a lane for values.
 * Budget  a decode row reads its keys and values once for each 8 heads: bandwidth. A prompt's rows
 *         read them from the cache in L2, and are then bound by float32 arithmetic.
 * Why     online softmax over pages of absolute position, ascending, and within one a fixed order:
 *         a row's bits depend neither on its chunk nor on the batch. */
#include "kernels/cuda/device.cuh"

namespace
{

constexpr int HEADS = 8, THREADS = 128;
static_assert(THREADS == 2 * KV_PAGE, "two threads to a key");

__device__ __forceinline__ const uint8_t *page_of(const CudaCache &c, int64_t page, int head)
{
    return (const uint8_t *)c.pool + page * c.page_bytes + head * c.head_bytes;
}

/* Where lane i of a row lies, in bytes. */
__device__ __forceinline__ int lane_at(const CudaCache &c, int i)
{
    int bytes = c.kv.dtype == KV_FP8 ? 1 : 2;
    return i < c.coded ? i * bytes : c.coded * bytes + (i - c.coded) * 2;
}

/* Eight lanes from i on, a multiple of 8. */
__device__ __forceinline__ void load_lanes(float v[8], const CudaCache &c, const uint8_t *row,
                                           int i, float scale)
{
    if (c.kv.dtype == KV_FP8 && i < c.coded) {
        uint2 w = *(const uint2 *)(row + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = from_e4m3((j < 4 ? w.x : w.y) >> j % 4 * 8 & 255u) * scale;
        return;
    }
    uint4 w = *(const uint4 *)(row + lane_at(c, i));
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[2 * j] = __uint_as_float(words[j] << 16);
        v[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    }
}

__device__ __forceinline__ float load_value(const CudaCache &c, const uint8_t *row, int i)
{
    if (c.kv.dtype == KV_FP8)
        return from_e4m3(row[i]) * c.kv.v_scale;
    return __bfloat162float(((const bf16 *)row)[i]);
}

/* RUN: lanes of the output for each thread. */
template <int RUN>
__global__ void __launch_bounds__(THREADS) attention_kernel(const __grid_constant__ CudaAttention a)
{
    extern __shared__ float q[]; /* [HEADS][lanes] */
    __shared__ float weight[HEADS][KV_PAGE], factor[HEADS], total[HEADS];
    const CudaCache &c = a.cache;
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int per_kv = a.n_heads / c.n_kv_heads, runs = (per_kv + HEADS - 1) / HEADS;
    int kv_head = blockIdx.y / runs, first = (int)(blockIdx.y % runs) * HEADS;
    int n = per_kv - first < HEADS ? per_kv - first : HEADS, head = kv_head * per_kv + first;
    CudaRow row = c.rows[blockIdx.x];
    if (row.pos < 0)
        return;
    int64_t at = a.by_row ? row.row : (int)blockIdx.x;
    const int32_t *pages = c.pages + row.pages;

    int q_dim = a.q_split + a.q_rest;
    const bf16 *from = (const bf16 *)a.q + at * a.q_stride + (int64_t)head * q_dim;
    for (int i = tid; i < HEADS * c.lanes; i += THREADS) {
        int h = i / c.lanes, l = i % c.lanes;
        int source = l < a.q_split                            ? l
                     : l >= c.coded && l - c.coded < a.q_rest ? a.q_split + l - c.coded
                                                              : -1;
        q[i] = h < n && source >= 0 ? __bfloat162float(from[h * q_dim + source]) * a.scale : 0.0f;
    }

    /* Warp w keeps the running maximum and sum of heads w and w + 4. */
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, acc[HEADS][RUN] = {};
    int start = a.window > 0 && row.pos >= a.window ? row.pos - a.window + 1 : 0;
    for (int page = start / KV_PAGE; page <= row.pos / KV_PAGE; page++) {
        int lo = start > page * KV_PAGE ? start - page * KV_PAGE : 0;
        int hi = row.pos + 1 - page * KV_PAGE < KV_PAGE ? row.pos + 1 - page * KV_PAGE : KV_PAGE;
        const uint8_t *keys = page_of(c, pages[page], kv_head);
        __syncthreads();

        int key = tid / 2;
        float score[HEADS] = {};
        if (key >= lo && key < hi) {
            const uint8_t *k_row = keys + key * c.row_bytes;
            for (int l = tid % 2 * 8; l < c.lanes; l += 16) {
                float k[8];
                load_lanes(k, c, k_row, l, c.kv.k_scale);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < n) {
                        const float *p = q + h * c.lanes + l;
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
                weight[h][key] = key >= lo && key < hi ? score[h] : -INFINITY;
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

        const uint8_t *values = keys + c.values_offset;
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < n)
#pragma unroll
                for (int r = 0; r < RUN; r++)
                    acc[h][r] *= factor[h];
        for (int j = lo; j < hi; j++) {
            float v[RUN];
#pragma unroll
            for (int r = 0; r < RUN; r++) {
                int l = tid + r * THREADS;
                v[r] = l < a.out_dim ? load_value(c, values + j * c.row_bytes, l) : 0.0f;
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
        float most = a.sinks ? fmaxf(top[i], a.sinks[head + h]) : top[i], by = expf(top[i] - most);
        factor[h] = by;
        total[h] = sum[i] * by + (a.sinks ? expf(a.sinks[head + h] - most) : 0.0f);
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
                    out[h * a.out_dim + l] = __float2bfloat16_rn(acc[h][r] * factor[h] / total[h]);
            }
}

__device__ __forceinline__ void store_lane(const CudaCache &c, uint8_t *row, int i, float v,
                                           float scale)
{
    if (c.kv.dtype == KV_FP8 && i < c.coded)
        row[i] = (uint8_t)to_e4m3(__fdiv_rn(v, scale));
    else
        *(bf16 *)(row + lane_at(c, i)) = __float2bfloat16_rn(v);
}

/* A block per row; pages that no later step can see are not there. */
__global__ void write_keys_kernel(const __grid_constant__ CudaCache c, const bf16 *k, const bf16 *v,
                                  int64_t stride, int dim)
{
    CudaRow row = c.rows[blockIdx.x];
    int page = row.pos < 0 ? -1 : c.pages[row.pages + row.pos / KV_PAGE];
    if (page < 0)
        return;
    for (int i = threadIdx.x; i < c.n_kv_heads * c.lanes; i += blockDim.x) {
        int head = i / c.lanes, l = i % c.lanes;
        int64_t from = row.row * stride + (int64_t)head * dim + l;
        uint8_t *to = (uint8_t *)page_of(c, page, head) + row.pos % KV_PAGE * c.row_bytes;
        store_lane(c, to, l, l < dim ? __bfloat162float(k[from]) : 0.0f, c.kv.k_scale);
        store_lane(c, to + c.values_offset, l, l < dim ? __bfloat162float(v[from]) : 0.0f,
                   c.kv.v_scale);
    }
}

__global__ void write_latents_kernel(const __grid_constant__ CudaCache c, const bf16 *rows,
                                     int64_t stride, int latent_dim, int rope_dim)
{
    CudaRow row = c.rows[blockIdx.x];
    int page = row.pos < 0 ? -1 : c.pages[row.pages + row.pos / KV_PAGE];
    if (page < 0)
        return;
    const bf16 *from = rows + row.row * stride;
    uint8_t *to = (uint8_t *)page_of(c, page, 0) + row.pos % KV_PAGE * c.row_bytes;
    for (int l = threadIdx.x; l < c.lanes; l += blockDim.x) {
        int source = l < c.coded ? (l < latent_dim ? l : -1)
                                 : (l - c.coded < rope_dim ? latent_dim + l - c.coded : -1);
        store_lane(c, to, l, source < 0 ? 0.0f : __bfloat162float(from[source]), c.kv.k_scale);
    }
}

} // namespace

int cuda_attention_launch(const CudaAttention *a, void *stream)
{
    const CudaCache *c = &a->cache;
    int per_kv = a->n_heads / c->n_kv_heads;
    dim3 grid((unsigned)c->n_rows, (unsigned)(c->n_kv_heads * ((per_kv + HEADS - 1) / HEADS)));
    size_t shared = (size_t)HEADS * (size_t)c->lanes * sizeof(float);
    if (c->n_rows == 0)
        return cudaSuccess;
    if (a->out_dim <= THREADS)
        attention_kernel<1><<<grid, THREADS, shared, (cudaStream_t)stream>>>(*a);
    else if (a->out_dim <= 2 * THREADS)
        attention_kernel<2><<<grid, THREADS, shared, (cudaStream_t)stream>>>(*a);
    else
        attention_kernel<4><<<grid, THREADS, shared, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int cuda_write_keys_launch(const CudaCache *c, const void *k, const void *v, int64_t stride,
                           int dim, void *stream)
{
    if (c->n_rows > 0)
        write_keys_kernel<<<c->n_rows, 256, 0, (cudaStream_t)stream>>>(
            *c, (const bf16 *)k, (const bf16 *)v, stride, dim);
    return cudaGetLastError();
}

int cuda_write_latents_launch(const CudaCache *c, const void *rows, int64_t stride, int latent_dim,
                              int rope_dim, void *stream)
{
    if (c->n_rows > 0)
        write_latents_kernel<<<c->n_rows, 256, 0, (cudaStream_t)stream>>>(
            *c, (const bf16 *)rows, stride, latent_dim, rope_dim);
    return cudaGetLastError();
}
