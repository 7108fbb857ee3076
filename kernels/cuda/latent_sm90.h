/* kernels/cuda/latent_sm90.h - latent attention by wgmma, in a file of its own. */
#ifndef MB_KERNELS_CUDA_LATENT_SM90_H
#define MB_KERNELS_CUDA_LATENT_SM90_H

#include "kernels/cuda/api.h"

#include <cuda_runtime.h>

/* At most 8 blocks of latent lanes, and one of rope lanes. */
cudaError_t cuda_latent_sm90(const CudaLatentAttention *a, cudaStream_t stream);

#endif
