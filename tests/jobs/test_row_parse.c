/* tests/jobs/test_row_parse.c - every form of line, every key, every refusal: status, error.code
 * and error.param. */
#include "io/digest.h"
#include "jobs/row.h"
#include "jobs/row_keys.h"
#include "tests/support/check.h"
#include "tests/support/tiny_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEN = 32 };

static Arch arch = {.vocab = TINY_IDS, .n_eos = 1};
static GenerationDefaults no_generation;
static RowContext context = {
    .arch = &arch, .generation = &no_generation, .max_len = MAX_LEN, .default_name = "made-up"};
static TokenizerCache *cache;

#define JOBS_LINE(body)                                                                            \
    "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":" body "}"
/* A short row with ids and more keys. */
#define IDS(more) "{\"input_ids\":[5,6,7]," more "}"
#define TEXT(more) "{\"prompt\":\"ab\"," more "}"

static const struct {
    const char *name, *line;
    int status; /* 0: accepted */
    const char *code, *param;
} cases[] = {
    /* Forms of line. */
    {"a batch line", JOBS_LINE("{\"prompt\":\"ab\"}"), 0, NULL, NULL},
    {"no method", "{\"custom_id\":\"r\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"ab\"}}",
     0, NULL, NULL},
    {"method null",
     "{\"custom_id\":\"r\",\"method\":null,\"url\":\"/v1/"
     "completions\",\"body\":{\"prompt\":\"ab\"}}",
     0, NULL, NULL},
    {"method GET",
     "{\"custom_id\":\"r\",\"method\":\"GET\",\"url\":\"/v1/"
     "completions\",\"body\":{\"prompt\":\"ab\"}}",
     400, "invalid_request", "method"},
    {"method post",
     "{\"custom_id\":\"r\",\"method\":\"post\",\"url\":\"/v1/"
     "completions\",\"body\":{\"prompt\":\"ab\"}}",
     400, "invalid_request", "method"},
    {"no custom_id", "{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"ab\"}}", 400,
     "invalid_request", "custom_id"},
    {"custom_id null",
     "{\"custom_id\":null,\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"ab\"}}", 400,
     "invalid_request", "custom_id"},
    {"custom_id a number",
     "{\"custom_id\":7,\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"ab\"}}", 400,
     "invalid_request", "custom_id"},
    {"custom_id twice", "{\"custom_id\":\"a\",\"custom_id\":\"b\",\"prompt\":\"ab\"}", 400,
     "invalid_request", "custom_id"},
    {"no url", "{\"custom_id\":\"r\",\"body\":{\"prompt\":\"ab\"}}", 400, "invalid_request", "url"},
    {"url a list", "{\"custom_id\":\"r\",\"url\":[],\"body\":{\"prompt\":\"ab\"}}", 400,
     "invalid_request", "url"},
    {"chat url",
     "{\"custom_id\":\"r\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[]}}", 400,
     "unsupported_url", "url"},
    {"no such url", "{\"custom_id\":\"r\",\"url\":\"/v1/completions/\",\"body\":{}}", 400,
     "unsupported_url", "url"},
    {"no body", "{\"custom_id\":\"r\",\"url\":\"/v1/completions\"}", 400, "invalid_request",
     "body"},
    {"body a list", JOBS_LINE("[]"), 400, "invalid_request", "body"},
    {"body null", JOBS_LINE("null"), 400, "invalid_request", "body"},
    {"a short row", "{\"prompt\":\"ab\"}", 0, NULL, NULL},
    {"a short row with an id", "{\"prompt\":\"ab\",\"custom_id\":\"x\"}", 0, NULL, NULL},
    {"short ids", "{\"input_ids\":[1,2]}", 0, NULL, NULL},
    {"short lists of ids", "{\"input_ids\":[[1,2],[3]]}", 0, NULL, NULL},
    {"both", "{\"input_ids\":[1],\"prompt\":\"ab\"}", 400, "invalid_request", "input_ids"},
    {"ids and prompt null", "{\"input_ids\":[1],\"prompt\":null}", 0, NULL, NULL},
    {"neither", "{\"custom_id\":\"x\"}", 400, "invalid_request", "prompt"},
    {"short chat", "{\"messages\":[]}", 400, "unsupported_url", "messages"},
    {"input_ids in a body is nobody's key", JOBS_LINE("{\"input_ids\":[1]}"), 400,
     "invalid_request", "prompt"},
    {"a list", "[1]", 400, "invalid_request", NULL},
    {"a number", "7", 400, "invalid_request", NULL},
    {"not JSON", "{\"prompt\":\"ab\"", 400, "invalid_json", NULL},
    {"something behind", "{\"prompt\":\"ab\"} x", 400, "invalid_json", NULL},
    {"bad UTF-8", "{\"prompt\":\"\xff\"}", 400, "invalid_json", NULL},
    {"half a surrogate pair", "{\"prompt\":\"\\ud800\"}", 400, "invalid_json", NULL},
    {"a raw control character", "{\"prompt\":\"a\tb\"}", 400, "invalid_json", NULL},
    {"an escaped NUL is text", "{\"prompt\":\"a\\u0000b\"}", 0, NULL, NULL},
    {"other line separators are text", "{\"prompt\":\"a\xe2\x80\xa8\xc2\x85\"}", 0, NULL, NULL},
    /* Prompts. */
    {"prompt missing", JOBS_LINE("{}"), 400, "invalid_request", "prompt"},
    {"prompt null", JOBS_LINE("{\"prompt\":null}"), 400, "invalid_request", "prompt"},
    {"prompt empty", JOBS_LINE("{\"prompt\":\"\"}"), 400, "invalid_request", "prompt"},
    {"prompt an empty list", JOBS_LINE("{\"prompt\":[]}"), 400, "invalid_request", "prompt"},
    {"one of two prompts empty", JOBS_LINE("{\"prompt\":[\"a\",\"\"]}"), 400, "invalid_request",
     "prompt"},
    {"one of two lists empty", JOBS_LINE("{\"prompt\":[[1],[]]}"), 400, "invalid_request",
     "prompt"},
    {"prompt an object", JOBS_LINE("{\"prompt\":{\"a\":1}}"), 400, "invalid_request",
     "body.prompt"},
    {"prompt a number", JOBS_LINE("{\"prompt\":5}"), 400, "invalid_request", "body.prompt"},
    {"prompt true", JOBS_LINE("{\"prompt\":true}"), 400, "invalid_request", "body.prompt"},
    {"prompts", JOBS_LINE("{\"prompt\":[\"ab\",\"c\"]}"), 0, NULL, NULL},
    {"ids", JOBS_LINE("{\"prompt\":[5,6]}"), 0, NULL, NULL},
    {"lists of ids", JOBS_LINE("{\"prompt\":[[5],[6,7]]}"), 0, NULL, NULL},
    {"text and id", JOBS_LINE("{\"prompt\":[\"a\",5]}"), 400, "invalid_request", "body.prompt"},
    {"id and text", JOBS_LINE("{\"prompt\":[5,\"a\"]}"), 400, "invalid_request", "body.prompt"},
    {"list and id", JOBS_LINE("{\"prompt\":[[5],6]}"), 400, "invalid_request", "body.prompt"},
    {"lists of text", JOBS_LINE("{\"prompt\":[[\"a\"]]}"), 400, "invalid_request", "body.prompt"},
    {"null in a list", JOBS_LINE("{\"prompt\":[null]}"), 400, "invalid_request", "body.prompt"},
    {"half an id", JOBS_LINE("{\"prompt\":[5,1.5]}"), 400, "invalid_request", "body.prompt"},
    {"an id written as 5.0", JOBS_LINE("{\"prompt\":[5.0]}"), 0, NULL, NULL},
    {"the last id", JOBS_LINE("{\"prompt\":[259]}"), 0, NULL, NULL},
    {"an id too many", JOBS_LINE("{\"prompt\":[260]}"), 400, "invalid_request", NULL},
    {"an id of 2^32", JOBS_LINE("{\"prompt\":[4294967296]}"), 400, "invalid_request", NULL},
    {"an id of 10^40", JOBS_LINE("{\"prompt\":[1e40]}"), 400, "invalid_request", NULL},
    {"a negative id", JOBS_LINE("{\"prompt\":[5,-1]}"), 400, "invalid_request", "body.prompt"},
    {"input_ids text", "{\"input_ids\":\"ab\"}", 400, "invalid_request", "body.input_ids"},
    {"input_ids of text", "{\"input_ids\":[\"ab\"]}", 400, "invalid_request", "body.input_ids"},
    {"input_ids empty", "{\"input_ids\":[]}", 400, "invalid_request", "input_ids"},
    {"30 of 32 tokens", "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}", 0, NULL, NULL},
    {"31 of 32 tokens", "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"max_tokens\":9}", 0,
     NULL, NULL},
    {"32 of 32 tokens", "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}", 400,
     "context_length_exceeded", "input_tokens"},
    {"32 of 32 tokens without an answer",
     "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"max_tokens\":0,\"echo\":true}", 0, NULL,
     NULL},
    {"33 of 32 tokens without an answer",
     "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"max_tokens\":0,\"echo\":true}", 400,
     "context_length_exceeded", "input_tokens"},
    {"too long but truncated",
     "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"truncate_prompt_tokens\":4}", 0, NULL,
     NULL},
    {"truncated to what fits",
     "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"truncate_prompt_tokens\":-1}", 0, NULL,
     NULL},
    {"truncated, still too long",
     "{\"prompt\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"truncate_prompt_tokens\":33}", 400,
     "context_length_exceeded", "input_tokens"},
    {"truncated to nothing", IDS("\"truncate_prompt_tokens\":0"), 400, "invalid_request",
     "truncate_prompt_tokens"},
    {"truncated to -2", IDS("\"truncate_prompt_tokens\":-2"), 400, "invalid_request",
     "body.truncate_prompt_tokens"},
    {"truncated to text", IDS("\"truncate_prompt_tokens\":\"3\""), 400, "invalid_request",
     "body.truncate_prompt_tokens"},
    {"truncation side", IDS("\"truncation_side\":\"right\""), 0, NULL, NULL},
    {"no such side", IDS("\"truncation_side\":\"top\""), 400, "invalid_request",
     "body.truncation_side"},
    {"add_special_tokens", IDS("\"add_special_tokens\":1"), 400, "invalid_request",
     "body.add_special_tokens"},
    /* The model. */
    {"any model", IDS("\"model\":\"other\""), 0, NULL, NULL},
    {"model null", IDS("\"model\":null"), 0, NULL, NULL},
    {"model a number", IDS("\"model\":5"), 400, "invalid_request", "body.model"},
    /* Numbers. */
    {"max_tokens 1", IDS("\"max_tokens\":1"), 0, NULL, NULL},
    {"max_tokens null", IDS("\"max_tokens\":null"), 0, NULL, NULL},
    {"max_tokens beyond the context", IDS("\"max_tokens\":100000"), 0, NULL, NULL},
    {"max_tokens beyond an int", IDS("\"max_tokens\":10000000000"), 0, NULL, NULL},
    {"max_tokens 4.0", IDS("\"max_tokens\":4.0"), 0, NULL, NULL},
    {"max_tokens 0", IDS("\"max_tokens\":0"), 400, "invalid_request", "max_tokens"},
    {"max_tokens 0 with echo", IDS("\"max_tokens\":0,\"echo\":true"), 0, NULL, NULL},
    {"max_tokens -1", IDS("\"max_tokens\":-1"), 400, "invalid_request", "max_tokens"},
    {"max_tokens far below", IDS("\"max_tokens\":-10000000000,\"echo\":true"), 400,
     "invalid_request", "max_tokens"},
    {"max_tokens 1.5", IDS("\"max_tokens\":1.5"), 400, "invalid_request", "body.max_tokens"},
    {"max_tokens text", IDS("\"max_tokens\":\"5\""), 400, "invalid_request", "body.max_tokens"},
    {"max_tokens true", IDS("\"max_tokens\":true"), 400, "invalid_request", "body.max_tokens"},
    {"max_tokens 1e30", IDS("\"max_tokens\":1e30"), 400, "invalid_request", "body.max_tokens"},
    {"min_tokens", IDS("\"min_tokens\":16"), 0, NULL, NULL},
    {"min_tokens over max_tokens", IDS("\"min_tokens\":17"), 400, "invalid_request", NULL},
    {"min_tokens -1", IDS("\"min_tokens\":-1"), 400, "invalid_request", NULL},
    {"n", IDS("\"n\":3"), 0, NULL, NULL},
    {"n 0", IDS("\"n\":0"), 400, "invalid_request", NULL},
    {"n enormous", IDS("\"n\":100000"), 400, "invalid_request", NULL},
    {"n at temperature 0", IDS("\"n\":2,\"temperature\":0"), 400, "invalid_request", NULL},
    {"n 1 at temperature 0", IDS("\"n\":1,\"temperature\":0"), 0, NULL, NULL},
    {"n times prompts", "{\"input_ids\":[[1],[2],[3]],\"n\":16384}", 0, NULL, NULL},
    {"temperature 5", IDS("\"temperature\":5"), 0, NULL, NULL},
    {"temperature -0.1", IDS("\"temperature\":-0.1"), 400, "invalid_request", "temperature"},
    {"temperature 1e999", IDS("\"temperature\":1e999"), 400, "invalid_request", "temperature"},
    {"temperature text", IDS("\"temperature\":\"1\""), 400, "invalid_request", "body.temperature"},
    {"top_p 1", IDS("\"top_p\":1"), 0, NULL, NULL},
    {"top_p 0", IDS("\"top_p\":0"), 400, "invalid_request", "top_p"},
    {"top_p 1.1", IDS("\"top_p\":1.1"), 400, "invalid_request", "top_p"},
    {"min_p 0.5", IDS("\"min_p\":0.5"), 0, NULL, NULL},
    {"min_p 1.5", IDS("\"min_p\":1.5"), 400, "invalid_request", NULL},
    {"min_p -0.5", IDS("\"min_p\":-0.5"), 400, "invalid_request", NULL},
    {"top_k -1", IDS("\"top_k\":-1"), 0, NULL, NULL},
    {"top_k beyond the vocabulary", IDS("\"top_k\":99999999999"), 0, NULL, NULL},
    {"top_k -5", IDS("\"top_k\":-5"), 400, "invalid_request", NULL},
    {"seed", IDS("\"seed\":-9223372036854775808"), 0, NULL, NULL},
    {"seed beyond 64 bits", IDS("\"seed\":9223372036854775808"), 400, "invalid_request",
     "body.seed"},
    {"presence_penalty -2", IDS("\"presence_penalty\":-2"), 0, NULL, NULL},
    {"presence_penalty 2.1", IDS("\"presence_penalty\":2.1"), 400, "invalid_request", NULL},
    {"frequency_penalty 2", IDS("\"frequency_penalty\":2"), 0, NULL, NULL},
    {"frequency_penalty -2.1", IDS("\"frequency_penalty\":-2.1"), 400, "invalid_request", NULL},
    {"repetition_penalty 0", IDS("\"repetition_penalty\":0"), 400, "invalid_request", NULL},
    {"repetition_penalty 0.1", IDS("\"repetition_penalty\":0.1"), 0, NULL, NULL},
    {"repetition_penalty 1e999", IDS("\"repetition_penalty\":1e999"), 400, "invalid_request", NULL},
    {"logprobs 0", IDS("\"logprobs\":0"), 0, NULL, NULL},
    {"logprobs 20", IDS("\"logprobs\":20"), 0, NULL, NULL},
    {"logprobs 21", IDS("\"logprobs\":21"), 400, "invalid_request", "logprobs"},
    {"logprobs -1", IDS("\"logprobs\":-1"), 400, "invalid_request", "logprobs"},
    {"logprobs true", IDS("\"logprobs\":true"), 400, "invalid_request", "body.logprobs"},
    {"logprobs null", IDS("\"logprobs\":null"), 0, NULL, NULL},
    {"prompt_logprobs 20", IDS("\"prompt_logprobs\":20"), 0, NULL, NULL},
    {"prompt_logprobs 21", IDS("\"prompt_logprobs\":21"), 400, "invalid_request",
     "prompt_logprobs"},
    {"prompt_logprobs -1", IDS("\"prompt_logprobs\":-1"), 400, "invalid_request",
     "prompt_logprobs"},
    /* Switches. */
    {"echo", IDS("\"echo\":true"), 0, NULL, NULL},
    {"echo 1", IDS("\"echo\":1"), 400, "invalid_request", "body.echo"},
    {"ignore_eos text", IDS("\"ignore_eos\":\"true\""), 400, "invalid_request", "body.ignore_eos"},
    {"return_token_ids", IDS("\"return_token_ids\":true"), 0, NULL, NULL},
    {"skip_special_tokens", IDS("\"skip_special_tokens\":false"), 0, NULL, NULL},
    {"include_stop_str_in_output", IDS("\"include_stop_str_in_output\":null"), 0, NULL, NULL},
    /* Lists. */
    {"stop text", IDS("\"stop\":\"x\""), 0, NULL, NULL},
    {"stop list", IDS("\"stop\":[\"a\",\"b\",\"c\",\"d\"]"), 0, NULL, NULL},
    {"stop empty list", IDS("\"stop\":[]"), 0, NULL, NULL},
    {"stop five", IDS("\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]"), 400, "invalid_request",
     "body.stop"},
    {"stop empty", IDS("\"stop\":\"\""), 400, "invalid_request", NULL},
    {"stop with an empty one", IDS("\"stop\":[\"a\",\"\"]"), 400, "invalid_request", NULL},
    {"stop number", IDS("\"stop\":5"), 400, "invalid_request", "body.stop"},
    {"stop numbers", IDS("\"stop\":[5]"), 400, "invalid_request", "body.stop"},
    {"stop_token_ids", IDS("\"stop_token_ids\":[0,259]"), 0, NULL, NULL},
    {"stop_token_ids out of range", IDS("\"stop_token_ids\":[260]"), 400, "invalid_request",
     "stop_token_ids"},
    {"stop_token_ids negative", IDS("\"stop_token_ids\":[-1]"), 400, "invalid_request",
     "stop_token_ids"},
    {"stop_token_ids text", IDS("\"stop_token_ids\":[\"a\"]"), 400, "invalid_request",
     "body.stop_token_ids"},
    {"stop_token_ids a number", IDS("\"stop_token_ids\":3"), 400, "invalid_request",
     "body.stop_token_ids"},
    {"allowed_token_ids", IDS("\"allowed_token_ids\":[5,5,4]"), 0, NULL, NULL},
    {"allowed_token_ids empty", IDS("\"allowed_token_ids\":[]"), 400, "invalid_request",
     "allowed_token_ids"},
    {"allowed_token_ids out of range", IDS("\"allowed_token_ids\":[5,999]"), 400, "invalid_request",
     "allowed_token_ids"},
    {"logit_bias", IDS("\"logit_bias\":{\"5\":1,\"6\":-500}"), 0, NULL, NULL},
    {"logit_bias empty", IDS("\"logit_bias\":{}"), 0, NULL, NULL},
    {"logit_bias list", IDS("\"logit_bias\":[]"), 400, "invalid_request", "body.logit_bias"},
    {"logit_bias text", IDS("\"logit_bias\":{\"5\":\"1\"}"), 400, "invalid_request",
     "body.logit_bias"},
    {"logit_bias of a word", IDS("\"logit_bias\":{\"a\":1}"), 400, "invalid_request", "logit_bias"},
    {"logit_bias of nothing", IDS("\"logit_bias\":{\"\":1}"), 400, "invalid_request", "logit_bias"},
    {"logit_bias out of range", IDS("\"logit_bias\":{\"260\":1}"), 400, "invalid_request",
     "logit_bias"},
    {"logit_bias far out", IDS("\"logit_bias\":{\"99999999999999999999999\":1}"), 400,
     "invalid_request", "logit_bias"},
    {"bad_words", IDS("\"bad_words\":[\"ab\",\" c\"]"), 0, NULL, NULL},
    {"bad_words text", IDS("\"bad_words\":\"ab\""), 400, "invalid_request", "body.bad_words"},
    {"bad_words numbers", IDS("\"bad_words\":[1]"), 400, "invalid_request", "body.bad_words"},
    {"bad_words empty", IDS("\"bad_words\":[\"\"]"), 400, "invalid_request", NULL},
    /* Keys that would change the answer, beside their neutral values. */
    {"stream", IDS("\"stream\":true"), 400, "unsupported_parameter", "stream"},
    {"stream false", IDS("\"stream\":false"), 0, NULL, NULL},
    {"suffix", IDS("\"suffix\":\"!\""), 400, "unsupported_parameter", "suffix"},
    {"suffix null", IDS("\"suffix\":null"), 0, NULL, NULL},
    {"use_beam_search", IDS("\"use_beam_search\":true"), 400, "unsupported_parameter",
     "use_beam_search"},
    {"use_beam_search false", IDS("\"use_beam_search\":false"), 0, NULL, NULL},
    {"length_penalty", IDS("\"length_penalty\":1.1"), 400, "unsupported_parameter",
     "length_penalty"},
    {"length_penalty 1", IDS("\"length_penalty\":1.0"), 0, NULL, NULL},
    {"spaces_between_special_tokens", IDS("\"spaces_between_special_tokens\":false"), 400,
     "unsupported_parameter", "spaces_between_special_tokens"},
    {"spaces_between_special_tokens true", IDS("\"spaces_between_special_tokens\":true"), 0, NULL,
     NULL},
    {"return_tokens_as_token_ids", IDS("\"return_tokens_as_token_ids\":true"), 400,
     "unsupported_parameter", "return_tokens_as_token_ids"},
    {"return_tokens_as_token_ids false", IDS("\"return_tokens_as_token_ids\":false"), 0, NULL,
     NULL},
    {"logprob_token_ids", IDS("\"logprob_token_ids\":[1]"), 400, "unsupported_parameter",
     "logprob_token_ids"},
    {"logprob_token_ids empty", IDS("\"logprob_token_ids\":[]"), 0, NULL, NULL},
    {"prompt_embeds", IDS("\"prompt_embeds\":\"AA==\""), 400, "unsupported_parameter",
     "prompt_embeds"},
    {"response_format", IDS("\"response_format\":{\"type\":\"json_object\"}"), 400,
     "unsupported_parameter", "response_format"},
    {"response_format text", IDS("\"response_format\":{\"type\":\"text\"}"), 0, NULL, NULL},
    {"structured_outputs", IDS("\"structured_outputs\":{\"choice\":[]}"), 400,
     "unsupported_parameter", "structured_outputs"},
    {"guided_json", IDS("\"guided_json\":{}"), 400, "unsupported_parameter", "guided_json"},
    {"guided_regex", IDS("\"guided_regex\":\"a\""), 400, "unsupported_parameter", "guided_regex"},
    {"guided_choice", IDS("\"guided_choice\":[]"), 400, "unsupported_parameter", "guided_choice"},
    {"guided_grammar", IDS("\"guided_grammar\":\"\""), 400, "unsupported_parameter",
     "guided_grammar"},
    {"guided_json_object", IDS("\"guided_json_object\":true"), 400, "unsupported_parameter",
     "guided_json_object"},
    {"guided_json_object false", IDS("\"guided_json_object\":false"), 0, NULL, NULL},
    {"repetition_detection", IDS("\"repetition_detection\":{}"), 400, "unsupported_parameter",
     "repetition_detection"},
    /* Accepted and ignored, whatever they say. */
    {"ignored keys",
     IDS("\"best_of\":3,\"user\":\"u\",\"priority\":1,\"cache_salt\":\"s\",\"request_id\":\"q\","
         "\"vllm_xargs\":{},"
         "\"include_reasoning\":true,\"thinking_token_budget\":5"),
     0, NULL, NULL},
    {"an unknown key", IDS("\"no_such_key\":1"), 0, NULL, NULL},
};

