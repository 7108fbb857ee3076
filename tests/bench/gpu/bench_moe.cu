/* tests/bench/gpu/bench_moe.cu - the expert layers of a step, and the two grouped products in them,
 * beside a device copy and dense bf16 products by cuBLASLt of the same FLOPs, all in one run.
 * Usage: bench_moe [--quick]
 *
 * A layer is what lies between the router's logits and the token's sum, but for the grouping of its
 * choices, which bench_exchange_device times: top-k, gate and up with SwiGLU, down, combine; rows
 * are gathered by the first product. Weights are random and
 * not 0; they are larger than the L2 cache, or several layers take turns. Routing is uniform, or
 * Zipf (s = 1) over the experts.
 *   prefill  FLOPs of the two products in the layer's time / those of dense products of all its
 *           rows
 *   decode   bytes of the distinct experts' weights in the layer's time / bytes of a copy, both
 *           ways */
#include "tests/bench/gpu/bench_weights.cuh"

#include <cmath>
#include <cstring>

struct Model {
    const char *name;
    int hidden, inter, experts, top_k, layers; /* experts on this rank; layers that take turns */
    double share;                              /* of all experts */
};

static const Model models[] = {
    {"gpt-oss-20b", 2880, 2880, 32, 4, 2, 1},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 1, 1},
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, 2, 1},
    {"DeepSeek-V3, 32 local", 7168, 2048, 32, 8, 1, 32.0 / 256},
};

/* Expert choices of tokens, as the router and the exchange leave them: pairs grouped by expert. */
struct Routing {
    std::vector<int32_t> row_of, first, slot;
    int pairs = 0, distinct = 0, most = 0;

    Routing(const Model &m, int tokens, bool zipf, uint64_t seed)
    {
        int all = (int)std::lround(m.experts / m.share);
        std::vector<double> upto((size_t)all);
        double sum = 0;
        for (int e = 0; e < all; e++) /* the hot ones are spread over the ranks */
            upto[(size_t)e] = sum += zipf ? 1.0 / (1 + (e * 37 + 11) % all) : 1.0;
        std::vector<std::vector<int32_t>> rows((size_t)m.experts);
        std::vector<std::vector<int32_t>> slots((size_t)m.experts);
        slot.assign((size_t)tokens * m.top_k, -1);
        uint64_t draw = seed << 32;
        for (int t = 0; t < tokens; t++) {
            std::vector<int> chosen;
            while ((int)chosen.size() < m.top_k) {
                double at = mix(draw++) * 0x1p-32 * sum;
                int e = (int)(std::upper_bound(upto.begin(), upto.end(), at) - upto.begin());
                if (e < all && std::find(chosen.begin(), chosen.end(), e) == chosen.end())
                    chosen.push_back(e);
            }
            for (int s = 0; s < m.top_k; s++)
                if (chosen[(size_t)s] < m.experts) {
                    rows[(size_t)chosen[(size_t)s]].push_back(t);
                    slots[(size_t)chosen[(size_t)s]].push_back(t * m.top_k + s);
                }
        }
        first.push_back(0);
        for (int e = 0; e < m.experts; e++) {
            for (size_t i = 0; i < rows[(size_t)e].size(); i++) {
                slot[(size_t)slots[(size_t)e][i]] = (int32_t)row_of.size();
                row_of.push_back(rows[(size_t)e][i]);
            }
            distinct += !rows[(size_t)e].empty();
            most = std::max(most, (int)rows[(size_t)e].size());
            first.push_back((int32_t)row_of.size());
        }
        pairs = (int)row_of.size();
    }
};

