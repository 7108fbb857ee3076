/* io/added.h - added tokens: found in the text before the model sees it. */
#ifndef MB_IO_ADDED_H
#define MB_IO_ADDED_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct AddedToken {
    const char *text; /* its content; borrowed */
    size_t len;
    const char *shown; /* what it decodes to: its content, normalized where normalized is true */
    size_t shown_len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} AddedToken;

/* A matcher over some added tokens: leftmost first, then longest. Immutable once built. */
typedef struct AddedMatcher {
    struct AddedNode *nodes;
    size_t n, cap;
    uint32_t first[256]; /* node of a first byte; 0: no token starts with it */
} AddedMatcher;          /* all zero: empty */

/* A stretch of text: a token (possibly with white space it swallowed) or what lies between tokens.
 */
typedef struct AddedSpan {
    size_t start, end;
    int32_t id; /* -1: no token */
} AddedSpan;

typedef struct AddedSpans {
    AddedSpan *v;
    size_t n, cap;
} AddedSpans;

/* Makes pattern[0..len), not empty, stand for token. Of two equal patterns the first one counts.
 * False when memory is short. */
bool added_matcher_add(AddedMatcher *m, const char *pattern, size_t len, uint32_t token);
void added_matcher_free(AddedMatcher *m);

/* Cuts text[0..len), valid UTF-8, into spans, with the flags of tokens obeyed as the reference
 * does. */
Status added_split(const AddedMatcher *m, const AddedToken *tokens, const char *text, size_t len,
                   AddedSpans *out, Err *e);

#endif
