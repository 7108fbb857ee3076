/* kernels/cuda/gemm_sm90_pair.cuh - the slab kernel for many rows, by pairs of blocks; included by
 * gemm_sm90.cuh.
 * Tile    256 outputs x up to 256 or 160 rows a pair: 128 of the outputs a block, a slab a warpgroup, and
 *         of the rows the least of four multiples of 32 that holds them. Rows come by the copy engine in
 *         boxes of 32, every other one asked for by either block and sent to both. Results leave by it,
 *         but for those of a box that is not all the tile's, and floats.
 * Budget  for 64 inputs the tensor cores take 1024 clocks, in which a block takes 32 KB out of L2 (it
 *         gives about 35 bytes a clock) and 128 KB go through shared memory (128 a clock).
 * Why     rows that threads copy (cp.async) keep the tensor cores waiting, and without the other block's
 *         half L2 would be the limit: 0.56 to 0.65 of cuBLASLt before, 0.70 and more so from 1024 rows an
 *         expert on. Rows that are gathered are put together first: the copy engine brings single rows
 *         at a third of the rate. Each decoded code meets 256 rows. The bits are those of every other
 *         shape. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_PAIR_CUH
#define MB_KERNELS_CUDA_GEMM_SM90_PAIR_CUH

#include "kernels/cuda/tensor_map.h"

namespace
{

/* BOX: rows that a warp of producers brings. OUT: bytes of a box of results, two a warpgroup, 64 rows of
 * 64 outputs or 128 rows of the 32 that gate and up give together. */
enum { PAIR_BOX = 32, PAIR_THREADS = 384, PAIR_OUT = 8192 };
static_assert(2 * PAIR_OUT >= BUFFER_ROWS * PITCH * 4, "what store_any needs");

struct PairMaps { /* of the rows, and of the results */
    CUtensorMap x, y;
};

#ifdef CUDA_SM90A

/* The main loop: acc = the slab's 64 outputs x NT of MOST rows. meanwhile(): what is done while the
 * tensor cores end. */
template <SlabCodec CODEC, int MOST, int NT, typename F>
__device__ __forceinline__ void multiply_pair(float (&acc)[MOST / 2], int chunks, const Stages &m,
                                              Ring &ring, int group, int thread, F meanwhile)
{
    constexpr int BYTES = slab_record_bytes(CODEC), STEPS = 2;
    float(&sums)[NT / 2] = reinterpret_cast<float(&)[NT / 2]>(acc);
    uint32_t a[2][4 * STEPS] = {};
    int last = -1, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        sums[i] = 0.0f;
    auto unit = [&](auto set_) {
        constexpr int SET = decltype(set_)::value, FROM = SET * STEPS;
        Codes<CODEC, FROM, STEPS> codes;
        uint32_t record = shared_address(m.records) + (ring.stage * 2 + group) * BYTES;
        if (CODEC != SLAB_BF16)
            codes.load(record, thread);
        wgmma_wait<1>(); /* all but the unit before: the operands of this set are free */
        hold(a[SET]);
        if (CODEC == SLAB_BF16) /* they are the operands */
            codes.load(record, thread);
        if (SET == 1 && last >= 0 && lane < 2)
            barrier_arrive_at(ring.empty + 8 * last, lane);
        codes.decode(a[SET]);
        hold(a[SET]);
        uint64_t rows = rows_descriptor(shared_address(m.rows) + ring.stage * MOST * 128);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < STEPS; j++)
            wgmma(sums, &a[SET][4 * j], rows + 2 * (FROM + j));
        wgmma_commit();
    };
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        barrier_wait(ring.full + 8 * ring.stage, ring.parity);
        proxy_fence(); /* the codes of the stage before have been read */
        unit(std::integral_constant<int, 0>());
        unit(std::integral_constant<int, 1>());
        last = ring.stage;
        ring.next();
    }
    meanwhile();
    wgmma_wait<0>();
    hold(a[0]);
    hold(a[1]);
    hold(sums);
    proxy_fence();
    if (lane < 2)
        barrier_arrive_at(ring.empty + 8 * last, lane);
}

/* Sums become results in registers, are transposed on their way into a box in shared memory, and leave
 * while the next ones are made. row: of the tile's first in y; column: of the slab's first. */
