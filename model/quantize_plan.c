/* model/quantize_plan.c - see quantize_plan.h.
 *
 * Tensors are taken in the order of the source's files. Where one belongs to a module that is to be
 * quantized, all that the module becomes is put there, together with what shares its scale. */
#include "model/quantize_plan_internal.h"

#include "model/family.h"
#include "quant/encode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status plan_grow(void **items, int *cap, int n, size_t size, Err *e)
{
    if (n < *cap)
        return ST_OK;
    int more = *cap > 0 ? 2 * *cap : 256;
    void *grown = *cap > 1 << 28 ? NULL : realloc(*items, (size_t)more * size);
    if (!grown)
        return err_set(e, ST_MEMORY, "not enough memory for a plan of %d entries", more);
    *items = grown;
    *cap = more;
    return ST_OK;
}

/* --- tensors --- */

static Status add_tensor(PlanMaker *m, const char *name, TensorDtype dtype, int n_dims,
                         const int64_t *shape, int *out)
{
    QuantizePlan *p = m->plan;
    if (!name)
        return m->e->code;
    TRY(plan_grow((void **)&p->tensors, &p->cap_tensors, p->n_tensors, sizeof *p->tensors, m->e));
    TensorPlan *t = &p->tensors[p->n_tensors];
    *t = (TensorPlan){.name = name, .dtype = dtype, .n_dims = n_dims};
    for (int d = 0; d < n_dims; d++)
        t->shape[d] = shape[d];
    t->bytes = tensor_plan_bytes(t);
    p->tensor_bytes += t->bytes;
    *out = p->n_tensors++;
    return ST_OK;
}

#define ADD_TENSOR(m, name, dtype, out, n_dims, ...)                                               \
    add_tensor(m, name, dtype, n_dims, (const int64_t[]){__VA_ARGS__}, out)

static Status add_fixed(PlanMaker *m, int tensor, const TensorEntry *copy, const void *value,
                        size_t len)
{
    QuantizePlan *p = m->plan;
    TRY(plan_grow((void **)&p->fixed, &p->cap_fixed, p->n_fixed, sizeof *p->fixed, m->e));
    PlanFixed *f = &p->fixed[p->n_fixed++];
    *f = (PlanFixed){.tensor = tensor, .copy = copy};
    if (value)
        memcpy(f->value, value, len);
    return ST_OK;
}

static Status add_scalar(PlanMaker *m, const char *name, float value)
{
    int tensor;
    TRY(add_tensor(m, name, DTYPE_F32, 0, NULL, &tensor));
    return add_fixed(m, tensor, NULL, &value, sizeof value);
}

static PlanPart *last_part(PlanMaker *m)
{
    return &m->plan->parts[m->plan->n_parts - 1];
}

static Status begin_part(PlanMaker *m)
{
    QuantizePlan *p = m->plan;
    TRY(plan_grow((void **)&p->parts, &p->cap_parts, p->n_parts, sizeof *p->parts, m->e));
    p->parts[p->n_parts++] = (PlanPart){
        .first_tensor = p->n_tensors, .first_matrix = p->n_matrices, .first_fixed = p->n_fixed};
    m->bytes_before = p->tensor_bytes;
    return ST_OK;
}

static void end_part(PlanMaker *m)
{
    PlanPart *part = last_part(m);
    part->n_tensors = m->plan->n_tensors - part->first_tensor;
    part->n_matrices = m->plan->n_matrices - part->first_matrix;
    part->n_fixed = m->plan->n_fixed - part->first_fixed;
}

/* Called where a part may end: what shares a scale stays together. */
static Status maybe_end_part(PlanMaker *m)
{
    if (m->plan->tensor_bytes - m->bytes_before < m->request->part_bytes)
        return ST_OK;
    end_part(m);
    return begin_part(m);
}

/* --- matrices --- */

static FormatId rounds_to(const LinearTensors *t)
{
    switch (t->q.format->id) {
    case FORMAT_BF16:
    case FORMAT_F16:
        return t->q.format->id;
    case FORMAT_MXFP4: /* every value is one of bf16's, and readers hold them so */
    case FORMAT_MXFP8:
        return FORMAT_BF16;
    default:
        return FORMAT_F32;
    }
}

