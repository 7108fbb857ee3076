/* io/tokenizer_tiktoken.c - a Tokenizer from tiktoken.model and tokenizer_config.json, as Kimi-K2
 * and its relatives ship it.
 *
 * The file has only ranks. Everything else is what the Python class beside it does, so only that
 * class is accepted: its pattern, its 256 special ids behind the ranks (named by
 * added_tokens_decoder, the rest <|reserved_token_ID|>), its cuts, no BOS on plain text. Text takes
 * the way that transformers gives it (also for a rendered chat template): named tokens are taken
 * out before the class sees what lies between them; the class then cuts, and knows the reserved
 * names only inside of what it has cut. */
#include "io/tokenizer_internal.h"

#include "io/scan.h"
#include "io/spec.h"
#include "io/unicode.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_RESERVED = 256 };

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for a tokenizer");
}

/* ---- which class ---- */

static bool names_class(const JsonValue *v)
{
    static const char name[] = "TikTokenTokenizer";
    size_t n = sizeof name - 1;
    return v && v->type == JSON_STRING && v->len >= n &&
           memcmp(v->text + v->len - n, name, n) == 0 &&
           (v->len == n || v->text[v->len - n - 1] == '.');
}

/* Other models have a file of ranks and another class, with another pattern and other specials. */
static Status check_class(const JsonValue *config, Err *e)
{
    const JsonValue *name = json_get(config, "tokenizer_class");
    const JsonValue *map = json_get(json_get(config, "auto_map"), "AutoTokenizer");
    if (map && map->type == JSON_ARRAY)
        map = map->child;
    if (map ? names_class(map) : names_class(name))
        return ST_OK;
    return err_set(e, ST_INPUT,
                   "the tokenizer class %.80s is not supported with a file of ranks, only Kimi's "
                   "TikTokenTokenizer is",
                   map && map->type == JSON_STRING     ? map->text
                   : name && name->type == JSON_STRING ? name->text
                                                       : "(none)");
}

/* ---- special tokens ---- */

/* token.text is kept; it must live as long as t. */
static Status add_token(Tokenizer *t, AddedToken token, Err *e)
{
    AddedMatcher *matcher = token.normalized ? &t->normalized : &t->raw;
    if (added_find(t, token.text, token.len))
        return err_set(e, ST_INPUT, "\"%.80s\" is the name of two tokens", token.text);
    token.shown = token.text;
    token.shown_len = token.len;
    t->contents[t->n_added] = (Text){token.text, (uint32_t)token.len};
    vocab_table_add(&t->by_content, token.text, token.len, (int32_t)t->n_added);
    t->added[t->n_added] = token;
    if (!added_matcher_add(matcher, token.text, token.len, (uint32_t)t->n_added))
        return no_memory(e);
    t->n_added++;
    return ST_OK;
}

static Status add_named(Tokenizer *t, const AddedEntry *entry, Err *e)
{
    AddedToken token;
    int32_t first = bpe_n_ids(t->bpe);
    TRY(added_read(entry->spec, &token, e));
    if (token.len == 0 || token.len > UINT32_MAX)
        return err_set(e, ST_INPUT, "token %lld has no usable name", (long long)entry->id);
    if (token.single_word || token.lstrip || token.rstrip)
        return err_set(e, ST_INPUT,
                       "\"%.80s\": single_word, lstrip and rstrip are not supported with a file of "
                       "ranks",
                       token.text);
    if (entry->id < first || entry->id >= BPE_MOST_IDS)
        return err_set(e, ST_INPUT, "\"%.80s\" has id %lld, expected one from %d to %d", token.text,
                       (long long)entry->id, first, BPE_MOST_IDS - 1);
    token.id = (int32_t)entry->id;
    token.normalized = false; /* the class has no normalizer; this only picks the matcher */
    token.text = arena_copy(&t->arena, token.text, token.len);
    return token.text ? add_token(t, token, e) : no_memory(e);
}

static Status add_reserved(Tokenizer *t, int32_t id, Err *e)
{
    char name[40];
    int len = snprintf(name, sizeof name, "<|reserved_token_%d|>", id);
    AddedToken token = {.id = id, .len = (size_t)len, .normalized = true};
    token.text = arena_copy(&t->arena, name, token.len);
    return token.text ? add_token(t, token, e) : no_memory(e);
}

/* In the order of ids: the named ones, and the reserved ones between them. */
static Status add_all(Tokenizer *t, const AddedEntry *entries, size_t n, Err *e)
{
    int32_t first = bpe_n_ids(t->bpe);
    size_t k = 0;
    t->cap_added = n + N_RESERVED;
    t->added = calloc(t->cap_added, sizeof *t->added);
    t->contents = calloc(t->cap_added, sizeof *t->contents);
    if (!t->added || !t->contents || !vocab_table_create(&t->by_content, t->cap_added))
        return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        if (i && entries[i].id == entries[i - 1].id)
            return err_set(e, ST_INPUT, "the id %lld comes twice", (long long)entries[i].id);
        TRY(add_named(t, &entries[i], e));
    }
    for (int32_t id = first; id < first + N_RESERVED; id++) {
        if (k < n && entries[k].id == id)
            k++;
        else
            TRY(add_reserved(t, id, e));
    }
    return ST_OK;
}

