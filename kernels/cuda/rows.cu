/* kernels/cuda/rows.cu - the operations that treat rows one by one.
 * Tile    a block of 256 threads per row, eight values a thread where rows begin at 16 bytes; a warp
 *         for each head of a norm.
 * Budget  each input read once and each output written once: bandwidth, and for a few rows the
 *         launch, decides.
 * Why     the order of a row's sum depends on its width alone, so a row gives the same bits in any
 *         batch. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{

__global__ void embed_kernel(float *h, const bf16 *table, const int32_t *ids, int64_t cols,
                             float scale)
{
    const bf16 *from = table + (int64_t)ids[blockIdx.x] * cols;
    float *to = h + (int64_t)blockIdx.x * cols;
    for (int64_t i = threadIdx.x; i < cols; i += blockDim.x)
        to[i] = __bfloat162float(from[i]) * scale;
}

/* The sum over all threads of a block, on all of them. */
__device__ __forceinline__ float block_sum(float v)
{
    __shared__ float part[32];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++)
        v += part[w];
    return v;
}

/* models.md 1.2. */
__device__ __forceinline__ float normed(float v, float w, NormKind kind)
{
    if (kind == NORM_LLAMA) /* variant A: rounded before the weight */
        v = __bfloat162float(__float2bfloat16_rn(v));
    return v * (kind == NORM_ZERO_CENTRED ? 1.0f + w : w);
}

constexpr int RUN = 8; /* values of a 16-byte access */

struct Run {
    float v[RUN];
};

/* Values at .. at+RUN-1 of a row that ends at end; zeros behind it. */
template <bool WHOLE> __device__ __forceinline__ Run load_run(const bf16 *p, int at, int end)
{
    Run r;
    if (WHOLE) {
        uint4 w = *(const uint4 *)(p + at);
        const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < RUN; i++)
            r.v[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    } else {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            r.v[i] = at + i < end ? __bfloat162float(p[at + i]) : 0.0f;
    }
    return r;
}

template <bool WHOLE> __device__ __forceinline__ Run load_run(const float *p, int at, int end)
{
    Run r;
    if (WHOLE) {
        *(float4 *)r.v = *(const float4 *)(p + at);
        *(float4 *)(r.v + 4) = *(const float4 *)(p + at + 4);
    } else {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            r.v[i] = at + i < end ? p[at + i] : 0.0f;
    }
    return r;
}

template <bool WHOLE> __device__ __forceinline__ void store_run(float *p, int at, int end, Run r)
{
    if (WHOLE) {
        *(float4 *)(p + at) = *(const float4 *)r.v;
        *(float4 *)(p + at + 4) = *(const float4 *)(r.v + 4);
    } else {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            if (at + i < end)
                p[at + i] = r.v[i];
    }
}

template <bool WHOLE> __device__ __forceinline__ void store_run(bf16 *p, int at, int end, Run r)
{
    if (WHOLE) {
        uint4 w;
        __nv_bfloat162 *pair = (__nv_bfloat162 *)&w;
#pragma unroll
        for (int i = 0; i < RUN / 2; i++)
            pair[i] = __floats2bfloat162_rn(r.v[2 * i], r.v[2 * i + 1]);
        *(uint4 *)(p + at) = w;
    } else {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            if (at + i < end)
                p[at + i] = __float2bfloat16_rn(r.v[i]);
    }
}

/* Sums do not depend on WHOLE: zeros add nothing. */
template <bool WHOLE>
__global__ void __launch_bounds__(256)
    add_norm_kernel(bf16 *y, float *h, const bf16 *delta, float scale, const float *weight,
                    int width, float eps, NormKind kind)
{
    int64_t row = (int64_t)blockIdx.x * width;
    float sum = 0;
    for (int i = threadIdx.x * RUN; i < width; i += blockDim.x * RUN) {
        Run v = load_run<WHOLE>(h + row, i, width);
        if (delta) {
            Run d = load_run<WHOLE>(delta + row, i, width);
#pragma unroll
            for (int j = 0; j < RUN; j++)
                v.v[j] = fmaf(scale, d.v[j], v.v[j]);
            store_run<WHOLE>(h + row, i, width, v);
        }
#pragma unroll
        for (int j = 0; j < RUN; j++)
            sum = fmaf(v.v[j], v.v[j], sum);
    }
    float r = 1.0f / sqrtf(block_sum(sum) / (float)width + eps);
    for (int i = threadIdx.x * RUN; i < width; i += blockDim.x * RUN) {
        Run v = load_run<WHOLE>(h + row, i, width), w = load_run<WHOLE>(weight, i, width);
#pragma unroll
        for (int j = 0; j < RUN; j++)
            v.v[j] = normed(v.v[j] * r, w.v[j], kind);
        store_run<WHOLE>(y + row, i, width, v);
    }
}