static PlanMatrix matrix_of(const PlanModule *module, const LinearTensors *t, int expert, int set)
{
    return (PlanMatrix){.source = t,
                        .expert = expert,
                        .rows = t->q.rows,
                        .cols = t->q.cols,
                        .target = module->target,
                        .group = module->target == TARGET_INT4 && module->group > t->q.cols
                                     ? (int)t->q.cols
                                     : module->group,
                        .rounds_to = rounds_to(t),
                        .of_mxfp4 = t->q.format->id == FORMAT_MXFP4,
                        .set = set,
                        .scale = -1,
                        .global = -1};
}

static Status add_matrix(PlanMaker *m, PlanMatrix matrix)
{
    QuantizePlan *p = m->plan;
    TRY(plan_grow((void **)&p->matrices, &p->cap_matrices, p->n_matrices, sizeof *p->matrices,
                  m->e));
    p->matrices[p->n_matrices++] = matrix;
    return ST_OK;
}

static float input_scale(TargetId target, float amax)
{
    return encode_scale(amax, target == TARGET_NVFP4 ? 2688.0f : 448.0f);
}

/* A matrix with tensors of its own, called NAME.weight and so on; input_amax of static targets. */
static Status add_single(PlanMaker *m, PlanMatrix x, const char *name, float input_amax)
{
    int64_t r = x.rows, c = x.cols, g = x.group > 0 ? x.group : c, groups = c / g + (c % g != 0);
    int64_t down = r / 128 + (r % 128 != 0);
    const char *weight = plan_text(m, "%s.weight", name);
    const char *scale = plan_text(m, "%s.weight_scale", name);
    switch (x.target) {
    case TARGET_BF16:
        TRY(ADD_TENSOR(m, weight, DTYPE_BF16, &x.weight, 2, r, c));
        break;
    case TARGET_FP8_STATIC:
        TRY(ADD_TENSOR(m, weight, DTYPE_F8_E4M3, &x.weight, 2, r, c));
        TRY(add_tensor(m, scale, DTYPE_F32, 0, NULL, &x.global));
        break;
    case TARGET_FP8_DYNAMIC:
        TRY(ADD_TENSOR(m, weight, DTYPE_F8_E4M3, &x.weight, 2, r, c));
        TRY(ADD_TENSOR(m, scale, DTYPE_F32, &x.scale, 1, r));
        break;
    case TARGET_FP8_BLOCK:
        TRY(ADD_TENSOR(m, weight, DTYPE_F8_E4M3, &x.weight, 2, r, c));
        TRY(ADD_TENSOR(m, scale, DTYPE_F32, &x.scale, 4, down, 1, groups, 1));
        break;
    case TARGET_NVFP4:
    case TARGET_W4A16_NVFP4:
        TRY(ADD_TENSOR(m, weight, DTYPE_U8, &x.weight, 2, r, c / 2));
        TRY(ADD_TENSOR(m, scale, DTYPE_F8_E4M3, &x.scale, 2, r, groups));
        TRY(add_tensor(m, plan_text(m, "%s.weight_scale_2", name), DTYPE_F32, 0, NULL, &x.global));
        break;
    case TARGET_MXFP8:
        TRY(ADD_TENSOR(m, weight, DTYPE_F8_E4M3, &x.weight, 2, r, c));
        TRY(ADD_TENSOR(m, scale, DTYPE_U8, &x.scale, 2, r, groups));
        break;
    case TARGET_MXFP4:
        TRY(ADD_TENSOR(m, weight, DTYPE_U8, &x.weight, 2, r, c / 2));
        TRY(ADD_TENSOR(m, scale, DTYPE_U8, &x.scale, 2, r, groups));
        break;
    case TARGET_INT4: {
        const int64_t shape[2] = {r, c};
        int tensor;
        TRY(ADD_TENSOR(m, plan_text(m, "%s.weight_packed", name), DTYPE_I32, &x.weight, 2, r,
                       encode_row_bytes(FORMAT_INT4, c) / 4));
        TRY(ADD_TENSOR(m, scale, DTYPE_BF16, &x.scale, 2, r, groups));
        TRY(ADD_TENSOR(m, plan_text(m, "%s.weight_shape", name), DTYPE_I64, &tensor, 1, 2));
        TRY(add_fixed(m, tensor, NULL, shape, sizeof shape));
        break;
    }
    default: /* TARGET_Q8_0; nothing else gets here */
        TRY(ADD_TENSOR(m, weight, DTYPE_U8, &x.weight, 3, r, c / 32, 34));
        break;
    }
    if (quantize_target(x.target)->static_inputs)
        TRY(add_scalar(m, plan_text(m, "%s.input_scale", name), input_scale(x.target, input_amax)));
    return add_matrix(m, x);
}

