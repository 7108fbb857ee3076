/* app/cmd_inspect.c - moebatch inspect: what a checkpoint is, and what each rank would hold of it.
 * Reads headers only, but for --digest and --deep, which read every weight and share that out among
 * the ranks. */
#include "app/commands.h"
#include "app/job_options.h"
#include "io/digest.h"
#include "io/strbuf.h"
#include "model/family.h"
#include "model/inspect.h"
#include "model/lint.h"
#include "model/weight_digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHOWN = 100 }; /* findings of a level, as text */

/* What was asked for, and what --digest and --deep found. */
typedef struct Asked {
    const char *model;
    OptionList accept;
    bool json, digest, deep;
    int n_ranks, threads;
    Inspection s;
    Checkpoint c;
    Modules modules;
    uint8_t (*digests)[32]; /* [modules.n] */
    Lint lint;
} Asked;

/* --- for people --- */

/* value in the largest of its units that leaves it at least 1. */
typedef struct Sized {
    char text[24];
} Sized;

static Sized sized(int64_t value, const char *const *units)
{
    double v = (double)value;
    int i = 0;
    Sized out;
    for (; v >= 999.995 && units[i + 1]; i++)
        v /= 1000;
    snprintf(out.text, sizeof out.text, i == 0 ? "%.0f %s" : "%.2f %s", v, units[i]);
    return out;
}

static Sized in_bytes(int64_t bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", NULL};
    return sized(bytes, units);
}

static Sized in_words(int64_t count)
{
    static const char *const units[] = {"", "thousand", "million", "billion", NULL};
    return sized(count, units);
}

static void print_attention(const Arch *a)
{
    const LatentSpec *l = &a->latent;
    if (a->attn == ATTN_HEADS) {
        printf("attention   %d heads of %d, %d for keys and values\n", a->n_heads, a->head_dim,
               a->n_kv_heads);
        return;
    }
    printf("attention   latent: %d heads of %d + %d, values of %d, from %d values per token",
           a->n_heads, l->nope_dim, l->rope_dim, l->v_dim, l->latent_dim + l->rope_dim);
    if (a->q_lora > 0)
        printf("; queries from %d", a->q_lora);
    putchar('\n');
}

static void print_experts(const Inspection *s)
{
    const Arch *a = &s->arch;
    if (s->n_sparse > 0)
        printf("experts     %d of %d wide, %d per token, in %d layers\n", a->router.n_experts,
               a->moe_inter, a->router.top_k, s->n_sparse);
    if (a->shared_inter > 0)
        printf("shared      %d wide%s\n", a->shared_inter, a->shared_gate ? ", behind a gate" : "");
    if (a->dense_inter > 0)
        printf("dense FFN   %d wide, in %d layers\n", a->dense_inter, a->n_layers - s->n_sparse);
}

static void print_weights(const char *name, const WeightCount *w)
{
    printf("%-11s %s:", name, in_bytes(w->bytes).text);
    for (int i = 0; i < w->dtypes.n; i++)
        printf("%s %s %s in %d tensors", i ? "," : "", w->dtypes.at[i].name,
               in_bytes(w->dtypes.at[i].bytes).text, w->dtypes.at[i].n);
    putchar('\n');
}

static void print_ranks(const Inspection *s)
{
    for (int r = 0, end; r < s->n_ranks; r = end) {
        char ranks[40];
        const RankShare *share = &s->ranks[r];
        for (end = r + 1; end < s->n_ranks && s->ranks[end].n_experts == share->n_experts;)
            end++;
        if (end == r + 1)
            snprintf(ranks, sizeof ranks, "rank %d", r);
        else
            snprintf(ranks, sizeof ranks, "ranks %d-%d", r, end - 1);
        printf("%-11s %s dense", ranks, in_bytes(share->dense_bytes).text);
        if (s->n_sparse > 0)
            printf(" + %s for %d experts of each layer", in_bytes(share->expert_bytes).text,
                   share->n_experts);
        putchar('\n');
    }
}

static void print_quantization(const Inspection *s)
{
    StrBuf b = {0};
    quant_map_text(&s->quant, &b);
    if (b.data)
        fputs(b.data, stdout);
    strbuf_free(&b);
}

