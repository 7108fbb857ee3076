/* model/bind.c - names and single tensors; see bind.h. */
#include "model/bind.h"

#include "model/family.h"

#include <stdio.h>
#include <string.h>

#define BIT(dtype) (1u << (dtype))

static const struct {
    unsigned mask;
    const char *text;
} dtype_sets[] = {
    [WEIGHTS] = {BIT(DTYPE_BF16) | BIT(DTYPE_F16) | BIT(DTYPE_F32), "BF16, F16 or F32"},
    [CODES] = {BIT(DTYPE_U8) | BIT(DTYPE_I8), "U8"},
    [CODES8] = {BIT(DTYPE_F8_E4M3), "F8_E4M3"},
    [CODES32] = {BIT(DTYPE_I32) | BIT(DTYPE_U32), "I32"},
    [POWERS] = {BIT(DTYPE_U8) | BIT(DTYPE_I8) | BIT(DTYPE_F8_E8M0), "U8 or F8_E8M0"},
    [POWERS_OR_FLOATS] = {BIT(DTYPE_U8) | BIT(DTYPE_I8) | BIT(DTYPE_F8_E8M0) | BIT(DTYPE_BF16) |
                              BIT(DTYPE_F16) | BIT(DTYPE_F32),
                          "U8, F8_E8M0 or a float type"},
    [FLOATS] = {BIT(DTYPE_F32) | BIT(DTYPE_BF16) | BIT(DTYPE_F16), "F32, BF16 or F16"},
    [FLOATS_OR_POWERS] = {BIT(DTYPE_F32) | BIT(DTYPE_BF16) | BIT(DTYPE_F16) | BIT(DTYPE_F8_E8M0),
                          "F32, BF16, F16 or F8_E8M0"},
    [E4M3_SCALES] = {BIT(DTYPE_F8_E4M3), "F8_E4M3"},
    [SHAPES] = {BIT(DTYPE_I64) | BIT(DTYPE_I32), "I64"},
};

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

/* out[BIND_NAME_MAX]; a name that is longer than that is expected by nobody and is cut. */
static void make_canonical(char *out, const char *name)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model.",
                                           "language_model.", "model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            break;
        }
    snprintf(out, BIND_NAME_MAX, "%s", name);
    replace(out, BIND_NAME_MAX, ".block_sparse_moe.", ".mlp.");
    replace(out, BIND_NAME_MAX, ".ffn.", ".mlp.");
    replace(out, BIND_NAME_MAX, ".w1.", ".gate_proj.");
    replace(out, BIND_NAME_MAX, ".w3.", ".up_proj.");
    replace(out, BIND_NAME_MAX, ".w2.", ".down_proj.");
}

void bind_fill_pattern(char *out, size_t room, const char *pattern, int n)
{
    char number[16];
    snprintf(number, sizeof number, "%d", n);
    snprintf(out, room, "%s", pattern);
    replace(out, room, "%d", number);
}

