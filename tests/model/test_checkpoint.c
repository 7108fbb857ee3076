/* tests/model/test_checkpoint.c - checkpoints that do not fit their config.json: each is refused
 * with the name of the file, of the tensor, and what was expected; and those that hold more than
 * the model needs. */
#include "model/checkpoint.h"

#include "io/log.h"
#include "model/weights.h"
#include "tests/support/check.h"
#include "tests/support/fake_backend.h"
#include "tests/support/made_model.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const MadeSpec qwen = {"qwen3_moe",      24,       8, 3, 2, 2, 19, 4, 2, 10, DTYPE_BF16,
                              .dense_layer = 1, .seed = 1};
static const MadeSpec mixtral = {"mixtral",         24,       8, 3, 2, 2, 19, 4, 2, 10, DTYPE_BF16,
                                 .dense_layer = -1, .seed = 2};
static const MadeSpec oss = {"gpt_oss",         40,       12, 3, 1, 2, 19, 4, 2, 6, DTYPE_BF16,
                             .dense_layer = -1, .seed = 3};
static const MadeSpec mxfp4 = {
    "gpt_oss",         64,       96, 3, 1, 2, 19, 4, 2, 6, DTYPE_BF16, .mxfp4 = true,
    .dense_layer = -1, .seed = 4};
static const MadeSpec tied = {
    "qwen3_moe",       24,       8, 3, 2, 2, 19, 4, 2, 10, DTYPE_BF16, .tied = true,
    .dense_layer = -1, .seed = 5};
static const MadeSpec v3 = {"deepseek_v3",
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
                            .seed = 6,
                            .q_lora = 20,
                            .kv_lora = 14,
                            .nope = 5,
                            .rope = 4,
                            .v_dim = 7,
                            .n_shared = 2,
                            .n_group = 3,
                            .topk_group = 2};
static const MadeSpec v2 = {"deepseek_v2",
                            24,
                            8,
                            3,
                            2,
                            2,
                            19,
                            3,
                            1,
                            0,
                            DTYPE_BF16,
                            .seed = 7,
                            .kv_lora = 14,
                            .nope = 5,
                            .rope = 4,
                            .v_dim = 7,
                            .n_shared = 1};
static const MadeSpec glm = {"glm4_moe", 24,           8, 5, 2, 2, 19, 4, 2, 12, DTYPE_BF16,
                             .seed = 8,  .n_shared = 1};
static const MadeSpec minimax = {"minimax_m2",      24,       8, 3, 2, 2, 19, 4, 2, 12, DTYPE_BF16,
                                 .dense_layer = -1, .seed = 9};
static const MadeSpec qwen2 = {
    "qwen2_moe",      24, 8, 5, 2, 2, 19, 4, 4, 6, DTYPE_BF16, .seed = 10, .n_shared = 3,
    .dense_layer = -1};
static const MadeSpec granite = {
    "granitemoe",      24,        8, 5, 2, 2, 19, 4, 2, 6, DTYPE_BF16, .tied = true,
    .dense_layer = -1, .seed = 11};
static const MadeSpec llama = {"llama",           24,        8, 0, 0, 2, 19, 4, 2, 6, DTYPE_BF16,
                               .dense_layer = -1, .seed = 12};

typedef enum Edit {
    REMOVE,  /* tensor is left out */
    RENAME,  /* is called text */
    DTYPE,   /* has dtype */
    RESHAPE, /* has the shape text: "a,b,c" */
    ADD,     /* a tensor of dtype and shape text is added */
} Edit;

typedef struct Case {
    const char *name;
    const MadeSpec *spec;
    Edit edit;
    const char *tensor, *text;
    TensorDtype dtype;
    const char *message; /* NULL: accepted */
} Case;

#define L0 "model.layers.0."
#define L1 "model.layers.1."

