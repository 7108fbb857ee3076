/* model/kv_cache.c - see kv_cache.h. */
#include "model/kv_cache.h"

#include <stdlib.h>
#include <string.h>

static int group_of(const KvGroup *groups, int n_groups, int window)
{
    for (int g = 0; g < n_groups; g++)
        if (groups[g].window == window)
            return g;
    return -1;
}

/* Counts layers per window; returns the number of groups, or -1 when there are too many kinds. */
static int count_groups(const Arch *arch, KvGroup *groups)
{
    int n = 0;
    for (int l = 0; l < arch->n_layers; l++) {
        int g = group_of(groups, n, arch->layers[l].window);
        if (g < 0) {
            if (n == MAX_KV_GROUPS)
                return -1;
            g = n++;
            groups[g] = (KvGroup){arch->layers[l].window, 0};
        }
        groups[g].n_layers++;
    }
    return n;
}

static int largest_group(const KvGroup *groups, int n)
{
    int most = 0;
    for (int g = 0; g < n; g++)
        if (groups[g].n_layers > most)
            most = groups[g].n_layers;
    return most;
}

static size_t page_bytes(const Arch *arch, KvDtype dtype, const BackendOps *ops,
                         const Backend *backend)
{
    if (arch->attn == ATTN_LATENT)
        return ops->latent_page_bytes(backend, arch->latent.latent_dim, arch->latent.rope_dim,
                                      dtype);
    return ops->kv_page_bytes(backend, arch->n_kv_heads, arch->head_dim, dtype);
}

size_t kv_block_bytes(const Arch *arch, KvDtype dtype, const BackendOps *ops,
                      const Backend *backend)
{
    KvGroup groups[MAX_KV_GROUPS];
    int n = count_groups(arch, groups);
    if (n <= 0)
        return 0;
    return (size_t)largest_group(groups, n) * page_bytes(arch, dtype, ops, backend);
}

int64_t kv_blocks_needed(const KvCache *kv, int n_positions, int chunk)
{
    int64_t total = 0, whole = (n_positions + KV_PAGE - 1) / KV_PAGE;
    for (int g = 0; g < kv->n_groups; g++) {
        int64_t pages = whole;
        if (kv->groups[g].window) {
            /* A span of window + chunk - 1 positions touches at most this many pages. */
            int64_t reach = ((int64_t)kv->groups[g].window + chunk - 2) / KV_PAGE + 2;
            if (reach < pages)
                pages = reach;
        }
        total += pages;
    }
    return total;
}

Status kv_create(KvCache *out, const Arch *arch, KvDtype dtype, const BackendOps *ops,
                 Backend *backend, size_t budget_bytes, Err *e)
{
    Status st = ST_OK;
    KvCache kv = {.ops = ops, .backend = backend};
    kv.n_groups = count_groups(arch, kv.groups);
    if (kv.n_groups < 0)
        return err_set(e, ST_INPUT, "the model has more than %d kinds of attention window",
                       MAX_KV_GROUPS);
    if (arch->n_layers < 1)
        return err_set(e, ST_INPUT, "the model has no layers");
    kv.layer_group = calloc((size_t)arch->n_layers, sizeof *kv.layer_group);
    kv.layer_slot = calloc((size_t)arch->n_layers, sizeof *kv.layer_slot);
    if (!kv.layer_group || !kv.layer_slot) {
        st = err_set(e, ST_MEMORY, "out of memory for the KV cache's layer table");
        goto fail;
    }
    int used[MAX_KV_GROUPS] = {0};
    for (int l = 0; l < arch->n_layers; l++) {
        int g = group_of(kv.groups, kv.n_groups, arch->layers[l].window);
        kv.layer_group[l] = g;
        kv.layer_slot[l] = used[g]++;
    }
    kv.page_bytes = page_bytes(arch, dtype, ops, backend);
    kv.pages_per_block = largest_group(kv.groups, kv.n_groups);
    size_t block_bytes = kv.page_bytes * (size_t)kv.pages_per_block;
    size_t n = budget_bytes / block_bytes;
    size_t most = (size_t)(INT32_MAX / kv.pages_per_block); /* page numbers are int32 */
    kv.n_blocks = (int)(n > most ? most : n < 1 ? 1 : n);
    kv.free_blocks = malloc((size_t)kv.n_blocks * sizeof *kv.free_blocks);
    if (!kv.free_blocks) {
        st = err_set(e, ST_MEMORY, "out of memory for a list of %d KV blocks", kv.n_blocks);
        goto fail;
    }
    TRY_GOTO(ops->alloc(backend, (size_t)kv.n_blocks * block_bytes, "the KV cache", &kv.pool, e));
    kv.n_free = kv.n_blocks;
    /* the lowest block is taken first, so that memory is touched as needed */
    for (int i = 0; i < kv.n_blocks; i++)
        kv.free_blocks[i] = kv.n_blocks - 1 - i;
    *out = kv;
    return ST_OK;
fail:
    kv_free(&kv);
    return st;
}

