/* tests/bench/gpu/bench_linear.cu - linear layers of one matrix beside a device copy and dense bf16
 * products by cuBLASLt of the same shape, all in one run.
 * Usage: bench_linear
 *
 * Shapes are the projections and heads of gpt-oss, Qwen3-30B and DeepSeek-V3. Weights are random;
 * copies of a matrix take turns until they are larger than the L2 cache. For few rows a figure is
 * bytes of the matrix in a second over those of a copy (read and written), for many FLOPs over
 * cuBLASLt's. */
#include "tests/bench/gpu/bench_weights.cuh"

struct Linear {
    const char *name;
    int outputs, inputs;
};

static const Linear layers[] = {
    {"gpt-oss qkv", 5120, 2880},    {"gpt-oss o", 2880, 4096},   {"gpt-oss head", 201088, 2880},
    {"Qwen3-30B qkv", 5120, 2048},  {"Qwen3-30B o", 2048, 4096}, {"DeepSeek-V3 q_b", 24576, 1536},
    {"DeepSeek-V3 o", 7168, 16384},
};

static const char *codec_name(SlabCodec c)
{
    return c == SLAB_BF16 ? "bf16" : c == SLAB_MXFP4 ? "mxfp4" : "fp8";
}

static const int rows[] = {1, 8, 32, 64, 128, 256, 512, 1024, 2048, 8192};

static void run(const Linear &l, SlabCodec codec, double copy_bytes)
{
    std::vector<Bank> banks;
    int64_t bytes = 0;
    while (bytes < (int64_t)256 << 20) {
        banks.emplace_back(codec, 1, l.outputs, l.inputs, false, banks.size() + 1);
        bytes += banks.back().bytes;
    }
    printf("%-16s %6d x %5d %-6s", l.name, l.outputs, l.inputs, codec_name(codec));
    for (int n : rows) {
        bool head = l.outputs > 100000; /* float32 results */
        if (head && n > 1024) {
            printf("%18s", "-");
            continue;
        }
        __nv_bfloat16 *x = device<__nv_bfloat16>((size_t)n * l.inputs);
        uint8_t *y = device<uint8_t>((size_t)n * l.outputs * (head ? 4 : 2));
        fill_rows<<<1024, 256>>>(x, (int64_t)n * l.inputs, 9);
        double ms = time_ms(20, [&](int i) {
            CudaGemm g = banks[(size_t)i % banks.size()].gemm();
            g.x = x;
            g.x_stride = l.inputs;
            g.y = y;
            g.y_float = head;
            g.y_stride = l.outputs;
            g.n_mats = 1;
            g.n_rows = n;
            must(cuda_gemm_launch(&g, nullptr), "product");
        });
        double of = n <= 64 ? (double)banks[0].bytes / ms * 1e3 / copy_bytes
                            : 2.0 * n * l.outputs * l.inputs / ms * 1e3 /
                                  dense_rate(n, l.outputs, l.inputs);
        printf(" %8.1f us %.3f%c", ms * 1e3, of, n <= 64 ? 'b' : 'f');
        must(cudaFree(x), "free");
        must(cudaFree(y), "free");
    }
    printf("\n");
    for (Bank &b : banks)
        b.release();
}

int main(void)
{
    double copy_bytes = copy_rate();
    printf("device copy %.2f TB/s (read and written); b: bytes / copy, f: FLOPs / cuBLASLt's dense "
           "bf16\n",
           copy_bytes * 1e-12);
    printf("rows:");
    for (int n : rows)
        printf(" %d", n);
    printf("\n");
    for (const Linear &l : layers)
        for (SlabCodec codec : {SLAB_BF16, SLAB_MXFP4, SLAB_E4M3})
            run(l, codec, copy_bytes);
    return 0;
}
