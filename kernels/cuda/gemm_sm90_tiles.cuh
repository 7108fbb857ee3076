/* kernels/cuda/gemm_sm90_tiles.cuh - the tiles of a launch over a bank of slabs, and which rows of which
 * part a slab has; included by gemm_sm90.cuh. */
#ifndef MB_KERNELS_CUDA_GEMM_SM90_TILES_CUH
#define MB_KERNELS_CUDA_GEMM_SM90_TILES_CUH

#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/gemm_sm90.h"

namespace
{

#ifdef CUDA_SM90A

struct Tile {
    int mat, row, n, slab;
};

/* The tiles of a launch, in an order in which neighbours share records and rows: an expert's tiles
 * of rows in groups of eight, under every tile of outputs. */
struct Tiles {
    const CudaGemm &g;
    const int *first, *tiles; /* [n_mats + 1], shared: rows before an expert, and tiles of rows */
    int rows, slab_tiles, slabs_each;

    __device__ __forceinline__ int count() const
    {
        int row_tiles = g.first ? tiles[g.n_mats] : g.n_mats * ((g.n_rows + rows - 1) / rows);
        return row_tiles * slab_tiles;
    }

    __device__ __forceinline__ Tile at(int i) const
    {
        Tile t;
        int each = (g.n_rows + rows - 1) / rows, before, n;
        if (g.first) {
            int lo = 0, hi = g.n_mats,
                row_tile = i / slab_tiles; /* tiles[lo] <= row_tile < tiles[hi] */
            while (hi - lo > 1) {
                int mid = (lo + hi) / 2;
                if (tiles[mid] <= row_tile)
                    lo = mid;
                else
                    hi = mid;
            }
            t.mat = lo;
            before = tiles[lo];
            each = tiles[lo + 1] - before;
            n = first[lo + 1] - first[lo];
        } else {
            t.mat = i / (each * slab_tiles);
            before = t.mat * each;
            n = g.n_rows;
        }
        i -= before * slab_tiles;
        int group = i / (8 * slab_tiles);
        i -= group * 8 * slab_tiles;
        int width = each - group * 8 < 8 ? each - group * 8 : 8;
        int row = (group * 8 + i % width) * rows;
        t.slab = i / width * slabs_each;
        t.n = n - row < rows ? n - row : rows;
        t.row = (g.first ? first[t.mat] : 0) + row;
        return t;
    }
};

/* Tiles of rows before each matrix, of n_mats: by one warp, from the rows before each. */
__device__ __forceinline__ void count_tiles(int n_mats, int rows, const int *first, int *tiles,
                                            int lane)
{
    int sum = 0;
    if (lane == 0)
        tiles[0] = 0;
    for (int i = 0; i < n_mats; i += 32) {
        int e = i + lane, n = e < n_mats ? (first[e + 1] - first[e] + rows - 1) / rows : 0;
        for (int d = 1; d < 32; d *= 2) {
            int v = __shfl_up_sync(0xffffffffu, n, d);
            n += lane >= d ? v : 0;
        }
        if (e < n_mats)
            tiles[e + 1] = sum + n;
        sum += __shfl_sync(0xffffffffu, n, 31);
    }
}

/* What Tiles has of experts into shared memory, for tiles of so many rows. All threads take part; the caller
 * synchronizes. */
__device__ __forceinline__ void load_tiles(const CudaGemm &g, int *first, int *tiles, int rows,
                                           int thread, int threads)
{
    for (int i = thread; i <= g.n_mats; i += threads)
        first[i] = g.first[i];
    __syncthreads();
    if (thread < 32)
        count_tiles(g.n_mats, rows, first, tiles, thread);
}

/* Which rows of which part a slab has. */
struct SlabPlace {
    int part, index; /* index: of the slab within the part */
};

__device__ __forceinline__ SlabPlace place_of_slab(const CudaGemm &g, int slab)
{
    int part = 0;
    if (g.part[0].layout == CUDA_SLABS)
        while (part + 1 < g.n_parts && slab >= slab_count(&g.part[part]))
            slab -= slab_count(&g.part[part++]);
    return {part, slab};
}

__device__ __forceinline__ int slabs_of(const CudaGemm &g)
{
    int n = slab_count(&g.part[0]);
    if (g.part[0].layout == CUDA_SLABS)
        for (int i = 1; i < g.n_parts; i++)
            n += slab_count(&g.part[i]);
    return n;
}

#endif

} // namespace

#endif