/* --- calibrated inputs --- */

/* The largest magnitude of each expert's inputs, [n_experts]: of gate and up, or of down. */
static const float *expert_inputs(const PlanMaker *m, const PlanModule *module, bool down)
{
    const LayerSeen *seen = &m->request->seen->layers[module->layer];
    return down ? seen->expert_inner : seen->expert_in;
}

/* Of the whole layer. */
static Status layer_amax(PlanMaker *m, const PlanModule *module, bool down, float *out)
{
    const float *amax = expert_inputs(m, module, down);
    *out = 0;
    for (int i = 0; i < m->request->arch->router.n_experts; i++)
        *out = amax[i] > *out ? amax[i] : *out;
    return *out > 0 ? ST_OK
                    : err_set(m->e, ST_INPUT,
                              "%.200s: no token reached any of these experts in calibration",
                              module->name);
}

static Status check_amax(PlanMaker *m, const char *name, float amax)
{
    return isfinite(amax)
               ? ST_OK
               : err_set(m->e, ST_INPUT, "%.200s: calibration met an activation that is not finite",
                         name);
}

/* --- modules --- */

static bool targets_share(TargetId target, ModuleKind kind)
{
    return quantize_target(target)->format == FORMAT_NVFP4 ||
           (target == TARGET_FP8_STATIC && kind == MODULE_EXPERTS);
}

static Status write_linear(PlanMaker *m, PlanModule *module, int set)
{
    module->written = true;
    TRY(check_amax(m, module->name, module->input_amax));
    return add_single(m, matrix_of(module, module->linear, 0, set), module->name,
                      module->input_amax);
}

/* The module, and those that share its scale. */
static Status write_linears(PlanMaker *m, PlanModule *module)
{
    int set = m->plan->n_sets++;
    if (module->shares < 0 || !targets_share(module->target, module->kind)) {
        TRY(write_linear(m, module, set));
        return maybe_end_part(m);
    }
    for (int i = 0; i < m->plan->n_modules; i++) {
        PlanModule *other = &m->plan->modules[i];
        if (other->shares == module->shares)
            TRY(write_linear(m, other, set));
    }
    return maybe_end_part(m);
}

typedef struct Projection {
    const char *before, *after;   /* of the expert's number in the name */
    const LinearTensors *tensors; /* [E], or the stack of all */
    bool stacked;
    int64_t first_row, rows; /* in the stack */
    const float *amax;       /* [E] calibrated, of the inputs; NULL: not needed */
    float layer_amax;        /* the largest of them */
} Projection;

static Status write_projection(PlanMaker *m, const PlanModule *module, const Projection *p,
                               int expert, int set)
{
    const LinearTensors *t = p->stacked ? p->tensors : &p->tensors[expert];
    PlanMatrix x = matrix_of(module, t, p->stacked ? expert : 0, set);
    const char *name = plan_text(m, "%s%d%s", p->before, expert, p->after);
    float amax = 0;
    if (!name)
        return m->e->code;
    if (p->amax) {
        amax = p->amax[expert] > 0 ? p->amax[expert] : p->layer_amax;
        m->plan->n_unseen_experts += p->amax[expert] == 0;
        TRY(check_amax(m, name, amax));
    }
    if (p->stacked) {
        x.first_row = p->first_row;
        x.rows = p->rows;
    }
    return add_single(m, x, name, amax);
}

/* BEFORE and AFTER of a family's pattern "mlp.experts.%d.gate_proj", behind the layer's prefix. */
static Status split_pattern(PlanMaker *m, const char *prefix, const char *pattern, Projection *p)
{
    const char *at = strstr(pattern, "%d");
    if (!at)
        return err_set(m->e, ST_INPUT, "%.100s: no place for the expert's number", pattern);
    p->before = plan_text(m, "%s%.*s", prefix, (int)(at - pattern), pattern);
    p->after = plan_text(m, "%s", at + 2);
    return p->before && p->after ? ST_OK : m->e->code;
}

