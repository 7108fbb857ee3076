/* kernels/cuda/ceilings.cu - what this device does at best: a copy, an upload from pinned memory, and a
 * library's dense GEMM, for speeds to be compared with.
 *
 * Tile    one thread fills 8 values of the matrices; the rest is the runtime's and cuBLASLt's.
 * Budget  2 GiB copied 10 times, 256 MiB uploaded 4 times, 8192^3 multiplied 10 times: 60 ms in all.
 * Why     random values: a GEMM of zeros is 14 % faster, since the card draws less power. cuBLASLt is
 *         opened where it is installed, since nothing else of the product wants it. */
#include "kernels/cuda/api.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>

namespace
{

constexpr size_t half_bytes = (size_t)1 << 30, pinned_bytes = (size_t)256 << 20;
constexpr size_t workspace_bytes = (size_t)32 << 20;
constexpr int side = 8192, n_runs = 10, n_uploads = 4;

__device__ inline uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

template <typename T> __global__ void fill_kernel(T *out, size_t n)
{
    size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    for (int i = 0; i < 8 && first + i < n; i++)
        out[first + i] = T((float)(hash((uint32_t)(first + i)) & 0xffff) / 32768.0f - 1.0f);
}

template <typename T> cudaError_t fill(void *out, cudaStream_t stream)
{
    constexpr size_t n = (size_t)2 * side * side; /* both factors */
    fill_kernel<<<(unsigned)(n / 8 / 256), 256, 0, stream>>>((T *)out, n);
    return cudaGetLastError();
}

/* The best of n runs, in seconds; run queues one. */
template <typename Run> cudaError_t best_of(int n, cudaStream_t stream, double *seconds, Run run)
{
    cudaEvent_t start = nullptr, end = nullptr;
    cudaError_t err = cudaEventCreate(&start);
    if (err == cudaSuccess)
        err = cudaEventCreate(&end);
    if (err == cudaSuccess)
        err = run();
    *seconds = 0;
    for (int i = 0; i < n && err == cudaSuccess; i++) {
        float ms = 0;
        if ((err = cudaEventRecord(start, stream)) == cudaSuccess && (err = run()) == cudaSuccess &&
            (err = cudaEventRecord(end, stream)) == cudaSuccess &&
            (err = cudaEventSynchronize(end)) == cudaSuccess)
            err = cudaEventElapsedTime(&ms, start, end);
        if (*seconds == 0 || ms * 1e-3 < *seconds)
            *seconds = ms * 1e-3;
    }
    if (start)
        cudaEventDestroy(start);
    if (end)
        cudaEventDestroy(end);
    return err;
}

/* The functions of cuBLASLt that a product of two matrices takes. */
struct Library {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmul) matmul;
};

template <typename F> bool symbol(void *handle, const char *name, F *out)
{
    *out = (F)dlsym(handle, name);
    return *out != nullptr;
}

bool open_library(Library *l)
{
    char name[32];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUDART_VERSION / 1000);
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL); /* stays open, as the plugin does */
    return handle && symbol(handle, "cublasLtCreate", &l->create) &&
           symbol(handle, "cublasLtDestroy", &l->destroy) &&
           symbol(handle, "cublasLtMatmulDescCreate", &l->desc_create) &&
           symbol(handle, "cublasLtMatmulDescDestroy", &l->desc_destroy) &&
           symbol(handle, "cublasLtMatmulDescSetAttribute", &l->desc_set) &&
           symbol(handle, "cublasLtMatrixLayoutCreate", &l->layout_create) &&
           symbol(handle, "cublasLtMatrixLayoutDestroy", &l->layout_destroy) &&
           symbol(handle, "cublasLtMatmulPreferenceCreate", &l->preference_create) &&
           symbol(handle, "cublasLtMatmulPreferenceDestroy", &l->preference_destroy) &&
           symbol(handle, "cublasLtMatmulPreferenceSetAttribute", &l->preference_set) &&
           symbol(handle, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic) &&
           symbol(handle, "cublasLtMatmul", &l->matmul);
}

struct Product { /* d [side, side] bf16 = a^T b, both of one type and side values to a row */
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t in, out;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
};

