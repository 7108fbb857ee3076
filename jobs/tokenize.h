/* jobs/tokenize.h - moebatch tokenize: rows with a text to rows with its ids, or back, over all
 * threads.
 *
 * Rows are JSON objects, one a line (only LF ends a line; CR before it, a BOM at the start and
 * blank lines are passed over). A row that cannot be used becomes a line with "error", and the
 * others go on. */
#ifndef MB_JOBS_TOKENIZE_H
#define MB_JOBS_TOKENIZE_H

#include "io/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct TokenizeConfig {
    const char *model; /* a directory, or a tokenizer.json taken alone */
    bool
        /* {"ids": [...]} -> {"text": ...}; else {"text": ...} -> {"ids": ..., "tokens": ...} */
        decode;
    bool count;        /* no rows out, totals only */
    bool add_special;  /* encode: what the tokenizer puts around a text */
    bool skip_special; /* decode: leave special tokens out */
    int threads;       /* 0: as many as there are cores */
} TokenizeConfig;

typedef struct TokenizeTotals {
    int64_t n_rows, n_failed; /* n_failed of the n_rows became error lines */
    int64_t n_tokens, text_bytes;
} TokenizeTotals;

/* From in_fd to out_fd until the end of the input; the names are for messages. Output lines are
 * in the order of the input and are written as soon as no more input is waiting. Memory is some
 * 20 MiB and what the longest line needs. */
Status tokenize_run(const TokenizeConfig *config, int in_fd, const char *in_name, int out_fd,
                    const char *out_name, TokenizeTotals *totals, Err *e);

#endif
