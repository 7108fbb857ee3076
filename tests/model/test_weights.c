/* tests/model/test_weights.c - every weight of every layout arrives where the forward pass looks
 * for it, on the rank that owns it, and nothing else is read. */
#include "model/weights.h"

#include "io/tensor_set.h"
#include "tests/support/check.h"
#include "tests/support/fake_backend.h"
#include "tests/support/made_family.h"
#include "tests/support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const MadeSpec specs[] = {
    /* family, hidden, inter, experts, top_k, layers, vocab, heads, kv, head_dim, dtype, flags */
    {"qwen3_moe", 24, 8, 5, 2, 2, 19, 4, 2, 10, DTYPE_BF16, .dense_layer = 1, .seed = 1},
    {"qwen3_moe", 24, 8, 5, 2, 2, 19, 4, 2, 10, DTYPE_F32, .tied = true, .dense_layer = -1,
     .seed = 2},
    {"qwen3_moe", 16, 8, 3, 2, 1, 19, 4, 4, 6, DTYPE_F16, .stacked = true, .dense_layer = -1,
     .seed = 3},
    {"mixtral", 24, 12, 4, 2, 2, 7, 3, 1, 8, DTYPE_F16, .dense_layer = -1, .seed = 4},
    {"mixtral", 24, 12, 4, 2, 1, 7, 3, 1, 8, DTYPE_BF16, .stacked = true, .no_prefix = true,
     .dense_layer = -1, .seed = 5},
    {"gpt_oss", 40, 12, 3, 1, 2, 11, 4, 2, 6, DTYPE_BF16, .dense_layer = -1, .seed = 6},
    {"gpt_oss", 40, 12, 3, 1, 1, 11, 4, 2, 6, DTYPE_F32, .no_prefix = true, .dense_layer = -1,
     .seed = 7},
    {"gpt_oss", 64, 96, 3, 1, 2, 11, 4, 2, 6, DTYPE_BF16, .mxfp4 = true, .dense_layer = -1,
     .seed = 8},
    /* latent attention with and without queries of low rank, no size like another */
    {"deepseek_v3",
     24,
     8,
     6,
     3,
     3,
     19,
     3,
     1,
     0,
     DTYPE_BF16,
     .dense_layer = 1,
     .seed = 9,
     .q_lora = 20,
     .kv_lora = 14,
     .nope = 5,
     .rope = 4,
     .v_dim = 7,
     .n_shared = 2,
     .n_group = 3,
     .topk_group = 2},
    {"deepseek_v2", 24, 8, 3, 2, 2, 19, 3, 1, 0, DTYPE_F16, .dense_layer = 0, .seed = 10,
     .kv_lora = 14, .nope = 5, .rope = 4, .v_dim = 7, .n_shared = 1},
    {"deepseek_v2", 24, 8, 3, 2, 1, 19, 3, 1, 0, DTYPE_F32, .stacked = true, .dense_layer = -1,
     .seed = 11, .kv_lora = 14, .nope = 5, .rope = 4, .v_dim = 7, .no_prefix = true},
    {"glm4_moe", 24, 8, 5, 2, 2, 19, 4, 2, 12, DTYPE_BF16, .dense_layer = 0, .seed = 12,
     .n_shared = 3},
    {"minimax_m2", 24, 8, 3, 2, 2, 19, 4, 2, 12, DTYPE_BF16, .dense_layer = -1, .seed = 13},
    {"qwen2_moe", 24, 8, 5, 2, 2, 19, 4, 4, 6, DTYPE_BF16, .dense_layer = 1, .seed = 14,
     .n_shared = 3},
    {"olmoe", 24, 8, 5, 2, 2, 19, 4, 4, 6, DTYPE_F32, .dense_layer = -1, .seed = 15},
    {"granitemoe", 24, 8, 5, 2, 2, 19, 4, 2, 6, DTYPE_BF16, .tied = true, .dense_layer = -1,
     .seed = 16},
    {"llama", 24, 8, 0, 0, 2, 19, 4, 2, 6, DTYPE_BF16, .tied = true, .dense_layer = -1, .seed = 17},
    {"qwen3", 24, 8, 0, 0, 2, 19, 4, 1, 10, DTYPE_F16, .dense_layer = -1, .seed = 18},
    {"mistral", 24, 8, 0, 0, 1, 19, 4, 2, 6, DTYPE_BF16, .dense_layer = -1, .seed = 19},
};

