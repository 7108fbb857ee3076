/* tests/jobs/mpi_calibrate.c - magnitudes seen while calibrating, against those that
 * nvidia-modelopt's calibration left in its export of the same model, at any number of ranks.
 *
 * The export was calibrated in the model's bfloat16; ours computes in float32, so that the two
 * agree to a few bfloat16 roundings. */
#include "io/file.h"
#include "io/tensor_set.h"
#include "jobs/calibrate.h"
#include "jobs/perplexity.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512 };
/* models/README.md: what the export was calibrated on. */
static const int starts[] = {0, 36, 72, 108, 144, 180};

/* The calibration windows as rows of input_ids. */
static Status write_rows(const char *dir, const char *text_path, const char *rows_path, Err *e)
{
    Tokenizer *tokenizer = NULL;
    TokenizerCache *cache = NULL;
    TokenIds ids = {0};
    char *text = NULL;
    size_t len = 0;
    Status st;
    FILE *f = fopen(rows_path, "w");
    if (!f)
        return err_set(e, ST_IO, "%s cannot be written", rows_path);
    TRY_GOTO(tokenizer_load(dir, &tokenizer, e));
    TRY_GOTO(tokenizer_cache_create(tokenizer, &cache, e));
    TRY_GOTO(file_read(text_path, 1 << 24, &text, &len, e));
    TRY_GOTO(perplexity_encode(tokenizer, cache, text, len, &ids, e));
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (int w = starts[s]; w < starts[s] + 4; w++) {
            fprintf(f, "{\"input_ids\": [");
            for (int i = 0; i < WINDOW; i++)
                fprintf(f, i ? ",%d" : "%d", ids.ids[w * WINDOW + i]);
            fprintf(f, "]}\n");
        }
fail:
    fclose(f);
    free(text);
    tokenids_free(&ids);
    tokenizer_cache_free(cache);
    tokenizer_free(tokenizer);
    return st;
}

static float scale_of(const TensorSet *files, const char *fmt, int layer, int expert)
{
    char name[128];
    float v = NAN;
    snprintf(name, sizeof name, fmt, layer, expert);
    const TensorEntry *t = tensor_set_find(files, name);
    if (t && t->dtype == DTYPE_F32 && t->bytes == 4)
        memcpy(&v, t->data, 4);
    return v;
}

static int compare(const TensorSet *files, const Observer *seen)
{
    int failed = 0;
    double worst = 0;
    for (int n = 0; n < seen->n_layers; n++) {
        const LayerSeen *s = &seen->layers[n];
        const struct {
            const char *fmt;
            float got;
            double divisor;
        } single[] = {{"model.layers.%d.self_attn.q_proj.input_scale", s->attn_in, 2688},
                      {"model.layers.%d.self_attn.v_proj.input_scale", s->attn_in, 2688},
                      {"model.layers.%d.self_attn.o_proj.input_scale", s->attn_out, 2688},
                      {"model.layers.%d.self_attn.k_proj.k_scale", s->key, 448},
                      {"model.layers.%d.self_attn.v_proj.v_scale", s->value, 448}};
        for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
            double want = (double)scale_of(files, single[i].fmt, n, 0) * single[i].divisor;
            failed += check_near(single[i].fmt, (double)single[i].got / want, 1, 0.02);
            worst = fmax(worst, fabs((double)single[i].got / want - 1));
        }
        /* Experts of a layer share the largest. */
        double in = 0, inner = 0;
        for (int i = 0; i < seen->n_experts; i++) {
            in = fmax(in, s->expert_in[i]);
            inner = fmax(inner, s->expert_inner[i]);
            failed += check_true("an expert's input is one of the layer's",
                                 s->expert_in[i] > 0 && s->expert_in[i] <= s->ffn_in);
        }
        in /= 2688 *
              (double)scale_of(files, "model.layers.%d.mlp.experts.%d.up_proj.input_scale", n, 3);
        inner /= 2688 * (double)scale_of(
                            files, "model.layers.%d.mlp.experts.%d.down_proj.input_scale", n, 3);
        failed += check_near("experts' input", in, 1, 0.02);
        failed += check_near("experts' products", inner, 1, 0.02);
        worst = fmax(worst, fmax(fabs(in - 1), fabs(inner - 1)));
    }
    printf("largest relative difference from ModelOpt's magnitudes: %.3g\n", worst);
    return failed;
}

int main(int argc, char **argv)
{
    char model[FILE_PATH_MAX], export[FILE_PATH_MAX], text[FILE_PATH_MAX], rows[FILE_PATH_MAX];
    Comm comm;
    Err e = {0};
    Calibration c = {0};
    TensorSet files = {0};
    if (comm_start(&argc, &argv, &comm, &e) != ST_OK)
        return 1;
    if (!test_shared()) {
        comm_end(&comm);
        return test_skip("no reference data");
    }
    char dir[TEMP_DIR_MAX];
    int failed = check_true("temporary folder", temp_dir_create(dir));
    snprintf(model, sizeof model, "%s/models/storyteller-qwen3_moe", test_shared());
    snprintf(export, sizeof export, "%s/models/storyteller-qwen3_moe-nvfp4", test_shared());
    snprintf(text, sizeof text, "%s/models/eval.txt", test_shared());
    snprintf(rows, sizeof rows, "%s/rows.jsonl", dir);
    EngineConfig config = {.model_dir = model,
                           .backend = "cpu",
                           .isa = "auto",
                           .threads = 1,
                           .max_batch = 8,
                           .prefill_chunk = 200,
                           .wait_timeout_s = 60};
    Status st = dist_agree(&comm, write_rows(model, text, rows, &e), &e);
    if (st == ST_OK)
        st = calibrate_run(&config, &comm, rows, 0, PROGRESS_NONE, &c, &e);
    if (st == ST_OK)
        st = tensor_set_open(export, &files, &e);
    if (st != ST_OK)
        fprintf(stderr, "%s\n", e.text);
    failed += check_int("calibration", st, ST_OK);
    if (st == ST_OK) {
        failed += check_int("rows", c.n_rows, 24);
        failed += check_int("tokens", c.n_tokens, 24 * WINDOW);
        failed += compare(&files, &c.seen);
    }
    tensor_set_close(&files);
    calibration_free(&c);
    temp_dir_remove(dir);
    comm_end(&comm);
    return test_result(failed);
}
