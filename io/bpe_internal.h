/* io/bpe_internal.h - the tables that bpe_load.c or bpe_ranks.c fills and bpe.c reads. */
#ifndef MB_IO_BPE_INTERNAL_H
#define MB_IO_BPE_INTERNAL_H

#include "io/bpe.h"

#define NO_RANK UINT32_MAX

typedef struct Merge {
    uint32_t left, right; /* left NO_RANK: free slot */
    uint32_t rank, result;
} Merge;

struct Bpe {
    bool byte_level, ignore_merges, byte_fallback, fuse_unk;
    bool has_unk;   /* the file names an unknown token */
    int32_t unk_id; /* -1: it is not in the vocabulary, an error once it is needed */
    int32_t n_ids, n_tokens;
    char *pool;  /* all strings below */
    Text *texts; /* [n_ids] as in the file */
    VocabTable by_text;
    Text *pieces; /* [n_ids] as pieces spell them: raw bytes where byte_level, else texts itself */
    VocabTable by_piece; /* only entries that a piece of that spelling becomes as a whole */
    Merge *merges;
    int merge_shift;          /* 64 - log2 of the slots */
    int32_t start_id[256];    /* of a byte where byte_level, else of an ASCII character; -1: none */
    int32_t fallback_id[256]; /* of "<0xHH>", -1: none */
    /* Pairs of characters that stand side by side in some vocabulary entry. No merge can reach
     * across any other pair, so a text may be cut there: a vocabulary that never has a space inside
     * gives words. Not used where byte_level (pieces are short) or ignore_merges (the whole piece
     * counts). */
    bool cuts;
    uint64_t ascii_pairs[128][2];
    uint64_t *pairs; /* open addressing, 0: free */
    size_t pairs_mask;
};

/* An empty table for n merges; false when memory is short. */
bool bpe_create_merges(Bpe *b, size_t n);
/* There must be room. A pair that comes twice counts as it stands last. */
void bpe_put_merge(Bpe *b, Merge m);

/* The merge of two ids, or NULL. */
static inline const Merge *bpe_find_merge(const Bpe *b, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right;
    size_t mask = (SIZE_MAX >> b->merge_shift);
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> b->merge_shift);
    for (;; i = (i + 1) & mask) {
        const Merge *m = &b->merges[i];
        if (m->left == left && m->right == right)
            return m;
        if (m->left == NO_RANK)
            return NULL;
    }
}

/* Whether characters x and y stand side by side in some entry. */
static inline bool bpe_adjacent(const Bpe *b, uint32_t x, uint32_t y)
{
    if ((x | y) < 128)
        return b->ascii_pairs[x][y >> 6] >> (y & 63) & 1;
    uint64_t key = (uint64_t)x << 32 | (y + 1); /* never 0 */
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & b->pairs_mask;
    while (b->pairs[i] && b->pairs[i] != key)
        i = (i + 1) & b->pairs_mask;
    return b->pairs[i] != 0;
}

/* The ids of a piece by merging alone, without the cache, the whole-piece table and cuts. */
Status bpe_merge_piece(const Bpe *b, BpeCache *c, const char *piece, size_t len, TokenIds *out,
                       Err *e);

#endif