/* What one loaded checkpoint is compared with. */
typedef struct Probe {
    MadeModel *m;
    const Arch *arch;
    const Placement *placement;
    const Weights *w;
    int rank;
    const char *name; /* of the case */
} Probe;

static MadeTensor *tensor(const Probe *p, const char *relative)
{
    char name[160];
    bool bare = p->m->spec.no_prefix || strcmp(relative, "lm_head.weight") == 0;
    snprintf(name, sizeof name, "%s%s", bare ? "" : "model.", relative);
    MadeTensor *t = made_find(p->m, name);
    if (!t)
        fprintf(stderr, "%s: the test expects a tensor \"%s\"\n", p->name, name);
    return t;
}

/* Value number at of a plain tensor. */
static float value_at(const Probe *p, const MadeTensor *t, int64_t at)
{
    uint8_t bytes[4];
    uint16_t bits;
    float v;
    int size = dtype_bytes(t->dtype);
    made_fill(p->m, t, at * size, size, bytes);
    memcpy(&bits, bytes, 2);
    memcpy(&v, bytes, sizeof v * (size == 4));
    return t->dtype == DTYPE_F32   ? v
           : t->dtype == DTYPE_F16 ? f16_to_float(bits)
                                   : bf16_to_float(bits);
}

static uint8_t byte_at(const Probe *p, const MadeTensor *t, int64_t at)
{
    uint8_t bytes[8];
    made_fill(p->m, t, at / 8 * 8, 8, bytes);
    return bytes[at % 8];
}

/* Value (expert, row, col) of MXFP4 codes and scales. */
static float mxfp4_at(const Probe *p, const MadeTensor *codes, const MadeTensor *scales,
                      int64_t expert, int64_t row, int64_t col)
{
    static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int64_t line = expert * codes->shape[1] + row, blocks = codes->shape[2];
    unsigned byte = byte_at(p, codes, (line * blocks + col / 32) * 16 + col % 32 / 2);
    unsigned nibble = col % 2 ? byte >> 4 : byte & 15;
    double scale = ldexp(1, byte_at(p, scales, line * blocks + col / 32) - 127);
    return (float)((nibble & 8 ? -1 : 1) * magnitude[nibble & 7] * scale);
}

static int check_vector(const Probe *p, const char *relative, const float *got, int64_t n)
{
    const MadeTensor *t = tensor(p, relative);
    int failed = 0;
    if (!t || !got)
        return check_true(relative, false);
    for (int64_t i = 0; i < n; i++)
        failed += check_near(relative, got[i], value_at(p, t, i), 0);
    return failed;
}

/* Rows first .. of matrix mat are those of a plain tensor [rows, cols]. */
static int check_rows(const Probe *p, const char *relative, const Weight *w, int mat, int64_t first)
{
    const MadeTensor *t = tensor(p, relative);
    int failed = 0;
    if (!t || !w)
        return check_true(relative, false);
    for (int64_t r = 0; r < t->shape[0]; r++)
        for (int64_t c = 0; c < t->shape[1]; c++)
            failed += check_near(relative, fake_weight_row(w, mat, first + r)[c],
                                 value_at(p, t, r * t->shape[1] + c), 0);
    return failed;
}

/* A vector or matrix of layer n that is there, or is not. */
static int check_layer_vector(const Probe *p, int n, const char *name, const float *got, bool there,
                              int64_t width)
{
    char full[160];
    snprintf(full, sizeof full, "layers.%d.%s", n, name);
    return there ? check_vector(p, full, got, width) : check_true(full, !got);
}