/* ---- names that tokenizer_config.json gives a role ---- */

/* v: a string, or an object with content. It must be one of the tokens, and becomes special. */
static Status mark_special(Tokenizer *t, const JsonValue *v, const char *role, int32_t *id, Err *e)
{
    const JsonValue *name = v->type == JSON_OBJECT ? json_get(v, "content") : v;
    if (!name || name->type != JSON_STRING)
        return err_set(e, ST_INPUT, "\"%s\" is not the name of a token", role);
    AddedToken *token = added_find(t, name->text, name->len);
    if (!token)
        return err_set(e, ST_INPUT, "\"%s\" is \"%.80s\", which is not in added_tokens_decoder",
                       role, name->text);
    token->special = true;
    if (id)
        *id = token->id;
    return ST_OK;
}

static Status load_roles(Tokenizer *t, const JsonValue *config, Err *e)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    int32_t *const ids[] = {&t->bos_id, &t->eos_id, NULL, NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const JsonValue *v = json_get(config, names[i]);
        if (!spec_absent(v))
            TRY(mark_special(t, v, names[i], ids[i], e));
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const JsonValue *list = json_get(config, lists[i]);
        bool holds = list && (list->type == JSON_ARRAY || list->type == JSON_OBJECT);
        for (const JsonValue *v = holds ? list->child : NULL; v; v = v->next)
            TRY(mark_special(t, v, lists[i], NULL, e));
    }
    return ST_OK;
}

static Status load_config(Tokenizer *t, const JsonValue *config, Err *e)
{
    const JsonValue *map = json_get(config, "added_tokens_decoder");
    AddedEntry *entries;
    size_t n;
    if (config->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "it is not an object");
    TRY(check_class(config, e));
    if (!map)
        return err_set(e, ST_INPUT, "added_tokens_decoder, which names the tokens, is missing");
    TRY(config_added_entries(map, &entries, &n, e));
    Status st = add_all(t, entries, n, e);
    free(entries);
    if (st != ST_OK)
        return err_in(e, "added_tokens_decoder");
    return load_roles(t, config, e);
}

/* ---- all together ---- */

/* The steps of a tokenizer.json that say what the class does. */
static Status load_steps(Tokenizer *t, Err *e)
{
    Arena arena = {0};
    StrBuf text = {0};
    JsonValue *steps;
    strbuf_str(&text, "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                      "\"Split\", \"behavior\": \"Isolated\", \"invert\": false, \"pattern\": "
                      "{\"Regex\": ");
    strbuf_json_string(&text, scan_kimi_regex, strlen(scan_kimi_regex));
    strbuf_str(&text, "}}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
                      "false}]}, \"decoder\": {\"type\": \"ByteLevel\"}}");
    Status st = text.failed ? no_memory(e) : json_parse(text.data, text.len, &arena, &steps, e);
    if (st == ST_OK)
        st = normalizer_parse(NULL, &t->normalizer, e);
    if (st == ST_OK)
        st = pretokenizer_parse(json_get(steps, "pre_tokenizer"), &t->pre, e);
    if (st == ST_OK)
        st = decoder_parse(json_get(steps, "decoder"), &t->decoder, e);
    strbuf_free(&text);
    arena_free(&arena);
    return st;
}

/* A token's bytes, and of a special one those of its name. */
static Status load_bytes(Tokenizer *t, Err *e)
{
    t->bytes = calloc((size_t)t->n_ids + 1, sizeof *t->bytes);
    if (!t->bytes)
        return no_memory(e);
    memcpy(t->bytes, bpe_pieces(t->bpe), (size_t)bpe_n_ids(t->bpe) * sizeof *t->bytes);
    for (size_t i = 0; i < t->n_added; i++)
        t->bytes[t->added[i].id] = t->contents[i];
    return ST_OK;
}

Status tokenizer_parse_tiktoken(const char *ranks, size_t len, const char *config,
                                size_t config_len, const char *name, Tokenizer **out, Err *e)
{
    Err local;
    Arena arena = {0};
    JsonValue *settings = NULL;
    *out = NULL;
    e = e ? e : &local;
    unicode_init();
    Tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return no_memory(e);
    t->bos_id = t->eos_id = -1;
    t->cuts = true;
    Status st = bpe_parse_ranks(ranks, len, &t->bpe, e);
    if (st == ST_OK)
        st = load_steps(t, e);
    if (st == ST_OK) {
        st = json_parse(config, config_len, &arena, &settings, e);
        if (st == ST_OK)
            st = load_config(t, settings, e);
        if (st != ST_OK)
            err_in(e, "tokenizer_config.json");
    }
    if (st == ST_OK)
        st = tokenizer_build_texts(t, e);
    if (st == ST_OK)
        st = load_bytes(t, e);
    arena_free(&arena);
    if (st != ST_OK) {
        tokenizer_free(t);
        err_in(e, "%s", name);
        return st;
    }
    *out = t;
    return ST_OK;
}