static Row *parse(const char *line, int64_t duplicate_of)
{
    Row *r = NULL;
    Err e = {0};
    if (row_parse(&context, cache, line, strlen(line), 3, 17, duplicate_of, &r, &e) != ST_OK)
        fprintf(stderr, "row_parse: %s\n", e.text);
    if (!r)
        abort();
    return r;
}

static int check_refusal(const char *name, const Row *r, int status, const char *code,
                         const char *param)
{
    int failed = check_int(name, r->error.status, status);
    if (r->error.status && !status)
        failed += check_str(name, r->error.message, "accepted");
    if (!r->error.status || !status)
        return failed;
    failed += check_str(name, r->error.code, code);
    failed += check_str(name, r->error.param ? r->error.param : "null", param ? param : "null");
    failed += check_true(name, r->error.message && r->error.message[0]);
    return failed;
}

static int test_cases(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Row *r = parse(cases[i].line, 0);
        failed += check_refusal(cases[i].name, r, cases[i].status, cases[i].code, cases[i].param);
        failed += check_true(cases[i].name,
                             r->error.status || r->n_choices == r->n_prompts * r->params.n);
        row_free(r);
    }
    return failed;
}

/* No line is so broken, and no memory so short, that a later line could not be read: cut a good
 * line everywhere. */
