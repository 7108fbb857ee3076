/* kernels/cuda/codes_fp8.cu - rows of activations in E4M3 codes as the FP8 tensor cores read them
 * (api.h, fp8_rows), with the arithmetic of quant/row_format.h.
 * Tile    a block of 128 threads per row; a thread takes 8 columns, so that 16 threads see a group of
 *         128, in turns of 1024 columns.
 * Budget  3 bytes per value, and another 2 from the cache where a row has one scale: bandwidth.
 * Why     codes and scales have the bits of the CPU's: the intrinsics keep products and quotients from
 *         being fused or replaced. */
#include "kernels/cuda/device.cuh"

namespace
{

constexpr int THREADS = 128, EACH = 8, GROUP = 128;

struct Job {
    uint8_t *coded;
    const bf16 *x;
    const int32_t *live;
    int64_t coded_bytes, x_stride;
    int width, padded; /* padded: to whole steps */
    RowFormat format;
    bool vectors;
};

/* Columns i .. i + 7, zeros past the end. */
__device__ __forceinline__ void load(const Job &j, const bf16 *row, int i, float (&v)[EACH])
{
    if (j.vectors && i + EACH <= j.width) {
        uint4 four = *(const uint4 *)(row + i);
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < EACH; k++)
            v[k] = __uint_as_float(words[k / 2] >> k % 2 * 16 << 16);
        return;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        v[k] = i + k < j.width ? __bfloat162float(row[i + k]) : 0.0f;
}

/* The largest magnitude, as bits: a NaN counts above infinity. */
__device__ __forceinline__ uint32_t most_of(const float (&v)[EACH])
{
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        most = max(most, __float_as_uint(v[k]) & 0x7fffffffu);
    return most;
}

__device__ __forceinline__ void store(uint8_t *to, const float (&v)[EACH], float by, bool divide)
{
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < EACH; k++)
        words[k / 4] |= to_e4m3(divide ? __fdiv_rn(v[k], by) : __fmul_rn(v[k], by)) << k % 4 * 8;
    *(uint2 *)to = make_uint2(words[0], words[1]);
}

__device__ float token_scale(const Job &j, const bf16 *row)
{
    __shared__ uint32_t part[THREADS / 32];
    uint32_t most = 0;
    for (int i = threadIdx.x * EACH; i < j.width; i += THREADS * EACH) {
        float v[EACH];
        load(j, row, i, v);
        most = max(most, most_of(v));
    }
    for (int d = 16; d > 0; d /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        most = max(most, part[i]);
    float s = __fdiv_rn(__uint_as_float(most), 448.0f), least = 1.0f / (448.0f * 512.0f);
    return s < least ? least : s;
}

__device__ __forceinline__ float group_scale(const Job &j, uint32_t most)
{
    for (int d = 8; d > 0; d /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
    float m = __uint_as_float(most), s = __fdiv_rn(m < 1e-10f ? 1e-10f : m, 448.0f);
    uint32_t bits = __float_as_uint(s);
    if (j.format.power_of_two && bits < 0x7f800000u)
        s = __uint_as_float((bits + 0x7fffffu) & 0x7f800000u);
    return s;
}

__global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ Job j)
{
    int64_t r = blockIdx.x;
    if (j.live && r >= *j.live)
        return;
    const bf16 *row = j.x + r * j.x_stride;
    uint8_t *codes = j.coded + r * j.coded_bytes;
    float *scales = (float *)(codes + j.padded);
    bool group = j.format.scheme == ROWS_FP8_GROUP, token = j.format.scheme == ROWS_FP8_TOKEN;
    int n_scales = group ? j.padded / GROUP : token ? 1 : 0;
    float by = token ? token_scale(j, row) : group ? 1.0f : __fdiv_rn(1.0f, j.format.input_scale);
    int turns = (j.padded + THREADS * EACH - 1) / (THREADS * EACH);
    for (int turn = 0; turn < turns; turn++) { /* all lanes, for the sake of their groups */
        int i = (turn * THREADS + (int)threadIdx.x) * EACH;
        float v[EACH];
        load(j, row, i, v);
        if (group)
            by = group_scale(j, most_of(v));
        if (i >= j.padded)
            continue;
        store(codes + i, v, by, group || token);
        if (group && i % GROUP == 0)
            scales[i / GROUP] = by;
    }
    if (token && threadIdx.x == 0)
        scales[0] = by;
    int rest = (int)(j.coded_bytes - j.padded) / 4 - n_scales;
    if ((int)threadIdx.x < rest)
        scales[n_scales + threadIdx.x] = 0.0f;
}

} // namespace

int cuda_fp8_rows_launch(void *coded, int64_t coded_bytes, const void *x, int64_t x_stride, int n,
                         const int32_t *live, int width, const RowFormat *format, void *stream)
{
    if (n == 0)
        return cudaSuccess;
    Job j = {(uint8_t *)coded,
             (const bf16 *)x,
             live,
             coded_bytes,
             x_stride,
             width,
             (width + GROUP - 1) / GROUP * GROUP,
             *format,
             (uintptr_t)x % 16 == 0 && x_stride % 8 == 0};
    rows_kernel<<<n, THREADS, 0, (cudaStream_t)stream>>>(j);
    return cudaGetLastError();
}
