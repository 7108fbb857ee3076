/* model/checkpoint.c - see checkpoint.h.
 *
 * Publishers and libraries name the same tensor differently (a prefix, block_sparse_moe or mlp, w1
 * or gate_proj), so both what is expected and what is found is brought to one canonical form before
 * they meet. */
#include "model/checkpoint.h"

#include "io/log.h"
#include "model/family.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 512 };

/* Which dtypes a tensor may have. */
typedef enum DtypeSet {
    WEIGHTS, /* what every weight may be */
    CODES,   /* packed 4-bit codes */
    SCALES   /* E8M0 bytes, which publishers declare as any of the byte types */
} DtypeSet;

static const struct {
    unsigned mask;
    int per_element; /* weights */
    const char *text;
} dtype_sets[] = {
    [WEIGHTS] = {1u << DTYPE_BF16 | 1u << DTYPE_F16 | 1u << DTYPE_F32, 1, "BF16, F16 or F32"},
    [CODES] = {1u << DTYPE_U8 | 1u << DTYPE_I8, 2, "U8"},
    [SCALES] = {1u << DTYPE_U8 | 1u << DTYPE_I8 | 1u << DTYPE_F8_E8M0, 0, "U8 or F8_E8M0"},
};

typedef struct Binder {
    const Arch *arch;
    Checkpoint *c;
    NameTable canonical; /* of c->files.entries, in the same order */
    Arena arena;
    bool in_experts;             /* what is bound now belongs to routed experts */
    char prefix[NAME_MAX_BYTES]; /* in front of "embed_tokens.weight" in these files */
    Err *e;
} Binder;

/* --- names --- */

/* Replaces the first from in text (of room bytes) by to, where the result fits. */
static void replace(char *text, size_t room, const char *from, const char *to)
{
    char *at = strstr(text, from);
    size_t n_from = strlen(from), n_to = strlen(to);
    if (!at || strlen(text) - n_from + n_to >= room)
        return;
    memmove(at + n_to, at + n_from, strlen(at + n_from) + 1);
    memcpy(at, to, n_to);
}

/* out[NAME_MAX_BYTES]; a name that is longer than that is expected by nobody and is cut. */
static void make_canonical(char *out, const char *name)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model.",
                                           "language_model.", "model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            break;
        }
    snprintf(out, NAME_MAX_BYTES, "%s", name);
    replace(out, NAME_MAX_BYTES, ".block_sparse_moe.", ".mlp.");
    replace(out, NAME_MAX_BYTES, ".w1.weight", ".gate_proj.weight");
    replace(out, NAME_MAX_BYTES, ".w3.weight", ".up_proj.weight");
    replace(out, NAME_MAX_BYTES, ".w2.weight", ".down_proj.weight");
}

/* "%d" of a family's pattern replaced by n. */
static void fill_pattern(char *out, size_t room, const char *pattern, int n)
{
    char number[16];
    snprintf(number, sizeof number, "%d", n);
    snprintf(out, room, "%s", pattern);
    replace(out, room, "%d", number);
}

static Status index_names(Binder *b)
{
    const TensorSet *files = &b->c->files;
    TRY(name_table_create(&b->canonical, files->n, b->e));
    for (int i = 0; i < files->n; i++) {
        char name[NAME_MAX_BYTES];
        int added;
        make_canonical(name, files->entries[i]->name);
        const char *kept = arena_copy(&b->arena, name, strlen(name));
        if (!kept)
            return err_set(b->e, ST_MEMORY, "not enough memory for tensor names");
        int at = name_table_add(&b->canonical, kept, &added);
        if (!added)
            return err_set(b->e, ST_INPUT, "%s: tensor \"%.150s\": the same as \"%.150s\" in %s",
                           tensor_set_file(files, files->entries[i]), files->entries[i]->name,
                           files->entries[at]->name, tensor_set_file(files, files->entries[at]));
    }
    int at = name_table_find(&b->canonical, "embed_tokens.weight");
    const char *embed = at < 0 ? "model.embed_tokens.weight" : files->entries[at]->name;
    snprintf(b->prefix, sizeof b->prefix, "%.*s",
             (int)(strlen(embed) - strlen("embed_tokens.weight")), embed);
    return ST_OK;
}