Status bind_index_names(Binder *b)
{
    const TensorSet *files = &b->c->files;
    TRY(name_table_create(&b->canonical, files->n, b->e));
    for (int i = 0; i < files->n; i++) {
        char name[BIND_NAME_MAX];
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

int bind_find(const Binder *b, const char *name)
{
    char canonical[BIND_NAME_MAX];
    make_canonical(canonical, name);
    return name_table_find(&b->canonical, canonical);
}

void bind_layer_name(const Binder *b, int layer, const char *name, char *out)
{
    char middle[64];
    bind_fill_pattern(middle, sizeof middle, b->arch->family->names.layer, layer);
    snprintf(out, BIND_NAME_MAX, "%.200s%s%.200s", b->prefix, middle, name);
}

/* --- one tensor --- */

Status bind_wrong_shape(const Binder *b, const TensorEntry *t, const char *expected)
{
    char got[160];
    tensor_shape_text(got, sizeof got, t->n_dims, t->shape);
    return err_set(b->e, ST_INPUT, "%s: tensor \"%.200s\": shape %s, expected %s",
                   tensor_set_file(&b->c->files, t), t->name, got, expected);
}

static Status check_dtype(const Binder *b, const TensorEntry *t, DtypeSet set, const char *want)
{
    if (dtype_sets[set].mask >> t->dtype & 1)
        return ST_OK;
    return err_set(b->e, ST_INPUT, "%s: tensor \"%.200s\": dtype %s, expected %s%s%s",
                   tensor_set_file(&b->c->files, t), t->name, dtype_name(t->dtype),
                   dtype_sets[set].text, *want ? " " : "", want);
}

static void use(Binder *b, int i, int64_t params, const TensorEntry **out)
{
    b->c->use[i] = (TensorUse){.bound = true, .expert = b->in_experts, .params = params};
    *out = b->c->files.entries[i];
}

Status bind_name(Binder *b, const char *name, DtypeSet set, Shape shape, int64_t params,
                 const TensorEntry **out)
{
    char want[160];
    tensor_shape_text(want, sizeof want, shape.n_dims, shape.dims);
    int i = bind_find(b, name);
    if (i < 0)
        return err_set(b->e, ST_INPUT, "%s: tensor \"%.200s\": missing, expected %s %s",
                       b->c->files.list_name, name, dtype_sets[set].text, want);
    const TensorEntry *t = b->c->files.entries[i];
    TRY(check_dtype(b, t, set, want));
    if (t->n_dims != shape.n_dims ||
        memcmp(t->shape, shape.dims, (size_t)shape.n_dims * sizeof *shape.dims) != 0)
        return bind_wrong_shape(b, t, want);
    use(b, i, params, out);
    return ST_OK;
}

Status bind_optional(Binder *b, const char *name, DtypeSet set, const TensorEntry **out)
{
    int i = bind_find(b, name);
    *out = NULL;
    if (i < 0)
        return ST_OK;
    TRY(check_dtype(b, b->c->files.entries[i], set, ""));
    use(b, i, 0, out);
    return ST_OK;
}

Status bind_plain(Binder *b, int layer, const char *name, Shape shape, const TensorEntry **out)
{
    char full[BIND_NAME_MAX];
    int64_t params = 1;
    for (int i = 0; i < shape.n_dims; i++)
        params *= shape.dims[i];
    bind_layer_name(b, layer, name, full);
    return bind_name(b, full, WEIGHTS, shape, params, out);
}

bool bind_is_plain(const TensorEntry *t)
{
    return dtype_sets[WEIGHTS].mask >> t->dtype & 1;
}

/* --- scales of the KV cache --- */

/* The first of the names that is there; a value, not a vector. */
static Status bind_first(Binder *b, int layer, const char *const *names, const TensorEntry **out)
{
    for (*out = NULL; *names && !*out; names++) {
        char full[BIND_NAME_MAX];
        bind_layer_name(b, layer, *names, full);
        TRY(bind_optional(b, full, FLOATS, out));
        if (*out && (*out)->bytes != dtype_bytes((*out)->dtype))
            return bind_wrong_shape(b, *out, "[]: one value (the scale of a KV cache)");
    }
    return ST_OK;
}

/* formats.md 2.15 lists the names; the last one is from before keys and values had their own. */
Status bind_kv_scales(Binder *b, int layer, LayerTensors *t)
{
    static const char *const k_names[] = {
        "self_attn.k_proj.k_scale", "self_attn.k_proj.output_scale", "self_attn.k_scale",
        "self_attn.attn.k_scale",   "self_attn.kv_b_proj.k_scale",   NULL};
    static const char *const v_names[] = {
        "self_attn.v_proj.v_scale", "self_attn.v_proj.output_scale", "self_attn.v_scale",
        "self_attn.attn.v_scale",   "self_attn.kv_b_proj.v_scale",   NULL};
    static const char *const both[] = {"self_attn.kv_scale", "self_attn.attn.kv_scale", NULL};
    TRY(bind_first(b, layer, k_names, &t->k_scale));
    TRY(bind_first(b, layer, v_names, &t->v_scale));
    if (!t->k_scale && !t->v_scale) {
        TRY(bind_first(b, layer, both, &t->k_scale));
        t->v_scale = t->k_scale;
    }
    if (!t->k_scale && t->v_scale)
        return err_set(b->e, ST_INPUT,
                       "%s: tensor \"%.200s\": a scale for values, but none for keys",
                       tensor_set_file(&b->c->files, t->v_scale), t->v_scale->name);
    return ST_OK;
}
