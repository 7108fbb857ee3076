/* kernels/cuda/attention_sm90.cu - a prompt's rows against keys and values by wgmma.
 * Tile    192 pairs of a row and a query head per block of three warpgroups, 64 to each, and one more
 *         that feeds them; 128 of heads above 128 lanes. Otherwise as attention.cu.
 * Budget  4 * 192 * 64 * head_dim flops of a page from L2, at the rate of wgmma, and 192 * 64 powers of
 *         two; one group's weights are made while the other's products run.
 * Why     only the products of tiles differ from the portable kernel, and a sum of products has the
 *         same bits by either instruction (tests/gpu/test_cuda_attention.c compares them). */
#include "kernels/cuda/attention_sm90.h"

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

template <int HD> struct GroupRows : Rows<1, HD, true, 4> {
    using Base = Rows<1, HD, true, 4>;
    using Base::o;
    using Base::queries;
    using Base::sum;
    static constexpr int FEEDERS = 4, TILE = Base::TILE;

    __device__ __forceinline__ void load(const Params &p, const Job &j, int first)
    {
        int barrier = 1 + threadIdx.x / 128;
        meet<128>(barrier); /* the other warps have read their queries, too */
        Base::load(p, j, first);
        proxy_fence();
        meet<128>(barrier);
    }

    __device__ __forceinline__ void fence()
    {
        proxy_fence();
    }

    __device__ __forceinline__ void give_registers()
    {
        registers_down<24>();
    }

    __device__ __forceinline__ void take_registers()
    {
        registers_up<HD == 256 ? 240 : 160>(); /* of 168 or 128 that all began with */
    }

    __device__ __forceinline__ void score(float s[1][8][4], uint32_t keys)
    {
#ifdef CUDA_SM90A
        float(&d)[32] = *reinterpret_cast<float(*)[32]>(&s[0][0][0]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HD / 16; k++)
            wgmma_rows_by_rows(d, rows_descriptor(queries + k / 4 * TILE * 128 + k % 4 * 32),
                               rows_descriptor(keys + k / 4 * KV_PAGE * 128 + k % 4 * 32), k > 0);
        wgmma_commit();
        wgmma_end(d);
#endif
    }

    __device__ __forceinline__ void add(const uint32_t w[1][4][4], uint32_t values, int n_keys)
    {
        if (n_keys < KV_PAGE) { /* what lies behind them may be anything */
            Base::add(w, values, n_keys);
            return;
        }
#ifdef CUDA_SM90A
        constexpr int N = HD == 64 ? 32 : 64, BLOCK = KV_PAGE * 128; /* sums of an instruction */
        float(&all)[HD / 2] = *reinterpret_cast<float(*)[HD / 2]>(&o[0][0][0]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int n = 0; n < HD / 2; n += N)
                wgmma_by_columns(*reinterpret_cast<float(*)[N]>(&all[n]), w[0][k],
                                 columns_descriptor(values + n / 32 * BLOCK + k * 16 * 128, BLOCK));
        wgmma_commit();
#pragma unroll
        for (int k = 0; k < 4; k++)
            mma(sum[0], w[0][k], ONES, ONES);
        wgmma_end(all);
#endif
    }
};

} // namespace

cudaError_t cuda_attention_sm90(const CudaAttention *a, int per_block, cudaStream_t stream)
{
    CudaAttention b = *a;
    if (a->cache.lanes <= 128)
        b.tile += CUDA_TILE_KINDS / 2;
    Params p = params_of(b, per_block);
    return a->cache.lanes == 64    ? launch_attention<GroupRows<64>, 12, 1>(p, 4, stream)
           : a->cache.lanes == 128 ? launch_attention<GroupRows<128>, 12, 1>(p, 4, stream)
                                   : launch_attention<GroupRows<256>, 8, 1>(p, 3, stream);
}
