/* tests/support/made_model.c - see made_model.h. */
#include "tests/support/made_model.h"

#include "io/file.h"
#include "io/strbuf.h"
#include "quant/tensor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what there is --- */

static int64_t bytes_of(const MadeTensor *t)
{
    int64_t n = dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

MadeTensor *made_add(MadeModel *m, const char *name, TensorDtype dtype, int n_dims,
                     const int64_t *shape, float std)
{
    if (m->n == m->cap) {
        int cap = m->cap ? 2 * m->cap : 64;
        MadeTensor *more = realloc(m->tensors, (size_t)cap * sizeof *more);
        if (!more)
            return NULL;
        m->tensors = more;
        m->cap = cap;
    }
    MadeTensor *t = &m->tensors[m->n++];
    *t = (MadeTensor){.dtype = dtype, .n_dims = n_dims, .kind = MADE_NORMAL, .std = std};
    snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
    t->bytes = bytes_of(t);
    return t;
}

MadeTensor *made_find(MadeModel *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

void made_remove(MadeModel *m, const char *name)
{
    MadeTensor *t = made_find(m, name);
    if (!t)
        return;
    memmove(t, t + 1, (size_t)(m->tensors + m->n - (t + 1)) * sizeof *t);
    m->n--;
}

/* Adds tensors; ok turns false when memory runs out, and is looked at once, at the end. */
typedef struct Maker {
    MadeModel *m;
    bool ok;
} Maker;

__attribute__((format(printf, 7, 8))) static void add(Maker *k, int64_t d0, int64_t d1, int64_t d2,
                                                      float mean, float std, const char *fmt, ...)
{
    char name[100], full[120];
    int64_t shape[] = {d0, d1, d2};
    const MadeSpec *s = &k->m->spec;
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    bool bare = s->no_prefix || strcmp(name, "lm_head.weight") == 0;
    snprintf(full, sizeof full, "%s%s", bare ? "" : "model.", name);
    MadeTensor *t = made_add(k->m, full, s->dtype, d2 ? 3 : d1 ? 2 : 1, shape, std);
    k->ok &= t != NULL;
    if (t)
        t->mean = mean;
}

/* Codes [experts, rows, cols/32, 16] and scales [experts, rows, cols/32] of standard deviation std.
 */
static void add_mxfp4(Maker *k, int layer, const char *what, int64_t rows, int64_t cols, float std)
{
    const MadeSpec *s = &k->m->spec;
    int64_t shape[] = {s->experts, rows, cols / 32, 16};
    char name[120];
    const char *prefix = s->no_prefix ? "" : "model.";
    snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%s_blocks", prefix, layer, what);
    MadeTensor *t = made_add(k->m, name, DTYPE_U8, 4, shape, 0);
    k->ok &= t != NULL;
    if (t)
        t->kind = MADE_CODES;
    snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%s_scales", prefix, layer, what);
    t = made_add(k->m, name, DTYPE_U8, 3, shape, 0);
    k->ok &= t != NULL;
    if (t) {
        t->kind = MADE_SCALES;
        /* Uniform codes have a root mean square of 2.93. */
        t->middle = (uint8_t)(127 + (int)lround(log2(std / 2.93)));
    }
}

static float per_input(int64_t n_inputs)
{
    return (float)(1 / sqrt((double)n_inputs));
}

static void add_attention(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    int64_t h = s->hidden, q = (int64_t)s->heads * s->head_dim,
            kv = (int64_t)s->kv_heads * s->head_dim;
    bool oss = strcmp(s->family, "gpt_oss") == 0;
    add(k, h, 0, 0, 1, 0.1f, "layers.%d.input_layernorm.weight", n);
    add(k, h, 0, 0, 1, 0.1f, "layers.%d.post_attention_layernorm.weight", n);
    add(k, q, h, 0, 0, per_input(h), "layers.%d.self_attn.q_proj.weight", n);
    add(k, kv, h, 0, 0, per_input(h), "layers.%d.self_attn.k_proj.weight", n);
    add(k, kv, h, 0, 0, per_input(h), "layers.%d.self_attn.v_proj.weight", n);
    add(k, h, q, 0, 0, per_input(q), "layers.%d.self_attn.o_proj.weight", n);
    if (oss) {
        add(k, q, 0, 0, 0, 0.1f, "layers.%d.self_attn.q_proj.bias", n);
        add(k, kv, 0, 0, 0, 0.1f, "layers.%d.self_attn.k_proj.bias", n);
        add(k, kv, 0, 0, 0, 0.1f, "layers.%d.self_attn.v_proj.bias", n);
        add(k, h, 0, 0, 0, 0.1f, "layers.%d.self_attn.o_proj.bias", n);
        add(k, s->heads, 0, 0, 0, 1, "layers.%d.self_attn.sinks", n);
    }
    if (strcmp(s->family, "qwen3_moe") == 0) {
        add(k, s->head_dim, 0, 0, 1, 0.1f, "layers.%d.self_attn.q_norm.weight", n);
        add(k, s->head_dim, 0, 0, 1, 0.1f, "layers.%d.self_attn.k_norm.weight", n);
    }
}

static void add_oss_experts(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    int64_t h = s->hidden, i = s->inter, e = s->experts;
    add(k, e, h, 0, 0, 2 * per_input(h), "layers.%d.mlp.router.weight", n);
    add(k, e, 0, 0, 0, 0.1f, "layers.%d.mlp.router.bias", n);
    if (s->mxfp4) {
        add_mxfp4(k, n, "gate_up_proj", 2 * i, h, per_input(h));
        add_mxfp4(k, n, "down_proj", h, i, per_input(i));
    } else {
        add(k, e, h, 2 * i, 0, per_input(h), "layers.%d.mlp.experts.gate_up_proj", n);
        add(k, e, i, h, 0, per_input(i), "layers.%d.mlp.experts.down_proj", n);
    }
    add(k, e, 2 * i, 0, 0, 0.1f, "layers.%d.mlp.experts.gate_up_proj_bias", n);
    add(k, e, h, 0, 0, 0.1f, "layers.%d.mlp.experts.down_proj_bias", n);
}

static void add_experts(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    int64_t h = s->hidden, i = s->inter, e = s->experts;
    bool mixtral = strcmp(s->family, "mixtral") == 0;
    const char *mlp = mixtral && !s->stacked ? "block_sparse_moe" : "mlp";
    add(k, e, h, 0, 0, 2 * per_input(h), "layers.%d.%s.gate.weight", n, mlp);
    if (s->stacked) {
        add(k, e, 2 * i, h, 0, per_input(h), "layers.%d.mlp.experts.gate_up_proj", n);
        add(k, e, h, i, 0, per_input(i), "layers.%d.mlp.experts.down_proj", n);
        return;
    }
    for (int x = 0; x < s->experts; x++) {
        add(k, i, h, 0, 0, per_input(h), "layers.%d.%s.experts.%d.%s.weight", n, mlp, x,
            mixtral ? "w1" : "gate_proj");
        add(k, i, h, 0, 0, per_input(h), "layers.%d.%s.experts.%d.%s.weight", n, mlp, x,
            mixtral ? "w3" : "up_proj");
        add(k, h, i, 0, 0, per_input(i), "layers.%d.%s.experts.%d.%s.weight", n, mlp, x,
            mixtral ? "w2" : "down_proj");
    }
}

static void add_dense(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    int64_t h = s->hidden, i = 2 * (int64_t)s->inter;
    add(k, i, h, 0, 0, per_input(h), "layers.%d.mlp.gate_proj.weight", n);
    add(k, i, h, 0, 0, per_input(h), "layers.%d.mlp.up_proj.weight", n);
    add(k, h, i, 0, 0, per_input(i), "layers.%d.mlp.down_proj.weight", n);
}

Status made_create(const MadeSpec *spec, MadeModel *out, Err *e)
{
    *out = (MadeModel){.spec = *spec};
    Maker k = {out, true};
    add(&k, spec->vocab, spec->hidden, 0, 0, spec->tied ? per_input(spec->hidden) : 1,
        "embed_tokens.weight");
    for (int n = 0; n < spec->layers; n++) {
        add_attention(&k, n);
        if (strcmp(spec->family, "gpt_oss") == 0)
            add_oss_experts(&k, n);
        else if (n == spec->dense_layer)
            add_dense(&k, n);
        else
            add_experts(&k, n);
    }
    add(&k, spec->hidden, 0, 0, 1, 0.1f, "norm.weight");
    if (!spec->tied)
        add(&k, spec->vocab, spec->hidden, 0, 0, per_input(spec->hidden), "lm_head.weight");
    if (!k.ok) {
        made_free(out);
        return err_set(e, ST_MEMORY, "not enough memory for a list of tensors");
    }
    return ST_OK;
}

void made_free(MadeModel *m)
{
    free(m->tensors);
    *m = (MadeModel){0};
}

/* --- values --- */

static uint64_t mix(uint64_t z) /* splitmix64's finalizer */
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t key_of(const MadeModel *m, const MadeTensor *t)
{
    uint64_t h = mix(m->spec.seed + 0x9e3779b97f4a7c15u);
    for (const char *c = t->name; *c; c++)
        h = mix(h ^ (unsigned char)*c);
    return h;
}

/* About normal: the sum of four uniform variables, of variance 4/12. */
static float normal_of(uint64_t r, float mean, float std)
{
    float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) +
                (float)(r >> 48);
    return mean + std * 1.7320508f * (sum / 65536 - 2);
}

/* Nearest even; values here are neither subnormal nor near the largest in half precision. */
static uint16_t half_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude < 0x38800000) /* below 2^-14: whole multiples of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(v) * 16777216));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

/* The value at byte offset at, in t's dtype; integer dtypes, which only broken checkpoints have,
 * get zeros. */