template <typename T> static T *to_device(const std::vector<T> &v)
{
    T *p = device<T>(v.empty() ? 1 : v.size());
    must(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    return p;
}

struct Layer { /* buffers of a run */
    const Model &m;
    const Routing &r;
    int32_t *row_of, *first, *slot, *expert, *bad;
    float *weight, *logits;
    uint64_t *load;
    __nv_bfloat16 *x, *inner, *rows, *y;
    int tokens;

    Layer(const Model &m_, const Routing &r_, int tokens_) : m(m_), r(r_), tokens(tokens_)
    {
        row_of = to_device(r.row_of);
        first = to_device(r.first);
        slot = to_device(r.slot);
        size_t choices = (size_t)tokens * m.top_k;
        expert = device<int32_t>(choices);
        bad = device<int32_t>(1);
        weight = device<float>(choices);
        load = device<uint64_t>((size_t)m.experts);
        logits = device<float>((size_t)tokens * m.experts);
        must(cudaMemset(logits, 0, (size_t)tokens * m.experts * 4), "memset");
        x = device<__nv_bfloat16>((size_t)tokens * m.hidden);
        inner = device<__nv_bfloat16>((size_t)r.pairs * m.inter);
        rows = device<__nv_bfloat16>((size_t)r.pairs * m.hidden);
        y = device<__nv_bfloat16>((size_t)tokens * m.hidden);
        fill_rows<<<1024, 256>>>(x, (int64_t)tokens * m.hidden, 3);
        must(cudaMemset(inner, 0, (size_t)r.pairs * m.inter * 2), "memset");
    }

    ~Layer()
    {
        for (void *p : {(void *)row_of, (void *)first, (void *)slot, (void *)expert, (void *)bad,
                        (void *)weight, (void *)load, (void *)logits, (void *)x, (void *)inner,
                        (void *)rows, (void *)y})
            must(cudaFree(p), "free");
    }

    CudaGemm up(const Bank &w) const
    {
        CudaGemm g = w.gemm();
        g.x = x;
        g.x_stride = m.hidden;
        g.x_row = row_of;
        g.x_room = rows;
        g.y = inner;
        g.y_stride = m.inter;
        g.first = first;
        g.n_mats = m.experts;
        g.n_rows = r.pairs;
        g.epilogue = CUDA_GATED;
        g.act = {ACT_SWIGLU, 1.702f, 1, 7};
        return g;
    }

    CudaGemm down(const Bank &w) const
    {
        CudaGemm g = w.gemm();
        g.x = inner;
        g.x_stride = m.inter;
        g.y = rows;
        g.y_stride = m.hidden;
        g.first = first;
        g.n_mats = m.experts;
        g.n_rows = r.pairs;
        g.follows = true;
        return g;
    }
};

static const char *codec_name(SlabCodec c)
{
    return c == SLAB_BF16 ? "bf16" : c == SLAB_MXFP4 ? "mxfp4" : c == SLAB_NVFP4 ? "nvfp4" : "fp8";
}

static double copy_bytes;

/* FLOPs in a second of a dense product, each shape measured once. */
static double dense(int m, int n, int k)
{
    static std::vector<std::pair<std::vector<int>, double>> known;
    for (const auto &one : known)
        if (one.first == std::vector<int>{m, n, k})
            return one.second;
    known.push_back({{m, n, k}, dense_rate(m, n, k)});
    return known.back().second;
}

static void run(const Model &m, SlabCodec codec, std::vector<Bank> &w13, std::vector<Bank> &w2,
                int tokens, bool zipf, bool decode)
{
    Routing r(m, tokens, zipf, 5);
    if (r.pairs == 0)
        return;
    Layer l(m, r, tokens);
    RouterSpec spec = {
        ROUTER_TOPK_SOFTMAX, m.experts, std::min(m.top_k, m.experts), 1, 1, true, 0, 1};
    int n = decode ? 20 : 5;
    double up = time_ms(n, [&](int i) {
        CudaGemm g = l.up(w13[(size_t)i % w13.size()]);
        must(cuda_gemm_launch(&g, nullptr), "gate and up");
    });
    double down = time_ms(n, [&](int i) {
        CudaGemm g = l.down(w2[(size_t)i % w2.size()]);
        must(cuda_gemm_launch(&g, nullptr), "down");
    });
    double all = time_ms(n, [&](int i) {
        must(cuda_route_launch(l.expert, l.weight, l.load, l.bad, l.logits, nullptr, tokens,
                               nullptr, &spec, nullptr),
             "route");
        CudaGemm g = l.up(w13[(size_t)i % w13.size()]);
        must(cuda_gemm_launch(&g, nullptr), "gate and up");
        g = l.down(w2[(size_t)i % w2.size()]);
        must(cuda_gemm_launch(&g, nullptr), "down");
        must(cuda_combine_launch(l.y, l.rows, l.slot, l.weight, nullptr, tokens, m.top_k, m.hidden,
                                 nullptr),
             "combine");
    });
    double f13 = 4.0 * r.pairs * m.inter * m.hidden, f2 = f13 / 2;
    double b13 = (double)w13[0].bytes * r.distinct, b2 = (double)w2[0].bytes * r.distinct;
    printf("%-22s %-6s %-8s %6d %5d %5d | %8.3f %8.3f %8.3f ms |", m.name, codec_name(codec),
           zipf ? "zipf" : "uniform", tokens, r.pairs / std::max(1, r.distinct), r.most, up, down,
           all);
    if (decode)
        printf(" bytes/copy: up %.3f down %.3f layer %.3f\n", b13 / up * 1e3 / copy_bytes,
               b2 / down * 1e3 / copy_bytes, (b13 + b2) / all * 1e3 / copy_bytes);
    else {
        double d13 = dense(r.pairs, 2 * m.inter, m.hidden), d2 = dense(r.pairs, m.hidden, m.inter);
        printf(" flops/dense: up %.3f down %.3f layer %.3f (%.0f TF)\n", f13 / up * 1e3 / d13,
               f2 / down * 1e3 / d2, (f13 + f2) / all * 1e3 / ((f13 + f2) / (f13 / d13 + f2 / d2)),
               (f13 + f2) / all * 1e-9);
    }
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    copy_bytes = copy_rate();
    printf("device copy %.2f TB/s (read and written); dense bf16 8192^3 %.0f TFLOP/s\n",
           copy_bytes * 1e-12, dense_rate(8192, 8192, 8192) * 1e-12);
    printf("model                  codes  routing  tokens  mean  most |       up     down    layer "
           "   | ratios\n");
    for (const Model &m : models) {
        if (quick && &m != models && &m != models + 2)
            continue;
        for (SlabCodec codec : {SLAB_BF16, SLAB_MXFP4, SLAB_NVFP4}) {
            if (quick && codec == SLAB_NVFP4)
                continue;
            std::vector<Bank> w13, w2;
            for (int i = 0; i < m.layers; i++) {
                w13.emplace_back(codec, m.experts, m.inter, m.hidden, true, (uint64_t)i * 7 + 1);
                w2.emplace_back(codec, m.experts, m.hidden, m.inter, false, (uint64_t)i * 7 + 2);
            }
            for (bool zipf : {false, true}) {
                double per = (double)m.experts / m.top_k / m.share; /* tokens for a row an expert */
                for (double rows : {1.0, 4.0, 8.0, 32.0})
                    if (!zipf || rows == 8.0)
                        run(m, codec, w13, w2, (int)(rows * per), zipf, true);
                for (double rows : {64.0, 128.0}) /* a decode step of many sequences */
                    if (!zipf)
                        run(m, codec, w13, w2, (int)(rows * per), zipf, false);
                for (int tokens : {8192, 32768})
                    run(m, codec, w13, w2, tokens, zipf, false);
            }
            for (size_t i = 0; i < w13.size(); i++) {
                w13[i].release();
                w2[i].release();
            }
        }
    }
    return 0;
}
