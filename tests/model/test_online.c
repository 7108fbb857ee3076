/* tests/model/test_online.c - --quantize: every quantized matrix equals what an independent
 * implementation makes of it (tests/oracle/make_online.py), everything else stays as it is, and
 * what cannot be quantized is refused by name. */
#include "io/digest.h"
#include "io/file.h"
#include "model/online.h"
#include "model/weights.h"
#include "tests/support/check.h"
#include "tests/support/fake_backend.h"
#include "tests/support/files.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Loaded {
    Arch arch;
    Backend *backend;
    Placement placement;
    Weights w;
} Loaded;

static Status load(const char *dir, const Precision *p, Team *team, Loaded *out, Err *e)
{
    GenerationDefaults gen;
    *out = (Loaded){0};
    TRY(arch_load(dir, NULL, 0, &out->arch, &gen, e));
    TRY(placement_create(&out->placement, out->arch.router.n_experts, 1, e));
    TRY(fake_backend_create(&out->backend, e));
    WeightsConfig config = {dir, NULL,          &out->arch,   p,   &out->placement,
                            0,   &fake_backend, out->backend, team};
    return weights_load(&config, &out->w, e);
}

static int unload(Loaded *l)
{
    weights_free(&l->w);
    int left = fake_backend_destroy(l->backend);
    placement_free(&l->placement);
    arch_free(&l->arch);
    return check_int("given back", left, 0);
}

static void add_matrix(Sha256 *sha, const Weight *w, int mat)
{
    Err e;
    for (int64_t r = 0; w && r < fake_weight_rows(w); r++)
        if (sha256_add(sha, fake_weight_row(w, mat, r), (size_t)fake_weight_cols(w) * sizeof(float),
                       &e) != ST_OK)
            exit(1);
}

static void add_ffn(Sha256 *sha, const FfnSpec *f)
{
    const Weight *const banks[] = {f->w13, f->w2};
    for (int b = 0; b < 2; b++)
        for (int m = 0; banks[b] && m < fake_weight_mats(banks[b]); m++)
            add_matrix(sha, banks[b], m);
}

/* Of what quantizing may change, in the order of make_online.py. */
static void layer_digest(const LayerWeights *l, char hex[65])
{
    Sha256 *sha;
    uint8_t bytes[32];
    Err e;
    if (sha256_create(&sha, &e) != ST_OK)
        exit(1);
    const Weight *const linears[] = {l->qkv.w, l->q_a.w, l->q.w, l->kv_a.w, l->o.w};
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        add_matrix(sha, linears[i], 0);
    add_ffn(sha, &l->experts);
    add_ffn(sha, &l->dense);
    add_ffn(sha, &l->shared);
    if (sha256_end(sha, bytes, &e) != ST_OK)
        exit(1);
    sha256_free(sha);
    hex_of(bytes, sizeof bytes, hex);
}

static int same_matrix(const char *name, const Weight *a, const Weight *b)
{
    int wrong = !a != !b;
    for (int m = 0; a && b && m < fake_weight_mats(a); m++)
        for (int64_t r = 0; r < fake_weight_rows(a); r++)
            wrong += memcmp(fake_weight_row(a, m, r), fake_weight_row(b, m, r),
                            (size_t)fake_weight_cols(a) * sizeof(float)) != 0;
    return check_int(name, wrong, 0);
}

/* What must stay as it is, and that nothing but the files' own bytes was counted. */
static int check_untouched(const char *name, const Loaded *a, const Loaded *plain)
{
    int failed = check_int(name, a->w.bytes_read, plain->w.bytes_read);
    failed += same_matrix(name, a->w.embed, plain->w.embed);
    failed += same_matrix(name, a->w.head.w, plain->w.head.w);
    for (int i = 0; i < a->w.n_layers; i++) {
        const LayerWeights *l = &a->w.layers[i], *p = &plain->w.layers[i];
        failed += same_matrix(name, l->router.w, p->router.w);
        failed += same_matrix(name, l->latent_up, p->latent_up);
        failed += same_matrix(name, l->latent_absorb, p->latent_absorb);
        failed += same_matrix(name, l->shared_gate.w, p->shared_gate.w);
    }
    return failed;
}

