/* tests/model/test_quantize.c - checkpoints written by the quantizer, read back: a trained model whose
 * weights must decode to what nvidia-modelopt's exports of it decode to. */
#include "model/quantize.h"

#include "io/log.h"
#include "model/checkpoint.h"
#include "tests/support/check.h"
#include "tests/support/files.h"
#include "tests/support/quant_case.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As if calibration had seen the same everywhere; experts that no token reached: the second's. */
static Status see(Observer *o, int n_layers, int n_experts, Err *e)
{
    TRY(observer_create(o, n_layers, n_experts, e));
    for (int i = 0; i < n_layers; i++) {
        LayerSeen *l = &o->layers[i];
        l->attn_in = l->q_low = l->latent = l->attn_out = l->ffn_in = 3;
        l->dense_inner = l->shared_inner = l->key = l->value = 3;
        for (int x = 0; x < n_experts; x++) {
            l->expert_in[x] = x == 1 ? 0 : 5;
            l->expert_inner[x] = x == 1 ? 0 : 7;
        }
    }
    o->head_in = 3;
    return ST_OK;
}

static Status quantize(const char *model, const char *out, const char *recipe, const Observer *seen,
                       QuantizeResult *r, Err *e)
{
    Comm comm = {.size = 1, .n_local = 1};
    const QuantizeJob job = {.model = model,
                             .out = out,
                             .recipe = recipe,
                             .seen = seen,
                             .kv_fp8 = seen != NULL,
                             .part_bytes = 5 << 20,
                             .quiet = true};
    return quantize_run(&job, &comm, r, e);
}

/* The linear layer of that name in a checkpoint, or NULL. */
static const LinearTensors *find_linear(const Checkpoint *c, int n_experts, const char *weight)
{
    for (int i = 0; i < c->n_layers; i++) {
        const LayerTensors *t = &c->layers[i];
        const LinearTensors *all[] = {&t->q, &t->k, &t->v, &t->o};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            if (strcmp(all[j]->weight->name, weight) == 0)
                return all[j];
        for (int x = 0; x < 3 * n_experts; x++)
            if (strcmp(t->experts.gate[x].weight->name, weight) == 0)
                return &t->experts.gate[x];
    }
    return NULL;
}

static int check_decoded(const char *dir, const JsonValue *digests)
{
    GenerationDefaults generation;
    Arch arch = {0};
    Checkpoint c = {0};
    Err e = {0};
    int failed = 0;
    if (arch_load(dir, NULL, 0, &arch, &generation, &e) != ST_OK ||
        checkpoint_open(dir, &arch, &c, &e) != ST_OK)
        failed += check_str(dir, e.text, "a checkpoint");
    for (const JsonValue *m = failed ? NULL : digests->child; m; m = m->next) {
        const LinearTensors *t = find_linear(&c, arch.router.n_experts, m->key);
        QuantTensor q;
        if (!t || linear_view(&c.files, t, 0, &q, &e) != ST_OK) {
            failed += check_true(m->key, false);
            continue;
        }
        float *values = malloc((size_t)(q.rows * q.cols) * sizeof *values);
        if (!values)
            exit(1);
        quant_decode(&q, values);
        failed += check_sha256(m->key, values, 4 * q.rows * q.cols, m->text);
        free(values);
    }
    checkpoint_close(&c);
    arch_free(&arch);
    return failed;
}

static float scalar(const char *dir, const char *name)
{
    TensorSet set;
    Err e;
    float v = -1;
    if (tensor_set_open(dir, &set, &e) != ST_OK)
        return -1;
    const TensorEntry *t = tensor_set_find(&set, name);
    if (t && t->dtype == DTYPE_F32 && t->n_dims == 0)
        memcpy(&v, t->data, sizeof v);
    tensor_set_close(&set);
    return v;
}

static int test_exports(const char *shared)
{
    static const struct {
        const char *export, *recipe;
        bool calibrated;
    } cases[] = {
        {"fp8", "fp8", true},
        {"fp8_pcpt", "fp8", false},
        {"fp8_pb_wo", "fp8-block", false},
        {"nvfp4", "nvfp4", true},
        {"nvfp4", "w4a16_nvfp4", false},
        {"mxfp8", "mxfp8", false},
        {"mixed",
         "{\"rules\": [{\"match\": \"experts\", \"format\": \"nvfp4\"},"
         " {\"match\": \"attention\", \"format\": \"fp8\"}]}",
         true},
        {"mxfp4", "{\"rules\": [{\"match\": \"experts\", \"format\": \"mxfp4\"}]}", false},
        {"nvfp4_experts",
         "{\"rules\": [{\"match\": \"model.layers.*.mlp.experts\","
         " \"format\": \"nvfp4\"}]}",
         true},
    };
    char path[4096], model[4096];
    TestJson j;
    Observer seen = {0};
    Err e = {0};
    int failed = 0;
    test_path(path, sizeof path, "%s/models/quant_digests.json", shared);
    test_path(model, sizeof model, "%s/models/storyteller-qwen3_moe", shared);
    if (!test_json_open(&j, path) || see(&seen, 4, 16, &e) != ST_OK)
        exit(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        QuantizeResult r;
        char out[20];
        const char *recipe = cases[i].recipe;
        snprintf(out, sizeof out, "out%d", (int)i);
        if (recipe[0] == '{') {
            temp_dir_put("rules.json", recipe, strlen(recipe));
            recipe = "rules.json";
        }
        if (quantize(model, out, recipe, cases[i].calibrated ? &seen : NULL, &r, &e) != ST_OK) {
            failed += check_str(cases[i].recipe, e.text, "a checkpoint");
            continue;
        }
        const JsonValue *digests = json_get(j.value, cases[i].export);
        failed += check_int("matrices", r.matrices, (int64_t)digests->len);
        failed += check_true("parts", r.parts >= 3 && r.parts <= 5);
        failed += check_decoded(out, digests);
    }
    /* 3, 5 and 7 were seen; the second expert takes its layer's. */
    static const struct {
        const char *dir, *name;
        float want;
    } scales[] = {
        {"out0", "model.layers.1.self_attn.q_proj.input_scale", 3.0f / 448},
        {"out0", "model.layers.0.mlp.experts.0.gate_proj.input_scale", 5.0f / 448},
        {"out0", "model.layers.0.mlp.experts.1.up_proj.input_scale", 5.0f / 448},
        {"out0", "model.layers.3.mlp.experts.1.down_proj.input_scale", 7.0f / 448},
        {"out0", "model.layers.2.self_attn.k_proj.k_scale", 3.0f / 448},
        {"out0", "model.layers.2.self_attn.v_proj.v_scale", 3.0f / 448},
        {"out1", "model.layers.1.self_attn.q_proj.input_scale", -1},
        {"out3", "model.layers.0.mlp.experts.2.down_proj.input_scale", 7.0f / 2688},
        {"out4", "model.layers.0.mlp.experts.2.down_proj.input_scale", -1},
        {"out6", "model.layers.1.self_attn.o_proj.input_scale", 3.0f / 448},
        {"out6", "model.layers.1.mlp.experts.0.up_proj.input_scale", 5.0f / 2688},
    };
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        failed +=
            check_near(scales[i].name, scalar(scales[i].dir, scales[i].name), scales[i].want, 0);
    test_json_close(&j);
    observer_free(&seen);
    return failed;
}

int main(void)
{
    const char *shared = test_shared();
    if (!shared)
        return test_skip("no reference data (SHARED)");
    temp_dir_enter();
    return test_result(test_exports(shared));
}
