/* tests/model/test_inspect.c - what inspect says of a checkpoint against what loading it reads:
 * the same bytes on every rank; and tensors and keys that are left aside. */
#include "model/inspect.h"

#include "model/weights.h"
#include "tests/support/check.h"
#include "tests/support/fake_backend.h"
#include "tests/support/made_model.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <string.h>

static const struct {
    MadeSpec spec;
    int n_sparse;
    int64_t params, active, kv, kv_window;
} cases[] = {
    /* embedding and head 2 x 19 x 24; each layer: norms 48, q 40 x 24, k and v 20 x 24 each, o 24 x
     * 40, norms of heads 20; dense 3 x 16 x 24; sparse: router 5 x 24, experts 5 x 3 x 8 x 24 */
    {{"qwen3_moe", 24, 8, 5, 2, 2, 19, 4, 2, 10, DTYPE_BF16, .dense_layer = 1, .seed = 1},
     1,
     912 + 24 + 2 * (48 + 960 + 960 + 960 + 20) + 1152 + 120 + 2880,
     912 + 24 + 2 * (48 + 960 + 960 + 960 + 20) + 1152 + 120 + 1152,
     2 * 40,
     0},
    /* the embedding once; stacks in float32 */
    {{"granitemoe", 24, 8, 5, 2, 2, 19, 4, 2, 6, DTYPE_F32, .tied = true, .dense_layer = -1,
      .seed = 2},
     2,
     456 + 24 + 2 * (48 + 576 + 576 + 576 + 120 + 2880),
     456 + 24 + 2 * (48 + 576 + 576 + 576 + 120 + 1152),
     2 * 24,
     0},
    /* two weights in a byte, and scales that are none; biases of heads, router and experts */
    {{"gpt_oss", 64, 96, 3, 1, 2, 11, 4, 2, 6, DTYPE_BF16, .mxfp4 = true, .dense_layer = -1,
      .seed = 3},
     2,
     1408 + 64 + 2 * (128 + 48 * 64 + 48 + 24 * 64 + 64 + 4 + 192 + 3 + 3 * (18432 + 192 + 64)),
     1408 + 64 + 2 * (128 + 48 * 64 + 48 + 24 * 64 + 64 + 4 + 192 + 3 + 18432 + 192 + 64),
     2 * 24,
     24},
    /* latent attention: 20 x 24, norm 20, q 27 x 20, kv_a 18 x 24, norm 14, kv_b 36 x 14, o 24 x
     * 21; two dense layers; a shared expert of two; the correction */
    {{"deepseek_v3",
      24,
      8,
      6,
      3,
      3,
      19,
      3,
      1,
      0,
      DTYPE_F16,
      .dense_layer = 1,
      .seed = 4,
      .q_lora = 20,
      .kv_lora = 14,
      .nope = 5,
      .rope = 4,
      .v_dim = 7,
      .n_shared = 2,
      .n_group = 3,
      .topk_group = 2},
     1,
     912 + 24 + 3 * (48 + 480 + 20 + 540 + 432 + 14 + 504 + 504) + 2 * 1152 + 144 + 6 + 1152 + 3456,
     912 + 24 + 3 * (48 + 480 + 20 + 540 + 432 + 14 + 504 + 504) + 2 * 1152 + 144 + 6 + 1152 + 1728,
     3 * 18,
     0},
    {{"llama", 24, 8, 0, 0, 2, 19, 4, 2, 6, DTYPE_BF16, .tied = true, .dense_layer = -1, .seed = 5},
     0,
     456 + 24 + 2 * (48 + 576 + 576 + 576 + 1152),
     456 + 24 + 2 * (48 + 576 + 576 + 576 + 1152),
     2 * 24,
     0},
};

/* What rank reads while it loads. */
static int64_t bytes_read(const char *dir, const Arch *arch, int rank, int n_ranks, Err *e)
{
    Placement placement = {0};
    Backend *backend = NULL;
    Weights w = {0};
    int64_t bytes = -1;
    if (placement_create(&placement, arch->router.n_experts, n_ranks, e) == ST_OK &&
        fake_backend_create(&backend, e) == ST_OK &&
        weights_load(&(WeightsConfig){dir, NULL, arch, &(Precision){0}, &placement, rank,
                                      &fake_backend, backend, NULL},
                     &w, e) == ST_OK)
        bytes = w.bytes_read;
    weights_free(&w);
    fake_backend_destroy(backend);
    placement_free(&placement);
    return bytes;
}

