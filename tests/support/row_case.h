/* tests/support/row_case.h - rows whose tokens come from tables, so that no model is needed. */
#ifndef MB_TESTS_ROW_CASE_H
#define MB_TESTS_ROW_CASE_H

#include "io/json.h"
#include "jobs/row.h"
#include "tests/support/tiny_tokenizer.h"

enum { ROW_CASE_LEN = 12 /* the model's longest sequence */, ROW_CASE_TOKENS = 8 };

typedef enum RowTokens { BYTES, PIECES, NONE } RowTokens; /* of which tokenizer */

typedef struct RowCase {
    Arch arch;
    GenerationDefaults generation; /* none */
    RowContext context;
    Tokenizer *tokenizers[3];
    TokenizerCache *caches[3];
    TokenizerCache *cache; /* in use */
} RowCase;

Status row_case_open(RowCase *c, Err *e); /* with both tokenizers */
void row_case_close(RowCase *c);
/* Which one rows have from now on. */
void row_case_use(RowCase *c, RowTokens tokens);

/* Here and below, what the line or the row does not allow ends the test. */
Row *row_case_parse(const RowCase *c, const char *line);
/* Made-up values that follow from the id, so that a wrong one is seen. */
TokenLogprobs row_case_logprobs(int32_t id);
/* Feeds ids until there are ROW_CASE_TOKENS, one is -1 or the choice ends; how many were taken. */
int row_case_feed(const RowCase *c, Row *r, Choice *choice, const int32_t *ids);
/* The row's line, and the answer's body as JSON values, which live in arena. */
const JsonValue *row_case_render(const RowCase *c, const Row *r, Arena *arena, StrBuf *line);

#endif