static int test_cuts(void)
{
    static const char line[] =
        JOBS_LINE("{\"prompt\":[\"ab\",\"c\"],\"logit_bias\":{\"5\":1e1},\"stop\":[\"\\u00e9\"]}");
    int failed = 0;
    for (size_t n = 0; n < sizeof line - 1; n++) {
        Row *r = NULL;
        Err e;
        failed +=
            check_int("a cut line", row_parse(&context, cache, line, n, 0, 1, 0, &r, &e), ST_OK);
        failed += check_refusal("a cut line", r, 400, "invalid_json", NULL);
        row_free(r);
    }
    return failed;
}

static int test_served_name(void)
{
    int failed = 0;
    context.served_name = "made";
    Row *r = parse(IDS("\"model\":\"made\""), 0);
    failed += check_refusal("the served model", r, 0, NULL, NULL);
    row_free(r);
    r = parse(IDS("\"model\":\"other\""), 0);
    failed += check_refusal("another model", r, 404, "invalid_request", "model");
    row_free(r);
    r = parse(IDS("\"n\":1"), 0);
    failed += check_str("without a model", r->model, "made");
    row_free(r);
    context.served_name = NULL;
    r = parse(IDS("\"n\":1"), 0);
    failed += check_str("without any name", r->model, "made-up");
    row_free(r);
    r = parse(IDS("\"model\":\"x\""), 0);
    failed += check_str("any name", r->model, "x");
    row_free(r);
    return failed;
}

