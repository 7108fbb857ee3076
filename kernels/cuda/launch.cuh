/* kernels/cuda/launch.cuh - kernels that begin while the launch before them ends. */
#ifndef MB_KERNELS_CUDA_LAUNCH_CUH
#define MB_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/arch.cuh"

#include <cuda_runtime.h>

/* Until the launches before this one are over, and what they wrote is there. */
static __device__ __forceinline__ void launch_wait()
{
#ifdef CUDA_SM90A
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The launch after this one may begin where it finds room, if it is an early one. */
static __device__ __forceinline__ void launch_next()
{
#ifdef CUDA_SM90A
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The kernel's blocks come to the device while the launch before it on the stream, whatever that is,
 * ends. All its threads call launch_wait before they read what a launch may have written, or write
 * what one may touch: then what follows the kernel also follows all that was before it. */
template <typename... PARAMS>
static inline cudaError_t launch_early(void (*kernel)(PARAMS...), dim3 grid, int threads,
                                       size_t shared_bytes, void *stream, const PARAMS &...params)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &early;
    config.numAttrs = cuda_has_sm90a() ? 1 : 0;
    cudaError_t err = cudaLaunchKernelEx(&config, kernel, params...);
    return err != cudaSuccess ? err : cudaGetLastError();
}

#endif
