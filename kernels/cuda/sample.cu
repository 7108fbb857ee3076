/* kernels/cuda/sample.cu - from rows of logits to token ids and their log-probabilities (contract.md
 * section 3), with the choices of jobs/sampling.c.
 * Tile    scan: 8192 logits per block, 1024 in the registers of a warp: the largest of each 256, the
 *         best id, the sum of exp below the warp's own maximum, the edits of the row. weigh: the
 *         weights of 256 ids per 8 threads, for rows that draw from all. settle: a block per row: adds
 *         up what the warps found, and cuts, draws, ranks, as far as the row asks for it.
 * Budget  4 bytes per logit, read once; 256 rows of 151936 are 156 MB, 32 us at 4.8 TB/s. Edits write
 *         and read another 4 bytes, a draw reads twice more and has an exp in double per logit; top_k
 *         and top_p look only where the largest of 256 reaches far enough.
 * Why     a choice takes the CPU's weights (exp_log.h without fused operations) and adds them in the
 *         CPU's order; a cut is found in sums of integers, which have no order. Log-probabilities need
 *         no such care: float32 terms, added in an order that depends on the vocabulary alone. */
#include "kernels/cuda/device.cuh"

namespace
{

constexpr int BLOCK = CUDA_SAMPLE_BLOCK, UNIT = CUDA_SAMPLE_UNIT, EACH = UNIT / 32;
constexpr int SCAN_WARPS = 8, CHUNK = SCAN_WARPS * UNIT, PEAKS = UNIT / BLOCK;
constexpr int THREADS = 512, WARPS = THREADS / 32, BINS = 4 * THREADS, LIST = 4096;
constexpr unsigned ALL = 0xffffffffu;
/* Weights are at most 1 and add up below 2^63: CUDA_SAMPLE_VOCAB is 2^19. */
constexpr double UNITS_OF_WEIGHT = 0x1p44;

static_assert(CUDA_SAMPLE_VOCAB <= 1 << 19, "sums of weights as integers");
static_assert(sizeof(Sampled) % 4 == 0 && sizeof(Sampled) / 4 <= THREADS, "cleared a word per thread");
static_assert(BLOCK == 8 * 32 && UNIT % BLOCK == 0, "a warp reads a block in eight steps");

typedef unsigned long long Mass;

/* Logits of a row as seen by a choice, or as the model gave them. */
struct View {
    const float *x, *peaks; /* peaks: the largest of each BLOCK */
    float scale;
    int vocab, limit; /* ids from limit on are out */

