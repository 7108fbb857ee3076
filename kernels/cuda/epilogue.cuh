/* kernels/cuda/epilogue.cuh - what becomes of a matrix kernel's sums: the activations of an FFN. */
#ifndef MB_KERNELS_CUDA_EPILOGUE_CUH
#define MB_KERNELS_CUDA_EPILOGUE_CUH

#include "kernels/cuda/device.cuh"

/* __expf and __fdividef are off by a few units of float32, of which bf16 keeps 8 bits. */
static __device__ __forceinline__ float sigmoid(float v)
{
    return __fdividef(1.0f, 1.0f + __expf(-v));
}

static __device__ __forceinline__ float activate(const ActSpec &s, float g, float u)
{
    if (s.kind == ACT_SITU) {
        u = s.limit < INFINITY ? s.limit * tanhf(u / s.limit) : u;
        return s.beta * tanhf(g / s.beta) * sigmoid(g) * u;
    }
    /* NaN stays NaN, which fminf would hide. */
    g = g > s.limit ? s.limit : g;
    u = u > s.limit ? s.limit : u < -s.limit ? -s.limit : u;
    return g * sigmoid(s.alpha * g) * (u + s.beta);
}

static __device__ __forceinline__ float square_of_positive(float v)
{
    return v > 0.0f ? v * v : v * 0.0f;
}

#endif
