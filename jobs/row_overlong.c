/* jobs/row_overlong.c - see row_overlong.h. */
#include "jobs/row_overlong.h"

#include "jobs/key_cursor.h"

#include <string.h>

enum {
    WORTH_IT = 1 << 20, /* bytes of line; below, the tree is small */
    ESCAPE = 6,         /* most bytes of JSON for one byte of text */
    SHRINK = 4          /* normalization never makes text so many times shorter */
};

/* How many members a list of numbers has, judged by its commas; 0 for anything else. */
static size_t count_numbers(const char *value, size_t len)
{
    const char *at = value, *end = value + len;
    size_t n = 1;
    if (len < 2 || *at++ != '[')
        return 0;
    for (; at < end - 1; at++) {
        if (*at == ',')
            n++;
        else if (!strchr("0123456789+-.eE \t\r", *at) || *at == 0)
            return 0;
    }
    return n;
}

static size_t longest_token(const Tokenizer *t)
{
    size_t longest = 1, len;
    for (int32_t id = 0; id < tokenizer_n_ids(t); id++) {
        len = 0;
        if (tokenizer_token_bytes(t, id, &len) && len > longest)
            longest = len;
    }
    return longest;
}

/* The least number of tokens that the prompt can have, or 0 where that takes reading it. */
static size_t least_tokens(const RowContext *context, const char *value, size_t len)
{
    if (len == 0 || value[0] == '[')
        return count_numbers(value, len);
    if (len < WORTH_IT || value[0] != '"' || !context->tokenizer)
        return 0;
    size_t bytes = memchr(value, '\\', len) ? len / ESCAPE : len - 2;
    return bytes / SHRINK / longest_token(context->tokenizer);
}

Status row_cut_overlong(const RowContext *context, const char *line, size_t len, StrBuf *reduced,
                        size_t *n_tokens, Err *e)
{
    KeyCursor c;
    KeyView k, prompt = {0};
    int n_prompts = 0;
    bool batch = false;
    *n_tokens = 0;
    if (len < WORTH_IT)
        return ST_OK;
    key_cursor_start(&c, line, len);
    while (key_cursor_next(&c, &k)) {
        if (k.escaped || key_view_is(&k, "truncate_prompt_tokens"))
            return ST_OK;
        batch |= k.depth == 1 && (key_view_is(&k, "body") || key_view_is(&k, "url"));
        if (key_view_is(&k, "prompt") || (k.depth == 1 && key_view_is(&k, "input_ids"))) {
            prompt = k;
            n_prompts++;
        }
    }
    if (c.broken || n_prompts != 1 || prompt.depth != (batch ? 2 : 1))
        return ST_OK;
    size_t n = least_tokens(context, prompt.value, prompt.value_len);
    if (n <= (size_t)context->max_len)
        return ST_OK;
    const char *behind = prompt.value + prompt.value_len;
    strbuf_add(reduced, line, (size_t)(prompt.value - line));
    strbuf_str(reduced, "[0]");
    strbuf_add(reduced, behind, (size_t)(line + len - behind));
    *n_tokens = n;
    return reduced->failed ? err_set(e, ST_MEMORY, "not enough memory for a row") : ST_OK;
}
