/* tests/model/test_quantize.c - checkpoints written by the quantizer, against nvidia-modelopt's
 * exports of the same models: of a trained one, what its weights decode to; of the reference
 * checkpoints of several families, every tensor's name, type, shape and bytes
 * (tests/data/quant/exports.json). */
#include "model/quantize.h"

#include "io/digest.h"
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

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const TensorEntry *const *)a)->name, (*(const TensorEntry *const *)b)->name);
}

static Status add_tensor(Sha256 *s, const TensorEntry *t, Err *e)
{
    char line[500], shape[100];
    tensor_shape_text(shape, sizeof shape, t->n_dims, t->shape);
    snprintf(line, sizeof line, "%s %s %s\n", t->name, dtype_name(t->dtype), shape);
    TRY(sha256_add(s, line, strlen(line), e));
    return sha256_add(s, t->data, (size_t)t->bytes, e);
}

/* Over all quantized weights and their scales, as the file's script does. */
static Status digest(const char *dir, int64_t *n, char *hex, Err *e)
{
    TensorSet set = {0};
    Sha256 *s = NULL;
    uint8_t sum[32];
    const TensorEntry **order = NULL;
    Status st;
    *n = 0;
    TRY_GOTO(tensor_set_open(dir, &set, e));
    TRY_GOTO(sha256_create(&s, e));
    order = malloc((size_t)set.n * sizeof *order);
    if (!order)
        exit(1);
    for (int i = 0; i < set.n; i++) {
        const TensorEntry *t = set.entries[i];
        if (strstr(t->name, "weight_scale") || t->dtype == DTYPE_U8 || t->dtype == DTYPE_F8_E4M3 ||
            t->dtype == DTYPE_I32)
            order[(*n)++] = t;
    }
    qsort(order, (size_t)*n, sizeof *order, by_name);
    for (int64_t i = 0; i < *n; i++)
        TRY_GOTO(add_tensor(s, order[i], e));
    TRY_GOTO(sha256_end(s, sum, e));
    hex_of(sum, sizeof sum, hex);
fail:
    free(order);
    sha256_free(s);
    tensor_set_close(&set);
    return st;
}

static int test_families(const char *shared)
{
    char path[4096];
    TestJson j;
    Err e = {0};
    int failed = 0, number = 0;
    test_path(path, sizeof path, "%s/tests/data/quant/exports.json", getenv("SOURCE"));
    if (!test_json_open(&j, path))
        exit(1);
    for (const JsonValue *row = j.value->child; row; row = row->next, number++) {
        const char *source = test_text(row, "source"), *recipe = test_text(row, "recipe");
        char model[4096], out[20], name[200], hex[65] = "";
        int64_t n = 0, want = 0;
        Observer seen = {0};
        QuantizeResult r;
        bool calibrated = strcmp(recipe, "mxfp8") != 0 && strcmp(recipe, "fp8-dynamic") != 0 &&
                          !strstr(recipe, "int4");
        snprintf(name, sizeof name, "%s as %s", source, test_text(row, "config"));
        snprintf(out, sizeof out, "export%d", number);
        test_path(model, sizeof model, "%s/goldens/%s", shared, source);
        if (recipe[0] == '{') {
            temp_dir_put("rules.json", recipe, strlen(recipe));
            recipe = "rules.json";
        }
        Status st = see(&seen, 8, 64, &e); /* as many as any of them has */
        if (st == ST_OK)
            st = quantize(model, out, recipe, calibrated ? &seen : NULL, &r, &e);
        if (st == ST_OK)
            st = digest(out, &n, hex, &e);
        if (st != ST_OK)
            failed += check_str(name, e.text, "a checkpoint");
        json_int64(json_get(row, "tensors"), &want);
        failed += check_int(name, n, want);
        failed += check_str(name, hex, test_text(row, "sha256"));
        observer_free(&seen);
    }
    test_json_close(&j);
    return failed + check_true("several exports", number >= 8);
}

/* MXFP4 as NVFP4 and as bf16: every value stays what it was. */
static int test_lossless(const char *shared)
{
    static const char *const sources[] = {"qwen3_moe-mxfp4", "qwen3_moe-ct_mxfp4",
                                          "qwen3_moe-ct_mxfp4_e8m0"};
    static const char *const formats[] = {"w4a16_nvfp4", "bf16"};
    int failed = 0;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        for (size_t j = 0; j < sizeof formats / sizeof *formats; j++) {
            char path[4096], model[4096], out[20];
            TestJson json;
            QuantizeResult r;
            Err e = {0};
            snprintf(out, sizeof out, "lossless%d", (int)(2 * i + j));
            test_path(model, sizeof model, "%s/goldens/%s", shared, sources[i]);
            test_path(path, sizeof path, "%s/decoded.json", model);
            if (!test_json_open(&json, path))
                exit(1);
            if (quantize(model, out, formats[j], NULL, &r, &e) != ST_OK) {
                failed += check_str(sources[i], e.text, "a checkpoint");
            } else {
                failed += check_decoded(out, json.value);
                failed += check_int("taken over", r.not_lossless, 0);
            }
            test_json_close(&json);
        }
    return failed;
}

int main(void)
{
    const char *shared = test_shared();
    if (!shared)
        return test_skip("no reference data (SHARED)");
    if (!getenv("SOURCE"))
        return test_skip("SOURCE is not set");
    temp_dir_enter();
    return test_result(test_exports(shared) + test_families(shared) + test_lossless(shared));
}
