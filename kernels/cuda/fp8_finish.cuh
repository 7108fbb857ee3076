/* kernels/cuda/fp8_finish.cuh - what becomes of the sums of a tile of gemm_fp8_sm90.cu: scales that
 * hold for all inputs, bias, activation, and results as bf16 or as codes again. */
#ifndef MB_KERNELS_CUDA_FP8_FINISH_CUH
#define MB_KERNELS_CUDA_FP8_FINISH_CUH

#include "kernels/cuda/wgmma.cuh"

namespace
{

/* An 8 x 8 matrix of 16-bit values, of which a lane holds row lane / 4, columns lane % 4 * 2 and the
 * next, turned. */
__device__ __forceinline__ uint32_t turn(uint32_t v)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
    return v;
}

struct Tile {
    int mat, row, n;          /* rows row .. row+n-1 of one expert; n <= N */
    int part, out, part_rows; /* outputs from out on, of part_rows of the part */
};

#ifdef CUDA_SM90A

__device__ __forceinline__ bool gated(const CudaFp8Gemm &g)
{
    return g.epilogue == CUDA_GATED;
}

__device__ __forceinline__ float sigmoid_of(float v)
{
    return __fdividef(1.0f, 1.0f + __expf(-v));
}

__device__ __forceinline__ float tanh_of(float v)
{
    float e = __expf(2.0f * fabsf(v)); /* infinite: 1 */
    return fabsf(v) < 0.01f ? v - v * v * v * (1.0f / 3.0f)
                            : copysignf(1.0f - __fdividef(2.0f, 1.0f + fminf(e, 1e30f)), v);
}

enum class What { PLAIN, RELU2, SWIGLU, SITU };

template <What WHAT> __device__ __forceinline__ float activate(const ActSpec &s, float g, float u)
{
    if (WHAT == What::SITU) {
        u = s.limit < INFINITY ? s.limit * tanh_of(__fdividef(u, s.limit)) : u;
        return s.beta * tanh_of(__fdividef(g, s.beta)) * sigmoid_of(g) * u;
    }
    /* NaN stays NaN, which fminf would hide. */
    g = g > s.limit ? s.limit : g;
    u = u > s.limit ? s.limit : u < -s.limit ? -s.limit : u;
    return g * sigmoid_of(s.alpha * g) * (u + s.beta);
}

__device__ __forceinline__ uint32_t pair_of(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}