static void print_text(const Inspection *s)
{
    const Arch *a = &s->arch;
    printf("family      %s\n", a->family->model_type);
    printf("layers      %d, %d of them with experts; %d wide, vocabulary %d%s, context %d\n",
           a->n_layers, s->n_sparse, a->hidden, a->vocab, a->tied ? " (tied)" : "",
           a->max_positions);
    print_attention(a);
    print_experts(s);
    printf("parameters  %s, %s per token\n", in_words(s->dense.params + s->experts.params).text,
           in_words(s->active_params).text);
    printf("files       %d, %d tensors\n", s->n_parts, s->n_tensors);
    print_weights("dense", &s->dense);
    if (s->n_sparse > 0)
        print_weights("experts", &s->experts);
    printf("KV cache    %lld bytes per token in fp32, half of it in bf16",
           (long long)(4 * s->kv_values));
    if (s->window_kv_values > 0)
        printf("; %lld of it within windows only", (long long)(4 * s->window_kv_values));
    putchar('\n');
    print_ranks(s);
    print_quantization(s);
    for (int i = 0; i < s->skipped.n; i++)
        printf("skipped     %d tensors, %s: %s\n", s->skipped.at[i].n,
               in_bytes(s->skipped.at[i].bytes).text, s->skipped.at[i].name);
    for (const char *key = s->unknown_keys; key && *key; key = strchr(key, '\n') + 1)
        printf("empty key   %.*s: unknown, without effect\n", (int)strcspn(key, "\n"), key);
}

/* --- for programs --- */

static void json_ints(StrBuf *b, const char *const *names, const int64_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        strbuf_fmt(b, "  \"%s\": %lld,\n", names[i], (long long)values[i]);
}

static void json_attention(const Arch *a, StrBuf *b)
{
    static const char *const heads[] = {"heads", "kv_heads", "head_dim"};
    static const char *const latent[] = {
        "heads",     "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim"};
    const int64_t of_heads[] = {a->n_heads, a->n_kv_heads, a->head_dim};
    const LatentSpec *l = &a->latent;
    const int64_t of_latent[] = {a->n_heads,  a->q_lora,   l->latent_dim,
                                 l->nope_dim, l->rope_dim, l->v_dim};
    strbuf_fmt(b, "  \"attention\": \"%s\",\n", a->attn == ATTN_LATENT ? "latent" : "heads");
    if (a->attn == ATTN_LATENT)
        json_ints(b, latent, of_latent, sizeof of_latent / sizeof *of_latent);
    else
        json_ints(b, heads, of_heads, sizeof of_heads / sizeof *of_heads);
}

static void json_groups(const char *name, const TensorGroups *g, StrBuf *b)
{
    strbuf_fmt(b, "\"%s\": {", name);
    for (int i = 0; i < g->n; i++)
        strbuf_fmt(b, "%s\"%s\": {\"tensors\": %d, \"bytes\": %lld}", i ? ", " : "", g->at[i].name,
                   g->at[i].n, (long long)g->at[i].bytes);
    strbuf_str(b, "}");
}

static void json_weights(const char *name, const WeightCount *w, StrBuf *b)
{
    strbuf_fmt(b, "  \"%s\": {\"parameters\": %lld, \"bytes\": %lld, ", name, (long long)w->params,
               (long long)w->bytes);
    json_groups("dtypes", &w->dtypes, b);
    strbuf_str(b, "},\n");
}

static void json_ranks(const Inspection *s, StrBuf *b)
{
    strbuf_str(b, "  \"ranks\": [");
    for (int r = 0; r < s->n_ranks; r++)
        strbuf_fmt(
            b, "%s\n    {\"experts_per_layer\": %d, \"dense_bytes\": %lld, \"expert_bytes\": %lld}",
            r ? "," : "", s->ranks[r].n_experts, (long long)s->ranks[r].dense_bytes,
            (long long)s->ranks[r].expert_bytes);
    strbuf_str(b, "\n  ],\n");
}

static void json_keys(const Inspection *s, StrBuf *b)
{
    strbuf_str(b, "  \"unknown_empty_keys\": [");
    for (const char *key = s->unknown_keys; key && *key; key = strchr(key, '\n') + 1) {
        strbuf_str(b, key == s->unknown_keys ? "" : ", ");
        strbuf_json_string(b, key, strcspn(key, "\n"));
    }
    strbuf_str(b, "]\n}\n");
}

static void json_digests(const Asked *k, StrBuf *b)
{
    const char *sep = "";
    strbuf_str(b, "  \"digests\": {");
    for (int i = 0; i < k->modules.n; i++) {
        char name[MODULE_NAME_MAX], hex[65];
        if (!k->modules.at[i].t->scheme)
            continue;
        module_weight_name(&k->modules.at[i], name);
        hex_of(k->digests[i], sizeof k->digests[i], hex);
        strbuf_fmt(b, "%s\n    ", sep);
        strbuf_json_string(b, name, strlen(name));
        strbuf_fmt(b, ": \"%s\"", hex);
        sep = ",";
    }
    strbuf_str(b, "\n  },\n");
}

