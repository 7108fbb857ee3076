/* io/bpe_load.c - fills the tables of a model from its JSON. */
#include "io/bpe_internal.h"

#include "io/bytelevel.h"
#include "io/spec.h"
#include "io/utf8.h"

#include <stdlib.h>

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for the vocabulary");
}

static Status read_id(const JsonValue *v, int32_t *id, Err *e)
{
    int64_t n;
    if (!json_int64(v, &n) || n < 0 || n >= BPE_MOST_IDS)
        return err_set(e, ST_INPUT, "vocab: the id of \"%.80s\" is not an integer from 0 to %d",
                       v->key, BPE_MOST_IDS - 1);
    *id = (int32_t)n;
    return ST_OK;
}

static Status load_vocab(Bpe *b, const JsonValue *vocab, Err *e)
{
    size_t bytes = 0;
    int32_t id = 0;
    if (!vocab || vocab->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "vocab is not an object");
    for (const JsonValue *v = vocab->child; v; v = v->next) {
        TRY(read_id(v, &id, e));
        if (id >= b->n_ids)
            b->n_ids = id + 1;
        bytes += v->key_len + 1;
    }
    if (bytes > UINT32_MAX)
        return err_set(e, ST_INPUT, "vocab is larger than 4 GiB");
    /* In the byte-level spelling a string is never shorter than the bytes it stands for. */
    b->pool = malloc(2 * bytes + 1);
    b->texts = calloc((size_t)b->n_ids + 1, sizeof *b->texts);
    if (!b->pool || !b->texts || !vocab_table_create(&b->by_text, vocab->len))
        return no_memory(e);
    char *at = b->pool;
    for (const JsonValue *v = vocab->child; v; v = v->next) {
        TRY(read_id(v, &id, e));
        int32_t old = bpe_id(b, v->key, v->key_len);
        if (b->texts[id].at && old != id)
            return err_set(e, ST_INPUT, "vocab: id %d is given to \"%.80s\" and to \"%.80s\"", id,
                           b->texts[id].at, v->key);
        if (old == id)
            continue;
        memcpy(at, v->key, v->key_len + 1);
        b->texts[id] = (Text){at, v->key_len};
        at += v->key_len + 1;
        if (old >= 0) { /* a key that comes twice counts as it stands last */
            vocab_table_change(&b->by_text, b->texts, v->key, v->key_len, id);
            b->texts[old] = (Text){0};
        } else {
            vocab_table_add(&b->by_text, v->key, v->key_len, id);
            b->n_tokens++;
        }
    }
    b->pieces = b->texts;
    if (!b->byte_level)
        return ST_OK;
    b->pieces = calloc((size_t)b->n_ids + 1, sizeof *b->pieces);
    if (!b->pieces)
        return no_memory(e);
    for (id = 0; id < b->n_ids; id++) {
        if (!b->texts[id].at)
            continue;
        size_t n = bytelevel_bytes(b->texts[id].at, b->texts[id].len, at);
        if (n == SIZE_MAX)
            continue; /* no piece can spell it */
        b->pieces[id] = (Text){at, (uint32_t)n};
        at += n;
    }
    return ST_OK;
}

/* The two sides of an entry of merges: ["left", "right"] or "left right". */
static Status merge_sides(const JsonValue *v, size_t index, Text *left, Text *right, Err *e)
{
    if (v->type == JSON_ARRAY && v->len == 2 && v->child->type == JSON_STRING &&
        v->child->next->type == JSON_STRING && v->child->len <= UINT32_MAX &&
        v->child->next->len <= UINT32_MAX) {
        *left = (Text){v->child->text, (uint32_t)v->child->len};
        *right = (Text){v->child->next->text, (uint32_t)v->child->next->len};
        return ST_OK;
    }
    const char *space = v->type == JSON_STRING ? memchr(v->text, ' ', v->len) : NULL;
    if (!space || v->len > UINT32_MAX ||
        memchr(space + 1, ' ', v->len - (size_t)(space + 1 - v->text)))
        return err_set(e, ST_INPUT, "merges: entry %zu is not two tokens", index);
    *left = (Text){v->text, (uint32_t)(space - v->text)};
    *right = (Text){space + 1, (uint32_t)(v->len - left->len - 1)};
    return ST_OK;
}

