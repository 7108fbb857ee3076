/* io/tokenizer_load.c - reads tokenizer.json and tokenizer_config.json into a Tokenizer. */
#include "io/tokenizer_internal.h"

#include "io/file.h"
#include "io/log.h"
#include "io/spec.h"
#include "io/unicode.h"

#include <stdlib.h>
#include <sys/stat.h>

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for a tokenizer");
}

/* ---- added tokens ---- */

/* Room for as many added tokens as the files can name. */
static Status reserve_added(Tokenizer *t, const JsonValue *list, const JsonValue *config, Err *e)
{
    enum { NAMED = 16 }; /* bos_token and its like */
    size_t n = NAMED;
    const JsonValue *map = json_get(config, "added_tokens_decoder");
    n += list && list->type == JSON_ARRAY ? list->len : 0;
    n += map && map->type == JSON_OBJECT ? map->len : 0;
    t->added = calloc(n, sizeof *t->added);
    t->contents = calloc(n, sizeof *t->contents);
    if (!t->added || !t->contents || !vocab_table_create(&t->by_content, n))
        return no_memory(e);
    t->cap_added = n;
    t->next_id = bpe_n_tokens(
        t->bpe); /* the reference counts entries; it does not look for the largest id */
    return ST_OK;
}

static AddedToken *find_added(Tokenizer *t, const char *text, size_t len)
{
    int32_t i = vocab_table_find(&t->by_content, t->contents, text, len);
    return i >= 0 ? &t->added[i] : NULL;
}

/* A token gets the vocabulary's id for its content, else the next free one, whatever the file says.
 * Content that is there already keeps its id and flags, but a token once called special stays so.
 */
static Status add_token(Tokenizer *t, AddedToken token, Err *e)
{
    AddedToken *there = find_added(t, token.text, token.len);
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
static Status read_token(const JsonValue *spec, AddedToken *out, Err *e)
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

/* Says once per file how many ids are not what the file says. */
typedef struct IdCheck {
    size_t n_wrong;
    AddedToken first;
    int64_t stated;
} IdCheck;

static Status check_id(const Tokenizer *t, const AddedToken *token, int64_t stated, IdCheck *check,
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

static void warn_ids(const Tokenizer *t, const IdCheck *check, const char *name)
{
    if (check->n_wrong)
        log_warn_once("%s: the added token \"%.80s\" has id %lld there but gets %d, as in the "
                      "reference tokenizer "
                      "(%zu like it)",
                      name, check->first.text, (long long)check->stated,
                      (int)tokenizer_token_id(t, check->first.text, check->first.len),
                      check->n_wrong);
}

static Status load_added(Tokenizer *t, const JsonValue *list, const char *name, Err *e)
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
        TRY(read_token(v, &token, e));
        if (!json_int64(json_get(v, "id"), &stated))
            return err_set(e, ST_INPUT, "added_tokens: \"%.80s\" has no integer id", token.text);
        TRY(add_token(t, token, e));
        TRY(check_id(t, &token, stated, &check, e));
    }
    warn_ids(t, &check, name);
    return ST_OK;
}

/* Two matchers; those of normalized tokens look for, and decode to, their normalized content. */
static Status build_matchers(Tokenizer *t, Err *e)
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

/* ---- tokenizer_config.json ---- */

/* A special token's name may be given as a string or as an object with its flags. */
static Status named_token(const JsonValue *v, AddedToken *out, Err *e)
{
    if (v->type == JSON_STRING)
        *out = (AddedToken){.text = v->text, .len = v->len};
    else
        TRY(read_token(v, out, e));
    out->special = true;
    return ST_OK;
}

static Status add_named(Tokenizer *t, const JsonValue *config, const char *key, int32_t *id, Err *e)
{
    const JsonValue *v = json_get(config, key);
    AddedToken token;
    if (spec_absent(v))
        return ST_OK;
    if (v->type != JSON_STRING && v->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "\"%s\" is neither a string nor an object", key);
    TRY(named_token(v, &token, e));
    if (!find_added(t, token.text, token.len)) /* else it keeps its flags, special or not */
        TRY(add_token(t, token, e));
    if (id)
        *id = tokenizer_token_id(t, token.text, token.len);
    return ST_OK;
}

typedef struct Entry {
    int64_t id;
    const JsonValue *spec;
} Entry;

static int by_id(const void *a, const void *b)
{
    int64_t x = ((const Entry *)a)->id, y = ((const Entry *)b)->id;
    return (x > y) - (x < y);
}

