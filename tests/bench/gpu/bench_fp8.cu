/* tests/bench/gpu/bench_fp8.cu - experts whose rows and weights meet as E4M3 codes: rows coded, gate and up
 * with SwiGLU, products coded again, down; beside a device copy and dense FP8 products by cuBLASLt
 * (one scale for each matrix) of the same inputs and outputs, all in one run.
 * Usage: bench_fp8 [--quick]
 *
 * static: one scale for all rows, weights with one for each output. block: rows with one for each 128
 * columns, weights for each 128 x 128. Codes are random and not 0; a bank is larger than the L2
 * cache. Columns and ratios are those of bench_moe, but that a layer is without router and combine. */
#include "tests/bench/gpu/bench_weights.cuh"

#include <cstring>

struct Model {
    const char *name;
    int hidden, inter, experts, top_k;
};

static const Model models[] = {
    {"DeepSeek-V3, 32 local", 7168, 2048, 32, 1}, /* of a token's 8 choices, 1 in 8 is here */
    {"Qwen3-30B-A3B", 2048, 768, 128, 8},
    {"gpt-oss-20b", 2880, 2880, 32, 4},
};

static int padded(int k)
{
    return (k + 127) / 128 * 128;
}

struct Codes { /* of one bank */
    CudaFp8Gemm g = {};
    double bytes; /* of a matrix */

    Codes(int n_mats, int rows, int n_parts, int k, bool block, uint64_t seed)
    {
        int blocks = (rows + 127) / 128 * n_parts, steps = padded(k) / 128;
        int64_t scales = block ? (int64_t)blocks * steps : (int64_t)rows * n_parts;
        g.k_padded = padded(k);
        g.n_mats = n_mats;
        g.mat_rows = rows * n_parts;
        g.n_parts = n_parts;
        for (int i = 0; i < n_parts; i++)
            g.part[i] = {rows, i * rows, i * (rows + 127) / 128};
        g.blocks = block ? blocks : 0;
        g.scales_mat = scales;
        bytes = (double)g.mat_rows * g.k_padded + 4.0 * (double)scales;
        uint8_t *codes = device<uint8_t>((size_t)n_mats * g.mat_rows * g.k_padded);
        float *values = device<float>((size_t)(n_mats * scales));
        fill_codes<<<4096, 256>>>(codes, (int64_t)n_mats * g.mat_rows * g.k_padded, seed);
        fill_floats<<<256, 256>>>(values, n_mats * scales, 0x1p-10f);
        g.codes = codes;
        g.scales = values;
    }

    void release()
    {
        must(cudaFree((void *)g.codes), "free");
        must(cudaFree((void *)g.scales), "free");
    }
};

/* Rows of x in codes: of one scale for all, or one for each 128 columns. */
static void read_codes(CudaFp8Gemm &g, const void *x, bool block)
{
    g.x = x;
    g.x_pitch = g.k_padded + (block ? (g.k_padded / 128 * 4 + 15) / 16 * 16 : 0);
    g.x_scales_at = block ? g.k_padded : 0;
    g.x_scales_step = block;
    g.x_scale = block ? 1.0f : 0x1p-9f;
}

static double copy_bytes, dense_up, dense_down;

