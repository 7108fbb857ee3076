/* tests/jobs/test_row_text.c - how rows end, what their text is, where tokens are in it, and the
 * output line. The tokens come from tables, so no model is needed. */
#include "io/json.h"
#include "jobs/row.h"
#include "tests/support/check.h"
#include "tests/support/tiny_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEN = 12, MAX_TOKENS = 8, END_OF_LIST = -1 };

#define B(c) (TINY_BYTE + (c))
#define P(c) (PIECE_BYTE + (c))

typedef enum Which { BYTES, PIECES, NONE } Which;

static Arch arch;
static GenerationDefaults no_generation;
static RowContext context = {
    .arch = &arch, .generation = &no_generation, .max_len = MAX_LEN, .default_name = "made-up"};
static Tokenizer *tokenizers[3];
static TokenizerCache *caches[3];
static TokenizerCache *cache;

static void use(Which which)
{
    context.tokenizer = tokenizers[which];
    cache = caches[which];
    arch = (Arch){.vocab = which == PIECES ? PIECE_IDS : TINY_IDS,
                  .n_eos = 1,
                  .eos = {which == PIECES ? PIECE_EOS : TINY_END}};
}

static Row *parse(const char *line)
{
    Row *r = NULL;
    Err e = {0};
    if (row_parse(&context, cache, line, strlen(line), 0, 1, 0, &r, &e) != ST_OK || !r ||
        r->error.status) {
        fprintf(stderr, "%s: %s%s\n", line, e.text, r && r->error.message ? r->error.message : "");
        abort();
    }
    return r;
}

/* Made-up values that follow from the id, so that a wrong one is seen. */
static TokenLogprobs made_logprobs(int32_t id)
{
    return (TokenLogprobs){.logprob = 0.0f - (float)id / 8,
                           .rank = 3,
                           .n_top = 2,
                           .top_id = {TINY_BYTE + 'y', TINY_BYTE + 'z'},
                           .top_logprob = {-0.25f, -0.5f}};
}

/* Feeds ids until the list or the choice ends; how many were taken. */
static int feed(Row *r, Choice *c, const int32_t *ids)
{
    int n = 0;
    Err e;
    while (c->finish == FINISH_NONE && ids[n] != END_OF_LIST && n < MAX_TOKENS) {
        TokenLogprobs lp = made_logprobs(ids[n]);
        if (choice_accept(&context, r, c, ids[n++], r->params.logprobs >= 0 ? &lp : NULL, &e) !=
            ST_OK)
            abort();
    }
    return n;
}