/* key: "nvfp4", or "nvfp4 experts-only" */
static int check_format(const char *dir, const char *key, const JsonValue *want, Team *team,
                        const Loaded *plain)
{
    char format[40], name[200];
    Precision p;
    Loaded l;
    Err e;
    snprintf(format, sizeof format, "%.*s", (int)strcspn(key, " "), key);
    snprintf(name, sizeof name, "%s, %s", strrchr(dir, '/') + 1, key);
    if (precision_parse(NULL, NULL, NULL, NULL, format, strchr(key, ' ') != NULL, &p, &e) !=
            ST_OK ||
        load(dir, &p, team, &l, &e) != ST_OK)
        return check_str(name, e.text, "");
    int failed = check_int(name, (int64_t)want->len, l.w.n_layers), i = 0;
    for (const JsonValue *v = want->child; v; v = v->next, i++) {
        char hex[65];
        layer_digest(&l.w.layers[i], hex);
        failed += check_str(name, hex, v->text);
    }
    failed += check_untouched(name, &l, plain);
    return failed + unload(&l);
}

static int check_oracle(const char *base, const JsonValue *dirs, Team *team)
{
    int failed = 0;
    for (const JsonValue *d = dirs->child; d; d = d->next) {
        char dir[FILE_PATH_MAX];
        Loaded plain;
        Err e;
        test_path(dir, sizeof dir, "%s/%s", base, d->key);
        if (load(dir, &(Precision){0}, NULL, &plain, &e) != ST_OK)
            return failed + check_str(d->key, e.text, "");
        int n = 0;
        for (const JsonValue *f = d->child; f; f = f->next, n++)
            failed += check_format(dir, f->key, f, n % 2 ? team : NULL, &plain);
        failed += unload(&plain);
    }
    return failed;
}

/* What rows are rounded to, where activations are as stored. */
static int check_rows(const char *dir)
{
    static const struct {
        const char *name;
        OnlineFormat format;
        bool experts_only;
        RowScheme experts, rest;
    } cases[] = {{"nvfp4", ONLINE_NVFP4, false, ROWS_NVFP4_TOKEN, ROWS_NVFP4_TOKEN},
                 {"nvfp4 experts", ONLINE_NVFP4, true, ROWS_NVFP4_TOKEN, ROWS_AS_THEY_ARE},
                 {"mxfp8", ONLINE_MXFP8, false, ROWS_MXFP8, ROWS_MXFP8},
                 {"fp8-dynamic", ONLINE_FP8_DYNAMIC, false, ROWS_FP8_TOKEN, ROWS_FP8_TOKEN},
                 {"fp8-block", ONLINE_FP8_BLOCK, true, ROWS_FP8_GROUP, ROWS_AS_THEY_ARE},
                 {"mxfp4", ONLINE_MXFP4, false, ROWS_AS_THEY_ARE, ROWS_AS_THEY_ARE},
                 {"int4", ONLINE_INT4, false, ROWS_AS_THEY_ARE, ROWS_AS_THEY_ARE},
                 {"q8_0", ONLINE_Q8_0, false, ROWS_AS_THEY_ARE, ROWS_AS_THEY_ARE}};
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int stored = 0; stored < 2; stored++) {
            Precision p = {.activations = stored ? ACTIVATIONS_STORED : ACTIVATIONS_NONE,
                           .quantize = cases[c].format,
                           .quantize_experts_only = cases[c].experts_only};
            Loaded l;
            Err e;
            const char *name = cases[c].name;
            if (load(dir, &p, NULL, &l, &e) != ST_OK)
                return failed + check_str(name, e.text, "");
            const LayerWeights *w = &l.w.layers[1];
            RowScheme experts = stored ? cases[c].experts : ROWS_AS_THEY_ARE;
            RowScheme rest = stored ? cases[c].rest : ROWS_AS_THEY_ARE;
            failed += check_int(name, w->expert_rows.scheme, experts);
            failed += check_int(name, w->experts.inner.scheme, experts);
            for (int i = 0; i < 3; i++)
                failed += check_int(name, w->qkv.rows[i].scheme, rest);
            failed += check_int(name, w->o.rows[0].scheme, rest);
            failed += check_int(name, w->router.rows[0].scheme, ROWS_AS_THEY_ARE);
            failed += check_int(name, l.w.head.rows[0].scheme, ROWS_AS_THEY_ARE);
            failed += unload(&l);
        }
    return failed;
}