/* A group of width values for each warp. */
__global__ void __launch_bounds__(256)
    norm_kernel(bf16 *y, const bf16 *x, const float *weight, int64_t n, int n_groups, int width,
                int64_t stride, float eps, NormKind kind)
{
    int64_t group = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (group >= n)
        return;
    int64_t at = group / n_groups * stride + group % n_groups * width;
    float sum = 0;
    for (int i = lane; i < width; i += 32) {
        float v = __bfloat162float(x[at + i]);
        sum = fmaf(v, v, sum);
    }
    float r = 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
    for (int i = lane; i < width; i += 32)
        y[at + i] =
            __float2bfloat16_rn(normed(__bfloat162float(x[at + i]) * r, weight[i], kind));
}

__global__ void rope_kernel(bf16 *x, int64_t stride, int n_heads, int head_dim,
                            const int32_t *position, RopeSpec rope)
{
    int half = rope.rotary_dim / 2;
    const float *table = rope.table + (int64_t)position[blockIdx.x] * rope.rotary_dim;
    bf16 *row = x + (int64_t)blockIdx.x * stride;
    for (int i = threadIdx.x; i < n_heads * half; i += blockDim.x) {
        int lane = i % half;
        bf16 *head = row + (int64_t)(i / half) * head_dim;
        bf16 *p = rope.layout == ROPE_INTERLEAVED ? head + 2 * lane : head + lane;
        bf16 *q = rope.layout == ROPE_INTERLEAVED ? p + 1 : p + half;
        float a = __bfloat162float(*p), b = __bfloat162float(*q), c = table[lane],
              s = table[half + lane];
        *p = __float2bfloat16_rn(a * c - b * s);
        *q = __float2bfloat16_rn(b * c + a * s);
    }
}

template <bool WHOLE>
__global__ void __launch_bounds__(256)
    combine_kernel(bf16 *y, const bf16 *rows, const int32_t *slot, const float *weight,
                   const bf16 *plus, int top_k, int width)
{
    constexpr int AHEAD = 8; /* rows asked for before the first is added */
    const int32_t *at = slot + (int64_t)blockIdx.x * top_k;
    const float *w = weight + (int64_t)blockIdx.x * top_k;
    int64_t row = (int64_t)blockIdx.x * width;
    launch_next();
    launch_wait();
    for (int i = threadIdx.x * RUN; i < width; i += blockDim.x * RUN) {
        Run sum = {};
        for (int s = 0; s < top_k; s += AHEAD) {
            int from[AHEAD];
            Run v[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                from[k] = s + k < top_k ? at[s + k] : -1;
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (from[k] >= 0)
                    v[k] = load_run<WHOLE>(rows + (int64_t)from[k] * width, i, width);
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (from[k] >= 0)
#pragma unroll
                    for (int j = 0; j < RUN; j++)
                        sum.v[j] = fmaf(w[s + k], v[k].v[j], sum.v[j]);
        }
        if (plus) {
            Run v = load_run<WHOLE>(plus + row, i, width);
#pragma unroll
            for (int j = 0; j < RUN; j++)
                sum.v[j] += v.v[j];
        }
        store_run<WHOLE>(y + row, i, width, sum);
    }
}

__global__ void gate_kernel(bf16 *y, const bf16 *gate, int width)
{
    float sigmoid = 1.0f / (1.0f + expf(-__bfloat162float(gate[blockIdx.x])));
    bf16 *row = y + (int64_t)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        row[i] = __float2bfloat16_rn(__bfloat162float(row[i]) * sigmoid);
}

/* NaN stays NaN. */
__global__ void clamp_kernel(bf16 *x, int64_t stride, int width, float limit)
{
    bf16 *row = x + (int64_t)blockIdx.x * stride;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = __bfloat162float(row[i]);
        row[i] = __float2bfloat16_rn(v > limit ? limit : v < -limit ? -limit : v);
    }
}