/* The answer's parts as JSON values; everything lives in arena. */
static const JsonValue *render(const Row *r, Arena *arena, StrBuf *line)
{
    Err e = {0};
    JsonValue *v = NULL;
    strbuf_clear(line);
    if (row_render(&context, r, line, &e) != ST_OK ||
        json_parse(line->data, line->len, arena, &v, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    return json_get(json_get(v, "response"), "body");
}

static const JsonValue *choice_of(const JsonValue *body, int index)
{
    const JsonValue *c = json_get(body, "choices")->child;
    while (index-- > 0 && c)
        c = c->next;
    return c;
}

static const struct {
    const char *name;
    Which which;
    const char *line;
    int32_t ids[MAX_TOKENS];
    int n_taken;
    const char *text, *finish, *reason; /* reason: a string, "#7" for a token id, "" for null */
    int64_t offsets[MAX_LEN]; /* checked where the row asks for logprobs, up to END_OF_LIST */
} cases[] = {
#define ROW(more) "{\"input_ids\":[5]," more "}"
    {"max_tokens",
     BYTES,
     ROW("\"max_tokens\":2"),
     {TINY_AB, TINY_SP_C, B('x'), -1},
     2,
     "ab c",
     "length",
     "",
     {-1}},
    {"eos", BYTES, ROW("\"max_tokens\":9"), {TINY_AB, TINY_END, -1}, 2, "ab", "stop", "", {-1}},
    {"eos at once", BYTES, ROW("\"logprobs\":0"), {TINY_END, -1}, 1, "", "stop", "", {0, -1}},
    {"eos ignored",
     BYTES,
     ROW("\"max_tokens\":3,\"ignore_eos\":true"),
     {TINY_END, TINY_AB, B('x'), -1},
     3,
     "abx",
     "length",
     "",
     {-1}},
    {"eos ignored and shown",
     BYTES,
     ROW("\"max_tokens\":2,\"ignore_eos\":true,\"skip_special_tokens\":false"),
     {TINY_END, TINY_AB, -1},
     2,
     "<|end|>ab",
     "length",
     "",
     {-1}},
    {"eos included",
     BYTES,
     ROW("\"include_stop_str_in_output\":true"),
     {TINY_AB, TINY_END, -1},
     2,
     "ab",
     "stop",
     "",
     {-1}},
    {"eos included and shown",
     BYTES,
     ROW("\"include_stop_str_in_output\":true,\"skip_special_tokens\":false"),
     {TINY_AB, TINY_END, -1},
     2,
     "ab<|end|>",
     "stop",
     "",
     {-1}},
    {"eos before min_tokens does not end",
     BYTES,
     ROW("\"min_tokens\":2"),
     {TINY_END, TINY_AB, TINY_END, -1},
     3,
     "ab",
     "stop",
     "",
     {-1}},
    {"stop id",
     BYTES,
     ROW("\"stop_token_ids\":[259],\"logprobs\":1"),
     {TINY_AB, TINY_SP_C, -1},
     2,
     "ab",
     "stop",
     "#259",
     {0, 2, -1}},
    {"stop id included",
     BYTES,
     ROW("\"stop_token_ids\":[259],\"include_stop_str_in_output\":true"),
     {TINY_AB, TINY_SP_C, -1},
     2,
     "ab c",
     "stop",
     "#259",
     {-1}},
    {"an ignored eos as stop id",
     BYTES,
     ROW("\"stop_token_ids\":[0],\"ignore_eos\":true"),
     {TINY_END, -1},
     1,
     "",
     "stop",
     "#0",
     {-1}},
    {"eos as stop id is an eos",
     BYTES,
     ROW("\"stop_token_ids\":[0]"),
     {TINY_END, -1},
     1,
     "",
     "stop",
     "",
     {-1}},
    {"stop id at the length",
     BYTES,
     ROW("\"stop_token_ids\":[259],\"max_tokens\":1"),
     {TINY_SP_C, -1},
     1,
     "",
     "stop",
     "#259",
     {-1}},
    {"the context ends",
     BYTES,
     "{\"input_ids\":[5,5,5,5,5,5,5,5,5],\"max_tokens\":7}",
     {7, 7, 7, 7, -1},
     3,
     NULL,
     "length",
     "",
     {-1}},
    /* Stop strings. */
    {"stop string",
     BYTES,
     ROW("\"stop\":\"x\""),
     {TINY_AB, B('x'), -1},
     2,
     "ab",
     "stop",
     "x",
     {-1}},
    {"stop string over tokens",
     BYTES,
     ROW("\"stop\":\"b c\",\"logprobs\":0"),
     {TINY_AB, TINY_SP_C, B('x'), -1},
     2,
     "a",
     "stop",
     "b c",
     {0, 1, -1}},
    {"stop string included",
     BYTES,
     ROW("\"stop\":\"b \",\"include_stop_str_in_output\":true"),
     {TINY_AB, TINY_SP_C, -1},
     2,
     "ab ",
     "stop",
     "b ",
     {-1}},
    {"the earliest of two",
     BYTES,
     ROW("\"stop\":[\"b\",\"a\"]"),
     {TINY_AB, -1},
     1,
     "",
     "stop",
     "a",
     {-1}},
    {"the first of two at one place",
     BYTES,
     ROW("\"stop\":[\"ab\",\"a\"]"),
     {TINY_AB, -1},
     1,
     "",
     "stop",
     "ab",
     {-1}},
    {"nearly",
     BYTES,
     ROW("\"stop\":\"aab\",\"max_tokens\":4"),
     {B('a'), B('b'), B('a'), B('a'), -1},
     4,
     "abaa",
     "length",
     "",
     {-1}},
    {"after a false start",
     BYTES,
     ROW("\"stop\":\"aab\""),
     {B('a'), B('a'), B('a'), B('b'), -1},
     4,
     "a",
     "stop",
     "aab",
     {-1}},
    {"stop string at the length",
     BYTES,
     ROW("\"stop\":\"b\",\"max_tokens\":1"),
     {TINY_AB, -1},
     1,
     "a",
     "stop",
     "b",
     {-1}},
    {"stop string before min_tokens",
     BYTES,
     ROW("\"stop\":\"a\",\"min_tokens\":2"),
     {B('a'), B('b'), B('a'), -1},
     3,
     "ab",
     "stop",
     "a",
     {-1}},
    {"stop string that ends after min_tokens",
     BYTES,
     ROW("\"stop\":\"xy\",\"min_tokens\":1"),
     {B('x'), B('y'), -1},
     2,
     "",
     "stop",
     "xy",
     {-1}},
    {"stop string of two bytes of a character",
     BYTES,
     ROW("\"stop\":\"\xc3\xa9\""),
     {B('x'), B(0xc3), B(0xa9), -1},
     3,
     "x",
     "stop",
     "\xc3\xa9",
     {-1}},
    {"eos hides a stop string",
     BYTES,
     ROW("\"stop\":\"end\",\"skip_special_tokens\":false"),
     {TINY_AB, TINY_END, -1},
     2,
     "ab",
     "stop",
     "",
     {-1}},
    {"a shown special token can be one",
     BYTES,
     ROW("\"stop\":\"mark\",\"skip_special_tokens\":false"),
     {TINY_AB, TINY_MARK, -1},
     2,
     "ab<|",
     "stop",
     "mark",
     {-1}},
    /* Offsets. */
    {"a character of two tokens",
     BYTES,
     ROW("\"logprobs\":0,\"max_tokens\":4"),
     {B('x'), B(0xc3), B(0xa9), TINY_AB, -1},
     4,
     "x\xc3\xa9"
     "ab",
     "length",
     "",
     {0, 1, 1, 2, -1}},
    {"a character of four tokens",
     BYTES,
     ROW("\"logprobs\":0,\"max_tokens\":5"),
     {B(0xf0), B(0x9f), B(0x98), B(0x80), B('x'), -1},
     5,
     "\xf0\x9f\x98\x80x",
     "length",
     "",
     {0, 0, 0, 0, 1, -1}},
    {"half a character",
     BYTES,
     ROW("\"logprobs\":0,\"max_tokens\":2"),
     {B(0xc3), B('x'), -1},
     2,
     "\xef\xbf\xbdx",
     "length",
     "",
     {0, 1, -1}},
    {"half a character at the end",
     BYTES,
     ROW("\"logprobs\":0,\"max_tokens\":3"),
     {B('x'), B(0xe2), B(0x82), -1},
     3,
     "x\xef\xbf\xbd",
     "length",
     "",
     {0, 1, 1, -1}},
    {"tokens without width",
     BYTES,
     ROW("\"logprobs\":0,\"max_tokens\":3"),
     {TINY_MARK, TINY_AB, TINY_MARK, -1},
     3,
     "ab",
     "length",
     "",
     {0, 0, 2, -1}},
    {"tokens that are shown",
     BYTES,
     ROW("\"logprobs\":0,\"max_tokens\":3,\"skip_special_tokens\":false"),
     {TINY_MARK, TINY_AB, TINY_MARK, -1},
     3,
     "<|mark|>ab<|mark|>",
     "length",
     "",
     {0, 8, 10, -1}},
    {"echo",
     BYTES,
     "{\"prompt\":\"\xc3\xa9"
     "ab\",\"echo\":true,\"logprobs\":0,\"max_tokens\":2}",
     {B('x'), B('y'), -1},
     2,
     "\xc3\xa9"
     "abxy",
     "length",
     "",
     {0, 0, 1, 3, 4, -1}},
    {"echo of a special token",
     BYTES,
     "{\"prompt\":\"<|mark|>ab\",\"echo\":true,\"logprobs\":0,\"max_tokens\":1}",
     {B('x'), -1},
     1,
     "<|mark|>abx",
     "length",
     "",
     {0, 8, 10, -1}},
    {"echo of ids",
     BYTES,
     "{\"input_ids\":[1,258,197],\"echo\":true,\"logprobs\":0,\"max_tokens\":1}",
     {B('x'), -1},
     1,
     "<|mark|>ab\xef\xbf\xbdx",
     "length",
     "",
     {0, 8, 10, 11, -1}},
    {"echo of what truncation left",
     BYTES,
     "{\"prompt\":\"ab "
     "c\",\"truncate_prompt_tokens\":1,\"echo\":true,\"logprobs\":0,\"max_tokens\":1}",
     {B('x'), -1},
     1,
     " cx",
     "length",
     "",
     {0, 2, -1}},
    {"echo without logprobs",
     BYTES,
     "{\"prompt\":\"ab\",\"echo\":true,\"max_tokens\":1}",
     {B('x'), -1},
     1,
     "abx",
     "length",
     "",
     {-1}},
    {"echo and a stop string",
     BYTES,
     "{\"prompt\":\"abx\",\"echo\":true,\"logprobs\":0,\"stop\":\"x\"}",
     {TINY_AB, B('x'), -1},
     2,
     "abxab",
     "stop",
     "x",
     {0, 2, 3, 5, -1}},
    /* A tokenizer of pieces: a BOS in front, spaces as part of words, bytes for unknown characters.
     */
    {"the space of the first word",
     PIECES,
     "{\"prompt\":\"a\",\"max_tokens\":2,\"logprobs\":0}",
     {PIECE_SP_B, PIECE_A, -1},
     2,
     " ba",
     "length",
     "",
     {0, 2, -1}},
    {"no space in front",
     PIECES,
     "{\"prompt\":\"a\",\"max_tokens\":2,\"logprobs\":0}",
     {PIECE_B, PIECE_SP_A, -1},
     2,
     "b a",
     "length",
     "",
     {0, 1, -1}},
    {"two spaces",
     PIECES,
     "{\"prompt\":\"a\",\"max_tokens\":2,\"logprobs\":0}",
     {PIECE_SPACE, PIECE_SP_A, -1},
     2,
     "  a",
     "length",
     "",
     {0, 1, -1}},
    {"a stop string with the first space",
     PIECES,
     "{\"prompt\":\"a\",\"stop\":\" b\"}",
     {PIECE_SP_B, -1},
     1,
     "",
     "stop",
     " b",
     {-1}},
    {"echo with a BOS",
     PIECES,
     "{\"prompt\":\"a b\",\"echo\":true,\"logprobs\":0,\"max_tokens\":2}",
     {PIECE_SP_B, PIECE_A, -1},
     2,
     "a b ba",
     "length",
     "",
     {0, 0, 1, 3, 5, -1}},
    {"a character of bytes",
     PIECES,
     "{\"prompt\":\"a\",\"max_tokens\":3,\"logprobs\":0}",
     {P(0xc3), P(0xa9), PIECE_C, -1},
     3,
     "\xc3\xa9"
     "c",
     "length",
     "",
     {0, 0, 1, -1}},
    {"bytes that are none",
     PIECES,
     "{\"prompt\":\"a\",\"max_tokens\":4,\"logprobs\":0}",
     {PIECE_C, P(0xe2), P(0x82), PIECE_C, -1},
     4,
     "c\xef\xbf\xbd\xef\xbf\xbd"
     "c",
     "length",
     "",
     {0, 1, 2, 3, -1}},
    /* No tokenizer: ids only. */
    {"ids without a tokenizer",
     NONE,
     "{\"input_ids\":[5],\"max_tokens\":2,\"logprobs\":1}",
     {6, 7, -1},
     2,
     "",
     "length",
     "",
     {0, 0, -1}},
    {"echo without a tokenizer",
     NONE,
     "{\"input_ids\":[5],\"echo\":true,\"max_tokens\":1,\"logprobs\":0}",
     {6, -1},
     1,
     "",
     "length",
     "",
     {0, 0, -1}},
#undef ROW
};

static int check_reason(const char *name, const JsonValue *v, const char *want)
{
    char got[32] = "";
    if (v->type == JSON_STRING)
        return check_str(name, v->text, want);
    if (v->type == JSON_NUMBER)
        snprintf(got, sizeof got, "#%.20s", v->text);
    return check_str(name, got, want);
}

static int check_offsets(const char *name, const JsonValue *logprobs, const int64_t *want)
{
    if (logprobs->type != JSON_OBJECT)
        return check_int(name, want[0], -1);
    int failed = 0, i = 0;
    for (const JsonValue *v = json_get(logprobs, "text_offset")->child; v; v = v->next, i++) {
        int64_t got = -2;
        failed += check_true(name, json_int64(v, &got));
        failed += check_int(name, got, want[i]);
    }
    failed += check_int(name, want[i], END_OF_LIST);
    failed += check_int(name, (int64_t)json_get(logprobs, "tokens")->len, i);
    failed += check_int(name, (int64_t)json_get(logprobs, "token_logprobs")->len, i);
    failed += check_int(name, (int64_t)json_get(logprobs, "top_logprobs")->len, i);
    return failed;
}

static int test_cases(void)
{
    int failed = 0;
    StrBuf line = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].name;
        Arena arena = {0};
        use(cases[i].which);
        Row *r = parse(cases[i].line);
        failed += check_int(name, feed(r, &r->choices[0], cases[i].ids), cases[i].n_taken);
        failed += check_int(name, r->n_finished, 1);
        const JsonValue *body = render(r, &arena, &line), *c = choice_of(body, 0);
        if (cases[i].text)
            failed += check_str(name, json_get(c, "text")->text, cases[i].text);
        failed += check_str(name, json_get(c, "finish_reason")->text, cases[i].finish);
        failed += check_reason(name, json_get(c, "stop_reason"), cases[i].reason);
        failed += check_offsets(name, json_get(c, "logprobs"), cases[i].offsets);
        failed += check_int(name, row_completion_tokens(r), cases[i].n_taken);
        arena_free(&arena);
        row_free(r);
    }
    strbuf_free(&line);
    return failed;
}

