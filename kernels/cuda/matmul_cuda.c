/* kernels/cuda/matmul_cuda.c - linear layers and grouped experts: which tiles the one matrix kernel
 * works on. */
#include "kernels/cuda/cuda.h"

#include <assert.h>

static CudaGemm gemm_of(const Weight *w, int part)
{
    CudaGemm g = {.planes = w->planes, .k = (int)w->cols, .k_padded = (int)w->cols_padded};
    for (int i = 0; i < w->n_parts; i++)
        if (part == ALL_PARTS || part == i)
            g.part[g.n_parts++] = w->part[i];
    return g;
}

static Status multiply(Backend *b, void *y, bool y_float, const void *x, const Weight *w, int part,
                       const float *bias, int n, Err *e)
{
    CudaGemm g = gemm_of(w, part);
    g.x = x;
    g.x_stride = w->cols;
    g.y = y;
    g.y_stride = w->rows;
    g.y_float = y_float;
    g.bias = bias;
    g.n_mats = 1;
    g.n_rows = n;
    return cuda_status(b, b->api->gemm(&g, b->stream), w->name, e);
}

Status cuda_matmul(Backend *b, void *y, const void *x, const Weight *w, int part, const float *bias,
                   int n, Err *e)
{
    return multiply(b, y, false, x, w, part, bias, n, e);
}

Status cuda_matmul_float(Backend *b, float *y, const void *x, const Weight *w, const float *bias,
                         int n, Err *e)
{
    return multiply(b, y, true, x, w, ALL_PARTS, bias, n, e);
}

/* --- experts --- */

size_t cuda_ffn_scratch_bytes(const Backend *b, int n_pairs, int64_t inter)
{
    (void)b;
    return (size_t)n_pairs * (size_t)inter * 2;
}

/* Cuts every expert's pairs into tiles. */
static Status send_tiles(Backend *b, const int32_t *first, int n_experts, const CudaTile **out,
                         int *n_tiles, Err *e)
{
    void *host, *dev;
    int n = 0;
    for (int i = 0; i < n_experts; i++)
        n += (first[i + 1] - first[i] + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
    *n_tiles = n;
    TRY(cuda_ring_take(b, (size_t)n * sizeof(CudaTile), &host, &dev, e));
    *out = dev;
    CudaTile *tile = host;
    for (int i = 0; i < n_experts; i++)
        for (int row = first[i]; row < first[i + 1]; row += CUDA_TILE_ROWS) {
            int left = first[i + 1] - row;
            *tile++ = (CudaTile){i, row, left < CUDA_TILE_ROWS ? left : CUDA_TILE_ROWS};
        }
    return cuda_ring_send(b, host, dev, (size_t)n * sizeof(CudaTile), e);
}

/* Gate, up and the activation, or up and its square, into scratch. */
static Status first_pass(Backend *b, const void *x, const void *x_up, const int32_t *row_of,
                         const CudaTile *tiles, int n_tiles, const FfnSpec *spec, void *scratch,
                         Err *e)
{
    bool gated = spec->act.kind != ACT_RELU2;
    CudaGemm g = gemm_of(spec->w13, ALL_PARTS);
    g.x = gated || !x_up ? x : x_up;
    g.x_up = gated && x_up != x ? x_up : NULL;
    g.x_stride = spec->hidden;
    g.x_row = row_of;
    g.y = scratch;
    g.y_stride = spec->inter;
    g.bias = spec->b13;
    g.bias_mat = spec->w13->rows;
    g.tiles = tiles;
    g.n_tiles = n_tiles;
    g.epilogue = gated ? CUDA_GATED : CUDA_RELU2;
    g.act = spec->act;
    return cuda_status(b, b->api->gemm(&g, b->stream), spec->w13->name, e);
}

static Status second_pass(Backend *b, void *y, const CudaTile *tiles, int n_tiles,
                          const FfnSpec *spec, const void *scratch, Err *e)
{
    CudaGemm g = gemm_of(spec->w2, ALL_PARTS);
    g.x = scratch;
    g.x_stride = spec->inter;
    g.y = y;
    g.y_stride = spec->hidden;
    g.bias = spec->b2;
    g.bias_mat = spec->hidden;
    g.tiles = tiles;
    g.n_tiles = n_tiles;
    return cuda_status(b, b->api->gemm(&g, b->stream), spec->w2->name, e);
}

Status cuda_ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
                const int32_t *first, int n_experts, const FfnSpec *spec, void *scratch, Err *e)
{
    int n_pairs = first[n_experts] - first[0], n_tiles;
    const CudaTile *tiles;
    const void *row_of_dev = NULL;
    assert(spec->w13->n_parts == (spec->act.kind == ACT_RELU2 ? 1 : 2) &&
           spec->w13->cols == spec->hidden && spec->w13->part[0].rows == spec->inter &&
           spec->w2->cols == spec->inter && n_experts <= spec->w13->n_mats &&
           n_experts <= spec->w2->n_mats);
    if (n_pairs == 0)
        return ST_OK;
    size_t most_tiles = (size_t)n_pairs / CUDA_TILE_ROWS + (size_t)n_experts;
    TRY(cuda_ring_reserve(
        b, most_tiles * sizeof(CudaTile) + (size_t)first[n_experts] * sizeof *row_of, 2, e));
    TRY(send_tiles(b, first, n_experts, &tiles, &n_tiles, e));
    if (row_of)
        TRY(cuda_ring_copy(b, row_of, (size_t)first[n_experts] * sizeof *row_of, &row_of_dev, e));
    TRY(first_pass(b, x, x_up, row_of_dev, tiles, n_tiles, spec, scratch, e));
    if (spec->inner.scheme != ROWS_AS_THEY_ARE) {
        char *rows = (char *)scratch + (size_t)first[0] * (size_t)spec->inter * 2;
        TRY(cuda_backend.round_rows(b, rows, spec->inter, rows, spec->inter, n_pairs,
                                    (int)spec->inter, &spec->inner, e));
    }
    return second_pass(b, y, tiles, n_tiles, spec, scratch, e);
}
