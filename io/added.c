/* io/added.c - see added.h. The matcher is a byte trie; most text is passed over by its first
 * bytes. */
#include "io/added.h"

#include "io/unicode.h"
#include "io/utf8.h"

#include <stdlib.h>

#define NO_TOKEN UINT32_MAX

typedef struct AddedNode {
    uint32_t child, sibling; /* 0: none; node 0 is never used */
    uint32_t token;
    uint8_t byte;
} AddedNode;

static uint32_t new_node(AddedMatcher *m, uint8_t byte)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 256;
        AddedNode *p = cap < UINT32_MAX ? realloc(m->nodes, cap * sizeof *p) : NULL;
        if (!p)
            return 0;
        m->nodes = p;
        m->cap = cap;
    }
    m->n += m->n == 0;
    m->nodes[m->n] = (AddedNode){.token = NO_TOKEN, .byte = byte};
    return (uint32_t)m->n++;
}

static uint32_t find_child(const AddedMatcher *m, uint32_t node, uint8_t byte)
{
    uint32_t k = m->nodes[node].child;
    while (k && m->nodes[k].byte != byte)
        k = m->nodes[k].sibling;
    return k;
}

bool added_matcher_add(AddedMatcher *m, const char *pattern, size_t len, uint32_t token)
{
    uint8_t byte = (uint8_t)pattern[0];
    uint32_t node = m->first[byte];
    if (!node) {
        node = new_node(m, byte);
        if (!node)
            return false;
        m->first[byte] = node;
    }
    for (size_t i = 1; i < len; i++) {
        uint32_t child = find_child(m, node, (uint8_t)pattern[i]);
        if (!child) {
            child = new_node(m, (uint8_t)pattern[i]);
            if (!child)
                return false;
            m->nodes[child].sibling = m->nodes[node].child;
            m->nodes[node].child = child;
        }
        node = child;
    }
    if (m->nodes[node].token == NO_TOKEN)
        m->nodes[node].token = token;
    return true;
}

void added_matcher_free(AddedMatcher *m)
{
    free(m->nodes);
    *m = (AddedMatcher){0};
}

/* The longest token that starts at s, and its end; NO_TOKEN when none does. */
static uint32_t longest_at(const AddedMatcher *m, const uint8_t *s, size_t left, size_t *bytes)
{
    uint32_t node = m->first[s[0]], found = NO_TOKEN;
    for (size_t i = 1; node; i++) {
        if (m->nodes[node].token != NO_TOKEN) {
            found = m->nodes[node].token;
            *bytes = i;
        }
        node = i < left ? find_child(m, node, s[i]) : 0;
    }
    return found;
}

static bool push(AddedSpans *out, size_t start, size_t end, int32_t id)
{
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 16;
        AddedSpan *v = realloc(out->v, cap * sizeof *v);
        if (!v)
            return false;
        out->v = v;
        out->cap = cap;
    }
    out->v[out->n++] = (AddedSpan){start, end, id};
    return true;
}

/* What single_word takes for part of a word. That is not quite the \w of patterns: another regex
 * engine of the reference's decides here, for which joiners are and the fractions and powers of
 * Latin-1 are not. */
static bool is_word(const uint8_t *s)
{
    uint32_t code = utf8_code(s);
    if (code == 0x200c || code == 0x200d)
        return true;
    if (code == 0xb2 || code == 0xb3 || code == 0xb9 || (code >= 0xbc && code <= 0xbe))
        return false;
    return unicode_class[code] & UC_WORD;
}

/* Start of the character that ends at s[at]. */
static size_t char_before(const uint8_t *s, size_t at)
{
    do
        at--;
    while ((s[at] & 0xc0) == 0x80);
    return at;
}

static bool is_whole_word(const uint8_t *s, size_t len, size_t start, size_t end)
{
    return (start == 0 || !is_word(s + char_before(s, start))) && (end == len || !is_word(s + end));
}

static bool is_space(const uint8_t *s)
{
    return (unicode_class[utf8_code(s)] & UC_CATEGORY) == UC_SPACE;
}

/* The order of the steps, and that the search goes on behind the bare match even where a later
 * match lies in swallowed white space, are the reference's; synthetic/added-both and its like hold
 * us to it. */
Status added_split(const AddedMatcher *m, const AddedToken *tokens, const char *text, size_t len,
                   AddedSpans *out, Err *e)
{
    const uint8_t *s = (const uint8_t *)text;
    size_t done = 0, bytes = 0;
    bool ok = true;
    out->n = 0;
    for (size_t i = 0; i < len;) {
        uint32_t found = m->first[s[i]] ? longest_at(m, s + i, len - i, &bytes) : NO_TOKEN;
        if (found == NO_TOKEN) {
            i++;
            continue;
        }
        const AddedToken *t = &tokens[found];
        size_t start = i, end = i + bytes;
        i = end;
        if (t->single_word && !is_whole_word(s, len, start, end))
            continue;
        if (t->lstrip) {
            while (start > 0 && is_space(s + char_before(s, start)))
                start = char_before(s, start);
            start = start < done ? done : start;
        }
        while (t->rstrip && end < len && is_space(s + end))
            end += utf8_len(s[end]);
        if (done < start)
            ok = ok && push(out, done, start, -1);
        if (start < end) /* else an earlier token swallowed all of it */
            ok = ok && push(out, start, end, t->id);
        done = end;
    }
    if (done < len)
        ok = ok && push(out, done, len, -1);
    return ok ? ST_OK : err_set(e, ST_MEMORY, "no memory to look for added tokens");
}