__device__ __forceinline__ uint32_t codes_of(float a, float b) /* a in the low byte */
{
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

template <What WHAT> __device__ __forceinline__ float squared(float v)
{
    return WHAT != What::RELU2 ? v : v > 0.0f ? v * v : v * 0.0f;
}

struct Place { /* of a warp in the tile; the scales of the tile's rows and
                  tokens */
    int consumer, warp, lane;
    const float *rows, *tokens;
};

/* Where a warp's outputs go: y of the first output of token 0, bytes from a
 * token to the next. */
struct Target {
    uint8_t *y;
    int64_t pitch;
    int n;
};

__device__ __forceinline__ Target target(const CudaFp8Gemm &g, const Tile &t, int out)
{
    int size = g.y_codes ? 1 : 2;
    int64_t at = (int64_t)t.row * g.y_stride + g.part[t.part].first_row + out;
    return {(uint8_t *)g.y + at * size, g.y_stride * size, t.n};
}

/* Codes between the last output and y_fill are zeros: what the next product
 * takes for inputs. */
__device__ __forceinline__ void put_zeros(const Target &to, int lane)
{
    for (int token = lane / 4; token < to.n; token += 8)
        ((uint32_t *)(to.y + token * to.pitch))[lane % 4] = 0;
}

/* --- tiles whose tokens are the columns of the matrix instruction --- */

/* Of the first of 8 rows' 16 outputs in pairs, the one that a lane has: 4 a +
 * c. */
__device__ __forceinline__ int place_of(int lane)
{
    return lane / 8 * 4 + lane / 4 % 2;
}

/* Two tokens' outputs, of 16: lo from place_of on, and hi two further. */
template <bool CODES>
__device__ __forceinline__ void put_four(const Target &to, float scale, int lane, int j,
                                         const float lo[2], const float hi[2])
{
    int token = 8 * j + lane / 4;
    uint8_t *y = to.y + token * to.pitch;
    if (CODES) {
        uint32_t both =
            codes_of(lo[0] * scale, hi[0] * scale) | codes_of(lo[1] * scale, hi[1] * scale) << 16;
        both = __byte_perm(turn(both), 0, 0x3120);
        if (token < to.n)
            ((uint32_t *)y)[lane % 4] = both;
    } else {
        uint2 v = {turn(pair_of(lo[0], lo[1])), turn(pair_of(hi[0], hi[1]))};
        if (token < to.n)
            ((uint2 *)y)[lane % 4] = v;
    }
}

/* The same for 8 outputs of gate and up rows. */
template <bool CODES>
__device__ __forceinline__ void put_two(const Target &to, float scale, int lane, int j,
                                        const float v[2])
{
    int token = 8 * j + lane / 4;
    uint8_t *y = to.y + token * to.pitch;
    if (CODES) {
        uint32_t both = codes_of(v[0] * scale, 0) | codes_of(v[1] * scale, 0) << 16;
        both = __byte_perm(turn(both), 0, 0x4420);
        if (token < to.n)
            ((uint16_t *)y)[lane % 4] = (uint16_t)both;
    } else {
        uint32_t both = turn(pair_of(v[0], v[1]));
        if (token < to.n)
            ((uint32_t *)y)[lane % 4] = both;
    }
}

/* The scales of a warp's rows. */
__device__ __forceinline__ void row_factors(const CudaFp8Gemm &g, const Place &p, float (&w)[2])
{
    for (int half = 0; half < 2; half++)
        w[half] = p.rows[(p.consumer * 4 + p.warp) * 16 + half * 8 + p.lane / 4] * g.x_scale;
}

/* A warp's 8 outputs of gate and up. Rows of a part are multiples of 16. */
template <int N, What WHAT, bool CODES>
__device__ __forceinline__ void finish_gated(const CudaFp8Gemm &g, const Tile &t, const Place &p,
                                             const float (&acc)[N / 2])
{
    float w[2], bias[2] = {};
    int out = t.out + p.consumer * 32 + p.warp * 8;
    Target to = target(g, t, out);
    if (out >= t.part_rows) {
        if (out < g.y_fill && p.warp % 2 == 0)
            put_zeros(to, p.lane);
        return;
    }
    row_factors(g, p, w);
    if (g.bias)
        for (int half = 0; half < 2; half++)
            bias[half] = g.bias[t.mat * g.bias_mat + g.part[half].first_row + out + p.lane / 4];
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 s = *(const float2 *)(p.tokens + 8 * j + p.lane % 4 * 2);
        const float *a = acc + 4 * j;
        float v[2] = {
            activate<WHAT>(g.act, fmaf(a[0] * s.x, w[0], bias[0]), fmaf(a[2] * s.x, w[1], bias[1])),
            activate<WHAT>(g.act, fmaf(a[1] * s.y, w[0], bias[0]),
                           fmaf(a[3] * s.y, w[1], bias[1]))};
        put_two<CODES>(to, g.y_scale, p.lane, j, v);
    }
}

/* A warp's 16 outputs. */
template <int N, What WHAT, bool CODES>
__device__ __forceinline__ void finish_plain(const CudaFp8Gemm &g, const Tile &t, const Place &p,
                                             const float (&acc)[N / 2])
{
    float w[2], bias[2] = {};
    int out = t.out + p.consumer * 64 + p.warp * 16;
    Target to = target(g, t, out);
    if (out >= t.part_rows) {
        if (out < g.y_fill)
            put_zeros(to, p.lane);
        return;
    }
    row_factors(g, p, w);
    if (g.bias)
        for (int half = 0; half < 2; half++)
            bias[half] = g.bias[t.mat * g.bias_mat + g.part[t.part].first_row + out +
                                place_of(p.lane) + half * 2];
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 s = *(const float2 *)(p.tokens + 8 * j + p.lane % 4 * 2);
        float v[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i / 2][i % 2] =
                squared<WHAT>(fmaf(acc[4 * j + i] * (i % 2 ? s.y : s.x), w[i / 2], bias[i / 2]));
        put_four<CODES>(to, g.y_scale, p.lane, j, v[0], v[1]);
    }
}

/* --- tiles whose tokens are the rows: 64 for each consumer, and 256 weight
 * rows in two halves --- */

/* The four sums of token half i (8 rows apart) that become outputs 4 q .. 4 q +
 * 3 of 16, from columns first and second of the instruction's runs of 8. */
__device__ __forceinline__ void take_four(float (&v)[4], const float *acc, int first, int second,
                                          int i, float token, const float *rows, float by,
                                          float4 bias)
{
    float2 a = *(const float2 *)(rows + 8 * first), b = *(const float2 *)(rows + 8 * second);
    v[0] = fmaf(acc[4 * first + 2 * i] * token, a.x * by, bias.x);
    v[1] = fmaf(acc[4 * first + 2 * i + 1] * token, a.y * by, bias.y);
    v[2] = fmaf(acc[4 * second + 2 * i] * token, b.x * by, bias.z);
    v[3] = fmaf(acc[4 * second + 2 * i + 1] * token, b.y * by, bias.w);
}

