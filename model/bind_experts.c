/* model/bind_experts.c - the routed experts of a layer, in any of the ways in which they lie: a
 * tensor for each expert and projection, or stacks over all experts. */
#include "model/bind.h"

#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- a tensor for each expert and projection --- */

/* All experts of a bank are repacked into one, so they must be stored alike. */
static Status check_alike(const Binder *b, const LinearTensors *bank)
{
    for (int i = 1; i < b->arch->router.n_experts; i++) {
        const QuantTensor *q = &bank[i].q, *first = &bank[0].q;
        const TensorEntry *t = bank[i].weight;
        if (t->dtype != bank[0].weight->dtype)
            return err_set(b->e, ST_INPUT,
                           "%s: tensor \"%.200s\": dtype %s, expected %s as in expert 0",
                           tensor_set_file(&b->c->files, t), t->name, dtype_name(t->dtype),
                           dtype_name(bank[0].weight->dtype));
        if (q->group != first->group || q->scale_type != first->scale_type)
            return err_set(
                b->e, ST_INPUT,
                "%s: tensor \"%.200s\": its scales differ in type or group from those of "
                "expert 0",
                tensor_set_file(&b->c->files, bank[i].scale), bank[i].scale->name);
    }
    return ST_OK;
}

/* "model.layers.0.mlp.experts" and "gate_proj" out of "model.layers.0.mlp.experts.0.gate_proj". */
static void split_expert(char *module, const char **name)
{
    char *last = strrchr(module, '.');
    *name = last ? last + 1 : module;
    if (!last)
        return;
    *last = 0;
    char *number = strrchr(module, '.');
    if (number)
        *number = 0;
}

static Status bind_single(Binder *b, int n, ExpertTensors *t)
{
    const Arch *a = b->arch;
    const FamilyNames *names = &a->family->names;
    const char *patterns[] = {names->gate, names->up, names->down}, *projections[3];
    const int64_t rows[] = {a->moe_inter, a->moe_inter, a->hidden},
                  cols[] = {a->hidden, a->hidden, a->moe_inter};
    size_t n_experts = (size_t)a->router.n_experts;
    const QuantScheme *scheme[3];
    char spelling[3][BIND_NAME_MAX];
    t->gate = calloc(3 * n_experts, sizeof *t->gate);
    if (!t->gate)
        return err_set(b->e, ST_MEMORY, "not enough memory for %zu experts", n_experts);
    t->up = t->gate + n_experts;
    t->down = t->up + n_experts;
    for (int p = 0; p < 3; p++) {
        char relative[128], full[BIND_NAME_MAX];
        bind_fill_pattern(relative, sizeof relative, patterns[p], 0);
        bind_layer_name(b, n, relative, full);
        bind_spelled(b, full, spelling[p]);
        split_expert(spelling[p], &projections[p]);
    }
    TRY(recipe_experts(b->c->recipe, spelling[0], projections, a->router.n_experts, false, scheme,
                       b->e));
    for (int i = 0; i < a->router.n_experts; i++)
        for (int p = 0; p < 3; p++) {
            LinearTensors *const banks[] = {t->gate, t->up, t->down};
            char relative[128], full[BIND_NAME_MAX], module[BIND_NAME_MAX];
            bind_fill_pattern(relative, sizeof relative, patterns[p], i);
            bind_layer_name(b, n, relative, full);
            bind_spelled(b, full, module);
            TRY(bind_scheme(b, module, scheme[p], rows[p], cols[p], &banks[p][i]));
        }
    TRY(check_alike(b, t->gate));
    TRY(check_alike(b, t->up));
    return check_alike(b, t->down);
}

/* --- stacks --- */

typedef struct Stack {
    const char *base; /* full name: "model.layers.0.mlp.experts.gate_up_proj" */
    const QuantScheme *scheme;
    int64_t experts, rows, cols;
} Stack;

static Status bind_part(Binder *b, const Stack *s, const char *suffix, DtypeSet set, Shape shape,
                        int64_t params, const TensorEntry **out)
{
    char name[BIND_NAME_MAX];
    snprintf(name, sizeof name, "%.400s%s", s->base, suffix);
    return bind_name(b, name, set, shape, params, out);
}

static bool has_part(const Binder *b, const Stack *s, const char *suffix)
{
    char name[BIND_NAME_MAX];
    snprintf(name, sizeof name, "%.400s%s", s->base, suffix);
    return bind_find(b, name) >= 0;
}