static void json_lint(const Lint *l, StrBuf *b)
{
    strbuf_fmt(b, "  \"errors\": %d,\n  \"warnings\": %d,\n  \"findings\": [", l->n_of[LINT_ERROR],
               l->n_of[LINT_WARNING]);
    for (int i = 0; i < l->n; i++) {
        strbuf_fmt(b, "%s\n    {\"level\": \"%s\", \"text\": ", i ? "," : "",
                   lint_level_name(l->at[i].level));
        strbuf_json_string(b, l->at[i].text, strlen(l->at[i].text));
        strbuf_str(b, "}");
    }
    strbuf_str(b, "\n  ],\n");
}

static Status print_json(const Asked *k, Err *e)
{
    const Inspection *s = &k->s;
    static const char *const sizes[] = {
        "layers",  "sparse_layers",     "hidden",       "vocabulary",   "context",
        "experts", "experts_per_token", "expert_width", "shared_width", "dense_width"};
    static const char *const totals[] = {
        "parameters", "active_parameters",   "parts",
        "tensors",    "kv_values_per_token", "window_kv_values_per_token"};
    const Arch *a = &s->arch;
    const int64_t of_sizes[] = {
        a->n_layers,         s->n_sparse,     a->hidden,    a->vocab,        a->max_positions,
        a->router.n_experts, a->router.top_k, a->moe_inter, a->shared_inter, a->dense_inter};
    const int64_t of_totals[] = {s->dense.params + s->experts.params,
                                 s->active_params,
                                 s->n_parts,
                                 s->n_tensors,
                                 s->kv_values,
                                 s->window_kv_values};
    StrBuf b = {0};
    strbuf_str(&b, "{\n  \"model\": ");
    strbuf_json_string(&b, k->model, strlen(k->model));
    strbuf_fmt(&b, ",\n  \"family\": \"%s\",\n  \"tied\": %s,\n", a->family->model_type,
               a->tied ? "true" : "false");
    json_ints(&b, sizes, of_sizes, sizeof of_sizes / sizeof *of_sizes);
    json_attention(a, &b);
    json_ints(&b, totals, of_totals, sizeof of_totals / sizeof *of_totals);
    json_weights("dense_weights", &s->dense, &b);
    json_weights("expert_weights", &s->experts, &b);
    json_ranks(s, &b);
    strbuf_str(&b, "  ");
    json_groups("skipped", &s->skipped, &b);
    strbuf_str(&b, ",\n  \"quantization\": ");
    quant_map_json(&s->quant, &b);
    strbuf_str(&b, ",\n");
    if (k->digest)
        json_digests(k, &b);
    if (k->deep)
        json_lint(&k->lint, &b);
    json_keys(s, &b);
    Status st = ST_OK;
    if (b.failed)
        st = err_set(e, ST_MEMORY, "out of memory for the report");
    else if (fwrite(b.data, 1, b.len, stdout) != b.len)
        st = err_errno(e, "standard output");
    strbuf_free(&b);
    return st;
}

/* --- every weight --- */

static void print_digests(const Asked *k)
{
    for (int i = 0; i < k->modules.n; i++) {
        char name[MODULE_NAME_MAX], hex[65];
        if (!k->modules.at[i].t->scheme)
            continue;
        module_weight_name(&k->modules.at[i], name);
        hex_of(k->digests[i], sizeof k->digests[i], hex);
        printf("%s  %s\n", hex, name);
    }
}

/* The first of each level: what is wrong everywhere need not be read a thousand times. */
static void print_lint(const Lint *l)
{
    int shown[3] = {0};
    for (int i = 0; i < l->n; i++)
        if (shown[l->at[i].level]++ < MOST_SHOWN)
            printf("%s: %s\n", lint_level_name(l->at[i].level), l->at[i].text);
    for (int level = 0; level < 3; level++)
        if (shown[level] > MOST_SHOWN)
            printf("%s: %d more like these, which --json lists\n",
                   lint_level_name((LintLevel)level), shown[level] - MOST_SHOWN);
    printf("%d errors, %d warnings\n", l->n_of[LINT_ERROR], l->n_of[LINT_WARNING]);
}

static Status report(const Asked *k, Err *e)
{
    if (k->json)
        return print_json(k, e);
    if (!k->digest) /* digests alone, so that two checkpoints can be told apart by diff */
        print_text(&k->s);
    else
        print_digests(k);
    if (k->deep)
        print_lint(&k->lint);
    return ST_OK;
}

static int exit_code(const Asked *k)
{
    return k->lint.n_of[LINT_ERROR] ? 1 : k->lint.n_of[LINT_WARNING] ? 3 : 0;
}

