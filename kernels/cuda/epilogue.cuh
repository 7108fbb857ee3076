/* kernels/cuda/epilogue.cuh - what becomes of a matrix kernel's sums: the activations of an FFN. */
#ifndef MB_KERNELS_CUDA_EPILOGUE_CUH
#define MB_KERNELS_CUDA_EPILOGUE_CUH

#include "kernels/cuda/device.cuh"

/* The approximations are off by a few units of float32, of which bf16 keeps 8 bits. */
static __device__ __forceinline__ float sigmoid(float v)
{
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
}

/* NaN stays NaN, which fminf would hide. */
static __device__ __forceinline__ float at_most(float v, float limit)
{
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(v), "f"(limit));
    return r;
}

static __device__ __forceinline__ float swiglu(const ActSpec &s, float g, float u)
{
    g = at_most(g, s.limit);
    u = -at_most(-at_most(u, s.limit), s.limit);
    return g * sigmoid(s.alpha * g) * (u + s.beta);
}

static __device__ __forceinline__ float activate(const ActSpec &s, float g, float u)
{
    if (s.kind != ACT_SITU)
        return swiglu(s, g, u);
    u = s.limit < INFINITY ? s.limit * tanhf(u / s.limit) : u;
    return s.beta * tanhf(g / s.beta) * sigmoid(g) * u;
}

static __device__ __forceinline__ float square_of_positive(float v)
{
    return v > 0.0f ? v * v : v * 0.0f;
}

#endif
