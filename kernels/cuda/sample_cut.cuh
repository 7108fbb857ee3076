/* kernels/cuda/sample_cut.cuh - the ids of a row in question, and where top_k and top_p cut them off;
 * for sample.cu alone, by all threads of a block together.
 *
 * Ids are ordered by weight, ties to the lower id. A cut is where the ids before it have a given mass:
 * their number, or the sum of their weights as integers, whose sums have no order. */
#ifndef MB_KERNELS_CUDA_SAMPLE_CUT_CUH
#define MB_KERNELS_CUDA_SAMPLE_CUT_CUH

#include "kernels/cuda/sample.cuh"

namespace
{

constexpr int THREADS = 512, WARPS = THREADS / 32, BINS = 4 * THREADS, LIST = 4096;
/* Weights are at most 1 and add up below 2^63: CUDA_SAMPLE_VOCAB is 2^19. */
constexpr double UNITS_OF_WEIGHT = 0x1p44;

static_assert(CUDA_SAMPLE_VOCAB <= 1 << 19, "sums of weights as integers");
static_assert(CUDA_SAMPLE_VOCAB / BLOCK <= BINS, "the masses of all peaks lie in the bins");

typedef unsigned long long Mass;

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
    void *bins;       /* 8 bytes times BINS, for several uses, one after the other */
    double *sums;     /* [n_blocks] of weights */
    uint32_t *ties;   /* [n_blocks] */
    float *list_x;    /* [LIST] */
    int32_t *list_id; /* [LIST] */
    Mass warp_mass[WARPS];
    Mass before;
    double total, target;
    float max, best, level;
    int32_t given_rank, wrong, n_list, found, id, n_above, count;
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

/* Bins of two words each: there is no addition of eight bytes in shared memory but by trying. */
struct Bins {
    uint32_t *low, *high;

    __device__ explicit Bins(Shared &sh) : low((uint32_t *)sh.bins), high(low + BINS)
    {
    }
    __device__ void clear()
    {
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
            low[i] = high[i] = 0;
    }
    __device__ void add(uint32_t bin, Mass mass)
    {
        uint32_t part = (uint32_t)mass, old = atomicAdd(&low[bin], part);
        uint32_t carry = (uint32_t)(mass >> 32) + (old + part < old ? 1 : 0);
        if (carry)
            atomicAdd(&high[bin], carry);
    }
    __device__ Mass at(int bin) const
    {
        return (Mass)high[bin] << 32 | low[bin];
    }
};

/* The logit down to which the candidates, best first, first have the mass target; sh.before is the
 * mass of all larger ones. False when they never have it. */
__device__ bool find_level(Shared &sh, const Candidates &all, float top, bool counting, Mass target,
                           float *level)
{
    uint32_t low = key_of(__double2float_rd(all.low)), high = key_of(top);
    Mass above = 0;
    Bins bins(sh);
    for (;;) {
        uint32_t span = high - low;
        int shift = span < BINS ? 0 : 32 - __clz((int)span) - (31 - __clz(BINS));
        __syncthreads();
        bins.clear();
        if (threadIdx.x == 0)
            sh.found = -1;
        __syncthreads();
        all.for_each(sh, [&](float x, int) {
            uint32_t key = key_of(x);
            if (key >= low && key <= high)
                bins.add((key - low) >> shift, mass_of(all.by, counting, x));
        });
        __syncthreads();
        int last = BINS - 1 - 4 * (int)threadIdx.x; /* from here down: this thread's */
        Mass here = bins.at(last) + bins.at(last - 1) + bins.at(last - 2) + bins.at(last - 3);
        Mass before = above + mass_before(sh, here);
        if (before < target && before + here >= target) {
            while (before + bins.at(last) < target)
                before += bins.at(last--);
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

__device__ bool find_cut_in_many(Shared &sh, const Candidates &all, float top, bool counting,
                                 Mass target, Cut *cut)
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

/* A candidate per thread, each compared with all others. */
__device__ bool find_cut_in_few(Shared &sh, const Candidates &all, bool counting, Mass target,
                                Cut *cut)
{
    double *weight = (double *)sh.bins;
    Mass *mass = (Mass *)(weight + THREADS), before = 0;
    int mine = (int)threadIdx.x, n = sh.n_list;
    __syncthreads();
    if (mine == 0)
        sh.found = -1;
    if (mine < n) {
        weight[mine] = all.by.of(sh.list_x[mine]);
        mass[mine] = mass_of(all.by, counting, sh.list_x[mine]);
    }
    __syncthreads();
    if (mine < n) {
        double w = weight[mine];
        int id = sh.list_id[mine];
        for (int i = 0; i < n; i++)
            if (weight[i] > w || (weight[i] == w && sh.list_id[i] < id))
                before += mass[i];
        if (before < target && before + mass[mine] >= target)
            sh.found = mine;
    }
    __syncthreads();
    if (sh.found < 0)
        return false;
    double w = weight[sh.found], x = sh.list_x[sh.found], slack = all.by.slack(x);
    *cut = {w, sh.list_id[sh.found], x + slack, x - slack};
    __syncthreads();
    return all.by.by_logit || w > 0;
}

/* The last candidate, best first, of the fewest that have the mass target together. False when they
 * do not have it, or when it would have no weight. */
__device__ bool find_cut(Shared &sh, const Candidates &all, float top, bool counting, Mass target,
                         Cut *cut)
{
    if (sh.n_list <= THREADS)
        return find_cut_in_few(sh, all, counting, target, cut);
    return find_cut_in_many(sh, all, top, counting, target, cut);
}

/* Such that the peaks from here up have the mass target together, and so have the logits that reach
 * it; -infinity: all peaks together do not. */
__device__ double level_of_peaks(Shared &sh, const View &v, const Measure &by, int n_blocks,
                                 bool counting, Mass target)
{
    uint32_t *key = (uint32_t *)sh.bins;
    int n = 1 << (32 - __clz(n_blocks - 1)); /* n_blocks 1: 1 */
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        key[i] = i < n_blocks ? key_of(v.peaks[i]) : 0;
    if (threadIdx.x == 0)
        sh.level = -INFINITY;
    /* Bitonic, the largest first. */
    for (int size = 2; size <= n; size *= 2)
        for (int apart = size / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < n / 2; i += THREADS) {
                int a = i / apart * apart * 2 + i % apart, b = a + apart;
                uint32_t x = key[a], y = key[b];
                if ((x < y) == ((a & size) == 0)) {
                    key[a] = y;
                    key[b] = x;
                }
            }
        }
    __syncthreads();
    constexpr int EACH_OF = BINS / THREADS;
    Mass mass[EACH_OF], here = 0;
    int first = (int)threadIdx.x * EACH_OF;
    for (int i = 0; i < EACH_OF; i++) {
        bool there = first + i < n_blocks;
        mass[i] = there ? mass_of(by, counting, value_of(key[first + i])) : 0;
        here += mass[i];
    }
    Mass before = mass_before(sh, here);
    for (int i = 0; i < EACH_OF; i++) {
        if (before < target && before + mass[i] >= target)
            sh.level = value_of(key[first + i]);
        before += mass[i];
    }
    __syncthreads();
    return sh.level;
}

} // namespace

#endif
