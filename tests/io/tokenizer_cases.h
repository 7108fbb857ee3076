/* tests/io/tokenizer_cases.h - what the tokenizer's tests share: loading, and comparing ids with
 * JSON. */
#ifndef MB_TESTS_TOKENIZER_CASES_H
#define MB_TESTS_TOKENIZER_CASES_H

#include "io/json.h"
#include "io/tokenizer.h"
#include "tests/support/check.h"
#include "tests/support/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void must(Status st, const Err *e)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static inline void ids_from_json(const JsonValue *list, TokenIds *out)
{
    bool failed = list == NULL;
    out->n = 0;
    for (const JsonValue *v = list ? list->child : NULL; v; v = v->next) {
        int64_t id = -1;
        if (!json_int64(v, &id) || id != (int32_t)id)
            failed = true;
        tokenids_push(out, (int32_t)id, &failed);
    }
    if (failed) {
        fprintf(stderr, "a list of ids is missing or damaged in the test data\n");
        exit(1);
    }
}

/* 1 and a line on stderr when they differ. */
static inline int check_ids(const char *name, int number, const TokenIds *got, const TokenIds *want)
{
    size_t i = 0;
    while (i < got->n && i < want->n && got->ids[i] == want->ids[i])
        i++;
    if (i == got->n && i == want->n)
        return 0;
    fprintf(stderr, "%s %d: %zu ids, want %zu; at %zu got %d, want %d\n", name, number, got->n,
            want->n, i, i < got->n ? got->ids[i] : -1, i < want->n ? want->ids[i] : -1);
    return 1;
}

static inline int check_text(const char *name, int number, const StrBuf *got, const char *want,
                             size_t len)
{
    if (got->len == len && memcmp(got->data ? got->data : "", want, len) == 0)
        return 0;
    fprintf(stderr, "%s %d: got \"%s\", want \"%s\"\n", name, number, got->data ? got->data : "",
            want);
    return 1;
}

#endif