static int check_layer_rows(const Probe *p, int n, const char *name, const Weight *w, bool there,
                            int64_t first)
{
    char full[160];
    snprintf(full, sizeof full, "layers.%d.%s", n, name);
    return there ? check_rows(p, full, w, 0, first) : check_true(full, !w);
}

static int check_heads(const Probe *p, int n, const LayerWeights *l)
{
    static const char *const names[] = {"q", "k", "v"};
    const Arch *a = p->arch;
    const MadeFamily *f = made_family(p->m->spec.family);
    char name[100];
    int64_t q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    const int64_t first[] = {0, q, q + kv}, rows[] = {q, kv, kv};
    int failed = check_int("rows of qkv", fake_weight_rows(l->qkv.w), q + 2 * kv);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "self_attn.%s_proj.weight", names[i]);
        failed += check_layer_rows(p, n, name, l->qkv.w, true, first[i]);
        snprintf(name, sizeof name, "self_attn.%s_proj.bias", names[i]);
        failed += check_layer_vector(p, n, name, l->qkv.bias ? l->qkv.bias + first[i] : NULL,
                                     f->qkv_bias, rows[i]);
    }
    failed += check_layer_vector(p, n, "self_attn.q_norm.weight", l->q_norm, f->qk_norm,
                                 f->qk_norm == 2 ? q : a->head_dim);
    failed += check_layer_vector(p, n, "self_attn.k_norm.weight", l->k_norm, f->qk_norm,
                                 f->qk_norm == 2 ? kv : a->head_dim);
    failed += check_layer_vector(p, n, "self_attn.sinks", l->sinks, f->sinks, a->n_heads);
    return failed + check_true("nothing latent", !l->q.w && !l->kv_a.w && !l->latent_up &&
                                                     !l->latent_absorb && !l->kv_a_norm);
}

/* Both banks of kv_b_proj, whose rows are nope and v of one head after the other. */
static int check_latent_banks(const Probe *p, int n, const LayerWeights *l)
{
    const MadeSpec *s = &p->m->spec;
    char name[100];
    int head = s->nope + s->v_dim, failed = 0;
    snprintf(name, sizeof name, "layers.%d.self_attn.kv_b_proj.weight", n);
    const MadeTensor *t = tensor(p, name);
    failed += check_int("a matrix per head", fake_weight_mats(l->latent_up), s->heads);
    failed += check_int("a matrix per head", fake_weight_mats(l->latent_absorb), s->heads);
    failed += check_int("rows up", fake_weight_rows(l->latent_up), head);
    failed += check_int("rows absorbed", fake_weight_rows(l->latent_absorb), s->kv_lora);
    failed += check_int("columns absorbed", fake_weight_cols(l->latent_absorb), s->nope);
    for (int h = 0; h < s->heads; h++)
        for (int r = 0; r < head; r++)
            for (int c = 0; c < s->kv_lora; c++) {
                float want = value_at(p, t, (int64_t)(h * head + r) * s->kv_lora + c);
                failed += check_near("up", fake_weight_row(l->latent_up, h, r)[c], want, 0);
                if (r < s->nope)
                    failed +=
                        check_near("absorbed", fake_weight_row(l->latent_absorb, h, c)[r], want, 0);
            }
    return failed;
}

static int check_latent(const Probe *p, int n, const LayerWeights *l)
{
    const MadeSpec *s = &p->m->spec;
    bool low = s->q_lora > 0;
    int failed = check_true("no heads", !l->qkv.w && !l->q_norm && !l->k_norm);
    failed += check_layer_rows(p, n, "self_attn.q_a_proj.weight", l->q_a.w, low, 0);
    failed +=
        check_layer_vector(p, n, "self_attn.q_a_layernorm.weight", l->q_a_norm, low, s->q_lora);
    failed += check_layer_rows(p, n, low ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight",
                               l->q.w, true, 0);
    failed += check_layer_rows(p, n, "self_attn.kv_a_proj_with_mqa.weight", l->kv_a.w, true, 0);
    failed +=
        check_layer_vector(p, n, "self_attn.kv_a_layernorm.weight", l->kv_a_norm, true, s->kv_lora);
    return failed + check_latent_banks(p, n, l);
}