template <int MOST, bool GATED>
__device__ __forceinline__ void
store_boxes(const CudaGemm &g, const CUtensorMap *map, const Tile &t, const Piece &to, int column,
            const float (&acc)[MOST / 2], const Finish &f, uint8_t *boxes, int group, int thread)
{
    constexpr int ROWS = GATED ? 128 : 64, PIECES = GATED ? 4 : 8,
                  BYTES = PIECES * 16; /* of a row */
    int warp = thread / 32, lane = thread % 32, piece = thread % PIECES, token = thread / PIECES;
    /* Pieces lie as the tensor map has them: of 128-byte rows p ^ r % 8, of 64-byte ones p ^ r / 2 % 4. */
    int row = lane % 8, own = GATED ? warp ^ row / 2 : (warp * 2 + lane / 8 % 2) ^ row;
    int put = (row + (GATED ? lane / 8 : lane / 16) * 8) * BYTES + own * 16;
    int get = token * BYTES + (GATED ? piece ^ token / 2 % 4 : piece ^ token % 8) * 16;
#pragma unroll
    for (int from = 0; from < MOST; from += ROWS) {
        if (from > 0 && from >= t.n)
            break;
        uint8_t *box = boxes + from / ROWS % 2 * PAIR_OUT;
        if (thread == 0)
            tensor_stores_wait<1>(); /* the box before the last has been read */
        group_sync(1 + group, SLAB_THREADS);
#pragma unroll
        for (int j = 0; j < ROWS / 8 && from + j * 8 < MOST; j += GATED ? 4 : 2) {
            uint32_t r[4];
            const float *v = acc + from / 2 + 4 * j;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (GATED) {
                    float s[4];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[e] = fmaf(v[4 * i + e], f.scale[e / 2], f.bias[e / 2]);
                    r[i] = pack2(swiglu(g.act, s[0], s[2]), swiglu(g.act, s[1], s[3]));
                } else {
                    r[i] = pack2(fmaf(v[2 * i], f.scale[i % 2], f.bias[i % 2]),
                                 fmaf(v[2 * i + 1], f.scale[i % 2], f.bias[i % 2]));
                }
            }
            store_matrices_transposed(shared_address(box) + put + j * 8 * BYTES, r);
        }
        bool whole = from + ROWS <= t.n;
        if (whole)
            proxy_fence();
        group_sync(1 + group, SLAB_THREADS);
        if (whole && thread == 0)
            tensor_store(map, column, t.row + from, shared_address(box));
        if (thread == 0)
            tensor_stores_commit(); /* of nothing, too: they are counted */
        if (!whole)                 /* the rows behind are another expert's */
            for (int i = token; from + i < t.n; i += SLAB_THREADS / PIECES)
                *(uint4 *)((bf16 *)g.y + to.place + (int64_t)(t.row + from + i) * g.y_stride) =
                    *(const uint4 *)(box + get + (i - token) * BYTES);
    }
}

/* A slab's results by boxes, where it has all its outputs side by side. */
template <int MOST>
__device__ __forceinline__ void store_pair(const CudaGemm &g, const CUtensorMap *map, const Tile &t,
                                           int slab, float (&acc)[MOST / 2], const Finish &f,
                                           uint8_t *boxes, int group, int thread, bool by_boxes)
{
    bool gated = g.epilogue == CUDA_GATED;
    SlabPlace at = place_of_slab(g, slab);
    const CudaPart &p = g.part[at.part];
    int outputs = gated ? SLAB_ROWS / 2 : SLAB_ROWS, out = at.index * outputs;
    int piece = thread % (outputs / 8);
    Piece to = {p.first_row + out + piece * 8, 8};
    if (by_boxes && out + outputs <= p.rows && gated)
        store_boxes<MOST, true>(g, map, t, to, p.first_row + out, acc, f, boxes, group, thread);
    else if (by_boxes && out + outputs <= p.rows)
        store_boxes<MOST, false>(g, map, t, to, p.first_row + out, acc, f, boxes, group, thread);
    else if (plain_floats(g))
        store_floats<MOST>(g, t, slab, acc, f, thread);
    else {
        if (thread == 0)
            tensor_stores_wait<0>();
        store_any<MOST>(g, t, slab, acc, f, (float *)boxes, group, thread);
        group_sync(1 + group, SLAB_THREADS); /* before a box */
    }
}

