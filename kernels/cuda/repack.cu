/* kernels/cuda/repack.cu - rows of codes and scales, as they are stored, into slabs (slabs.h).
 * Tile    a thread per 16 bytes of a record, and one per byte pair of its scales; before that a warp
 *         per row, which looks for what scales of slabs cannot say.
 * Budget  each code read once and written once, at load.
 * Why     on the device, since the order is costly for a processor and rows arrive faster than it
 *         could keep up with. A row whose powers of two leave the range that the kernel multiplies
 *         by is moved as a whole, and its row_scale the other way; a row with a NaN anywhere gives
 *         NaN whatever it meets, so its row_scale is one. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_sm90.h"

namespace
{

constexpr int E8M0_MOST_FP4 = 128; /* code of 2^1, times 2^126: the largest that bf16 has */
constexpr int E8M0_MOST_FP8 = 134; /* likewise, times 2^120 */

struct Job {
    CudaRepack r;
    CudaPart part;
    int chunks; /* records of a plane */
};

__device__ __forceinline__ bool is_e8m0(const Job &j)
{
    return j.part.codec == SLAB_MXFP4 || j.part.codec == SLAB_MXFP8;
}

/* A warp per row: its shift and its row_scale. */
__global__ void rows_kernel(const __grid_constant__ Job j)
{
    int row = (int)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
    const CudaPart &p = j.part;
    if (row >= j.r.rows)
        return;
    const uint8_t *codes = j.r.codes + row * j.r.codes_row,
                  *scales = j.r.scales + row * j.r.scales_row;
    bool nan = false;
    int most = 0;
    if (is_e8m0(j))
        for (int i = lane; i < p.n_groups; i += 32) {
            nan = nan || scales[i] == 255;
            most = max(most, (int)scales[i]);
        }
    if (p.codec == SLAB_NVFP4)
        for (int i = lane; i < p.n_groups; i += 32)
            nan = nan || (scales[i] & 127) == 127;
    if (p.kind == CUDA_E4M3)
        for (int i = lane; i < j.r.k; i += 32)
            nan = nan || (codes[i] & 127) == 127;
    for (int d = 16; d > 0; d /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
    nan = __any_sync(0xffffffffu, nan);
    if (lane != 0)
        return;
    int up = most - (p.codec == SLAB_MXFP4 ? E8M0_MOST_FP4 : E8M0_MOST_FP8);
    up = is_e8m0(j) && up > 0 ? up : 0;
    j.r.shift[row] = up;
    if (p.codec == SLAB_NVFP4)
        up = SLAB_NVFP4_LESS;
    float s = (j.r.own_scales ? j.r.row_scale[row] : j.r.whole_scale) * __uint_as_float((uint32_t)(up / 2 + 127) << 23) *
              __uint_as_float((uint32_t)(up - up / 2 + 127) << 23);
    j.r.row_scale[row] = nan ? __uint_as_float(0x7fc00000u) : s;
}

struct Source { /* a row's codes, or nothing */
    const uint8_t *codes, *scales;
};

/* Code of input k, in its own bits; what is not there gives 0. */
__device__ uint32_t code_at(const Job &j, const Source &s, int plane, int k)
{
    const CudaPart &p = j.part;
    if (!s.codes || k >= j.r.k)
        return p.kind == CUDA_INT4 ? 8 : p.kind == CUDA_INT8 ? 128 : 0;
    switch (p.kind) {
    case CUDA_BF16:
        return ((const uint16_t *)s.codes)[(int64_t)plane * j.r.k_padded + k];
    case CUDA_E4M3: {
        return s.codes[k];
    }
    case CUDA_INT8:
        return s.codes[k] ^ 128u;
    default: {
        uint32_t code = s.codes[k / 2] >> k % 2 * 4 & 15u;
        if (p.codec == SLAB_NVFP4) {
            uint32_t scale = s.scales[k / p.group];
            code = (scale & 127u) == 0 ? code & 8u : code ^ (scale >> 4 & 8u);
        }
        return code;
    }
    }
}

/* Where the code of a step's a_i has its bits in the words of two steps, the even step's low: see
 * slabs.h. odd: of the step. high: of the half. */
__device__ __forceinline__ uint64_t place_e2m1(uint32_t code, int i, int odd, int high)
{
    uint64_t sign = code >> 3, m = code & 7u;
    int own = 32 * odd + 16 * high, other = 32 * odd + 16 * !high;
    switch (i) {
    case 0:
        return sign << (own + 15) | m << (own + 6);
    case 1:
        return sign << (own + 11) | m << (own + 2);
    case 2:
        return sign << (own + 5) | m << (other + 12);
    }
    if (!odd) /* 0, 1, 9 and of the odd step's word 0 */
        return sign << (16 * high + 9) | (m & 3u) << 16 * high | m >> 2 << (32 + 16 * high);
    return sign << (33 + 16 * high) | (m & 1u) << (16 * !high + 10) |
           m >> 1 << (32 + 16 * !high + 9);
}

/* E4M3, without sign and not 0, as 5 bits of exponent and 3 of mantissa: below the smallest normal
 * number exponents go on. */
__device__ __forceinline__ uint32_t scale_of_nvfp4(uint32_t code)
{
    uint32_t e = code >> 3 & 15u, m = code & 7u;
    if (e > 0)
        return (e + 2) << 3 | m;
    if (m >= 4)
        return 2u << 3 | (m & 3u) << 1;
    return m >= 2 ? 1u << 3 | (m & 1u) << 2 : 0u;
}

__global__ void records_kernel(const __grid_constant__ Job j)
{
    const CudaPart &p = j.part;
    int pieces = slab_pieces(p.codec), scales = slab_scales(p.codec);
    int per_record = (pieces + 1) * SLAB_THREADS; /* the last SLAB_THREADS: scales */
    bool paired = p.layout == CUDA_PAIRED;
    int slab_rows = paired ? SLAB_ROWS / 2 : SLAB_ROWS;
    int64_t n =
        (int64_t)((j.r.rows + slab_rows - 1) / slab_rows) * j.chunks * j.r.planes * per_record;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int at = (int)(i % per_record), thread = at % SLAB_THREADS, piece = at / SLAB_THREADS;
        int64_t record = i / per_record;
        int chunk = (int)(record % (j.chunks * j.r.planes)), plane = chunk / j.chunks;
        int slab = (int)(record / (j.chunks * j.r.planes));
        uint8_t *out = (uint8_t *)p.codes + j.r.mat * p.codes_mat +
                       (int64_t)(j.r.first / slab_rows + slab) * p.codes_row +
                       (int64_t)chunk * slab_record_bytes(p.codec);
        /* This thread's two rows; of a paired slab only one is in this part. */
        int k0 = chunk % j.chunks * SLAB_K, pair = thread / 4;
        if (piece == pieces)
            pair = thread % 32;
        Source s[2];
        int rows[2];
        for (int h = 0; h < 2; h++) {
            int row = paired ? slab * 32 + pair / 8 * 8 + pair % 8
                             : slab * 64 + pair / 8 * 16 + h * 8 + pair % 8;
            bool here = row < j.r.rows && !(paired && p.half != h);
            rows[h] = here ? row : -1;
            s[h].codes = here ? j.r.codes + row * j.r.codes_row : nullptr;
            s[h].scales = here ? j.r.scales + row * j.r.scales_row : nullptr;
        }
        bool mine[2] = {!paired || p.half == 0, !paired || p.half == 1};
        if (piece < pieces) {
            uint32_t *to = (uint32_t *)(out + (piece * SLAB_THREADS + thread) * 16);
            int together = p.kind == CUDA_E2M1 ? 2 : 1; /* words of which a code may have bits */
            for (int w = 0; w < 4; w += together) {
                uint64_t value = 0, keep = 0; /* keep: bits of the other part */
                for (int i = 0; i < 4 * together; i++) {
                    int word = piece * 4 + w + i / 4, step = word / pieces, a = i % 4;
                    if (a / (4 / pieces) != word % pieces)
                        continue;
                    int k = k0 + step * 16 + thread % 4 * 2 + a / 2 * 8, h = a % 2;
                    uint32_t even = code_at(j, s[h], plane, k),
                             odd = code_at(j, s[h], plane, k + 1);
                    uint64_t bits, mask;
                    if (p.kind == CUDA_BF16) {
                        bits = even | odd << 16;
                        mask = 0xffffffffu;
                    } else if (p.kind == CUDA_E2M1) {
                        bits = place_e2m1(even, a, i / 4, 0) | place_e2m1(odd, a, i / 4, 1);
                        mask = place_e2m1(15, a, i / 4, 0) | place_e2m1(15, a, i / 4, 1);
                    } else if (p.kind == CUDA_INT4) {
                        bits = (even | odd << 16) << 4 * a;
                        mask = 0x000f000fu << 4 * a;
                    } else if (p.kind == CUDA_E4M3) {
                        bits = (even | odd << 16) << (a % 2 ? 0 : 8);
                        mask = a % 2 ? 0x00ff00ffu : 0xff00ff00u;
                    } else {
                        bits = (even | odd << 8) << (a % 2 ? 16 : 0);
                        mask = a % 2 ? 0xffff0000u : 0x0000ffffu;
                    }
                    if (mine[h])
                        value |= bits;
                    else
                        keep |= mask;
                }
                for (int i = 0; i < together; i++) {
                    uint32_t kept = (uint32_t)(keep >> 32 * i);
                    to[w + i] = (kept ? to[w + i] & kept : 0) | (uint32_t)(value >> 32 * i);
                }
            }
        } else if (thread < 32) {
            int groups = SLAB_K / slab_group(p.codec),
                bytes = scales / (2 * (groups > 0 ? groups : 1));
            uint8_t *to = out + pieces * SLAB_THREADS * 16 + pair * scales;
            for (int gr = 0; gr < groups && scales > 0; gr++)
                for (int h = 0; h < 2; h++) {
                    if (!mine[h])
                        continue;
                    int at_k = k0 + gr * slab_group(p.codec), from = at_k / p.group;
                    from = from < p.n_groups ? from : p.n_groups - 1;
                    uint8_t *place = to + (gr * 2 + h) * bytes;
                    if (p.codec == SLAB_BLOCK8) {
                        *(float *)place =
                            rows[h] < 0 ? 1.0f : load_scale(s[h].scales, from, p.scale_type);
                    } else if (p.codec == SLAB_INT4 || p.codec == SLAB_INT8) {
                        *(uint16_t *)place =
                            rows[h] < 0 ? 0 : ((const uint16_t *)s[h].scales)[from];
                    } else if (p.codec == SLAB_NVFP4) {
                        *place = rows[h] < 0 ? 0 : (uint8_t)scale_of_nvfp4(s[h].scales[from]);
                    } else {
                        int more = p.codec == SLAB_MXFP4 ? 126 : 120;
                        int code = rows[h] < 0 ? 0 : s[h].scales[from] - j.r.shift[rows[h]] + more;
                        *place = (uint8_t)(code < 0 ? 0 : code > 254 ? 254 : code);
                    }
                }
        }
    }
}

} // namespace

int cuda_repack_launch(const CudaRepack *r, void *stream)
{
    if (r->rows == 0)
        return cudaSuccess;
    Job j = {*r, *r->part, (r->k + SLAB_K - 1) / SLAB_K};
    rows_kernel<<<blocks_of(r->rows, 8), 256, 0, (cudaStream_t)stream>>>(j);
    records_kernel<<<1024, 256, 0, (cudaStream_t)stream>>>(j);
    return cudaGetLastError();
}