bool bpe_create_merges(Bpe *b, size_t n)
{
    int bits = 4;
    while ((size_t)1 << bits < 2 * n)
        bits++;
    b->merge_shift = 64 - bits;
    b->merges = malloc(sizeof *b->merges << bits);
    if (b->merges)
        memset(b->merges, 0xff, sizeof *b->merges << bits);
    return b->merges != NULL;
}

void bpe_put_merge(Bpe *b, Merge m)
{
    uint64_t key = (uint64_t)m.left << 32 | m.right;
    size_t mask = SIZE_MAX >> b->merge_shift;
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> b->merge_shift);
    while (b->merges[i].left != NO_RANK &&
           (b->merges[i].left != m.left || b->merges[i].right != m.right))
        i = (i + 1) & mask;
    b->merges[i] = m; /* a pair that comes twice counts as it stands last */
}

static Status find_part(const Bpe *b, const char *text, size_t len, size_t index, uint32_t *id,
                        Err *e)
{
    int32_t found = bpe_id(b, text, len);
    if (found < 0)
        return err_set(e, ST_INPUT,
                       "merges: entry %zu needs the token \"%.*s\", which is not in vocab", index,
                       len > 80 ? 80 : (int)len, text);
    *id = (uint32_t)found;
    return ST_OK;
}

static Status load_merges(Bpe *b, const JsonValue *merges, StrBuf *joined, Err *e)
{
    static const char version[] = "#version";
    if (!merges || merges->type != JSON_ARRAY)
        return err_set(e, ST_INPUT, "merges is not a list");
    if (merges->len >= NO_RANK)
        return err_set(e, ST_INPUT, "merges is too long");
    if (!bpe_create_merges(b, merges->len))
        return no_memory(e);
    uint32_t rank = 0;
    size_t index = 0;
    for (const JsonValue *v = merges->child; v; v = v->next, index++) {
        Text left = {0}, right = {0};
        Merge m = {0};
        if (v->type == JSON_STRING && v->len >= strlen(version) &&
            memcmp(v->text, version, strlen(version)) == 0)
            continue;
        TRY(merge_sides(v, index, &left, &right, e));
        strbuf_clear(joined);
        strbuf_add(joined, left.at, left.len);
        strbuf_add(joined, right.at, right.len);
        if (joined->failed)
            return no_memory(e);
        TRY(find_part(b, left.at, left.len, index, &m.left, e));
        TRY(find_part(b, right.at, right.len, index, &m.right, e));
        TRY(find_part(b, joined->data, joined->len, index, &m.result, e));
        m.rank = rank++;
        bpe_put_merge(b, m);
    }
    return ST_OK;
}

static void load_start_ids(Bpe *b)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[16];
        size_t len = 1;
        text[0] = (char)byte;
        if (b->byte_level)
            len = utf8_put(text, bytelevel_char((uint8_t)byte));
        b->start_id[byte] = b->byte_level || byte < 128 ? bpe_id(b, text, len) : -1;
        static const char hex[] = "0123456789ABCDEF";
        memcpy(text, "<0x..>", 6);
        text[3] = hex[byte >> 4];
        text[4] = hex[byte & 15];
        b->fallback_id[byte] = bpe_id(b, text, 6);
    }
}

static void add_pair(Bpe *b, uint32_t x, uint32_t y)
{
    if ((x | y) < 128) {
        b->ascii_pairs[x][y >> 6] |= UINT64_C(1) << (y & 63);
        return;
    }
    uint64_t key = (uint64_t)x << 32 | (y + 1);
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & b->pairs_mask;
    while (b->pairs[i] && b->pairs[i] != key)
        i = (i + 1) & b->pairs_mask;
    b->pairs[i] = key;
}

static Status load_pairs(Bpe *b, Err *e)
{
    size_t most = 1, slots = 64;
    b->cuts = !b->byte_level && !b->ignore_merges;
    if (!b->cuts)
        return ST_OK;
    for (int32_t id = 0; id < b->n_ids; id++)
        most += b->texts[id].at ? b->texts[id].len : 0;
    while (slots < 2 * most)
        slots *= 2;
    b->pairs = calloc(slots, sizeof *b->pairs);
    if (!b->pairs)
        return no_memory(e);
    b->pairs_mask = slots - 1;
    for (int32_t id = 0; id < b->n_ids; id++) {
        const uint8_t *s = (const uint8_t *)b->texts[id].at;
        for (size_t i = 0, next; s && i < b->texts[id].len; i = next) {
            next = i + utf8_len(s[i]);
            if (next < b->texts[id].len)
                add_pair(b, utf8_code(s + i), utf8_code(s + next));
        }
    }
    return ST_OK;
}

