/* tests/model/mpi_quantize.c - made checkpoints of several families and layouts, quantized by 1
 * to 4 ranks: the files are those that one rank writes, hold what the source holds, and a run
 * that was cut short goes on. */
#include "model/quantize.h"

#include "model/checkpoint.h"
#include "tests/support/check.h"
#include "tests/support/made_model.h"
#include "tests/support/temp_dir.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const MadeSpec qwen2 = {
    "qwen2_moe",   64,       96, 5, 2, 3, 19, 4, 2, 16, DTYPE_BF16, .dense_layer = 1,
    .n_shared = 1, .seed = 1};
static const MadeSpec stacked = {
    "qwen3_moe",       64,       96, 5, 2, 2, 19, 4, 2, 16, DTYPE_F32, .stacked = true,
    .dense_layer = -1, .seed = 2};
static const MadeSpec minimax = {"minimax_m2",      64,       96, 3, 2, 2, 19, 4, 2, 16, DTYPE_BF16,
                                 .dense_layer = -1, .seed = 3};
static const MadeSpec oss = {"gpt_oss",         64,       96, 3, 1, 2, 19, 4, 2, 16, DTYPE_BF16,
                             .dense_layer = -1, .seed = 4};
static const MadeSpec blocks = {
    "gpt_oss",         64,       96, 3, 1, 2, 19, 4, 2, 16, DTYPE_BF16, .mxfp4 = true,
    .dense_layer = -1, .seed = 5};
static const MadeSpec v3 = {"deepseek_v3",
                            64,
                            32,
                            6,
                            3,
                            3,
                            19,
                            2,
                            2,
                            0,
                            DTYPE_BF16,
                            .seed = 6,
                            .q_lora = 32,
                            .kv_lora = 32,
                            .nope = 16,
                            .rope = 16,
                            .v_dim = 16,
                            .n_shared = 2,
                            .n_group = 3,
                            .topk_group = 2};
static const MadeSpec granite = {"granitemoe",      64,       96, 3, 2, 2, 19, 4, 2, 16, DTYPE_BF16,
                                 .dense_layer = -1, .seed = 7};

/* --- what is to be compared --- */

typedef struct Opened {
    Arch arch;
    Checkpoint c;
} Opened;

static Status open_model(const char *dir, Opened *o, Err *e)
{
    GenerationDefaults generation;
    *o = (Opened){0};
    TRY(arch_load(dir, NULL, 0, &o->arch, &generation, e));
    return checkpoint_open(dir, &o->arch, &o->c, e);
}

static void close_model(Opened *o)
{
    checkpoint_close(&o->c);
    arch_free(&o->arch);
}

/* gate, up or down of an expert, however it lies. */
static Status expert_view(const Opened *o, const ExpertTensors *t, int expert, int which,
                          QuantTensor *out, Err *e)
{
    QuantTensor both;
    if (!t->stacked) {
        const LinearTensors *bank[] = {t->gate, t->up, t->down};
        return linear_view(&o->c.files, &bank[which][expert], 0, out, e);
    }
    if (which == 2)
        return linear_view(&o->c.files, &t->stacked_down, expert, out, e);
    TRY(linear_view(&o->c.files, &t->gate_up, expert, &both, e));
    int64_t inter = both.rows / 2;
    *out = t->interleaved ? linear_rows(&both, which, 2, inter)
                          : linear_rows(&both, which * inter, 1, inter);
    return ST_OK;
}

/* Number which of all matrices of a layer. False: there are no more. */
static bool layer_view(const Opened *o, int layer, int which, QuantTensor *out, const char **name)
{
    const LayerTensors *t = &o->c.layers[layer];
    const LinearTensors *all[] = {&t->q,          &t->k,          &t->v,          &t->o,
                                  &t->q_a,        &t->kv_a,       &t->kv_b,       &t->router,
                                  &t->dense.gate, &t->dense.up,   &t->dense.down, &t->shared.gate,
                                  &t->shared.up,  &t->shared.down};
    const int n = sizeof all / sizeof *all;
    Err e;
    *out = (QuantTensor){0};
    if (which < n) {
        *name = all[which]->weight ? all[which]->weight->name : "";
        return !all[which]->weight || linear_view(&o->c.files, all[which], 0, out, &e) == ST_OK;
    }
    which -= n;
    *name = "an expert";
    return (t->experts.stacked || t->experts.gate) && which / 3 < o->arch.router.n_experts &&
           expert_view(o, &t->experts, which / 3, which % 3, out, &e) == ST_OK;
}