/* The number of the tensor, or -1. */
static int find(const Binder *b, const char *name)
{
    char canonical[NAME_MAX_BYTES];
    make_canonical(canonical, name);
    return name_table_find(&b->canonical, canonical);
}

/* --- one tensor --- */

typedef struct Shape {
    int n_dims;
    int64_t dims[4];
} Shape;

#define SHAPE1(a) ((Shape){1, {a}})
#define SHAPE2(a, b) ((Shape){2, {a, b}})
#define SHAPE3(a, b, c) ((Shape){3, {a, b, c}})
#define SHAPE4(a, b, c, d) ((Shape){4, {a, b, c, d}})

static Status check_tensor(const Binder *b, const TensorEntry *t, DtypeSet set, Shape shape)
{
    char got[160], want[160];
    const char *file = tensor_set_file(&b->c->files, t);
    tensor_shape_text(got, sizeof got, t->n_dims, t->shape);
    tensor_shape_text(want, sizeof want, shape.n_dims, shape.dims);
    if (!(dtype_sets[set].mask >> t->dtype & 1))
        return err_set(b->e, ST_INPUT, "%s: tensor \"%.200s\": dtype %s, expected %s %s", file,
                       t->name, dtype_name(t->dtype), dtype_sets[set].text, want);
    if (t->n_dims != shape.n_dims ||
        memcmp(t->shape, shape.dims, (size_t)shape.n_dims * sizeof *shape.dims) != 0)
        return err_set(b->e, ST_INPUT, "%s: tensor \"%.200s\": shape %s, expected %s", file,
                       t->name, got, want);
    return ST_OK;
}

static Status missing(const Binder *b, const char *name, DtypeSet set, Shape shape)
{
    char want[160];
    tensor_shape_text(want, sizeof want, shape.n_dims, shape.dims);
    return err_set(b->e, ST_INPUT, "%s: tensor \"%.200s\": missing, expected %s %s",
                   b->c->files.list_name, name, dtype_sets[set].text, want);
}

/* The tensor of that full name. */
static Status bind_name(Binder *b, const char *name, DtypeSet set, Shape shape,
                        const TensorEntry **out)
{
    int i = find(b, name);
    if (i < 0)
        return missing(b, name, set, shape);
    TRY(check_tensor(b, b->c->files.entries[i], set, shape));
    b->c->use[i] = (TensorUse){
        .bound = true, .expert = b->in_experts, .per_element = dtype_sets[set].per_element};
    *out = b->c->files.entries[i];
    return ST_OK;
}

/* prefix, then the family's name of the layer, then name. */
static void layer_name(const Binder *b, int layer, const char *name, char *out)
{
    char middle[64];
    fill_pattern(middle, sizeof middle, b->arch->family->names.layer, layer);
    snprintf(out, NAME_MAX_BYTES, "%.200s%s%.200s", b->prefix, middle, name);
}

static Status bind(Binder *b, int layer, const char *name, Shape shape, const TensorEntry **out)
{
    char full[NAME_MAX_BYTES];
    layer_name(b, layer, name, full);
    return bind_name(b, full, WEIGHTS, shape, out);
}

/* PREFIX NAME of a layer: "mlp.shared_experts." and "up_proj.weight". */
static Status bind_under(Binder *b, int layer, const char *prefix, const char *name, Shape shape,
                         const TensorEntry **out)
{
    char relative[128];
    snprintf(relative, sizeof relative, "%s%s", prefix, name);
    return bind(b, layer, relative, shape, out);
}

/* "mlp.experts.NAME" of a layer. */
static Status bind_stacked(Binder *b, int layer, const char *name, DtypeSet set, Shape shape,
                           const TensorEntry **out)
{
    char full[NAME_MAX_BYTES], relative[128];
    snprintf(relative, sizeof relative, "%s%s", b->arch->family->names.experts, name);
    layer_name(b, layer, relative, full);
    return bind_name(b, full, set, shape, out);
}

static bool has_stacked(const Binder *b, int layer, const char *name)
{
    char full[NAME_MAX_BYTES], relative[128];
    snprintf(relative, sizeof relative, "%s%s", b->arch->family->names.experts, name);
    layer_name(b, layer, relative, full);
    return find(b, full) >= 0;
}