static int test_duplicates(void)
{
    Row *r = parse("{\"custom_id\":\"a\",\"prompt\":\"ab\"}", 9);
    int failed = check_refusal("an id used before", r, 400, "duplicate_custom_id", "custom_id");
    failed += check_has("an id used before", r->error.message, "9");
    failed += check_str("an id used before", r->custom_id, "a");
    row_free(r);
    return failed;
}

/* The key is the digest of the id, else of the line number, never of an id that looks like the
 * number. */
static int test_keys(void)
{
    static const uint8_t line_17[8] = {17};
    uint8_t want[32];
    Err e;
    Row *r = parse("{\"custom_id\":\"17\",\"prompt\":\"ab\"}", 0),
        *other = parse("{\"prompt\":\"ab\"}", 0);
    int failed = check_int("digest", sha256_of("17", 2, want, &e), ST_OK);
    failed += check_true("key of an id", memcmp(r->key, want, 32) == 0);
    failed += check_int("digest", sha256_of(line_17, 8, want, &e), ST_OK);
    failed += check_true("key of a line", memcmp(other->key, want, 32) == 0);
    row_free(r);
    row_free(other);
    r = parse("{\"custom_id\":\"a\\u0000b\",\"prompt\":\"ab\"}", 0);
    failed += check_int("an id with NUL", (int64_t)r->custom_id_len, 3);
    row_free(r);
    return failed;
}

