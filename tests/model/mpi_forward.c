/* tests/model/mpi_forward.c - the forward pass against transformers' logits, in several
 * chunkings that must give the same bits. */
#include "dist/comm.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "tests/support/check.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 144, MAX_PROMPTS = 8 }; /* the longest prompt has 137 */

typedef struct Golden {
    FileMap map;
    SafeTensors tensors;
    const char *tensor; /* what to compare with: "logits", "stored" */
    double limit[MAX_PROMPTS];
} Golden;

static const TensorEntry *entry(const Golden *g, const char *what, int k)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", what, k);
    for (int i = 0; i < g->tensors.n; i++)
        if (strcmp(g->tensors.entries[i].name, name) == 0)
            return &g->tensors.entries[i];
    return NULL;
}

/* Logits of all positions, in chunks of chunk, the first n_prompt of them as prompt. Only rank
 * home has the sequence; the others bring nothing. */
static Status run_prompt(Model *m, const int32_t *ids, int n, int n_prompt, int chunk, bool home,
                         float *out, Err *e)
{
    KvSeq kv = {0};
    Status st = ST_OK;
    int32_t position[MAX_ROWS];
    for (int pos = 0; pos < n && st == ST_OK; pos += chunk) {
        int rows = n - pos < chunk ? n - pos : chunk;
        bool ok = true, all_know = false;
        StepSeq seq = {0, rows, pos, rows, n_prompt, &kv};
        Step step = {.number = pos,
                     .ids = ids + pos,
                     .position = position,
                     .n_rows = rows,
                     .seqs = &seq,
                     .n_seqs = 1};
        for (int i = 0; i < rows; i++)
            position[i] = pos + i;
        if (home)
            st = kv_seq_extend(&m->kv, &kv, pos, rows, &ok, e);
        else
            step.n_rows = step.n_seqs = 0;
        if (st == ST_OK)
            st = model_step(m, &step, &all_know, e);
        for (int first = 0; home && st == ST_OK && first < rows; first += m->logits_rows) {
            const float *logits;
            int take = rows - first < m->logits_rows ? rows - first : m->logits_rows;
            st = model_logits(m, first, take, &logits, e);
            if (st == ST_OK)
                memcpy(out + (int64_t)(pos + first) * m->arch->vocab, logits,
                       (size_t)take * (size_t)m->arch->vocab * sizeof *out);
        }
    }
    kv_seq_free(&m->kv, &kv);
    return st;
}

/* Over the reference's deviation; with l2, the relative L2. */
static double worst_ratio(const float *got, const TensorEntry *want, bool l2)
{
    int64_t n = want->shape[0] * want->shape[1];
    double sum = 0, squares = 0, most = 0, apart = 0;
    for (int64_t i = 0; i < n; i++) {
        float w;
        memcpy(&w, want->data + 4 * i, 4);
        double d = fabs((double)got[i] - (double)w);
        most = d <= most ? most : d;
        apart += d * d;
        sum += (double)w;
        squares += (double)w * (double)w;
    }
    double mean = sum / (double)n;
    if (l2)
        return sqrt(apart / squares);
    return most / sqrt(squares / (double)n - mean * mean);
}

/* Logits: the largest difference is below 2e-4 of the deviation. What was rounded: relative L2
 * below max(2e-4, 5 x the noise) of the prompt (goldens/README.md). */
static Status read_limits(Golden *g, const char *dir, Err *e)
{
    char path[FILE_PATH_MAX], key[64], *text;
    size_t len;
    Arena arena = {0};
    JsonValue *v;
    for (int k = 0; k < MAX_PROMPTS; k++)
        g->limit[k] = 2e-4;
    if (strcmp(g->tensor, "logits") == 0)
        return ST_OK;
    TRY(file_join(path, dir, "golden.json", e));
    TRY(file_read(path, 1 << 20, &text, &len, e));
    Status st = json_parse(text, len, &arena, &v, e);
    snprintf(key, sizeof key, "%s_noise", g->tensor);
    const JsonValue *list = st == ST_OK ? json_get(v, key) : NULL;
    int k = 0;
    for (const JsonValue *n = list ? list->child : NULL; n && k < MAX_PROMPTS; n = n->next, k++) {
        double noise = 0;
        if (json_double(n, &noise) && 5 * noise > g->limit[k])
            g->limit[k] = 5 * noise;
    }
    if (st == ST_OK && k == 0)
        st = err_set(e, ST_INPUT, "%s: no %s", path, key);
    arena_free(&arena);
    free(text);
    return st;
}

