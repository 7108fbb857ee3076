/* kernels/cuda/codes.cu - rows of activations rounded, encoded and decoded, as quant/row_format.h
 * writes it, operation by operation.
 * Tile    a block of 128 threads per row; a thread takes whole groups of 16, 32 or 128 values.
 * Budget  a row is read twice and written once: bandwidth.
 * Why     codes and scales have the bits of the CPU's; what is decoded is rounded once more, to
 *         bf16. The intrinsics keep products and quotients from being fused. */
#include "kernels/cuda/device.cuh"

namespace
{

struct Job {
    bf16 *y;
    const bf16 *x; /* NULL: codes are read */
    uint8_t *coded;
    int64_t y_stride, x_stride, coded_bytes;
    int width, group;
    RowFormat format;
    int64_t scales_at; /* of the groups' scales within an encoded row */
};

__device__ __forceinline__ float read(const Job &j, int64_t row, int i)
{
    return __bfloat162float(j.x[row * j.x_stride + i]);
}

__device__ __forceinline__ uint32_t magnitude(float v)
{
    return __float_as_uint(v) & 0x7fffffffu;
}

/* The largest magnitude of the block, as bits: a NaN counts above infinity. */
__device__ uint32_t row_most(const Job &j, int64_t row)
{
    __shared__ uint32_t part[4];
    uint32_t most = 0;
    for (int i = threadIdx.x; i < j.width; i += blockDim.x)
        most = max(most, magnitude(read(j, row, i)));
    for (int d = 16; d > 0; d /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    return max(max(part[0], part[1]), max(part[2], part[3]));
}

__device__ float row_scale(const Job &j, int64_t row)
{
    RowScheme scheme = j.format.scheme;
    if (scheme == ROWS_FP8_STATIC || scheme == ROWS_NVFP4_STATIC)
        return j.format.input_scale;
    if (scheme != ROWS_FP8_TOKEN && scheme != ROWS_NVFP4_TOKEN)
        return 1.0f;
    if (!j.x)
        return *(const float *)(j.coded + (row + 1) * j.coded_bytes - 4);
    float most = __uint_as_float(row_most(j, row));
    if (scheme == ROWS_NVFP4_TOKEN)
        return __fmul_rn(most, 1.0f / 2688.0f);
    float s = __fdiv_rn(most, 448.0f), least = 1.0f / (448.0f * 512.0f);
    return s < least ? least : s;
}

/* How a value of a group becomes a code, and what a code is worth. */
struct Group {
    float a, b;     /* code = Q(x * a), Q(x / a), or A(x * a / b) */
    float scale;    /* value = code * scale */
    uint32_t coded; /* the group's scale as it is stored */
};

__device__ Group group_of_most(const Job &j, float row, float most)
{
    Group g = {1.0f, 1.0f, row, 0};
    switch (j.format.scheme) {
    case ROWS_FP8_STATIC:
        g.a = __fdiv_rn(1.0f, row);
        break;
    case ROWS_FP8_TOKEN:
        g.a = row;
        break;
    case ROWS_FP8_GROUP: {
        float s = __fdiv_rn(most < 1e-10f ? 1e-10f : most, 448.0f);
        uint32_t bits = __float_as_uint(s);
        if (j.format.power_of_two && bits < 0x7f800000u)
            s = __uint_as_float((bits + 0x7fffffu) & 0x7f800000u);
        g.a = g.scale = s;
        g.coded = __float_as_uint(s);
        break;
    }
    case ROWS_NVFP4_STATIC: {
        float over = __fdiv_rn(1.0f, row);
        g.coded = to_e4m3(__fmul_rn(over, __fmul_rn(most, 1.0f / 6.0f)));
        float s = from_e4m3(g.coded);
        g.a = g.coded == 0 ? 0.0f : __fdiv_rn(1.0f, __fmul_rn(s, __fdiv_rn(1.0f, over)));
        g.scale = __fmul_rn(s, row);
        break;
    }
    case ROWS_NVFP4_TOKEN: {
        float e = row > 0.0f ? __fdiv_rn(1.0f, row) : 0.0f;
        if (__float_as_uint(e) == 0x7f800000u)
            e = 0.0f;
        g.coded = to_e4m3(__fdiv_rn(__fmul_rn(e, most), 6.0f));
        g.a = g.coded == 0 ? 0.0f : e; /* zeros keep their sign */
        g.b = g.coded == 0 ? 1.0f : from_e4m3(g.coded);
        g.scale = __fmul_rn(from_e4m3(g.coded), row);
        break;
    }
    default: { /* MXFP8: the next power of two, biased */
        uint32_t bits = __float_as_uint(__fdiv_rn(most, 448.0f));
        uint32_t b = bits <= 0x00400000u ? 0 : bits > 0x7f800000u ? 255 : (bits + 0x7fffffu) >> 23;
        g.coded = b == 255 && bits == 0x7f800000u ? 254 : b;
        g.a = g.coded == 255   ? __uint_as_float(0x7fc00000u)
              : g.coded == 254 ? __uint_as_float(0x00400000u)
                               : __uint_as_float((254 - g.coded) << 23);
        g.scale = from_e8m0(g.coded);
    }
    }
    return g;
}

__device__ Group group_of_code(const Job &j, float row, const uint8_t *scales, int index)
{
    Group g = {1.0f, 1.0f, row, 0};
    switch (j.format.scheme) {
    case ROWS_FP8_GROUP:
        g.scale = ((const float *)scales)[index];
        break;
    case ROWS_NVFP4_STATIC:
    case ROWS_NVFP4_TOKEN:
        g.scale = __fmul_rn(from_e4m3(scales[index]), row);
        break;
    case ROWS_MXFP8:
        g.scale = from_e8m0(scales[index]);
        break;
    default:
        break;
    }
    return g;
}

__device__ __forceinline__ bool is_fp4(const Job &j)
{
    return j.format.scheme == ROWS_NVFP4_STATIC || j.format.scheme == ROWS_NVFP4_TOKEN;
}

__device__ __forceinline__ uint32_t encode(const Job &j, const Group &g, float v)
{
    switch (j.format.scheme) {
    case ROWS_FP8_TOKEN:
    case ROWS_FP8_GROUP:
        return to_e4m3(__fdiv_rn(v, g.a));
    case ROWS_NVFP4_STATIC:
        return to_e2m1(__fmul_rn(v, g.a));
    case ROWS_NVFP4_TOKEN:
        return to_e2m1(__fdiv_rn(__fmul_rn(v, g.a), g.b));
    default:
        return to_e4m3(__fmul_rn(v, g.a));
    }
}

__device__ void code_group(const Job &j, int64_t row, float scale, int index)
{
    int first = index * j.group, n = min(j.group, j.width - first);
    uint8_t *codes = j.coded ? j.coded + row * j.coded_bytes : nullptr;
    uint8_t *scales = codes ? codes + j.scales_at : nullptr;
    Group g;
    if (j.x) {
        uint32_t most = 0;
        for (int i = 0; i < n; i++)
            most = max(most, magnitude(read(j, row, first + i)));
        g = group_of_most(j, scale, __uint_as_float(most));
        if (codes && j.format.scheme == ROWS_FP8_GROUP)
            ((uint32_t *)scales)[index] = g.coded;
        else if (codes && (is_fp4(j) || j.format.scheme == ROWS_MXFP8))
            scales[index] = (uint8_t)g.coded;
    } else {
        g = group_of_code(j, scale, scales, index);
    }
    bf16 *y = j.y ? j.y + row * j.y_stride + first : nullptr;
    if (is_fp4(j)) {
        for (int i = 0; i < 8; i++) { /* byte i holds values i and i + 8 */
            uint32_t lo, hi;
            if (j.x) {
                lo = encode(j, g, read(j, row, first + i));
                hi = encode(j, g, read(j, row, first + i + 8));
                if (codes)
                    codes[first / 2 + i] = (uint8_t)(lo | hi << 4);
            } else {
                lo = codes[first / 2 + i] & 15u;
                hi = codes[first / 2 + i] >> 4;
            }
            if (y) {
                y[i] = __float2bfloat16_rn(__fmul_rn(from_e2m1(lo), g.scale));
                y[i + 8] = __float2bfloat16_rn(__fmul_rn(from_e2m1(hi), g.scale));
            }
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        uint32_t code = j.x ? encode(j, g, read(j, row, first + i)) : codes[first + i];
        if (j.x && codes)
            codes[first + i] = (uint8_t)code;
        if (y)
            y[i] = __float2bfloat16_rn(__fmul_rn(from_e4m3(code), g.scale));
    }
}

__global__ void code_kernel(const __grid_constant__ Job j)
{
    int64_t row = blockIdx.x;
    float scale = row_scale(j, row);
    if (j.x == j.y && j.x)
        __syncthreads(); /* the row's own scale has seen all of it before any value changes */
    for (int i = threadIdx.x; i < (j.width + j.group - 1) / j.group; i += blockDim.x)
        code_group(j, row, scale, i);
    bool own = j.format.scheme == ROWS_FP8_TOKEN || j.format.scheme == ROWS_NVFP4_TOKEN;
    if (j.x && j.coded && own && threadIdx.x == 0)
        *(float *)(j.coded + (row + 1) * j.coded_bytes - 4) = scale;
}

} // namespace

int cuda_code_rows_launch(void *y, int64_t y_stride, const void *x, int64_t x_stride, void *coded,
                          int64_t coded_bytes, int n, int width, const RowFormat *format,
                          void *stream)
{
    if (n == 0)
        return cudaSuccess;
    bool fp4 = format->scheme == ROWS_NVFP4_STATIC || format->scheme == ROWS_NVFP4_TOKEN;
    int64_t codes = fp4 ? width / 2 : width;
    Job j = {(bf16 *)y,
             (const bf16 *)x,
             (uint8_t *)coded,
             y_stride,
             x_stride,
             coded_bytes,
             width,
             fp4                                ? 16
             : format->scheme == ROWS_MXFP8     ? 32
             : format->scheme == ROWS_FP8_GROUP ? 128
                                                : 16,
             *format,
             format->scheme == ROWS_FP8_GROUP ? (codes + 3) / 4 * 4 : codes};
    /* Gaps are zeros: equal rows are equal bytes. */
    if (x && coded) {
        cudaError_t err =
            cudaMemsetAsync(coded, 0, (size_t)(n * coded_bytes), (cudaStream_t)stream);
        if (err != cudaSuccess)
            return err;
    }
    code_kernel<<<n, 128, 0, (cudaStream_t)stream>>>(j);
    return cudaGetLastError();
}
