/* kernels/cuda/device.cuh - the codes of weights, scales and rows on the device, one function each,
 * sums over a warp in a fixed order, and what launches ask the device. */
#ifndef MB_KERNELS_CUDA_DEVICE_CUH
#define MB_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/api.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 bf16;

static __device__ __forceinline__ float from_e4m3(uint32_t code)
{
    if ((code & 0x7fu) == 0x7fu)
        return __uint_as_float(0x7fc00000u | (code & 0x80u) << 24);
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3)));
}

/* Nearest, ties to even, saturating; a NaN keeps its sign. */
static __device__ __forceinline__ uint32_t to_e4m3(float v)
{
    if (v != v)
        return 0x7fu | (__float_as_uint(v) >> 24 & 0x80u);
    return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

/* The three magnitude bits lie where float32 has its exponent and top of the mantissa; what is off
 * is the exponent's bias. */
static __device__ __forceinline__ float from_e2m1(uint32_t code)
{
    return __uint_as_float((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
}

/* Nearest, ties to even, saturating; NaN gives the largest of its sign. */
static __device__ __forceinline__ uint32_t to_e2m1(float v)
{
    uint32_t bits = __float_as_uint(v), m = bits & 0x7fffffffu;
    m = m < 0x40c00000u ? m : 0x40c00000u; /* 6 */
    uint32_t octave = (m > 0x3f800000u ? m : 0x3f800000u) >> 23, anchor = (octave + 22) << 23;
    uint32_t units =
        __float_as_uint(__fadd_rn(__uint_as_float(m), __uint_as_float(anchor))) - anchor;
    return ((octave - 127u) << 1) + units + (bits >> 28 & 8u);
}

static __device__ __forceinline__ float from_e8m0(uint32_t code)
{
    return __uint_as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}

static __device__ __forceinline__ float load_scale(const uint8_t *scales, int i, ScaleType type)
{
    switch (type) {
    case SCALE_F32:
        return ((const float *)scales)[i];
    case SCALE_BF16:
        return __bfloat162float(((const bf16 *)scales)[i]);
    case SCALE_F16:
        return __half2float(((const __half *)scales)[i]);
    case SCALE_E4M3:
        return from_e4m3(scales[i]);
    case SCALE_E8M0:
        return from_e8m0(scales[i]);
    default:
        return 1.0f;
    }
}

static __device__ __forceinline__ float warp_sum(float v)
{
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
    for (int i = 16; i > 0; i /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    return v;
}

/* Rows of a step are many, and a grid has at most 65535 blocks in y: rows go along x. */
static inline unsigned blocks_of(int64_t n, int each)
{
    return (unsigned)((n + each - 1) / each);
}

/* What is never 0; asks once a process, which has one device. */
template <cudaDeviceAttr WHAT> static inline cudaError_t device_attribute(int *value)
{
    static int known = 0;
    int device = 0;
    cudaError_t err = known != 0 ? cudaSuccess : cudaGetDevice(&device);
    if (err == cudaSuccess && known == 0)
        err = cudaDeviceGetAttribute(&known, WHAT, device);
    *value = known;
    return err;
}

static inline cudaError_t count_multiprocessors(int *n)
{
    return device_attribute<cudaDevAttrMultiProcessorCount>(n);
}

/* Lets launches of a kernel have so many bytes of shared memory: asks once a process, which has one
 * device. done: the kernel's own, false at first. */
template <typename KERNEL>
static inline cudaError_t allow_shared(KERNEL kernel, int bytes, bool *done)
{
    if (*done)
        return cudaSuccess;
    cudaError_t err =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    *done = err == cudaSuccess;
    return err;
}

#endif
