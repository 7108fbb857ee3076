/* io/bpe.c - encodes a piece: from the cache, else as a whole vocabulary entry, else by merging. */
#include "io/bpe_internal.h"

#include "io/bytelevel.h"
#include "io/utf8.h"

#include <stdlib.h>

enum {
    KEY_BYTES = 30,
    ENTRY_IDS = 8,
    CACHE_BITS = 15, /* 32 Ki entries of one cache line each: 2 MiB */
    SHORT_PIECE = 64 /* symbols; up to here a scan for the best pair beats a heap */
};

typedef struct CacheEntry {
    uint8_t len; /* 0: free */
    uint8_t n;
    char key[KEY_BYTES];
    int32_t ids[ENTRY_IDS];
} CacheEntry;
_Static_assert(sizeof(CacheEntry) == 64, "an entry is a cache line");

struct BpeCache {
    CacheEntry *entries;
    /* Scratch for pieces of more than SHORT_PIECE symbols; they grow and stay. */
    uint32_t *symbols, *previous, *next, *rank;
    size_t cap;
    uint64_t *heap; /* rank << 32 | position: the natural order is the one wanted */
    size_t n_heap, cap_heap;
};

const Text *bpe_texts(const Bpe *b)
{
    return b->texts;
}

const Text *bpe_pieces(const Bpe *b)
{
    return b->pieces;
}

int32_t bpe_n_ids(const Bpe *b)
{
    return b->n_ids;
}

int32_t bpe_n_tokens(const Bpe *b)
{
    return b->n_tokens;
}

int32_t bpe_id(const Bpe *b, const char *text, size_t len)
{
    return vocab_table_find(&b->by_text, b->texts, text, len);
}

Status bpe_cache_create(BpeCache **out, Err *e)
{
    BpeCache *c = calloc(1, sizeof *c);
    if (c)
        c->entries = aligned_alloc(64, sizeof *c->entries << CACHE_BITS);
    if (!c || !c->entries) {
        free(c);
        *out = NULL;
        return err_set(e, ST_MEMORY, "no memory for a tokenizer's cache");
    }
    memset(c->entries, 0, sizeof *c->entries << CACHE_BITS);
    *out = c;
    return ST_OK;
}

void bpe_cache_free(BpeCache *c)
{
    if (!c)
        return;
    free(c->entries);
    free(c->symbols);
    free(c->previous);
    free(c->next);
    free(c->rank);
    free(c->heap);
    free(c);
}

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory to tokenize a piece of text");
}

static bool reserve_ids(TokenIds *v, size_t more)
{
    if (more <= v->cap - v->n)
        return true;
    size_t cap = v->cap ? v->cap * 2 : 64;
    if (cap < v->n + more)
        cap = v->n + more;
    int32_t *p = realloc(v->ids, cap * sizeof *p);
    if (!p)
        return false;
    v->ids = p;
    v->cap = cap;
    return true;
}

static bool grow(uint32_t **v, size_t cap)
{
    uint32_t *p = realloc(*v, cap * sizeof *p);
    if (!p)
        return false;
    *v = p;
    return true;
}

static bool reserve_symbols(BpeCache *c, size_t n)
{
    if (n <= c->cap)
        return true;
    size_t cap = c->cap ? c->cap : 1024;
    while (cap < n)
        cap *= 2;
    if (!grow(&c->symbols, cap) || !grow(&c->previous, cap) || !grow(&c->next, cap) ||
        !grow(&c->rank, cap))
        return false;
    c->cap = cap;
    return true;
}

/* ---- start symbols ---- */

/* An unknown token waits until a known character or the end comes, so that neighbours can fuse;
 * bytes of byte fallback do not flush it. That order is the reference's. */
typedef struct Starts {
    const Bpe *b;
    uint32_t *symbols;
    size_t n;
    bool pending_unk;
} Starts;

static Status add_unknown(Starts *s, const char *text, size_t len, Err *e)
{
    const Bpe *b = s->b;
    if (b->byte_fallback) {
        size_t have = 0;
        while (have < len && b->fallback_id[(uint8_t)text[have]] >= 0)
            have++;
        if (have == len) {
            for (size_t i = 0; i < len; i++)
                s->symbols[s->n++] = (uint32_t)b->fallback_id[(uint8_t)text[i]];
            return ST_OK;
        }
    }
    if (!b->has_unk)
        return ST_OK; /* it vanishes */
    if (b->unk_id < 0)
        return err_set(e, ST_INPUT, "a character is unknown, and so is the tokenizer's unk_token");
    if (s->pending_unk && !b->fuse_unk)
        s->symbols[s->n++] = (uint32_t)b->unk_id;
    s->pending_unk = true;
    return ST_OK;
}

