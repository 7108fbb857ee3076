/* tests/support/bf16_twin.c - see bf16_twin.h. */
#include "tests/support/bf16_twin.h"

#include "kernels/cpu/cpu.h"

static void round_all(float *x, int64_t n_rows, int64_t stride, int64_t width)
{
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < width; i++)
            x[r * stride + i] = bf16_to_float(float_to_bf16(x[r * stride + i]));
}

static Status add_norm(Backend *b, void *y, float *h, const void *delta, float scale,
                       const float *weight, int n, int width, float eps, NormKind kind, Err *e)
{
    TRY(cpu_add_norm(b, y, h, delta, scale, weight, n, width, eps, kind, e));
    round_all(y, n, width, width);
    return ST_OK;
}

static Status norm(Backend *b, void *y, const void *x, const float *weight, int n_rows,
                   int n_groups, int width, int64_t stride, float eps, NormKind kind, Err *e)
{
    TRY(cpu_norm(b, y, x, weight, n_rows, n_groups, width, stride, eps, kind, e));
    round_all(y, n_rows, stride, (int64_t)n_groups * width);
    return ST_OK;
}

static Status matmul(Backend *b, void *y, const void *x, const Weight *w, int part,
                     const float *bias, int n, Err *e)
{
    TRY(cpu_matmul(b, y, x, w, part, bias, n, e));
    /* Values that another part's call has left are rounded already, or will be. */
    round_all(y, n, w->rows, w->rows);
    return ST_OK;
}

static Status rope(Backend *b, void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                   const int32_t *position, const RopeSpec *spec, Err *e)
{
    TRY(cpu_rope(b, x, n_rows, stride, n_heads, head_dim, position, spec, e));
    round_all(x, n_rows, stride, (int64_t)n_heads * head_dim);
    return ST_OK;
}

static void round_rows_of(float *out, const AttnList *list, int64_t width)
{
    for (int i = 0; i < list->n_seqs; i++)
        round_all(out + list->seqs[i].row * width, list->seqs[i].n_rows, width, width);
}

static Status attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                        const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(cpu_attention(b, out, q, stride, pool, list, spec, e));
    round_rows_of(out, list, (int64_t)spec->n_heads * spec->head_dim);
    return ST_OK;
}

static Status latent_attention(Backend *b, void *out, const void *q, const void *pool,
                               const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                               LatentForm form, void *scratch, Err *e)
{
    TRY(cpu_latent_attention(b, out, q, pool, list, spec, w, form, scratch, e));
    round_rows_of(out, list, (int64_t)spec->n_heads * spec->v_dim);
    return ST_OK;
}

static Status ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
                  const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
                  void *scratch, Err *e)
{
    TRY(cpu_ffn(b, y, x, x_up, row_of, first, n_experts, max_pairs, spec, scratch, e));
    round_all(y, first ? first[n_experts] : max_pairs, spec->hidden, spec->hidden);
    return ST_OK;
}

static Status combine(Backend *b, void *y, const void *rows, const int32_t *slot,
                      const float *weight, const void *plus, int n, int top_k, int width, Err *e)
{
    TRY(cpu_combine(b, y, rows, slot, weight, plus, n, top_k, width, e));
    round_all(y, n, width, width);
    return ST_OK;
}

static Status gate_rows(Backend *b, void *y, const void *gate, int n, int width, Err *e)
{
    TRY(cpu_gate_rows(b, y, gate, n, width, e));
    round_all(y, n, width, width);
    return ST_OK;
}

BackendOps bf16_twin(void)
{
    BackendOps ops = cpu_backend;
    ops.add_norm = add_norm;
    ops.norm = norm;
    ops.matmul = matmul;
    ops.rope = rope;
    ops.attention = attention;
    ops.latent_attention = latent_attention;
    ops.ffn = ffn;
    ops.combine = combine;
    ops.gate_rows = gate_rows;
    return ops;
}
