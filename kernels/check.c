/* kernels/check.c - see check.h. */
#include "kernels/check.h"

Status check_router(const RouterSpec *spec, int max_groups, Err *e)
{
    if (spec->n_experts < 1 || spec->n_experts > ROUTER_MAX_EXPERTS || spec->top_k < 1 ||
        spec->top_k > ROUTER_MAX_TOP_K || spec->top_k > spec->n_experts)
        return err_set(e, ST_INPUT, "router: top %d of %d experts; at most %d of %d are supported",
                       spec->top_k, spec->n_experts, ROUTER_MAX_TOP_K, ROUTER_MAX_EXPERTS);
    if (spec->n_group < 1 || spec->n_group > max_groups || spec->n_experts % spec->n_group ||
        spec->topk_group < 1 || spec->topk_group > spec->n_group)
        return err_set(e, ST_INPUT, "router: %d of %d groups of %d experts", spec->topk_group,
                       spec->n_group, spec->n_experts);
    if (spec->topk_group * (spec->n_experts / spec->n_group) < spec->top_k)
        return err_set(e, ST_INPUT, "router: %d groups of %d experts do not hold the top %d",
                       spec->topk_group, spec->n_experts / spec->n_group, spec->top_k);
    if (spec->topk_group < spec->n_group && spec->kind != ROUTER_GROUP_MAX &&
        spec->kind != ROUTER_SIGMOID)
        return err_set(e, ST_INPUT, "router: this kind has no groups, but %d of %d are asked for",
                       spec->topk_group, spec->n_group);
    return ST_OK;
}

Status check_row_format(const RowFormat *format, int width, Err *e)
{
    if (width % row_format_multiple(format->scheme) != 0)
        return err_set(e, ST_INPUT, "rows of %d values in %s: not a multiple of %d", width,
                       row_scheme_name(format->scheme), row_format_multiple(format->scheme));
    return ST_OK;
}

Status check_place(const char *name, int n_mats, int n_parts, int mat, int part, Err *e)
{
    if (mat < 0 || mat >= n_mats || part < 0 || part >= n_parts)
        return err_set(e, ST_INPUT, "%s: has no matrix %d, part %d", name, mat, part);
    return ST_OK;
}

Status check_tensor(const char *name, int mat, int part, FormatId format, int64_t rows,
                    int64_t cols, const QuantTensor *t, Err *e)
{
    if (t->format->id != format || t->rows != rows || t->cols != cols)
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d is %s [%lld, %lld], expected %s [%lld, %lld]", name,
                       mat, part, t->format->name, (long long)t->rows, (long long)t->cols,
                       quant_format(format)->name, (long long)rows, (long long)cols);
    return ST_OK;
}
