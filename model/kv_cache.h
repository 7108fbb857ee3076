/* model/kv_cache.h - paged keys and values of the sequences at home on this rank.
 *
 * Layers with the same window form a group and share page tables. A block holds one page
 * (KV_PAGE positions) of every layer of a group, and any block serves any group. A window group
 * keeps only the pages that the window or the running chunk can reach. */
#ifndef MB_MODEL_KV_CACHE_H
#define MB_MODEL_KV_CACHE_H

#include "model/arch.h"

enum { MAX_KV_GROUPS = 4 };

typedef struct KvGroup {
    int window; /* 0: full attention */
    int n_layers;
} KvGroup;

typedef struct KvCache {
    const BackendOps *ops;
    Backend *backend;
    void *pool;
    int n_groups;
    KvGroup groups[MAX_KV_GROUPS];
    int *layer_group; /* [n_layers] group of each layer */
    int *layer_slot;  /* [n_layers] its place inside the group's block */
    size_t page_bytes;
    int pages_per_block; /* in units of page_bytes */
    int n_blocks, n_free;
    int32_t *free_blocks; /* [n_blocks], the first n_free are free */
} KvCache;

/* One sequence's pages. pages[g][i] is the page number of positions i*KV_PAGE .. in group g, as
 * AttnSeq.pages wants it for slot 0 of the group; -1 where none is held. */
typedef struct KvSeq {
    int32_t *pages[MAX_KV_GROUPS];
    int first[MAX_KV_GROUPS], end[MAX_KV_GROUPS]; /* held pages: first .. end-1 */
    int cap;                                      /* entries of each pages array */
} KvSeq;                                          /* all zero: holds nothing */

/* Bytes of one block, and how many blocks a sequence of n positions holds at most when it runs
 * in chunks of at most chunk positions. */
size_t kv_block_bytes(const Arch *arch, KvDtype dtype, const BackendOps *ops,
                      const Backend *backend);
int64_t kv_blocks_needed(const KvCache *kv, int n_positions, int chunk);

/* Takes budget_bytes / kv_block_bytes blocks; at least one. */
Status kv_create(KvCache *out, const Arch *arch, KvDtype dtype, const BackendOps *ops,
                 Backend *backend, size_t budget_bytes, Err *e);
void kv_free(KvCache *kv);

/* Makes room for positions pos .. pos+n-1, after dropping pages that no later query reaches.
 * False, with nothing taken but the dropped pages given back, when blocks are short. ST_MEMORY
 * only when the table cannot grow. */
Status kv_seq_extend(KvCache *kv, KvSeq *s, int pos, int n, bool *ok, Err *e);
/* Gives everything back; s may be used again from position 0. */
void kv_seq_release(KvCache *kv, KvSeq *s);
void kv_seq_free(KvCache *kv, KvSeq *s);

/* The pool as the ops of this layer take it. */
void *kv_layer_pool(const KvCache *kv, int layer);

#endif
