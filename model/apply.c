/* model/apply.c - see apply.h. */
#include "model/apply.h"

#include "model/attention.h"

/* x as format says: x itself, or rounded into buffer. */
static Status rounded(Model *m, const void *x, int n, int width, const RowFormat *format,
                      void *buffer, const void **out, Err *e)
{
    *out = x;
    if (format->scheme == ROWS_AS_THEY_ARE)
        return ST_OK;
    *out = buffer;
    return m->config.ops->round_rows(m->config.backend, buffer, width, x, width, n, width, format,
                                     e);
}

/* x in the codes that a WEIGHT_CODED bank reads. */
static Status coded(Model *m, const void *x, int n, int width, const RowFormat *format, Err *e)
{
    return m->config.ops->code_rows(m->config.backend, m->rounded, x, n, width, format, e);
}

Status apply_linear(Model *m, void *y, const void *x, const Linear *l, int n, Err *e)
{
    const BackendOps *ops = m->config.ops;
    bool alike = true;
    const void *in;
    if (l->coded) {
        TRY(coded(m, x, n, l->cols, &l->rows[0], e));
        return ops->matmul_codes(m->config.backend, y, m->rounded, l->w, l->bias, n, &l->rows[0],
                                 e);
    }
    for (int i = 1; i < l->n_parts; i++)
        alike &= row_format_same(&l->rows[i], &l->rows[0]);
    for (int i = 0; i < (alike ? 1 : l->n_parts); i++) {
        TRY(rounded(m, x, n, l->cols, &l->rows[i], m->rounded, &in, e));
        TRY(ops->matmul(m->config.backend, y, in, l->w, alike ? ALL_PARTS : i, l->bias, n, e));
    }
    return ST_OK;
}

Status apply_logits(Model *m, float *y, const void *x, const Linear *l, int n, Err *e)
{
    const void *in;
    TRY(rounded(m, x, n, l->cols, &l->rows[0], m->rounded, &in, e));
    return m->config.ops->matmul_float(m->config.backend, y, in, l->w, l->bias, n, e);
}

Status apply_ffn(Model *m, void *y, const void *x, const FfnSpec *spec, const RowFormat rows[2],
                 int n, Err *e)
{
    const BackendOps *ops = m->config.ops;
    const void *gate, *up = NULL;
    if (spec->rows.scheme != ROWS_AS_THEY_ARE) {
        TRY(coded(m, x, n, (int)spec->hidden, &spec->rows, e));
        return ops->ffn(m->config.backend, y, m->rounded, NULL, NULL, NULL, 1, n, spec, m->scratch,
                        e);
    }
    TRY(rounded(m, x, n, (int)spec->hidden, &rows[0], m->rounded, &gate, e));
    if (!row_format_same(&rows[0], &rows[1]))
        TRY(rounded(m, x, n, (int)spec->hidden, &rows[1], m->rounded_up, &up, e));
    return ops->ffn(m->config.backend, y, gate, up, NULL, NULL, 1, n, spec, m->scratch, e);
}

int apply_widest(const Arch *a)
{
    int widest = a->hidden, out = attention_out_width(a);
    if (out > widest)
        widest = out;
    return a->q_lora > widest ? a->q_lora : widest;
}