template <bool CODES>
__device__ __forceinline__ void put_row(const Target &to, float scale, int token, int lane,
                                        const float (&v)[4])
{
    uint8_t *y = to.y + token * to.pitch;
    if (token >= to.n)
        return;
    if (CODES)
        ((uint32_t *)y)[lane % 4] =
            codes_of(v[0] * scale, v[1] * scale) | codes_of(v[2] * scale, v[3] * scale) << 16;
    else
        ((uint2 *)y)[lane % 4] = make_uint2(pair_of(v[0], v[1]), pair_of(v[2], v[3]));
}

template <What WHAT, bool CODES>
__device__ __forceinline__ void finish_wide_as(const CudaFp8Gemm &g, const Tile &t, const Place &p,
                                               const float (&acc)[2][64])
{
    constexpr bool GATED = WHAT == What::SWIGLU || WHAT == What::SITU;
    int q = p.lane % 4, token = (p.consumer * 4 + p.warp) * 16 + p.lane / 4;
    const float scale[2] = {p.tokens[token], p.tokens[token + 8]};
    const float *bias = g.bias ? g.bias + t.mat * g.bias_mat + 4 * q : nullptr;
#pragma unroll
    for (int n = 0; n < (GATED ? 8 : 16); n++) { /* 16 outputs each */
        int half = GATED ? n / 4 : n / 8, group = GATED ? n % 4 : n % 8, out = t.out + n * 16;
        Target to = target(g, t, out);
        bool live = out < t.part_rows;
        if (!live && out >= g.y_fill)
            break;
        const float *rows = p.rows + half * 128 + 2 * q;
        float4 b = {}, b_up = {};
        if (bias && live) {
            b = *(const float4 *)(bias + g.part[t.part].first_row + out);
            if (GATED)
                b_up = *(const float4 *)(bias + g.part[1].first_row + out);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v[4], u[4];
            if (GATED) {
                take_four(v, acc[half], 2 * group, 2 * group + 8, i, scale[i], rows, g.x_scale, b);
                take_four(u, acc[half], 2 * group + 1, 2 * group + 9, i, scale[i], rows, g.x_scale,
                          b_up);
            } else {
                take_four(v, acc[half], 2 * group, 2 * group + 1, i, scale[i], rows, g.x_scale, b);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float made = GATED ? activate<WHAT>(g.act, v[k], u[k]) : squared<WHAT>(v[k]);
                v[k] = live ? made : 0.0f;
            }
            put_row<CODES>(to, g.y_scale, token + 8 * i, p.lane, v);
        }
    }
}

/* --- either --- */

template <int N, What WHAT, bool CODES>
__device__ __forceinline__ void finish_as(const CudaFp8Gemm &g, const Tile &t, const Place &p,
                                          const float (&acc)[1][N / 2])
{
    if constexpr (WHAT == What::SWIGLU || WHAT == What::SITU)
        finish_gated<N, WHAT, CODES>(g, t, p, acc[0]);
    else
        finish_plain<N, WHAT, CODES>(g, t, p, acc[0]);
}

template <int N, What WHAT, bool CODES>
__device__ __forceinline__ void finish_as(const CudaFp8Gemm &g, const Tile &t, const Place &p,
                                          const float (&acc)[2][N / 2])
{
    finish_wide_as<WHAT, CODES>(g, t, p, acc);
}

template <int N, int BOXES>
__device__ __forceinline__ void finish(const CudaFp8Gemm &g, const Tile &t, const Place &p,
                                       const float (&acc)[BOXES][N / 2])
{
    bool codes = g.y_codes, situ = g.act.kind == ACT_SITU;
    if (gated(g) && !situ && codes)
        finish_as<N, What::SWIGLU, true>(g, t, p, acc);
    else if (gated(g) && !situ)
        finish_as<N, What::SWIGLU, false>(g, t, p, acc);
    else if (gated(g) && codes)
        finish_as<N, What::SITU, true>(g, t, p, acc);
    else if (gated(g))
        finish_as<N, What::SITU, false>(g, t, p, acc);
    else if (g.epilogue == CUDA_RELU2 && codes)
        finish_as<N, What::RELU2, true>(g, t, p, acc);
    else if (g.epilogue == CUDA_RELU2)
        finish_as<N, What::RELU2, false>(g, t, p, acc);
    else
        finish_as<N, What::PLAIN, false>(g, t, p, acc);
}

#endif

} // namespace

#endif