static const Case cases[] = {
    {"no embedding", &qwen, REMOVE, "model.embed_tokens.weight", "", 0,
     "model.safetensors: tensor \"model.embed_tokens.weight\": missing, expected BF16, F16 or F32 "
     "[19, 24]"},
    {"no head", &qwen, REMOVE, "lm_head.weight", "", 0,
     "model.safetensors: tensor \"lm_head.weight\": missing, expected BF16, F16 or F32 [19, 24]"},
    {"no final norm", &mixtral, REMOVE, "model.norm.weight", "", 0,
     "tensor \"model.norm.weight\": missing, expected BF16, F16 or F32 [24]"},
    {"no QK norm", &qwen, REMOVE, L1 "self_attn.k_norm.weight", "", 0,
     "tensor \"model.layers.1.self_attn.k_norm.weight\": missing, expected BF16, F16 or F32 [10]"},
    {"no expert", &qwen, REMOVE, L0 "mlp.experts.2.up_proj.weight", "", 0,
     "tensor \"model.layers.0.mlp.experts.2.up_proj.weight\": missing, expected BF16, F16 or F32 "
     "[8, 24]"},
    {"no expert of mixtral", &mixtral, REMOVE, L1 "block_sparse_moe.experts.0.w2.weight", "", 0,
     "tensor \"model.layers.1.block_sparse_moe.experts.0.w2.weight\": missing, expected BF16, F16 "
     "or "
     "F32 [24, 8]"},
    {"no dense layer", &qwen, REMOVE, L1 "mlp.down_proj.weight", "", 0,
     "tensor \"model.layers.1.mlp.down_proj.weight\": missing, expected BF16, F16 or F32 [24, 16]"},
    {"no sinks", &oss, REMOVE, L0 "self_attn.sinks", "", 0,
     "tensor \"model.layers.0.self_attn.sinks\": missing, expected BF16, F16 or F32 [4]"},
    {"no router bias", &oss, REMOVE, L0 "mlp.router.bias", "", 0,
     "tensor \"model.layers.0.mlp.router.bias\": missing, expected BF16, F16 or F32 [3]"},
    {"no expert bias", &mxfp4, REMOVE, L0 "mlp.experts.down_proj_bias", "", 0,
     "tensor \"model.layers.0.mlp.experts.down_proj_bias\": missing, expected BF16, F16 or F32 [3, "
     "64]"},
    {"no stacked experts", &oss, REMOVE, L1 "mlp.experts.gate_up_proj", "", 0,
     "tensor \"model.layers.1.mlp.experts.gate_up_proj\": missing, expected BF16, F16 or F32 [3, "
     "40, 24]"},
    {"no scales", &mxfp4, REMOVE, L1 "mlp.experts.gate_up_proj_scales", "", 0,
     "tensor \"model.layers.1.mlp.experts.gate_up_proj_scales\": missing, expected U8 or F8_E8M0 "
     "[3, "
     "192, 2]"},
    {"misspelt", &qwen, RENAME, L0 "mlp.gate.weight", L0 "mlp.gate.wieght", 0,
     "tensor \"model.layers.0.mlp.gate.weight\": missing, expected BF16, F16 or F32 [3, 24]"},
    {"integer weights", &qwen, DTYPE, L0 "self_attn.q_proj.weight", "", DTYPE_I16,
     "model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\": dtype I16, expected "
     "BF16, F16 "
     "or F32 [40, 24]"},
    {"8-bit weights", &mixtral, DTYPE, L0 "self_attn.q_proj.weight", "", DTYPE_F8_E4M3,
     "tensor \"model.layers.0.self_attn.q_proj.weight\": dtype F8_E4M3, expected BF16, F16 or F32"},
    {"double norm", &qwen, DTYPE, L0 "input_layernorm.weight", "", DTYPE_F64,
     "tensor \"model.layers.0.input_layernorm.weight\": dtype F64, expected BF16, F16 or F32 [24]"},
    {"experts of two dtypes", &qwen, DTYPE, L0 "mlp.experts.1.down_proj.weight", "", DTYPE_F32,
     "tensor \"model.layers.0.mlp.experts.1.down_proj.weight\": dtype F32, expected BF16 as in "
     "expert 0"},
    {"blocks of another dtype", &mxfp4, DTYPE, L0 "mlp.experts.down_proj_blocks", "", DTYPE_F8_E5M2,
     "tensor \"model.layers.0.mlp.experts.down_proj_blocks\": dtype F8_E5M2, expected U8 [3, 64, "
     "3, 16]"},
    {"scales of another dtype", &mxfp4, DTYPE, L0 "mlp.experts.down_proj_scales", "", DTYPE_BF16,
     "tensor \"model.layers.0.mlp.experts.down_proj_scales\": dtype BF16, expected U8 or F8_E8M0"},
    {"wrong vocabulary", &qwen, RESHAPE, "model.embed_tokens.weight", "20,24", 0,
     "model.safetensors: tensor \"model.embed_tokens.weight\": shape [20, 24], expected [19, 24]"},
    {"transposed", &qwen, RESHAPE, L0 "self_attn.o_proj.weight", "40,24", 0,
     "tensor \"model.layers.0.self_attn.o_proj.weight\": shape [40, 24], expected [24, 40]"},
    {"one dimension more", &qwen, RESHAPE, L0 "self_attn.q_norm.weight", "10,1", 0,
     "tensor \"model.layers.0.self_attn.q_norm.weight\": shape [10, 1], expected [10]"},
    {"too many experts", &oss, RESHAPE, L0 "mlp.experts.down_proj", "4,12,40", 0,
     "tensor \"model.layers.0.mlp.experts.down_proj\": shape [4, 12, 40], expected [3, 12, 40]"},
    {"blocks flattened", &mxfp4, RESHAPE, L0 "mlp.experts.gate_up_proj_blocks", "3,192,32", 0,
     "tensor \"model.layers.0.mlp.experts.gate_up_proj_blocks\": shape [3, 192, 32], expected [3, "
     "192, 2, "
     "16]"},
    {"one expert more", &mixtral, ADD, L0 "block_sparse_moe.experts.3.w1.weight", "8,24",
     DTYPE_BF16,
     "model.safetensors: tensor \"model.layers.0.block_sparse_moe.experts.3.w1.weight\": BF16 [8, "
     "24], but "
     "mixtral of 2 layers has no such tensor"},
    {"scale of a quantized weight", &qwen, ADD, L0 "self_attn.q_proj.weight_scale", "1", DTYPE_F32,
     "tensor \"model.layers.0.self_attn.q_proj.weight_scale\": F32 [1], but qwen3_moe of 2 layers "
     "has no"},
    {"bias that config.json denies", &qwen, ADD, L0 "self_attn.q_proj.bias", "40", DTYPE_BF16,
     "tensor \"model.layers.0.self_attn.q_proj.bias\": BF16 [40], but qwen3_moe"},
    {"stranger", &oss, ADD, "model.something", "1", DTYPE_I64,
     "tensor \"model.something\": I64 [1], but"},
    {"one tensor under two names", &mixtral, ADD, L0 "mlp.gate.weight", "3,24", DTYPE_BF16,
     "tensor \"model.layers.0.mlp.gate.weight\": the same as "
     "\"model.layers.0.block_sparse_moe.gate.weight\""},
    {"with and without prefix", &qwen, ADD, "embed_tokens.weight", "19,24", DTYPE_BF16,
     "tensor \"embed_tokens.weight\": the same as \"model.embed_tokens.weight\""},
    {"both expert layouts", &mxfp4, ADD, L0 "mlp.experts.down_proj", "3,96,64", DTYPE_BF16,
     "tensor \"model.layers.0.mlp.experts.down_proj\": BF16 [3, 96, 64], but gpt_oss"},
    {"no low-rank queries", &v3, REMOVE, L0 "self_attn.q_a_proj.weight", "", 0,
     "tensor \"model.layers.0.self_attn.q_a_proj.weight\": missing, expected BF16, F16 or F32 [20, "
     "24]"},
    {"low-rank queries that config.json denies", &v2, ADD, L0 "self_attn.q_a_proj.weight", "20,24",
     DTYPE_BF16,
     "tensor \"model.layers.0.self_attn.q_a_proj.weight\": BF16 [20, 24], but deepseek_v2"},
    {"no norm of latents", &v2, REMOVE, L1 "self_attn.kv_a_layernorm.weight", "", 0,
     "tensor \"model.layers.1.self_attn.kv_a_layernorm.weight\": missing, expected BF16, F16 or "
     "F32 "
     "[14]"},
    {"latents without rope", &v3, RESHAPE, L0 "self_attn.kv_a_proj_with_mqa.weight", "14,24", 0,
     "shape [14, 24], expected [18, 24]"},
    {"heads of another width", &v3, RESHAPE, L0 "self_attn.kv_b_proj.weight", "30,14", 0,
     "shape [30, 14], expected [36, 14]"},
    {"output of the queries' width", &v3, RESHAPE, L0 "self_attn.o_proj.weight", "24,27", 0,
     "shape [24, 27], expected [24, 21]"},
    {"no correction", &v3, REMOVE, L1 "mlp.gate.e_score_correction_bias", "", 0,
     "tensor \"model.layers.1.mlp.gate.e_score_correction_bias\": missing, expected BF16, F16 or "
     "F32 "
     "[6]"},
    {"correction under another name", &minimax, RENAME,
     L0 "block_sparse_moe.e_score_correction_bias",
     L0 "block_sparse_moe.gate.e_score_correction_bias", 0,
     "tensor \"model.layers.0.block_sparse_moe.e_score_correction_bias\": missing"},
    {"correction that the family has not", &v2, ADD, L1 "mlp.gate.e_score_correction_bias", "3",
     DTYPE_F32, "tensor \"model.layers.1.mlp.gate.e_score_correction_bias\": F32 [3], but"},
    {"no shared experts", &v3, REMOVE, L1 "mlp.shared_experts.up_proj.weight", "", 0,
     "tensor \"model.layers.1.mlp.shared_experts.up_proj.weight\": missing, expected BF16, F16 or "
     "F32 [16, 24]"},
    {"one shared expert too few", &v3, RESHAPE, L1 "mlp.shared_experts.up_proj.weight", "8,24", 0,
     "shape [8, 24], expected [16, 24]"},
    {"shared experts in the singular", &glm, RENAME, L1 "mlp.shared_experts.up_proj.weight",
     L1 "mlp.shared_expert.up_proj.weight", 0,
     "tensor \"model.layers.1.mlp.shared_experts.up_proj.weight\": missing"},
    {"no gate of the shared expert", &qwen2, REMOVE, L0 "mlp.shared_expert_gate.weight", "", 0,
     "tensor \"model.layers.0.mlp.shared_expert_gate.weight\": missing, expected BF16, F16 or F32 "
     "[1, 24]"},
    {"gate without a dimension", &qwen2, RESHAPE, L0 "mlp.shared_expert_gate.weight", "24", 0,
     "shape [24], expected [1, 24]"},
    {"bias of o", &qwen2, ADD, L0 "self_attn.o_proj.bias", "24", DTYPE_BF16,
     "tensor \"model.layers.0.self_attn.o_proj.bias\": BF16 [24], but qwen2_moe"},
    {"norms of a head for the full width", &minimax, RESHAPE, L0 "self_attn.k_norm.weight", "12", 0,
     "shape [12], expected [24]"},
    {"stack of granite, transposed", &granite, RESHAPE, L0 "block_sparse_moe.input_linear.weight",
     "5,24,16", 0, "shape [5, 24, 16], expected [5, 16, 24]"},
    {"granite's experts apart", &granite, ADD, L0 "block_sparse_moe.experts.0.w1.weight", "8,24",
     DTYPE_BF16, "BF16 [8, 24], but granitemoe"},
    {"experts of a dense model", &llama, ADD, L0 "mlp.experts.0.up_proj.weight", "8,24", DTYPE_BF16,
     "BF16 [8, 24], but llama"},
    {"norms of qwen3 in llama", &llama, ADD, L0 "self_attn.q_norm.weight", "6", DTYPE_BF16,
     "BF16 [6], but llama"},

    {"correction in half precision", &v3, DTYPE, L1 "mlp.gate.e_score_correction_bias", "",
     DTYPE_BF16, NULL},
    {"gate in single precision", &minimax, DTYPE, L0 "block_sparse_moe.gate.weight", "", DTYPE_F32,
     NULL},
    {"multi-token prediction of V3", &v3, ADD, "model.layers.3.shared_head.head.weight", "19,24",
     DTYPE_BF16, NULL},
    {"as made", &qwen, REMOVE, "none", "", 0, NULL},
    {"half precision head", &qwen, DTYPE, "lm_head.weight", "", DTYPE_F16, NULL},
    {"single precision norm", &mixtral, DTYPE, "model.norm.weight", "", DTYPE_F32, NULL},
    {"scales as F8_E8M0", &mxfp4, DTYPE, L0 "mlp.experts.down_proj_scales", "", DTYPE_F8_E8M0,
     NULL},
    {"blocks as I8", &mxfp4, DTYPE, L0 "mlp.experts.down_proj_blocks", "", DTYPE_I8, NULL},
    {"multi-token prediction layer", &mixtral, ADD, "model.layers.2.eh_proj.weight", "24,48",
     DTYPE_BF16, NULL},
    {"multi-token prediction module", &qwen, ADD, "mtp.fc.weight", "24,48", DTYPE_BF16, NULL},
    {"stored frequencies", &mixtral, ADD, L0 "self_attn.rotary_emb.inv_freq", "5", DTYPE_F32, NULL},
    {"vision tower", &qwen, ADD, "visual.patch.weight", "4,4", DTYPE_BF16, NULL},
    {"tied, head there as well", &tied, ADD, "lm_head.weight", "19,24", DTYPE_BF16, NULL},
};

