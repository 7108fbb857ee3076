/* tests/bench/gpu/bench_attention.cu - attention beside this device's copy and its dense bf16 matrix product,
 * all in one run: bytes of keys and values per second while generating, flops of the visible half of
 * the matrix per second in prompts. The expanded form of latents is timed without kv_b_proj. Pools are
 * rotated, so that caches hold nothing of the next launch.
 * Usage: bench_attention [WORD]: the cases whose name contains it. */
#include "kernels/cuda/attention_list.h"

#include <cuda_runtime.h>
#ifdef MOEBATCH_HAS_CUBLASLT
#include <cublasLt.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace
{

constexpr int ROUNDS = 7;
constexpr int64_t FLUSH_BYTES = (int64_t)400 << 20; /* several times the L2 of any device */

struct Shape {
    const char *name;
    int n_heads, n_kv_heads, head_dim, window;
    bool sinks;
};

const Shape shapes[] = {{"gpt-oss full", 64, 8, 64, 0, true},
                        {"gpt-oss window", 64, 8, 64, 128, true},
                        {"qwen3-30b", 32, 4, 128, 0, false},
                        {"qwen3.5 256", 16, 2, 256, 0, false}};

/* Latents of 512 and 64 lanes. */
struct LatentShape {
    const char *name;
    int n_heads;
    KvDtype dtype;
    int n_seqs, n_rows, pos;
};

const LatentShape latent_shapes[] = {{"latent, DeepSeek-V3", 128, KV_BF16, 64, 1, 4095},
                                     {"latent, DeepSeek-V3", 128, KV_BF16, 132, 1, 2047},
                                     {"latent, DeepSeek-V3", 128, KV_BF16, 8, 1, 8191},
                                     {"latent, DeepSeek-V3", 128, KV_FP8, 132, 1, 2047},
                                     {"latent, DeepSeek-V3", 128, KV_FP8, 64, 1, 4095},
                                     {"latent, Kimi-K2", 64, KV_BF16, 132, 1, 4095},
                                     {"latent, Kimi-K2", 64, KV_FP8, 132, 1, 4095},
                                     {"latent, DeepSeek-V2-Lite", 16, KV_BF16, 132, 1, 4095},
                                     {"latent, DeepSeek-V2-Lite", 16, KV_FP8, 132, 1, 4095},
                                     {"latent, DeepSeek-V3", 128, KV_BF16, 1, 1024, 0}};

struct Case {
    int shape;
    KvDtype dtype;
    int n_seqs, n_rows, pos; /* rows of each sequence, and where they begin */
};

const Case cases[] = {
    {0, KV_BF16, 64, 1, 1023},  {0, KV_BF16, 512, 1, 1023}, {0, KV_BF16, 64, 1, 8191},
    {0, KV_BF16, 1, 1, 8191},   {1, KV_BF16, 512, 1, 1023}, {2, KV_BF16, 64, 1, 1023},
    {2, KV_BF16, 256, 1, 2047}, {2, KV_BF16, 64, 1, 8191},  {3, KV_BF16, 128, 1, 4095},
    {0, KV_FP8, 512, 1, 1023},  {2, KV_FP8, 256, 1, 2047},  {0, KV_NVFP4, 512, 1, 1023},
    {0, KV_BF16, 8, 1024, 0},   {0, KV_BF16, 1, 8192, 0},   {1, KV_BF16, 8, 1024, 0},
    {2, KV_BF16, 8, 1024, 0},   {2, KV_BF16, 1, 8192, 0},   {2, KV_BF16, 4, 2048, 6144},
    {3, KV_BF16, 1, 8192, 0},   {0, KV_FP8, 1, 8192, 0},    {2, KV_FP8, 1, 8192, 0}};

void must(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    std::exit(1);
}

void *take(size_t bytes)
{
    void *p;
    must(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
}

/* bf16 in [-1, 1), or any codes but NaN. */
__global__ void fill_kernel(uint16_t *p, int64_t n, bool codes, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u + seed + (uint32_t)(i >> 32) * 40503u;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        float v = (float)(h >> 8) / 8388608.0f - 1.0f;
        p[i] = codes ? (uint16_t)(h >> 16 & 0xb7b7u) : (uint16_t)(__float_as_uint(v) >> 16);
    }
}

void *random_memory(size_t bytes, bool codes)
{
    void *p = take(bytes);
    fill_kernel<<<2048, 256>>>((uint16_t *)p, (int64_t)(bytes / 2), codes, (uint32_t)bytes);
    must(cudaGetLastError(), "fill");
    return p;
}

template <class Launch> double seconds(int repeats, Launch launch)
{
    cudaEvent_t from, to;
    std::vector<double> times;
    must(cudaEventCreate(&from), "event");
    must(cudaEventCreate(&to), "event");
    launch(0);
    for (int r = 0; r < ROUNDS; r++) {
        float ms = 0;
        must(cudaEventRecord(from), "event");
        for (int i = 0; i < repeats; i++)
            launch(i);
        must(cudaEventRecord(to), "event");
        must(cudaEventSynchronize(to), "launches");
        must(cudaEventElapsedTime(&ms, from, to), "event");
        times.push_back(ms * 1e-3 / repeats);
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    std::sort(times.begin(), times.end());
    return times[ROUNDS / 2];
}

double copy_rate()
{
    size_t bytes = (size_t)2 << 30;
    void *from = random_memory(bytes, false), *to = take(bytes);
    double s = seconds(
        4, [&](int) { must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "copy"); });
    cudaFree(from);
    cudaFree(to);
    return 2.0 * (double)bytes / s;
}

#ifdef MOEBATCH_HAS_CUBLASLT
void must_blas(cublasStatus_t code, const char *what)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return;
    std::fprintf(stderr, "%s: cuBLASLt status %d\n", what, (int)code);
    std::exit(1);
}