static void put_value(const MadeTensor *t, uint64_t key, int64_t at, uint8_t *out)
{
    int size = dtype_bytes(t->dtype);
    float v = normal_of(mix(key + (uint64_t)(at / size) * 0x9e3779b97f4a7c15u), t->mean, t->std);
    uint16_t bits = t->dtype == DTYPE_F16 ? half_of(v) : float_to_bf16(v);
    memset(out, 0, (size_t)size);
    if (t->dtype == DTYPE_F32)
        memcpy(out, &v, sizeof v);
    else if (t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16)
        memcpy(out, &bits, sizeof bits);
}

void made_fill(const MadeModel *m, const MadeTensor *t, int64_t first, int64_t n, uint8_t *out)
{
    uint64_t key = key_of(m, t);
    int size = dtype_bytes(t->dtype);
    if (t->kind == MADE_NORMAL) {
        for (int64_t i = 0; i + size <= n; i += size)
            put_value(t, key, first + i, out + i);
        return;
    }
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t r = mix(key + (uint64_t)((first + i) / 8) * 0x9e3779b97f4a7c15u);
        uint8_t bytes[8];
        memcpy(bytes, &r, 8);
        for (int b = 0; b < 8 && t->kind == MADE_SCALES; b++)
            bytes[b] = (uint8_t)(t->middle - 1 + bytes[b] % 3);
        memcpy(out + i, bytes, (size_t)(n - i < 8 ? n - i : 8));
    }
}

