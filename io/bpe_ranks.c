/* io/bpe_ranks.c - fills the tables of a model from a tiktoken file: lines of "base64 rank".
 *
 * Such a file lists no merges: two neighbours merge whenever their bytes together are a token, the
 * pair of the lowest rank first. A merge list says the same once it holds every split of every
 * token into two tokens, all with the rank of the whole. */
#include "io/bpe_internal.h"

#include "io/bytelevel.h"
#include "io/utf8.h"

#include <stdlib.h>

/* The longest token of a published file has 256 bytes; every split of a token is looked up, so a
 * damaged file with huge ones would take forever. */
enum { MOST_TOKEN_BYTES = 4096 };

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for the vocabulary");
}

/* Lines end with LF or CR LF; returns false past the last. */
typedef struct Lines {
    const char *at, *end;
    size_t number; /* of the line that was read last, from 1 */
} Lines;

static bool next_line(Lines *l, const char **line, size_t *len)
{
    while (l->at < l->end) {
        const char *lf = memchr(l->at, '\n', (size_t)(l->end - l->at));
        const char *stop = lf ? lf : l->end;
        *line = l->at;
        *len = (size_t)(stop - l->at);
        l->at = lf ? lf + 1 : l->end;
        l->number++;
        if (*len && (*line)[*len - 1] == '\r')
            --*len;
        if (*len)
            return true;
    }
    return false;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The bytes of text[0..len) into out (room for len / 4 * 3); false unless it is exactly what an
 * encoder writes: whole groups, padding at the end only, no stray bits. */
static bool base64_read(const char *text, size_t len, char *out, size_t *n)
{
    *n = 0;
    if (len % 4 != 0)
        return false;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t group = 0;
        int n_digits = 4;
        if (i + 4 == len)
            n_digits = text[i + 2] == '=' ? 2 : text[i + 3] == '=' ? 3 : 4;
        if (n_digits == 2 && text[i + 3] != '=')
            return false;
        for (int k = 0; k < 4; k++) {
            int digit = k < n_digits ? base64_digit(text[i + (size_t)k]) : 0;
            if (digit < 0)
                return false;
            group = group << 6 | (uint32_t)digit;
        }
        if (group & (n_digits == 2 ? 0xffffu : n_digits == 3 ? 0xffu : 0))
            return false;
        for (int k = 0; k + 1 < n_digits; k++)
            out[(*n)++] = (char)(group >> (16 - 8 * k));
    }
    return true;
}

/* A rank below limit, written as plain decimal digits. */
static bool rank_read(const char *text, size_t len, uint32_t limit, uint32_t *rank)
{
    uint64_t value = 0;
    if (len == 0 || len > 10 || (len > 1 && text[0] == '0'))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *rank = (uint32_t)value;
    return value < limit;
}

/* One line into b->pieces and b->texts, whose bytes go to *at. */
static Status add_line(Bpe *b, const char *line, size_t len, char **at, Err *e)
{
    const char *space = memchr(line, ' ', len);
    size_t n, n_base64 = space ? (size_t)(space - line) : 0;
    uint32_t rank;
    if (!space)
        return err_set(e, ST_INPUT, "it is not \"base64 rank\"");
    if (!base64_read(line, n_base64, *at, &n) || n == 0)
        return err_set(e, ST_INPUT, "\"%.*s\" is not the base64 of a token",
                       n_base64 > 80 ? 80 : (int)n_base64, line);
    if (n > MOST_TOKEN_BYTES)
        return err_set(e, ST_INPUT, "the token is longer than %d bytes", MOST_TOKEN_BYTES);
    line = space + 1;
    len -= n_base64 + 1;
    if (!rank_read(line, len, (uint32_t)b->n_ids, &rank))
        return err_set(e, ST_INPUT,
                       "the rank \"%.*s\" is not an integer from 0 to %d: a file of %d tokens must "
                       "use every rank once",
                       len > 20 ? 20 : (int)len, line, b->n_ids - 1, b->n_ids);
    if (b->pieces[rank].at)
        return err_set(e, ST_INPUT, "the rank %u comes twice", (unsigned)rank);
    int32_t same = vocab_table_find(&b->by_piece, b->pieces, *at, n);
    if (same >= 0)
        return err_set(e, ST_INPUT, "the token has the rank %d already", (int)same);
    b->pieces[rank] = (Text){*at, (uint32_t)n};
    vocab_table_add(&b->by_piece, *at, n, (int32_t)rank);
    const char *bytes = *at;
    *at += n;
    char *spelled = *at;
    for (size_t i = 0; i < n; i++)
        *at += utf8_put(*at, bytelevel_char((uint8_t)bytes[i]));
    b->texts[rank] = (Text){spelled, (uint32_t)(*at - spelled)};
    *(*at)++ = '\0';
    vocab_table_add(&b->by_text, spelled, b->texts[rank].len, (int32_t)rank);
    return ST_OK;
}