/* Relative to a matrix's largest magnitude, at most that far off. */
static int check_close_to(const char *name, const QuantTensor *got, const QuantTensor *want,
                          double off)
{
    int64_t n = want->rows * want->cols;
    if (check_int(name, got->rows, want->rows) || check_int(name, got->cols, want->cols))
        return 1;
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    if (!a || !b)
        exit(1);
    quant_decode(got, a);
    quant_decode(want, b);
    double most = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fabs((double)b[i]) > most ? fabs((double)b[i]) : most;
        worst = fabs((double)a[i] - b[i]) > worst ? fabs((double)a[i] - b[i]) : worst;
    }
    free(a);
    free(b);
    return check_near(name, worst / (most > 0 ? most : 1), 0, off);
}

static int compare_models(const char *model, const char *out, double off)
{
    Opened a, b;
    Err e = {0};
    int failed = 0, n = 0;
    if (open_model(model, &a, &e) != ST_OK || open_model(out, &b, &e) != ST_OK)
        return check_str(out, e.text, "a checkpoint");
    for (int i = 0; i < a.c.n_layers; i++) {
        QuantTensor want, got;
        const char *name, *other;
        for (int j = 0; layer_view(&a, i, j, &want, &name); j++, n++) {
            failed += check_true(name, layer_view(&b, i, j, &got, &other));
            failed += check_int(name, got.format != NULL, want.format != NULL);
            if (want.format && got.format)
                failed += check_close_to(name, &got, &want, off);
        }
    }
    failed += check_true("matrices were compared", n >= 14 * a.c.n_layers);
    close_model(&a);
    close_model(&b);
    return failed;
}

static int compare_files(const char *a, const char *b)
{
    int failed = 0, n = 0;
    DIR *d = opendir(a);
    for (struct dirent *x = d ? readdir(d) : NULL; x; x = readdir(d)) {
        char left[TEMP_DIR_MAX], right[TEMP_DIR_MAX];
        static char bytes[2][4 << 20];
        if (x->d_name[0] == '.')
            continue;
        snprintf(left, sizeof left, "%.200s/%.200s", a, x->d_name);
        snprintf(right, sizeof right, "%.200s/%.200s", b, x->d_name);
        long len = temp_dir_get(left, bytes[0], sizeof bytes[0]);
        failed += check_int(left, temp_dir_get(right, bytes[1], sizeof bytes[1]), len);
        failed += check_true(left, len > 0 && memcmp(bytes[0], bytes[1], (size_t)len) == 0);
        n++;
    }
    if (d)
        closedir(d);
    return failed + check_true("files were compared", n >= 3);
}

/* --- the cases --- */

static Status see(Observer *o, const char *dir, Err *e)
{
    Arch arch = {0};
    GenerationDefaults generation;
    TRY(arch_load(dir, NULL, 0, &arch, &generation, e));
    TRY(observer_create(o, arch.n_layers, arch.router.n_experts, e));
    for (int i = 0; i < o->n_layers; i++) {
        LayerSeen *l = &o->layers[i];
        l->attn_in = l->q_low = l->latent = l->attn_out = l->ffn_in = 2;
        l->dense_inner = l->shared_inner = l->key = l->value = 2;
        for (int x = 0; x < o->n_experts; x++)
            l->expert_in[x] = l->expert_inner[x] = (float)x;
    }
    o->head_in = 2;
    arch_free(&arch);
    return ST_OK;
}

typedef struct QuantCase {
    const MadeSpec *spec;
    const char *recipe; /* a name, or rules */
    double off;         /* of values, in parts of the largest */
    const char *error;  /* NULL: it works */
} QuantCase;

#define RULE(match, format) "{\"match\": \"" match "\", \"format\": \"" format "\"}"
#define RULES(list) "{\"rules\": [" list "]}"

static const QuantCase cases[] = {
    {&qwen2, "fp8-dynamic", .063, NULL},
    {&qwen2, "fp8-static", .063, NULL},
    {&qwen2, "mxfp8", .063, NULL},
    {&qwen2, "q8_0", .005, NULL},
    {&qwen2,
     RULES(
         RULE("experts", "mxfp4") ", " RULE("dense", "q8_0") ", " RULE("attention", "fp8-dynamic")),
     .26, NULL},
    {&stacked, "nvfp4", .2, NULL},
    {&stacked, "int4", .08, NULL},
    {&stacked, "bf16", .004, NULL},
    {&minimax, "w4a16_nvfp4", .2, NULL},
    {&oss, "mxfp4", .26, NULL},
    {&oss, "nvfp4", .2, NULL},
    {&oss, "fp8-static", .063, NULL},
    {&blocks, RULES(RULE("experts", "w4a16_nvfp4")), 0, NULL}, /* without loss */
    {&blocks, RULES(RULE("experts", "bf16")), 0, NULL},
    {&v3, "fp8-dynamic", .063, NULL},
    {&v3, "mxfp8", .063, NULL},
    {&v3, RULES(RULE("*.kv_b_proj", "fp8-dynamic") ", " RULE("lm_head", "fp8-dynamic")), .063,
     NULL},

    {&granite, "mxfp8", 0, "there is no published way to store experts of granitemoe"},
    {&oss, "int4", 0, "there is no published way"},
    {&oss, RULES(RULE("experts", "mxfp4") ", " RULE("attention", "fp8-dynamic")), 0,
     "no configuration says both"},
    {&blocks, RULES(RULE("attention", "fp8-dynamic")), 0, "stored as MXFP4"},
    {&qwen2, "fp8-block", 0, "in multiples of 128"},
    {&qwen2, RULES(RULE("*.q_proj", "fp8-dynamic")), 0, "must have the same format"},
    {&qwen2, RULES(RULE("experts", "int4") ", " RULE("attention", "mxfp8")), 0,
     "no configuration says both"},
    {&qwen2, RULES(RULE("model.layers.7.*", "mxfp8")), 0, "matches no module"},
    {&qwen2, RULES(RULE("model.embed_tokens", "mxfp8")), 0, "q8_0 only"},
    {&minimax, RULES(RULE("dense", "mxfp8")), 0, "\"dense\" matches no module"},
};

