/* kernels/cuda/pack.cu - which rows go to which rank, messages of them, and results back in the
 * order in which their home asked (kernels/exchange_ops.h: count, pack, results).
 * Tile    count and list: a thread per token, 1024 to a block; a prefix sum per other rank over the
 *         block's ballots. pack and results: a block per row, 16 bytes to a thread at a time. Of a
 *         window of few tokens, pack has a block per token and other rank, and a thread in each of
 *         them for every token's choices; of few results, a block has one.
 * Budget  pack and results read and write each row once: 8k tokens of 5760 bytes that each go to 4
 *         ranks move 380 MB, 90 us at 4.2 TB/s. The lists are 4 bytes per choice; launches decide,
 *         of which few tokens have one for pack and one for results, of 1 to 2 us.
 * Why     both ends know the order of rows and pairs, that of tokens and choices, so only what a
 *         receiver cannot know travels with a row. For a decode step a second launch takes longer
 *         than choices that every block reads. */
#include "kernels/cuda/exchange_api.h"
#include "kernels/cuda/launch.cuh"

#include <cuda_runtime.h>

namespace
{

constexpr int TOKENS = EXCHANGE_BLOCK_TOKENS, LIST_WARPS = TOKENS / 32, COPY_THREADS = 128;
constexpr int FEW_TOKENS = 256, FEW_WARPS = FEW_TOKENS / 32; /* that pack takes in one launch */
constexpr int64_t FEW_RESULTS = 2048; /* no more blocks than the device has room for */
static_assert(EXCHANGE_MAX_TOP_K <= 32, "a token's choices are bits of a word");

/* On its way to the host while a launch before this one ends; messages lie between two marks, so
 * their order stays. */
__device__ void write_mark(int32_t *mark, int32_t value)
{
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0 && mark)
        *(volatile int32_t *)mark = value;
}

/* The token's pairs on a rank. */
__device__ int pairs_on(const WindowSpec &w, const int32_t *choice, int rank)
{
    int n = 0;
    for (int s = 0; s < w.top_k; s++)
        n += choice[s] >= 0 && w.owner[choice[s]] == rank;
    return n;
}

__global__ void count_kernel(const WindowSpec w)
{
    __shared__ int32_t sum[EXCHANGE_MAX_RANKS][2];
    for (int i = threadIdx.x; i < 2 * w.n_ranks; i += TOKENS)
        sum[i / 2][i % 2] = 0;
    __syncthreads();
    int token = (int)blockIdx.x * TOKENS + (int)threadIdx.x;
    const int32_t *choice = w.expert + (int64_t)token * w.top_k;
    for (int s = 0; token < w.n && s < w.top_k; s++) {
        if (choice[s] < 0)
            continue;
        int rank = w.owner[choice[s]];
        bool seen = false;
        for (int before = 0; before < s && !seen; before++)
            seen = choice[before] >= 0 && w.owner[choice[before]] == rank;
        atomicAdd(&sum[rank][1], 1);
        if (!seen)
            atomicAdd(&sum[rank][0], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * w.n_ranks; i += TOKENS) {
        int32_t n = sum[i / 2][i % 2];
        w.counts[(int64_t)blockIdx.x * 2 * w.n_ranks + i] = n;
        if (n > 0)
            atomicAdd(&w.totals[i], n);
    }
}

/* rows | pairs << 16: of one block, at most 1024 and 32768. */
__device__ uint32_t warp_upto(uint32_t v)
{
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, v, d);
        v += (int)(threadIdx.x % 32) >= d ? other : 0;
    }
    return v;
}

__device__ uint32_t rows_and_pairs(int pairs)
{
    return pairs > 0 ? 1u | (uint32_t)pairs << 16 : 0;
}