    __device__ float at(int i) const { return i < limit ? x[i] * scale : -INFINITY; }
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

/* The last id that stays, best first, ties to the lower id. */
struct Cut {
    double weight;
    int32_t id;
    double above, below; /* logits beyond them are surely kept, surely out */
};

__device__ __forceinline__ Cut no_cut()
{
    return {-INFINITY, INT_MAX, -INFINITY, -INFINITY};
}

__device__ __forceinline__ bool keeps(const Cut &cut, const Measure &by, float x, int i)
{
    if (x > cut.above)
        return true;
    if (x < cut.below)
        return false;
    double w = by.of(x);
    return w > cut.weight || (w == cut.weight && i <= cut.id);
}

/* What the threads of a settling block share. */
struct Shared {
    Mass *bins;      /* [BINS] */
    double *sums;    /* [n_blocks] of weights */
    float *peaks;    /* [n_blocks] */
    uint32_t *ties;  /* [n_blocks] */
    float *list_x;   /* [LIST] */
    int32_t *list_id; /* [LIST] */
    Mass warp_mass[WARPS];
    Mass before;
    double total, target;
    float max, best, level;
    int32_t best_id, given_rank, wrong, n_list, found, id, n_above, count;
    double log_sum;
    int32_t top_id[MAX_LOGPROBS];
    float top_x[MAX_LOGPROBS];
};

__device__ __forceinline__ uint32_t key_of(float x)
{
    uint32_t u = __float_as_uint(x + 0.0f); /* one zero */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

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

/* --- scan --- */

/* The largest of each block of the warp's unit, and of all. */
__device__ __forceinline__ float find_peaks(const float (&x)[EACH], float *peaks, int unit,
                                            int n_blocks, int lane)
{
    float all = -INFINITY;
#pragma unroll
    for (int q = 0; q < PEAKS; q++) {
        float peak = -INFINITY;
#pragma unroll
        for (int j = 0; j < EACH / PEAKS; j++)
            peak = fmaxf(peak, x[q * (EACH / PEAKS) + j]);
        if (peaks) {
            peak = warp_max(peak);
            if (lane == 0 && unit * PEAKS + q < n_blocks)
                peaks[unit * PEAKS + q] = peak;
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

/* Of exp(x - max), by lanes, then over lanes. */
__device__ __forceinline__ float sum_of_exp(const float (&x)[EACH], float max)
{
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < EACH; j++)
        part[j % 4] += expf(x[j] - max);
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
    float *choice_peaks = s.choice_peaks + (int64_t)row * s.n_blocks;
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
    u.max = find_peaks(x, ranks ? peaks : nullptr, unit, s.n_blocks, lane);
    if (reports && u.max > -INFINITY)
        u.sum = sum_of_exp(x, u.max);
    if (ask.given >= 0) {
        float v = logits[ask.given] * s.scale;
        int before = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            before += x[j] > v || (x[j] == v && from + j * 32 < ask.given);
        u.before = __reduce_add_sync(ALL, before);
    } else {
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
        } else if (chunk + CHUNK > s.n_ids) {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                x[j] = from + j * 32 < s.n_ids ? x[j] : -INFINITY;
        }
        u.best = find_peaks(x, ask.temperature > 0 ? choice_peaks : nullptr, unit, s.n_blocks, lane);
        int id = INT_MAX;
#pragma unroll
        for (int j = EACH - 1; j >= 0; j--)
            id = x[j] == u.best ? from + j * 32 : id;
        u.best_id = __reduce_min_sync(ALL, id);
    }
    if (lane == 0 && unit < s.n_units)
        s.units[(int64_t)row * s.n_units + unit] = u;
}

/* --- sums of weights --- */

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

/* --- settle: a row's ids in question --- */

/* f(block) by whole warps, for the blocks whose largest logit is at least low. */
template <class F>
__device__ __forceinline__ void for_blocks(const View &v, int n_blocks, double low, F f)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int base = 0; base < n_blocks; base += THREADS) {
        int mine = base + lane * WARPS + warp;
        unsigned left = __ballot_sync(ALL, mine < n_blocks && v.peaks[mine] >= low);
        for (; left; left &= left - 1)
            f(base + (__ffs((int)left) - 1) * WARPS + warp);
    }
}

/* The ids whose logit is at least low and that prev keeps; up to LIST of them stand in a list. */
struct Candidates {
    const View &v;
    const Measure &by;
    double low;
    Cut prev;
    int n_blocks;