/* Which source wins, for each value that has several. */
static int test_defaults(void)
{
    GenerationDefaults file = {.present = true,
                               .has_temperature = true,
                               .has_top_p = true,
                               .has_top_k = true,
                               .has_min_p = true,
                               .has_repetition_penalty = true,
                               .has_max_new_tokens = true,
                               .temperature = 0.5,
                               .top_p = 0.25,
                               .min_p = 0.125,
                               .repetition_penalty = 1.5,
                               .top_k = 7,
                               .max_new_tokens = 9};
    RowContext saved = context;
    StrBuf json = {0};
    Row *r = parse(IDS("\"echo\":false"), 0);
    int failed = check_int("16 tokens", r->params.max_tokens, 16);
    failed += check_true("plain sampling", r->params.temperature == 1 && r->params.top_p == 1 &&
                                               r->params.min_p == 0);
    failed += check_true("no penalties", r->params.repetition_penalty == 1 && r->params.top_k == 0);
    row_free(r);
    context.generation = &file;
    r = parse(IDS("\"echo\":false"), 0);
    failed += check_int("the file's tokens", r->params.max_tokens, 9);
    failed +=
        check_true("the file's values", r->params.temperature == 0.5 && r->params.top_p == 0.25 &&
                                            r->params.min_p == 0.125 && r->params.top_k == 7 &&
                                            r->params.repetition_penalty == 1.5);
    row_free(r);
    context.has_max_tokens = context.has_temperature = context.has_top_p = context.has_top_k =
        context.has_seed = true;
    context.max_tokens = 5;
    context.temperature = 0;
    context.top_p = 0.75;
    context.top_k = 3;
    context.seed = 99;
    r = parse(IDS("\"echo\":false"), 0);
    failed += check_true("flags win over the file",
                         r->params.temperature == 0 && r->params.top_p == 0.75 &&
                             r->params.top_k == 3 && r->params.max_tokens == 5);
    failed += check_int("the job's seed", r->params.seed, 99);
    row_free(r);
    r = parse(
        IDS("\"temperature\":2,\"top_p\":1,\"top_k\":-1,\"seed\":-4,\"max_tokens\":6,\"min_p\":0"),
        0);
    failed += check_true("the row wins", r->params.temperature == 2 && r->params.top_p == 1 &&
                                             r->params.top_k == 0 && r->params.seed == -4 &&
                                             r->params.max_tokens == 6 && r->params.min_p == 0);
    row_free(r);
    row_defaults_json(&context, true, &json);
    failed += check_has("for the manifest", json.data,
                        "\"temperature\":{\"value\":0.0,\"from\":\"flag\"}");
    failed += check_has("for the manifest", json.data,
                        "\"min_p\":{\"value\":0.125,\"from\":\"generation_config.json\"}");
    file.has_min_p = false;
    strbuf_clear(&json);
    row_defaults_json(&context, true, &json);
    failed +=
        check_has("for the manifest", json.data, "\"min_p\":{\"value\":0.0,\"from\":\"default\"}");
    StrBuf same = {0};
    strbuf_clear(&json);
    row_defaults_json(&context, false, &json);
    file.has_min_p = true;
    file.min_p = 0;
    row_defaults_json(&context, false, &same);
    failed += check_str("the digest sees values only", same.data, json.data);
    failed += check_has("the digest sees values only", json.data, "\"top_k\":3,\"min_p\":0.0");
    strbuf_free(&json);
    strbuf_free(&same);
    file.has_top_p = true;
    context.has_top_p = false;
    file.top_p = 0; /* a file that says nonsense is held to the same ranges */
    r = parse(IDS("\"echo\":false"), 0);
    failed += check_refusal("nonsense in the file", r, 400, "invalid_request", "top_p");
    row_free(r);
    context = saved;
    return failed;
}