static int check_attention(const Probe *p, int n, const LayerWeights *l)
{
    const Arch *a = p->arch;
    const MadeFamily *f = made_family(p->m->spec.family);
    int failed = check_layer_vector(p, n, "input_layernorm.weight", l->attn_norm, true, a->hidden);
    failed +=
        check_layer_vector(p, n, "post_attention_layernorm.weight", l->ffn_norm, true, a->hidden);
    failed += check_layer_rows(p, n, "self_attn.o_proj.weight", l->o.w, true, 0);
    failed += check_layer_vector(p, n, "self_attn.o_proj.bias", l->o.bias, f->o_bias, a->hidden);
    return failed + (f->latent ? check_latent(p, n, l) : check_heads(p, n, l));
}

/* What row r, column c of gate (0), up (1) or down (2) of an expert must be. */
static float expert_value(const Probe *p, int n, int expert, int which, int64_t r, int64_t c)
{
    const MadeSpec *s = &p->m->spec;
    char name[100], scales[100];
    const char *bank = which == 2 ? "down_proj" : "gate_up_proj";
    int64_t hidden = s->hidden, inter = s->inter;
    if (strcmp(s->family, "gpt_oss") == 0) {
        int64_t stored = which == 2 ? r : 2 * r + which; /* gate and up lie interleaved */
        snprintf(name, sizeof name, "layers.%d.mlp.experts.%s%s", n, bank,
                 s->mxfp4 ? "_blocks" : "");
        snprintf(scales, sizeof scales, "layers.%d.mlp.experts.%s_scales", n, bank);
        if (s->mxfp4)
            return mxfp4_at(p, tensor(p, name), tensor(p, scales), expert, stored, c);
        int64_t ins = which == 2 ? inter : hidden, outs = which == 2 ? hidden : 2 * inter;
        return value_at(p, tensor(p, name), (expert * ins + c) * outs + stored);
    }
    const MadeFamily *f = made_family(s->family);
    int64_t ins = which == 2 ? inter : hidden;
    if (s->stacked || f->stack[0]) {
        int64_t outs = which == 2 ? hidden : 2 * inter, stored = which == 1 ? inter + r : r;
        const char *stack = f->stack[which == 2];
        snprintf(name, sizeof name, "layers.%d.%s%s", n, stack ? "" : "mlp.experts.",
                 stack ? stack : bank);
        return value_at(p, tensor(p, name), (expert * outs + stored) * ins + c);
    }
    snprintf(name, sizeof name, "layers.%d.%s%d.%s.weight", n, f->experts, expert, f->proj[which]);
    return value_at(p, tensor(p, name), r * ins + c);
}

static int check_expert_biases(const Probe *p, int n, const FfnSpec *f, int k, int expert)
{
    char name[100];
    int failed = 0;
    int64_t inter = f->inter;
    snprintf(name, sizeof name, "layers.%d.mlp.experts.gate_up_proj_bias", n);
    const MadeTensor *t = tensor(p, name);
    for (int64_t r = 0; r < 2 * inter; r++)
        failed += check_near("expert bias, gate then up", f->b13[2 * inter * k + r],
                             value_at(p, t, 2 * inter * expert + 2 * (r % inter) + r / inter), 0);
    snprintf(name, sizeof name, "layers.%d.mlp.experts.down_proj_bias", n);
    t = tensor(p, name);
    for (int64_t r = 0; r < f->hidden; r++)
        failed += check_near("expert bias, down", f->b2[f->hidden * k + r],
                             value_at(p, t, f->hidden * expert + r), 0);
    return failed;
}

