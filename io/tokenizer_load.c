/* io/tokenizer_load.c - reads tokenizer.json and tokenizer_config.json into a Tokenizer. */
#include "io/tokenizer_internal.h"

#include "io/spec.h"
#include "io/unicode.h"

#include <stdlib.h>

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for a tokenizer");
}

/* ---- post-processor ---- */

static Status push_ids(const Tokenizer *t, TokenIds *to, const JsonValue *template,
                       const JsonValue *piece, Err *e)
{
    const JsonValue *name, *entry, *ids;
    TRY(spec_keys(piece, "SpecialToken", "id type_id", e));
    TRY(spec_string(piece, "id", &name, e));
    entry = json_get(json_get(template, "special_tokens"), name->text);
    if (!entry)
        return err_set(e, ST_INPUT, "TemplateProcessing uses \"%.80s\", which special_tokens lacks",
                       name->text);
    TRY(spec_array(entry, "ids", &ids, e));
    for (const JsonValue *v = ids->child; v; v = v->next) {
        int64_t id;
        bool failed = false;
        size_t len;
        if (!json_int64(v, &id) || id < 0 || id > INT32_MAX ||
            !tokenizer_token_string(t, (int32_t)id, &len))
            return err_set(e, ST_INPUT, "TemplateProcessing: \"%.80s\" has an id that no token has",
                           name->text);
        tokenids_push(to, (int32_t)id, &failed);
        if (failed)
            return no_memory(e);
    }
    return ST_OK;
}

/* A later template of a Sequence goes around what the earlier ones made. */
static Status wrap(TokenIds *before, TokenIds *behind, const TokenIds *outer_before,
                   const TokenIds *outer_behind, Err *e)
{
    TokenIds joined = {0};
    bool failed = false;
    for (size_t i = 0; i < outer_before->n; i++)
        tokenids_push(&joined, outer_before->ids[i], &failed);
    for (size_t i = 0; i < before->n; i++)
        tokenids_push(&joined, before->ids[i], &failed);
    tokenids_free(before);
    *before = joined;
    for (size_t i = 0; i < outer_behind->n; i++)
        tokenids_push(behind, outer_behind->ids[i], &failed);
    return failed ? no_memory(e) : ST_OK;
}

static Status load_template(Tokenizer *t, const JsonValue *spec, Err *e)
{
    const JsonValue *single;
    TokenIds sides[2] = {{0}, {0}};
    Status st = ST_OK;
    int n_texts = 0;
    TRY(spec_keys(spec, "TemplateProcessing", "type single pair special_tokens", e));
    TRY(spec_array(spec, "single", &single, e));
    for (const JsonValue *v = single->child; st == ST_OK && v; v = v->next) {
        const JsonValue *special = json_get(v, "SpecialToken"), *text = json_get(v, "Sequence");
        if (v->type == JSON_OBJECT && v->len == 1 && special)
            st = push_ids(t, &sides[n_texts], spec, special, e);
        else if (v->len == 1 && text && json_is_string(json_get(text, "id"), "A") && n_texts == 0)
            n_texts++;
        else
            st = err_set(e, ST_INPUT,
                         "TemplateProcessing: single may hold special tokens and one Sequence A");
    }
    if (st == ST_OK && n_texts == 0)
        st = err_set(e, ST_INPUT, "TemplateProcessing: single has no Sequence A");
    if (st == ST_OK)
        st = wrap(&t->before, &t->behind, &sides[0], &sides[1], e);
    tokenids_free(&sides[0]);
    tokenids_free(&sides[1]);
    return st;
}

/* ByteLevel moves offsets only. *has_template is set when there is one to obey. */
static Status load_post(Tokenizer *t, const JsonValue *spec, bool *has_template, Err *e)
{
    const JsonValue *type = json_get(spec, "type"), *list;
    if (spec_absent(spec))
        return ST_OK;
    if (json_is_string(type, "ByteLevel"))
        return spec_keys(spec, "ByteLevel", "type add_prefix_space trim_offsets use_regex", e);
    if (json_is_string(type, "TemplateProcessing")) {
        *has_template = true;
        return load_template(t, spec, e);
    }
    if (!json_is_string(type, "Sequence"))
        return err_set(e, ST_INPUT, "%.80s is not supported", spec_type(spec));
    TRY(spec_keys(spec, "Sequence", "type processors", e));
    TRY(spec_array(spec, "processors", &list, e));
    for (const JsonValue *v = list->child; v; v = v->next)
        TRY(load_post(t, v, has_template, e));
    return ST_OK;
}

/* ---- all together ---- */