static int test_values(void)
{
    Row *r = parse(
        IDS("\"logit_bias\":{\"9\":500,\"5\":1,\"05\":-0.5,\"7\":-101},\"allowed_token_ids\":[8,3,"
            "8,1],"
            "\"stop_token_ids\":[9,2],\"stop\":[\"x\",\"yz\"],\"bad_words\":[\" ab\",\"ab\"]"),
        0);
    const SamplingParams *p = &r->params;
    int failed = check_int("accepted", r->error.status, 0);
    failed += check_int("biases", p->n_bias, 3);
    failed += check_true("the last one of an id", p->bias[0].id == 5 && p->bias[0].bias == -0.5f);
    failed += check_true("held to -100", p->bias[1].id == 7 && p->bias[1].bias == -100);
    failed += check_true("held to 100", p->bias[2].id == 9 && p->bias[2].bias == 100);
    failed += check_int("allowed", p->allowed.n, 3);
    failed += check_true("ascending", p->allowed.ids[0] == 1 && p->allowed.ids[1] == 3 &&
                                          p->allowed.ids[2] == 8);
    failed += check_true("stop ids",
                         p->stop_ids.n == 2 && p->stop_ids.ids[0] == 9 && p->stop_ids.ids[1] == 2);
    failed += check_true("stop strings", p->n_stop == 2 && p->stop[1].len == 2);
    failed += check_int("bad words with and without a space, each once", p->n_bad_words, 2);
    failed += check_true("ab", p->bad_words[0].n == 1 && p->bad_words[0].ids[0] == TINY_AB);
    failed +=
        check_true(" ab", p->bad_words[1].n == 2 && p->bad_words[1].ids[0] == TINY_BYTE + ' ');
    row_free(r);
    return failed;
}

