/* kernels/cuda/gemm_sm90_few.cuh - the slab kernel for a few rows of each matrix, as a decode step
 * has them; included by gemm_sm90.cuh.
 * Tile    128 outputs (two slabs) x up to 16 rows, for a team of five warps: one brings stages,
 *         each 64 or 128 inputs' records by bulk copies and rows by cp.async, and four have 16
 *         outputs of either slab and multiply by mma. Four teams a block, a block a multiprocessor.
 *         Where such tiles leave multiprocessors without one, a tile is one slab.
 * Budget  each record is read once, so bandwidth decides as long as decoding keeps up: MXFP4 takes
 *         66 instructions for a quarter of a record, NVFP4 73, on each of four schedulers, in the
 *         115 clocks in which its 2176 bytes come at 4 TB/s.
 * Why     of wgmma a step takes as long for 8 rows as for 32; mma adds up the same products in the
 *         same order, to the same bits. Two slabs a warp share what is done for each stage. Only
 *         the warp that brings things looks for tiles, ahead of time, and writes into a stage what
 *         it belongs to; results leave from registers. Teams of one block, rather than blocks: the
 *         device would give the tiles of the last round to few multiprocessors, and put all warps
 *         that bring things on one of their schedulers. Blocks come while the launch before ends;
 *         those of an expert layer's second product (follows) bring records before that is over. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_FEW_CUH
#define MB_KERNELS_CUDA_GEMM_SM90_FEW_CUH

#include "kernels/cuda/launch.cuh"

namespace
{

/* A team's shape. SLABS: of a tile; WARPS that multiply; CHUNKS: records of a slab in a stage. */
template <SlabCodec CODEC, int N_SLABS> struct FewShape {
    static constexpr int SLABS = N_SLABS, WARPS = 4, TEAMS = 2 * SLABS, ROWS = 16;
    static constexpr int CHUNKS = SLABS == 1 || slab_pieces(CODEC) == 1 ? 2 : 1;
    static constexpr int THREADS = 32 * (WARPS + 1);
    static constexpr int RECORD = slab_record_bytes(CODEC);
    /* Of a stage: rows of 64 inputs, records, barriers and the tile. */
    static constexpr int PANEL = ROWS * 128, RECORDS = CHUNKS * PANEL;
    static constexpr int FULL = RECORDS + SLABS * CHUNKS * RECORD, EMPTY = FULL + 8;
    static constexpr int TILE = FULL + 16;
    static constexpr int STAGE = (FULL + 48 + 127) / 128 * 128;
};

#ifdef CUDA_SM90A

/* 8 x 8 values of 16 bits, turned: a lane brings two of a row and gets two of a column. */
__device__ __forceinline__ uint32_t transposed(uint32_t v)
{
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

/* A warp's results of a slab, of which it has 16 outputs, as bf16. row: in y, of the tokens that
 * this lane stores. warp: of the slab's four. */
template <int NT, bool GATED>
__device__ __forceinline__ void store_few(const CudaGemm &g, const Tile &t, SlabPlace at,
                                          const float (&acc)[NT / 2], const Finish &f,
                                          const int (&row)[NT / 8], int warp, int lane)
{
    const CudaPart &p = g.part[GATED ? 0 : at.part];
    int out = at.index * (SLAB_ROWS / (GATED ? 2 : 1)) + warp * (GATED ? 8 : 16);
    bf16 *y = (bf16 *)g.y + t.mat * g.y_mat + p.first_row + out + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < NT / 8; j++) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = fmaf(acc[4 * j + i], f.scale[i / 2], f.bias[i / 2]);
        uint32_t *to = (uint32_t *)(y + row[j] * (int64_t)(int)g.y_stride);
        bool wanted = j * 8 + lane / 4 < t.n;
        if (GATED) {
            uint32_t o = transposed(pack2(swiglu(g.act, v[0], v[2]), swiglu(g.act, v[1], v[3])));
            if (wanted && out < p.rows)
                *to = o;
        } else {
            uint32_t o = transposed(pack2(v[0], v[1])), o_8 = transposed(pack2(v[2], v[3]));
            if (wanted && out < p.rows)
                *to = o;
            if (wanted && out + 8 < p.rows)
                to[4] = o_8;
        }
    }
}