static int check_experts(const Probe *p, int n, const FfnSpec *f)
{
    int n_local = p->placement->n_local[p->rank], failed = 0;
    failed += check_int("width", f->inter, p->m->spec.inter);
    if (n_local == 0)
        return failed +
               check_true("a rank without experts", !f->w13 && !f->w2 && !f->b13 && !f->b2);
    failed += check_int("local experts", fake_weight_mats(f->w13), n_local);
    failed += check_int("local experts", fake_weight_mats(f->w2), n_local);
    for (int k = 0; k < n_local; k++) {
        int expert = placement_expert(p->placement, p->rank, k);
        for (int64_t r = 0; r < 2 * f->inter; r++)
            for (int64_t c = 0; c < f->hidden; c++)
                failed += check_near("gate, up", fake_weight_row(f->w13, k, r)[c],
                                     expert_value(p, n, expert, r >= f->inter, r % f->inter, c), 0);
        for (int64_t r = 0; r < f->hidden; r++)
            for (int64_t c = 0; c < f->inter; c++)
                failed += check_near("down", fake_weight_row(f->w2, k, r)[c],
                                     expert_value(p, n, expert, 2, r, c), 0);
        if (p->arch->expert_bias)
            failed += check_expert_biases(p, n, f, k, expert);
    }
    return failed;
}

/* A FFN that every token goes through, of the names PREFIX gate_proj.weight. */
static int check_ffn(const Probe *p, int n, const char *prefix, const FfnSpec *f, int64_t inter)
{
    char name[100];
    int failed = check_int("width", f->inter, inter);
    snprintf(name, sizeof name, "%sgate_proj.weight", prefix);
    failed += check_layer_rows(p, n, name, f->w13, true, 0);
    snprintf(name, sizeof name, "%sup_proj.weight", prefix);
    failed += check_layer_rows(p, n, name, f->w13, true, inter);
    snprintf(name, sizeof name, "%sdown_proj.weight", prefix);
    return failed + check_layer_rows(p, n, name, f->w2, true, 0);
}

static int check_sparse(const Probe *p, int n, const LayerWeights *l)
{
    const MadeSpec *s = &p->m->spec;
    const MadeFamily *f = made_family(s->family);
    bool renamed = s->stacked && strcmp(s->family, "mixtral") == 0;
    int failed =
        check_layer_rows(p, n, renamed ? "mlp.gate.weight" : f->router, l->router.w, true, 0);
    failed += check_layer_vector(p, n, "mlp.router.bias", l->router.bias,
                                 strcmp(s->family, "gpt_oss") == 0, s->experts);
    failed += check_layer_vector(p, n, f->correction ? f->correction : "correction",
                                 l->router_correction, f->correction, s->experts);
    if (f->shared && s->n_shared)
        failed += check_ffn(p, n, f->shared, &l->shared, (int64_t)s->n_shared * s->inter);
    else
        failed += check_true("no shared experts", !l->shared.w13 && !l->shared.w2);
    failed += check_layer_rows(p, n, "mlp.shared_expert_gate.weight", l->shared_gate.w,
                               f->shared_gate, 0);
    failed += check_true("no dense FFN", !l->dense.w13 && !l->dense.w2);
    return failed + check_experts(p, n, &l->experts);
}

static int check_layer(const Probe *p, int n)
{
    const LayerWeights *l = &p->w->layers[n];
    int failed = check_attention(p, n, l);
    if (p->arch->layers[n].moe)
        return failed + check_sparse(p, n, l);
    failed += check_ffn(p, n, "mlp.", &l->dense, 2 * p->m->spec.inter);
    return failed + check_true("nothing sparse", !l->experts.w13 && !l->router.w &&
                                                     !l->shared.w13 && !l->shared_gate.w &&
                                                     !l->router_correction);
}

/* As the spec has it, in the two ways that families say it. */
static int check_dense_layers(const MadeSpec *s, const Arch *a)
{
    const MadeFamily *f = made_family(s->family);
    int failed = 0;
    for (int n = 0; n < a->n_layers; n++)
        failed += check_int("dense", !a->layers[n].moe,
                            f->no_experts || n == s->dense_layer ||
                                (f->first_dense && n < s->dense_layer));
    return failed;
}

