/* jobs/score.h - rows of `score`: token ids or text in, token log-probabilities out (contract.md
 * section 5). */
#ifndef MB_JOBS_SCORE_H
#define MB_JOBS_SCORE_H

#include "jobs/row.h"

/* As row_parse: a bad line is a Row with error set. keep_logits: Row.logits is allocated for
 * every position. */
Status score_parse(const RowContext *context, TokenizerCache *cache, const char *line, size_t len,
                   int64_t index, int64_t line_no, int64_t duplicate_of, bool keep_logits,
                   Row **out, Err *e);
/* A row that scores ids[0..n) (copied), for perplexity. */
Status score_row_from_ids(const int32_t *ids, size_t n, int64_t index, Row **out, Err *e);
/* {"custom_id", "token_ids", "token_logprobs", "logprob", "num_tokens"}, or {"custom_id",
 * "error"}. */
Status score_render(const Row *r, StrBuf *out, Err *e);

#endif
