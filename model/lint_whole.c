/* model/lint_whole.c - what no single tensor shows: exclusions that mean nothing, parts that nobody
 * lists, matrices that are there twice, scales of the cache, unequal scales. */
#include "model/lint_internal.h"

#include "io/side_files.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_BYTES = 64 }; /* smaller tensors may be alike by chance */

/* --- the recipe --- */

/* Lists also name norms, and layers that this program skips. */
static void ask_about(Recipe *r, const char *tensor)
{
    static const char experts[] = ".experts.";
    char module[MODULE_NAME_MAX];
    const QuantScheme *s;
    Err e;
    const char *dot = strrchr(tensor, '.');
    size_t len = dot ? (size_t)(dot - tensor) : strlen(tensor);
    if (len >= sizeof module)
        return;
    memcpy(module, tensor, len);
    module[len] = 0;
    /* Errors are about fused parts, which binding has checked where it matters. */
    (void)recipe_linear(r, module, &s, &e);
    char *bank = strstr(module, experts);
    if (bank) {
        bank[sizeof experts - 2] = 0;
        (void)recipe_linear(r, module, &s, &e);
    }
}

static void lint_recipe(Checkpoint *c, StrBuf *out)
{
    const char *text;
    for (int i = 0; i < c->files.n; i++)
        if (!c->use[i].expert) /* the banks were asked about, and there are many experts */
            ask_about(c->recipe, c->files.entries[i]->name);
    for (int i = 0; (text = recipe_warning(c->recipe, i)) != NULL; i++)
        lint_add(out, LINT_WARNING, "%s", text);
    for (int i = 0; (text = recipe_unused(c->recipe, i)) != NULL; i++)
        lint_add(out, LINT_WARNING,
                 "config.json: the quantization configuration speaks of \"%s\", expected a name or "
                 "pattern that some tensor has",
                 text);
}

/* --- files --- */

/* Parts left over from an earlier export, or copied beside the others: what readers that take all
 * of "model*.safetensors" would take, too. */
static void lint_files(const char *dir, const Checkpoint *c, StrBuf *out)
{
    DIR *d = opendir(dir);
    if (!d)
        return;
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        bool known = strncmp(entry->d_name, "model", 5) != 0 ||
                     !file_name_ends(entry->d_name, ".safetensors");
        for (int i = 0; i < c->files.n_parts && !known; i++)
            known = strcmp(c->files.parts[i].name, entry->d_name) == 0;
        if (!known)
            lint_add(out, LINT_WARNING, "%s: is not one of the %d parts that %s stands for",
                     entry->d_name, c->files.n_parts, c->files.list_name);
    }
    closedir(d);
}

/* --- twins --- */

typedef struct Twin {
    int64_t crc;
    int module;
} Twin;

static int by_crc(const void *a, const void *b)
{
    const Twin *x = a, *y = b;
    if (x->crc != y->crc)
        return x->crc < y->crc ? -1 : 1;
    return x->module - y->module;
}

static void lint_twins(const Checkpoint *c, const Modules *modules, const int64_t *crcs,
                       StrBuf *out)
{
    Twin *t = malloc((size_t)(modules->n + 1) * sizeof *t);
    int n = 0;
    if (!t) {
        out->failed = true;
        return;
    }
    for (int i = 0; i < modules->n; i++)
        if (crcs[i] && modules->at[i].t->weight->bytes >= LEAST_BYTES)
            t[n++] = (Twin){crcs[i], i};
    qsort(t, (size_t)n, sizeof *t, by_crc);
    for (int i = 1; i < n; i++) {
        const TensorEntry *a = modules->at[t[i - 1].module].t->weight;
        const TensorEntry *b = modules->at[t[i].module].t->weight;
        if (t[i].crc == t[i - 1].crc && a->bytes == b->bytes &&
            memcmp(a->data, b->data, (size_t)a->bytes) == 0)
            lint_tensor(out, LINT_WARNING, c, b, "holds the same bytes as tensor \"%.200s\" in %s",
                        a->name, tensor_set_file(&c->files, a));
    }
    free(t);
}

