/* kernels/cuda/tensor_map.cu - see tensor_map.h. No kernels. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_map.h"

int cuda_tensor_map_encode(TensorMapEncode *out)
{
    static TensorMapEncode encode = NULL;
    if (!encode) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaError_t err = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                           cudaEnableDefault, &result);
        if (err != cudaSuccess)
            return err;
        if (result != cudaDriverEntryPointSuccess || !found)
            return cudaErrorNotSupported;
        encode = (TensorMapEncode)found;
    }
    *out = encode;
    return cudaSuccess;
}

int cuda_rows_map(CUtensorMap *out, const void *rows, int64_t cols, int64_t stride, int n_rows,
                  int box_cols, int box_rows)
{
    TensorMapEncode encode;
    int err = cuda_tensor_map_encode(&encode);
    if (err != cudaSuccess)
        return err;
    cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)n_rows};
    cuuint64_t row_bytes = (cuuint64_t)stride * sizeof(bf16);
    cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, step[2] = {1, 1};
    CUresult made = encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)rows, size, &row_bytes,
                           box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           box_cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