/* gpt-oss's own layout: blocks [E, rows, cols/32, 16], scales [E, rows, cols/32]. */
static Status bind_blocks(Binder *b, const Stack *s, LinearTensors *out)
{
    int64_t groups = s->cols / 32;
    if (!s->scheme || s->scheme->format != FORMAT_MXFP4)
        return err_set(
            b->e, ST_INPUT,
            "%s: tensor \"%.300s_blocks\": MXFP4 blocks, but quantization_config says %s",
            b->c->files.list_name, s->base, s->scheme ? s->scheme->algo : "unquantized");
    if (s->cols % 32 != 0)
        return err_set(b->e, ST_INPUT,
                       "MXFP4 experts need hidden_size and intermediate_size in "
                       "multiples of 32, but one is %lld",
                       (long long)s->cols);
    TRY(bind_part(b, s, "_blocks", CODES, SHAPE4(s->experts, s->rows, groups, 16),
                  s->experts * s->rows * s->cols, &out->weight));
    TRY(bind_part(b, s, "_scales", POWERS, SHAPE3(s->experts, s->rows, groups), 0, &out->scale));
    QuantTensor q = quant_plain(FORMAT_MXFP4, out->weight->data, s->rows, s->cols);
    q.row_bytes = groups * 16;
    q.scales = out->scale->data;
    q.scale_type = SCALE_E8M0;
    q.group = 32;
    q.scale_row_bytes = groups;
    q.scale_col_bytes = 1;
    out->q = q;
    out->expert_bytes = s->rows * q.row_bytes;
    out->expert_scale_bytes = s->rows * groups;
    return ST_OK;
}

/* Row-major [E, rows, cols], or transposed [E, cols, rows]. */
static Status bind_plain_stack(Binder *b, const Stack *s, bool transposed, LinearTensors *out)
{
    int64_t params = s->experts * s->rows * s->cols;
    TRY(bind_part(b, s, "", WEIGHTS,
                  transposed ? SHAPE3(s->experts, s->cols, s->rows)
                             : SHAPE3(s->experts, s->rows, s->cols),
                  params, &out->weight));
    int size = dtype_bytes(out->weight->dtype);
    out->q = linear_plain(out->weight, s->rows, s->cols);
    if (transposed) {
        out->q.row_bytes = size;
        out->q.unit_stride = s->rows * size;
    }
    out->expert_bytes = s->rows * s->cols * size;
    return ST_OK;
}

/* One value for all experts, or one for each. */
static Status bind_stack_scalar(Binder *b, const Stack *s, const char *suffix, bool needed,
                                const TensorEntry **out)
{
    char name[BIND_NAME_MAX];
    snprintf(name, sizeof name, "%.400s%s", s->base, suffix);
    TRY(bind_optional(b, name, FLOATS, out));
    if (!*out)
        return needed ? err_set(b->e, ST_INPUT, "%s: tensor \"%.300s\": missing, expected F32 []",
                                b->c->files.list_name, name)
                      : ST_OK;
    const TensorEntry *t = *out;
    int64_t n = t->bytes / dtype_bytes(t->dtype);
    return n == 1 || (t->n_dims == 1 && n == s->experts)
               ? ST_OK
               : bind_wrong_shape(b, t, "[]: one value for all experts");
}

/* ModelOpt's gpt-oss: transposed, codes packed along the inputs (formats.md 10). */
static Status bind_transposed(Binder *b, const Stack *s, LinearTensors *out)
{
    bool fp8 = s->scheme->format == FORMAT_FP8 && s->scheme->grid == GRID_TENSOR;
    int64_t params = s->experts * s->rows * s->cols;
    if (!fp8 && s->scheme->format != FORMAT_NVFP4)
        return err_set(b->e, ST_INPUT,
                       "%s: tensor \"%.300s\": stacked experts in %s are not supported (per-tensor "
                       "FP8 and NVFP4 are)",
                       b->c->files.list_name, s->base, s->scheme->algo);
    QuantTensor q = quant_plain(s->scheme->format, NULL, s->rows, s->cols);
    int64_t units = s->cols / q.format->unit;
    TRY(bind_part(b, s, "", fp8 ? CODES8 : CODES, SHAPE3(s->experts, units, s->rows), params,
                  &out->weight));
    q.data = out->weight->data;
    q.row_bytes = 1;
    q.unit_stride = s->rows;
    out->expert_bytes = units * s->rows;
    if (fp8) {
        TRY(bind_stack_scalar(b, s, "_weight_scale", true, &out->scale));
        q.group = s->cols;
        out->expert_scale_bytes =
            out->scale->bytes > dtype_bytes(out->scale->dtype) ? dtype_bytes(out->scale->dtype) : 0;
        q.scale_type = linear_scale_type(out->scale);
    } else {
        int64_t group = s->scheme->group > 0 ? s->scheme->group : 16;
        if (s->cols % group)
            return err_set(b->e, ST_INPUT,
                           "%s: tensor \"%.200s\": %lld inputs, but %s needs them in multiples of "
                           "%lld",
                           tensor_set_file(&b->c->files, out->weight), out->weight->name,
                           (long long)s->cols, s->scheme->algo, (long long)group);
        TRY(bind_part(b, s, "_weight_scale", E4M3_SCALES,
                      SHAPE3(s->experts, s->cols / group, s->rows), 0, &out->scale));
        TRY(bind_stack_scalar(b, s, "_weight_scale_2", true, &out->global));
        q.scale_type = SCALE_E4M3;
        q.group = group;
        q.scale_row_bytes = 1;
        q.scale_col_bytes = s->rows;
        out->expert_scale_bytes = s->cols / group * s->rows;
    }
    q.scales = out->scale->data;
    TRY(bind_stack_scalar(b, s, "_input_scale", false, &out->input));
    out->q = q;
    return ST_OK;
}