void kv_free(KvCache *kv)
{
    if (kv->pool)
        kv->ops->release(kv->backend, kv->pool);
    free(kv->layer_group);
    free(kv->layer_slot);
    free(kv->free_blocks);
    *kv = (KvCache){0};
}

static Status grow_table(KvSeq *s, int n_groups, int need, Err *e)
{
    if (need <= s->cap)
        return ST_OK;
    int cap = s->cap ? s->cap * 2 : 16;
    if (cap < need)
        cap = need;
    for (int g = 0; g < n_groups; g++) {
        int32_t *p = realloc(s->pages[g], (size_t)cap * sizeof *p);
        if (!p)
            return err_set(e, ST_MEMORY, "out of memory for a page table of %d entries", cap);
        for (int i = s->cap; i < cap; i++)
            p[i] = -1;
        s->pages[g] = p;
    }
    s->cap = cap;
    return ST_OK;
}

static void drop_page(KvCache *kv, KvSeq *s, int g, int i)
{
    kv->free_blocks[kv->n_free++] = s->pages[g][i] / kv->pages_per_block;
    s->pages[g][i] = -1;
}

/* The first page of group g that the query at pos, or a later one, can reach. */
static int first_page(const KvGroup *group, int pos)
{
    int lowest = group->window ? pos - group->window + 1 : 0;
    return lowest > 0 ? lowest / KV_PAGE : 0;
}

Status kv_seq_extend(KvCache *kv, KvSeq *s, int pos, int n, bool *ok, Err *e)
{
    int end = (pos + n - 1) / KV_PAGE + 1, need = 0;
    *ok = false;
    TRY(grow_table(s, kv->n_groups, end, e));
    for (int g = 0; g < kv->n_groups; g++) {
        int first = first_page(&kv->groups[g], pos);
        while (s->first[g] < first && s->first[g] < s->end[g])
            drop_page(kv, s, g, s->first[g]++);
        if (s->first[g] < first)
            s->first[g] = s->end[g] = first;
        need += end > s->end[g] ? end - s->end[g] : 0;
    }
    if (need > kv->n_free)
        return ST_OK;
    for (int g = 0; g < kv->n_groups; g++)
        while (s->end[g] < end)
            s->pages[g][s->end[g]++] = kv->free_blocks[--kv->n_free] * kv->pages_per_block;
    *ok = true;
    return ST_OK;
}

void kv_seq_release(KvCache *kv, KvSeq *s)
{
    for (int g = 0; g < kv->n_groups; g++) {
        for (int i = s->first[g]; i < s->end[g]; i++)
            drop_page(kv, s, g, i);
        s->first[g] = s->end[g] = 0;
    }
}

void kv_seq_free(KvCache *kv, KvSeq *s)
{
    kv_seq_release(kv, s);
    for (int g = 0; g < kv->n_groups; g++)
        free(s->pages[g]);
    *s = (KvSeq){0};
}

void *kv_layer_pool(const KvCache *kv, int layer)
{
    return (char *)kv->pool + (size_t)kv->layer_slot[layer] * kv->page_bytes;
}