static int test_prompts(void)
{
    static const struct {
        const char *name, *line;
        int prompt;
        int32_t want[4];
        int n;
    } table[] = {
        {"text", "{\"prompt\":\"ab c\"}", 0, {TINY_AB, TINY_SP_C}, 2},
        {"a special token in text", "{\"prompt\":\"<|mark|>ab\"}", 0, {TINY_MARK, TINY_AB}, 2},
        {"second text", "{\"prompt\":[\"ab\",\"a\"]}", 1, {TINY_BYTE + 'a'}, 1},
        {"ids", "{\"prompt\":[9,8]}", 0, {9, 8}, 2},
        {"second ids", "{\"input_ids\":[[9,8],[7]]}", 1, {7}, 1},
        {"the last two", "{\"input_ids\":[4,5,6,7],\"truncate_prompt_tokens\":2}", 0, {6, 7}, 2},
        {"the first two",
         "{\"input_ids\":[4,5,6,7],\"truncate_prompt_tokens\":2,\"truncation_side\":\"right\"}",
         0,
         {4, 5},
         2},
        {"enough room", "{\"input_ids\":[4,5],\"truncate_prompt_tokens\":2}", 0, {4, 5}, 2},
        {"room for the answer",
         "{\"input_ids\":[4,5,6,7],\"truncate_prompt_tokens\":-1,\"max_tokens\":30}",
         0,
         {6, 7},
         2},
        {"an answer as long as the context",
         "{\"input_ids\":[4,5],\"truncate_prompt_tokens\":-1,\"max_tokens\":32}",
         0,
         {4, 5},
         2},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Row *r = parse(table[i].line, 0);
        if (check_refusal(table[i].name, r, 0, NULL, NULL) == 0) {
            const TokenIds *got = &r->prompts[table[i].prompt].ids;
            failed += check_int(table[i].name, (int64_t)got->n, table[i].n);
            failed += check_true(
                table[i].name, got->n == (size_t)table[i].n &&
                                   memcmp(got->ids, table[i].want, got->n * sizeof *got->ids) == 0);
        } else {
            failed++;
        }
        row_free(r);
    }
    return failed;
}