/* In several chunkings, which must give the same bits; *worst becomes at least the difference
 * from the reference, as a share of its limit. */
static int compare_prompt(Model *m, const Golden *g, int k, int n_prompt, const int *chunks,
                          int n_chunks, const char *name, double *worst)
{
    const TensorEntry *ids_entry = entry(g, "input_ids", k), *want = entry(g, g->tensor, k);
    int n = (int)ids_entry->shape[0], failed = 0;
    int32_t ids[MAX_ROWS];
    bool home = m->comm->rank == k % m->comm->size;
    size_t bytes = (size_t)n * (size_t)m->arch->vocab * sizeof(float);
    float *first = malloc(bytes), *again = malloc(bytes);
    if (!first || !again)
        return 1;
    memcpy(ids, ids_entry->data, (size_t)n * 4);
    for (int c = 0; c < n_chunks && !failed; c++) {
        Err e;
        Status st = run_prompt(m, ids, n, n_prompt < n ? n_prompt : n, chunks[c], home,
                               c ? again : first, &e);
        if (st != ST_OK)
            fprintf(stderr, "%s: %s\n", name, e.text);
        failed += check_int(name, st, ST_OK);
        if (!home || failed)
            continue;
        if (c == 0)
            *worst = fmax(*worst,
                          worst_ratio(first, want, strcmp(g->tensor, "logits") != 0) / g->limit[k]);
        else
            failed += check_true("another chunking gives the same bits",
                                 memcmp(first, again, bytes) == 0);
    }
    free(first);
    free(again);
    return failed;
}

/* Every position as prompt, as scoring has it; then as generation does: all but the first few
 * positions come after the prompt, which for latent attention is another form of the same sums. */
static int compare_prompts(Model *m, const Golden *g, const char *name)
{
    static const int chunks[] = {MAX_ROWS, 1, 7, 17, 64}, some[] = {MAX_ROWS, 1, 19};
    int failed = 0;
    double scored = 0, generated = 0;
    for (int k = 0; entry(g, "input_ids", k); k++) {
        failed += compare_prompt(m, g, k, MAX_ROWS, chunks, sizeof chunks / sizeof *chunks, name,
                                 &scored);
        failed += compare_prompt(m, g, k, 5, some, sizeof some / sizeof *some, name, &generated);
    }
    printf("%s %s, rank %d of %d: %.2g of the limit; %.2g where 5 positions are prompt\n", name,
           g->tensor, m->comm->rank, m->comm->size, scored, generated);
    /* Latents are summed in two forms, and what is rounded between them may fall either way. */
    bool two_forms = m->arch->attn == ATTN_LATENT && strcmp(g->tensor, "logits") != 0;
    failed += check_true(name, scored < 1 && (generated < 1 || two_forms));
    if (m->arch->attn == ATTN_HEADS)
        failed += check_true("only latent attention has two forms", scored == generated);
    return failed;
}

typedef struct Reference {
    const char *tensor;
    Precision precision;
} Reference;

static const Reference exact = {"logits", {.activations = ACTIVATIONS_NONE}};

static int compare_model(Comm *comm, const char *dir, const char *name, const Reference *r)
{
    char path[FILE_PATH_MAX], golden[FILE_PATH_MAX];
    Golden g = {.tensor = r->tensor};
    Arch arch = {0};
    GenerationDefaults gen;
    Model *m = NULL;
    Backend *backend = NULL;
    const BackendOps *ops = backend_find("cpu");
    BackendConfig bc = {.isa = isa_best()};
    Err e = {0};
    int failed = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    Status st = file_join(golden, path, "golden.safetensors", &e);
    if (st == ST_OK)
        st = file_map(golden, &g.map, &e);
    if (st == ST_OK)
        st = safetensors_parse(g.map.data, g.map.len, &g.tensors, &e);
    if (st == ST_OK)
        st = read_limits(&g, path, &e);
    if (st == ST_OK)
        st = arch_load(path, NULL, 0, &arch, &gen, &e);
    if (st == ST_OK)
        st = ops->create(&bc, &backend, &e);
    ModelConfig mc = {.dir = path,
                      .precision = r->precision,
                      .ops = ops,
                      .backend = backend,
                      .max_rows = MAX_ROWS,
                      .max_seqs = 4,
                      .max_len = 256,
                      .kv_bytes = 8 << 20,
                      .round_bytes = 1 << 14,
                      .logits_bytes = 1 << 15};
    if (st == ST_OK)
        st = model_create(&m, &arch, &mc, comm, &e);
    if (st != ST_OK)
        fprintf(stderr, "%s: %s\n", name, e.text);
    failed += check_int(name, st, ST_OK);
    if (st == ST_OK)
        failed += compare_prompts(m, &g, name);
    model_destroy(m);
    if (backend)
        ops->destroy(backend);
    arch_free(&arch);
    safetensors_free(&g.tensors);
    file_unmap(&g.map);
    return failed;
}