__global__ void copy_kernel(bf16 *y, int64_t y_stride, int64_t y_head, const bf16 *x,
                            int64_t x_stride, int64_t x_head, const int32_t *row, int n_heads,
                            int width)
{
    const bf16 *from = x + (int64_t)(row ? row[blockIdx.x] : (int)blockIdx.x) * x_stride;
    bf16 *to = y + (int64_t)blockIdx.x * y_stride;
    for (int i = threadIdx.x; i < n_heads * width; i += blockDim.x)
        to[i / width * y_head + i % width] = from[i / width * x_head + i % width];
}

bool whole_runs(const void *a, const void *b, const void *c, const void *d, int width)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return all % 16 == 0 && width % RUN == 0;
}

} // namespace

int cuda_embed_launch(float *h, const void *table, const int32_t *ids, int n, int64_t cols,
                      float scale, void *stream)
{
    if (n > 0)
        embed_kernel<<<n, 256, 0, (cudaStream_t)stream>>>(h, (const bf16 *)table, ids, cols, scale);
    return cudaGetLastError();
}

int cuda_add_norm_launch(void *y, float *h, const void *delta, float scale, const float *weight,
                         int n, int width, float eps, NormKind kind, void *stream)
{
    int threads = width > 64 * RUN ? 256 : 64;
    auto kernel =
        whole_runs(y, h, delta, weight, width) ? add_norm_kernel<true> : add_norm_kernel<false>;
    if (n > 0)
        kernel<<<n, threads, 0, (cudaStream_t)stream>>>((bf16 *)y, h, (const bf16 *)delta, scale,
                                                        weight, width, eps, kind);
    return cudaGetLastError();
}

int cuda_norm_launch(void *y, const void *x, const float *weight, int n_rows, int n_groups,
                     int width, int64_t stride, float eps, NormKind kind, void *stream)
{
    int64_t n = (int64_t)n_rows * n_groups;
    if (n > 0)
        norm_kernel<<<blocks_of(n, 8), 256, 0, (cudaStream_t)stream>>>(
            (bf16 *)y, (const bf16 *)x, weight, n, n_groups, width, stride, eps, kind);
    return cudaGetLastError();
}

int cuda_rope_launch(void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                     const int32_t *position, const RopeSpec *rope, void *stream)
{
    if (n_rows > 0)
        rope_kernel<<<n_rows, 256, 0, (cudaStream_t)stream>>>((bf16 *)x, stride, n_heads, head_dim,
                                                              position, *rope);
    return cudaGetLastError();
}

int cuda_combine_launch(void *y, const void *rows, const int32_t *slot, const float *weight,
                        const void *plus, int n, int top_k, int width, void *stream)
{
    int threads = width > 64 * RUN ? 256 : 64;
    auto kernel =
        whole_runs(y, rows, plus, NULL, width) ? combine_kernel<true> : combine_kernel<false>;
    return n > 0 ? launch_early(kernel, (unsigned)n, threads, 0, stream, (bf16 *)y,
                                (const bf16 *)rows, slot, weight, (const bf16 *)plus, top_k, width)
                 : cudaSuccess;
}

int cuda_gate_rows_launch(void *y, const void *gate, int n, int width, void *stream)
{
    if (n > 0)
        gate_kernel<<<n, 256, 0, (cudaStream_t)stream>>>((bf16 *)y, (const bf16 *)gate, width);
    return cudaGetLastError();
}

int cuda_clamp_launch(void *x, int n_rows, int64_t stride, int width, float limit, void *stream)
{
    if (n_rows > 0)
        clamp_kernel<<<n_rows, 256, 0, (cudaStream_t)stream>>>((bf16 *)x, stride, width, limit);
    return cudaGetLastError();
}

int cuda_gather_launch(void *y, const void *x, const int32_t *row, int n, int64_t row_bytes,
                       void *stream)
{
    int64_t lanes = row_bytes / (int64_t)sizeof(bf16);
    return cuda_copy_lanes_launch(y, lanes, 0, x, lanes, 0, row, n, 1, (int)lanes, stream);
}

int cuda_copy_lanes_launch(void *y, int64_t y_stride, int64_t y_head, const void *x,
                           int64_t x_stride, int64_t x_head, const int32_t *row, int n, int n_heads,
                           int width, void *stream)
{
    if (n > 0 && width > 0)
        copy_kernel<<<n, 256, 0, (cudaStream_t)stream>>>(
            (bf16 *)y, y_stride, y_head, (const bf16 *)x, x_stride, x_head, row, n_heads, width);
    return cudaGetLastError();
}
