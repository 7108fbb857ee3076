/* tests/jobs/test_row_text.c - how rows end, what their text is, and where tokens are in it. */
#include "tests/support/check.h"
#include "tests/support/row_case.h"

#include <stdio.h>

enum { END_OF_LIST = -1 };

#define B(c) (TINY_BYTE + (c))
#define P(c) (PIECE_BYTE + (c))

static RowCase rows;

static const JsonValue *choice_of(const JsonValue *body, int index)
{
    const JsonValue *c = json_get(body, "choices")->child;
    while (index-- > 0 && c)
        c = c->next;
    return c;
}

static const struct {
    const char *name;
    RowTokens tokens;
    const char *line;
    int32_t ids[ROW_CASE_TOKENS];
    int n_taken;
    const char *text, *finish, *reason; /* reason: a string, "#7" for a token id, "" for null */
    int64_t offsets[ROW_CASE_LEN]; /* checked where the row asks for logprobs, up to END_OF_LIST */
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
        row_case_use(&rows, cases[i].tokens);
        Row *r = row_case_parse(&rows, cases[i].line);
        failed += check_int(name, row_case_feed(&rows, r, &r->choices[0], cases[i].ids),
                            cases[i].n_taken);
        failed += check_int(name, r->n_finished, 1);
        const JsonValue *body = row_case_render(&rows, r, &arena, &line), *c = choice_of(body, 0);
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

int main(void)
{
    Err e = {0};
    if (row_case_open(&rows, &e) != ST_OK)
        return check_str("tokenizers", e.text, "");
    int failed = test_cases();
    row_case_close(&rows);
    return test_result(failed);
}
