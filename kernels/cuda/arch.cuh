/* kernels/cuda/arch.cuh - which instructions a kernel may use: wgmma, TMA and their like exist in code
 * for sm_90a alone.
 *
 * A kernel that needs them stands in a file *_sm90.cu, its body between #ifdef CUDA_SM90A and #endif:
 * the symbol exists for every architecture, the instructions for one. Its launch wrapper asks
 * cuda_has_sm90a() and calls the portable kernel otherwise. tests/gpu/compile_portable.sh compiles
 * every file for the others. */
#ifndef MB_KERNELS_CUDA_ARCH_CUH
#define MB_KERNELS_CUDA_ARCH_CUH

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CUDA_SM90A 1
#endif

/* Whether the device that was opened runs code built for sm_90a: false on any other device, and
 * where the plugin was built for other architectures. Asks the device once, when it is opened. */
bool cuda_has_sm90a();

#endif
