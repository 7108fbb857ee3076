/* kernels/cuda/gemm_sm90_fp4.cu - the slab kernel for MXFP4 and NVFP4 weights.
 * Tile, Budget, Why: see gemm_sm90.cuh. */
#include "kernels/cuda/gemm_sm90.cuh"

int cuda_slabs_fp4(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    switch (g->part[0].codec) {
    case SLAB_MXFP4:
        return launch_codec<SLAB_MXFP4>(g, l, stream);
    default:
        return launch_codec<SLAB_NVFP4>(g, l, stream);
    }
}
