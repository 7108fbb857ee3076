/* kernels/cuda/sample_scan.cu - rows of logits looked through once, for sample.cu to settle on tokens.
 * Tile    scan: 8192 logits per block, 1024 in the registers of a warp: the largest of each 256, the sum
 *         of exp below the warp's own maximum, the edits of the row. weigh: the weights of 256 ids per 8
 *         threads, for rows that draw from all.
 * Budget  4 bytes per logit, read once; 256 rows of 151936 are 156 MB, 32 us at 4.8 TB/s. Edits write
 *         another 4 bytes; weights take an exp in double each, of 36 operations: 100 us.
 * Why     a choice takes the CPU's weights (exp_log.h without fused operations) and adds them in the
 *         CPU's order. Log-probabilities need no such care: float32 terms, added in an order that depends
 *         on the vocabulary alone. */
#include "kernels/cuda/sample.cuh"

namespace
{

constexpr int SCAN_WARPS = 8, CHUNK = SCAN_WARPS * UNIT, PEAKS = UNIT / BLOCK;

/* The largest of the warp's unit; those of its blocks go to where they are wanted. */
__device__ __forceinline__ float find_peaks(const float (&x)[EACH], float *to, float *to_choice,
                                            int unit, int n_blocks, int lane)
{
    float all = -INFINITY;
#pragma unroll
    for (int q = 0; q < PEAKS; q++) {
        float peak = -INFINITY;
#pragma unroll
        for (int j = 0; j < EACH / PEAKS; j++)
            peak = fmaxf(peak, x[q * (EACH / PEAKS) + j]);
        if (to || to_choice) {
            int block = unit * PEAKS + q;
            peak = warp_max(peak);
            if (to && lane == 0 && block < n_blocks)
                to[block] = peak;
            if (to_choice && lane == 0 && block < n_blocks)
                to_choice[block] = peak;
        }
        all = fmaxf(all, peak);
    }
    return warp_max(all);
}

__device__ __forceinline__ bool any_wrong(const float (&x)[EACH])
{
    bool wrong = false;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        wrong |= !(x[j] < INFINITY);
    return __any_sync(ALL, wrong);
}

/* Of exp(x - max), by lanes, then over lanes. Nothing is decided by it. */
__device__ __forceinline__ float sum_of_exp(const float (&x)[EACH], float max)
{
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < EACH; j++)
        part[j % 4] += __expf(x[j] - max);
    return warp_sum((part[0] + part[1]) + (part[2] + part[3]));
}

__global__ void __launch_bounds__(SCAN_WARPS * 32, 3) scan_kernel(CudaSample s)
{
    __shared__ float own[CHUNK];
    int n_chunks = (s.vocab + CHUNK - 1) / CHUNK, row = (int)blockIdx.x / n_chunks;
    int chunk = (int)blockIdx.x % n_chunks * CHUNK;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int from = chunk + warp * UNIT + lane, unit = chunk / UNIT + warp;
    const SampleRow &ask = s.rows[row];
    const float *logits = s.logits + (int64_t)row * s.vocab;
    float *peaks = s.peaks + (int64_t)row * s.n_blocks;
    float *choice_peaks = ask.temperature > 0 ? s.choice_peaks + (int64_t)row * s.n_blocks : nullptr;
    float x[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = from + j * 32;
        x[j] = i < s.vocab ? logits[i] * s.scale : -INFINITY;
    }
    bool reports = ask.given >= 0 || ask.logprob || ask.n_top > 0;
    bool ranks = ask.n_top > 0 || (ask.given < 0 && reports);
    CudaUnit u = {};
    u.wrong = any_wrong(x) ? 1 : 0;
    /* Where all of the chunk may be chosen as it is, one look is enough. */
    bool same = ask.given < 0 && !is_changed(ask) && chunk + CHUNK <= s.n_ids;
    u.max = find_peaks(x, ranks ? peaks : nullptr, same ? choice_peaks : nullptr, unit, s.n_blocks,
                       lane);
    u.best = u.max;
    if (reports && u.max > -INFINITY)
        u.sum = sum_of_exp(x, u.max);
    if (ask.given >= 0) {
        float v = logits[ask.given] * s.scale;
        int before = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            before += x[j] > v || (x[j] == v && from + j * 32 < ask.given);
        u.before = __reduce_add_sync(ALL, before);
    } else if (!same) {
        if (is_changed(ask)) {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                own[warp * UNIT + j * 32 + lane] =
                    ask.only_edited || from + j * 32 >= s.n_ids ? -INFINITY : x[j];
            __syncthreads();
            for (int k = (int)threadIdx.x; k < ask.n_edits; k += SCAN_WARPS * 32) {
                LogitEdit edit = ask.edits[k];
                int at = edit.id - chunk;
                if (at >= 0 && at < CHUNK)
                    own[at] = logit_edit_apply(&edit, &ask, logits[edit.id] * s.scale);
            }
            __syncthreads();
            float *changed = s.changed + (int64_t)row * s.vocab;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                int i = from + j * 32;
                x[j] = own[warp * UNIT + j * 32 + lane];
                if (i < s.vocab)
                    changed[i] = x[j];
            }
            u.wrong |= any_wrong(x) ? 2 : 0;
        } else {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                x[j] = from + j * 32 < s.n_ids ? x[j] : -INFINITY;
        }
        u.best = find_peaks(x, nullptr, choice_peaks, unit, s.n_blocks, lane);
    }
    if (lane == 0 && unit < s.n_units)
        s.units[(int64_t)row * s.n_units + unit] = u;
}

/* Rows that draw and are not cut by top_k. */
__global__ void __launch_bounds__(SCAN_WARPS * 32) weigh_kernel(CudaSample s)
{
    __shared__ float warp_best[SCAN_WARPS];
    constexpr int BLOCKS = CHUNK / BLOCK; /* eight threads each */
    int n_chunks = (s.n_blocks + BLOCKS - 1) / BLOCKS, row = (int)blockIdx.x / n_chunks;
    int block = (int)blockIdx.x % n_chunks * BLOCKS + (int)threadIdx.x / 8;
    const SampleRow &ask = s.rows[row];
    if (ask.given >= 0 || ask.temperature == 0 || has_top_k(ask, s.vocab))
        return;
    float best = -INFINITY;
    for (int u = (int)threadIdx.x; u < s.n_units; u += SCAN_WARPS * 32)
        best = fmaxf(best, s.units[(int64_t)row * s.n_units + u].best);
    best = warp_max(best);
    if (threadIdx.x % 32 == 0)
        warp_best[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 0; w < SCAN_WARPS; w++)
        best = fmaxf(best, warp_best[w]);
    Measure by = {false, best, ask.temperature, ask.min_p};
    double sum = block < s.n_blocks
                     ? sum_of_lane(choice_view(s, row), by, block, (int)threadIdx.x % 8)
                     : 0;
    sum = add_lanes(sum);
    if (threadIdx.x % 8 == 0 && block < s.n_blocks)
        s.sums[(int64_t)row * s.n_blocks + block] = sum;
}

} // namespace

int cuda_sample_scan_launch(const CudaSample *s, bool weigh, void *stream)
{
    unsigned chunks = (unsigned)s->n * blocks_of(s->vocab, CHUNK);
    scan_kernel<<<chunks, SCAN_WARPS * 32, 0, (cudaStream_t)stream>>>(*s);
    if (weigh)
        weigh_kernel<<<chunks, SCAN_WARPS * 32, 0, (cudaStream_t)stream>>>(*s);
    return cudaGetLastError();
}
