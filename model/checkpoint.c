/* model/checkpoint.c - which tensors the architecture expects, layer by layer, and what became of
 * every tensor of the files; see checkpoint.h. */
#include "model/bind.h"

#include "io/log.h"
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- layers --- */

/* Shards that other engines fuse into one matrix must be quantized alike or not at all: a recipe
 * that says otherwise was damaged (formats.md 3.7, E14 and E16). */
static Status check_fused(Binder *b, int n, const char *prefix, const char *fused,
                          const char *const *shards, int n_shards)
{
    char parent[BIND_NAME_MAX];
    bind_layer_name(b, n, prefix, parent);
    size_t len = strlen(parent);
    if (len > 0 && parent[len - 1] == '.')
        parent[len - 1] = 0;
    return recipe_check_fused(b->c->recipe, parent, fused, shards, n_shards, b->e);
}

static Status bind_heads(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    int64_t q = (int64_t)a->n_heads * a->head_dim, kv = (int64_t)a->n_kv_heads * a->head_dim;
    TRY(bind_linear(b, n, "self_attn.q_proj", LINEAR_ANY, q, a->hidden, &t->q));
    TRY(bind_linear(b, n, "self_attn.k_proj", LINEAR_ANY, kv, a->hidden, &t->k));
    TRY(bind_linear(b, n, "self_attn.v_proj", LINEAR_ANY, kv, a->hidden, &t->v));
    TRY(bind_linear(b, n, "self_attn.o_proj", LINEAR_ANY, a->hidden, q, &t->o));
    static const char *const shards[] = {"q_proj", "k_proj", "v_proj"};
    TRY(check_fused(b, n, "self_attn.", "qkv_proj", shards, 3));
    if (a->qkv_bias) {
        TRY(bind_plain(b, n, "self_attn.q_proj.bias", SHAPE1(q), &t->q_bias));
        TRY(bind_plain(b, n, "self_attn.k_proj.bias", SHAPE1(kv), &t->k_bias));
        TRY(bind_plain(b, n, "self_attn.v_proj.bias", SHAPE1(kv), &t->v_bias));
    }
    if (a->o_bias)
        TRY(bind_plain(b, n, "self_attn.o_proj.bias", SHAPE1(a->hidden), &t->o_bias));
    if (a->qk_norm != QK_NORM_NONE) {
        bool full = a->qk_norm == QK_NORM_FULL;
        TRY(bind_plain(b, n, "self_attn.q_norm.weight", SHAPE1(full ? q : a->head_dim),
                       &t->q_norm));
        TRY(bind_plain(b, n, "self_attn.k_norm.weight", SHAPE1(full ? kv : a->head_dim),
                       &t->k_norm));
    }
    if (a->sinks)
        TRY(bind_plain(b, n, "self_attn.sinks", SHAPE1(a->n_heads), &t->sinks));
    return ST_OK;
}

static Status bind_latent(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    const LatentSpec *l = &a->latent;
    int64_t heads = a->n_heads, q = heads * (l->nope_dim + l->rope_dim);
    int64_t q_from = a->q_lora > 0 ? a->q_lora : a->hidden;
    if (a->q_lora > 0) {
        TRY(bind_linear(b, n, "self_attn.q_a_proj", LINEAR_ANY, a->q_lora, a->hidden, &t->q_a));
        TRY(bind_plain(b, n, "self_attn.q_a_layernorm.weight", SHAPE1(a->q_lora), &t->q_a_norm));
    }
    TRY(bind_linear(b, n, a->q_lora > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj", LINEAR_ANY, q,
                    q_from, &t->q));
    TRY(bind_linear(b, n, "self_attn.kv_a_proj_with_mqa", LINEAR_ANY, l->latent_dim + l->rope_dim,
                    a->hidden, &t->kv_a));
    TRY(bind_plain(b, n, "self_attn.kv_a_layernorm.weight", SHAPE1(l->latent_dim), &t->kv_a_norm));
    TRY(bind_linear(b, n, "self_attn.kv_b_proj", LINEAR_ANY, heads * (l->nope_dim + l->v_dim),
                    l->latent_dim, &t->kv_b));
    return bind_linear(b, n, "self_attn.o_proj", LINEAR_ANY, a->hidden, heads * l->v_dim, &t->o);
}

