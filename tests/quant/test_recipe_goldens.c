/* tests/quant/test_recipe_goldens.c - the configurations that exporters wrote, against the tensors
 * that they wrote with them: a module has a scheme exactly where its weight has no plain type, and
 * every tensor that the scheme names is there. */
#include "io/tensor_set.h"
#include "quant/recipe.h"
#include "tests/support/check.h"
#include "tests/support/files.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *dir, *name;
    int quantized; /* weights, where decoded.json does not say */
    KvAlgo kv;
} cases[] = {
    {"goldens/deepseek_v3-ct_int4", "compressed-tensors pack-quantized", 0, KV_ALGO_NONE},
    {"goldens/deepseek_v3-fp8", "modelopt FP8", 0, KV_ALGO_NONE},
    {"goldens/deepseek_v3-fp8_block", "fp8 128x128", 0, KV_ALGO_NONE},
    {"goldens/deepseek_v3-nvfp4", "modelopt NVFP4", 0, KV_ALGO_NONE},
    {"goldens/glm4_moe-ct_fp8_dynamic", "compressed-tensors float-quantized", 0, KV_ALGO_NONE},
    {"goldens/glm4_moe-fp8", "modelopt FP8", 0, KV_ALGO_NONE},
    {"goldens/glm4_moe-nvfp4", "modelopt NVFP4", 0, KV_ALGO_NONE},
    {"goldens/gpt_oss-fp8", "modelopt FP8", 0, KV_ALGO_NONE},
    {"goldens/gpt_oss-mxfp4", "mxfp4", 4, KV_ALGO_NONE},
    {"goldens/gpt_oss-nvfp4", "modelopt NVFP4", 0, KV_ALGO_NONE},
    {"goldens/minimax_m2-mxfp8", "modelopt MXFP8", 0, KV_ALGO_NONE},
    {"goldens/minimax_m2-mxfp8_inv", "mxfp8", 0, KV_ALGO_NONE},
    {"goldens/minimax_m2-nvfp4", "modelopt NVFP4", 0, KV_ALGO_NONE},
    {"goldens/mixtral-fp8", "modelopt FP8", 0, KV_ALGO_NONE},
    {"goldens/mixtral-nvfp4", "modelopt NVFP4", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-bf16", "none", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_fp8_block", "compressed-tensors float-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_fp8_dynamic", "compressed-tensors float-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_mxfp4", "compressed-tensors mxfp4-pack-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_mxfp4_e8m0", "compressed-tensors mxfp4-pack-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_mxfp8", "compressed-tensors mxfp8-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_nvfp4", "compressed-tensors nvfp4-pack-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ct_nvfp4a16", "compressed-tensors nvfp4-pack-quantized", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-fp8", "modelopt FP8", 0, KV_ALGO_FP8},
    {"goldens/qwen3_moe-fp8_block", "fp8 128x128", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-fp8_pb_wo", "modelopt FP8_PB_WO", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-fp8_pcpt", "modelopt FP8_PER_CHANNEL_PER_TOKEN", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-fp8_uneven", "modelopt FP8", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-ggml", "modelopt MIXED_PRECISION", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-mixed", "modelopt MIXED_PRECISION", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-mxfp4", "modelopt MXFP4", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-mxfp8", "modelopt MXFP8", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-nvfp4", "modelopt NVFP4", 0, KV_ALGO_FP8},
    {"goldens/qwen3_moe-nvfp4_experts", "modelopt NVFP4", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-w4a16_g32", "modelopt W4A16_NVFP4", 0, KV_ALGO_NONE},
    {"goldens/qwen3_moe-w4a16_nvfp4", "modelopt W4A16_NVFP4", 0, KV_ALGO_NONE},
    {"models/storyteller-gpt_oss-mxfp4", "mxfp4", 8, KV_ALGO_NONE},
    {"models/storyteller-qwen3_moe-nvfp4", "modelopt NVFP4", 208, KV_ALGO_FP8},
};

typedef struct Asked {
    const char *shared;
    Recipe *recipe;
    TensorSet files;
    int quantized, failed;
} Asked;

static bool is_plain(TensorDtype d)
{
    return d == DTYPE_BF16 || d == DTYPE_F16 || d == DTYPE_F32;
}

static bool holds(const TensorEntry *t, FormatId format)
{
    switch (format) {
    case FORMAT_FP8:
    case FORMAT_MXFP8:
        return t->dtype == DTYPE_F8_E4M3;
    case FORMAT_INT4:
        return t->dtype == DTYPE_I32;
    default:
        return t->dtype == DTYPE_U8;
    }
}

static void need(Asked *a, const char *module, char joint, const char *name)
{
    char full[512];
    if (!name)
        return;
    test_path(full, sizeof full, "%s%c%s", module, joint, name);
    a->failed += check_true(full, tensor_set_find(&a->files, full) != NULL);
}

static void check_module(Asked *a, const TensorEntry *t, const char *module, const QuantScheme *s,
                         char joint)
{
    if (is_plain(t->dtype) || !s) {
        a->failed += check_true(module, is_plain(t->dtype) && !s);
        return;
    }
    a->quantized++;
    a->failed += check_true(module, holds(t, s->format));
    need(a, module, joint, s->scale);
    need(a, module, joint, s->global);
    need(a, module, joint, s->input);
    need(a, module, joint, s->shape);
}

/* "bank.E.projection" apart. */
static bool in_bank(const char *module, char *bank, size_t size, const char **projection)
{
    const char *at = strstr(module, ".experts.");
    if (!at || !isdigit((unsigned char)at[9]))
        return false;
    test_path(bank, size, "%.*s.experts", (int)(at - module), module);
    *projection = strchr(at + 9, '.') + 1;
    return true;
}

static void ask_expert(Asked *a, const TensorEntry *t, const char *module, const char *bank,
                       const char *projection)
{
    static const char *const sets[][3] = {{"gate_proj", "up_proj", "down_proj"},
                                          {"w1", "w3", "w2"}};
    const char *const *names = sets[projection[0] == 'w'];
    const QuantScheme *out[3];
    Err e;
    char probe[512];
    int n = 0, p = 0;
    for (;; n++) {
        test_path(probe, sizeof probe, "%s.%d.%s.%s", bank, n, names[0], "weight");
        if (!tensor_set_find(&a->files, probe)) {
            test_path(probe, sizeof probe, "%s.%d.%s.%s", bank, n, names[0], "weight_packed");
            if (!tensor_set_find(&a->files, probe))
                break;
        }
    }
    while (strcmp(names[p], projection) != 0)
        p++;
    if (recipe_experts(a->recipe, bank, names, n, false, out, &e) != ST_OK)
        a->failed += check_str(module, e.text, "");
    else
        check_module(a, t, module, out[p], '.');
}

static void ask_stacked(Asked *a, const TensorEntry *t, const char *module, const char *end)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const QuantScheme *out[3];
    char bank[512], projection[512];
    Err e;
    test_path(bank, sizeof bank, "%.*s", (int)(end - module) + 8, module);
    test_path(projection, sizeof projection, "%s.%s", bank,
              strstr(module, "gate_up") ? "gate_up_proj" : "down_proj");
    if (recipe_experts(a->recipe, bank, names, 6, true, out, &e) != ST_OK)
        a->failed += check_str(module, e.text, "");
    else
        check_module(a, t, projection, out[2], '_');
}

static void ask(Asked *a, const TensorEntry *t)
{
    char module[512], bank[512];
    const char *projection, *stacked = strstr(t->name, ".experts.");
    const char *dot = strrchr(t->name, '.');
    const QuantScheme *s = NULL;
    Err e;
    if (t->n_dims < 2)
        return;
    if (stacked && !isdigit((unsigned char)stacked[9])) {
        if (strcmp(t->name + strlen(t->name) - 5, "_proj") == 0 ||
            strcmp(t->name + strlen(t->name) - 7, "_blocks") == 0)
            ask_stacked(a, t, t->name, stacked);
        return;
    }
    if (strcmp(dot, ".weight") != 0 && strcmp(dot, ".weight_packed") != 0)
        return;
    test_path(module, sizeof module, "%.*s", (int)(dot - t->name), t->name);
    if (in_bank(module, bank, sizeof bank, &projection)) {
        ask_expert(a, t, module, bank, projection);
        return;
    }
    Status st = strcmp(module, "model.embed_tokens") == 0
                    ? recipe_embedding(a->recipe, module, &s, &e)
                    : recipe_linear(a->recipe, module, &s, &e);
    if (st != ST_OK)
        a->failed += check_str(module, e.text, "");
    else
        check_module(a, t, module, s, '.');
}

/* Norms and the like stand in some lists. */
static void ask_the_rest(Asked *a)
{
    for (int i = 0; i < a->files.n; i++) {
        const TensorEntry *t = a->files.entries[i];
        const char *dot = strrchr(t->name, '.');
        char module[512];
        const QuantScheme *s;
        Err e;
        if (t->n_dims > 1 || strcmp(dot, ".weight") != 0)
            continue;
        test_path(module, sizeof module, "%.*s", (int)(dot - t->name), t->name);
        if (recipe_linear(a->recipe, module, &s, &e) != ST_OK)
            a->failed += check_str(module, e.text, "");
    }
}

static int decoded_count(const char *dir)
{
    TestJson j;
    char path[4096];
    test_path(path, sizeof path, "%s/decoded.json", dir);
    int n = test_json_open(&j, path) ? (int)j.value->len : 0;
    test_json_close(&j);
    return n;
}

static int check_dir(const char *shared, size_t i)
{
    Asked a = {.shared = shared};
    char dir[4096];
    Err e;
    test_path(dir, sizeof dir, "%s/%s", shared, cases[i].dir);
    if (recipe_load(dir, &a.recipe, &e) != ST_OK)
        return check_str(dir, e.text, "");
    if (tensor_set_open(dir, &a.files, &e) != ST_OK) {
        recipe_free(a.recipe);
        return check_str(dir, e.text, "");
    }
    a.failed += check_str(dir, recipe_name(a.recipe), cases[i].name);
    a.failed += check_int(dir, recipe_kv_algo(a.recipe), cases[i].kv);
    if (recipe_warning(a.recipe, 0))
        a.failed += check_str(dir, recipe_warning(a.recipe, 0), "(no warning)");
    for (int k = 0; k < a.files.n; k++)
        ask(&a, a.files.entries[k]);
    ask_the_rest(&a);
    int want = cases[i].quantized;
    if (!want && strcmp(cases[i].name, "none") != 0)
        want = decoded_count(dir);
    a.failed += check_int(dir, a.quantized, want);
    if (recipe_unused(a.recipe, 0))
        a.failed += check_str(dir, recipe_unused(a.recipe, 0), "(nothing unused)");
    tensor_set_close(&a.files);
    recipe_free(a.recipe);
    return a.failed;
}

int main(void)
{
    const char *shared = test_shared();
    int failed = 0;
    if (!shared)
        return test_skip("no reference data (SHARED)");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += check_dir(shared, i);
    return test_result(failed);
}