Status tokenizer_build_texts(Tokenizer *t, Err *e)
{
    const Text *vocab = bpe_texts(t->bpe);
    int32_t n_vocab = bpe_n_ids(t->bpe);
    t->n_ids = n_vocab;
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].id >= t->n_ids)
            t->n_ids = t->added[i].id + 1;
    size_t n = (size_t)t->n_ids + 1;
    t->texts = calloc(n, sizeof *t->texts);
    t->special = calloc(n, 1);
    if (!t->texts || !t->special)
        return no_memory(e);
    memcpy(t->texts, vocab, (size_t)n_vocab * sizeof *vocab);
    for (size_t i = 0; i < t->n_added; i++) {
        const AddedToken *token = &t->added[i],
                         *same = added_find(t, token->shown, token->shown_len);
        t->texts[token->id] = (Text){token->shown, (uint32_t)token->shown_len};
        /* The reference asks whether the text that it shows is the content of a special token. */
        t->special[token->id] = same && same->special;
    }
    return ST_OK;
}

static Status build_bytes(Tokenizer *t, Err *e)
{
    StrBuf all = {0}, scratch = {0};
    t->bytes = calloc((size_t)t->n_ids + 1, sizeof *t->bytes);
    if (!t->bytes)
        return no_memory(e);
    size_t start = 0;
    for (int32_t id = 0; id < t->n_ids && !all.failed; id++) {
        if (!t->texts[id].at)
            continue;
        decoder_token_bytes(t->decoder, t->texts[id], &all, &scratch);
        t->bytes[id].len = (uint32_t)(all.len - start);
        start = all.len;
    }
    t->bytes_pool = all.data;
    strbuf_free(&scratch);
    if (all.failed)
        return no_memory(e);
    const char *at = t->bytes_pool ? t->bytes_pool : "";
    for (int32_t id = 0; id < t->n_ids; id++) {
        t->bytes[id].at = at;
        at += t->bytes[id].len;
    }
    return ST_OK;
}

static Status load(Tokenizer *t, const JsonValue *file, const JsonValue *config, const char *name,
                   Err *e)
{
    const JsonValue *version = json_get(file, "version");
    bool has_template = false;
    TRY(spec_keys(file, "it",
                  "version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                  "decoder model",
                  e));
    if (!spec_absent(version) && !json_is_string(version, "1.0"))
        return err_set(e, ST_INPUT, "this version of the format is not supported");
    TRY(normalizer_parse(json_get(file, "normalizer"), &t->normalizer, e));
    TRY(pretokenizer_parse(json_get(file, "pre_tokenizer"), &t->pre, e));
    if (normalizer_moves_start(t->normalizer) && pretokenizer_needs_start(t->pre))
        return err_set(e, ST_INPUT,
                       "this normalizer together with Metaspace \"first\" is not supported");
    TRY(decoder_parse(json_get(file, "decoder"), &t->decoder, e));
    TRY(bpe_parse(json_get(file, "model"), pretokenizer_is_byte_level(t->pre), &t->bpe, e));
    TRY(added_reserve(t, json_get(file, "added_tokens"), config, e));
    TRY(added_load(t, json_get(file, "added_tokens"), name, e));
    if (config && config_load(t, config, name, e) != ST_OK)
        return err_in(e, "tokenizer_config.json");
    TRY(added_build_matchers(t, e));
    TRY(tokenizer_build_texts(t, e));
    TRY(build_bytes(t, e));
    Status st = load_post(t, json_get(file, "post_processor"), &has_template, e);
    if (st != ST_OK) {
        err_in(e, "post_processor");
        return st;
    }
    if (config && !has_template && config_load_bos_rule(t, config, e) != ST_OK)
        return err_in(e, "tokenizer_config.json");
    return ST_OK;
}

Status tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                       const char *name, Tokenizer **out, Err *e)
{
    Err local;
    Arena arena = {0};
    JsonValue *file = NULL, *settings = NULL;
    *out = NULL;
    e = e ? e : &local;
    unicode_init();
    Tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return no_memory(e);
    t->bos_id = t->eos_id = -1;
    Status st = json_parse(json, len, &arena, &file, e);
    if (st == ST_OK && config) {
        st = json_parse(config, config_len, &arena, &settings, e);
        if (st != ST_OK)
            err_in(e, "tokenizer_config.json");
    }
    if (st == ST_OK)
        st = load(t, file, settings, name, e);
    arena_free(&arena);
    if (st != ST_OK) {
        tokenizer_free(t);
        err_in(e, "%s", name);
        return st;
    }
    *out = t;
    return ST_OK;
}

void tokenizer_free(Tokenizer *t)
{
    if (!t)
        return;
    normalizer_free(t->normalizer);
    pretokenizer_free(t->pre);
    decoder_free(t->decoder);
    bpe_free(t->bpe);
    added_matcher_free(&t->raw);
    added_matcher_free(&t->normalized);
    tokenids_free(&t->before);
    tokenids_free(&t->behind);
    free(t->added);
    free(t->contents);
    vocab_table_free(&t->by_content);
    free(t->texts);
    free(t->bytes);
    free(t->bytes_pool);
    free(t->special);
    arena_free(&t->arena);
    free(t);
}