bool make_product(const Library *l, cudaDataType_t type, Product *p)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    int found = 0;
    return l->create(&p->handle) == CUBLAS_STATUS_SUCCESS &&
           l->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           l->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ==
               CUBLAS_STATUS_SUCCESS &&
           l->layout_create(&p->in, type, side, side, side) == CUBLAS_STATUS_SUCCESS &&
           l->layout_create(&p->out, CUDA_R_16BF, side, side, side) == CUBLAS_STATUS_SUCCESS &&
           l->preference_create(&p->preference) == CUBLAS_STATUS_SUCCESS &&
           l->preference_set(p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                             &workspace_bytes,
                             sizeof workspace_bytes) == CUBLAS_STATUS_SUCCESS &&
           l->heuristic(p->handle, p->desc, p->in, p->in, p->out, p->out, p->preference, 1,
                        &p->best, &found) == CUBLAS_STATUS_SUCCESS &&
           found == 1;
}

void free_product(const Library *l, Product *p)
{
    if (p->preference)
        l->preference_destroy(p->preference);
    if (p->out)
        l->layout_destroy(p->out);
    if (p->in)
        l->layout_destroy(p->in);
    if (p->desc)
        l->desc_destroy(p->desc);
    if (p->handle)
        l->destroy(p->handle);
}

/* Operations per second; 0 where the library cannot. memory: half_bytes. */
template <typename T>
cudaError_t product_rate(const Library *l, cudaDataType_t type, char *memory, cudaStream_t stream,
                         double *rate)
{
    constexpr size_t n = (size_t)side * side;
    const float one = 1, zero = 0;
    Product p = {};
    double seconds = 0;
    *rate = 0;
    cudaError_t err = fill<T>(memory, stream);
    T *a = (T *)memory, *b = a + n;
    void *d = b + n;
    char *workspace = memory + half_bytes - workspace_bytes;
    bool works = err == cudaSuccess && make_product(l, type, &p);
    if (works)
        err = best_of(n_runs, stream, &seconds, [&] {
            works &= l->matmul(p.handle, p.desc, &one, a, p.in, b, p.in, &zero, d, p.out, d, p.out,
                               &p.best.algo, workspace, workspace_bytes,
                               stream) == CUBLAS_STATUS_SUCCESS;
            return cudaSuccess;
        });
    free_product(l, &p);
    if (works && seconds > 0)
        *rate = 2.0 * side * side * side / seconds;
    return err;
}

cudaError_t measure(BackendCeilings *out, char *device, void *pinned, cudaStream_t stream)
{
    double seconds;
    Library library = {};
    cudaError_t err = cudaMemsetAsync(device, 0x3c, 2 * half_bytes, stream);
    if (err == cudaSuccess)
        err = best_of(n_runs, stream, &seconds, [&] {
            return cudaMemcpyAsync(device + half_bytes, device, half_bytes, cudaMemcpyDeviceToDevice,
                                   stream);
        });
    if (err != cudaSuccess)
        return err;
    out->memory_bytes_s = 2 * (double)half_bytes / seconds;
    err = best_of(n_uploads, stream, &seconds, [&] {
        return cudaMemcpyAsync(device, pinned, pinned_bytes, cudaMemcpyHostToDevice, stream);
    });
    if (err != cudaSuccess)
        return err;
    out->upload_bytes_s = (double)pinned_bytes / seconds;
    if (!open_library(&library))
        return cudaSuccess;
    out->gemm = "cuBLASLt 8192^3";
    err = product_rate<__nv_bfloat16>(&library, CUDA_R_16BF, device, stream, &out->flops);
    if (err == cudaSuccess)
        err = product_rate<__nv_fp8_e4m3>(&library, CUDA_R_8F_E4M3, device, stream,
                                          &out->fp8_flops);
    return err;
}

} // namespace

extern "C" int cuda_ceilings(BackendCeilings *out, void *stream)
{
    char *device = nullptr;
    void *pinned = nullptr;
    cudaError_t err = cudaMalloc(&device, 2 * half_bytes);
    if (err == cudaSuccess)
        err = cudaMallocHost(&pinned, pinned_bytes);
    if (err == cudaSuccess)
        err = measure(out, device, pinned, (cudaStream_t)stream);
    cudaFree(device);
    cudaFreeHost(pinned);
    if (err != cudaSuccess)
        (void)cudaGetLastError();
    return err;
}
