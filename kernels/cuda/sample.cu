/* kernels/cuda/sample.cu - from rows of logits to token ids and their log-probabilities (contract.md
 * section 3), with the choices of jobs/sampling.c.
 * Tile    a block per row: adds up what the warps of sample_scan.cu found, and cuts, draws, ranks, as far
 *         as the row asks for it.
 * Budget  6 KB per row where the best one is wanted. A draw adds the sums of 256 weights each, one after
 *         the other: 600 additions, 3 us. Cuts, ranks and best ids look only where the largest of 256
 *         logits reaches far enough, a flat distribution's cut at all of them, four times.
 * Why     a row's ids depend on nothing but its logits and what it asks: sums are in the order of ids, or
 *         of integers. */
#include "kernels/cuda/sample_cut.cuh"

namespace
{

constexpr int AHEAD = 16;

static_assert(sizeof(Sampled) % 4 == 0 && sizeof(Sampled) / 4 <= THREADS, "cleared a word per thread");

/* --- the draw --- */

__device__ double add_sums(Shared &sh, int n_blocks)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
#pragma unroll 16
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

/* The first of n values that is more than what the values before it leave of *left; n: none. *last
 * is the last one before that is not 0. Values are read AHEAD of their use, which waits for each
 * subtraction. */
__device__ int walk(const double *value, int n, double *left, int *last)
{
    *last = 0;
    for (int at = 0; at < n; at += AHEAD) {
        double v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            v[k] = at + k < n ? value[at + k] : 0;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (*left < v[k])
                return at + k;
            *last = v[k] > 0 ? at + k : *last;
            *left -= v[k];
        }
    }
    return n;
}

/* Inverse distribution function over the ids in ascending order: first the block, then the id.
 * Where rounding leaves a little over, it is the last one with a weight. */
__device__ int32_t draw_from_all(Shared &sh, const View &v, const Measure &by, int n_blocks,
                                 const Cut &cut, double target)
{
    double *weight = (double *)sh.bins; /* of one block */
    __syncthreads();
    if (threadIdx.x == 0) {
        int last, block = walk(sh.sums, n_blocks, &target, &last);
        sh.found = block < n_blocks ? block : last;
        sh.target = block < n_blocks ? target : INFINITY;
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
        int last, at = walk(weight, BLOCK, &left, &last);
        sh.id = sh.found * BLOCK + (at < BLOCK ? at : last);
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
        double level = level_of_peaks(sh, v, by, s.n_blocks, true, (Mass)ask.top_k);
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
        Mass target = max((Mass)ceil(ask.top_p * total * UNITS_OF_WEIGHT), (Mass)1);
        low = fmax(low, cut.below);
        if (!(cut.below > -INFINITY)) {
            /* All that are lighter weigh less together than what top_p leaves out of 1 or more. */
            double heavy = by.floor_of((1 - ask.top_p) / s.vocab);
            double level = level_of_peaks(sh, v, by, s.n_blocks, false, target);
            low = fmax(fmax(low, heavy), level - by.slack(level));
        }
        Candidates all = {v, by, low, cut, s.n_blocks};
        all.gather(sh);
        Cut nucleus;
        if (find_cut(sh, all, sh.best, false, target, &nucleus)) {
            cut = nucleus;
            total = sum_kept(sh, v, by, s.n_blocks, cut);
        }
    }
    return draw_from_all(sh, v, by, s.n_blocks, cut, ask.uniform * total);
}

/* --- log-probabilities --- */

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
    double level = level_of_peaks(sh, raw, by, n_blocks, true, (Mass)n);
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
    int before = 0, wrong = 0;
    for (int u = lane; u < n; u += 32) {
        max = fmaxf(max, units[u].max);
        best = fmaxf(best, units[u].best);
        before += units[u].before;
        wrong |= units[u].wrong;
    }
    max = warp_max(max);
    best = warp_max(best);
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
        sh.best = best;
        sh.given_rank = before + 1;
        sh.wrong = wrong;
        sh.log_sum = log_of_sum(sum);
    }
}

/* One warp: the lowest id with the best logit, from the first unit that has it. */
__device__ void find_best(Shared &sh, const View &v, const CudaUnit *units, int n, int lane)
{
    int unit = INT_MAX, id = INT_MAX;
    for (int u = lane; u < n; u += 32)
        unit = units[u].best == sh.best ? min(unit, u) : unit;
    unit = __reduce_min_sync(ALL, unit);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = unit * UNIT + j * 32 + lane;
        id = v.at(i) == sh.best ? min(id, i) : id;
    }
    id = __reduce_min_sync(ALL, id);
    if (lane == 0)
        sh.id = id;
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

__global__ void __launch_bounds__(THREADS, 2) settle_kernel(CudaSample s)
{
    extern __shared__ Mass memory[];
    __shared__ Shared sh;
    int row = (int)blockIdx.x;
    const SampleRow &ask = s.rows[row];
    Sampled *out = &s.out[row];
    if (threadIdx.x == 0) {
        sh.bins = memory;
        sh.sums = (double *)(memory + BINS);
        sh.ties = (uint32_t *)(sh.sums + s.n_blocks);
        sh.list_x = (float *)(sh.ties + s.n_blocks);
        sh.list_id = (int32_t *)(sh.list_x + LIST);
    }
    /* What nobody asked for is 0. */
    if (threadIdx.x < sizeof(Sampled) / 4)
        ((int32_t *)out)[threadIdx.x] = 0;
    const CudaUnit *units = s.units + (int64_t)row * s.n_units;
    if (threadIdx.x < 32)
        add_units(sh, units, s.n_units, (int)threadIdx.x);
    __syncthreads();
    bool chooses = ask.given < 0;
    SampleStatus status = status_of(sh, chooses);
    if (threadIdx.x == 0)
        out->status = status;
    if (status != SAMPLE_OK)
        return;
    int32_t id = ask.given;
    if (chooses && ask.temperature == 0) {
        if (threadIdx.x < 32)
            find_best(sh, choice_view(s, row), units, s.n_units, (int)threadIdx.x);
        __syncthreads();
        id = sh.id;
    } else if (chooses) {
        id = draw(sh, s, row);
    }
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
    size_t shared = (size_t)s->n_blocks * (sizeof(double) + sizeof(uint32_t)) +
                    BINS * sizeof(Mass) + LIST * (sizeof(float) + sizeof(int32_t));
    cudaError_t err = cudaFuncSetAttribute(
        settle_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (err != cudaSuccess)
        return err;
    int code = cuda_sample_scan_launch(s, weigh, stream);
    if (code != cudaSuccess)
        return code;
    settle_kernel<<<(unsigned)s->n, THREADS, shared, (cudaStream_t)stream>>>(*s);
    return cudaGetLastError();
}