/* Loads dir as rank of n_ranks and compares everything; adds to the counts. */
static int check_rank(MadeModel *m, const char *dir, const Arch *arch, int rank, int n_ranks,
                      int64_t *bytes_read)
{
    char name[64];
    Err e = {0};
    Placement placement;
    Backend *backend;
    Weights w;
    int failed = 0;
    snprintf(name, sizeof name, "%s, seed %d, rank %d of %d", m->spec.family, (int)m->spec.seed,
             rank, n_ranks);
    if (placement_create(&placement, m->spec.experts, n_ranks, &e) != ST_OK ||
        fake_backend_create(&backend, &e) != ST_OK ||
        weights_load(&(WeightsConfig){dir, NULL, arch, &(Precision){0}, &placement, rank,
                                      &fake_backend, backend, NULL},
                     &w, &e) != ST_OK)
        return check_str(name, e.text, "");
    Probe p = {m, arch, &placement, &w, rank, name};
    failed += check_rows(&p, "embed_tokens.weight", w.embed, 0, 0);
    failed +=
        check_rows(&p, m->spec.tied ? "embed_tokens.weight" : "lm_head.weight", w.head.w, 0, 0);
    failed += check_vector(&p, "norm.weight", w.final_norm, m->spec.hidden);
    failed += check_int(name, w.n_layers, m->spec.layers);
    for (int n = 0; n < w.n_layers; n++)
        failed += check_layer(&p, n);
    *bytes_read += w.bytes_read;
    weights_free(&w);
    weights_free(&w);
    failed += check_int("everything is given back", fake_backend_destroy(backend), 0);
    placement_free(&placement);
    if (failed)
        fprintf(stderr, "in %s\n", name);
    return failed;
}

/* Bytes of tensors that only an expert's owner reads, and of those that every rank reads. */
static void sum_bytes(const MadeModel *m, int64_t *experts, int64_t *dense)
{
    *experts = *dense = 0;
    for (int i = 0; i < m->n; i++)
        *(strstr(m->tensors[i].name, ".experts.") || strstr(m->tensors[i].name, "put_linear.")
              ? experts
              : dense) += m->tensors[i].bytes;
    if (m->spec.tied)
        *dense += m->tensors[0].bytes; /* embed_tokens, read for the head as well */
    for (int i = 0; i < m->n; i++) {   /* its k_nope rows are read for both banks */
        const MadeSpec *s = &m->spec;
        if (strstr(m->tensors[i].name, "kv_b_proj"))
            *dense += m->tensors[i].bytes / (s->nope + s->v_dim) * s->nope;
    }
}

static int check_spec(const MadeSpec *spec, const char *dir)
{
    MadeModel m;
    Arch arch;
    GenerationDefaults gen;
    Err e = {0};
    int failed = 0;
    temp_dir_fresh(dir);
    if (made_create(spec, &m, &e) != ST_OK ||
        made_write(&m, dir, spec->seed % 2 ? 3000 : 0, &e) != ST_OK ||
        arch_load(dir, NULL, 0, &arch, &gen, &e) != ST_OK)
        return check_str(spec->family, e.text, "");
    int64_t experts, dense;
    failed += check_dense_layers(spec, &arch);
    sum_bytes(&m, &experts, &dense);
    for (int n_ranks = 1; n_ranks <= 7; n_ranks += n_ranks < 3 ? 1 : 4) {
        int64_t bytes_read = 0;
        for (int rank = 0; rank < n_ranks; rank++)
            failed += check_rank(&m, dir, &arch, rank, n_ranks, &bytes_read);
        failed += check_int("bytes read by all ranks", bytes_read, experts + n_ranks * dense);
    }
    arch_free(&arch);
    made_free(&m);
    return failed;
}

/* --- reference checkpoints --- */

/* Loads dir whole; *w is the caller's. */
static Status load_whole(const char *shared, const char *name, Arch *arch, Backend **backend,
                         Weights *w, Err *e)
{
    char dir[1000];
    GenerationDefaults gen;
    Placement placement;
    snprintf(dir, sizeof dir, "%s/%s", shared, name);
    TRY(arch_load(dir, NULL, 0, arch, &gen, e));
    TRY(placement_create(&placement, arch->router.n_experts, 1, e));
    Status st = fake_backend_create(backend, e);
    if (st == ST_OK)
        st = weights_load(&(WeightsConfig){dir, NULL, arch, &(Precision){0}, &placement, 0,
                                           &fake_backend, *backend, NULL},
                          w, e);
    placement_free(&placement);
    return st;
}

