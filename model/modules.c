/* model/modules.c - see modules.h. */
#include "model/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(Modules *m, const LinearTensors *t, int layer, int n_stack, bool expert)
{
    if (!t->weight)
        return;
    if (m->at)
        m->at[m->n] = (Module){t, layer, n_stack, expert};
    m->n++;
}

static void add_experts(Modules *m, const ExpertTensors *t, int layer, int n_experts)
{
    if (t->stacked) {
        add(m, &t->gate_up, layer, n_experts, true);
        add(m, &t->stacked_down, layer, n_experts, true);
        return;
    }
    for (int i = 0; t->gate && i < n_experts; i++) {
        add(m, &t->gate[i], layer, 0, true);
        add(m, &t->up[i], layer, 0, true);
        add(m, &t->down[i], layer, 0, true);
    }
}

static void add_layer(Modules *m, const LayerTensors *t, int layer, int n_experts)
{
    const LinearTensors *const before[] = {&t->q_a,      &t->q,          &t->k,     &t->v,
                                           &t->kv_a,     &t->kv_b,       &t->o,     &t->dense.gate,
                                           &t->dense.up, &t->dense.down, &t->router};
    const LinearTensors *const after[] = {&t->shared.gate, &t->shared.up, &t->shared.down,
                                          &t->shared_gate};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        add(m, before[i], layer, 0, false);
    add_experts(m, &t->experts, layer, n_experts);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        add(m, after[i], layer, 0, false);
}

static void add_all(Modules *m, const Checkpoint *c, int n_experts)
{
    m->n = 0;
    add(m, &c->embed, -1, 0, false);
    for (int n = 0; n < c->n_layers; n++)
        add_layer(m, &c->layers[n], n, n_experts);
    if (c->head.weight != c->embed.weight)
        add(m, &c->head, -1, 0, false);
}

Status modules_create(const Checkpoint *c, const Arch *arch, Modules *out, Err *e)
{
    *out = (Modules){0};
    add_all(out, c, arch->router.n_experts); /* counts */
    out->at = calloc((size_t)out->n, sizeof *out->at);
    if (!out->at)
        return err_set(e, ST_MEMORY, "not enough memory for %d modules", out->n);
    add_all(out, c, arch->router.n_experts);
    return ST_OK;
}

void modules_free(Modules *m)
{
    free(m->at);
    *m = (Modules){0};
}

int module_stem(const char *tensor)
{
    static const char *const suffixes[] = {".weight", ".weight_packed", "_blocks"};
    size_t len = strlen(tensor);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t n = strlen(suffixes[i]);
        if (len > n && strcmp(tensor + len - n, suffixes[i]) == 0)
            return (int)(len - n);
    }
    return (int)len;
}

void module_name(const Module *m, char *out)
{
    const char *name = m->t->weight->name;
    snprintf(out, MODULE_NAME_MAX, "%.*s", module_stem(name), name);
}

void module_weight_name(const Module *m, char *out)
{
    module_name(m, out);
    size_t len = strlen(out);
    if (!m->n_stack)
        snprintf(out + len, MODULE_NAME_MAX - len, ".weight");
}

int64_t module_bytes(const Module *m)
{
    const TensorEntry *const parts[] = {m->t->weight, m->t->scale, m->t->global, m->t->input};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        bytes += parts[i] ? parts[i]->bytes : 0;
    return bytes;
}

int64_t module_params(const Module *m)
{
    return m->t->q.rows * m->t->q.cols * (m->n_stack ? m->n_stack : 1);
}