static int check_case(size_t n, const char *dir)
{
    enum { RANKS = 4 };
    MadeModel m;
    Inspection s;
    Err e = {0};
    const char *name = cases[n].spec.family;
    int failed = 0;
    int64_t file_bytes = 0;
    temp_dir_fresh(dir);
    if (made_create(&cases[n].spec, &m, &e) != ST_OK || made_write(&m, dir, 3000, &e) != ST_OK ||
        inspect_open(dir, NULL, 0, RANKS, &s, &e) != ST_OK)
        return check_str(name, e.text, "");
    for (int i = 0; i < m.n; i++)
        file_bytes += m.tensors[i].bytes;
    failed += check_int(name, s.n_sparse, cases[n].n_sparse);
    failed += check_int(name, s.n_tensors, m.n);
    failed += check_true(name, s.n_parts > 1);
    failed += check_int("parameters", s.dense.params + s.experts.params, cases[n].params);
    failed += check_int("active", s.active_params, cases[n].active);
    failed += check_int("bytes", s.dense.bytes + s.experts.bytes, file_bytes);
    failed += check_int("KV", s.kv_values, cases[n].kv);
    failed += check_int("KV in windows", s.window_kv_values, cases[n].kv_window);
    failed += check_int("nothing is skipped", s.skipped.n, 0);
    failed += check_true("no unknown key", !s.unknown_keys);
    for (int r = 0; r < RANKS; r++)
        failed += check_int("a rank holds what it reads",
                            s.ranks[r].dense_bytes + s.ranks[r].expert_bytes,
                            bytes_read(dir, &s.arch, r, RANKS, &e));
    inspect_close(&s);
    inspect_close(&s);
    made_free(&m);
    if (failed)
        fprintf(stderr, "in %s\n", name);
    return failed;
}

static int check_skipped(const char *dir)
{
    static const struct {
        const char *name;
        TensorDtype dtype;
        int64_t bytes;
    } extra[] = {{"model.layers.2.eh_proj.weight", DTYPE_BF16, 24},
                 {"mtp.norm.weight", DTYPE_F32, 48},
                 {"vision_tower.patch", DTYPE_BF16, 24}};
    MadeModel m;
    Inspection s;
    Err e = {0};
    const int64_t shape[] = {12};
    int failed = 0;
    temp_dir_fresh(dir);
    if (made_create(&cases[0].spec, &m, &e) != ST_OK)
        return check_str("skipped", e.text, "");
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++)
        made_add(&m, extra[i].name, extra[i].dtype, 1, shape, 1);
    if (made_write(&m, dir, 0, &e) != ST_OK || inspect_open(dir, NULL, 0, 1, &s, &e) != ST_OK)
        return check_str("skipped", e.text, "");
    failed += check_int("reasons", s.skipped.n, 2);
    failed += check_str("the first", s.skipped.at[0].name, "multi-token prediction");
    failed += check_int("of it", s.skipped.at[0].n, 2);
    failed += check_int("their bytes", s.skipped.at[0].bytes, 72);
    failed += check_str("the second", s.skipped.at[1].name, "not part of the text model");
    failed += check_int("are no parameters", s.dense.params + s.experts.params, cases[0].params);
    inspect_close(&s);
    made_free(&m);
    return failed;
}

/* Replaces dir/config.json by the made one with keys in front. */
static int check_keys(const char *dir, const char *keys, const char *accept, const char *want,
                      const char *message)
{
    MadeModel m;
    Inspection s = {0};
    Err e = {0};
    StrBuf text = {0};
    char path[64];
    int failed = 0;
    temp_dir_fresh(dir);
    if (made_create(&cases[0].spec, &m, &e) != ST_OK || made_write(&m, dir, 0, &e) != ST_OK)
        return check_str("keys", e.text, "");
    strbuf_fmt(&text,
               "{%s\"model_type\": \"qwen3_moe\", \"hidden_size\": 24, \"num_hidden_layers\": 2, "
               "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 10, "
               "\"vocab_size\": 19, \"max_position_embeddings\": 64, \"num_experts\": 5, "
               "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8, \"intermediate_size\": "
               "16, \"mlp_only_layers\": [1]}",
               keys);
    snprintf(path, sizeof path, "%s/config.json", dir);
    temp_dir_put(path, text.data, text.len);
    Status st = inspect_open(dir, &accept, accept ? 1 : 0, 1, &s, &e);
    if (message)
        failed += check_int(keys, st, ST_INPUT) + check_has(keys, e.text, message);
    else
        failed += check_str(keys, st == ST_OK ? "" : e.text, "");
    failed += check_str(keys, s.unknown_keys ? s.unknown_keys : "", want);
    inspect_close(&s);
    strbuf_free(&text);
    made_free(&m);
    return failed;
}

int main(void)
{
    const char *dir = "model";
    Inspection s;
    Err e = {0};
    int failed = 0;
    temp_dir_enter();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += check_case(i, dir);
    failed += check_skipped(dir);
    failed += check_keys(dir, "", NULL, "", NULL);
    failed += check_keys(dir,
                         "\"soft_cap\": null, \"mup\": false, \"use_cache\": true, "
                         "\"extras\": {\"a\": 0}, \"rope_scaling\": {\"type\": \"default\", "
                         "\"sections\": []}, ",
                         NULL, "", "unknown key \"extras\"");
    failed += check_keys(dir,
                         "\"soft_cap\": null, \"rope_scaling\": {\"type\": \"default\", "
                         "\"sections\": []}, ",
                         NULL, "soft_cap\nrope_scaling.sections\n", NULL);
    failed += check_keys(dir, "\"soft_cap\": 30, ", NULL, "", "unknown key \"soft_cap\"");
    failed += check_keys(dir, "\"soft_cap\": 30, ", "soft_cap", "", NULL);
    temp_dir_fresh(dir);
    failed += check_int("nothing there", inspect_open(dir, NULL, 0, 1, &s, &e), ST_IO);
    return test_result(failed);
}
