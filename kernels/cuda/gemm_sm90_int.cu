/* kernels/cuda/gemm_sm90_int.cu - the slab kernel for integer weights.
 * Tile, Budget, Why: see gemm_sm90.cuh. */
#include "kernels/cuda/gemm_sm90.cuh"

int cuda_slabs_int(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    switch (g->part[0].codec) {
    case SLAB_INT4:
        return launch_codec<SLAB_INT4>(g, l, stream);
    default:
        return launch_codec<SLAB_INT8>(g, l, stream);
    }
}
