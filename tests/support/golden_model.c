/* tests/support/golden_model.c - see golden_model.h. */
#include "tests/support/golden_model.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(Status st, const Err *e)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "a call failed: %s\n", e->text);
    exit(1);
}

void golden_open(const char *dir, GoldenModel *g)
{
    char path[2 * FILE_PATH_MAX];
    GenerationDefaults generation;
    Err e = {0};
    *g = (GoldenModel){0};
    snprintf(g->dir, sizeof g->dir, "%s", dir);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    must(file_map(path, &g->map, &e), &e);
    must(safetensors_parse(g->map.data, g->map.len, &g->file, &e), &e);
    must(arch_load(dir, NULL, 0, &g->arch, &generation, &e), &e);
}

void golden_close(GoldenModel *g)
{
    arch_free(&g->arch);
    safetensors_free(&g->file);
    file_unmap(&g->map);
}

const TensorEntry *golden_entry(const GoldenModel *g, const char *what, int k)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", what, k);
    for (int i = 0; i < g->file.n; i++)
        if (strcmp(g->file.entries[i].name, name) == 0)
            return &g->file.entries[i];
    return NULL;
}

int golden_ids(const GoldenModel *g, int k, int32_t ids[GOLDEN_ROWS])
{
    const TensorEntry *entry = golden_entry(g, "input_ids", k);
    if (!entry)
        return 0;
    int n = (int)entry->shape[0];
    if (n > GOLDEN_ROWS) {
        fprintf(stderr, "%s: prompt %d has %d tokens\n", g->dir, k, n);
        exit(1);
    }
    memcpy(ids, entry->data, (size_t)n * sizeof *ids);
    return n;
}

Model *golden_load(const GoldenModel *g, Comm *comm, const BackendOps *ops, Backend *backend,
                   const Precision *precision)
{
    Model *m = NULL;
    Err e = {0};
    ModelConfig config = {.dir = g->dir,
                          .precision = *precision,
                          .ops = ops,
                          .backend = backend,
                          .max_rows = GOLDEN_ROWS,
                          .max_seqs = 1,
                          .max_len = 256,
                          .kv_bytes = 8 << 20,
                          .round_bytes = 1 << 14,
                          .logits_bytes = 1 << 15};
    precision_resolve(&config.precision, ops);
    must(model_create(&m, &g->arch, &config, comm, &e), &e);
    return m;
}

void golden_run(Model *m, const int32_t *ids, int n, float *out)
{
    int32_t position[GOLDEN_ROWS];
    KvSeq kv = {0};
    bool ok = true, all_know = false;
    Err e = {0};
    for (int i = 0; i < n; i++)
        position[i] = i;
    must(kv_seq_extend(&m->kv, &kv, 0, n, &ok, &e), &e);
    StepSeq seq = {0, n, 0, n, n, &kv};
    Step step = {.ids = ids, .position = position, .n_rows = n, .seqs = &seq, .n_seqs = 1};
    must(model_step(m, &step, &all_know, &e), &e);
    for (int first = 0; first < n; first += m->logits_rows) {
        int take = n - first < m->logits_rows ? n - first : m->logits_rows;
        const float *logits;
        must(model_logits(m, first, take, &logits, &e), &e);
        memcpy(out + (int64_t)first * m->arch->vocab, logits,
               (size_t)take * (size_t)m->arch->vocab * sizeof *out);
    }
    kv_seq_free(&m->kv, &kv);
}

static int has_golden(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static bool is_wanted(const char *name, int n_names, char *const *names)
{
    for (int i = 0; i < n_names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return n_names == 0;
}

int golden_each(const char *folder, int n_names, char *const *names,
                int (*fn)(void *ctx, const char *dir, const char *name), void *ctx)
{
    struct dirent **list;
    int n = scandir(folder, &list, has_golden, alphasort), sum = 0, n_found = 0;
    if (n < 0) {
        fprintf(stderr, "%s: cannot be read\n", folder);
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        char path[2 * FILE_PATH_MAX];
        snprintf(path, sizeof path, "%s/%s/golden.safetensors", folder, list[i]->d_name);
        if (is_wanted(list[i]->d_name, n_names, names) && file_exists(path)) {
            snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
            sum += fn(ctx, path, list[i]->d_name);
            n_found++;
        }
        free(list[i]);
    }
    free(list);
    if (n_found < n_names) {
        fprintf(stderr, "%s: %d of %d checkpoints that were named\n", folder, n_found, n_names);
        exit(1);
    }
    return sum;
}
