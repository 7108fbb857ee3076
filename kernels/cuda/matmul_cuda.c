/* kernels/cuda/matmul_cuda.c - linear layers and grouped experts, on the one matrix operation. */
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

static size_t inner_bytes(int max_pairs, int64_t inter)
{
    return ((size_t)max_pairs * (size_t)inter * 2 + 15) / 16 * 16;
}

/* What W2 reads: the products, then room for their codes. */
size_t cuda_ffn_scratch_bytes(const Backend *b, int max_pairs, int64_t inter)
{
    (void)b;
    return inner_bytes(max_pairs, inter) + cuda_ffn_codes_bytes(max_pairs, inter);
}

/* Gate, up and the activation, or up and its square, into scratch; y is free until the second pass. */
static Status first_pass(Backend *b, void *y, const void *x, const void *x_up,
                         const int32_t *row_of, const int32_t *first, int n_experts, int max_pairs,
                         const FfnSpec *spec, void *scratch, Err *e)
{
    bool gated = spec->act.kind != ACT_RELU2;
    CudaGemm g = gemm_of(spec->w13, ALL_PARTS);
    g.x = gated || !x_up ? x : x_up;
    g.x_up = gated && x_up != x ? x_up : NULL;
    g.x_stride = spec->hidden;
    g.x_row = row_of;
    g.x_room = y;
    g.y = scratch;
    g.y_stride = spec->inter;
    g.bias = spec->b13;
    g.bias_mat = spec->w13->rows;
    g.first = first;
    g.n_mats = n_experts;
    g.n_rows = max_pairs;
    g.epilogue = gated ? CUDA_GATED : CUDA_RELU2;
    g.act = spec->act;
    return cuda_status(b, b->api->gemm(&g, b->stream), spec->w13->name, e);
}

static Status second_pass(Backend *b, void *y, const int32_t *first, int n_experts, int max_pairs,
                          const FfnSpec *spec, const void *scratch, Err *e)
{
    CudaGemm g = gemm_of(spec->w2, ALL_PARTS);
    g.x = scratch;
    g.x_stride = spec->inter;
    g.y = y;
    g.y_stride = spec->hidden;
    g.bias = spec->b2;
    g.bias_mat = spec->hidden;
    g.first = first;
    g.n_mats = n_experts;
    g.n_rows = max_pairs;
    g.follows = true;
    return cuda_status(b, b->api->gemm(&g, b->stream), spec->w2->name, e);
}

Status cuda_ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
                const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
                void *scratch, Err *e)
{
    enum { MOST_EXPERTS = 1024 }; /* whose offsets a block keeps */
    assert(spec->w13->n_parts == (spec->act.kind == ACT_RELU2 ? 1 : 2) &&
           spec->w13->cols == spec->hidden && spec->w13->part[0].rows == spec->inter &&
           spec->w2->cols == spec->inter && n_experts <= spec->w13->n_mats &&
           n_experts <= spec->w2->n_mats && (first || n_experts == 1));
    if (max_pairs == 0)
        return ST_OK;
    if (n_experts > MOST_EXPERTS)
        return err_set(e, ST_INPUT, "%s: %d experts on one rank, at most %d", spec->w13->name,
                       n_experts, MOST_EXPERTS);
    bool coded = spec->w13->use == WEIGHT_CODED, coded_inner = spec->w2->use == WEIGHT_CODED;
    FfnScratch s = {scratch, (char *)scratch + inner_bytes(max_pairs, spec->inter)};
    if (!coded && spec->act.kind != ACT_RELU2 && spec->w13->part[0].layout == CUDA_SLABS)
        return err_set(e, ST_INPUT, "%s: was not made as a bank of gate and up", spec->w13->name);
    if (coded)
        TRY(cuda_ffn_codes_first(b, x, row_of, first, n_experts, max_pairs, spec, &s, e));
    else
        TRY(first_pass(b, y, x, x_up, row_of, first, n_experts, max_pairs, spec, scratch, e));
    if (coded_inner)
        return cuda_ffn_codes_second(b, y, first, n_experts, max_pairs, spec, &s, e);
    if (spec->inner.scheme != ROWS_AS_THEY_ARE)
        TRY(cuda_backend.round_rows(b, scratch, spec->inter, scratch, spec->inter, max_pairs,
                                    (int)spec->inter, &spec->inner, e));
    return second_pass(b, y, first, n_experts, max_pairs, spec, scratch, e);
}