static int parse_shape(const char *text, int64_t *shape)
{
    int n = 0;
    for (char *at = (char *)(uintptr_t)text; *at; n++) {
        shape[n] = strtoll(at, &at, 10);
        at += *at == ',';
    }
    return n;
}

static int64_t product(const MadeTensor *t)
{
    int64_t n = dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static void apply(const Case *c, MadeModel *m)
{
    int64_t shape[4] = {0};
    MadeTensor *t = made_find(m, c->tensor);
    switch (c->edit) {
    case REMOVE:
        made_remove(m, c->tensor);
        return;
    case RENAME:
        snprintf(t->name, sizeof t->name, "%s", c->text);
        return;
    case DTYPE:
        t->dtype = c->dtype;
        break;
    case RESHAPE:
        t->n_dims = parse_shape(c->text, t->shape);
        break;
    case ADD:
        made_add(m, c->tensor, c->dtype, parse_shape(c->text, shape), shape, 1);
        return;
    }
    t->bytes = product(t);
}

/* Writes the edited checkpoint and opens it. */
static Status open_case(const Case *c, const char *dir, Arch *arch, Checkpoint *out, Err *e)
{
    MadeModel m;
    GenerationDefaults gen;
    *arch = (Arch){0};
    *out = (Checkpoint){0};
    temp_dir_fresh(dir);
    TRY(made_create(c->spec, &m, e));
    apply(c, &m);
    Status st = made_write(&m, dir, 0, e);
    made_free(&m);
    TRY(st);
    TRY(arch_load(dir, NULL, 0, arch, &gen, e));
    return checkpoint_open(dir, arch, out, e);
}

static int check_case(const Case *c, const char *dir)
{
    Arch arch;
    Checkpoint cp;
    Err e = {0};
    Status st = open_case(c, dir, &arch, &cp, &e);
    int failed;
    if (c->message) {
        failed = check_int(c->name, st, ST_INPUT) + check_has(c->name, e.text, c->message);
    } else {
        failed = st == ST_OK ? 0 : check_str(c->name, e.text, "");
        failed += check_int(c->name, cp.n_skipped, c->edit == ADD);
        for (int i = 0; i < cp.files.n; i++)
            if (strcmp(cp.files.entries[i]->name, c->tensor) == 0)
                failed +=
                    check_int("skipped for a reason", cp.use[i].skipped != NULL, c->edit == ADD);
    }
    checkpoint_close(&cp);
    arch_free(&arch);
    return failed;
}

/* A tied model whose files hold a head: no word where it is the embedding, a warning where it is
 * not. */
static int check_tied(const char *dir)
{
    int failed = 0;
    for (int differs = 0; differs < 2; differs++) {
        MadeModel m;
        Arch arch;
        GenerationDefaults gen;
        Checkpoint c;
        Err e = {0};
        int64_t shape[] = {19, 24};
        temp_dir_fresh(dir);
        if (made_create(&tied, &m, &e) != ST_OK)
            return check_str("tied", e.text, "");
        if (differs) {
            made_add(&m, "lm_head.weight", DTYPE_BF16, 2, shape, 1);
        } else { /* constants, so that both hold the same */
            made_add(&m, "lm_head.weight", DTYPE_BF16, 2, shape, 0);
            made_find(&m, "model.embed_tokens.weight")->std = 0;
        }
        int before = log_warnings();
        if (made_write(&m, dir, 0, &e) != ST_OK ||
            arch_load(dir, NULL, 0, &arch, &gen, &e) != ST_OK ||
            checkpoint_open(dir, &arch, &c, &e) != ST_OK)
            return check_str("tied", e.text, "");
        failed += check_int("opening reads headers only", log_warnings() - before, 0);
        checkpoint_check_tied(&c);
        failed +=
            check_int(differs ? "another head" : "the same head", log_warnings() - before, differs);
        failed += check_true("the embedding is used", c.head.weight == c.embed.weight);
        checkpoint_close(&c);
        arch_free(&arch);
        made_free(&m);
    }
    return failed;
}

/* The text model of a wrapper: every name has a prefix, the head's another one than the rest, and
 * the vision tower is left alone. */
static int check_wrapped(const char *dir)
{
    MadeModel m;
    Arch arch = {0};
    GenerationDefaults gen;
    Checkpoint c = {0};
    Err e = {0};
    int64_t shape[] = {4, 4};
    int failed = 0;
    temp_dir_fresh(dir);
    if (made_create(&v3, &m, &e) != ST_OK)
        return check_str("wrapped", e.text, "");
    for (int i = 0; i < m.n; i++) {
        char name[sizeof m.tensors[i].name];
        snprintf(name, sizeof name, "language_model.%.100s", m.tensors[i].name);
        memcpy(m.tensors[i].name, name, sizeof name);
    }
    made_add(&m, "vision_tower.patch.weight", DTYPE_BF16, 2, shape, 1);
    made_add(&m, "mm_projector.proj.0.weight", DTYPE_BF16, 2, shape, 1);
    if (made_write(&m, dir, 0, &e) != ST_OK || arch_load(dir, NULL, 0, &arch, &gen, &e) != ST_OK ||
        checkpoint_open(dir, &arch, &c, &e) != ST_OK)
        failed += check_str("wrapped", e.text, "");
    failed += check_int("towers are skipped", c.n_skipped, 2);
    checkpoint_close(&c);
    arch_free(&arch);
    made_free(&m);
    return failed;
}

/* Overwrites a byte of the file, or cuts it there; at counts from the end. */
static void damage(const char *dir, long at, int byte, bool cut)
{
    char path[64];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    if (!f || fseek(f, -at, SEEK_END) != 0)
        abort();
    long where = ftell(f);
    if (!cut)
        fputc(byte, f);
    fclose(f);
    if (cut && truncate(path, where) != 0)
        abort();
}

static Status load(const char *dir, int rank, int n_ranks, Err *e)
{
    Arch arch = {0};
    GenerationDefaults gen;
    Placement placement = {0};
    Backend *backend = NULL;
    Weights w;
    Status st;
    TRY_GOTO(arch_load(dir, NULL, 0, &arch, &gen, e));
    TRY_GOTO(placement_create(&placement, arch.router.n_experts, n_ranks, e));
    TRY_GOTO(fake_backend_create(&backend, e));
    st = weights_load(&(WeightsConfig){dir, NULL, &arch, &(Precision){0}, &placement, rank,
                                       &fake_backend, backend, NULL},
                      &w, e);
    if (st == ST_OK)
        weights_free(&w);
fail:
    if (fake_backend_destroy(backend) != 0)
        st = err_set(e, ST_MEMORY, "backend memory was not given back");
    placement_free(&placement);
    arch_free(&arch);
    return st;
}

/* Damage that only reading finds: a scale that is no number, on the rank that owns the expert and
 * on no other. */
static int check_scales(const char *dir)
{
    MadeModel m;
    Err e = {0};
    int failed = 0;
    temp_dir_fresh(dir);
    if (made_create(&mxfp4, &m, &e) != ST_OK)
        return check_str("scales", e.text, "");
    MadeTensor *t = made_find(&m, L1 "mlp.experts.down_proj_scales");
    MadeTensor moved = *t;
    made_remove(&m, moved.name);
    m.tensors[m.n++] = moved; /* the file ends with it: 3 experts of [64, 3] */
    failed += check_int("write", made_write(&m, dir, 0, &e), ST_OK);
    failed += check_int("as made", load(dir, 0, 1, &e), ST_OK);
    damage(dir, 4, 255, false);
    failed += check_int("the owner", load(dir, 2, 3, &e), ST_INPUT);
    failed += check_has(
        "says where", e.text,
        "model.safetensors: tensor \"model.layers.1.mlp.experts.down_proj_scales\": scale "
        "[2, 62, 2] is 255 (not a number), expected 0 to 254");
    failed += check_int("another rank", load(dir, 1, 3, &e), ST_OK);
    failed += check_int("a rank without experts", load(dir, 4, 5, &e), ST_OK);
    damage(dir, 4, 254, false);
    failed += check_int("254 is a number", load(dir, 2, 3, &e), ST_OK);
    damage(dir, 1, 0, true);
    failed += check_int("a file cut by one byte", load(dir, 1, 3, &e), ST_INPUT);
    failed += check_has(
        "says where", e.text,
        "model.safetensors: tensor \"model.layers.1.mlp.experts.down_proj_scales\": data ends "
        "at byte");
    made_free(&m);
    return failed;
}

/* MXFP4 needs whole blocks. */
static int check_blocks(const char *dir)
{
    MadeSpec spec = mxfp4;
    spec.inter = 48;
    const Case c = {
        "half a block", &spec, REMOVE, "none", "", 0, "in multiples of 32, but one is 48"};
    return check_case(&c, dir);
}

static int check_digests(const char *dir)
{
    static const struct {
        const char *file;
        bool model, tokenizer; /* whether the digest notices */
    } changes[] = {{"config.json", true, false},           {"tokenizer.json", true, true},
                   {"tiktoken.model", true, true},         {"own.tiktoken", true, true},
                   {"generation_config.json", true, true}, {"notes.txt", false, false}};
    MadeModel m;
    Err e = {0};
    char path[64], before[65], after[65], tokens[65], tokens_after[65];
    int failed = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        temp_dir_fresh(dir);
        failed += check_int("make", made_create(&qwen, &m, &e), ST_OK);
        failed += check_int("write", made_write(&m, dir, 20000, &e), ST_OK);
        failed += check_int("digest", weights_digest(dir, before, &e), ST_OK);
        failed += check_int("digest", weights_digest(dir, after, &e), ST_OK);
        failed += check_str("the same again", after, before);
        failed += check_int("length", (int64_t)strlen(before), 64);
        failed += check_int("digest", tokenizer_digest(dir, tokens, &e), ST_OK);
        snprintf(path, sizeof path, "%s/%s", dir, changes[i].file);
        temp_dir_put(path, "{}", 2);
        failed += check_int("digest", weights_digest(dir, after, &e), ST_OK);
        failed += check_int("digest", tokenizer_digest(dir, tokens_after, &e), ST_OK);
        failed += check_int(changes[i].file, strcmp(before, after) != 0, changes[i].model);
        failed +=
            check_int(changes[i].file, strcmp(tokens, tokens_after) != 0, changes[i].tokenizer);
        made_free(&m);
    }
    /* Another seed changes values and nothing else. */
    MadeSpec other = qwen;
    other.seed++;
    temp_dir_fresh(dir);
    failed += check_int("make", made_create(&other, &m, &e), ST_OK);
    failed += check_int("write", made_write(&m, dir, 20000, &e), ST_OK);
    failed += check_int("digest", weights_digest(dir, after, &e), ST_OK);
    failed += check_true("other values, other digest", strcmp(before, after) != 0);
    made_free(&m);
    temp_dir_fresh(dir);
    failed += check_int("no checkpoint", weights_digest(dir, after, &e), ST_IO);
    return failed;
}

int main(void)
{
    const char *dir = "model";
    int failed = 0;
    temp_dir_enter();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += check_case(&cases[i], dir);
    failed += check_wrapped(dir);
    failed += check_tied(dir) + check_scales(dir) + check_blocks(dir) + check_digests(dir);
    return test_result(failed);
}
