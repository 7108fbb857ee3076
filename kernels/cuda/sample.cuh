/* kernels/cuda/sample.cuh - what the two halves of sampling share (sample_scan.cu, sample.cu): a row of
 * logits as a choice sees it, and the weights of its ids.
 *
 * Both are compiled with -fmad=false: a weight has the bits that jobs/logit_scan.h gives it. */
#ifndef MB_KERNELS_CUDA_SAMPLE_CUH
#define MB_KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/device.cuh"

namespace
{

constexpr int BLOCK = CUDA_SAMPLE_BLOCK, UNIT = CUDA_SAMPLE_UNIT, EACH = UNIT / 32;
constexpr unsigned ALL = 0xffffffffu;

static_assert(BLOCK == 8 * 32 && UNIT % BLOCK == 0, "a warp reads a block in eight steps");

/* Logits of a row as seen by a choice, or as the model gave them. */
struct View {
    const float *x, *peaks; /* peaks: the largest of each BLOCK */
    float scale;
    int vocab, limit; /* ids from limit on are out */

    __device__ float at(int i) const
    {
        return i < limit ? x[i] * scale : -INFINITY;
    }
};

/* By what ids are ordered: the weight of the draw, or the logit itself. */
struct Measure {
    bool by_logit;
    double max, temperature, min_p;

    __device__ double of(float x) const
    {
        if (by_logit)
            return x;
        double d = (double)x - max;
        double w = exp_of_negative(temperature == 1 ? d : d / temperature);
        return w < min_p ? 0 : w;
    }
    /* More than rounding can move the logit of a given weight. */
    __device__ double slack(double x) const
    {
        return by_logit ? 0 : temperature * 1e-12 + (fabs(max) + fabs(x)) * 1e-14;
    }
    /* No id below has this weight. */
    __device__ double floor_of(double weight) const
    {
        return max + temperature * (log(weight) - 1e-6) - fabs(max) * 1e-12;
    }
};

__device__ __forceinline__ bool is_changed(const SampleRow &ask)
{
    return ask.only_edited || ask.n_edits > 0;
}

__device__ __forceinline__ bool has_top_k(const SampleRow &ask, int vocab)
{
    return ask.top_k > 0 && ask.top_k < vocab;
}

__device__ __forceinline__ View choice_view(const CudaSample &s, int row)
{
    int64_t at = (int64_t)row * s.vocab, peaks = (int64_t)row * s.n_blocks;
    if (is_changed(s.rows[row]))
        return {s.changed + at, s.choice_peaks + peaks, 1.0f, s.vocab, s.vocab};
    return {s.logits + at, s.choice_peaks + peaks, s.scale, s.vocab, s.n_ids};
}

/* Lane t of eight: of the weights of a block those at t, t + 8, ...; what is left of a last block
 * goes to lane 0. With the lanes added in pairs, the order of logit_scan.h. */
__device__ __forceinline__ double sum_of_lane(const View &v, const Measure &by, int block, int t)
{
    int at = block * BLOCK, n = min(v.vocab - at, BLOCK), whole = n / 8 * 8;
    double sum = 0;
    for (int i = t; i < whole; i += 8)
        sum += by.of(v.at(at + i));
    for (int i = whole; t == 0 && i < n; i++)
        sum += by.of(v.at(at + i));
    return sum;
}

__device__ __forceinline__ double add_lanes(double sum)
{
    for (int i = 1; i < 8; i *= 2)
        sum += __shfl_xor_sync(ALL, sum, i);
    return sum;
}

} // namespace

/* The first half; returns once queued. */
int cuda_sample_scan_launch(const CudaSample *s, bool weigh, void *stream);

#endif