static Status bind_stack(Binder *b, const Stack *s, bool transposed, LinearTensors *out)
{
    *out = (LinearTensors){.scheme = s->scheme};
    if (has_part(b, s, "_blocks"))
        return bind_blocks(b, s, out);
    if (!s->scheme)
        return bind_plain_stack(b, s, transposed, out);
    if (transposed)
        return bind_transposed(b, s, out);
    return err_set(b->e, ST_INPUT, "%s: tensor \"%.300s\": stacked experts in %s are not supported",
                   b->c->files.list_name, s->base, s->scheme->algo);
}

/* gate_up and down of all experts under these names, relative to the layer. */
static Status bind_stacks(Binder *b, int n, const char *gate_up, const char *down, bool transposed,
                          ExpertTensors *t)
{
    const Arch *a = b->arch;
    const char *const projections[] = {"gate_up_proj", "gate_up_proj", "down_proj"};
    const QuantScheme *scheme[3];
    char up_name[BIND_NAME_MAX], down_name[BIND_NAME_MAX], bank[BIND_NAME_MAX];
    t->stacked = true;
    t->interleaved = transposed;
    bind_layer_name(b, n, gate_up, up_name);
    bind_layer_name(b, n, down, down_name);
    snprintf(bank, sizeof bank, "%s", up_name);
    char *last = strrchr(bank, '.');
    if (last)
        *last = 0;
    TRY(recipe_experts(b->c->recipe, bank, projections, a->router.n_experts, true, scheme, b->e));
    Stack first = {up_name, scheme[0], a->router.n_experts, 2 * (int64_t)a->moe_inter, a->hidden},
          second = {down_name, scheme[2], a->router.n_experts, a->hidden, a->moe_inter};
    TRY(bind_stack(b, &first, transposed, &t->gate_up));
    return bind_stack(b, &second, transposed, &t->stacked_down);
}

static Status bind_own_stacks(Binder *b, int n, ExpertTensors *t)
{
    const FamilyNames *names = &b->arch->family->names;
    return bind_stacks(b, n, names->stacked_gate_up, names->stacked_down, false, t);
}

/* --- all of them --- */

static Status bind_biases(Binder *b, int n, ExpertTensors *t)
{
    const Arch *a = b->arch;
    int64_t experts = a->router.n_experts;
    char name[128];
    snprintf(name, sizeof name, "%sgate_up_proj_bias", a->family->names.experts);
    TRY(bind_plain(b, n, name, SHAPE2(experts, 2 * (int64_t)a->moe_inter), &t->gate_up_bias));
    snprintf(name, sizeof name, "%sdown_proj_bias", a->family->names.experts);
    return bind_plain(b, n, name, SHAPE2(experts, a->hidden), &t->down_bias);
}

Status bind_experts(Binder *b, int layer, ExpertTensors *t)
{
    const Arch *a = b->arch;
    bool oss = a->family->layout == EXPERTS_GPT_OSS;
    char gate_up[128] = "", down[128] = "", full[BIND_NAME_MAX] = "";
    if (a->family->names.experts) {
        snprintf(gate_up, sizeof gate_up, "%sgate_up_proj", a->family->names.experts);
        snprintf(down, sizeof down, "%sdown_proj", a->family->names.experts);
        bind_layer_name(b, layer, gate_up, full);
    }
    if (a->family->layout == EXPERTS_STACKED)
        TRY(bind_own_stacks(b, layer, t));
    else if (oss || bind_find(b, full) >= 0)
        TRY(bind_stacks(b, layer, gate_up, down, oss, t));
    else
        TRY(bind_single(b, layer, t));
    return a->expert_bias ? bind_biases(b, layer, t) : ST_OK;
}
