/* model/quantize_modules.c - the modules of a source, and the target that the rules give to
 * each; see quantize_plan_internal.h. */
#include "model/quantize_plan_internal.h"

#include "model/family.h"
#include "model/modules.h"

#include <stdio.h>
#include <string.h>

const char *plan_text(PlanMaker *m, const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text) {
        err_set(m->e, ST_INPUT, "%.300s...: the name is too long", text);
        return NULL;
    }
    const char *kept = arena_copy(&m->plan->arena, text, (size_t)n);
    if (!kept)
        err_set(m->e, ST_MEMORY, "not enough memory for names");
    return kept;
}

const char *plan_stem(PlanMaker *m, const TensorEntry *t)
{
    return plan_text(m, "%.*s", module_stem(t->name), t->name);
}

/* text without its last n parts between dots. */
static const char *without_last(PlanMaker *m, const char *text, int n)
{
    size_t len = strlen(text);
    while (n-- > 0) {
        while (len > 0 && text[len - 1] != '.')
            len--;
        len -= len > 0;
    }
    return plan_text(m, "%.*s", (int)len, text);
}

static Status refuse_kept(PlanMaker *m, const PlanModule *module, const QuantScheme *scheme)
{
    return err_set(m->e, ST_INPUT,
                   "%.200s is stored as %s and the recipe leaves it so, which a checkpoint of "
                   "another format cannot say: give it a format, or \"bf16\"",
                   module->name, scheme->algo);
}

static Status check_columns(PlanMaker *m, const PlanModule *module, int64_t cols)
{
    const Target *t = quantize_target(module->target);
    int multiple = t->format == FORMAT_NVFP4 ? module->group : t->multiple;
    if (cols % multiple)
        return err_set(m->e, ST_INPUT,
                       "%.200s: %lld inputs, but %s needs them in multiples of %d: give it another "
                       "format, or \"keep\"",
                       module->name, (long long)cols, t->name, multiple);
    return ST_OK;
}

static Status check_target(PlanMaker *m, const PlanModule *module)
{
    const Target *t = quantize_target(module->target);
    const ExpertTensors *x = module->experts;
    const LinearTensors *first = !x ? module->linear : x->stacked ? &x->gate_up : &x->gate[0];
    if (module->target == TARGET_KEEP)
        return first->scheme ? refuse_kept(m, module, first->scheme) : ST_OK;
    if (module->kind == MODULE_EMBEDDING && module->target != TARGET_Q8_0 &&
        module->target != TARGET_BF16)
        return err_set(m->e, ST_INPUT, "%.200s: an embedding can be stored as q8_0 only",
                       module->name);
    if (t->static_inputs && !m->request->seen && !m->request->will_calibrate)
        return err_set(m->e, ST_USAGE, "%s needs calibrated inputs: give --calibrate, or take %s",
                       t->name, module->target == TARGET_NVFP4 ? "w4a16_nvfp4" : "fp8-dynamic");
    if (!x)
        return check_columns(m, module, module->linear->q.cols);
    const LinearTensors *down = x->stacked ? &x->stacked_down : &x->down[0];
    TRY(check_columns(m, module, first->q.cols));
    TRY(check_columns(m, module, down->q.cols));
    if (!x->stacked || (!x->interleaved && m->request->arch->family->names.gate))
        return ST_OK;
    if (x->interleaved && (module->target == TARGET_MXFP4 || module->target == TARGET_FP8_STATIC ||
                           t->format == FORMAT_NVFP4 || module->target == TARGET_BF16))
        return ST_OK;
    return err_set(m->e, ST_INPUT,
                   "%.200s: there is no published way to store experts of %s in %s%s", module->name,
                   m->request->arch->family->model_type, t->name,
                   x->interleaved ? " (mxfp4, fp8-static, nvfp4 and w4a16_nvfp4 have one)" : "");
}

static Status add(PlanMaker *m, PlanModule module)
{
    QuantizePlan *p = m->plan;
    if (!module.name)
        return m->e->code;
    const QuantizeRule *rule =
        module.kind == MODULE_FIXED
            ? NULL
            : quantize_rules_find(m->request->rules, module.kind, module.name);
    /* gpt-oss's own files have MXFP4 experts and nothing else. */
    bool experts_alone = m->request->arch->family->layout == EXPERTS_GPT_OSS && rule &&
                         rule->target == TARGET_MXFP4 && module.kind != MODULE_EXPERTS;
    if (experts_alone && strcmp(rule->match, "all") != 0)
        return err_set(m->e, ST_INPUT, "%.200s: only the experts of %s can be stored in mxfp4",
                       module.name, m->request->arch->family->model_type);
    if (rule && !experts_alone) {
        module.target = rule->target;
        module.group = rule->group ? rule->group : quantize_target(rule->target)->group;
    }
    TRY(check_target(m, &module));
    TRY(plan_grow((void **)&p->modules, &p->cap_modules, p->n_modules, sizeof *p->modules, m->e));
    p->modules[p->n_modules++] = module;
    return ST_OK;
}

/* What the modules that are added next have in common. */
typedef struct Place {
    ModuleKind kind;
    int layer, shares; /* shares: of PlanModule */
    float input_amax;
} Place;

static Status add_linear(PlanMaker *m, Place at, const LinearTensors *t)
{
    if (!t->weight)
        return ST_OK;
    return add(m, (PlanModule){.name = plan_stem(m, t->weight),
                               .kind = at.kind,
                               .layer = at.layer,
                               .linear = t,
                               .input_amax = at.input_amax,
                               .shares = at.shares});
}