static void flush_unknown(Starts *s)
{
    if (s->pending_unk)
        s->symbols[s->n++] = (uint32_t)s->b->unk_id;
    s->pending_unk = false;
}

/* How many symbols a piece may start as: an unknown token may come behind all others, and a byte of
 * a byte-level piece is spelled in two that may fall back each. */
static size_t most_symbols(const Bpe *b, size_t len)
{
    return (b->byte_level && b->byte_fallback ? 2 * len : len) + 1;
}

/* symbols has room for most_symbols(b, len). */
static Status start_symbols(const Bpe *b, const char *piece, size_t len, uint32_t *symbols,
                            size_t *n, Err *e)
{
    Starts s = {.b = b, .symbols = symbols};
    for (size_t i = 0; i < len;) {
        uint8_t byte = (uint8_t)piece[i];
        size_t bytes = b->byte_level ? 1 : utf8_len(byte);
        int32_t id = bytes == 1 ? b->start_id[byte] : bpe_id(b, piece + i, bytes);
        if (id >= 0) {
            flush_unknown(&s);
            symbols[s.n++] = (uint32_t)id;
        } else if (b->byte_level) {
            char spelled[4];
            TRY(add_unknown(&s, spelled, utf8_put(spelled, bytelevel_char(byte)), e));
        } else {
            TRY(add_unknown(&s, piece + i, bytes, e));
        }
        i += bytes;
    }
    flush_unknown(&s);
    *n = s.n;
    return ST_OK;
}

/* ---- merging ---- */

/* Lowest rank first, leftmost first; quadratic, with a tiny constant. */
static size_t merge_short(const Bpe *b, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT_PIECE], result[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) {
        const Merge *m = bpe_find_merge(b, ids[i], ids[i + 1]);
        rank[i] = m ? m->rank : NO_RANK;
        result[i] = m ? m->result : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_RANK)
            break;
        ids[best] = result[best];
        n--;
        for (size_t i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            result[i] = result[i + 1];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const Merge *m = bpe_find_merge(b, ids[i], ids[i + 1]);
            rank[i] = m ? m->rank : NO_RANK;
            result[i] = m ? m->result : 0;
        }
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t moving = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= moving)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static uint64_t heap_pop(BpeCache *c)
{
    uint64_t top = c->heap[0];
    c->heap[0] = c->heap[--c->n_heap];
    if (c->n_heap)
        sift_down(c->heap, c->n_heap, 0);
    return top;
}

static bool heap_reserve(BpeCache *c, size_t n)
{
    if (n <= c->cap_heap)
        return true;
    size_t cap = c->cap_heap ? c->cap_heap : 1024;
    while (cap < n)
        cap *= 2;
    uint64_t *p = realloc(c->heap, cap * sizeof *p);
    if (!p)
        return false;
    c->heap = p;
    c->cap_heap = cap;
    return true;
}