/* The whole of an answer: order of keys, nulls, maps, ids that were made from the line. */
static int test_whole_line(void)
{
    static const char line[] = "{\"custom_id\":\"w\\\"1\",\"prompt\":[[258,259],[4]],\"n\":2,\"max_"
                               "tokens\":2,\"logprobs\":2,"
                               "\"prompt_logprobs\":1,\"return_token_ids\":true,\"model\":\"m\"}";
    static const char want[] =
        "\"object\":\"text_completion\",\"created\":12,\"model\":\"m\",\"choices\":["
        "{\"index\":0,\"text\":\"ab\",\"logprobs\":{\"tokens\":[\"ab\",\"<|end|>\"],\"token_"
        "logprobs\":[-32.25,0.0],"
        "\"top_logprobs\":[{\"ab\":-32.25,\"y\":-0.25,\"z\":-0.5},{\"<|end|>\":0.0,\"y\":-0.25,"
        "\"z\":-0.5}],"
        "\"text_offset\":[0,2]},\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":[258,"
        "0],"
        "\"prompt_logprobs\":[null,{\"259\":{\"logprob\":-9999.0,\"rank\":3,\"decoded_token\":\" "
        "c\"},"
        "\"123\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"y\"}}],\"prompt_token_ids\":["
        "258,259]},"
        "{\"index\":1,\"text\":\"yy\",\"logprobs\":{\"tokens\":[\"y\",\"y\"],\"token_logprobs\":[-"
        "15.375,-15.375],"
        "\"top_logprobs\":[{\"y\":-15.375,\"z\":-0.5},{\"y\":-15.375,\"z\":-0.5}],\"text_offset\":["
        "0,1]},"
        "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":[123,123],"
        "\"prompt_logprobs\":[null,{\"259\":{\"logprob\":-9999.0,\"rank\":3,\"decoded_token\":\" "
        "c\"},"
        "\"123\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"y\"}}],\"prompt_token_ids\":["
        "258,259]},"
        "{\"index\":2,\"text\":\"\",\"logprobs\":{\"tokens\":[\"<|end|>\"],\"token_logprobs\":[0.0]"
        ","
        "\"top_logprobs\":[{\"<|end|>\":0.0,\"y\":-0.25,\"z\":-0.5}],\"text_offset\":[0]},\"finish_"
        "reason\":\"stop\","
        "\"stop_reason\":null,\"token_ids\":[0],\"prompt_logprobs\":[null],\"prompt_token_ids\":[4]"
        "},"
        "{\"index\":3,\"text\":\"\",\"logprobs\":{\"tokens\":[\"<|end|>\"],\"token_logprobs\":[0.0]"
        ","
        "\"top_logprobs\":[{\"<|end|>\":0.0,\"y\":-0.25,\"z\":-0.5}],\"text_offset\":[0]},\"finish_"
        "reason\":\"stop\","
        "\"stop_reason\":null,\"token_ids\":[0],\"prompt_logprobs\":[null],\"prompt_token_ids\":[4]"
        "}],"
        "\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":6,"
        "\"total_tokens\":9}}},\"error\":null}";
    static const int32_t first[] = {TINY_AB, TINY_END}, second[] = {B('y'), B('y')},
                         end[] = {TINY_END, -1};
    StrBuf got = {0}, again = {0};
    Arena arena = {0};
    use(BYTES);
    context.created = 12;
    Row *r = parse(line);
    feed(r, &r->choices[0], first);
    feed(r, &r->choices[1], second);
    feed(r, &r->choices[2], end);
    feed(r, &r->choices[3], end);
    r->prompts[0].logprobs[1] = made_logprobs(TINY_SP_C);
    r->prompts[0].logprobs[1].logprob = -1.0f / 0.0f;
    int failed = check_int("a finished row", r->n_finished, 4);
    const JsonValue *body = render(r, &arena, &got);
    failed += check_true("an id", strncmp(got.data, "{\"id\":\"batch_req_", 17) == 0);
    failed += check_has(
        "its custom_id", got.data,
        "\",\"custom_id\":\"w\\\"1\",\"response\":{\"status_code\":200,\"request_id\":\"req_");
    failed += check_true("the body's id", strncmp(json_get(body, "id")->text, "cmpl-", 5) == 0);
    const char *rest = strstr(got.data, "\"object\"");
    failed += check_str("a whole line", rest ? rest : "", want);
    render(r, &arena, &again);
    failed += check_str("the same again", again.data, got.data);
    context.created = 0;
    arena_free(&arena);
    strbuf_free(&got);
    strbuf_free(&again);
    row_free(r);
    return failed;
}

static int test_error_lines(void)
{
    StrBuf got = {0};
    Err e;
    Row *r = NULL;
    static const char bad[] = "{\"custom_id\":\"x\",\"prompt\":\"a\\\"b\",\"temperature\":-1}";
    use(BYTES);
    int failed =
        check_int("parse", row_parse(&context, cache, bad, strlen(bad), 0, 1, 0, &r, &e), ST_OK);
    failed += check_int("render", row_render(&context, r, &got, &e), ST_OK);
    failed +=
        check_has("a refusal", got.data,
                  "\"custom_id\":\"x\",\"response\":{\"status_code\":400,\"request_id\":\"req_");
    failed += check_has("a refusal", got.data, "\"body\":{\"error\":{\"message\":\"temperature");
    failed += check_has("a refusal", got.data,
                        ",\"type\":\"invalid_request_error\",\"param\":\"temperature\",\"code\":"
                        "\"invalid_request\"}}},\"error\":null}");
    failed += check_int("no tokens", row_prompt_tokens(r) + row_completion_tokens(r), 0);
    row_free(r);
    strbuf_clear(&got);
    r = parse("{\"prompt\":\"a\"}");
    row_fail(r, 500, "nan_logits", NULL, "layer %d broke \"it\"", 3);
    failed += check_int("render", row_render(&context, r, &got, &e), ST_OK);
    failed +=
        check_has("a failure", got.data, "\"custom_id\":null,\"response\":{\"status_code\":500,");
    failed +=
        check_has("a failure", got.data,
                  "{\"message\":\"layer 3 broke "
                  "\\\"it\\\"\",\"type\":\"server_error\",\"param\":null,\"code\":\"nan_logits\"}");
    row_free(r);
    strbuf_free(&got);
    return failed;
}

/* Two tokens of one text collapse into the first; a token among the best is not repeated. */
static int test_top_map(void)
{
    StrBuf got = {0};
    Arena arena = {0};
    Err e;
    use(BYTES);
    Row *r = parse("{\"input_ids\":[5],\"max_tokens\":1,\"logprobs\":3}");
    TokenLogprobs lp = {.logprob = -1,
                        .rank = 2,
                        .n_top = 3,
                        .top_id = {B(0x80), B('x'), B(0x81)},
                        .top_logprob = {-0.5f, -1, -2}};
    int failed =
        check_int("accept", choice_accept(&context, r, &r->choices[0], B('x'), &lp, &e), ST_OK);
    render(r, &arena, &got);
    failed +=
        check_has("collapsed", got.data, "\"top_logprobs\":[{\"x\":-1.0,\"\xef\xbf\xbd\":-0.5}]");
    failed += check_int("finished once",
                        choice_accept(&context, r, &r->choices[0], B('x'), &lp, &e), ST_INPUT);
    row_free(r);
    arena_free(&arena);
    strbuf_free(&got);
    return failed;
}

/* An echo without an answer: the scheduler ends it. */
static int test_echo_only(void)
{
    StrBuf got = {0};
    Arena arena = {0};
    use(BYTES);
    Row *r = parse("{\"prompt\":\"ab c\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1}");
    int failed = check_int("nothing to generate", choice_max_new(&context, r, &r->choices[0]), 0);
    r->choices[0].finish = FINISH_LENGTH;
    r->n_finished = 1;
    r->prompts[0].logprobs[1] = made_logprobs(TINY_SP_C);
    render(r, &arena, &got);
    failed +=
        check_has("the prompt alone", got.data,
                  "\"text\":\"ab c\",\"logprobs\":{\"tokens\":[\"ab\",\" "
                  "c\"],\"token_logprobs\":[null,-32.375],"
                  "\"top_logprobs\":[null,{\" "
                  "c\":-32.375,\"y\":-0.25}],\"text_offset\":[0,2]},\"finish_reason\":\"length\"");
    failed += check_has("the prompt's own", got.data, "\"prompt_logprobs\":[null,{\"259\":");
    failed += check_has("no token generated", got.data,
                        "\"prompt_tokens\":2,\"completion_tokens\":0,\"total_tokens\":2");
    row_free(r);
    arena_free(&arena);
    strbuf_free(&got);
    return failed;
}

static const char *const saved_lines[] = {
    "{\"prompt\":\"ab\",\"max_tokens\":5,\"stop\":\"xy\",\"logprobs\":2}",
    "{\"prompt\":[\"ab\",\"a c\"],\"n\":2,\"max_tokens\":4,\"prompt_logprobs\":1}",
    "{\"prompt\":\"ab c\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1}",
    "{\"input_ids\":[5],\"max_tokens\":3,\"min_tokens\":1,\"stop_token_ids\":[7]}",
};

/* Some tokens for every choice, as many as its number and round allow. */
static void feed_all(Row *r, int upto)
{
    static const int32_t ids[] = {B('x'), B(0xc3), B(0xa9), B('x'), B('y'), B('z')};
    Err e;
    for (int i = 0; i < r->n_choices; i++) {
        Choice *c = &r->choices[i];
        while (c->finish == FINISH_NONE && c->out.n < (size_t)(upto < 6 ? upto : 6)) {
            TokenLogprobs lp = made_logprobs(ids[c->out.n]);
            if (r->params.max_tokens == 0) {
                c->finish = FINISH_LENGTH;
                r->n_finished++;
            } else if (choice_accept(&context, r, c, ids[c->out.n],
                                     r->params.logprobs >= 0 ? &lp : NULL, &e) != ST_OK)
                abort();
        }
    }
    for (int p = 0; p < r->n_prompts && upto > 0; p++)
        for (size_t k = 1; r->prompts[p].logprobs && k < r->prompts[p].ids.n; k++)
            r->prompts[p].logprobs[k] = made_logprobs((int32_t)k);
}

/* Saved after any number of tokens and taken up again, a row ends as it would have. */
static int test_save(void)
{
    StrBuf whole = {0}, resumed = {0}, bytes = {0};
    Arena arena = {0};
    Err e = {0};
    int failed = 0;
    use(BYTES);
    for (size_t i = 0; i < sizeof saved_lines / sizeof *saved_lines; i++) {
        Row *r = parse(saved_lines[i]);
        feed_all(r, 6);
        render(r, &arena, &whole);
        row_free(r);
        for (int upto = 0; upto <= 6; upto++) {
            Row *part = parse(saved_lines[i]), *rest = parse(saved_lines[i]);
            feed_all(part, upto);
            strbuf_clear(&bytes);
            failed += check_int("save", row_save(part, &bytes, &e), ST_OK);
            failed +=
                check_int("restore", row_restore(&context, rest, bytes.data, bytes.len, &e), ST_OK);
            failed += check_int("finished", rest->n_finished, part->n_finished);
            if (upto == 6) { /* nothing is fed again */
                render(rest, &arena, &resumed);
                failed += check_str(saved_lines[i], resumed.data, whole.data);
            }
            feed_all(rest, 6);
            render(rest, &arena, &resumed);
            failed += check_str(saved_lines[i], resumed.data, whole.data);
            row_free(part);
            row_free(rest);
        }
    }
    arena_free(&arena);
    strbuf_free(&whole);
    strbuf_free(&resumed);
    strbuf_free(&bytes);
    return failed;
}

/* Bytes that were cut, lengthened, changed or belong to another line never do more than be refused.
 */
static int test_hostile_save(void)
{
    StrBuf bytes = {0};
    Err e = {0};
    int failed = 0;
    use(BYTES);
    for (size_t i = 0; i < sizeof saved_lines / sizeof *saved_lines; i++) {
        Row *r = parse(saved_lines[i]);
        feed_all(r, 2);
        strbuf_clear(&bytes);
        failed += check_int("save", row_save(r, &bytes, &e), ST_OK);
        row_free(r);
        for (size_t n = 0; n < bytes.len; n++) {
            char *cut = malloc(n + 1); /* its own size, so that a read behind it is seen */
            if (!cut)
                abort();
            memcpy(cut, bytes.data, n);
            r = parse(saved_lines[i]);
            failed += check_int("cut", row_restore(&context, r, cut, n, &e), ST_INPUT);
            row_free(r);
            free(cut);
        }
        strbuf_add(&bytes, "", 1);
        r = parse(saved_lines[i]);
        failed += check_int("one byte more", row_restore(&context, r, bytes.data, bytes.len, &e),
                            ST_INPUT);
        row_free(r);
        bytes.len--;
        r = parse(saved_lines[(i + 1) % 4]);
        failed += check_int("another line", row_restore(&context, r, bytes.data, bytes.len, &e),
                            ST_INPUT);
        row_free(r);
        for (size_t n = 0; n < bytes.len; n++) {
            bytes.data[n] = (char)(bytes.data[n] ^ 0xff);
            r = parse(saved_lines[i]);
            Status st = row_restore(&context, r, bytes.data, bytes.len, &e);
            failed +=
                check_true("changed", n < 36 ? st == ST_INPUT : st == ST_INPUT || st == ST_OK);
            row_free(r);
            bytes.data[n] = (char)(bytes.data[n] ^ 0xff);
        }
    }
    strbuf_free(&bytes);
    return failed;
}

int main(void)
{
    Err e = {0};
    if (tiny_tokenizer_bytes(&tokenizers[BYTES], &e) != ST_OK ||
        tiny_tokenizer_pieces(&tokenizers[PIECES], &e) != ST_OK)
        return check_str("tokenizers", e.text, "");
    for (int i = 0; i < 2; i++)
        if (tokenizer_cache_create(tokenizers[i], &caches[i], &e) != ST_OK)
            return check_str("caches", e.text, "");
    int failed = test_cases();
    failed += test_whole_line();
    failed += test_error_lines();
    failed += test_top_map();
    failed += test_echo_only();
    failed += test_save();
    failed += test_hostile_save();
    for (int i = 0; i < 2; i++) {
        tokenizer_cache_free(caches[i]);
        tokenizer_free(tokenizers[i]);
    }
    return test_result(failed);
}