double dense_rate()
{
    const int n = 8192;
    size_t bytes = (size_t)n * n * 2, workspace = (size_t)64 << 20;
    void *a = random_memory(bytes, false), *b = random_memory(bytes, false), *c = take(bytes),
         *work = take(workspace);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    cublasOperation_t turned = CUBLAS_OP_T;
    int n_found = 0;
    float one = 1, zero = 0;
    must_blas(cublasLtCreate(&handle), "create");
    must_blas(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "op");
    must_blas(
        cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned),
        "op");
    must_blas(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, n, n, n), "layout");
    must_blas(cublasLtMatmulPreferenceCreate(&preference), "preference");
    must_blas(cublasLtMatmulPreferenceSetAttribute(preference,
                                                   CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace, sizeof workspace),
              "preference");
    must_blas(cublasLtMatmulAlgoGetHeuristic(handle, op, layout, layout, layout, layout, preference,
                                             1, &found, &n_found),
              "heuristic");
    double s = seconds(10, [&](int) {
        must_blas(cublasLtMatmul(handle, op, &one, a, layout, b, layout, &zero, c, layout, c,
                                 layout, &found.algo, work, workspace, 0),
                  "matmul");
    });
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(op);
    cublasLtDestroy(handle);
    for (void *p : {a, b, c, work})
        cudaFree(p);
    return 2.0 * n * n * n / s;
}
#else
double dense_rate()
{
    return NAN;
}
#endif

/* The work memory of attention, as the backend has it. */
struct Work {
    float *partials;
    int64_t most_floats = (int64_t)32 << 20;
    unsigned *counters;
    int64_t most_counters = 1 << 20;
};

double visible(const Case &c, int window)
{
    double n = 0;
    for (int i = 0; i < c.n_rows; i++) {
        int seen = c.pos + i + 1;
        n += window > 0 && seen > window ? window : seen;
    }
    return n * c.n_seqs;
}

const char *dtype_name(KvDtype t)
{
    return t == KV_BF16 ? "bf16" : t == KV_FP8 ? "fp8" : "nvfp4";
}

