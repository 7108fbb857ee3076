/* kernels/cuda/attention_sm90.h - a prompt's tiles by wgmma, in a file of its own. */
#ifndef MB_KERNELS_CUDA_ATTENTION_SM90_H
#define MB_KERNELS_CUDA_ATTENTION_SM90_H

#include "kernels/cuda/api.h"

#include <cuda_runtime.h>

/* a->tile is chosen, tiles of it are there, and heads have 64, 128 or 256 lanes; bits are those of the
 * portable kernel. */
cudaError_t cuda_attention_sm90(const CudaAttention *a, int per_block, cudaStream_t stream);

#endif