/* Lines above 1 MiB, where a hopeless prompt is measured and not parsed. */
static int test_overlong(void)
{
    static const struct {
        const char *name, *front, *back;
        int status;
        const char *code, *message;
    } table[] = {
        {"ids", "{\"input_ids\":[", "]}", 400, "context_length_exceeded", "600000 tokens"},
        {"ids of a batch line",
         "{\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[", "]}}", 400,
         "context_length_exceeded", "600000 tokens"},
        {"a bad key wins", "{\"prompt\":[", "],\"n\":0}", 400, "invalid_request", "n must"},
        {"truncated", "{\"prompt\":[", "],\"truncate_prompt_tokens\":3}", 0, NULL, NULL},
        {"a list in a list", "{\"prompt\":[[", "]]}", 400, "context_length_exceeded", "600000"},
        {"not the prompt", "{\"prompt\":[5],\"x\":[", "]}", 0, NULL, NULL},
        {"not the prompt of a batch line",
         "{\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[5]},\"prompt\":[",
         "]}", 0, NULL, NULL},
        {"text", "{\"prompt\":\"", "\"}", 400, "context_length_exceeded", "at least"},
        {"text with an escape", "{\"prompt\":\"\\n", "\"}", 400, "context_length_exceeded",
         "at least"},
        {"text, truncated", "{\"truncate_prompt_tokens\":1,\"prompt\":\"", "\"}", 0, NULL, NULL},
        {"two texts", "{\"prompt\":[\"a\",\"", "\"]}", 400, "context_length_exceeded",
         "1199999 tokens"},
        {"broken behind", "{\"prompt\":[", "]", 400, "invalid_json", ""},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        StrBuf line = {0};
        strbuf_str(&line, table[i].front);
        for (int k = 0; k < 600000; k++)
            strbuf_add(&line, k ? ",5" : "5", k ? 2 : 1);
        strbuf_str(&line, table[i].back);
        Row *r = parse(line.data, 0);
        failed += check_refusal(table[i].name, r, table[i].status, table[i].code,
                                !table[i].code || table[i].code[0] == 'i' ? NULL : "input_tokens");
        if (table[i].message)
            failed += check_has(table[i].name, r->error.message, table[i].message);
        row_free(r);
        strbuf_free(&line);
    }
    return failed;
}

static int test_without_tokenizer(void)
{
    const Tokenizer *saved = context.tokenizer;
    context.tokenizer = NULL;
    Row *r = parse(IDS("\"echo\":true"), 0);
    int failed = check_refusal("ids", r, 0, NULL, NULL);
    row_free(r);
    r = parse("{\"prompt\":\"ab\"}", 0);
    failed += check_refusal("text", r, 400, "unsupported_parameter", "prompt");
    failed += check_has("text", r->error.message, "tokenizer");
    row_free(r);
    r = parse(IDS("\"stop\":\"a\""), 0);
    failed += check_refusal("stop strings", r, 400, "unsupported_parameter", "stop");
    row_free(r);
    r = parse(IDS("\"bad_words\":[\"a\"]"), 0);
    failed += check_refusal("bad words", r, 400, "unsupported_parameter", "bad_words");
    row_free(r);
    context.tokenizer = saved;
    return failed;
}

static int test_known_keys(void)
{
    int failed = 0;
    for (int i = 0; i < n_body_keys; i++)
        failed += check_true(body_keys[i].name,
                             row_key_known(body_keys[i].name, strlen(body_keys[i].name), false));
    failed += check_true("custom_id of a line", row_key_known("custom_id", 9, true));
    failed += check_true("custom_id of a body", !row_key_known("custom_id", 9, false));
    failed += check_true("the start of a key", !row_key_known("max_token", 9, true));
    return failed;
}

int main(void)
{
    Tokenizer *t = NULL;
    Err e = {0};
    if (tiny_tokenizer_bytes(&t, &e) != ST_OK || tokenizer_cache_create(t, &cache, &e) != ST_OK)
        return check_str("a tokenizer", e.text, "");
    context.tokenizer = t;
    int failed = test_cases();
    failed += test_cuts();
    failed += test_served_name();
    failed += test_duplicates();
    failed += test_keys();
    failed += test_defaults();
    failed += test_values();
    failed += test_prompts();
    failed += test_overlong();
    failed += test_without_tokenizer();
    failed += test_known_keys();
    tokenizer_cache_free(cache);
    tokenizer_free(t);
    return test_result(failed);
}