/* Of tensors for each expert: "model.layers.0.mlp.experts." and ".gate_proj". */
static Status split_name(PlanMaker *m, const PlanModule *module, const TensorEntry *t,
                         Projection *p)
{
    const char *stem = plan_stem(m, t);
    if (!stem)
        return m->e->code;
    const char *after = strrchr(stem, '.');
    p->before = plan_text(m, "%s.", module->name);
    p->after = after;
    return p->before && p->after ? ST_OK : m->e->code;
}

static Status find_projections(PlanMaker *m, const PlanModule *module, Projection p[3])
{
    const ExpertTensors *t = module->experts;
    const FamilyNames *names = &m->request->arch->family->names;
    const LinearTensors *single[3] = {t->gate, t->up, t->down};
    const char *pattern[3] = {names->gate, names->up, names->down};
    int64_t inter = t->stacked ? t->gate_up.q.rows / 2 : 0;
    const char *prefix = "";
    if (t->stacked) { /* "model.layers.0." in front of "mlp.experts.gate_up_proj" */
        const char *at = names->experts ? strstr(t->gate_up.weight->name, names->experts) : NULL;
        if (!at)
            return err_set(m->e, ST_INPUT, "%.200s: not called as experts are", module->name);
        prefix = plan_text(m, "%.*s", (int)(at - t->gate_up.weight->name), t->gate_up.weight->name);
        if (!prefix)
            return m->e->code;
    }
    for (int i = 0; i < 3; i++) {
        p[i] = (Projection){.stacked = t->stacked};
        if (t->stacked) {
            p[i].tensors = i < 2 ? &t->gate_up : &t->stacked_down;
            p[i].first_row = i == 1 ? inter : 0;
            p[i].rows = i < 2 ? inter : t->stacked_down.q.rows;
            TRY(split_pattern(m, prefix, pattern[i], &p[i]));
        } else {
            p[i].tensors = single[i];
            TRY(split_name(m, module, single[i][0].weight, &p[i]));
        }
        if (quantize_target(module->target)->static_inputs) {
            TRY(layer_amax(m, module, i == 2, &p[i].layer_amax));
            p[i].amax = expert_inputs(m, module, i == 2);
        }
    }
    return ST_OK;
}

static Status write_experts(PlanMaker *m, PlanModule *module)
{
    Projection p[3];
    bool shares = targets_share(module->target, module->kind);
    TRY(find_projections(m, module, p));
    for (int e = 0; e < m->request->arch->router.n_experts; e++) {
        for (int i = 0; i < 3; i++) {
            if (i != 1 || !shares) /* gate and up share */
                m->plan->n_sets++;
            TRY(write_projection(m, module, &p[i], e, m->plan->n_sets - 1));
        }
        TRY(maybe_end_part(m));
    }
    return ST_OK;
}

