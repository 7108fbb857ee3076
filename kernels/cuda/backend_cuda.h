/* kernels/cuda/backend_cuda.h - the CUDA backend, for the list of backends. It is in every build:
 * can_run says whether there is a plugin and a GPU. */
#ifndef MB_KERNELS_CUDA_BACKEND_CUDA_H
#define MB_KERNELS_CUDA_BACKEND_CUDA_H

#include "kernels/backend.h"

extern const BackendOps cuda_backend;

#endif
