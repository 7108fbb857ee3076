/* kernels/cuda/gemm_sm90.h - launches of the slab kernel, one function for each file of codecs. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_H
#define MB_KERNELS_CUDA_GEMM_SM90_H

#include "kernels/cuda/api.h"

/* The exponent that SLAB_NVFP4's scales lack: with it, and with the 2^126 that E2M1's codes lack,
 * products are 2^8 too small, which row_scale makes up for. */
enum { SLAB_NVFP4_BIAS = 236, SLAB_NVFP4_LESS = 8 };

/* Slabs that hold a part's rows: in a paired bank with those of the other part. */
#ifdef __CUDACC__
static __host__ __device__ __forceinline__ int slab_count(const CudaPart *p)
{
    int rows = p->layout == CUDA_PAIRED ? SLAB_ROWS / 2 : SLAB_ROWS;
    return (p->rows + rows - 1) / rows;
}
#endif

typedef enum SlabShape {
    SLAB_FEWEST, /* 64 outputs x 16 rows for each of up to two teams of a block */
    SLAB_FEW,    /* 128 x 16, four */
    SLAB_NARROW, /* 128 x 64, two */
    SLAB_WIDE,   /* 256 x 128, one */
    SLAB_PAIR    /* 256 x up to 256, one for two multiprocessors */
} SlabShape;

typedef struct SlabLaunch {
    SlabShape shape;
    bool vectors; /* results are bf16, 16 bytes at a time, and of SwiGLU or nothing */
    int n_sm, shared_bytes;
    int64_t most_tiles;
    int rows; /* of a tile of SLAB_PAIR, at most 256 */
} SlabLaunch;

int cuda_slabs_bf16(const CudaGemm *g, const SlabLaunch *l, void *stream);
int cuda_slabs_fp4(const CudaGemm *g, const SlabLaunch *l, void *stream);
int cuda_slabs_fp8(const CudaGemm *g, const SlabLaunch *l, void *stream);
int cuda_slabs_int(const CudaGemm *g, const SlabLaunch *l, void *stream);

#endif