__global__ void __launch_bounds__(TOKENS) list_kernel(const WindowSpec w)
{
    __shared__ uint32_t warps[EXCHANGE_MAX_RANKS][LIST_WARPS]; /* sums, then sums before */
    __shared__ int32_t rows_before[EXCHANGE_MAX_RANKS], pairs_before[EXCHANGE_MAX_RANKS];
    __shared__ int32_t home[EXCHANGE_MAX_RANKS]; /* of a rank's results: the first row */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int token = (int)blockIdx.x * TOKENS + (int)threadIdx.x;
    bool there = token < w.n;
    const int32_t *choice = w.expert + (int64_t)(there ? token : 0) * w.top_k;
    write_mark(w.mark, w.value);
    launch_wait();
    for (int rank = 0; rank < w.n_ranks; rank++) {
        uint32_t sum = warp_upto(rows_and_pairs(there ? pairs_on(w, choice, rank) : 0));
        if (lane == 31)
            warps[rank][warp] = sum;
    }
    __syncthreads();
    for (int rank = threadIdx.x; rank < w.n_ranks; rank += TOKENS) {
        uint32_t sum = 0;
        for (int i = 0; i < LIST_WARPS; i++) {
            uint32_t own = warps[rank][i];
            warps[rank][i] = sum;
            sum += own;
        }
        int32_t rows = 0, pairs = 0;
        for (unsigned b = 0; b < blockIdx.x; b++) {
            const int32_t *count = w.counts + ((int64_t)b * w.n_ranks + rank) * 2;
            rows += count[0];
            pairs += count[1];
        }
        rows_before[rank] = rows;
        pairs_before[rank] = pairs;
        if (gridDim.x == 1) {
            w.totals[2 * rank] = (int32_t)(sum & 0xffffu);
            w.totals[2 * rank + 1] = (int32_t)(sum >> 16);
            home[rank] = (int32_t)(sum >> 16);
        } else {
            home[rank] = w.totals[2 * rank + 1];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t at = w.result_row;
        for (int rank = 0; rank < w.n_ranks; rank++) {
            int32_t n = rank == w.rank ? 0 : w.result_stride > 0 ? w.result_stride : home[rank];
            home[rank] = at;
            at += n;
        }
    }
    __syncthreads();
    for (int rank = 0; rank < w.n_ranks; rank++) {
        if (rank == w.rank)
            continue;
        int pairs = there ? pairs_on(w, choice, rank) : 0;
        uint32_t own = rows_and_pairs(pairs), before = warp_upto(own) - own + warps[rank][warp];
        if (pairs == 0)
            continue;
        int64_t at = (int64_t)rank * w.room + rows_before[rank] + (before & 0xffffu);
        int32_t pair = pairs_before[rank] + (int32_t)(before >> 16);
        w.token[at] = token;
        w.pair[at] = pair;
        for (int s = 0; s < w.top_k; s++)
            if (choice[s] >= 0 && w.owner[choice[s]] == rank)
                w.slot[(int64_t)token * w.top_k + s] = home[rank] + pair++;
    }
}

/* A thread's reads are under way together. */
template <typename UNIT> __device__ void copy_units(UNIT *to, const UNIT *from, int n)
{
    constexpr int AT_ONCE = 4;
    int step = (int)blockDim.x;
    for (int i = threadIdx.x; i < n; i += AT_ONCE * step) {
        UNIT v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * step < n)
                v[k] = from[i + k * step];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * step < n)
                to[i + k * step] = v[k];
    }
}

/* By all threads of a block; bytes a multiple of 4. */
__device__ void copy_row(void *to, const void *from, size_t bytes)
{
    if (((uintptr_t)to | (uintptr_t)from | bytes) % 16 == 0)
        copy_units((uint4 *)to, (const uint4 *)from, (int)(bytes / 16));
    else
        copy_units((uint32_t *)to, (const uint32_t *)from, (int)(bytes / 4));
}

__global__ void __launch_bounds__(COPY_THREADS) pack_kernel(const WindowSpec w)
{
    int to = (int)blockIdx.y, rank = to < w.rank ? to : to + 1, row = (int)blockIdx.x;
    launch_wait();
    int listed = w.totals[2 * rank], rows = w.message_rows > 0 ? w.message_rows : listed;
    if (row >= rows)
        return;
    char *message = w.messages + to * w.message_stride;
    int ints = exchange_mail_ints(w.top_k), s = (int)threadIdx.x;
    int32_t *mail = (int32_t *)(message + exchange_mail_at((size_t)rows, w.row_bytes)) +
                    (int64_t)row * ints;
    if (row >= listed) {
        if (s < ints)
            mail[s] = -1;
        return;
    }
    int64_t at = (int64_t)rank * w.room + row, token = w.token[at];
    if (s < w.top_k) {
        int32_t expert = w.expert[token * w.top_k + s];
        mail[s] = expert >= 0 && w.owner[expert] == rank ? w.local[expert] : -1;
    } else if (s < ints) {
        mail[s] = s == w.top_k ? w.pair[at] : 0;
    }
    copy_row(message + (size_t)row * w.row_bytes, (const char *)w.rows + token * w.row_bytes,
             w.row_bytes);
}

/* Block (i, to): token i for the to-th of the other ranks, and row i of that message where it is
 * behind the list's end. */
