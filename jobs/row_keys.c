/* jobs/row_keys.c - see row_keys.h. */
#include "jobs/row_keys.h"

#include "jobs/row.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { MAX_N = 16384 };

#define AT(field) .offset = offsetof(SamplingParams, field)

const BodyKey body_keys[] = {
    {"max_tokens", KEY_INT, AT(max_tokens), 0, INT_MAX, .clamp = true, .names_param = true},
    {"min_tokens", KEY_INT, AT(min_tokens), 0, INT_MAX, .clamp = true},
    {"n", KEY_INT, AT(n), 1, MAX_N},
    {"temperature", KEY_REAL, AT(temperature), 0, INFINITY, .names_param = true},
    {"top_p", KEY_REAL, AT(top_p), 0, 1, .open_min = true, .names_param = true},
    {"min_p", KEY_REAL, AT(min_p), 0, 1},
    {"top_k", KEY_INT, AT(top_k), -1, INT_MAX, .clamp = true},
    {"seed", KEY_INT64, AT(seed)},
    {"presence_penalty", KEY_REAL, AT(presence_penalty), -2, 2},
    {"frequency_penalty", KEY_REAL, AT(frequency_penalty), -2, 2},
    {"repetition_penalty", KEY_REAL, AT(repetition_penalty), 0, INFINITY, .open_min = true},
    {"logprobs", KEY_INT, AT(logprobs), 0, MAX_LOGPROBS, .optional = true, .names_param = true},
    {"prompt_logprobs", KEY_INT, AT(prompt_logprobs), 0, MAX_LOGPROBS, .optional = true,
     .names_param = true},
    {"echo", KEY_BOOL, AT(echo)},
    {"ignore_eos", KEY_BOOL, AT(ignore_eos)},
    {"return_token_ids", KEY_BOOL, AT(return_token_ids)},
    {"include_stop_str_in_output", KEY_BOOL, AT(include_stop_str)},
    {"skip_special_tokens", KEY_BOOL, AT(skip_special)},
    {.name = "model", .kind = KEY_ELSEWHERE},
    {.name = "prompt", .kind = KEY_ELSEWHERE},
    {.name = "stop", .kind = KEY_ELSEWHERE},
    {.name = "stop_token_ids", .kind = KEY_ELSEWHERE},
    {.name = "logit_bias", .kind = KEY_ELSEWHERE},
    {.name = "bad_words", .kind = KEY_ELSEWHERE},
    {.name = "allowed_token_ids", .kind = KEY_ELSEWHERE},
    {.name = "add_special_tokens", .kind = KEY_ELSEWHERE},
    {.name = "truncate_prompt_tokens", .kind = KEY_ELSEWHERE},
    {.name = "truncation_side", .kind = KEY_ELSEWHERE},
    {.name = "stream", .kind = KEY_UNSUPPORTED, .neutral = "false"},
    {.name = "suffix", .kind = KEY_UNSUPPORTED},
    {.name = "use_beam_search", .kind = KEY_UNSUPPORTED, .neutral = "false"},
    {.name = "length_penalty", .kind = KEY_UNSUPPORTED, .neutral = "1"},
    {.name = "spaces_between_special_tokens", .kind = KEY_UNSUPPORTED, .neutral = "true"},
    {.name = "return_tokens_as_token_ids", .kind = KEY_UNSUPPORTED, .neutral = "false"},
    {.name = "logprob_token_ids", .kind = KEY_UNSUPPORTED, .neutral = "[]"},
    {.name = "prompt_embeds", .kind = KEY_UNSUPPORTED},
    {.name = "response_format", .kind = KEY_UNSUPPORTED, .neutral = "text"},
    {.name = "structured_outputs", .kind = KEY_UNSUPPORTED},
    {.name = "guided_json", .kind = KEY_UNSUPPORTED},
    {.name = "guided_regex", .kind = KEY_UNSUPPORTED},
    {.name = "guided_choice", .kind = KEY_UNSUPPORTED},
    {.name = "guided_grammar", .kind = KEY_UNSUPPORTED},
    {.name = "guided_json_object", .kind = KEY_UNSUPPORTED, .neutral = "false"},
    {.name = "guided_whitespace_pattern", .kind = KEY_UNSUPPORTED},
    {.name = "repetition_detection", .kind = KEY_UNSUPPORTED},
    {.name = "guided_decoding_backend", .kind = KEY_IGNORED},
    {.name = "best_of", .kind = KEY_IGNORED},
    {.name = "user", .kind = KEY_IGNORED},
    {.name = "stream_options", .kind = KEY_IGNORED},
    {.name = "thinking_token_budget", .kind = KEY_IGNORED},
    {.name = "include_reasoning", .kind = KEY_IGNORED},
    {.name = "priority", .kind = KEY_IGNORED},
    {.name = "cache_salt", .kind = KEY_IGNORED},
    {.name = "request_id", .kind = KEY_IGNORED},
    {.name = "vllm_xargs", .kind = KEY_IGNORED},
};

const int n_body_keys = sizeof body_keys / sizeof *body_keys;

static const char *const line_keys[] = {"custom_id", "method",    "url",
                                        "body",      "input_ids", "messages"};

bool row_key_known(const char *key, size_t len, bool top)
{
    for (int i = 0; i < n_body_keys; i++)
        if (strlen(body_keys[i].name) == len && memcmp(body_keys[i].name, key, len) == 0)
            return true;
    for (size_t i = 0; top && i < sizeof line_keys / sizeof *line_keys; i++)
        if (strlen(line_keys[i]) == len && memcmp(line_keys[i], key, len) == 0)
            return true;
    return false;
}