/* --- layers --- */

static Status bind_heads(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    int64_t q = (int64_t)a->n_heads * a->head_dim, kv = (int64_t)a->n_kv_heads * a->head_dim;
    TRY(bind(b, n, "self_attn.q_proj.weight", SHAPE2(q, a->hidden), &t->q));
    TRY(bind(b, n, "self_attn.k_proj.weight", SHAPE2(kv, a->hidden), &t->k));
    TRY(bind(b, n, "self_attn.v_proj.weight", SHAPE2(kv, a->hidden), &t->v));
    TRY(bind(b, n, "self_attn.o_proj.weight", SHAPE2(a->hidden, q), &t->o));
    if (a->qkv_bias) {
        TRY(bind(b, n, "self_attn.q_proj.bias", SHAPE1(q), &t->q_bias));
        TRY(bind(b, n, "self_attn.k_proj.bias", SHAPE1(kv), &t->k_bias));
        TRY(bind(b, n, "self_attn.v_proj.bias", SHAPE1(kv), &t->v_bias));
    }
    if (a->o_bias)
        TRY(bind(b, n, "self_attn.o_proj.bias", SHAPE1(a->hidden), &t->o_bias));
    if (a->qk_norm != QK_NORM_NONE) {
        bool full = a->qk_norm == QK_NORM_FULL;
        TRY(bind(b, n, "self_attn.q_norm.weight", SHAPE1(full ? q : a->head_dim), &t->q_norm));
        TRY(bind(b, n, "self_attn.k_norm.weight", SHAPE1(full ? kv : a->head_dim), &t->k_norm));
    }
    if (a->sinks)
        TRY(bind(b, n, "self_attn.sinks", SHAPE1(a->n_heads), &t->sinks));
    return ST_OK;
}

static Status bind_latent(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    const LatentSpec *l = &a->latent;
    int64_t heads = a->n_heads, q = heads * (l->nope_dim + l->rope_dim);
    int64_t q_from = a->q_lora > 0 ? a->q_lora : a->hidden;
    if (a->q_lora > 0) {
        TRY(bind(b, n, "self_attn.q_a_proj.weight", SHAPE2(a->q_lora, a->hidden), &t->q_a));
        TRY(bind(b, n, "self_attn.q_a_layernorm.weight", SHAPE1(a->q_lora), &t->q_a_norm));
    }
    TRY(bind(b, n, a->q_lora > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight",
             SHAPE2(q, q_from), &t->q));
    TRY(bind(b, n, "self_attn.kv_a_proj_with_mqa.weight",
             SHAPE2(l->latent_dim + l->rope_dim, a->hidden), &t->kv_a));
    TRY(bind(b, n, "self_attn.kv_a_layernorm.weight", SHAPE1(l->latent_dim), &t->kv_a_norm));
    TRY(bind(b, n, "self_attn.kv_b_proj.weight",
             SHAPE2(heads * (l->nope_dim + l->v_dim), l->latent_dim), &t->kv_b));
    return bind(b, n, "self_attn.o_proj.weight", SHAPE2(a->hidden, heads * l->v_dim), &t->o);
}

static Status bind_attention(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    TRY(bind(b, n, "input_layernorm.weight", SHAPE1(a->hidden), &t->attn_norm));
    TRY(bind(b, n, "post_attention_layernorm.weight", SHAPE1(a->hidden), &t->ffn_norm));
    return a->attn == ATTN_LATENT ? bind_latent(b, n, t) : bind_heads(b, n, t);
}

/* A FFN that every token goes through, of tensors that are called PREFIX gate_proj.weight. */
static Status bind_ffn(Binder *b, int n, const char *prefix, int64_t inter, FfnTensors *t)
{
    int64_t hidden = b->arch->hidden;
    TRY(bind_under(b, n, prefix, "gate_proj.weight", SHAPE2(inter, hidden), &t->gate));
    TRY(bind_under(b, n, prefix, "up_proj.weight", SHAPE2(inter, hidden), &t->up));
    return bind_under(b, n, prefix, "down_proj.weight", SHAPE2(hidden, inter), &t->down);
}

