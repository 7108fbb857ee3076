/* jobs/row_overlong.h - a prompt that is far too long is measured instead of parsed and
 * tokenized.
 *
 * As a tree of values a line of 100 MB of ids takes 30 times its size, as tokens in the making a
 * line of text takes 20 times, and memory that one hopeless row takes could end the job for all
 * others. */
#ifndef MB_JOBS_ROW_OVERLONG_H
#define MB_JOBS_ROW_OVERLONG_H

#include "jobs/row.h"

/* When the line's prompt is one list of more ids than fit the context, or a text that no tokens
 * could shorten to fit, and nothing asks to truncate it, puts the line with a list of one id in
 * its place into *reduced and how many tokens the prompt has at least into *n_tokens; else
 * *n_tokens is 0. Lines below 1 MiB are left alone. */
Status row_cut_overlong(const RowContext *context, const char *line, size_t len, StrBuf *reduced,
                        size_t *n_tokens, Err *e);

#endif