__global__ void __launch_bounds__(FEW_TOKENS) pack_few_kernel(const __grid_constant__ WindowSpec w)
{
    __shared__ uint32_t before_of[FEW_WARPS], all_of[FEW_WARPS], lower_of[FEW_WARPS];
    __shared__ uint32_t own; /* the block's token: its choices on the rank */
    int to = (int)blockIdx.y, rank = to < w.rank ? to : to + 1, i = (int)blockIdx.x;
    int token = (int)threadIdx.x, warp = token / 32;
    write_mark(w.mark, w.value);
    launch_wait();
    uint32_t here = 0, lower = 0; /* lower: pairs on ranks whose results come first */
    if (token < w.n) {
        const int32_t *choice = w.expert + (int64_t)token * w.top_k;
#pragma unroll 4
        for (int s = 0; s < w.top_k; s++) {
            int owner = choice[s] >= 0 ? w.owner[choice[s]] : w.rank;
            here |= (uint32_t)(owner == rank) << s;
            lower += owner < rank && owner != w.rank;
        }
    }
    if (token == i)
        own = here;
    uint32_t both = rows_and_pairs(__popc(here));
    uint32_t before = __reduce_add_sync(0xffffffffu, token < i ? both : 0);
    uint32_t all = __reduce_add_sync(0xffffffffu, both);
    lower = __reduce_add_sync(0xffffffffu, lower);
    if (token % 32 == 0) {
        before_of[warp] = before;
        all_of[warp] = all;
        lower_of[warp] = lower;
    }
    __syncthreads();
    before = all = lower = 0;
    for (int k = 0; k < FEW_WARPS; k++) {
        before += before_of[k];
        all += all_of[k];
        lower += lower_of[k];
    }
    int listed = (int)(all & 0xffffu), rows = w.message_rows > 0 ? w.message_rows : listed;
    int ints = exchange_mail_ints(w.top_k), s = token;
    char *message = w.messages + to * w.message_stride;
    int32_t *mails = (int32_t *)(message + exchange_mail_at((size_t)rows, w.row_bytes));
    if (i >= listed && i < rows && s < ints)
        mails[(int64_t)i * ints + s] = -1;
    if (i >= w.n || own == 0)
        return;
    int row = (int)(before & 0xffffu), pair = (int)(before >> 16);
    int64_t at = (int64_t)i * w.top_k + s;
    if (s < w.top_k) {
        bool goes = own >> s & 1u;
        mails[(int64_t)row * ints + s] = goes ? w.local[w.expert[at]] : -1;
        int home = w.result_row + (w.result_stride > 0 ? to * w.result_stride : (int)lower);
        if (goes)
            w.slot[at] = home + pair + __popc(own & ((1u << s) - 1));
    } else if (s < ints) {
        mails[(int64_t)row * ints + s] = s == w.top_k ? pair : 0;
    }
    copy_row(message + (size_t)row * w.row_bytes, (const char *)w.rows + (size_t)i * w.row_bytes,
             w.row_bytes);
}

__global__ void __launch_bounds__(COPY_THREADS)
    results_kernel(const __grid_constant__ ResultSpec r)
{
    int row = (int)blockIdx.x, lane = threadIdx.x % 32;
    write_mark(r.mark, r.value);
    launch_wait();
    if ((int)blockIdx.y >= r.n_lists || row >= r.list[blockIdx.y].n)
        return;
    const ResultList &list = r.list[blockIdx.y];
    int32_t nth = list.mail[(int64_t)row * exchange_mail_ints(r.top_k) + r.top_k];
    int32_t place = lane < r.top_k ? list.place[(int64_t)row * r.top_k + lane] : -1;
    uint32_t there = __ballot_sync(0xffffffffu, place >= 0);
    for (int s = (int)blockIdx.z; s < r.top_k; s += (int)gridDim.z) {
        int32_t from = __shfl_sync(0xffffffffu, place, s);
        if (from >= 0)
            copy_row((char *)list.to +
                         (size_t)(nth + __popc(there & ((1u << s) - 1))) * r.row_bytes,
                     (const char *)r.rows + (size_t)from * r.row_bytes, r.row_bytes);
    }
}

int blocks_for(int n)
{
    return n > TOKENS ? (n + TOKENS - 1) / TOKENS : 1;
}

} // namespace

int cuda_count_launch(const WindowSpec *w, void *stream)
{
    count_kernel<<<blocks_for(w->n), TOKENS, 0, (cudaStream_t)stream>>>(*w);
    return cudaGetLastError();
}

int cuda_pack_launch(const WindowSpec *w, void *stream)
{
    unsigned others = (unsigned)w->n_ranks - 1;
    if (others == 0)
        return cudaSuccess;
    if (w->n <= FEW_TOKENS) {
        int rows = w->message_rows > w->n ? w->message_rows : w->n;
        return launch_early(pack_few_kernel, dim3(rows > 0 ? (unsigned)rows : 1, others),
                            FEW_TOKENS, 0, stream, *w);
    }
    cudaError_t err = launch_early(list_kernel, (unsigned)blocks_for(w->n), TOKENS, 0, stream, *w);
    if (err != cudaSuccess || w->most_rows == 0)
        return err;
    return launch_early(pack_kernel, dim3((unsigned)w->most_rows, others), COPY_THREADS, 0, stream,
                        *w);
}

int cuda_results_launch(const ResultSpec *r, void *stream)
{
    unsigned rows = r->most_rows > 0 ? (unsigned)r->most_rows : 1;
    unsigned lists = r->n_lists > 0 ? (unsigned)r->n_lists : 1;
    bool few = (int64_t)rows * lists * r->top_k <= FEW_RESULTS;
    return launch_early(results_kernel, dim3(rows, lists, few ? (unsigned)r->top_k : 1),
                        COPY_THREADS, 0, stream, *r);
}