/* One stack of gpt-oss's, in its own layout or in ModelOpt's (formats.md 2.9, 10). */
static Status write_stack(PlanMaker *m, const PlanModule *module, const LinearTensors *t)
{
    int64_t n = m->request->arch->router.n_experts, r = t->q.rows, c = t->q.cols;
    const Target *target = quantize_target(module->target);
    const char *base = plan_stem(m, t->weight), *scale;
    PlanMatrix x = matrix_of(module, t, 0, m->plan->n_sets++);
    int64_t scale_bytes_each = 0, each;
    if (!base)
        return m->e->code;
    if (module->target == TARGET_MXFP4) {
        TRY(ADD_TENSOR(m, plan_text(m, "%s_blocks", base), DTYPE_U8, &x.weight, 4, n, r, c / 32,
                       16));
        TRY(ADD_TENSOR(m, plan_text(m, "%s_scales", base), DTYPE_U8, &x.scale, 3, n, r, c / 32));
        each = r * c / 2;
        scale_bytes_each = r * c / 32;
    } else {
        x.transposed = true;
        scale = plan_text(m, "%s_weight_scale", base);
        if (target->format == FORMAT_NVFP4) {
            TRY(ADD_TENSOR(m, base, DTYPE_U8, &x.weight, 3, n, c / 2, r));
            TRY(ADD_TENSOR(m, scale, DTYPE_F8_E4M3, &x.scale, 3, n, c / x.group, r));
            TRY(add_tensor(m, plan_text(m, "%s_weight_scale_2", base), DTYPE_F32, 0, NULL,
                           &x.global));
            each = r * c / 2;
            scale_bytes_each = r * c / x.group;
        } else if (module->target == TARGET_BF16) {
            TRY(ADD_TENSOR(m, base, DTYPE_BF16, &x.weight, 3, n, c, r));
            each = r * c * 2;
        } else {
            TRY(ADD_TENSOR(m, base, DTYPE_F8_E4M3, &x.weight, 3, n, c, r));
            TRY(add_tensor(m, scale, DTYPE_F32, 0, NULL, &x.global));
            x.rounds_to = FORMAT_F32;
            each = r * c;
        }
    }
    if (target->static_inputs) {
        float amax;
        TRY(layer_amax(m, module, t == &module->experts->stacked_down, &amax));
        TRY(check_amax(m, base, amax));
        TRY(add_scalar(m, plan_text(m, "%s_input_scale", base), input_scale(module->target, amax)));
    }
    for (int e = 0; e < n; e++) {
        x.expert = e;
        x.weight_at = e * each;
        x.scale_at = e * scale_bytes_each;
        TRY(add_matrix(m, x));
        x.global = -1;
    }
    return maybe_end_part(m);
}

static Status write_module(PlanMaker *m, PlanModule *module)
{
    const ExpertTensors *t = module->experts;
    if (!t)
        return write_linears(m, module);
    module->written = true;
    if (!t->interleaved)
        return write_experts(m, module);
    TRY(write_stack(m, module, &t->gate_up));
    return write_stack(m, module, &t->stacked_down);
}

/* --- tensors of the source --- */

static void own(PlanMaker *m, const char *name, int module)
{
    int at = name_table_find(&m->request->source->files.names, name);
    if (at >= 0)
        m->owner[at] = module + 1;
}

/* The weights of a module, and all that says how they are stored. */
static Status own_linear(PlanMaker *m, const LinearTensors *t, int module)
{
    static const char *const suffixes[] = {
        "weight_scale",       "weight_scale_inv",    "scale",
        "weight_scale_2",     "weight_global_scale", "input_scale",
        "input_global_scale", "weight_shape",        "scales"};
    const char *stem = plan_stem(m, t->weight);
    if (!stem)
        return m->e->code;
    own(m, t->weight->name, module);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && t->scheme; i++) {
        char name[800]; /* plan_text allows for 700 */
        snprintf(name, sizeof name, "%s.%s", stem, suffixes[i]);
        own(m, name, module);
        snprintf(name, sizeof name, "%s_%s", stem, suffixes[i]);
        own(m, name, module);
    }
    return ST_OK;
}

static Status own_tensors(PlanMaker *m)
{
    int n_experts = m->request->arch->router.n_experts;
    for (int i = 0; i < m->plan->n_modules; i++) {
        const PlanModule *x = &m->plan->modules[i];
        if (x->target == TARGET_KEEP)
            continue;
        if (!x->experts) {
            TRY(own_linear(m, x->linear, i));
        } else if (x->experts->stacked) {
            TRY(own_linear(m, &x->experts->gate_up, i));
            TRY(own_linear(m, &x->experts->stacked_down, i));
        } else {
            for (int e = 0; e < n_experts; e++) {
                TRY(own_linear(m, &x->experts->gate[e], i));
                TRY(own_linear(m, &x->experts->up[e], i));
                TRY(own_linear(m, &x->experts->down[e], i));
            }
        }
    }
    return ST_OK;
}

static Status copy_tensor(PlanMaker *m, const TensorEntry *t)
{
    int tensor;
    TRY(add_tensor(m, t->name, t->dtype, t->n_dims, t->shape, &tensor));
    TRY(add_fixed(m, tensor, t, NULL, 0));
    return maybe_end_part(m);
}

