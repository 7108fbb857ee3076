/* kernels/cuda/kv.cu - new keys and values into their pages.
 * Tile    a block per row, a thread for 16 lanes of the keys or values of one head.
 * Budget  a row read once and written once: bandwidth, and for a few rows the launch, decides.
 * Why     16 lanes are two units of bf16, one of FP8 and a scaled block of NVFP4; pages.cuh has how
 *         they lie. The intrinsics give codes the bits of the CPU's. */
#include "kernels/cuda/pages.cuh"

namespace
{

constexpr int RUN = 16;

__device__ __forceinline__ void load_run(uint32_t v[RUN], const bf16 *from, int n)
{
    if (n >= RUN && (uintptr_t)from % 16 == 0) {
        const uint4 w[2] = {((const uint4 *)from)[0], ((const uint4 *)from)[1]};
        const uint32_t pairs[8] = {w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w};
#pragma unroll
        for (int i = 0; i < RUN; i++)
            v[i] = pairs[i / 2] >> i % 2 * 16 & 0xffffu;
        return;
    }
#pragma unroll
    for (int i = 0; i < RUN; i++)
        v[i] = i < n ? ((const uint16_t *)from)[i] : 0;
}

__device__ __forceinline__ float value(uint32_t bits)
{
    return __uint_as_float(bits << 16);
}

/* v[0], v[8], v[1], v[9] */
__device__ __forceinline__ uint32_t four_e4m3(const uint32_t *v, float scale)
{
    uint32_t w = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        w |= to_e4m3(__fdiv_rn(value(v[i / 2 + i % 2 * 8]), scale)) << 8 * i;
    return w;
}

/* backend.h, KV_NVFP4. */
__device__ __forceinline__ void store_nvfp4(uint8_t *codes, uint8_t *scale_of,
                                            const uint32_t v[RUN], float scale)
{
    uint32_t most = 0, w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < RUN; i++)
        most = max(most, v[i] & 0x7fffu);
    float over = __fdiv_rn(1.0f, scale);
    uint32_t coded = to_e4m3(__fmul_rn(over, __fmul_rn(value(most), 1.0f / 6.0f)));
    float by =
        coded == 0 ? 0.0f : __fdiv_rn(1.0f, __fmul_rn(from_e4m3(coded), __fdiv_rn(1.0f, over)));
#pragma unroll
    for (int i = 0; i < RUN; i++)
        w[i / 8] |= to_e2m1(__fmul_rn(value(v[i]), by)) << i % 8 * 4;
    *(uint2 *)codes = make_uint2(w[0], w[1]);
    *scale_of = (uint8_t)coded;
}

__global__ void __launch_bounds__(128)
    write_keys_kernel(const __grid_constant__ CudaCache c, const CudaListHead *list, const bf16 *k,
                      const bf16 *v, int64_t stride, int dim)
{
    CudaRow row = list_rows(list)[blockIdx.x];
    if (row.pos < 0)
        return;
    int page = list_pages(list)[row.pages + row.pos / KV_PAGE], at = row.pos % KV_PAGE;
    if (page < 0) /* no later step can see it */
        return;
    int runs = c.lanes / RUN, units = c.lanes / UNIT_LANES;
    int64_t half = c.head_bytes / 2;
    for (int i = threadIdx.x; i < 2 * c.n_kv_heads * runs; i += blockDim.x) {
        int run = i % runs, head = i / runs / 2;
        bool values = i / runs % 2;
        uint32_t x[RUN];
        load_run(x, (values ? v : k) + row.row * stride + (int64_t)head * dim + run * RUN,
                 dim - run * RUN);
        uint8_t *to =
            (uint8_t *)c.pool + page * c.page_bytes + head * c.head_bytes + (values ? half : 0);
        float scale = values ? c.kv.v_scale : c.kv.k_scale;
        if (c.kv.dtype == KV_BF16) {
            *(uint4 *)(to + unit_at(units, KV_PAGE, at, 2 * run)) = pack_unit(x);
            *(uint4 *)(to + unit_at(units, KV_PAGE, at, 2 * run + 1)) = pack_unit(x + UNIT_LANES);
        } else if (c.kv.dtype == KV_FP8) {
            ((uint4 *)to)[at * runs + (run ^ unit_exchange(runs, at))] =
                make_uint4(four_e4m3(x, scale), four_e4m3(x + 2, scale), four_e4m3(x + 4, scale),
                           four_e4m3(x + 6, scale));
        } else {
            store_nvfp4(to + (at * c.lanes + run * RUN) / 2,
                        to + KV_PAGE * c.lanes / 2 + at * runs + run, x, scale);
        }
    }
}

} // namespace

int cuda_write_keys_launch(const CudaCache *c, const CudaList *list, const void *k, const void *v,
                           int64_t stride, int dim, void *stream)
{
    if (list->n_rows > 0)
        write_keys_kernel<<<list->n_rows, 128, 0, (cudaStream_t)stream>>>(
            *c, list->head, (const bf16 *)k, (const bf16 *)v, stride, dim);
    return cudaGetLastError();
}
