/* tests/support/row_case.c - see row_case.h. */
#include "tests/support/row_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status row_case_open(RowCase *c, Err *e)
{
    *c = (RowCase){.context = {.arch = &c->arch,
                               .generation = &c->generation,
                               .max_len = ROW_CASE_LEN,
                               .default_name = "made-up"}};
    TRY(tiny_tokenizer_bytes(&c->tokenizers[BYTES], e));
    TRY(tiny_tokenizer_pieces(&c->tokenizers[PIECES], e));
    TRY(tokenizer_cache_create(c->tokenizers[BYTES], &c->caches[BYTES], e));
    return tokenizer_cache_create(c->tokenizers[PIECES], &c->caches[PIECES], e);
}

void row_case_close(RowCase *c)
{
    for (int i = 0; i < 2; i++) {
        tokenizer_cache_free(c->caches[i]);
        tokenizer_free(c->tokenizers[i]);
    }
}

void row_case_use(RowCase *c, RowTokens tokens)
{
    c->context.tokenizer = c->tokenizers[tokens];
    c->cache = c->caches[tokens];
    c->arch = (Arch){.vocab = tokens == PIECES ? PIECE_IDS : TINY_IDS,
                     .n_eos = 1,
                     .eos = {tokens == PIECES ? PIECE_EOS : TINY_END}};
}

Row *row_case_parse(const RowCase *c, const char *line)
{
    Row *r = NULL;
    Err e = {0};
    if (row_parse(&c->context, c->cache, line, strlen(line), 0, 1, 0, &r, &e) != ST_OK || !r ||
        r->error.status) {
        fprintf(stderr, "%s: %s%s\n", line, e.text, r && r->error.message ? r->error.message : "");
        abort();
    }
    return r;
}

TokenLogprobs row_case_logprobs(int32_t id)
{
    return (TokenLogprobs){.logprob = 0.0f - (float)id / 8,
                           .rank = 3,
                           .n_top = 2,
                           .top_id = {TINY_BYTE + 'y', TINY_BYTE + 'z'},
                           .top_logprob = {-0.25f, -0.5f}};
}

int row_case_feed(const RowCase *c, Row *r, Choice *choice, const int32_t *ids)
{
    int n = 0;
    Err e;
    while (choice->finish == FINISH_NONE && n < ROW_CASE_TOKENS && ids[n] >= 0) {
        TokenLogprobs lp = row_case_logprobs(ids[n]);
        if (choice_accept(&c->context, r, choice, ids[n++], r->params.logprobs >= 0 ? &lp : NULL,
                          &e) != ST_OK)
            abort();
    }
    return n;
}

const JsonValue *row_case_render(const RowCase *c, const Row *r, Arena *arena, StrBuf *line)
{
    Err e = {0};
    JsonValue *v = NULL;
    strbuf_clear(line);
    if (row_render(&c->context, r, line, &e) != ST_OK ||
        json_parse(line->data, line->len, arena, &v, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    return json_get(json_get(v, "response"), "body");
}
