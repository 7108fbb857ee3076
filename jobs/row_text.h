/* jobs/row_text.h - the text of a choice: stop strings while it grows, and the place of each token
 * in it at the end. */
#ifndef MB_JOBS_ROW_TEXT_H
#define MB_JOBS_ROW_TEXT_H

#include "jobs/row.h"

/* Adds the text of the token that was just appended and looks for stop strings that end in it,
 * unless min_tokens is not passed yet. The earliest match wins, then the order of the list; it sets
 * stop_string and text_cut. */
Status choice_match_stop(const RowContext *context, Row *r, Choice *c, int32_t id, Err *e);

/* Appends the text that the choice has generated: a stop token left out, a stop string cut. Nothing
 * without a tokenizer. */
Status choice_text(const RowContext *context, const Row *r, const Choice *c, StrBuf *out, Err *e);
/* Appends the prompt as echo shows it: as given, or decoded with special tokens visible. */
Status prompt_text(const RowContext *context, const Prompt *p, StrBuf *out, Err *e);

/* One token by itself, partial characters as U+FFFD; "token_id:7" without a tokenizer or for an
 * unknown id. */
void token_text(const RowContext *context, int32_t id, StrBuf *out);

/* Where each token starts in text, in code points; offsets [n]. A token that starts inside a
 * character counts as starting with it; tokens that are not in the text (a BOS that the tokenizer
 * added, a stop token, what a stop string cut off) have no width. The place is found from the
 * tokens' bytes, so it does not drift where a character is spread over tokens. */
Status prompt_offsets(const RowContext *context, const Prompt *p, const char *text, size_t len,
                      int64_t *offsets, Err *e);
Status choice_offsets(const RowContext *context, const Row *r, const Choice *c, const char *text,
                      size_t len, int64_t *offsets, Err *e);
int64_t text_code_points(const char *text, size_t len);

#endif