static Status add_ffn(PlanMaker *m, Place at, float inner_amax, const FfnTensors *t)
{
    TRY(add_linear(m, at, &t->gate));
    TRY(add_linear(m, at, &t->up));
    return add_linear(m, (Place){at.kind, at.layer, -1, inner_amax}, &t->down);
}

static Status add_experts(PlanMaker *m, int layer, const ExpertTensors *t)
{
    const TensorEntry *first = t->stacked ? t->gate_up.weight : t->gate ? t->gate[0].weight : NULL;
    if (!first)
        return ST_OK;
    const char *stem = plan_stem(m, first);
    if (!stem)
        return m->e->code;
    return add(m, (PlanModule){.name = without_last(m, stem, t->stacked ? 1 : 2),
                               .kind = MODULE_EXPERTS,
                               .layer = layer,
                               .experts = t,
                               .shares = -1});
}

static Status add_layer(PlanMaker *m, int n, const LayerTensors *t)
{
    enum { READS_LAYER, GATE_UP, SHARED_GATE_UP, N_SHARES };
    static const LayerSeen nothing;
    const LayerSeen *seen = m->request->seen ? &m->request->seen->layers[n] : &nothing;
    int shares = n * N_SHARES;
    const Place in = {MODULE_ATTENTION, n, shares + READS_LAYER, seen->attn_in},
                low = {MODULE_ATTENTION, n, -1, seen->q_low},
                out = {MODULE_ATTENTION, n, -1, seen->attn_out},
                kv_b = {MODULE_KV_B, n, -1, seen->latent}, fixed = {MODULE_FIXED, n, -1, 0},
                dense = {MODULE_DENSE, n, shares + GATE_UP, seen->ffn_in},
                shared = {MODULE_SHARED, n, shares + SHARED_GATE_UP, seen->ffn_in};
    TRY(add_linear(m, in, &t->q_a));
    TRY(add_linear(m, t->q_a.weight ? low : in, &t->q));
    TRY(add_linear(m, in, &t->k));
    TRY(add_linear(m, in, &t->v));
    TRY(add_linear(m, in, &t->kv_a));
    TRY(add_linear(m, kv_b, &t->kv_b));
    TRY(add_linear(m, out, &t->o));
    TRY(add_linear(m, fixed, &t->router));
    TRY(add_ffn(m, dense, seen->dense_inner, &t->dense));
    TRY(add_ffn(m, shared, seen->shared_inner, &t->shared));
    TRY(add_linear(m, fixed, &t->shared_gate));
    return add_experts(m, n, &t->experts);
}

/* Engines fuse q, k and v, and gate and up: they must be of one format (formats.md 3.7, E14, E16).
 * q_a and kv_a share an input, but are fused by none that reads files of two formats. */
static Status check_fused(PlanMaker *m)
{
    const PlanModule *first = m->plan->modules, *end = first + m->plan->n_modules;
    for (const PlanModule *a = first; a < end; a++)
        for (const PlanModule *b = a + 1; b < end && b->layer == a->layer; b++)
            if (a->shares >= 0 && a->shares == b->shares &&
                (a->target != b->target || a->group != b->group))
                return err_set(m->e, ST_INPUT,
                               "%.200s would be %s, but %.200s %s: what reads the same input must "
                               "have the same format",
                               a->name, quantize_target(a->target)->name, b->name,
                               quantize_target(b->target)->name);
    return ST_OK;
}

/* compressed-tensors holds int4, ModelOpt the rest, and no configuration both. */
static Status check_dialects(PlanMaker *m)
{
    const PlanModule *packed = NULL, *other = NULL, *blocks = NULL;
    for (int i = 0; i < m->plan->n_modules; i++) {
        const PlanModule *x = &m->plan->modules[i];
        if (x->target == TARGET_INT4) {
            if (packed && packed->group != x->group)
                return err_set(m->e, ST_INPUT,
                               "int4 in groups of %d (%.150s) and of %d (%.150s) in one checkpoint",
                               packed->group, packed->name, x->group, x->name);
            packed = x;
        } else if (x->target == TARGET_MXFP4 && x->experts && x->experts->interleaved) {
            blocks = x;
        } else if (quantize_target(x->target)->algo) {
            other = x;
        }
    }
    if (blocks && other)
        return err_set(
            m->e, ST_INPUT,
            "mxfp4 (%.150s) and %s (%.150s) in one checkpoint of %s: no configuration says "
            "both",
            blocks->name, quantize_target(other->target)->name, other->name,
            m->request->arch->family->model_type);
    if (packed && other)
        return err_set(
            m->e, ST_INPUT,
            "int4 (%.150s) and %s (%.150s) in one checkpoint: no configuration says both",
            packed->name, quantize_target(other->target)->name, other->name);
    return ST_OK;
}

Status plan_find_modules(PlanMaker *m)
{
    const Checkpoint *c = m->request->source;
    const Place embedding = {MODULE_EMBEDDING, -1, -1, 0},
                head = {MODULE_HEAD, -1, -1, m->request->seen ? m->request->seen->head_in : 0};
    TRY(add_linear(m, embedding, &c->embed));
    if (c->head.weight != c->embed.weight)
        TRY(add_linear(m, head, &c->head));
    for (int i = 0; i < c->n_layers; i++)
        TRY(add_layer(m, i, &c->layers[i]));
    const QuantizeRule *unused = quantize_rules_unused(m->request->rules);
    if (unused)
        return err_set(
            m->e, ST_INPUT,
            "%.200s: the rule for \"%.200s\" matches no module that an earlier one has not matched",
            m->request->rules->file ? m->request->rules->file : "the recipe", unused->match);
    TRY(check_fused(m));
    return check_dialects(m);
}