/* formats.md 2.15: amax / 448. Layers with latent attention have none. */
static Status write_kv_scales(PlanMaker *m)
{
    const Checkpoint *c = m->request->source;
    for (int i = 0; i < c->n_layers; i++) {
        const LinearTensors *kv[2] = {&c->layers[i].k, &c->layers[i].v};
        for (int j = 0; j < 2 && kv[j]->weight; j++) {
            const LayerSeen *seen = &m->request->seen->layers[i];
            float amax = j ? seen->value : seen->key;
            const char *stem = plan_stem(m, kv[j]->weight);
            if (!stem)
                return m->e->code;
            TRY(check_amax(m, stem, amax));
            TRY(add_scalar(m, plan_text(m, "%s.%c_scale", stem, j ? 'v' : 'k'),
                           encode_scale(amax, 448.0f)));
            m->plan->kv_fp8 = true;
        }
    }
    return ST_OK;
}

static bool is_kv_scale(const Checkpoint *c, const TensorEntry *t)
{
    for (int i = 0; i < c->n_layers; i++)
        if (t == c->layers[i].k_scale || t == c->layers[i].v_scale)
            return true;
    return false;
}

static Status fill_parts(PlanMaker *m)
{
    const TensorSet *files = &m->request->source->files;
    bool new_kv = m->request->kv_fp8 && m->request->seen;
    TRY(begin_part(m));
    for (int i = 0; i < files->n; i++) {
        PlanModule *module = m->owner[i] ? &m->plan->modules[m->owner[i] - 1] : NULL;
        if (new_kv && is_kv_scale(m->request->source, files->entries[i]))
            continue;
        if (!module)
            TRY(copy_tensor(m, files->entries[i]));
        else if (!module->written)
            TRY(write_module(m, module));
    }
    if (new_kv)
        TRY(write_kv_scales(m));
    end_part(m);
    if (last_part(m)->n_tensors == 0 && m->plan->n_parts > 1)
        m->plan->n_parts--;
    return ST_OK;
}

static Status lay_out_parts(PlanMaker *m)
{
    QuantizePlan *p = m->plan;
    const char *const metadata[] = {"format", "pt", "moebatch", m->request->identity, NULL};
    for (int i = 0; i < p->n_parts; i++) {
        PlanPart *part = &p->parts[i];
        if (p->n_parts == 1)
            snprintf(part->name, sizeof part->name, "model.safetensors");
        else
            snprintf(part->name, sizeof part->name, "model-%05d-of-%05d.safetensors", i + 1,
                     p->n_parts);
        TRY(safetensors_lay_out(p->tensors + part->first_tensor, part->n_tensors, metadata,
                                &part->header, &part->bytes, m->e));
    }
    return ST_OK;
}

Status quantize_plan_make(const PlanRequest *request, QuantizePlan *out, Err *e)
{
    Err own_error = {0};
    PlanMaker m = {.request = request, .plan = out, .e = e ? e : &own_error};
    Status st;
    *out = (QuantizePlan){0};
    m.owner = calloc((size_t)request->source->files.n + 1, sizeof *m.owner);
    if (!m.owner) {
        st = err_set(m.e, ST_MEMORY, "not enough memory for a plan");
        goto fail;
    }
    TRY_GOTO(plan_find_modules(&m));
    TRY_GOTO(own_tensors(&m));
    TRY_GOTO(fill_parts(&m));
    TRY_GOTO(lay_out_parts(&m));
    free(m.owner);
    return ST_OK;
fail:
    free(m.owner);
    quantize_plan_free(out);
    return st;
}

Status quantize_plan_check(const PlanRequest *request, Err *e)
{
    QuantizePlan plan = {0};
    Err own_error = {0};
    PlanMaker m = {.request = request, .plan = &plan, .e = e ? e : &own_error};
    Status st = plan_find_modules(&m);
    quantize_plan_free(&plan);
    return st;
}

void quantize_plan_free(QuantizePlan *p)
{
    for (int i = 0; i < p->n_parts; i++)
        strbuf_free(&p->parts[i].header);
    free(p->modules);
    free(p->tensors);
    free(p->matrices);
    free(p->fixed);
    free(p->parts);
    arena_free(&p->arena);
    *p = (QuantizePlan){0};
}