/* --- files --- */

static void add_config(const MadeSpec *s, StrBuf *b)
{
    bool oss = strcmp(s->family, "gpt_oss") == 0, qwen = strcmp(s->family, "qwen3_moe") == 0;
    strbuf_fmt(
        b,
        "{\n  \"model_type\": \"%s\",\n  \"hidden_size\": %d,\n  \"num_hidden_layers\": %d,\n"
        "  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n"
        "  \"vocab_size\": %d,\n  \"max_position_embeddings\": 4096,\n"
        "  \"num_experts_per_tok\": %d,\n  \"rms_norm_eps\": 1e-05,\n"
        "  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n",
        s->family, s->hidden, s->layers, s->heads, s->kv_heads, s->head_dim, s->vocab, s->top_k,
        s->tied ? "true" : "false");
    strbuf_fmt(b, "  \"%s\": %d,\n", qwen ? "num_experts" : "num_local_experts", s->experts);
    strbuf_fmt(b, "  \"%s\": %d,\n", qwen ? "moe_intermediate_size" : "intermediate_size",
               s->inter);
    if (qwen && s->dense_layer >= 0)
        strbuf_fmt(b, "  \"intermediate_size\": %d,\n  \"mlp_only_layers\": [%d],\n", 2 * s->inter,
                   s->dense_layer);
    if (qwen)
        strbuf_str(b, "  \"norm_topk_prob\": true,\n");
    if (oss)
        strbuf_str(b, "  \"attention_bias\": true,\n  \"sliding_window\": 128,\n"
                      "  \"swiglu_limit\": 7.0,\n  \"rope_theta\": 150000,\n"
                      "  \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0, "
                      "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false, "
                      "\"original_max_position_embeddings\": 4096},\n");
    else
        strbuf_str(b, "  \"rope_theta\": 1000000.0,\n");
    if (s->mxfp4)
        strbuf_str(b, "  \"quantization_config\": {\"quant_method\": \"mxfp4\"},\n");
    strbuf_str(b, "  \"hidden_act\": \"silu\"\n}\n");
}

static Status write_text(const char *dir, const char *name, const StrBuf *b, Err *e)
{
    char path[FILE_PATH_MAX];
    TRY(file_join(path, dir, name, e));
    FILE *f = b->failed ? NULL : fopen(path, "wb");
    if (!f)
        return err_errno(e, "%s", path);
    size_t got = fwrite(b->data, 1, b->len, f);
    if (fclose(f) != 0 || got != b->len)
        return err_errno(e, "%s", path);
    return ST_OK;
}

