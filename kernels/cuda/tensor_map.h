/* kernels/cuda/tensor_map.h - tensor maps, by which Hopper's copy engine finds boxes in device memory.
 * Functions return a CUDA error. */
#ifndef MB_KERNELS_CUDA_TENSOR_MAP_H
#define MB_KERNELS_CUDA_TENSOR_MAP_H

#include <cudaTypedefs.h>

typedef PFN_cuTensorMapEncodeTiled_v12000 TensorMapEncode;

/* The driver's function that makes them; asks for it once. */
int cuda_tensor_map_encode(TensorMapEncode *out);

/* bf16 rows, stride values apart, in boxes of box_cols values (128 bytes of shared memory, in which
 * 16-byte pieces p of row r lie at p ^ r % 8; or 64, at p ^ r / 2 % 4) x box_rows. */
int cuda_rows_map(CUtensorMap *out, const void *rows, int64_t cols, int64_t stride, int n_rows,
                  int box_cols, int box_rows);

#endif
