/* jobs/row_lists.h - the body keys whose values are lists or maps; a part of row_params.c's work.
 *
 * v may be NULL or null, which leaves the list empty. Results live in the row's arena. Ids are rows
 * of the logits: 0 .. vocab-1. */
#ifndef MB_JOBS_ROW_LISTS_H
#define MB_JOBS_ROW_LISTS_H

#include "jobs/row_params.h"

/* stop: a string or at most max strings, none of them empty. */
Status row_parse_stop(const RowContext *context, const JsonValue *v, int max, Row *r, Err *e);
/* A list of token ids, as given; key names it in refusals. */
Status row_parse_ids(const RowContext *context, const JsonValue *v, const char *key, Row *r,
                     IdList *out, Err *e);
/* allowed_token_ids: not empty; ascending, each id once. */
Status row_parse_allowed(const RowContext *context, const JsonValue *v, Row *r, Err *e);
/* logit_bias: ascending ids, each once (the last one given); values are held to -100 .. 100. */
Status row_parse_bias(const RowContext *context, const JsonValue *v, Row *r, Err *e);
/* bad_words: the id sequences of every word, with and without a space in front. */
Status row_parse_bad_words(const RowContext *context, TokenizerCache *cache, const JsonValue *v,
                           Row *r, Err *e);

#endif
