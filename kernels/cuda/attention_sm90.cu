/* kernels/cuda/attention_sm90.cu - a prompt's rows against keys and values by wgmma.
 * Tile    192 pairs of a row and a query head per block of three groups of four warps, 64 to each, 128
 *         of heads above 128 lanes in two; otherwise as attention.cu. Of one more group a warp has the
 *         copy engine bring pages, as many as fit, and three bring jobs with their queries one ahead
 *         and decode pages of codes.
 * Budget  4 * 192 * 64 * head_dim flops of a page from L2, at the rate of wgmma, and 192 * 64 powers of
 *         two, which at 64 lanes take as long as the products. A page of E4M3 codes takes the busiest of
 *         the three warps 292 instructions at 64 lanes, 562 at 128.
 * Why     only the products of tiles differ from the portable kernel, and a sum of products has the
 *         same bits by either instruction (tests/gpu/test_cuda_attention.c compares them). Weights are
 *         made while the values of the page before are added. */
#include "kernels/cuda/attention_sm90.h"

#include "kernels/cuda/attention_sm90.cuh"

cudaError_t cuda_attention_sm90(const CudaAttention *a, int per_block, cudaStream_t stream)
{
    CudaAttention b = *a;
    int lanes = a->cache.lanes;
    bool coded = a->cache.kv.dtype != KV_BF16;
    if (lanes <= 128)
        b.tile += CUDA_TILE_SIZES;
    Params p = params_of(b, per_block);
    return lanes == 64    ? (coded ? launch_prompt<64, 64, CODED_PAGES>(p, stream)
                                   : launch_prompt<64, 64, PAGES>(p, stream))
           : lanes == 128 ? (coded ? launch_prompt<128, 128, CODED_PAGES>(p, stream)
                                   : launch_prompt<128, 128, PAGES>(p, stream))
                          : (coded ? launch_prompt<256, 256, CODED_PAGES>(p, stream)
                                   : launch_prompt<256, 256, PAGES>(p, stream));
}