/* Everything else, one by one: sums move down in their registers. */
template <int NT>
__device__ __forceinline__ void store_few_any(const CudaGemm &g, const Tile &t, int slab,
                                              float (&acc)[NT / 2], const Finish &f, int warp,
                                              int lane)
{
    bool gated = g.epilogue == CUDA_GATED;
    Piece to[2] = {piece_of(g, t, slab, gated ? warp : warp * 2), {0, 0}};
    if (!gated)
        to[1] = piece_of(g, t, slab, warp * 2 + 1);
#pragma unroll 1
    for (int i = 0; i < NT / 2; i++) {
        int token = i / 4 * 8 + lane % 4 * 2 + i % 2, h = i / 2 % 2;
        if (token < t.n && lane / 4 < (h ? to[1].n : to[0].n)) {
            float v = fmaf(acc[0], h ? f.scale[1] : f.scale[0], h ? f.bias[1] : f.bias[0]);
            if (gated)
                v = activate(g.act, v, fmaf(acc[2], f.scale[1], f.bias[1]));
            else if (g.epilogue == CUDA_RELU2)
                v = square_of_positive(v);
            int64_t at =
                (h ? to[1].place : to[0].place) + lane / 4 + row_of(g, t.row + token) * g.y_stride;
            if (g.y_float)
                ((float *)g.y)[at] = v;
            else
                ((bf16 *)g.y)[at] = __float2bfloat16_rn(v);
        }
#pragma unroll
        for (int n = 0; n < NT / 2 - 1; n++)
            acc[n] = acc[n + 1];
    }
}

/* Where a warp is in the ring. */
template <typename S> struct FewRing {
    uint32_t first, end, at; /* shared addresses of stages */
    uint32_t parity;

    __device__ __forceinline__ void next()
    {
        at += S::STAGE;
        if (at == end) {
            at = first;
            parity ^= 1;
        }
    }
};

/* A tile for a warp that has `have` slabs, up to NT rows. */
template <SlabCodec CODEC, typename S, int NT>
__device__ __forceinline__ void few_tile(const CudaGemm &g, const Tile &t,
                                         const SlabPlace (&place)[S::SLABS], int have, int chunks,
                                         FewRing<S> &ring, int warp, int lane, bool vectors)
{
    constexpr int SLABS = S::SLABS, CHUNKS = S::CHUNKS;
    float acc[SLABS][NT / 2];
    Finish finish[SLABS];
    int row[NT / 8];
#pragma unroll
    for (int j = 0; j < NT / 8; j++)
        row[j] = j * 8 + lane / 4 < t.n ? (int)row_of(g, t.row + j * 8 + lane / 4) : 0;
#pragma unroll
    for (int s = 0; s < SLABS; s++) {
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            acc[s][i] = 0.0f;
        finish[s] = {};
        if (s < have)
            finish[s] = finish_at(g, t.mat, place[s], warp * 32 + lane);
    }
    /* This lane's row of the matrices of two steps; of the others 64 bytes on, swizzled. */
    uint32_t own_row = lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4);

    auto stage = [&](auto n_chunks_) {
        constexpr int N = decltype(n_chunks_)::value;
        Codes<CODEC, 0, 4> codes[N][SLABS];
        uint32_t b[N][2][NT / 8][4];
        barrier_wait(ring.at + S::FULL, ring.parity);
#pragma unroll
        for (int c = 0; c < N; c++) {
#pragma unroll
            for (int s = 0; s < SLABS; s++)
                codes[c][s].load(ring.at + S::RECORDS + (s * CHUNKS + c) * S::RECORD,
                                 warp * 32 + lane);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int n = 0; n < NT / 8; n++)
                    load_matrices(b[c][h][n],
                                  ring.at + (own_row ^ h * 64) + c * S::PANEL + n * 1024);
        }
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int s = 0; s < SLABS; s++) {
                    uint32_t a[8];
                    codes[c][s].decode_pair(
                        h * 2, codes[c][s].word + h * 2 * Codes<CODEC, 0, 4>::WORDS, a);
#pragma unroll
                    for (int j = 0; j < 2; j++)
#pragma unroll
                        for (int n = 0; n < NT / 8; n++)
                            mma(acc[s] + 4 * n, a + 4 * j, b[c][h][n][j * 2],
                                b[c][h][n][j * 2 + 1]);
                }
        proxy_fence(); /* not in the warp that fills the stage, whose rows it would wait for */
        barrier_arrive(ring.at + S::EMPTY);
        ring.next();
    };
#pragma unroll 1
    for (int c = chunks / CHUNKS; c > 0; c--)
        stage(std::integral_constant<int, CHUNKS>());
    if (CHUNKS == 2 && chunks % 2)
        stage(std::integral_constant<int, 1>());
#pragma unroll
    for (int s = 0; s < SLABS; s++)
        if (s < have) {
            if (vectors && g.epilogue == CUDA_GATED)
                store_few<NT, true>(g, t, place[s], acc[s], finish[s], row, warp, lane);
            else if (vectors && g.part[0].layout != CUDA_PAIRED)
                store_few<NT, false>(g, t, place[s], acc[s], finish[s], row, warp, lane);
            else if (plain_floats(g))
                store_floats<NT>(g, t, t.slab + s, acc[s], finish[s], warp * 32 + lane);
            else
                store_few_any<NT>(g, t, t.slab + s, acc[s], finish[s], warp, lane);
        }
}