/* --- scales --- */

static void lint_kv(const Checkpoint *c, StrBuf *out)
{
    int missing = 0, ones = 0, large = 0;
    for (int n = 0; n < c->n_layers; n++) {
        const TensorEntry *const scales[] = {c->layers[n].k_scale, c->layers[n].v_scale};
        for (int i = 0; i < 2; i++) {
            float v;
            Err e;
            missing += !scales[i];
            if (!scales[i])
                continue;
            if (linear_kv_scale(&c->files, scales[i], &v, &e) != ST_OK) {
                lint_add(out, LINT_ERROR, "%s", e.text);
                continue;
            }
            ones += v == 1;
            large += v > 0.5f && v != 1;
        }
    }
    if (recipe_kv_algo(c->recipe) != KV_ALGO_NONE && missing)
        lint_add(out, LINT_WARNING,
                 "%d scales of the quantized KV cache are missing, and are taken as 1", missing);
    if (ones)
        lint_add(out, LINT_NOTE, "%d scales of the KV cache are 1, as where nothing was calibrated",
                 ones);
    if (large)
        lint_add(out, LINT_NOTE, "%d scales of the KV cache are above 0.5", large);
}

static void lint_idle(const Checkpoint *c, StrBuf *out)
{
    const TensorEntry *first = NULL;
    int n = 0;
    for (int i = 0; i < c->files.n; i++)
        if (c->use[i].bound && c->use[i].skipped) {
            first = first ? first : c->files.entries[i];
            n++;
        }
    if (n)
        lint_tensor(out, LINT_NOTE, c, first,
                    "one of %d activation scales that their formats do not use", n);
}

static bool values_differ(const TensorEntry *a, const TensorEntry *b)
{
    return a && b && (a->bytes != b->bytes || memcmp(a->data, b->data, (size_t)a->bytes) != 0);
}

static void count_unequal(const LinearTensors *gate, const LinearTensors *up, int *weights,
                          int *inputs)
{
    bool one_scale = gate->scheme && gate->scheme->grid == GRID_TENSOR;
    *weights += values_differ(gate->global, up->global) ||
                (one_scale && values_differ(gate->scale, up->scale));
    *inputs += values_differ(gate->input, up->input);
}

/* Other engines take one scale for both; here each keeps its own (contract.md 7). */
static void lint_unequal(const Checkpoint *c, const Modules *modules, StrBuf *out)
{
    int weights = 0, inputs = 0;
    for (int n = 0; n < c->n_layers; n++) {
        const LayerTensors *t = &c->layers[n];
        count_unequal(&t->dense.gate, &t->dense.up, &weights, &inputs);
        count_unequal(&t->shared.gate, &t->shared.up, &weights, &inputs);
    }
    for (int i = 0; i + 1 < modules->n; i++) { /* an expert's gate and its up follow each other */
        const Module *m = &modules->at[i];
        const ExpertTensors *x = m->layer < 0 ? NULL : &c->layers[m->layer].experts;
        if (m->expert && !m->n_stack && m->t >= x->gate && m->t < x->up)
            count_unequal(m->t, modules->at[i + 1].t, &weights, &inputs);
    }
    if (weights)
        lint_add(out, LINT_NOTE, "gate and up have different weight scales in %d pairs", weights);
    if (inputs)
        lint_add(out, LINT_NOTE, "gate and up have different input scales in %d pairs", inputs);
}

void lint_whole(const char *dir, Checkpoint *c, const Modules *modules, const int64_t *crcs,
                StrBuf *out)
{
    lint_recipe(c, out);
    lint_files(dir, c, out);
    lint_twins(c, modules, crcs, out);
    lint_kv(c, out);
    lint_idle(c, out);
    lint_unequal(c, modules, out);
}
