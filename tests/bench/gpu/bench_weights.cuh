/* tests/bench/gpu/bench_weights.cuh - random banks of weights on the device, and the ceilings that
 * benchmarks of matrix kernels divide by: a device copy and dense bf16 products by cuBLASLt. */
#ifndef MB_TESTS_BENCH_GPU_BENCH_WEIGHTS_CUH
#define MB_TESTS_BENCH_GPU_BENCH_WEIGHTS_CUH

#include "kernels/cuda/gemm_sm90.h"

#ifdef MOEBATCH_HAS_CUBLASLT
#include <cublasLt.h>
#endif
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

static inline void must(int code, const char *what)
{
    if (code == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

template <typename T> static T *device(size_t n)
{
    T *p = nullptr;
    must(cudaMalloc(&p, n * sizeof(T)), "memory");
    return p;
}

static __device__ __host__ inline uint32_t mix(uint64_t v)
{
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((v ^ v >> 31) >> 16);
}

/* Records as repacking real weights would give them: random codes, scales about 2^-5. */
static __global__ void fill_records(uint8_t *to, int64_t bytes, SlabCodec codec, uint64_t seed)
{
    int record = slab_record_bytes(codec), codes = slab_pieces(codec) * SLAB_THREADS * 16;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes / 4;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t r = mix(seed + (uint64_t)i);
        if (codec == SLAB_BF16)
            r = (r & 0x807f807fu) | 0x3c003c00u; /* 2^-7 .. */
        else if (i * 4 % record >= codes)
            r = codec == SLAB_MXFP4   ? (r & 0x01010101u) + 0xf8f8f8f8u
                : codec == SLAB_NVFP4 ? (r & 0x0f0f0f0fu) + 0x30303030u
                                      : 0x3d003d00u;
        ((uint32_t *)to)[i] = r;
    }
}

static __global__ void fill_rows(__nv_bfloat16 *to, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] = __float2bfloat16_rn((float)(int32_t)mix(seed + (uint64_t)i) * 0x1p-31f);
}

static __global__ void fill_floats(float *to, int64_t n, float v)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] = v;
}

/* A bank of n_mats matrices of `rows` outputs over k inputs; paired: of gate and up, rows each. */
struct Bank {
    CudaPart part[2] = {};
    int n_parts, k;
    int64_t bytes; /* of a matrix: codes and scales */

    Bank(SlabCodec codec, int n_mats, int rows, int k_, bool paired, uint64_t seed)
        : n_parts(paired ? 2 : 1), k(k_)
    {
        int slab_rows = paired ? SLAB_ROWS / 2 : SLAB_ROWS;
        int64_t slab = (int64_t)((k + SLAB_K - 1) / SLAB_K) * slab_record_bytes(codec);
        bytes = (rows + slab_rows - 1) / slab_rows * slab;
        uint8_t *codes = device<uint8_t>((size_t)(bytes * n_mats));
        float *scale = device<float>((size_t)rows * n_mats);
        fill_records<<<4096, 256>>>(codes, bytes * n_mats, codec, seed);
        fill_floats<<<256, 256>>>(scale, (int64_t)rows * n_mats, 1.0f);
        for (int i = 0; i < n_parts; i++) {
            CudaPart &p = part[i];
            p.codes = codes;
            p.row_scale = scale;
            p.codes_mat = bytes;
            p.codes_row = slab;
            p.row_scale_mat = rows;
            p.rows = rows;
            p.first_row = i * rows;
            p.layout = paired ? CUDA_PAIRED : CUDA_SLABS;
            p.codec = codec;
            p.half = i;
        }
    }

    void release()
    {
        must(cudaFree((void *)part[0].codes), "free");
        must(cudaFree((void *)part[0].row_scale), "free");
    }

    CudaGemm gemm() const
    {
        CudaGemm g = {};
        g.part[0] = part[0];
        g.part[1] = part[1];
        g.n_parts = n_parts;
        g.planes = 1;
        g.k = g.k_padded = k;
        return g;
    }
};

