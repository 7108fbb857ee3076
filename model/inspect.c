/* model/inspect.c - see inspect.h. */
#include "model/inspect.h"

#include "dist/placement.h"
#include "model/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static void add_to_group(TensorGroups *groups, const char *name, const TensorEntry *t)
{
    int i = 0;
    while (i < groups->n && strcmp(groups->at[i].name, name) != 0)
        i++;
    if (i == MAX_TENSOR_GROUPS) /* there are fewer dtypes and reasons than that */
        return;
    if (i == groups->n)
        groups->at[groups->n++] = (TensorGroup){.name = name};
    groups->at[i].n++;
    groups->at[i].bytes += t->bytes;
}

static void count_tensors(const Checkpoint *c, Inspection *s)
{
    s->n_parts = c->files.n_parts;
    s->n_tensors = c->files.n;
    for (int i = 0; i < c->files.n; i++) {
        const TensorEntry *t = c->files.entries[i];
        const TensorUse *use = &c->use[i];
        WeightCount *count = use->expert ? &s->experts : &s->dense;
        if (use->skipped) {
            add_to_group(&s->skipped, use->skipped, t);
            continue;
        }
        count->params += use->params;
        count->bytes += t->bytes;
        add_to_group(&count->dtypes, dtype_name(t->dtype), t);
    }
}

static void count_layers(Inspection *s)
{
    const Arch *a = &s->arch;
    int64_t per_layer = a->attn == ATTN_LATENT ? a->latent.latent_dim + a->latent.rope_dim
                                               : 2 * (int64_t)a->n_kv_heads * a->head_dim;
    for (int i = 0; i < a->n_layers; i++) {
        s->n_sparse += a->layers[i].moe;
        s->kv_values += per_layer;
        s->window_kv_values += a->layers[i].window ? per_layer : 0;
    }
    s->active_params = s->dense.params;
    if (a->router.n_experts > 0)
        s->active_params += s->experts.params / a->router.n_experts * a->router.top_k;
}

/* Beyond the tensors as they are: a tied head has a layout of its own, and the k_nope rows of
 * kv_b_proj are there twice. */
static int64_t doubled_bytes(const Checkpoint *c, const Arch *a)
{
    int64_t extra = a->tied ? c->embed.weight->bytes : 0;
    for (int i = 0; i < c->n_layers && a->attn == ATTN_LATENT; i++)
        extra += c->layers[i].kv_b.weight->bytes / (a->latent.nope_dim + a->latent.v_dim) *
                 a->latent.nope_dim;
    return extra;
}

static Status share(const Checkpoint *c, int n_ranks, Inspection *s, Err *e)
{
    Placement p;
    int n_experts = s->arch.router.n_experts;
    s->ranks = calloc((size_t)n_ranks, sizeof *s->ranks);
    if (!s->ranks)
        return err_set(e, ST_MEMORY, "not enough memory for %d ranks", n_ranks);
    TRY(placement_create(&p, n_experts, n_ranks, e));
    s->n_ranks = n_ranks;
    for (int r = 0; r < n_ranks; r++) {
        s->ranks[r].n_experts = p.n_local[r];
        s->ranks[r].dense_bytes = s->dense.bytes + doubled_bytes(c, &s->arch);
        if (n_experts > 0)
            s->ranks[r].expert_bytes = s->experts.bytes / n_experts * p.n_local[r];
    }
    placement_free(&p);
    return ST_OK;
}

Status inspect_open(const char *dir, const char *const *accept, int n_accept, int n_ranks,
                    Inspection *out, Err *e)
{
    Checkpoint c = {0};
    GenerationDefaults gen;
    StrBuf keys = {0};
    Status st;
    *out = (Inspection){0};
    TRY(arch_load(dir, accept, n_accept, &out->arch, &gen, e));
    TRY_GOTO(arch_unknown_keys(dir, &keys, e));
    TRY_GOTO(checkpoint_open(dir, &out->arch, &c, e));
    count_tensors(&c, out);
    count_layers(out);
    TRY_GOTO(quant_map_create(&c, &out->arch, &out->quant, e));
    TRY_GOTO(share(&c, n_ranks, out, e));
    out->unknown_keys = keys.data;
    checkpoint_close(&c);
    return ST_OK;
fail:
    strbuf_free(&keys);
    checkpoint_close(&c);
    inspect_close(out);
    return st;
}

void inspect_close(Inspection *s)
{
    arch_free(&s->arch);
    quant_map_free(&s->quant);
    free(s->ranks);
    free(s->unknown_keys);
    *s = (Inspection){0};
}
