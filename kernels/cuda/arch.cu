/* kernels/cuda/arch.cu - see arch.cuh.
 * Tile    none: a constant, one value for each architecture that the plugin was built for.
 * Budget  4 bytes to the host, once in a process.
 * Why     a compute capability of 9.0 does not tell whether sm_90a is in this build. */
#include "kernels/cuda/arch.cuh"

#include <cuda_runtime.h>

#ifdef CUDA_SM90A
__constant__ int built_for_sm90a = 1;
#else
__constant__ int built_for_sm90a = 0;
#endif

bool cuda_has_sm90a()
{
    static int known = -1;
    int found = 0;
    if (known >= 0)
        return known == 1;
    if (cudaMemcpyFromSymbol(&found, built_for_sm90a, sizeof found) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    known = found;
    return found == 1;
}
