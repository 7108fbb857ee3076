/* io/tokenizer_added.c - the added tokens of a tokenizer: which there are, their ids, their
 * matchers. */
#include "io/tokenizer_internal.h"

#include "io/log.h"
#include "io/spec.h"

#include <stdlib.h>

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for a tokenizer");
}

Status added_reserve(Tokenizer *t, const JsonValue *list, const JsonValue *config, Err *e)
{
    enum { NAMED = 16 }; /* bos_token and its like */
    size_t n = NAMED;
    const JsonValue *map = json_get(config, "added_tokens_decoder");
    const JsonValue *more = json_get(config, "additional_special_tokens");
    n += list && list->type == JSON_ARRAY ? list->len : 0;
    n += map && map->type == JSON_OBJECT ? map->len : 0;
    n += more && more->type == JSON_ARRAY ? more->len : 0;
    t->added = calloc(n, sizeof *t->added);
    t->contents = calloc(n, sizeof *t->contents);
    if (!t->added || !t->contents || !vocab_table_create(&t->by_content, n))
        return no_memory(e);
    t->cap_added = n;
    /* The reference counts entries here; it does not look for the largest id. */
    t->next_id = bpe_n_tokens(t->bpe);
    return ST_OK;
}

AddedToken *added_find(Tokenizer *t, const char *text, size_t len)
{
    int32_t i = vocab_table_find(&t->by_content, t->contents, text, len);
    return i >= 0 ? &t->added[i] : NULL;
}

/* A token gets the vocabulary's id for its content, else the next free one, whatever the file says.
 * Content that is there already keeps its id and flags, but a token once called special stays so.
 */
Status added_add(Tokenizer *t, AddedToken token, Err *e)
{
    AddedToken *there = added_find(t, token.text, token.len);
    if (token.len == 0)
        return ST_OK;
    if (there) {
        there->special = there->special || token.special;
        return ST_OK;
    }
    if (t->n_added == t->cap_added || token.len > UINT32_MAX)
        return err_set(e, ST_INPUT, "too many added tokens");
    token.text = arena_copy(&t->arena, token.text, token.len);
    if (!token.text)
        return no_memory(e);
    token.id = bpe_id(t->bpe, token.text, token.len);
    if (token.id < 0)
        token.id = t->next_id;
    if (token.id >= t->next_id)
        t->next_id = token.id + 1;
    t->contents[t->n_added] = (Text){token.text, (uint32_t)token.len};
    vocab_table_add(&t->by_content, token.text, token.len, (int32_t)t->n_added);
    t->added[t->n_added++] = token;
    return ST_OK;
}

/* The content and flags of an entry; what is missing is false. */
Status added_read(const JsonValue *spec, AddedToken *out, Err *e)
{
    const JsonValue *content;
    *out = (AddedToken){0};
    TRY(spec_string(spec, "content", &content, e));
    out->text = content->text;
    out->len = content->len;
    TRY(spec_bool(spec, "single_word", false, &out->single_word, e));
    TRY(spec_bool(spec, "lstrip", false, &out->lstrip, e));
    TRY(spec_bool(spec, "rstrip", false, &out->rstrip, e));
    TRY(spec_bool(spec, "special", false, &out->special, e));
    return spec_bool(spec, "normalized", !out->special, &out->normalized, e);
}

Status added_check_id(const Tokenizer *t, const AddedToken *token, int64_t stated, IdCheck *check,
                      Err *e)
{
    if (stated < 0 || stated > INT32_MAX)
        return err_set(e, ST_INPUT, "the id of \"%.80s\" is not an id", token->text);
    if (token->len && tokenizer_token_id(t, token->text, token->len) != stated &&
        check->n_wrong++ == 0) {
        check->first = *token;
        check->stated = stated;
    }
    return ST_OK;
}

void added_warn_ids(const Tokenizer *t, const IdCheck *check, const char *name)
{
    if (check->n_wrong)
        log_warn_once("%s: the added token \"%.80s\" has id %lld there but gets %d, as in the "
                      "reference tokenizer "
                      "(%zu like it)",
                      name, check->first.text, (long long)check->stated,
                      (int)tokenizer_token_id(t, check->first.text, check->first.len),
                      check->n_wrong);
}

Status added_load(Tokenizer *t, const JsonValue *list, const char *name, Err *e)
{
    IdCheck check = {0};
    if (spec_absent(list))
        return ST_OK;
    if (list->type != JSON_ARRAY)
        return err_set(e, ST_INPUT, "added_tokens is not a list");
    for (const JsonValue *v = list->child; v; v = v->next) {
        AddedToken token;
        int64_t stated;
        TRY(spec_keys(v, "an entry of added_tokens",
                      "id content single_word lstrip rstrip normalized special", e));
        TRY(added_read(v, &token, e));
        if (!json_int64(json_get(v, "id"), &stated))
            return err_set(e, ST_INPUT, "added_tokens: \"%.80s\" has no integer id", token.text);
        TRY(added_add(t, token, e));
        TRY(added_check_id(t, &token, stated, &check, e));
    }
    added_warn_ids(t, &check, name);
    return ST_OK;
}

/* Two matchers; those of normalized tokens look for, and decode to, their normalized content. */
Status added_build_matchers(Tokenizer *t, Err *e)
{
    NormalizeScratch scratch = {0};
    Status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < t->n_added; i++) {
        AddedToken *token = &t->added[i];
        token->shown = token->text;
        token->shown_len = token->len;
        if (token->normalized)
            st = normalizer_run(t->normalizer, &scratch, token->text, token->len, &token->shown,
                                &token->shown_len, e);
        if (st == ST_OK && token->shown_len == 0)
            st = err_set(e, ST_INPUT, "the added token \"%.80s\" is empty once normalized",
                         token->text);
        if (st == ST_OK && token->shown != token->text)
            token->shown = arena_copy(&t->arena, token->shown, token->shown_len);
        if (st == ST_OK &&
            (!token->shown || !added_matcher_add(token->normalized ? &t->normalized : &t->raw,
                                                 token->shown, token->shown_len, (uint32_t)i)))
            st = no_memory(e);
    }
    normalize_scratch_free(&scratch);
    return st;
}