/* A warp of producers: its box of the rows for both blocks, and warp 0 the block's own records. */
template <SlabCodec CODEC, int MOST>
__device__ __forceinline__ void
produce_pair(const CudaGemm &g, const CUtensorMap *map, const Tiles &tiles, int n_tiles,
             int n_slabs, int chunks, int passes_k, const Stages &m, Ring ring, int rank, int warp)
{
    constexpr int BYTES = slab_record_bytes(CODEC);
    int box = (2 * warp + rank) * PAIR_BOX;
    bool leader = elect();
    for (int i = blockIdx.x / 2; i < n_tiles; i += gridDim.x / 2) {
        Tile t = tiles.at(i);
        int slab = t.slab + 2 * rank, have = n_slabs - slab < 2 ? n_slabs - slab : 2;
        int n = t.n - box; /* rows of the box and behind it; none: <= 0 */
        const uint8_t *record[2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            SlabPlace at = place_of_slab(g, s < have ? slab + s : t.slab);
            const CudaPart &p = g.part[at.part];
            record[s] = p.codes + t.mat * p.codes_mat + at.index * p.codes_row;
        }
        have = have < 0 ? 0 : have;
        int bytes = (t.n + PAIR_BOX - 1) / PAIR_BOX * PAIR_BOX * 128;
        int k = 0;
        for (int c = 0; c < chunks; c++) {
            uint32_t bar = ring.full + 8 * ring.stage;
            uint32_t to = shared_address(m.rows) + (ring.stage * MOST + box) * 128;
            barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            if (warp == 0 && leader) {
                uint32_t records = shared_address(m.records) + ring.stage * 2 * BYTES;
                barrier_expect(bar, bytes + have * BYTES);
#pragma unroll
                for (int s = 0; s < 2; s++)
                    if (s < have)
                        bulk_copy(records + s * BYTES, record[s] + (int64_t)c * BYTES, BYTES, bar);
            }
            if (n > 0 && leader)
                tensor_copy_to_pair(to, map, k * SLAB_K, t.row + box, bar);
            ring.next();
            if (++k == passes_k)
                k = 0;
        }
    }
}

#endif

