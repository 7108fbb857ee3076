/* tests/jobs/test_row_goldens.c - recorded requests are parsed, their recorded tokens accepted, and
 * the line that comes out is held against the recorded answer: everything but the model itself. */
#include "jobs/row.h"
#include "tests/support/check.h"
#include "tests/support/wire_golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 1 << 20, STOP_IDS_TOKEN = 374 };

static Arch arch = {.vocab = 4096, .n_eos = 1, .bos = -1};
static GenerationDefaults no_generation;
static RowContext context = {.arch = &arch,
                             .generation = &no_generation,
                             .max_len = 1024,
                             .served_name = "storyteller",
                             .default_name = "x"};
static TokenizerCache *cache;

static int32_t id_of_text(const char *text)
{
    TokenIds ids = {0};
    Err e;
    int32_t id = -1;
    if (tokenizer_encode(context.tokenizer, cache, text, strlen(text), false, &ids, &e) == ST_OK &&
        ids.n == 1)
        id = ids.ids[0];
    tokenids_free(&ids);
    return id;
}

/* From the recorded map of one position; the members but the first are in order of rank. */
static TokenLogprobs logprobs_of(const JsonValue *map, bool keys_are_ids)
{
    TokenLogprobs lp = {0};
    for (const JsonValue *m = map->child; m; m = m->next) {
        double value = 0;
        int64_t rank = 0;
        int32_t id = keys_are_ids ? (int32_t)strtol(m->key, NULL, 10) : id_of_text(m->key);
        json_double(keys_are_ids ? json_get(m, "logprob") : m, &value);
        if (m == map->child) {
            lp.logprob = (float)value;
            if (keys_are_ids && json_int64(json_get(m, "rank"), &rank))
                lp.rank = (int32_t)rank;
            if (rank > 1)
                continue; /* not among the best */
        }
        lp.top_id[lp.n_top] = id;
        lp.top_logprob[lp.n_top++] = (float)value;
    }
    return lp;
}

/* The ids that the recorded choice was made of: as recorded, or those of its text. */
static bool recorded_ids(const Row *r, const JsonValue *choice, int64_t n_want, TokenIds *out)
{
    const JsonValue *ids = json_get(choice, "token_ids"), *text = json_get(choice, "text");
    size_t skip = r->params.echo ? r->prompts[0].text_len : 0;
    Err e;
    bool failed = false;
    if (ids->type == JSON_ARRAY) {
        for (const JsonValue *v = ids->child; v; v = v->next) {
            int64_t id = 0;
            json_int64(v, &id);
            tokenids_push(out, (int32_t)id, &failed);
        }
    } else if (tokenizer_encode(context.tokenizer, cache, text->text + skip, text->len - skip,
                                false, out, &e) != ST_OK) {
        return false;
    }
    if (r->params.stop_ids.n)
        tokenids_push(out, STOP_IDS_TOKEN, &failed); /* left out of the text */
    return !failed && (int64_t)out->n == n_want;
}

static int feed(Row *r, Choice *c, const JsonValue *recorded, const TokenIds *ids)
{
    int failed = 0;
    Err e;
    const JsonValue *top = json_get(json_get(recorded, "logprobs"), "top_logprobs");
    const JsonValue *at = top ? top->child : NULL;
    for (size_t skip = r->params.echo ? r->prompts[0].ids.n : 0; at && skip > 0; skip--)
        at = at->next;
    for (size_t i = 0; i < ids->n; i++) {
        TokenLogprobs lp = {0};
        if (at) {
            lp = logprobs_of(at, false);
            at = at->next;
        }
        failed += check_int(
            "accept",
            choice_accept(&context, r, c, ids->ids[i], r->params.logprobs >= 0 ? &lp : NULL, &e),
            ST_OK);
    }
    return failed;
}

static int answer(const WireGolden *g, Row *r)
{
    int failed = 0, index = 0;
    int64_t total = 0;
    json_int64(json_get(json_get(g->body, "usage"), "completion_tokens"), &total);
    for (const JsonValue *c = json_get(g->body, "choices")->child; c; c = c->next, index++) {
        TokenIds ids = {0};
        const JsonValue *prompt = json_get(c, "prompt_logprobs");
        if (index >= r->n_choices)
            return failed + check_int(g->custom_id, r->n_choices, index + 1);
        failed += check_true(g->custom_id, recorded_ids(r, c, total / r->n_choices, &ids));
        failed += feed(r, &r->choices[index], c, &ids);
        failed += check_true(g->custom_id,
                             (prompt->type == JSON_ARRAY) == (r->prompts[0].logprobs != NULL));
        if (prompt->type == JSON_ARRAY && prompt->len == r->prompts[0].ids.n) {
            size_t i = 1;
            for (const JsonValue *m = prompt->child->next; m; m = m->next)
                r->prompts[0].logprobs[i++] = logprobs_of(m, true);
        }
        tokenids_free(&ids);
    }
    return failed + check_int(g->custom_id, r->n_finished, r->n_choices);
}

static int test_golden(const WireGolden *g)
{
    Row *r = NULL;
    Err e = {0};
    StrBuf line = {0};
    Arena arena = {0};
    JsonValue *v = NULL;
    int64_t status = 0;
    int failed =
        check_int(g->custom_id,
                  row_parse(&context, cache, g->request, g->request_len, 0, 1, 0, &r, &e), ST_OK);
    if (failed)
        return failed;
    bool comparable = g->kind == GOLDEN_EQUAL || g->kind == GOLDEN_UNSUPPORTED;
    if (g->status == 200 && g->kind == GOLDEN_EQUAL && !r->error.status)
        failed += answer(g, r);
    if (!comparable) {
        failed +=
            check_int(g->custom_id, r->error.status, 0); /* its tokens are the model's business */
    } else if (failed == 0) {
        failed += check_int(g->custom_id, row_render(&context, r, &line, &e), ST_OK);
        failed += check_int(g->custom_id, json_parse(line.data, line.len, &arena, &v, &e), ST_OK);
        const JsonValue *response = json_get(v, "response");
        failed += check_true(g->custom_id, json_int64(json_get(response, "status_code"), &status));
        failed += wire_golden_check(g, status, json_get(response, "body"), 1e-6);
    }
    strbuf_free(&line);
    arena_free(&arena);
    row_free(r);
    return failed;
}

int main(void)
{
    const char *shared = test_shared();
    char path[1200];
    Tokenizer *t = NULL;
    Err e = {0};
    int failed = 0, n = 0;
    char *line = malloc(MAX_LINE);
    if (!shared || !line) {
        free(line);
        return test_skip("no reference data");
    }
    snprintf(path, sizeof path, "%s/models/storyteller-qwen3_moe", shared);
    if (tokenizer_load(path, &t, &e) != ST_OK || !t ||
        tokenizer_cache_create(t, &cache, &e) != ST_OK)
        return check_str(path, e.text, "");
    context.tokenizer = t;
    snprintf(path, sizeof path, "%s/wire-goldens/vllm-served.jsonl", shared);
    FILE *f = fopen(path, "r");
    failed += check_true(path, f != NULL);
    while (f && fgets(line, MAX_LINE, f)) {
        Arena arena = {0};
        WireGolden g;
        bool broken;
        if (wire_golden_read(line, strcspn(line, "\n"), &arena, &g, &broken)) {
            failed += test_golden(&g);
            n++;
        }
        failed += check_true("a line of the recording", !broken);
        arena_free(&arena);
    }
    if (f)
        fclose(f);
    failed += check_true("completions requests", n >= 40);
    tokenizer_cache_free(cache);
    tokenizer_free(t);
    free(line);
    return test_result(failed);
}