static Status quantize(Comm *comm, const QuantCase *c, const char *out, const Observer *seen,
                       bool overwrite, QuantizeResult *r, Err *e)
{
    QuantizeJob job = {.model = "model",
                       .out = out,
                       .recipe = c->recipe,
                       .seen = seen,
                       .part_bytes = 60000,
                       .overwrite = overwrite,
                       .quiet = true};
    if (c->recipe[0] == '{')
        job.recipe = "rules.json";
    return quantize_run(&job, comm, r, e);
}

static int run_case(Comm *comm, const QuantCase *c)
{
    MadeModel m = {0};
    Observer seen = {0};
    QuantizeResult r;
    Err e = {0};
    int failed = 0;
    Comm alone = {.size = 1, .n_local = 1};
    Status st = ST_OK;
    if (comm->rank == 0) {
        temp_dir_fresh("model");
        temp_dir_remove("out");
        temp_dir_remove("alone");
        if (c->recipe[0] == '{')
            temp_dir_put("rules.json", c->recipe, strlen(c->recipe));
        st = made_create(c->spec, &m, &e);
        if (st == ST_OK)
            st = made_write(&m, "model", 100000, &e);
        made_free(&m);
    }
    if (dist_agree(comm, st, &e) != ST_OK || see(&seen, "model", &e) != ST_OK)
        return check_str(c->spec->family, e.text, "a made model");
    bool calibrated = strstr(c->recipe, "static") || strcmp(c->recipe, "nvfp4") == 0;
    st = quantize(comm, c, "out", calibrated ? &seen : NULL, false, &r, &e);
    if (c->error) {
        failed += check_int(c->recipe, st, ST_INPUT);
        failed += check_has(c->recipe, e.text, c->error);
    } else if (st != ST_OK) {
        failed += check_str(c->recipe, e.text, "a checkpoint");
    } else if (comm->rank == 0) {
        failed += compare_models("model", "out", c->off);
        failed += check_int(
            "alone", quantize(&alone, c, "alone", calibrated ? &seen : NULL, false, &r, &e), ST_OK);
        failed += compare_files("alone", "out");
    }
    observer_free(&seen);
    if (failed)
        fprintf(stderr, "in %s, %s\n", c->spec->family, c->recipe);
    return failed;
}

/* The directory of cases[0], cut short and changed. */
static int test_resume(Comm *comm)
{
    QuantizeResult r;
    Err e = {0};
    int failed = run_case(comm, &cases[0]);
    const QuantCase other = {&qwen2, "mxfp8", 0, NULL};
    failed += check_int("again", quantize(comm, &cases[0], "out", NULL, false, &r, &e), ST_OK);
    failed += check_true("several parts", r.parts >= 4);
    failed += check_int("all were there", r.parts_kept, r.parts);
    int parts = r.parts;
    char name[64];
    snprintf(name, sizeof name, "out/model-%05d-of-%05d.safetensors", 2, parts);
    if (comm->rank == 0) {
        failed += check_int("remove", unlink(name), 0);
        failed += check_int("remove", unlink("out/config.json"), 0);
        temp_dir_put("out/model-00003-of-00009.safetensors.tmp", "x", 1);
    }
    failed += check_int("wait", dist_agree(comm, ST_OK, &e), ST_OK);
    failed += check_int("go on", quantize(comm, &cases[0], "out", NULL, false, &r, &e), ST_OK);
    failed += check_int("one was missing", r.parts_kept, parts - 1);
    if (comm->rank == 0) {
        failed += compare_files("alone", "out");
        failed += check_true("config.json", access("out/config.json", R_OK) == 0);
    }
    failed +=
        check_int("another recipe", quantize(comm, &other, "out", NULL, false, &r, &e), ST_INPUT);
    failed += check_has("another recipe", e.text, "--overwrite");
    failed += check_int("overwrite", quantize(comm, &other, "out", NULL, true, &r, &e), ST_OK);
    if (comm->rank == 0)
        failed += compare_models("model", "out", .063);
    const QuantCase uncalibrated = {&qwen2, "fp8-static", 0, NULL};
    failed +=
        check_int("static", quantize(comm, &uncalibrated, "out", NULL, true, &r, &e), ST_USAGE);
    failed += check_has("static", e.text, "fp8-static needs calibrated inputs");
    failed += check_int("itself", quantize(comm, &other, "model", NULL, true, &r, &e), ST_USAGE);
    failed += check_has("itself", e.text, "is the model itself");
    return failed;
}