static Status load_tokens(Bpe *b, const char *file, size_t len, Err *e)
{
    Lines count = {.at = file, .end = file + len}, lines = count;
    const char *line;
    size_t n = 0, line_len;
    while (next_line(&count, &line, &line_len))
        n++;
    if (n == 0 || n > BPE_MOST_IDS)
        return err_set(e, ST_INPUT, "it has %zu tokens, expected 256 to %d", n, BPE_MOST_IDS);
    b->n_ids = b->n_tokens = (int32_t)n;
    /* Four characters of base64 are three bytes of a token, and those at most six once spelled; a
     * line's space and rank leave room for the NUL. */
    b->pool = malloc(len / 4 * 9 + 9 + n);
    b->texts = calloc(n + 1, sizeof *b->texts);
    b->pieces = calloc(n + 1, sizeof *b->pieces);
    if (!b->pool || !b->texts || !b->pieces || !vocab_table_create(&b->by_text, n) ||
        !vocab_table_create(&b->by_piece, n))
        return no_memory(e);
    char *at = b->pool;
    while (next_line(&lines, &line, &line_len))
        if (add_line(b, line, line_len, &at, e) != ST_OK)
            return err_in(e, "line %zu", lines.number);
    for (int byte = 0; byte < 256; byte++) {
        char one = (char)byte;
        b->start_id[byte] = vocab_table_find(&b->by_piece, b->pieces, &one, 1);
        b->fallback_id[byte] = -1;
        if (b->start_id[byte] < 0)
            return err_set(e, ST_INPUT, "no token stands for the single byte 0x%02x", byte);
    }
    return ST_OK;
}

typedef struct MergeList {
    Merge *v;
    size_t n, cap;
} MergeList;

static bool push_merge(MergeList *l, Merge m)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        Merge *p = realloc(l->v, cap * sizeof *p);
        if (!p)
            return false;
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = m;
    return true;
}

/* False when memory is short. */
static bool find_splits(const Bpe *b, MergeList *out)
{
    for (int32_t id = 0; id < b->n_ids; id++) {
        const char *s = b->pieces[id].at;
        for (uint32_t i = 1; i < b->pieces[id].len; i++) {
            int32_t left = vocab_table_find(&b->by_piece, b->pieces, s, i);
            if (left < 0)
                continue;
            int32_t right = vocab_table_find(&b->by_piece, b->pieces, s + i, b->pieces[id].len - i);
            Merge m = {(uint32_t)left, (uint32_t)right, (uint32_t)id, (uint32_t)id};
            if (right >= 0 && !push_merge(out, m))
                return false;
        }
    }
    return true;
}

Status bpe_parse_ranks(const char *file, size_t len, Bpe **out, Err *e)
{
    MergeList merges = {0};
    *out = NULL;
    Bpe *b = calloc(1, sizeof *b);
    if (!b)
        return no_memory(e);
    b->byte_level = true;
    b->ignore_merges = true; /* a piece that is a token is that token */
    Status st;
    TRY_GOTO(load_tokens(b, file, len, e));
    if (!find_splits(b, &merges) || merges.n >= NO_RANK || !bpe_create_merges(b, merges.n)) {
        st = no_memory(e);
        goto fail;
    }
    for (size_t i = 0; i < merges.n; i++)
        bpe_put_merge(b, merges.v[i]);
    free(merges.v);
    *out = b;
    return ST_OK;
fail:
    free(merges.v);
    bpe_free(b);
    return st;
}