/* What the warp that brings things knows of a tile. */
template <typename S> struct FewSource {
    static constexpr int PER_PASS = 4, PASSES = S::ROWS / PER_PASS; /* rows */
    Tile t;
    int have; /* slabs */
    SlabPlace place[S::SLABS];
    const uint8_t *record[S::SLABS];
    uint32_t from[PASSES]; /* rows of this lane, in units of 16 bytes */

    __device__ __forceinline__ void find(const CudaGemm &g, const Tiles &tiles, int tile,
                                         int n_slabs)
    {
        t = tiles.at(tile);
        have = n_slabs - t.slab < S::SLABS ? n_slabs - t.slab : S::SLABS;
#pragma unroll
        for (int s = 0; s < S::SLABS; s++) {
            place[s] = place_of_slab(g, s < have ? t.slab + s : t.slab);
            const CudaPart &p = g.part[place[s].part];
            record[s] = p.codes + t.mat * p.codes_mat + place[s].index * p.codes_row;
        }
    }

    __device__ __forceinline__ void find_rows(const CudaGemm &g, int lane)
    {
#pragma unroll
        for (int e = 0; e < PASSES; e++) {
            int r = lane / 8 + e * PER_PASS;
            int64_t row = r < t.n ? (g.x_row ? g.x_row[t.row + r] : t.row + r) : 0;
            from[e] = (uint32_t)((row * g.x_stride + t.mat * g.x_mat) / 8) + lane % 8;
        }
    }

    /* Records from c on, n of each slab, on their way to a stage; by one lane. */
    __device__ __forceinline__ void bring_records(uint32_t stage, int c, int n) const
    {
        if (c == 0) {
            store_unit(stage + S::TILE, make_uint4((uint32_t)t.mat, (uint32_t)t.row, (uint32_t)t.n,
                                                   (uint32_t)t.slab));
            store_unit(stage + S::TILE + 16,
                       make_uint4((uint32_t)place[0].part, (uint32_t)place[0].index,
                                  (uint32_t)place[S::SLABS - 1].part,
                                  (uint32_t)place[S::SLABS - 1].index));
        }
        barrier_expect(stage + S::FULL, have * n * S::RECORD);
#pragma unroll
        for (int s = 0; s < S::SLABS; s++)
            if (s < have)
                bulk_copy(stage + S::RECORDS + s * S::CHUNKS * S::RECORD, record[s] + c * S::RECORD,
                          n * S::RECORD, stage + S::FULL);
    }
};

/* The warp that brings stages, of tiles tile, tile + step ... */
template <typename S>
__device__ __forceinline__ void bring(const CudaGemm &g, const Tiles &tiles, int n_slabs,
                                      int chunks, int passes_k, int tile, int step, int stages,
                                      FewRing<S> ring, int lane)
{
    using Source = FewSource<S>;
    constexpr int PER_PASS = Source::PER_PASS, PASSES = Source::PASSES;
    int n_tiles = tiles.count(), piece = lane % 8;
    uint32_t to = lane / 8 * 128, odd = (piece ^ lane / 8 ^ 4) << 4, even = (piece ^ lane / 8) << 4;
    auto count = [&](int c) { return chunks - c < S::CHUNKS ? chunks - c : S::CHUNKS; };
    Source source, then;
    if (tile < n_tiles)
        source.find(g, tiles, tile, n_slabs);
    int ahead = 0; /* stages whose records are on their way */
    if (g.follows && tile < n_tiles)
        for (; ahead < stages && ahead * S::CHUNKS < chunks; ahead++)
            if (lane == 0)
                source.bring_records(ring.first + ahead * S::STAGE, ahead * S::CHUNKS,
                                     count(ahead * S::CHUNKS));
    launch_wait();
    if (tile < n_tiles)
        source.find_rows(g, lane);
    for (; tile < n_tiles; tile += step, source = then) {
        int k = 0; /* of the inputs, 64 each */
        for (int c = 0; c < chunks; c += S::CHUNKS) {
            int n = count(c);
            if (c + S::CHUNKS >= chunks && tile + step < n_tiles) { /* rather than wait */
                then.find(g, tiles, tile + step, n_slabs);
                then.find_rows(g, lane);
            }
            barrier_wait(ring.at + S::EMPTY, ring.parity ^ 1);
            if (ahead > 0)
                ahead--;
            else if (lane == 0)
                source.bring_records(ring.at, c, n);
#pragma unroll
            for (int h = 0; h < S::CHUNKS; h++)
                if (h < n) {
                    bool there = k * SLAB_K + piece * 8 < g.k;
                    uint32_t at = there ? k * (SLAB_K / 8) : 0;
                    uint32_t panel = ring.at + to + h * S::PANEL;
#pragma unroll
                    for (int e = 0; e < PASSES; e++)
                        if (e * PER_PASS + lane / 8 < source.t.n)
                            copy_16(panel + e * (PER_PASS * 128) + (e % 2 ? odd : even),
                                    (const uint4 *)g.x + (source.from[e] + at), there ? 16 : 0);
                    k = k + 1 == passes_k ? 0 : k + 1;
                }
            copies_arrive(ring.at + S::FULL);
            ring.next();
        }
    }
    barrier_wait(ring.at + S::EMPTY, ring.parity ^ 1);
    if (lane == 0) { /* no more tiles */
        store_unit(ring.at + S::TILE, make_uint4(0, 0, 0, 0));
        barrier_arrive(ring.at + S::FULL);
    }
    copies_arrive(ring.at + S::FULL);
}