static void add_header(const MadeModel *m, int part, StrBuf *b)
{
    int64_t at = 0;
    strbuf_str(b, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (int i = 0; i < m->n; i++) {
        const MadeTensor *t = &m->tensors[i];
        if (t->part != part)
            continue;
        strbuf_fmt(b, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [", t->name, dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++)
            strbuf_fmt(b, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
        strbuf_fmt(b, "], \"data_offsets\": [%lld, %lld]}", (long long)at,
                   (long long)(at + t->bytes));
        at += t->bytes;
    }
    strbuf_str(b, "}");
    while (b->len % 8 != 0)
        strbuf_str(b, " ");
}

static Status write_data(const MadeModel *m, int part, FILE *f, const char *path, Err *e)
{
    enum { PIECE = 1 << 20 };
    uint8_t *piece = malloc(PIECE);
    Status st = piece ? ST_OK : err_set(e, ST_MEMORY, "not enough memory for %d bytes", PIECE);
    for (int i = 0; i < m->n && st == ST_OK; i++) {
        const MadeTensor *t = &m->tensors[i];
        for (int64_t at = 0; t->part == part && at < t->bytes && st == ST_OK; at += PIECE) {
            int64_t n = t->bytes - at < PIECE ? t->bytes - at : PIECE;
            made_fill(m, t, at, n, piece);
            if (fwrite(piece, 1, (size_t)n, f) != (size_t)n)
                st = err_errno(e, "%s", path);
        }
    }
    free(piece);
    return st;
}

static Status write_part(const MadeModel *m, int part, const char *dir, const char *name, Err *e)
{
    char path[FILE_PATH_MAX];
    StrBuf header = {0};
    uint8_t length[8];
    Status st = ST_OK;
    TRY(file_join(path, dir, name, e));
    add_header(m, part, &header);
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header.len >> 8 * i);
    FILE *f = header.failed ? NULL : fopen(path, "wb");
    if (!f)
        st = err_errno(e, "%s", path);
    else if (fwrite(length, 1, 8, f) != 8 || fwrite(header.data, 1, header.len, f) != header.len)
        st = err_errno(e, "%s", path);
    if (st == ST_OK)
        st = write_data(m, part, f, path, e);
    if (f && fclose(f) != 0 && st == ST_OK)
        st = err_errno(e, "%s", path);
    strbuf_free(&header);
    return st;
}

static void part_name(char *out, size_t room, int part, int n_parts)
{
    snprintf(out, room, "model-%05d-of-%05d.safetensors", part + 1, n_parts);
}

/* Deals the tensors to parts; returns how many there are. */
static int deal(MadeModel *m, int64_t part_bytes)
{
    int part = 0;
    int64_t filled = 0;
    for (int i = 0; i < m->n; i++) {
        if (part_bytes > 0 && filled > 0 && filled + m->tensors[i].bytes > part_bytes) {
            part++;
            filled = 0;
        }
        filled += m->tensors[i].bytes;
        m->tensors[i].part = part;
    }
    return part + 1;
}

static Status write_index(const MadeModel *m, int n_parts, const char *dir, Err *e)
{
    StrBuf b = {0};
    char name[64];
    strbuf_str(&b, "{\"metadata\": {}, \"weight_map\": {");
    for (int i = 0; i < m->n; i++) {
        part_name(name, sizeof name, m->tensors[i].part, n_parts);
        strbuf_fmt(&b, "%s\n\"%s\": \"%s\"", i ? "," : "", m->tensors[i].name, name);
    }
    strbuf_str(&b, "\n}}\n");
    Status st = write_text(dir, "model.safetensors.index.json", &b, e);
    strbuf_free(&b);
    return st;
}

Status made_write(MadeModel *m, const char *dir, int64_t part_bytes, Err *e)
{
    StrBuf config = {0};
    char name[64];
    add_config(&m->spec, &config);
    Status st = write_text(dir, "config.json", &config, e);
    strbuf_free(&config);
    int n_parts = deal(m, part_bytes);
    if (part_bytes <= 0)
        return st == ST_OK ? write_part(m, 0, dir, "model.safetensors", e) : st;
    for (int p = 0; p < n_parts && st == ST_OK; p++) {
        part_name(name, sizeof name, p, n_parts);
        st = write_part(m, p, dir, name, e);
    }
    return st == ST_OK ? write_index(m, n_parts, dir, e) : st;
}
