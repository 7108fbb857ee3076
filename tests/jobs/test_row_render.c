/* tests/jobs/test_row_render.c - the line of an answer, of a refusal and of a failure. */
#include "tests/support/check.h"
#include "tests/support/row_case.h"

#include <string.h>

#define B(c) (TINY_BYTE + (c))

static RowCase rows;

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
    row_case_use(&rows, BYTES);
    rows.context.created = 12;
    Row *r = row_case_parse(&rows, line);
    row_case_feed(&rows, r, &r->choices[0], first);
    row_case_feed(&rows, r, &r->choices[1], second);
    row_case_feed(&rows, r, &r->choices[2], end);
    row_case_feed(&rows, r, &r->choices[3], end);
    r->prompts[0].logprobs[1] = row_case_logprobs(TINY_SP_C);
    r->prompts[0].logprobs[1].logprob = -1.0f / 0.0f;
    int failed = check_int("a finished row", r->n_finished, 4);
    const JsonValue *body = row_case_render(&rows, r, &arena, &got);
    failed += check_true("an id", strncmp(got.data, "{\"id\":\"batch_req_", 17) == 0);
    failed += check_has(
        "its custom_id", got.data,
        "\",\"custom_id\":\"w\\\"1\",\"response\":{\"status_code\":200,\"request_id\":\"req_");
    failed += check_true("the body's id", strncmp(json_get(body, "id")->text, "cmpl-", 5) == 0);
    const char *rest = strstr(got.data, "\"object\"");
    failed += check_str("a whole line", rest ? rest : "", want);
    row_case_render(&rows, r, &arena, &again);
    failed += check_str("the same again", again.data, got.data);
    rows.context.created = 0;
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
    row_case_use(&rows, BYTES);
    int failed = check_int(
        "parse", row_parse(&rows.context, rows.cache, bad, strlen(bad), 0, 1, 0, &r, &e), ST_OK);
    failed += check_int("render", row_render(&rows.context, r, &got, &e), ST_OK);
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
    r = row_case_parse(&rows, "{\"prompt\":\"a\"}");
    row_fail(r, 500, "nan_logits", NULL, "layer %d broke \"it\"", 3);
    failed += check_int("render", row_render(&rows.context, r, &got, &e), ST_OK);
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
    row_case_use(&rows, BYTES);
    Row *r = row_case_parse(&rows, "{\"input_ids\":[5],\"max_tokens\":1,\"logprobs\":3}");
    TokenLogprobs lp = {.logprob = -1,
                        .rank = 2,
                        .n_top = 3,
                        .top_id = {B(0x80), B('x'), B(0x81)},
                        .top_logprob = {-0.5f, -1, -2}};
    int failed = check_int("accept",
                           choice_accept(&rows.context, r, &r->choices[0], B('x'), &lp, &e), ST_OK);
    row_case_render(&rows, r, &arena, &got);
    failed +=
        check_has("collapsed", got.data, "\"top_logprobs\":[{\"x\":-1.0,\"\xef\xbf\xbd\":-0.5}]");
    failed += check_int("finished once",
                        choice_accept(&rows.context, r, &r->choices[0], B('x'), &lp, &e), ST_INPUT);
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
    row_case_use(&rows, BYTES);
    Row *r = row_case_parse(&rows,
                            "{\"prompt\":\"ab c\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1}");
    int failed =
        check_int("nothing to generate", choice_max_new(&rows.context, r, &r->choices[0]), 0);
    r->choices[0].finish = FINISH_LENGTH;
    r->n_finished = 1;
    r->prompts[0].logprobs[1] = row_case_logprobs(TINY_SP_C);
    row_case_render(&rows, r, &arena, &got);
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

int main(void)
{
    Err e = {0};
    if (row_case_open(&rows, &e) != ST_OK)
        return check_str("tokenizers", e.text, "");
    int failed = test_whole_line();
    failed += test_error_lines();
    failed += test_top_map();
    failed += test_echo_only();
    row_case_close(&rows);
    return test_result(failed);
}