static Status bind_attention(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    TRY(bind_plain(b, n, "input_layernorm.weight", SHAPE1(a->hidden), &t->attn_norm));
    TRY(bind_plain(b, n, "post_attention_layernorm.weight", SHAPE1(a->hidden), &t->ffn_norm));
    TRY(a->attn == ATTN_LATENT ? bind_latent(b, n, t) : bind_heads(b, n, t));
    return bind_kv_scales(b, n, t);
}

/* A FFN that every token goes through, of modules that are called PREFIX gate_proj. */
static Status bind_ffn(Binder *b, int n, const char *prefix, int64_t inter, FfnTensors *t)
{
    static const char *const shards[] = {"gate_proj", "up_proj"};
    int64_t hidden = b->arch->hidden;
    const struct {
        const char *name;
        int64_t rows, cols;
        LinearTensors *out;
    } parts[] = {{"gate_proj", inter, hidden, &t->gate},
                 {"up_proj", inter, hidden, &t->up},
                 {"down_proj", hidden, inter, &t->down}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char relative[128];
        snprintf(relative, sizeof relative, "%s%s", prefix, parts[i].name);
        TRY(bind_linear(b, n, relative, LINEAR_ANY, parts[i].rows, parts[i].cols, parts[i].out));
    }
    return check_fused(b, n, prefix, "gate_up_proj", shards, 2);
}

static Status bind_router(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    const FamilyNames *names = &a->family->names;
    int64_t experts = a->router.n_experts;
    TRY(bind_linear(b, n, names->router, LINEAR_OR_PLAIN, experts, a->hidden, &t->router));
    if (a->router_bias)
        TRY(bind_plain(b, n, names->router_bias, SHAPE1(experts), &t->router_bias));
    if (a->router_correction)
        TRY(bind_plain(b, n, names->router_correction, SHAPE1(experts), &t->router_correction));
    return ST_OK;
}

static Status bind_layer(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    const FamilyNames *names = &a->family->names;
    TRY(bind_attention(b, n, t));
    if (!a->layers[n].moe)
        return bind_ffn(b, n, "mlp.", a->dense_inter, &t->dense);
    TRY(bind_router(b, n, t));
    if (a->shared_inter > 0)
        TRY(bind_ffn(b, n, names->shared, a->shared_inter, &t->shared));
    if (a->shared_gate)
        TRY(bind_linear(b, n, names->shared_gate, LINEAR_OR_PLAIN, 1, a->hidden, &t->shared_gate));
    b->in_experts = true;
    TRY(bind_experts(b, n, &t->experts));
    b->in_experts = false;
    return ST_OK;
}

/* --- the whole --- */

/* Tied: the embedding is the head, whatever else the files hold. */
static Status bind_head(Binder *b)
{
    Checkpoint *c = b->c;
    if (!b->arch->tied)
        return bind_linear_name(b, "lm_head", LINEAR_OR_PLAIN, b->arch->vocab, b->arch->hidden,
                                &c->head);
    c->head = c->embed;
    int i = bind_find(b, "lm_head.weight");
    c->unused_head = i < 0 ? NULL : c->files.entries[i];
    return ST_OK;
}