static bool heap_push(BpeCache *c, uint64_t item)
{
    if (!heap_reserve(c, c->n_heap + 1))
        return false;
    size_t i = c->n_heap++;
    while (i && c->heap[(i - 1) / 2] > item) {
        c->heap[i] = c->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    c->heap[i] = item;
    return true;
}

#define NONE UINT32_MAX

/* Looks at the pair that starts at position i again and queues it; an older entry of i in the heap
 * no longer agrees with rank[i] and is passed over when it comes up. */
static bool look_again(const Bpe *b, BpeCache *c, uint32_t i)
{
    uint32_t right = c->next[i];
    const Merge *m = right == NONE ? NULL : bpe_find_merge(b, c->symbols[i], c->symbols[right]);
    c->rank[i] = m ? m->rank : NO_RANK;
    return !m || heap_push(c, (uint64_t)m->rank << 32 | i);
}

/* The same order with a heap: n log n. Works in c->symbols; returns false when memory is short. */
static bool merge_long(const Bpe *b, BpeCache *c, size_t *n_symbols)
{
    uint32_t n = (uint32_t)*n_symbols;
    if (!heap_reserve(c, n))
        return false;
    c->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        c->previous[i] = i ? i - 1 : NONE;
        c->next[i] = i + 1 < n ? i + 1 : NONE;
        const Merge *m = i + 1 < n ? bpe_find_merge(b, c->symbols[i], c->symbols[i + 1]) : NULL;
        c->rank[i] = m ? m->rank : NO_RANK;
        if (m)
            c->heap[c->n_heap++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = c->n_heap / 2; i-- > 0;)
        sift_down(c->heap, c->n_heap, i);
    while (c->n_heap) {
        uint64_t top = heap_pop(c);
        uint32_t i = (uint32_t)top;
        if (c->rank[i] != (uint32_t)(top >> 32))
            continue;
        uint32_t right = c->next[i];
        c->symbols[i] = bpe_find_merge(b, c->symbols[i], c->symbols[right])->result;
        c->next[i] = c->next[right];
        if (c->next[i] != NONE)
            c->previous[c->next[i]] = i;
        c->rank[right] = NO_RANK; /* gone: its entries are stale */
        if (!look_again(b, c, i) || (c->previous[i] != NONE && !look_again(b, c, c->previous[i])))
            return false;
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NONE; i = c->next[i])
        c->symbols[kept++] = c->symbols[i];
    *n_symbols = kept;
    return true;
}

static Status add_ids(TokenIds *out, const uint32_t *ids, size_t n, Err *e)
{
    if (!reserve_ids(out, n))
        return no_memory(e);
    for (size_t i = 0; i < n; i++)
        out->ids[out->n + i] = (int32_t)ids[i];
    out->n += n;
    return ST_OK;
}

Status bpe_merge_piece(const Bpe *b, BpeCache *c, const char *piece, size_t len, TokenIds *out,
                       Err *e)
{
    uint32_t few[2 * SHORT_PIECE + 1], *ids = few;
    size_t n;
    if (len > SHORT_PIECE) {
        if (len > INT32_MAX || !reserve_symbols(c, most_symbols(b, len)))
            return no_memory(e);
        ids = c->symbols;
    }
    TRY(start_symbols(b, piece, len, ids, &n, e));
    if (n <= SHORT_PIECE)
        n = merge_short(b, ids, n);
    else {
        if (ids == few) {
            if (!reserve_symbols(c, n))
                return no_memory(e);
            memcpy(c->symbols, few, n * sizeof *few);
            ids = c->symbols;
        }
        if (!merge_long(b, c, &n))
            return no_memory(e);
    }
    return add_ids(out, ids, n, e);
}

/* ---- the quick ways ---- */

static Status encode_short(const Bpe *b, BpeCache *c, const char *piece, size_t len, TokenIds *out,
                           Err *e)
{
    CacheEntry *entry = &c->entries[hash_bytes(piece, len) >> (64 - CACHE_BITS)];
    if (!reserve_ids(out, ENTRY_IDS))
        return no_memory(e);
    int32_t *ids = out->ids + out->n;
    if (entry->len == len && memcmp(entry->key, piece, len) == 0) {
        memcpy(ids, entry->ids, sizeof entry->ids); /* all of them, a fixed size is quicker */
        out->n += entry->n;
        return ST_OK;
    }
    size_t before = out->n;
    int32_t id = vocab_table_find(&b->by_piece, b->pieces, piece, len);
    if (id >= 0)
        out->ids[out->n++] = id;
    else
        TRY(bpe_merge_piece(b, c, piece, len, out, e));
    size_t n = out->n - before;
    if (n <= ENTRY_IDS) {
        entry->len = (uint8_t)len;
        entry->n = (uint8_t)n;
        memcpy(entry->key, piece, len);
        memcpy(entry->ids, out->ids + before, n * sizeof *entry->ids);
    }
    return ST_OK;
}

static Status encode_whole(const Bpe *b, BpeCache *c, const char *piece, size_t len, TokenIds *out,
                           Err *e)
{
    if (len - 1 < KEY_BYTES)
        return encode_short(b, c, piece, len, out, e);
    int32_t id = vocab_table_find(&b->by_piece, b->pieces, piece, len);
    uint32_t one = (uint32_t)id;
    return id >= 0 ? add_ids(out, &one, 1, e) : bpe_merge_piece(b, c, piece, len, out, e);
}

Status bpe_encode(const Bpe *b, BpeCache *c, const char *piece, size_t len, TokenIds *out, Err *e)
{
    if (len == 0)
        return ST_OK;
    if (!b->cuts)
        return encode_whole(b, c, piece, len, out, e);
    /* A character that is not in the vocabulary becomes something else, so nothing is known about
     * it. */
    size_t start = 0;
    uint32_t last = 0;
    bool last_known = false;
    for (size_t i = 0; i < len;) {
        uint8_t byte = (uint8_t)piece[i];
        size_t bytes = utf8_len(byte);
        uint32_t code = utf8_code((const uint8_t *)piece + i);
        bool known = (bytes == 1 ? b->start_id[byte] : bpe_id(b, piece + i, bytes)) >= 0;
        if (known && last_known && !bpe_adjacent(b, last, code)) {
            TRY(encode_whole(b, c, piece + start, i - start, out, e));
            start = i;
        }
        last = code;
        last_known = known;
        i += bytes;
    }
    return encode_whole(b, c, piece + start, len - start, out, e);
}