void measure(const Case &c, const Work &w, double copy, double dense)
{
    const Shape &s = shapes[c.shape];
    int per_seq = (c.pos + c.n_rows + KV_PAGE - 1) / KV_PAGE, n_rows = c.n_seqs * c.n_rows;
    int64_t half = KV_PAGE * (int64_t)s.head_dim *
                   (c.dtype == KV_BF16  ? 32
                    : c.dtype == KV_FP8 ? 16
                                        : 9) /
                   16;
    int64_t page_bytes = 2 * half * s.n_kv_heads, n_pages = (int64_t)per_seq * c.n_seqs;
    int n_pools = (int)(1 + FLUSH_BYTES / (n_pages * page_bytes));
    char *pool =
        (char *)random_memory((size_t)(n_pools * n_pages * page_bytes), c.dtype != KV_BF16);
    std::vector<int32_t> page(n_pages);
    for (int64_t i = 0; i < n_pages; i++) /* scattered: 7919 is a prime */
        page[i] = (int32_t)(i * (n_pages % 7919 ? 7919 : 7907) % n_pages);
    std::vector<AttnSeq> seqs;
    for (int i = 0; i < c.n_seqs; i++)
        seqs.push_back({i * c.n_rows, c.n_rows, c.pos, page.data() + (int64_t)i * per_seq});
    CudaAttention a = {};
    std::vector<char> host(cuda_list_bytes(n_rows, c.n_seqs, n_pages));
    void *list = take(host.size());
    size_t bytes = cuda_list_fill(host.data(), list, &a.list, seqs.data(), c.n_seqs,
                                  c.n_rows == 1 ? c.n_seqs : 0);
    must(cudaMemcpy(list, host.data(), bytes, cudaMemcpyHostToDevice), "list");
    a.cache.page_bytes = page_bytes;
    a.cache.head_bytes = 2 * half;
    a.cache.lanes = s.head_dim;
    a.cache.n_kv_heads = s.n_kv_heads;
    a.cache.kv = KvFormat{c.dtype, 0.01f, 0.01f};
    if (c.dtype == KV_BF16)
        a.cache.kv.k_scale = a.cache.kv.v_scale = 1;
    a.q_stride = (int64_t)(s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
    a.out_stride = (int64_t)s.n_heads * s.head_dim;
    a.q = random_memory((size_t)(n_rows * a.q_stride * 2), false);
    a.out = take((size_t)(n_rows * a.out_stride * 2));
    a.n_heads = s.n_heads;
    a.head_dim = s.head_dim;
    a.window = s.window;
    a.scale = 0.125f;
    std::vector<float> zeros(s.n_heads);
    float *sinks = (float *)take(s.n_heads * sizeof(float));
    must(cudaMemcpy(sinks, zeros.data(), s.n_heads * sizeof(float), cudaMemcpyHostToDevice),
         "sinks");
    a.sinks = s.sinks ? sinks : NULL;
    a.partials = w.partials;
    a.most_floats = w.most_floats;
    a.counters = w.counters;
    a.most_counters = w.most_counters;
    double time = seconds(c.n_rows == 1 ? 20 : 5, [&](int i) {
        a.cache.pool = pool + i % n_pools * n_pages * page_bytes;
        must((cudaError_t)cuda_attention_launch(&a, 0), "attention");
    });
    double pairs = visible(c, s.window), kv = pairs * s.n_kv_heads * (double)(2 * half) / KV_PAGE,
           flops = pairs * s.n_heads * s.head_dim * 4;
    std::printf("%-15s %-6s %4d x %5d rows at %5d %9.1f us ", s.name, dtype_name(c.dtype), c.n_seqs,
                c.n_rows, c.pos, time * 1e6);
    if (c.n_rows == 1)
        std::printf("%7.2f TB/s  %.3f of copy\n", kv / time * 1e-12, kv / time / copy);
    else
        std::printf("%7.1f TF/s  %.3f of dense\n", flops / time * 1e-12, flops / time / dense);
    std::fflush(stdout);
    for (void *p : {(void *)pool, list, (void *)a.q, a.out, (void *)sinks})
        cudaFree(p);
}

void measure_latents(const LatentShape &s, const Work &w, double copy, double dense)
{
    int per_seq = (s.pos + s.n_rows + KV_PAGE - 1) / KV_PAGE, n_rows = s.n_seqs * s.n_rows;
    CudaLatentAttention a = {};
    CudaLatents &c = a.cache;
    c.latent_blocks = 8;
    c.rope_blocks = 1;
    c.page_bytes = KV_PAGE * (s.dtype == KV_FP8 ? 512 + 128 : 1024 + 128);
    c.kv = KvFormat{s.dtype, s.dtype == KV_FP8 ? 0.01f : 1.0f, 1};
    int64_t n_pages = (int64_t)per_seq * s.n_seqs;
    int n_pools = (int)(1 + FLUSH_BYTES / (n_pages * c.page_bytes));
    char *pool =
        (char *)random_memory((size_t)(n_pools * n_pages * c.page_bytes), s.dtype != KV_BF16);
    std::vector<int32_t> page(n_pages);
    for (int64_t i = 0; i < n_pages; i++)
        page[i] = (int32_t)(i * (n_pages % 7919 ? 7919 : 7907) % n_pages);
    std::vector<AttnSeq> seqs;
    for (int i = 0; i < s.n_seqs; i++)
        seqs.push_back({i * s.n_rows, s.n_rows, s.pos, page.data() + (int64_t)i * per_seq});
    std::vector<char> host(cuda_list_bytes(n_rows, s.n_seqs, n_pages));
    void *list = take(host.size());
    size_t bytes = cuda_list_fill(host.data(), list, &c.list, seqs.data(), s.n_seqs,
                                  s.n_rows == 1 ? s.n_seqs : 0);
    must(cudaMemcpy(list, host.data(), bytes, cudaMemcpyHostToDevice), "list");
    a.n_heads = s.n_heads;
    a.q_split = a.out_dim = 512;
    a.q_rest = 64;
    a.q_stride = (int64_t)s.n_heads * 576;
    a.out_stride = (int64_t)s.n_heads * 512;
    a.q = random_memory((size_t)(n_rows * a.q_stride * 2), false);
    a.out = take((size_t)(n_rows * a.out_stride * 2));
    a.scale = 0.07f;
    a.partials = w.partials;
    a.most_floats = w.most_floats;
    a.counters = w.counters;
    a.most_counters = w.most_counters;
    double time = seconds(s.n_rows == 1 ? 10 : 3, [&](int i) {
        c.pool = pool + i % n_pools * n_pages * c.page_bytes;
        must((cudaError_t)cuda_latent_attention_launch(&a, 0), "latent attention");
    });
    double pairs = 0;
    for (int i = 0; i < s.n_rows; i++)
        pairs += s.n_seqs * (double)(s.pos + i + 1);
    double kv = pairs * (double)c.page_bytes / KV_PAGE, flops = pairs * s.n_heads * 2 * (576 + 512);
    std::printf("%-24s %-6s %4d x %5d rows at %5d %9.1f us ", s.name, dtype_name(s.dtype), s.n_seqs,
                s.n_rows, s.pos, time * 1e6);
    if (s.n_rows == 1)
        std::printf("%7.2f TB/s  %.3f of copy, ", kv / time * 1e-12, kv / time / copy);
    std::printf("%7.1f TF/s  %.3f of dense\n", flops / time * 1e-12, flops / time / dense);
    std::fflush(stdout);
    for (void *p : {(void *)pool, list, (void *)a.q, a.out})
        cudaFree(p);
}

/* The expanded form, behind kv_b_proj: prompts of DeepSeek-V3's heads. */
void measure_expanded(int n_seqs, int n_rows, int pos, const Work &w, double dense)
{
    const int n_heads = 128;
    int per_seq = (pos + n_rows + KV_PAGE - 1) / KV_PAGE, n_pages = per_seq * n_seqs;
    CudaExpandedAttention a = {};
    CudaLatents &c = a.cache;
    c.latent_blocks = 8;
    c.rope_blocks = 1;
    c.page_bytes = KV_PAGE * (1024 + 128);
    c.kv = KvFormat{KV_BF16, 1, 1};
    c.pool = random_memory((size_t)(n_pages * c.page_bytes), false);
    std::vector<int32_t> page(n_pages);
    for (int i = 0; i < n_pages; i++)
        page[i] = (int32_t)((int64_t)i * (n_pages % 7919 ? 7919 : 7907) % n_pages);
    std::vector<AttnSeq> seqs;
    for (int i = 0; i < n_seqs; i++)
        seqs.push_back({i * n_rows, n_rows, pos, page.data() + (int64_t)i * per_seq});
    std::vector<char> host(cuda_list_bytes(n_seqs * n_rows, n_seqs, n_pages));
    void *list = take(host.size());
    size_t bytes = cuda_list_fill(host.data(), list, &c.list, seqs.data(), n_seqs, 0);
    must(cudaMemcpy(list, host.data(), bytes, cudaMemcpyHostToDevice), "list");
    a.kv = random_memory((size_t)n_pages * KV_PAGE * n_heads * 256 * 2, false);
    a.end_page = n_pages;
    a.n_heads = n_heads;
    a.q_stride = n_heads * 192;
    a.out_stride = n_heads * 128;
    a.q = random_memory((size_t)(n_seqs * n_rows * a.q_stride * 2), false);
    a.out = take((size_t)(n_seqs * n_rows * a.out_stride * 2));
    a.scale = 0.07f;
    a.partials = w.partials;
    a.most_floats = w.most_floats;
    double time = seconds(3, [&](int) {
        must((cudaError_t)cuda_expanded_attention_launch(&a, 0), "expanded attention");
    });
    double flops = 0;
    for (int i = 0; i < n_rows; i++)
        flops += n_seqs * (double)(pos + i + 1) * n_heads * 2 * (192 + 128);
    std::printf("%-24s %-6s %4d x %5d rows at %5d %9.1f us %7.1f TF/s  %.3f of dense\n",
                "expanded, DeepSeek-V3", "bf16", n_seqs, n_rows, pos, time * 1e6,
                flops / time * 1e-12, flops / time / dense);
    std::fflush(stdout);
    for (void *p : {c.pool, list, (void *)a.kv, (void *)a.q, a.out})
        cudaFree(p);
}

} // namespace