template <SlabCodec CODEC, int MOST>
__global__ void __launch_bounds__(PAIR_THREADS, 1)
    pair_kernel(const __grid_constant__ CudaGemm g, const __grid_constant__ PairMaps maps, int rows,
                int stages, bool by_boxes)
{
#ifdef CUDA_SM90A
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr int BYTES = slab_record_bytes(CODEC);
    int thread = threadIdx.x, warp = thread / 32, rank = cluster_rank();
    Stages m;
    m.rows = shared;
    uint8_t *boxes = m.rows + stages * MOST * 128;
    m.records = boxes + 4 * PAIR_OUT;
    uint64_t *barriers = (uint64_t *)(m.records + stages * 2 * BYTES);
    int *first = (int *)(barriers + 2 * stages), *row_tiles = first + g.n_mats + 1;
    Ring ring = {shared_address(barriers), shared_address(barriers + stages), stages, 0, 0};

    if (thread == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_make(ring.full + 8 * i, 1);
            barrier_make(ring.empty + 8 * i, 2 * 8); /* the consumers' warps of both blocks */
        }
        barriers_made();
    }
    if (g.first)
        load_tiles(g, first, row_tiles, rows, thread, PAIR_THREADS);
    cluster_sync();

    int n_slabs = slabs_of(g), k_chunks = (g.k + SLAB_K - 1) / SLAB_K, chunks = k_chunks * g.planes;
    Tiles tiles = {g, first, row_tiles, rows, (n_slabs + 3) / 4, 4};
    int n_tiles = tiles.count();
    if (warp >= 8) {
        registers_down<40>();
        produce_pair<CODEC, MOST>(g, &maps.x, tiles, n_tiles, n_slabs, chunks, k_chunks, m, ring,
                                  rank, warp - 8);
    } else {
        registers_up<232>();
        int group = warp / 4, step = gridDim.x / 2;
        boxes += group * 2 * PAIR_OUT;
        thread %= 128;
        Tile t, next = {};
        if ((int)blockIdx.x / 2 < n_tiles)
            next = tiles.at(blockIdx.x / 2);
        for (int i = blockIdx.x / 2; i < n_tiles; i += step) {
            t = next;
            int slab = t.slab + 2 * rank + group;
            if (slab >= n_slabs) {
                for (int c = 0; c < chunks; c++, ring.next()) {
                    barrier_wait(ring.full + 8 * ring.stage, ring.parity);
                    if (thread % 32 < 2)
                        barrier_arrive_at(ring.empty + 8 * ring.stage, thread % 32);
                }
                if (i + step < n_tiles)
                    next = tiles.at(i + step);
                continue;
            }
            float acc[MOST / 2];
            Finish finish;
            auto meanwhile = [&] {
                finish = finish_of(g, t, slab, thread);
                if (i + step < n_tiles)
                    next = tiles.at(i + step);
            };
            /* Of a fifth kind the compiler would make products wait for each other. */
            constexpr int THIRD = MOST == 256 ? 192 : 128, SECOND = MOST == 256 ? 128 : 96;
            if (t.n > THIRD)
                multiply_pair<CODEC, MOST, MOST>(acc, chunks, m, ring, group, thread, meanwhile);
            else if (t.n > SECOND)
                multiply_pair<CODEC, MOST, THIRD>(acc, chunks, m, ring, group, thread, meanwhile);
            else if (t.n > 64)
                multiply_pair<CODEC, MOST, SECOND>(acc, chunks, m, ring, group, thread, meanwhile);
            else
                multiply_pair<CODEC, MOST, 64>(acc, chunks, m, ring, group, thread, meanwhile);
            store_pair<MOST>(g, &maps.y, t, slab, acc, finish, boxes, group, thread, by_boxes);
        }
        if (thread == 0)
            tensor_stores_wait<0>(); /* before shared memory goes */
    }
    __syncthreads();
    cluster_sync(); /* the other block may still send here */
#endif
}

/* MOST: rows of a tile, 256 or 160. */
template <SlabCodec CODEC, int MOST>
int launch_pair(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    constexpr int STAGE = MOST * 128 + 2 * slab_record_bytes(CODEC), STAGES = 8;
    auto kernel = pair_kernel<CODEC, MOST>;
    int fixed = 4 * PAIR_OUT + 2 * STAGES * 8 + (g->first ? 2 * (g->n_mats + 1) * 4 : 0);
    int room = l->shared_bytes - fixed, stages = room / STAGE < STAGES ? room / STAGE : STAGES;
    if (stages < 3)
        return cudaErrorInvalidValue;
    static bool may_take = false;
    PairMaps maps = {};
    bool gated = g->epilogue == CUDA_GATED;
    int err = allow_shared(kernel, l->shared_bytes, &may_take);
    if (err == cudaSuccess)
        err = cuda_rows_map(&maps.x, g->x, g->k, g->x_stride, g->n_rows, SLAB_K, PAIR_BOX);
    bool by_boxes = l->vectors && !g->y_row && gated == (g->part[0].layout == CUDA_PAIRED);
    if (err == cudaSuccess && by_boxes)
        err = cuda_rows_map(&maps.y, g->y, g->y_stride, g->y_stride, g->n_rows, gated ? 32 : 64,
                            gated ? 128 : 64);
    if (err)
        return err;
    int64_t pairs = l->most_tiles < l->n_sm / 2 ? l->most_tiles : l->n_sm / 2;
    cudaLaunchAttribute pair = {};
    pair.id = cudaLaunchAttributeClusterDimension;
    pair.val.clusterDim.x = 2;
    pair.val.clusterDim.y = pair.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)pairs * 2);
    config.blockDim = dim3(PAIR_THREADS);
    config.dynamicSmemBytes = (size_t)(fixed + stages * STAGE);
    config.stream = (cudaStream_t)stream;
    config.attrs = &pair;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, *g, maps, l->rows, stages, by_boxes);
}

} // namespace

#endif