#endif

template <SlabCodec CODEC, typename S>
__global__ void __launch_bounds__(S::TEAMS *S::THREADS, 1)
    few_kernel(const __grid_constant__ CudaGemm g, int stages, bool vectors)
{
#ifdef CUDA_SM90A
    extern __shared__ __align__(1024) uint8_t shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int team = warp / (S::WARPS + 1), teams = blockDim.x / S::THREADS;
    warp -= team * (S::WARPS + 1);
    uint32_t base = shared_address(shared) + team * stages * S::STAGE;
    FewRing<S> ring = {base, base + stages * S::STAGE, base, 0};
    int *first = (int *)(shared + teams * stages * S::STAGE), *row_tiles = first + g.n_mats + 1;
    if (warp == S::WARPS) {
        for (int i = lane; i < stages; i += 32) {
            barrier_make(base + i * S::STAGE + S::FULL, 1 + 32);
            barrier_make(base + i * S::STAGE + S::EMPTY, 32 * S::WARPS);
        }
        barriers_made();
    }
    if (!g.follows)
        launch_wait();
    if (g.first)
        for (int i = threadIdx.x; i <= g.n_mats; i += blockDim.x)
            first[i] = g.first[i];
    __syncthreads();
    int n_slabs = slabs_of(g), k_chunks = (g.k + SLAB_K - 1) / SLAB_K, chunks = k_chunks * g.planes;
    if (warp == S::WARPS) {
        if (g.first && team == 0)
            count_tiles(g.n_mats, S::ROWS, first, row_tiles, lane);
        group_sync(1, teams * 32);
        int slab_tiles = (n_slabs + S::SLABS - 1) / S::SLABS;
        Tiles tiles = {g, first, row_tiles, S::ROWS, slab_tiles, S::SLABS};
        bring<S>(g, tiles, n_slabs, chunks, k_chunks, team * gridDim.x + blockIdx.x,
                 teams * gridDim.x, stages, ring, lane);
        return;
    }
    launch_wait();
    launch_next();
    for (;;) {
        barrier_wait(ring.at + S::FULL, ring.parity);
        uint4 found = load_unit(ring.at + S::TILE), where = load_unit(ring.at + S::TILE + 16);
        Tile t = {(int)found.x, (int)found.y, (int)found.z, (int)found.w};
        if (t.n == 0)
            break;
        SlabPlace place[S::SLABS];
        place[0] = {(int)where.x, (int)where.y};
        if (S::SLABS > 1)
            place[S::SLABS - 1] = {(int)where.z, (int)where.w};
        int have = n_slabs - t.slab;
        if (t.n > 8)
            few_tile<CODEC, S, 16>(g, t, place, have, chunks, ring, warp, lane, vectors);
        else
            few_tile<CODEC, S, 8>(g, t, place, have, chunks, ring, warp, lane, vectors);
    }
#endif
}

template <SlabCodec CODEC, typename S>
int launch_few(const CudaGemm *g, const SlabLaunch *l, void *stream)
{
    auto kernel = few_kernel<CODEC, S>;
    int fixed = g->first ? 2 * (g->n_mats + 1) * 4 : 0;
    int blocks = l->most_tiles < l->n_sm ? (int)l->most_tiles : l->n_sm;
    int64_t each = (l->most_tiles + l->n_sm - 1) / l->n_sm;
    int teams = each < S::TEAMS ? (int)each : S::TEAMS;
    int stages = (l->shared_bytes - fixed) / teams / S::STAGE;
    if (stages < 2)
        return cudaErrorInvalidValue;
    static bool may_take = false;
    cudaError_t err = allow_shared(kernel, l->shared_bytes, &may_take);
    if (err != cudaSuccess)
        return err;
    size_t shared = (size_t)(fixed + teams * stages * S::STAGE);
    return launch_early(kernel, (unsigned)blocks, teams * S::THREADS, shared, stream, *g, stages,
                        l->vectors);
}

} // namespace

#endif