    __device__ bool has(float x, int i) const
    {
        return i < v.vocab && x >= low && keeps(prev, by, x, i);
    }
    template <class F> __device__ void for_each(Shared &sh, F f) const
    {
        if (sh.n_list <= LIST) {
            for (int k = (int)threadIdx.x; k < sh.n_list; k += THREADS)
                f(sh.list_x[k], sh.list_id[k]);
            return;
        }
        for_blocks(v, n_blocks, low, [&](int block) {
            for (int i = block * BLOCK + (int)threadIdx.x % 32; i < (block + 1) * BLOCK; i += 32) {
                float x = v.at(i);
                if (has(x, i))
                    f(x, i);
            }
        });
    }
    /* Makes the list. */
    __device__ void gather(Shared &sh) const
    {
        int lane = threadIdx.x % 32;
        __syncthreads();
        if (threadIdx.x == 0)
            sh.n_list = 0;
        __syncthreads();
        for_blocks(v, n_blocks, low, [&](int block) {
            for (int i = block * BLOCK + lane; i < (block + 1) * BLOCK; i += 32) {
                float x = v.at(i);
                bool take = has(x, i);
                unsigned takers = __ballot_sync(ALL, take);
                int at = 0;
                if (lane == 0 && takers)
                    at = atomicAdd(&sh.n_list, __popc(takers));
                at = __shfl_sync(ALL, at, 0) + __popc(takers & ((1u << lane) - 1));
                if (take && at < LIST) {
                    sh.list_x[at] = x;
                    sh.list_id[at] = i;
                }
            }
        });
        __syncthreads();
    }
};

/* The sum of mass over the threads before this one. */
__device__ __forceinline__ Mass mass_before(Shared &sh, Mass mass)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Mass sum = mass, before = 0;
    for (int d = 1; d < 32; d *= 2) {
        Mass other = __shfl_up_sync(ALL, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        sh.warp_mass[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        before += sh.warp_mass[w];
    return before + sum - mass;
}

__device__ __forceinline__ Mass mass_of(const Measure &by, bool counting, float x)
{
    return counting ? 1 : (Mass)(by.of(x) * UNITS_OF_WEIGHT + 0.5);
}

/* The logit down to which the candidates, best first, first have the mass target; sh.before is the
 * mass of all larger ones. False when they never have it. */
__device__ bool find_level(Shared &sh, const Candidates &all, float top, bool counting, Mass target,
                           float *level)
{
    uint32_t low = key_of(__double2float_rd(all.low)), high = key_of(top);
    Mass above = 0;
    for (;;) {
        uint32_t span = high - low;
        int shift = span < BINS ? 0 : 32 - __clz((int)span) - (31 - __clz(BINS));
        __syncthreads();
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
            sh.bins[i] = 0;
        if (threadIdx.x == 0)
            sh.found = -1;
        __syncthreads();
        all.for_each(sh, [&](float x, int) {
            uint32_t key = key_of(x);
            if (key >= low && key <= high)
                atomicAdd(&sh.bins[(key - low) >> shift], mass_of(all.by, counting, x));
        });
        __syncthreads();
        int last = BINS - 1 - 4 * (int)threadIdx.x; /* from here down: this thread's */
        Mass here = sh.bins[last] + sh.bins[last - 1] + sh.bins[last - 2] + sh.bins[last - 3];
        Mass before = above + mass_before(sh, here);
        if (before < target && before + here >= target) {
            while (before + sh.bins[last] < target)
                before += sh.bins[last--];
            sh.found = last;
            sh.before = before;
        }
        __syncthreads();
        if (sh.found < 0)
            return false;
        above = sh.before;
        low += (uint32_t)sh.found << shift;
        if (shift == 0)
            break;
        high = min(high, low + ((1u << shift) - 1));
    }
    *level = value_of(low);
    return true;
}

/* Among those of the cut's weight the one at place need (1: the lowest id), or the last. */
__device__ void find_tied(Shared &sh, const Candidates &all, const Cut &cut, Mass need)
{
    int lane = threadIdx.x % 32, block = -1;
    Mass seen = 0, ahead = 0;
    for (int base = 0; base < all.n_blocks && seen < need; base += 32) {
        uint32_t n = base + lane < all.n_blocks ? sh.ties[base + lane] : 0, sum = n;
        for (int d = 1; d < 32; d *= 2) {
            uint32_t other = __shfl_up_sync(ALL, sum, d);
            sum += lane >= d ? other : 0;
        }
        unsigned reached = __ballot_sync(ALL, n > 0 && seen + sum - n < need);
        if (reached) { /* the last block that starts before the place: it is there, or further on */
            int at = 31 - __clz((int)reached);
            block = base + at;
            ahead = seen + __shfl_sync(ALL, sum - n, at);
        }
        seen += __shfl_sync(ALL, sum, 31);
    }
    int32_t id = -1;
    for (int i = block * BLOCK + lane; block >= 0 && i < (block + 1) * BLOCK; i += 32) {
        float x = all.v.at(i);
        bool tied = x >= cut.below && x <= cut.above && all.has(x, i) && all.by.of(x) == cut.weight;
        unsigned who = __ballot_sync(ALL, tied);
        for (; who && ahead < need; who &= who - 1, ahead++)
            id = i - lane + __ffs((int)who) - 1;
    }
    if (lane == 0)
        sh.id = id;
}

/* The last candidate, best first, of the fewest that have the mass target together. False when they
 * do not have it, or when it would have no weight. */
__device__ bool find_cut(Shared &sh, const Candidates &all, float top, bool counting, Mass target,
                         Cut *cut)
{
    float level;
    if (!find_level(sh, all, top, counting, target, &level))
        return false;
    const Measure &by = all.by;
    double weight = by.of(level), slack = by.slack(level);
    if (!by.by_logit && weight == 0)
        return false;
    *cut = {weight, -1, level + slack, level - slack};
    __syncthreads();
    for (int b = (int)threadIdx.x; b < all.n_blocks; b += THREADS)
        sh.ties[b] = 0;
    if (threadIdx.x == 0)
        sh.n_above = 0;
    __syncthreads();
    /* Ties are of weights: rounding may give one to logits a little apart. */
    all.for_each(sh, [&](float x, int i) {
        if (x >= cut->below && x <= cut->above && by.of(x) == weight) {
            atomicAdd(&sh.ties[i / BLOCK], 1u);
            if (x > level)
                atomicAdd(&sh.n_above, 1);
        }
    });
    __syncthreads();
    Mass each = mass_of(by, counting, level), before = sh.before - (Mass)sh.n_above * each;
    if (threadIdx.x < 32)
        find_tied(sh, all, *cut, (target - before + each - 1) / each);
    __syncthreads();
    cut->id = sh.id;
    return true;
}

/* The k-th largest of the peaks, so that k logits or more reach it; -infinity: too few peaks. */
__device__ double level_of_peaks(Shared &sh, const View &v, int n_blocks, int k)
{
    if (k > n_blocks)
        return -INFINITY;
    __syncthreads();
    for (int b = (int)threadIdx.x; b < n_blocks; b += THREADS)
        sh.peaks[b] = v.peaks[b];
    __syncthreads();
    for (int b = (int)threadIdx.x; b < n_blocks; b += THREADS) {
        float mine = sh.peaks[b];
        int before = 0;
        for (int i = 0; i < n_blocks; i++)
            before += sh.peaks[i] > mine || (sh.peaks[i] == mine && i < b);
        if (before == k - 1)
            sh.level = mine;
    }
    __syncthreads();
    return sh.level;
}

/* --- settle: the draw --- */

__device__ double add_sums(Shared &sh, int n_blocks)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (int b = 0; b < n_blocks; b++)
            total += sh.sums[b];
        sh.total = total;
    }
    __syncthreads();
    return sh.total;
}

__device__ void clear_sums(Shared &sh, int n_blocks)
{
    __syncthreads();
    for (int b = (int)threadIdx.x; b < n_blocks; b += THREADS)
        sh.sums[b] = 0;
    __syncthreads();
}

/* Of all weights, where top_k turned out to cut nothing. */
__device__ double sum_all(Shared &sh, const View &v, const Measure &by, int n_blocks, double low)
{
    clear_sums(sh, n_blocks);
    for (int base = 0; base < n_blocks; base += THREADS / 8) {
        int block = base + (int)threadIdx.x / 8;
        bool there = block < n_blocks && v.peaks[block] >= low;
        double sum = add_lanes(there ? sum_of_lane(v, by, block, (int)threadIdx.x % 8) : 0);
        if (there && threadIdx.x % 8 == 0)
            sh.sums[block] = sum;
    }
    return add_sums(sh, n_blocks);
}

/* Of the weights that stay, in the order of ids within a block. */
__device__ double sum_kept(Shared &sh, const View &v, const Measure &by, int n_blocks, const Cut &cut)
{
    int lane = threadIdx.x % 32;
    clear_sums(sh, n_blocks);
    for_blocks(v, n_blocks, cut.below, [&](int block) {
        double sum = 0;
        for (int i = block * BLOCK + lane; i < (block + 1) * BLOCK; i += 32) {
            float x = v.at(i);
            double w = x >= cut.below && keeps(cut, by, x, i) ? by.of(x) : 0;
            for (unsigned left = __ballot_sync(ALL, w > 0); left; left &= left - 1)
                sum += __shfl_sync(ALL, w, __ffs((int)left) - 1);
        }
        if (lane == 0)
            sh.sums[block] = sum;
    });
    return add_sums(sh, n_blocks);
}

/* Inverse distribution function over the ids in ascending order: first the block, then the id. */
__device__ int32_t draw_from_all(Shared &sh, const View &v, const Measure &by, int n_blocks,
                                 const Cut &cut, double target)
{
    double *weight = (double *)sh.bins; /* of one block */
    __syncthreads();
    if (threadIdx.x == 0) {
        int block = 0, last = 0;
        for (; block < n_blocks && target >= sh.sums[block]; block++) {
            last = sh.sums[block] > 0 ? block : last;
            target -= sh.sums[block];
        }
        sh.found = block < n_blocks ? block : last;
        sh.target = block < n_blocks ? target : INFINITY; /* rounding left a little over */
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BLOCK; i += THREADS) {
        int id = sh.found * BLOCK + i;
        float x = v.at(id);
        weight[i] = keeps(cut, by, x, id) ? by.of(x) : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double left = sh.target;
        int at = 0;
        for (int i = 0; i < BLOCK && left >= 0; i++) {
            at = weight[i] > 0 ? i : at;
            left -= weight[i];
        }
        sh.id = sh.found * BLOCK + at;
    }
    __syncthreads();
    return sh.id;
}

__device__ int32_t draw(Shared &sh, const CudaSample &s, int row)
{
    const SampleRow &ask = s.rows[row];
    View v = choice_view(s, row);
    Measure by = {false, sh.best, ask.temperature, ask.min_p};
    double low = ask.min_p > 0 ? by.floor_of(ask.min_p) : -INFINITY, total;
    Cut cut = no_cut();
    if (has_top_k(ask, s.vocab)) {
        double level = level_of_peaks(sh, v, s.n_blocks, ask.top_k);
        Candidates all = {v, by, fmax(low, level - by.slack(level)), cut, s.n_blocks};
        all.gather(sh);
        bool found = find_cut(sh, all, sh.best, true, (Mass)ask.top_k, &cut);
        if (!found)
            cut = no_cut();
        total = found ? sum_kept(sh, v, by, s.n_blocks, cut) : sum_all(sh, v, by, s.n_blocks, low);
    } else {
        for (int b = (int)threadIdx.x; b < s.n_blocks; b += THREADS)
            sh.sums[b] = s.sums[(int64_t)row * s.n_blocks + b];
        total = add_sums(sh, s.n_blocks);
    }
    if (ask.top_p < 1) {
        /* All that are lighter weigh less together than what top_p leaves out of 1 or more. */
        double heavy = by.floor_of((1 - ask.top_p) / s.vocab);
        Candidates all = {v, by, fmax(fmax(low, heavy), cut.below), cut, s.n_blocks};
        all.gather(sh);
        Mass target = (Mass)ceil(ask.top_p * total * UNITS_OF_WEIGHT);
        Cut nucleus;
        if (find_cut(sh, all, sh.best, false, target > 0 ? target : 1, &nucleus)) {
            cut = nucleus;
            total = sum_kept(sh, v, by, s.n_blocks, cut);
        }
    }
    return draw_from_all(sh, v, by, s.n_blocks, cut, ask.uniform * total);
}

/* --- settle: log-probabilities --- */

/* What goes before id among the raw logits, and 1. */
__device__ int32_t rank_of(Shared &sh, const View &raw, int n_blocks, int32_t id)
{
    float v = raw.at(id);
    int before = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        sh.count = 1;
    __syncthreads();
    for_blocks(raw, n_blocks, v, [&](int block) {
        for (int i = block * BLOCK + (int)threadIdx.x % 32; i < (block + 1) * BLOCK; i += 32) {
            float x = raw.at(i);
            before += i < raw.vocab && (x > v || (x == v && i < id));
        }
    });
    atomicAdd(&sh.count, before);
    __syncthreads();
    return sh.count;
}

/* The n best into sh.top_id and sh.top_x, in order. */
__device__ void find_top(Shared &sh, const View &raw, int n_blocks, int n)
{
    Measure by = {true, 0, 0, 0};
    double level = level_of_peaks(sh, raw, n_blocks, n);
    Candidates all = {raw, by, level, no_cut(), n_blocks};
    all.gather(sh);
    Cut cut;
    find_cut(sh, all, sh.max, true, (Mass)n, &cut);
    float *x = (float *)sh.bins;
    int32_t *id = (int32_t *)(x + MAX_LOGPROBS);
    __syncthreads();
    if (threadIdx.x == 0)
        sh.count = 0;
    __syncthreads();
    all.for_each(sh, [&](float value, int i) {
        if (keeps(cut, by, value, i)) {
            int at = atomicAdd(&sh.count, 1);
            x[at] = value;
            id[at] = i;
        }
    });
    __syncthreads();
    int mine = (int)threadIdx.x;
    if (mine < n) {
        int place = 0;
        for (int k = 0; k < n; k++)
            place += x[k] > x[mine] || (x[k] == x[mine] && id[k] < id[mine]);
        sh.top_x[place] = x[mine];
        sh.top_id[place] = id[mine];
    }
    __syncthreads();
}

/* One warp: what the units of a row say together. */
__device__ void add_units(Shared &sh, const CudaUnit *units, int n, int lane)
{
    float max = -INFINITY, best = -INFINITY;
    int best_id = INT_MAX, before = 0, wrong = 0;
    for (int u = lane; u < n; u += 32) {
        max = fmaxf(max, units[u].max);
        before += units[u].before;
        wrong |= units[u].wrong;
        if (units[u].best > best) {
            best = units[u].best;
            best_id = units[u].best_id;
        }
    }
    max = warp_max(max);
    float top = warp_max(best);
    best_id = __reduce_min_sync(ALL, best == top ? best_id : INT_MAX);
    before = __reduce_add_sync(ALL, before);
    wrong = __reduce_or_sync(ALL, wrong);
    double sum = 0;
    for (int u = lane; u < n; u += 32)
        if (units[u].max > -INFINITY)
            sum += units[u].sum * exp_of_negative((double)units[u].max - (double)max);
    for (int i = 16; i > 0; i /= 2)
        sum += __shfl_xor_sync(ALL, sum, i);
    if (lane == 0) {
        sh.max = max;
        sh.best = top;
        sh.best_id = best_id;
        sh.given_rank = before + 1;
        sh.wrong = wrong;
        sh.log_sum = log_of_sum(sum);
    }
}

__device__ SampleStatus status_of(const Shared &sh, bool chooses)
{
    if (sh.wrong & 1)
        return SAMPLE_NOT_NUMBERS;
    if (sh.max == -INFINITY)
        return SAMPLE_NOTHING_LEFT;
    if (chooses && sh.wrong)
        return SAMPLE_NOT_NUMBERS;
    return chooses && sh.best == -INFINITY ? SAMPLE_NOTHING_LEFT : SAMPLE_OK;
}

__global__ void __launch_bounds__(THREADS) settle_kernel(CudaSample s)
{
    extern __shared__ Mass memory[];
    __shared__ Shared sh;
    int row = (int)blockIdx.x;
    const SampleRow &ask = s.rows[row];
    Sampled *out = &s.out[row];
    if (threadIdx.x == 0) {
        sh.bins = memory;
        sh.sums = (double *)(sh.bins + BINS);
        sh.peaks = (float *)(sh.sums + s.n_blocks);
        sh.ties = (uint32_t *)(sh.peaks + s.n_blocks);
        sh.list_x = (float *)(sh.ties + s.n_blocks);
        sh.list_id = (int32_t *)(sh.list_x + LIST);
    }
    /* What nobody asked for is 0. */
    if (threadIdx.x < sizeof(Sampled) / 4)
        ((int32_t *)out)[threadIdx.x] = 0;
    if (threadIdx.x < 32)
        add_units(sh, s.units + (int64_t)row * s.n_units, s.n_units, (int)threadIdx.x);
    __syncthreads();
    bool chooses = ask.given < 0;
    SampleStatus status = status_of(sh, chooses);
    if (threadIdx.x == 0)
        out->status = status;
    if (status != SAMPLE_OK)
        return;
    int32_t id = ask.given;
    if (chooses)
        id = ask.temperature == 0 ? sh.best_id : draw(sh, s, row);
    if (threadIdx.x == 0)
        out->id = id;
    if (chooses && !ask.logprob && ask.n_top == 0)
        return;
    View raw = {s.logits + (int64_t)row * s.vocab, s.peaks + (int64_t)row * s.n_blocks, s.scale,
                s.vocab, s.vocab};
    int32_t rank = chooses ? rank_of(sh, raw, s.n_blocks, id) : sh.given_rank;
    int n_top = min(ask.n_top, s.vocab);
    if (n_top > 0)
        find_top(sh, raw, s.n_blocks, n_top);
    double from = (double)sh.max;
    if (threadIdx.x == 0) {
        out->lp.logprob = (float)((double)raw.at(id) - from - sh.log_sum);
        out->lp.rank = rank;
        out->lp.n_top = n_top;
    }
    for (int t = (int)threadIdx.x; t < n_top; t += THREADS) {
        out->lp.top_id[t] = sh.top_id[t];
        out->lp.top_logprob[t] = (float)((double)sh.top_x[t] - from - sh.log_sum);
    }
}

} // namespace

int cuda_sample_launch(const CudaSample *s, bool weigh, void *stream)
{
    if (s->n == 0)
        return cudaSuccess;
    size_t shared = (size_t)s->n_blocks * (sizeof(double) + sizeof(float) + sizeof(uint32_t)) +
                    BINS * sizeof(Mass) + LIST * (sizeof(float) + sizeof(int32_t));
    cudaError_t err = cudaFuncSetAttribute(
        settle_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (err != cudaSuccess)
        return err;
    unsigned chunks = (unsigned)s->n * blocks_of(s->vocab, CHUNK);
    scan_kernel<<<chunks, SCAN_WARPS * 32, 0, (cudaStream_t)stream>>>(*s);
    if (weigh)
        weigh_kernel<<<chunks, SCAN_WARPS * 32, 0, (cudaStream_t)stream>>>(*s);
    settle_kernel<<<(unsigned)s->n, THREADS, shared, (cudaStream_t)stream>>>(*s);
    return cudaGetLastError();
}
