/* kernels/cuda/gemm_sm90_bf16.cu - the slab kernel for bf16 weights.
 * Tile, Budget, Why: see gemm_sm90.cuh. */
#include "kernels/cuda/gemm_sm90.cuh"

int cuda_slabs_bf16(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    return launch_codec<SLAB_BF16>(g, l, stream);
}