/* The reference data, where it is present. */
static int compare_shared(Comm *comm)
{
    static const char *const names[] = {"qwen3_moe-bf16",  "mixtral-bf16",  "gpt_oss-bf16",
                                        "gpt_oss-mxfp4",   "glm4_moe-bf16", "minimax_m2-bf16",
                                        "qwen2_moe-bf16",  "olmoe-bf16",    "granitemoe-bf16",
                                        "llama-bf16",      "qwen3-bf16",    "deepseek_v3-bf16",
                                        "deepseek_v2-bf16"};
    char dir[FILE_PATH_MAX];
    int failed = 0;
    if (!test_shared())
        return 0;
    snprintf(dir, sizeof dir, "%s/goldens", test_shared());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        failed += compare_model(comm, dir, names[i], &exact);
    return failed;
}

/* Quantized checkpoints in each of the ways in which they can run; all of them go through
 * tests/jobs/case_quantized.sh. */
static int compare_quantized(Comm *comm)
{
    static const Reference stored = {"stored", {.activations = ACTIVATIONS_STORED}},
                           kv = {"kv_fp8", {.kv_given = true, .kv = KV_FP8}},
                           per_token = {"per_token_experts", {.per_token_experts = true}};
    static const struct {
        const char *name;
        const Reference *reference;
    } cases[] = {
        {"qwen3_moe-fp8", &exact},        {"qwen3_moe-fp8", &stored},
        {"qwen3_moe-fp8", &kv},           {"qwen3_moe-fp8_uneven", &stored},
        {"qwen3_moe-fp8_pcpt", &stored},  {"qwen3_moe-fp8_pb_wo", &stored},
        {"qwen3_moe-fp8_block", &stored}, {"qwen3_moe-nvfp4", &stored},
        {"qwen3_moe-nvfp4", &kv},         {"qwen3_moe-nvfp4", &per_token},
        {"qwen3_moe-mxfp8", &stored},     {"qwen3_moe-mixed", &stored},
        {"qwen3_moe-ggml", &exact},       {"deepseek_v3-fp8", &stored},
        {"deepseek_v3-ct_int4", &exact},  {"gpt_oss-nvfp4", &exact},
    };
    char dir[FILE_PATH_MAX];
    int failed = 0;
    if (!test_shared())
        return 0;
    snprintf(dir, sizeof dir, "%s/goldens", test_shared());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += compare_model(comm, dir, cases[i].name, cases[i].reference);
    return failed;
}

static int visible(const struct dirent *d)
{
    return d->d_name[0] != '.' && strchr(d->d_name, '-') != NULL;
}

/* Our own configurations, two per family (tests/oracle). */
static int compare_families(Comm *comm)
{
    char dir[FILE_PATH_MAX];
    struct dirent **list;
    int failed = 0;
    snprintf(dir, sizeof dir, "%s/tests/data/families", getenv("SOURCE") ? getenv("SOURCE") : ".");
    int n = scandir(dir, &list, visible, alphasort);
    failed += check_true("at least two configurations of 14 families", n >= 28);
    for (int i = 0; i < n; i++) {
        failed += compare_model(comm, dir, list[i]->d_name, &exact);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return failed;
}

int main(int argc, char **argv)
{
    Comm comm;
    Err e;
    if (comm_start(&argc, &argv, &comm, &e) != ST_OK)
        return 1;
    int failed = compare_families(&comm) + compare_shared(&comm) + compare_quantized(&comm);
    comm_end(&comm);
    if (!failed && !test_shared())
        return test_skip("no reference data: only the configurations in tests/data were compared");
    return test_result(failed);
}