static int check_reference(const char *shared, const char *name)
{
    Arch arch;
    Backend *backend = NULL;
    Weights w;
    Err e = {0};
    if (load_whole(shared, name, &arch, &backend, &w, &e) != ST_OK)
        return check_str(name, e.text, "");
    int failed = check_int(name, fake_weight_rows(w.embed), arch.vocab);
    weights_free(&w);
    failed += check_int(name, fake_backend_destroy(backend), 0);
    arch_free(&arch);
    return failed;
}

/* Squared difference and size of two banks. */
static void compare_banks(const Weight *a, const Weight *b, double *difference, double *size)
{
    for (int m = 0; m < fake_weight_mats(a); m++)
        for (int64_t r = 0; r < fake_weight_rows(a); r++)
            for (int64_t c = 0; c < fake_weight_cols(a); c++) {
                double x = fake_weight_row(a, m, r)[c], d = x - fake_weight_row(b, m, r)[c];
                *difference += d * d;
                *size += x * x;
            }
}

/* The same trained model, once transposed in bf16 and once in MXFP4, written by somebody else:
 * where both views are right, they differ by the rounding to four bits; a row or column out of
 * place differs by more than the whole. */
static int check_two_layouts(const char *shared)
{
    Arch arch_a, arch_b;
    Backend *a = NULL, *b = NULL;
    Weights wa, wb;
    Err e = {0};
    if (load_whole(shared, "models/storyteller-gpt_oss", &arch_a, &a, &wa, &e) != ST_OK ||
        load_whole(shared, "models/storyteller-gpt_oss-mxfp4", &arch_b, &b, &wb, &e) != ST_OK)
        return check_str("two layouts", e.text, "");
    int failed = 0;
    for (int n = 0; n < wa.n_layers; n++) {
        const FfnSpec *x = &wa.layers[n].experts, *y = &wb.layers[n].experts;
        double difference = 0, size = 0;
        compare_banks(x->w13, y->w13, &difference, &size);
        failed += check_near("gate and up", sqrt(difference / size), 0.12, 0.05);
        difference = size = 0;
        compare_banks(x->w2, y->w2, &difference, &size);
        failed += check_near("down", sqrt(difference / size), 0.12, 0.05);
        failed += check_int("biases", memcmp(x->b13, y->b13, (size_t)(16 * 2 * x->inter) * 4), 0);
    }
    weights_free(&wa);
    weights_free(&wb);
    failed += check_int("all given back", fake_backend_destroy(a) + fake_backend_destroy(b), 0);
    arch_free(&arch_a);
    arch_free(&arch_b);
    return failed;
}

int main(void)
{
    static const char *const references[] = {
        "goldens/qwen3_moe-bf16", "goldens/mixtral-bf16",        "goldens/gpt_oss-bf16",
        "goldens/gpt_oss-mxfp4",  "goldens/deepseek_v3-bf16",    "goldens/deepseek_v2-bf16",
        "goldens/glm4_moe-bf16",  "goldens/minimax_m2-bf16",     "goldens/qwen2_moe-bf16",
        "goldens/olmoe-bf16",     "goldens/granitemoe-bf16",     "goldens/llama-bf16",
        "goldens/qwen3-bf16",     "models/storyteller-qwen3_moe"};
    const char *dir = "model";
    int failed = 0;
    temp_dir_enter();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        failed += check_spec(&specs[i], dir);
    const char *shared = test_shared();
    for (size_t i = 0; shared && i < sizeof references / sizeof *references; i++)
        failed += check_reference(shared, references[i]);
    if (shared)
        failed += check_two_layouts(shared);
    else if (failed == 0)
        return test_skip("the reference checkpoints are not there; all else passed");
    return test_result(failed);
}
