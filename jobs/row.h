/* jobs/row.h - one input line: what it asks for, what has been generated, and the output line it
 * becomes.
 *
 * A bad line is a result, not an Err: row_parse gives a Row with error set, which renders as an
 * error line. Err is for what ends the job (memory). */
#ifndef MB_JOBS_ROW_H
#define MB_JOBS_ROW_H

#include "io/arena.h"
#include "io/err.h"
#include "io/strbuf.h"
#include "io/tokenizer.h"
#include "kernels/sample.h"
#include "model/arch.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct LogitBias {
    int32_t id;
    float bias;
} LogitBias;

typedef struct IdList {
    const int32_t *ids;
    int n;
} IdList;

typedef struct StopString {
    const char *text;
    size_t len;
} StopString;

typedef struct SamplingParams {
    int max_tokens, min_tokens, n;
    double temperature, top_p, min_p;
    int top_k; /* 0: off */
    int64_t seed;
    double presence_penalty, frequency_penalty, repetition_penalty;
    int logprobs, prompt_logprobs; /* how many beside the token itself; -1: none */
    bool echo, ignore_eos, return_token_ids, include_stop_str, skip_special;
    IdList stop_ids; /* the row's own; the model's eos ids are in RowContext */
    const StopString *stop;
    int n_stop;
    const LogitBias *bias;
    int n_bias;
    IdList allowed; /* n 0: all */
    const IdList *bad_words;
    int n_bad_words;
} SamplingParams;

typedef enum FinishReason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH } FinishReason;

typedef struct Prompt {
    TokenIds ids;
    TokenLogprobs *logprobs; /* [ids.n], the first unused; NULL unless the row asks for them */
    /* as given, kept for echo; NULL when the prompt came as ids or was truncated */
    const char *text;
    size_t text_len;
} Prompt;

typedef struct Choice {
    int prompt, sample;      /* index = prompt * n + sample */
    TokenIds out;            /* generated so far */
    TokenLogprobs *logprobs; /* [out.n] when the row asks for them, else NULL */
    size_t logprobs_cap;
    FinishReason finish;
    int32_t stop_token; /* the stop id that ended it, when it is not an eos id; else -1 */
    int stop_string;    /* the stop string that ended it, or -1 */
    size_t text_cut;    /* bytes of text to keep when a stop string was found; SIZE_MAX: all */
    StrBuf text;        /* decoded so far, kept only where there are stop strings */
    TokenStream *stream;
} Choice;

typedef struct RowError {
    int status;               /* 400, 404, 500; 0: no error */
    const char *code, *param; /* wire-formats.md section 2; param may be NULL */
    const char *message;
} RowError;

typedef struct Row {
    int64_t index;         /* number of the non-blank line, from 0 */
    int64_t line;          /* physical line, from 1 */
    Arena arena;           /* what the fields below point into */
    const char *custom_id; /* NULL: none */
    size_t custom_id_len;  /* it may hold U+0000 */
    uint8_t key[32];       /* row key: contract.md section 1 */
    uint8_t digest[32];    /* SHA-256 of the line */
    const char *model;     /* as echoed in the body */
    SamplingParams params;
    Prompt *prompts;
    int n_prompts;
    Choice *choices; /* [n_prompts * params.n] */
    int n_choices, n_finished;
    /* [prompt ids, vocab] of a one-prompt row, from malloc, freed with the row; NULL: not kept */
    float *logits;
    RowError error;
} Row;

/* What a line is read against; the same for all rows of a job. */
typedef struct RowContext {
    const Tokenizer *tokenizer; /* NULL: the model has none, only input_ids rows work */
    const Arch *arch;
    const GenerationDefaults *generation; /* .present false when --generation-config none */
    int max_len;                          /* context: prompt and output together */
    const char *served_name;              /* --served-model-name, or NULL */
    const char *default_name;             /* base name of the model directory */
    int64_t created;                      /* --created, default 0 */
    /* Job-wide defaults given by flags, for rows that lack the key. */
    bool has_max_tokens, has_temperature, has_top_p, has_top_k, has_seed;
    int max_tokens, top_k;
    double temperature, top_p;
    int64_t seed;
} RowContext;

/* The sampling values that rows without the keys get, from flags, generation_config.json and
 * OpenAI's defaults. */
void row_default_params(const RowContext *context, SamplingParams *out);
/* The same as one JSON object: with sources for the manifest, without for a digest, since where
 * a value comes from changes no output. */
void row_defaults_json(const RowContext *context, bool sources, StrBuf *out);

/* Parses and tokenizes one line without its line end (CR removed too). duplicate_of: physical
 * line of an earlier row with the same custom_id, or 0. cache may be NULL when
 * context->tokenizer is. */
Status row_parse(const RowContext *context, TokenizerCache *cache, const char *line, size_t len,
                 int64_t index, int64_t line_no, int64_t duplicate_of, Row **out, Err *e);
void row_free(Row *r); /* NULL is fine */

/* The most tokens that c may generate: max_tokens or what the context leaves. 0 for an echo with
 * max_tokens 0, which the scheduler ends once the prompt's log-probabilities are there. */
int choice_max_new(const RowContext *context, const Row *r, const Choice *c);

/* Appends a generated token and decides whether the choice is finished: eos ids, stop ids, stop
 * strings, max_tokens, the context limit. lp: NULL unless params.logprobs >= 0. */
Status choice_accept(const RowContext *context, Row *r, Choice *c, int32_t id,
                     const TokenLogprobs *lp, Err *e);

/* The output line, without line end; every choice must be finished, or error set. */
Status row_render(const RowContext *context, const Row *r, StrBuf *out, Err *e);
/* The output line of a row that failed after parsing. */
void row_fail(Row *r, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Unfinished rows for the journal: ids so far and their log-probabilities, of all choices and
 * prompts. */
Status row_save(const Row *r, StrBuf *out, Err *e);
/* Into a freshly parsed Row of the same line; bytes that do not fit it are ST_INPUT. */
Status row_restore(const RowContext *context, Row *r, const void *bytes, size_t len, Err *e);

/* Prompt and output tokens, as usage counts them. */
int64_t row_prompt_tokens(const Row *r);
int64_t row_completion_tokens(const Row *r);

#endif
