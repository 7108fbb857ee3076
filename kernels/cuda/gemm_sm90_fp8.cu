/* kernels/cuda/gemm_sm90_fp8.cu - the slab kernel for 8-bit floating point weights.
 * Tile, Budget, Why: see gemm_sm90.cuh. */
#include "kernels/cuda/gemm_sm90.cuh"

int cuda_slabs_fp8(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    switch (g->part[0].codec) {
    case SLAB_E4M3:
        return launch_codec<SLAB_E4M3>(g, l, stream);
    case SLAB_MXFP8:
        return launch_codec<SLAB_MXFP8>(g, l, stream);
    default:
        return launch_codec<SLAB_BLOCK8>(g, l, stream);
    }
}