/* A made checkpoint in one file, with n bytes of a tensor replaced. */
static int make_patched(const MadeSpec *spec, const char *tensor, long at, const uint8_t *bytes,
                        size_t n)
{
    MadeModel m = {0};
    TensorSet set;
    Err e = {0};
    temp_dir_fresh("model");
    temp_dir_remove("out");
    int failed = check_int("make", made_create(spec, &m, &e), ST_OK);
    failed += check_int("make", made_write(&m, "model", 0, &e), ST_OK);
    made_free(&m);
    failed += check_int("open", tensor_set_open("model", &set, &e), ST_OK);
    const TensorEntry *t = tensor_set_find(&set, tensor);
    FILE *f = fopen("model/model.safetensors", "r+b");
    if (!t || !f || fseek(f, (long)(t->data - set.parts[0].map.data) + at, SEEK_SET) != 0 ||
        fwrite(bytes, 1, n, f) != n)
        exit(1);
    fclose(f);
    tensor_set_close(&set);
    return failed;
}

/* A value that is not finite: found, named, and no checkpoint left behind. */
static int test_damaged(Comm *comm)
{
    static const uint8_t nan[2] = {0xc0, 0x7f};
    QuantizeResult r;
    Err e = {0};
    int failed = 0;
    if (comm->rank == 0)
        failed +=
            make_patched(&qwen2, "model.layers.2.mlp.experts.4.down_proj.weight", 200, nan, 2);
    failed += check_int("wait", dist_agree(comm, ST_OK, &e), ST_OK);
    for (int i = 0; i < 2; i++) { /* a scale of rows, and one of all */
        const QuantCase c = {&qwen2, i ? "w4a16_nvfp4" : "fp8-dynamic", 0, NULL};
        failed += check_int("damaged", quantize(comm, &c, "out", NULL, true, &r, &e), ST_INPUT);
        failed += check_has("damaged", e.text,
                            "layers.2.mlp.experts.4.down_proj.weight\": holds a "
                            "value that is not finite");
        failed += check_true("no config.json", access("out/config.json", F_OK) != 0);
    }
    return failed;
}

/* Exponents further apart than E4M3 has them: that stack is quantized anew, and counted. */
static int test_wide(Comm *comm)
{
    static const uint8_t small = 80;
    const QuantCase c = {&blocks, "rules.json", 0, NULL};
    QuantizeResult r;
    Err e = {0};
    int failed = 0;
    if (comm->rank == 0) {
        static const char rules[] = RULES(RULE("experts", "w4a16_nvfp4"));
        temp_dir_put("rules.json", rules, sizeof rules - 1);
        failed +=
            make_patched(&blocks, "model.layers.1.mlp.experts.down_proj_scales", 5, &small, 1);
    }
    failed += check_int("wait", dist_agree(comm, ST_OK, &e), ST_OK);
    failed += check_int("wide", quantize(comm, &c, "out", NULL, false, &r, &e), ST_OK);
    failed += check_int("matrices", r.matrices, 2 * 2 * blocks.experts);
    failed += check_int("not taken over", r.not_lossless, blocks.experts);
    if (comm->rank == 0)
        failed += compare_models("model", "out", .2);
    return failed;
}

int main(int argc, char **argv)
{
    Comm comm;
    Err e = {0};
    char dir[TEMP_DIR_MAX] = "";
    if (comm_start(&argc, &argv, &comm, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (comm.rank == 0 && !temp_dir_create(dir))
        return 1;
    int failed = comm_bcast(&comm, dir, sizeof dir, 0, &e) != ST_OK || chdir(dir) != 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !failed; i++)
        failed += run_case(&comm, &cases[i]);
    failed += test_resume(&comm) + test_damaged(&comm) + test_wide(&comm);
    int64_t all = failed;
    if (comm_sum_int64(&comm, &all, 1, &e) != ST_OK)
        all = 1;
    if (comm.rank == 0)
        temp_dir_remove(dir);
    comm_end(&comm);
    return test_result((int)all);
}
