/* jobs/perplexity.h - perplexity of a text under a model, in windows without earlier context. */
#ifndef MB_JOBS_PERPLEXITY_H
#define MB_JOBS_PERPLEXITY_H

#include "jobs/engine.h"
#include "jobs/progress.h"

typedef struct PerplexityResult {
    double nll;       /* mean negative log-likelihood per predicted token, natural log */
    int64_t n_tokens; /* predicted */
    int64_t n_windows;
    double seconds;
} PerplexityResult;

/* The ids of a text of documents, appended to *ids: each document begins with the token that says
 * so, and each paragraph is encoded with the blank line after it. */
Status perplexity_encode(const Tokenizer *tokenizer, TokenizerCache *cache, const char *text,
                         size_t len, TokenIds *ids, Err *e);

/* Collective. The text is split at <|endoftext|>; each document starts with that token (BOS or
 * EOS where the tokenizer has none of that name); each paragraph (split at a blank line) is
 * encoded with "\n\n" appended. Window i predicts ids window*i+1 .. window*i+window from ids
 * window*i .. window*i+window-1; the last incomplete window is dropped. The result is the same,
 * to the bit, at any number of ranks. */
Status perplexity_run(const EngineConfig *config, Comm *comm, const char *path, int window,
                      ProgressMode progress, PerplexityResult *out, Err *e);

#endif
