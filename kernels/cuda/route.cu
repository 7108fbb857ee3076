/* kernels/cuda/route.cu - which experts a token goes to, and with what weights (models.md 3).
 * Tile    a warp per row, its logits in shared memory; the best expert top_k times over.
 * Budget  4 bytes per logit read once; top_k passes over them in shared memory.
 * Why     every sum is in the order of lanes or of slots, and ties go to the lower index, so a
 *         row's choice depends on nothing but its logits. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{

constexpr int WARPS = 4, MOST_EXPERTS = 1024, MOST_GROUPS = CUDA_MAX_GROUPS;

struct Best {
    float key;
    int at; /* -1: none */
};

__device__ __forceinline__ bool better(Best a, Best b)
{
    if (a.at < 0 || b.at < 0)
        return a.at >= 0;
    return a.key > b.key || (a.key == b.key && a.at < b.at);
}

/* The best of n keys that are not out, on all lanes. */
__device__ __forceinline__ Best best_of(const float *key, const uint8_t *out, int n, int lane)
{
    Best best = {0, -1};
    for (int i = lane; i < n; i += 32)
        if (!out[i] && (best.at < 0 || key[i] > best.key))
            best = {key[i], i};
    for (int d = 16; d > 0; d /= 2) {
        Best other = {__shfl_xor_sync(0xffffffffu, best.key, d),
                      __shfl_xor_sync(0xffffffffu, best.at, d)};
        if (better(other, best))
            best = other;
    }
    return best;
}

/* What a group is chosen by: its largest key, or the sum of its two largest ones. */
__device__ __forceinline__ float group_key(const float *key, int size, bool two)
{
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; i++)
        if (key[i] > first) {
            second = first;
            first = key[i];
        } else if (key[i] > second) {
            second = key[i];
        }
    return two && size > 1 ? first + second : first;
}

__global__ void route_kernel(int32_t *expert, float *weight, uint64_t *load, int32_t *bad,
                             const float *logits, const float *correction, int n,
                             const int32_t *live, RouterSpec spec)
{
    __shared__ float scores[WARPS][MOST_EXPERTS], keys[WARPS][MOST_EXPERTS];
    __shared__ float groups[WARPS][MOST_GROUPS];
    __shared__ uint8_t outs[WARPS][MOST_EXPERTS], group_outs[WARPS][MOST_GROUPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = (int)blockIdx.x * WARPS + warp;
    launch_next();
    launch_wait();
    if (row >= n)
        return;
    if (live && row >= *live) {
        for (int s = lane; s < spec.top_k; s += 32) {
            expert[(int64_t)row * spec.top_k + s] = -1;
            weight[(int64_t)row * spec.top_k + s] = 0;
        }
        return;
    }
    float *score = scores[warp], *key = keys[warp], *group = groups[warp];
    uint8_t *out = outs[warp], *group_out = group_outs[warp];
    const float *x = logits + (int64_t)row * spec.n_experts;
    bool sigmoid = spec.kind == ROUTER_SIGMOID, good = true;
    int size = spec.n_experts / spec.n_group;

    float top = -INFINITY, total = 0;
    for (int i = lane; i < spec.n_experts; i += 32) {
        float v = key[i] = x[i];
        good &= v == v;
        top = fmaxf(top, v);
    }
    top = warp_max(top);
    good = __all_sync(0xffffffffu, good) && isfinite(top);
    for (int i = lane; i < spec.n_experts; i += 32) {
        score[i] = sigmoid ? 1.0f / (1.0f + expf(-key[i])) : expf(key[i] - top);
        /* Logits rather than probabilities decide: rounding cannot make new ties. */
        if (sigmoid)
            key[i] = correction ? score[i] + correction[i] : score[i];
        good &= !sigmoid || key[i] < INFINITY;
        out[i] = spec.topk_group < spec.n_group;
        total += score[i];
    }
    total = warp_sum(total);
    good = __all_sync(0xffffffffu, good);
    __syncwarp();

    if (spec.topk_group < spec.n_group) {
        for (int g = lane; g < spec.n_group; g += 32) {
            group[g] = group_key(key + g * size, size, sigmoid);
            group_out[g] = 0;
        }
        __syncwarp();
        for (int i = 0; i < spec.topk_group; i++) {
            int g = best_of(group, group_out, spec.n_group, lane).at;
            __syncwarp();
            if (lane == 0 && g >= 0)
                group_out[g] = 1;
            for (int e = lane; g >= 0 && e < size; e += 32)
                out[g * size + e] = 0;
            __syncwarp();
        }
    }
    float kept = 0;
    int choice = 0; /* of slot `lane` */
    for (int s = 0; s < spec.top_k; s++) {
        int e = best_of(key, out, spec.n_experts, lane).at;
        __syncwarp();
        e = e < 0 ? 0 : e; /* only where keys are not numbers: the row is bad then */
        choice = lane == s ? e : choice;
        if (lane == 0)
            out[e] = 1;
        kept += score[e];
        __syncwarp();
    }
    float over = total;
    if (sigmoid)
        over = spec.renormalize ? kept + spec.renorm_eps : 1.0f;
    else if (spec.kind == ROUTER_TOPK_SOFTMAX)
        over = kept;
    else if (spec.renormalize)
        over = kept + spec.renorm_eps * total;
    if (lane < spec.top_k) {
        int64_t at = (int64_t)row * spec.top_k + lane;
        expert[at] = choice;
        weight[at] = score[choice] / over * spec.scale;
        atomicAdd((unsigned long long *)load + choice, 1ull);
    }
    if (lane == 0 && !(good && over > 0))
        atomicMin(bad, row);
}

} // namespace

int cuda_route_launch(int32_t *expert, float *weight, uint64_t *load, int32_t *bad,
                      const float *logits, const float *correction, int n, const int32_t *live,
                      const RouterSpec *spec, void *stream)
{
    return n > 0 ? launch_early(route_kernel, (unsigned)blocks_of(n, WARPS), WARPS * 32, 0, stream,
                                expert, weight, load, bad, logits, correction, n, live, *spec)
                 : cudaSuccess;
}
