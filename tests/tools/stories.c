/* tests/tools/stories.c - the prompts of a storyteller's golden.json as rows for `run`, and the results against transformers'.
 *
 *   stories rows GOLDEN.json                each prompt as text, its greedy tokens to be generated
 *   stories compare GOLDEN.json OUT.jsonl   text and ids equal; log-probabilities of every token after the first within 1e-3 */
#include "io/file.h"
#include "io/json.h"
#include "io/strbuf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const JsonValue *read_json(const char *text, size_t len, Arena *arena)
{
    JsonValue *v = NULL;
    Err e;
    if (json_parse(text, len, arena, &v, &e) == ST_OK)
        return v;
    fprintf(stderr, "%s\n", e.text);
    exit(1);
}

static const JsonValue *member(const JsonValue *v, const char *key)
{
    const JsonValue *m = v && v->type == JSON_OBJECT ? json_get(v, key) : NULL;
    if (!m) {
        fprintf(stderr, "\"%s\" is missing\n", key);
        exit(1);
    }
    return m;
}

static int print_rows(const JsonValue *prompts)
{
    StrBuf b = {0};
    for (const JsonValue *p = prompts->child; p; p = p->next) {
        const JsonValue *text = member(p, "text");
        strbuf_str(&b, "{\"prompt\":");
        strbuf_json_string(&b, text->text, text->len);
        strbuf_fmt(&b, ",\"max_tokens\":%zu,\"temperature\":0,\"ignore_eos\":true,",
                   member(p, "greedy_ids")->len);
        strbuf_str(&b, "\"return_token_ids\":true,\"prompt_logprobs\":0,\"logprobs\":0}\n");
    }
    fputs(b.failed ? "" : b.data, stdout);
    strbuf_free(&b);
    return b.failed;
}

static int same_ids(const JsonValue *a, const JsonValue *b)
{
    int64_t x, y;
    const JsonValue *p = a->child, *q = b->child;
    for (; p && q; p = p->next, q = q->next)
        if (!json_int64(p, &x) || !json_int64(q, &y) || x != y)
            return 0;
    return !p && !q;
}

static int near(const JsonValue *want, const JsonValue *got)
{
    double x, y;
    return json_double(want, &x) && json_double(got, &y) && fabs(x - y) <= 1e-3;
}

/* want: of every token after the first, prompt and completion. */
static int same_logprobs(const JsonValue *want, const JsonValue *choice)
{
    const JsonValue *p = want->child, *q = member(choice, "prompt_logprobs")->child;
    for (q = q ? q->next : NULL; p && q; p = p->next, q = q->next)
        if (!q->child || !near(p, member(q->child, "logprob")))
            return 0;
    for (q = member(member(choice, "logprobs"), "token_logprobs")->child; p && q;
         p = p->next, q = q->next)
        if (!near(p, q))
            return 0;
    return !p && !q;
}

static int compare(const JsonValue *prompts, const char *out)
{
    const char *line = out, *end = out + strlen(out);
    int n = 0, wrong = 0;
    for (const JsonValue *p = prompts->child; p; p = p->next, n++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        Arena arena = {0};
        if (!stop)
            return 1;
        const JsonValue *v = read_json(line, (size_t)(stop - line), &arena);
        const JsonValue *c = member(member(member(v, "response"), "body"), "choices")->child;
        const JsonValue *want = member(p, "completion"), *got = member(c, "text");
        wrong += !same_ids(member(p, "ids"), member(c, "prompt_token_ids"));
        wrong += !same_ids(member(p, "greedy_ids"), member(c, "token_ids"));
        wrong += want->len != got->len || memcmp(want->text, got->text, got->len) != 0;
        wrong += !same_logprobs(member(p, "logprobs"), c);
        arena_free(&arena);
        line = stop + 1;
    }
    printf("%d prompts, %d differences\n", n, wrong);
    return n == 0 || wrong != 0 || line != end;
}

int main(int argc, char **argv)
{
    char *golden = NULL, *out = NULL;
    size_t golden_len, out_len;
    Arena arena = {0};
    Err e;
    if (argc < 3 || file_read(argv[2], 1 << 24, &golden, &golden_len, &e) != ST_OK)
        return 2;
    const JsonValue *prompts = member(read_json(golden, golden_len, &arena), "prompts");
    int code = 2;
    if (strcmp(argv[1], "rows") == 0)
        code = print_rows(prompts);
    else if (strcmp(argv[1], "compare") == 0 && argc == 4 &&
             file_read(argv[3], 1 << 24, &out, &out_len, &e) == ST_OK)
        code = compare(prompts, out);
    arena_free(&arena);
    free(golden);
    free(out);
    return code;
}