static int check_refusals(const char *source, const char *shared)
{
    const struct {
        const char *name, *base, *dir;
        Precision p;
        const char *says;
    } cases[] = {
        {"quantized already",
         shared,
         "goldens/qwen3_moe-fp8",
         {.quantize = ONLINE_NVFP4},
         "--quantize nvfp4: the checkpoint is quantized already (modelopt FP8)"},
        {"44 inputs",
         source,
         "tests/data/families/qwen3_moe-a",
         {.quantize = ONLINE_NVFP4, .quantize_experts_only = true},
         "gate_proj.weight\": 44 inputs, but --quantize nvfp4 needs a multiple of 16"},
        {"no experts",
         source,
         "tests/data/families/llama-a",
         {.quantize = ONLINE_INT4, .quantize_experts_only = true},
         "--quantize-experts-only: llama has no experts"},
        {"override",
         shared,
         "goldens/qwen3_moe-bf16",
         {.quantize = ONLINE_NVFP4, .per_token_experts = true},
         "these are --quantize nvfp4"},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[FILE_PATH_MAX];
        Loaded l;
        Err e;
        if (!cases[i].base)
            continue;
        test_path(dir, sizeof dir, "%s/%s", cases[i].base, cases[i].dir);
        failed += check_int(cases[i].name, load(dir, &cases[i].p, NULL, &l, &e), ST_INPUT);
        failed += check_has(cases[i].name, e.text, cases[i].says);
        failed += unload(&l);
    }
    return failed;
}

/* One weight of one expert is infinite, then NaN: named by file and tensor in every format. */
static int check_damage(const char *source)
{
    enum { LIMIT = 1 << 20 };
    char from[FILE_PATH_MAX];
    char *config, *weights;
    size_t config_len, len;
    Err e;
    int failed = 0;
    char dir[TEMP_DIR_MAX];
    if (!temp_dir_create(dir))
        return check_true("a directory", false);
    test_path(from, sizeof from, "%s/tests/data/families/qwen3_moe-a/config.json", source);
    if (file_read(from, LIMIT, &config, &config_len, &e) != ST_OK)
        return check_str("config", e.text, "");
    test_path(from, sizeof from, "%s/tests/data/families/qwen3_moe-a/model.safetensors", source);
    if (file_read(from, LIMIT, &weights, &len, &e) != ST_OK)
        return check_str("weights", e.text, "");
    SafeTensors s;
    if (safetensors_parse((const uint8_t *)weights, len, &s, &e) != ST_OK)
        return check_str("weights", e.text, "");
    const TensorEntry *t = NULL;
    for (int i = 0; i < s.n; i++)
        if (strstr(s.entries[i].name, "layers.0.mlp.experts.5.up_proj"))
            t = &s.entries[i];
    if (!t)
        return check_true("the expert's tensor", false);
    static const uint16_t bad[] = {0x7f80, 0xffc0};
    for (int k = 0; k < 2; k++) {
        memcpy(weights + (t->data - (const uint8_t *)weights) + 30, &bad[k], sizeof *bad);
        failed += check_true("written", temp_dir_write(dir, "config.json", config, config_len) &&
                                            temp_dir_write(dir, "model.safetensors", weights, len));
        static const OnlineFormat formats[] = {ONLINE_FP8_DYNAMIC, ONLINE_FP8_BLOCK, ONLINE_INT4};
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            Loaded l;
            Precision p = {.quantize = formats[f]};
            failed += check_int("not finite", load(dir, &p, NULL, &l, &e), ST_INPUT);
            failed += check_has("not finite", e.text, "model.safetensors: tensor \"");
            failed += check_has("not finite", e.text, t->name);
            failed += check_has("not finite", e.text, "infinite or not a number");
            failed += unload(&l);
        }
    }
    safetensors_free(&s);
    free(config);
    free(weights);
    temp_dir_remove(dir);
    return failed;
}

int main(void)
{
    const char *source = getenv("SOURCE"), *shared = test_shared();
    if (!source)
        return test_skip("SOURCE is not set");
    char path[FILE_PATH_MAX];
    TestJson want;
    Team *team;
    Err e;
    test_path(path, sizeof path, "%s/tests/data/quant/online.json", source);
    if (!test_json_open(&want, path) || team_create(&team, 2, &e) != ST_OK)
        return 1;
    int failed = 0;
    test_path(path, sizeof path, "%s/tests/data/families", source);
    failed += check_oracle(path, json_get(want.value, "families"), team);
    if (shared) {
        test_path(path, sizeof path, "%s/goldens", shared);
        failed += check_oracle(path, json_get(want.value, "shared"), team);
        test_path(path, sizeof path, "%s/goldens/qwen3_moe-bf16", shared);
        failed += check_rows(path);
    }
    failed += check_refusals(source, shared);
    failed += check_damage(source);
    team_destroy(team);
    test_json_close(&want);
    if (!shared)
        printf("skipped: the larger checkpoints, which SHARED does not have\n");
    return test_result(failed);
}