/* All experts of a bank are repacked into one, so their dtypes must agree. */
static Status check_alike(const Binder *b, const TensorEntry *const *bank)
{
    for (int i = 1; i < b->arch->router.n_experts; i++)
        if (bank[i]->dtype != bank[0]->dtype)
            return err_set(b->e, ST_INPUT,
                           "%s: tensor \"%.200s\": dtype %s, expected %s as in expert 0",
                           tensor_set_file(&b->c->files, bank[i]), bank[i]->name,
                           dtype_name(bank[i]->dtype), dtype_name(bank[0]->dtype));
    return ST_OK;
}

static Status bind_single(Binder *b, int n, ExpertTensors *t)
{
    const Arch *a = b->arch;
    const FamilyNames *names = &a->family->names;
    size_t n_experts = (size_t)a->router.n_experts;
    t->storage = STORED_SINGLE;
    t->gate = calloc(3 * n_experts, sizeof *t->gate);
    if (!t->gate)
        return err_set(b->e, ST_MEMORY, "not enough memory for %zu experts", n_experts);
    t->up = t->gate + n_experts;
    t->down = t->up + n_experts;
    for (int i = 0; i < a->router.n_experts; i++) {
        const struct {
            const char *pattern;
            Shape shape;
            const TensorEntry **out;
        } parts[] = {{names->gate, SHAPE2(a->moe_inter, a->hidden), &t->gate[i]},
                     {names->up, SHAPE2(a->moe_inter, a->hidden), &t->up[i]},
                     {names->down, SHAPE2(a->hidden, a->moe_inter), &t->down[i]}};
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            char name[128];
            fill_pattern(name, sizeof name, parts[p].pattern, i);
            TRY(bind(b, n, name, parts[p].shape, parts[p].out));
        }
    }
    TRY(check_alike(b, t->gate));
    TRY(check_alike(b, t->up));
    return check_alike(b, t->down);
}

static Status bind_mxfp4(Binder *b, int n, ExpertTensors *t)
{
    const Arch *a = b->arch;
    int64_t experts = a->router.n_experts, hidden = a->hidden, inter = a->moe_inter;
    t->storage = STORED_MXFP4;
    if (hidden % 32 != 0 || inter % 32 != 0)
        return err_set(
            b->e, ST_INPUT,
            "MXFP4 experts need hidden_size %lld and intermediate_size %lld in multiples "
            "of 32",
            (long long)hidden, (long long)inter);
    TRY(bind_stacked(b, n, "gate_up_proj_blocks", CODES,
                     SHAPE4(experts, 2 * inter, hidden / 32, 16), &t->gate_up));
    TRY(bind_stacked(b, n, "gate_up_proj_scales", SCALES, SHAPE3(experts, 2 * inter, hidden / 32),
                     &t->gate_up_scales));
    TRY(bind_stacked(b, n, "down_proj_blocks", CODES, SHAPE4(experts, hidden, inter / 32, 16),
                     &t->stacked_down));
    return bind_stacked(b, n, "down_proj_scales", SCALES, SHAPE3(experts, hidden, inter / 32),
                        &t->down_scales);
}

static Status bind_stack(Binder *b, int n, bool transposed, ExpertTensors *t)
{
    const Arch *a = b->arch;
    int64_t experts = a->router.n_experts, hidden = a->hidden, inter = a->moe_inter;
    t->storage = transposed ? STORED_TRANSPOSED : STORED_STACKED;
    TRY(bind_stacked(b, n, "gate_up_proj", WEIGHTS,
                     transposed ? SHAPE3(experts, hidden, 2 * inter)
                                : SHAPE3(experts, 2 * inter, hidden),
                     &t->gate_up));
    return bind_stacked(b, n, "down_proj", WEIGHTS,
                        transposed ? SHAPE3(experts, inter, hidden)
                                   : SHAPE3(experts, hidden, inter),
                        &t->stacked_down);
}