/* added_tokens_decoder: {"ID": {content, flags}}; new ones are added in the order of their ids. */
static Status load_added_decoder(Tokenizer *t, const JsonValue *map, const char *name, Err *e)
{
    IdCheck check = {0};
    if (spec_absent(map))
        return ST_OK;
    if (map->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "added_tokens_decoder is not an object");
    Entry *entries = malloc((map->len + 1) * sizeof *entries);
    if (!entries)
        return no_memory(e);
    size_t n = 0;
    Status st = ST_OK;
    for (const JsonValue *v = map->child; st == ST_OK && v; v = v->next) {
        JsonValue key = {.type = JSON_NUMBER, .text = v->key, .len = v->key_len};
        entries[n].spec = v;
        if (v->key_len == 0 || v->key[0] == '-' || !json_int64(&key, &entries[n++].id))
            st = err_set(e, ST_INPUT, "added_tokens_decoder: \"%.80s\" is not an id", v->key);
    }
    if (st == ST_OK)
        qsort(entries, n, sizeof *entries, by_id);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        AddedToken token;
        st = read_token(entries[i].spec, &token, e);
        if (st == ST_OK)
            st = add_token(t, token, e);
        if (st == ST_OK)
            st = check_id(t, &token, entries[i].id, &check, e);
    }
    free(entries);
    if (st == ST_OK)
        warn_ids(t, &check, name);
    return st;
}

static Status load_config(Tokenizer *t, const JsonValue *config, const char *name, Err *e)
{
    static const char *const names[] = {"unk_token", "sep_token", "pad_token", "cls_token",
                                        "mask_token"};
    if (config->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "it is not an object");
    TRY(load_added_decoder(t, json_get(config, "added_tokens_decoder"), name, e));
    TRY(add_named(t, config, "bos_token", &t->bos_id, e));
    TRY(add_named(t, config, "eos_token", &t->eos_id, e));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(add_named(t, config, names[i], NULL, e));
    return spec_bool(config, "clean_up_tokenization_spaces", false, &t->clean_up, e);
}

/* A template in tokenizer.json is obeyed; only without one do add_bos_token and add_eos_token
 * count. */
static Status load_bos_rule(Tokenizer *t, const JsonValue *config, Err *e)
{
    bool bos, eos, failed = false;
    TRY(spec_bool(config, "add_bos_token", false, &bos, e));
    TRY(spec_bool(config, "add_eos_token", false, &eos, e));
    if ((bos && t->bos_id < 0) || (eos && t->eos_id < 0))
        return err_set(e, ST_INPUT, "it asks for a %s that it does not name",
                       bos && t->bos_id < 0 ? "BOS" : "EOS");
    if (bos)
        tokenids_push(&t->before, t->bos_id, &failed);
    if (eos)
        tokenids_push(&t->behind, t->eos_id, &failed);
    return failed ? no_memory(e) : ST_OK;
}

/* ---- all together ---- */

/* The tables by id, once all tokens are known. */
static Status build_texts(Tokenizer *t, Err *e)
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
                         *same = find_added(t, token->shown, token->shown_len);
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
    TRY(reserve_added(t, json_get(file, "added_tokens"), config, e));
    TRY(load_added(t, json_get(file, "added_tokens"), name, e));
    if (config && load_config(t, config, name, e) != ST_OK)
        return err_in(e, "tokenizer_config.json");
    TRY(build_matchers(t, e));
    TRY(build_texts(t, e));
    TRY(build_bytes(t, e));
    Status st = load_post(t, json_get(file, "post_processor"), &has_template, e);
    if (st != ST_OK) {
        err_in(e, "post_processor");
        return st;
    }
    if (config && !has_template && load_bos_rule(t, config, e) != ST_OK)
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

/* A 28 MB vocabulary is the largest there is; a file of more than this is something else. */
enum { MOST_FILE_BYTES = 1 << 30 };

Status tokenizer_load(const char *path, Tokenizer **out, Err *e)
{
    struct stat info;
    char file[FILE_PATH_MAX], settings[FILE_PATH_MAX];
    char *json = NULL, *config = NULL;
    size_t len = 0, config_len = 0;
    Status st = ST_OK;
    *out = NULL;
    if (stat(path, &info) != 0)
        return err_errno(e, "%s", path);
    if (S_ISDIR(info.st_mode)) {
        TRY(file_join(file, path, "tokenizer.json", e));
        TRY(file_join(settings, path, "tokenizer_config.json", e));
        if (!file_exists(file))
            return ST_OK;
        if (file_exists(settings))
            TRY(file_read(settings, MOST_FILE_BYTES, &config, &config_len, e));
        path = file;
    }
    st = file_read(path, MOST_FILE_BYTES, &json, &len, e);
    if (st == ST_OK)
        st = tokenizer_parse(json, len, config, config_len, path, out, e);
    free(json);
    free(config);
    return st;
}
