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
__device__ __forceinline__ uint4 load(const Job &j, const bf16 *row, int i)
{
    if (j.vectors && i + EACH <= j.width)
        return *(const uint4 *)(row + i);
    uint4 four = {0, 0, 0, 0};
    bf16 *v = (bf16 *)&four;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (i + k < j.width)
            v[k] = row[i + k];
    return four;
}

/* The largest magnitude, as bits of float32: a NaN counts above infinity. */
__device__ __forceinline__ uint32_t most_of(uint4 v)
{
    uint32_t two = __vmaxu2(__vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                            __vmaxu2(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu));
    return max(two << 16, two & 0xffff0000u);
}

/* v / by of finite numbers with by > 0, over = 1 / by. Quotients from 2^-11 on, below which codes are
 * zeros, are those of a division: one step of Newton's behind a product is off by less than half a
 * unit. */
__device__ __forceinline__ float quotient(float v, float by, float over)
{
    float q = __fmul_rn(v, over);
    return copysignf(__fmaf_rn(__fmaf_rn(-q, by, v), over, q), v);
}

/* Codes of x / by, or of x * over. */
__device__ __forceinline__ uint2 codes_of(uint4 x, float by, float over, bool divide)
{
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t pairs[4] = {};
    bool numbers = most_of(x) < 0x7f800000u && __float_as_uint(by) < 0x7f800000u;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float a = __uint_as_float(words[k] << 16), b = __uint_as_float(words[k] & 0xffff0000u);
        if (numbers) {
            float2 v = divide ? make_float2(quotient(a, by, over), quotient(b, by, over))
                              : make_float2(__fmul_rn(a, over), __fmul_rn(b, over));
            pairs[k] = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
        } else { /* codes of NaNs keep their signs */
            pairs[k] = to_e4m3(divide ? __fdiv_rn(a, by) : __fmul_rn(a, over)) |
                       to_e4m3(divide ? __fdiv_rn(b, by) : __fmul_rn(b, over)) << 8;
        }
    }
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

__device__ float token_scale(const Job &j, const bf16 *row)
{
    __shared__ uint32_t part[THREADS / 32];
    uint32_t most = 0;
    for (int i = threadIdx.x * EACH; i < j.width; i += THREADS * EACH)
        most = max(most, most_of(load(j, row, i)));
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
    float by = token ? token_scale(j, row) : group ? 1.0f : j.format.input_scale;
    float over = __fdiv_rn(1.0f, by);
    int turns = (j.padded + THREADS * EACH - 1) / (THREADS * EACH), i = threadIdx.x * EACH;
    uint4 next = load(j, row, i);
    for (int turn = 0; turn < turns; turn++, i += THREADS * EACH) {
        uint4 x = next; /* the next turn's are on their way meanwhile */
        if (turn + 1 < turns)
            next = load(j, row, i + THREADS * EACH);
        if (group) { /* all lanes, for the sake of their groups */
            by = group_scale(j, most_of(x));
            over = __frcp_rn(by);
        }
        if (i >= j.padded)
            continue;
        *(uint2 *)(codes + i) = codes_of(x, by, over, group || token);
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