/* Which entries may be emitted for a piece without merging: with ignore_merges all, by definition;
 * else those that merging makes of their own spelling, which real vocabularies nearly all are. */
static Status load_pieces(Bpe *b, Err *e)
{
    BpeCache *c = NULL;
    TokenIds ids = {0};
    Status st = ST_OK;
    if (!vocab_table_create(&b->by_piece, (size_t)b->n_tokens))
        return no_memory(e);
    TRY(bpe_cache_create(&c, e));
    for (int32_t id = 0; st == ST_OK && id < b->n_ids; id++) {
        const Text *t = &b->pieces[id];
        bool whole = b->ignore_merges;
        if (!t->at || t->len == 0)
            continue;
        if (!whole) {
            ids.n = 0;
            st = bpe_merge_piece(b, c, t->at, t->len, &ids, NULL);
            whole = st == ST_OK && ids.n == 1 && ids.ids[0] == id;
            st = st == ST_INPUT ? ST_OK : st; /* an unknown character; not of interest here */
        }
        if (whole)
            vocab_table_add(&b->by_piece, t->at, t->len, id);
    }
    tokenids_free(&ids);
    bpe_cache_free(c);
    return st == ST_OK ? ST_OK : no_memory(e);
}

static Status check_affix(const JsonValue *spec, const char *key, Err *e)
{
    const JsonValue *v = json_get(spec, key);
    return spec_absent(v) || json_is_string(v, "")
               ? ST_OK
               : err_set(e, ST_INPUT, "\"%s\" is not supported", key);
}

static Status load(Bpe *b, const JsonValue *spec, StrBuf *scratch, Err *e)
{
    const JsonValue *type = json_get(spec, "type"), *unk = json_get(spec, "unk_token");
    double dropout;
    if (type && !json_is_string(type, "BPE"))
        return err_set(e, ST_INPUT, "the type %.80s is not supported, only BPE is",
                       spec_type(spec));
    TRY(spec_keys(spec, "it",
                  "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                  "byte_fallback "
                  "ignore_merges vocab merges",
                  e));
    if (!spec_absent(json_get(spec, "dropout")) &&
        (!json_double(json_get(spec, "dropout"), &dropout) || dropout != 0))
        return err_set(e, ST_INPUT, "dropout is not supported");
    TRY(check_affix(spec, "continuing_subword_prefix", e));
    TRY(check_affix(spec, "end_of_word_suffix", e));
    TRY(spec_bool(spec, "fuse_unk", false, &b->fuse_unk, e));
    TRY(spec_bool(spec, "byte_fallback", false, &b->byte_fallback, e));
    TRY(spec_bool(spec, "ignore_merges", false, &b->ignore_merges, e));
    TRY(load_vocab(b, json_get(spec, "vocab"), e));
    TRY(load_merges(b, json_get(spec, "merges"), scratch, e));
    if (!spec_absent(unk)) {
        TRY(spec_string(spec, "unk_token", &unk, e));
        b->has_unk = true;
        b->unk_id = bpe_id(b, unk->text, unk->len);
    }
    load_start_ids(b);
    TRY(load_pairs(b, e));
    return load_pieces(b, e);
}

Status bpe_parse(const JsonValue *spec, bool byte_level, Bpe **out, Err *e)
{
    StrBuf scratch = {0};
    *out = NULL;
    if (!spec || spec->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "model is not an object");
    Bpe *b = calloc(1, sizeof *b);
    if (!b)
        return no_memory(e);
    b->byte_level = byte_level;
    Status st = load(b, spec, &scratch, e);
    strbuf_free(&scratch);
    if (st != ST_OK) {
        bpe_free(b);
        err_in(e, "model");
        return st;
    }
    *out = b;
    return ST_OK;
}

void bpe_free(Bpe *b)
{
    if (!b)
        return;
    if (b->pieces != b->texts)
        free(b->pieces);
    free(b->texts);
    free(b->pool);
    vocab_table_free(&b->by_text);
    vocab_table_free(&b->by_piece);
    free(b->merges);
    free(b->pairs);
    free(b);
}