/* Median milliseconds of one of n calls, in turns between the events of each. */
template <typename F> static double time_ms(int n, F call)
{
    std::vector<cudaEvent_t> at((size_t)n + 1);
    for (auto &e : at)
        must(cudaEventCreate(&e), "event");
    call(0);
    for (int i = 0; i < n; i++) {
        must(cudaEventRecord(at[(size_t)i]), "event");
        call(i);
    }
    must(cudaEventRecord(at[(size_t)n]), "event");
    must(cudaDeviceSynchronize(), "timed calls");
    std::vector<float> ms((size_t)n);
    for (int i = 0; i < n; i++)
        must(cudaEventElapsedTime(&ms[(size_t)i], at[(size_t)i], at[(size_t)i + 1]), "time");
    for (auto &e : at)
        must(cudaEventDestroy(e), "event");
    std::sort(ms.begin(), ms.end());
    return ms[(size_t)n / 2];
}

/* Bytes read and written in a second. */
static inline double copy_rate()
{
    const size_t bytes = (size_t)2 << 30;
    char *a = device<char>(bytes), *b = device<char>(bytes);
    must(cudaMemset(a, 1, bytes), "memset");
    double ms = time_ms(
        10, [&](int) { must(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice), "copy"); });
    must(cudaFree(a), "free");
    must(cudaFree(b), "free");
    return 2.0 * (double)bytes / ms * 1e3;
}

/* E4M3 codes that are numbers. */
static __global__ void fill_codes(uint8_t *to, int64_t bytes, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes / 4;
         i += (int64_t)gridDim.x * blockDim.x)
        ((uint32_t *)to)[i] = mix(seed + (uint64_t)i) & 0xf7f7f7f7u;
}

/* y [m, n] = x [m, k] w [n, k]^T in bf16, or of E4M3 codes: FLOPs in a second; 0 without
 * cuBLASLt. */
#ifndef MOEBATCH_HAS_CUBLASLT
static inline double dense_rate(int, int, int, bool = false)
{
    return 0;
}
#else
static inline double dense_rate(int m, int n, int k, bool codes = false)
{
    __nv_bfloat16 *x = device<__nv_bfloat16>((size_t)m * k),
                  *w = device<__nv_bfloat16>((size_t)n * k),
                  *y = device<__nv_bfloat16>((size_t)m * n);
    const size_t room = (size_t)64 << 20;
    char *work = device<char>(room);
    if (codes) {
        fill_codes<<<1024, 256>>>((uint8_t *)x, (int64_t)m * k, 1);
        fill_codes<<<1024, 256>>>((uint8_t *)w, (int64_t)n * k, 2);
    } else {
        fill_rows<<<1024, 256>>>(x, (int64_t)m * k, 1);
        fill_rows<<<1024, 256>>>(w, (int64_t)n * k, 2);
    }
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    cublasOperation_t t = CUBLAS_OP_T;
    float one = 1, zero = 0;
    must(cublasLtCreate(&lt) != CUBLAS_STATUS_SUCCESS, "cublasLt");
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    int8_t fast = 1; /* sums as the tensor cores keep them */
    if (codes)
        cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    cudaDataType type = codes ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    cublasLtMatrixLayoutCreate(&a, type, (uint64_t)k, (uint64_t)n, k);
    cublasLtMatrixLayoutCreate(&b, type, (uint64_t)k, (uint64_t)m, k);
    cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, (uint64_t)n, (uint64_t)m, n);
    cublasLtMatmulPreferenceCreate(&want);
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                         sizeof room);
    must(cublasLtMatmulAlgoGetHeuristic(lt, op, a, b, c, c, want, 1, &found, &n_found) !=
                 CUBLAS_STATUS_SUCCESS ||
             n_found == 0,
         "cublasLt heuristic");
    double ms = time_ms(9, [&](int) {
        must(cublasLtMatmul(lt, op, &one, w, a, x, b, &zero, y, c, y, c, &found.algo, work, room,
                            nullptr) != CUBLAS_STATUS_SUCCESS,
             "cublasLt");
    });
    cublasLtMatmulPreferenceDestroy(want);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(op);
    cublasLtDestroy(lt);
    for (void *p : {(void *)x, (void *)w, (void *)y, (void *)work})
        must(cudaFree(p), "free");
    return 2.0 * m * n * k / ms * 1e3;
}
#endif

#endif