/* Every expert has `mean` rows, or a Zipf share of as many. */
static void run(const Model &m, bool block, const Codes &w13, const Codes &w2, int mean, bool zipf,
                bool decode)
{
    std::vector<int32_t> first(1, 0), row_of;
    double sum = 0;
    int most = 0, distinct = 0;
    for (int e = 0; e < m.experts; e++)
        sum += 1.0 / (1 + e);
    int tokens = std::max(1, mean * m.experts / m.top_k);
    for (int e = 0; e < m.experts; e++) { /* the hot ones are spread */
        int n = zipf ? (int)(mean * m.experts / (1 + (e * 37 + 11) % m.experts) / sum) : mean;
        for (int i = 0; i < n; i++)
            row_of.push_back((int32_t)(mix((uint64_t)e << 32 | (uint64_t)i) % (uint32_t)tokens));
        first.push_back((int32_t)row_of.size());
        most = std::max(most, n);
        distinct += n > 0;
    }
    int pairs = (int)row_of.size(), n = decode ? 20 : 7;
    int32_t *first_dev = device<int32_t>(first.size()), *row_dev = device<int32_t>(row_of.size());
    must(cudaMemcpy(first_dev, first.data(), first.size() * 4, cudaMemcpyHostToDevice), "copy");
    must(cudaMemcpy(row_dev, row_of.data(), row_of.size() * 4, cudaMemcpyHostToDevice), "copy");
    CudaFp8Gemm up = w13.g, down = w2.g;
    read_codes(up, nullptr, block);
    read_codes(down, nullptr, block);
    __nv_bfloat16 *x = device<__nv_bfloat16>((size_t)tokens * m.hidden),
                  *inner = device<__nv_bfloat16>((size_t)pairs * m.inter),
                  *y = device<__nv_bfloat16>((size_t)pairs * m.hidden);
    char *coded = device<char>((size_t)tokens * (size_t)up.x_pitch),
         *inner_coded = device<char>((size_t)pairs * (size_t)down.x_pitch);
    fill_rows<<<1024, 256>>>(x, (int64_t)tokens * m.hidden, 3);
    RowFormat format = {block ? ROWS_FP8_GROUP : ROWS_FP8_STATIC, 0x1p-9f, false};
    up.x = coded;
    up.x_row = row_dev;
    up.first = down.first = first_dev;
    up.n_rows = down.n_rows = pairs;
    up.epilogue = CUDA_GATED;
    up.act = {ACT_SWIGLU, 1, 0, INFINITY};
    up.y = block ? (void *)inner : (void *)inner_coded;
    up.y_stride = block ? m.inter : down.x_pitch;
    up.y_codes = !block;
    up.y_scale = 0x1p9f;
    up.y_fill = block ? 0 : (int)down.x_pitch;
    down.x = inner_coded;
    down.y = y;
    down.y_stride = m.hidden;
    auto code = [&] {
        must(cuda_fp8_rows_launch(coded, up.x_pitch, x, m.hidden, tokens, nullptr, m.hidden,
                                  &format, nullptr),
             "codes of rows");
    };
    auto code_inner = [&] {
        if (block)
            must(cuda_fp8_rows_launch(inner_coded, down.x_pitch, inner, m.inter, pairs, nullptr,
                                      m.inter, &format, nullptr),
                 "codes of products");
    };
    code();
    double up_ms = time_ms(n, [&](int) { must(cuda_fp8_gemm_launch(&up, nullptr), "up"); });
    code_inner();
    double down_ms = time_ms(n, [&](int) { must(cuda_fp8_gemm_launch(&down, nullptr), "down"); });
    double all = time_ms(n, [&](int) {
        code();
        must(cuda_fp8_gemm_launch(&up, nullptr), "up");
        code_inner();
        must(cuda_fp8_gemm_launch(&down, nullptr), "down");
    });
    double f13 = 4.0 * pairs * m.inter * m.hidden, f2 = f13 / 2;
    double b13 = w13.bytes * distinct, b2 = w2.bytes * distinct;
    printf("%-22s %-6s %-8s %6d %5d %5d | %8.3f %8.3f %8.3f ms |", m.name,
           block ? "block" : "static", zipf ? "zipf" : "uniform", tokens,
           pairs / std::max(1, distinct), most, up_ms, down_ms, all);
    if (decode)
        printf(" bytes/copy: up %.3f down %.3f layer %.3f\n", b13 / up_ms * 1e3 / copy_bytes,
               b2 / down_ms * 1e3 / copy_bytes, (b13 + b2) / all * 1e3 / copy_bytes);
    else
        printf(" flops/dense: up %.3f down %.3f layer %.3f (%.0f TF)\n",
               f13 / up_ms * 1e3 / dense_up, f2 / down_ms * 1e3 / dense_down,
               (f13 + f2) / all * 1e3 / ((f13 + f2) / (f13 / dense_up + f2 / dense_down)),
               (f13 + f2) / all * 1e-9);
    for (void *p : {(void *)first_dev, (void *)row_dev, (void *)x, (void *)inner, (void *)y,
                    (void *)coded, (void *)inner_coded})
        must(cudaFree(p), "free");
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    copy_bytes = copy_rate();
    printf("device copy %.2f TB/s (read and written); dense FP8 8192^3 %.0f TFLOP/s\n",
           copy_bytes * 1e-12, dense_rate(8192, 8192, 8192, true) * 1e-12);
    printf("model                  codes  routing  tokens  mean  most |       up     down    layer "
           "   | ratios\n");
    for (const Model &m : models) {
        if (quick && &m == models + 2)
            continue;
        dense_up = dense_rate(8192, 2 * m.inter, padded(m.hidden), true);
        dense_down = dense_rate(8192, m.hidden, padded(m.inter), true);
        printf("%s: dense FP8 %.0f and %.0f TFLOP/s\n", m.name, dense_up * 1e-12,
               dense_down * 1e-12);
        for (bool block : {false, true}) {
            Codes w13(m.experts, m.inter, 2, m.hidden, block, 1),
                w2(m.experts, m.hidden, 1, m.inter, block, 2);
            for (int rows : {1, 8, 32})
                run(m, block, w13, w2, rows, false, true);
            run(m, block, w13, w2, 8, true, true);
            for (int rows : {256, 1024})
                run(m, block, w13, w2, rows, false, false);
            run(m, block, w13, w2, 1024, true, false);
            w13.release();
            w2.release();
        }
    }
    return 0;
}