int main(int argc, char **argv)
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77;
    }
    cudaDeviceProp prop;
    int driver = 0;
    must(cudaGetDeviceProperties(&prop, 0), "device");
    must(cudaDriverGetVersion(&driver), "driver");
    double copy = copy_rate(), dense = dense_rate();
    std::printf("%s, CUDA driver %d: copy %.2f TB/s (read and written), dense bf16 %.0f TF/s\n",
                prop.name, driver, copy * 1e-12, dense * 1e-12);
    Work w;
    w.partials = (float *)take((size_t)w.most_floats * sizeof(float));
    w.counters = (unsigned *)take((size_t)w.most_counters * sizeof(unsigned));
    must(cudaMemset(w.counters, 0, (size_t)w.most_counters * sizeof(unsigned)), "counters");
    for (const Case &c : cases)
        if (argc < 2 || std::strstr(shapes[c.shape].name, argv[1]))
            measure(c, w, copy, dense);
    for (const LatentShape &s : latent_shapes)
        if (argc < 2 || std::strstr(s.name, argv[1]))
            measure_latents(s, w, copy, dense);
    if (argc < 2 || std::strstr("expanded, DeepSeek-V3", argv[1])) {
        measure_expanded(1, 1024, 0, w, dense);
        measure_expanded(8, 1024, 0, w, dense);
        measure_expanded(1, 8192, 0, w, dense);
        measure_expanded(1, 2048, 30720, w, dense);
    }
    must(cudaDeviceSynchronize(), "the end");
    return 0;
}