/* Granite's, which never lie apart. */
static Status bind_own_stack(Binder *b, int n, ExpertTensors *t)
{
    const Arch *a = b->arch;
    const FamilyNames *names = &a->family->names;
    int64_t experts = a->router.n_experts, hidden = a->hidden, inter = a->moe_inter;
    t->storage = STORED_STACKED;
    TRY(bind(b, n, names->stacked_gate_up, SHAPE3(experts, 2 * inter, hidden), &t->gate_up));
    return bind(b, n, names->stacked_down, SHAPE3(experts, hidden, inter), &t->stacked_down);
}

static Status bind_experts(Binder *b, int n, ExpertTensors *t)
{
    const Arch *a = b->arch;
    bool oss = a->family->layout == EXPERTS_GPT_OSS;
    if (a->family->layout == EXPERTS_STACKED)
        TRY(bind_own_stack(b, n, t));
    else if (oss && has_stacked(b, n, "gate_up_proj_blocks"))
        TRY(bind_mxfp4(b, n, t));
    else if (oss || has_stacked(b, n, "gate_up_proj"))
        TRY(bind_stack(b, n, oss, t));
    else
        TRY(bind_single(b, n, t));
    if (a->expert_bias) {
        int64_t experts = a->router.n_experts, inter = a->moe_inter;
        TRY(bind_stacked(b, n, "gate_up_proj_bias", WEIGHTS, SHAPE2(experts, 2 * inter),
                         &t->gate_up_bias));
        TRY(bind_stacked(b, n, "down_proj_bias", WEIGHTS, SHAPE2(experts, a->hidden),
                         &t->down_bias));
    }
    return ST_OK;
}

static Status bind_router(Binder *b, int n, LayerTensors *t)
{
    const Arch *a = b->arch;
    const FamilyNames *names = &a->family->names;
    int64_t experts = a->router.n_experts;
    TRY(bind(b, n, names->router, SHAPE2(experts, a->hidden), &t->router));
    if (a->router_bias)
        TRY(bind(b, n, names->router_bias, SHAPE1(experts), &t->router_bias));
    if (a->router_correction)
        TRY(bind(b, n, names->router_correction, SHAPE1(experts), &t->router_correction));
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
        TRY(bind(b, n, names->shared_gate, SHAPE2(1, a->hidden), &t->shared_gate));
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
    Shape shape = SHAPE2(b->arch->vocab, b->arch->hidden);
    if (!b->arch->tied)
        return bind_name(b, "lm_head.weight", WEIGHTS, shape, &c->head);
    c->head = c->embed;
    int i = find(b, "lm_head.weight");
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
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "%.200sembed_tokens.weight", b->prefix);
    TRY(bind_name(b, name, WEIGHTS, SHAPE2(a->vocab, a->hidden), &c->embed));
    snprintf(name, sizeof name, "%.200snorm.weight", b->prefix);
    TRY(bind_name(b, name, WEIGHTS, SHAPE1(a->hidden), &c->final_norm));
    TRY(bind_head(b));
    for (int n = 0; n < a->n_layers; n++)
        TRY(bind_layer(b, n, &c->layers[n]));
    return account(b);
}

Status checkpoint_open(const char *dir, const Arch *arch, Checkpoint *out, Err *e)
{
    Binder b = {.arch = arch, .c = out, .e = e};
    Status st = ST_OK;
    *out = (Checkpoint){0};
    TRY_GOTO(tensor_set_open(dir, &out->files, e));
    out->n_layers = arch->n_layers;
    out->layers = calloc((size_t)arch->n_layers, sizeof *out->layers);
    out->use = calloc((size_t)out->files.n + 1, sizeof *out->use);
    if (!out->layers || !out->use) {
        st = err_set(e, ST_MEMORY, "not enough memory for %d tensors", out->files.n);
        goto fail;
    }
    TRY_GOTO(index_names(&b));
    TRY_GOTO(bind_all(&b));
fail:
    name_table_free(&b.canonical);
    arena_free(&b.arena);
    if (st != ST_OK)
        checkpoint_close(out);
    return st;
}

void checkpoint_check_tied(const Checkpoint *c)
{
    const TensorEntry *head = c->unused_head;
    if (!head || (head->dtype == c->embed->dtype && head->bytes == c->embed->bytes &&
                  memcmp(head->data, c->embed->data, (size_t)head->bytes) == 0))
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
    tensor_set_close(&c->files);
    *c = (Checkpoint){0};
}