/* The layer in a canonical name "layers.N....", or -1. */
static int layer_of(const char *canonical)
{
    static const char start[] = "layers.";
    int n = 0;
    const char *at = canonical + sizeof start - 1;
    if (strncmp(canonical, start, sizeof start - 1) != 0 || *at < '0' || *at > '9')
        return -1;
    for (; *at >= '0' && *at <= '9'; at++)
        n = n < 1000000 ? n * 10 + (*at - '0') : n;
    return *at == '.' ? n : -1;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Why the model does without a tensor; NULL: no reason is known. */
static const char *reason_to_skip(const Arch *a, const char *canonical)
{
    static const char *const towers[] = {"visual.", "vision_tower.", "mm_projector."};
    if (layer_of(canonical) >= a->n_layers || strncmp(canonical, "mtp.", 4) == 0)
        return "multi-token prediction";
    if (ends_in(canonical, "rotary_emb.inv_freq"))
        return "rotary frequencies come from config.json";
    if (a->tied && strcmp(canonical, "lm_head.weight") == 0)
        return "tied to the embedding";
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (strncmp(canonical, towers[i], strlen(towers[i])) == 0)
            return "not part of the text model";
    return NULL;
}

static Status account(Binder *b)
{
    Checkpoint *c = b->c;
    for (int i = 0; i < c->files.n; i++) {
        const TensorEntry *t = c->files.entries[i];
        char shape[160];
        if (c->use[i].bound)
            continue;
        c->use[i].skipped = reason_to_skip(b->arch, b->canonical.names[i]);
        c->n_skipped++;
        if (c->use[i].skipped)
            continue;
        tensor_shape_text(shape, sizeof shape, t->n_dims, t->shape);
        return err_set(b->e, ST_INPUT,
                       "%s: tensor \"%.200s\": %s %s, but %s of %d layers has no such tensor",
                       tensor_set_file(&c->files, t), t->name, dtype_name(t->dtype), shape,
                       b->arch->model_type, b->arch->n_layers);
    }
    return ST_OK;
}

static Status bind_all(Binder *b)
{
    const Arch *a = b->arch;
    Checkpoint *c = b->c;
    char name[BIND_NAME_MAX];
    snprintf(name, sizeof name, "%.200sembed_tokens", b->prefix);
    TRY(bind_embedding(b, name, a->vocab, a->hidden, &c->embed));
    snprintf(name, sizeof name, "%.200snorm.weight", b->prefix);
    TRY(bind_name(b, name, WEIGHTS, SHAPE1(a->hidden), a->hidden, &c->final_norm));
    TRY(bind_head(b));
    for (int n = 0; n < a->n_layers; n++)
        TRY(bind_layer(b, n, &c->layers[n]));
    return account(b);
}

/* From the files and the recipe of *out on. */
static Status bind_files(const Arch *arch, Checkpoint *out, Err *e)
{
    Binder b = {.arch = arch, .c = out, .e = e};
    Status st = ST_OK;
    out->n_layers = arch->n_layers;
    out->layers = calloc((size_t)arch->n_layers, sizeof *out->layers);
    out->use = calloc((size_t)out->files.n + 1, sizeof *out->use);
    if (!out->layers || !out->use) {
        st = err_set(e, ST_MEMORY, "not enough memory for %d tensors", out->files.n);
        goto fail;
    }
    TRY_GOTO(bind_index_names(&b));
    TRY_GOTO(bind_all(&b));
fail:
    name_table_free(&b.canonical);
    arena_free(&b.arena);
    return st;
}

Status checkpoint_open(const char *dir, const Arch *arch, Checkpoint *out, Err *e)
{
    *out = (Checkpoint){0};
    Status st = tensor_set_open(dir, &out->files, e);
    if (st == ST_OK)
        st = recipe_load(dir, &out->recipe, e);
    if (st == ST_OK)
        st = bind_files(arch, out, e);
    if (st != ST_OK)
        checkpoint_close(out);
    return st;
}

Status checkpoint_open_synthetic(const Synthetic *s, const Arch *arch, Checkpoint *out, Err *e)
{
    size_t len;
    const char *config = synthetic_config(s, &len);
    *out = (Checkpoint){0};
    Status st = synthetic_tensors(s, &out->files, e);
    if (st == ST_OK)
        st = recipe_parse(config, len, NULL, 0, &out->recipe, e);
    if (st == ST_OK)
        st = bind_files(arch, out, e);
    if (st != ST_OK)
        checkpoint_close(out);
    return st;
}

void checkpoint_warn_of_recipe(const Checkpoint *c)
{
    const char *text;
    for (int i = 0; (text = recipe_warning(c->recipe, i)) != NULL; i++)
        log_warn_once("%s", text);
}

void checkpoint_check_tied(const Checkpoint *c)
{
    const TensorEntry *head = c->unused_head;
    const TensorEntry *embed = c->embed.weight;
    if (c->files.pack) /* whoever packed it has looked */
        return;
    if (!head || (head->dtype == embed->dtype && head->bytes == embed->bytes &&
                  memcmp(head->data, embed->data, (size_t)head->bytes) == 0))
        return;
    log_warn_once("%s: tensor \"%s\" differs from the embedding, which tie_word_embeddings says "
                  "is used in its place",
                  tensor_set_file(&c->files, head), head->name);
}

void checkpoint_close(Checkpoint *c)
{
    for (int n = 0; c->layers && n < c->n_layers; n++)
        free(c->layers[n].experts.gate);
    free(c->layers);
    free(c->use);
    arena_free(&c->arena);
    recipe_free(c->recipe);
    tensor_set_close(&c->files);
    *c = (Checkpoint){0};
}