/* Collective: what one rank alone would find, found together. */
static Status look(Asked *k, Comm *comm, Team *team, Err *e)
{
    if (k->digest)
        TRY(weight_digests(&k->c, &k->modules, comm, team, k->digests, e));
    if (k->deep)
        TRY(lint_run(k->model, &k->c, &k->modules, comm, team, &k->lint, e));
    return ST_OK;
}

static Status open_all(Asked *k, Err *e)
{
    TRY(inspect_open(k->model, k->accept.at, k->accept.n, k->n_ranks, &k->s, e));
    TRY(checkpoint_open(k->model, &k->s.arch, &k->c, e));
    TRY(modules_create(&k->c, &k->s.arch, &k->modules, e));
    k->digests = calloc((size_t)k->modules.n + 1, sizeof *k->digests);
    return k->digests ? ST_OK : err_set(e, ST_MEMORY, "not enough memory for the digests");
}

static void close_all(Asked *k)
{
    lint_free(&k->lint);
    free(k->digests);
    modules_free(&k->modules);
    checkpoint_close(&k->c);
    inspect_close(&k->s);
}

static int run_deep(void *ctx, Comm *comm, Status *out, Err *e)
{
    Asked *k = ctx;
    Team *team = NULL;
    int threads = k->threads ? k->threads : comm->n_cores;
    Status st = open_all(k, e);
    if (st == ST_OK && threads > 1)
        st = team_create(&team, threads, e);
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = look(k, comm, team, e);
    if (st == ST_OK && comm->rank == 0)
        st = report(k, e);
    st = dist_agree(comm, st, e);
    int code = exit_code(k);
    team_destroy(team);
    close_all(k);
    *out = st;
    return comm->rank == 0 ? code : 0;
}

static int run_headers(Asked *k)
{
    Err e = {0};
    Status st = inspect_open(k->model, k->accept.at, k->accept.n, k->n_ranks, &k->s, &e);
    if (st == ST_OK)
        st = report(k, &e);
    close_all(k);
    if (st != ST_OK)
        fprintf(stderr, "moebatch: %s\n", e.text);
    return st == ST_OK ? 0 : 1;
}

/* --- the command --- */

static void print_help(const Option *options, size_t n)
{
    puts(
        "Usage: [mpirun -n RANKS] moebatch inspect MODEL [options]\n\n"
        "Says what a checkpoint is: family, sizes, parameters, dtypes, which modules are quantized "
        "how,\n"
        "the KV cache of a token, and what each rank would hold. Reads config.json and the headers "
        "of\n"
        "the files; with --digest or --deep every weight, shared out among the ranks.\n");
    options_print(options, n);
    puts("\nExit codes: 0 done (--deep: clean), 3 --deep found warnings only, 1 the checkpoint "
         "would be\n"
         "refused, 2 usage.\n\n"
         "Example: moebatch inspect MODEL --ranks 8 --json");
}

int cmd_inspect(int argc, char **argv)
{
    Asked k = {.n_ranks = 1};
    const char *dirs[1] = {NULL};
    bool help = false;
    int n_dirs = 0;
    Err e = {0};
    const Option options[] = {
        {"--model", "-m", OPTION_TEXT, &k.model, NULL, 0, 0, "DIR", "the same as MODEL"},
        {"--ranks", NULL, OPTION_INT, &k.n_ranks, NULL, 1, 1 << 16, "N",
         "ranks to deal the experts to (1)"},
        {"--json", NULL, OPTION_FLAG, &k.json, NULL, 0, 0, NULL, "one JSON object, sizes in bytes"},
        {"--digest", NULL, OPTION_FLAG, &k.digest, NULL, 0, 0, NULL,
         "SHA-256 of what each quantized weight decodes to"},
        {"--deep", NULL, OPTION_FLAG, &k.deep, NULL, 0, 0, NULL,
         "look at every value: scales, codes, exclusions, files"},
        {"--threads", NULL, OPTION_INT, &k.threads, NULL, 1, 1024, "N",
         "of each rank, with --digest and --deep (its share of the cores)"},
        {"--accept-config-key", NULL, OPTION_LIST, &k.accept, NULL, 0, 0, "KEY",
         "go on although config.json has this unknown key"},
    };
    size_t n = sizeof options / sizeof *options;
    Status st = options_parse(options, n, argc, argv, dirs, 1, &n_dirs, &help, &e);
    if (st == ST_OK && help) {
        print_help(options, n);
        return 0;
    }
    if (st == ST_OK)
        st = app_one_model(&k.model, dirs, n_dirs, &e);
    if (st != ST_OK)
        return app_usage("inspect", &e);
    return k.digest || k.deep ? app_with_ranks(argc, argv, run_deep, &k) : run_headers(&k);
}
