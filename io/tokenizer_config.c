/* io/tokenizer_config.c - what tokenizer_config.json adds: tokens, their names, BOS and EOS. */
#include "io/tokenizer_internal.h"

#include "io/spec.h"

#include <stdlib.h>

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for a tokenizer");
}

/* A special token's name may be given as a string or as an object with its flags. */
static Status named_token(const JsonValue *v, AddedToken *out, Err *e)
{
    if (v->type == JSON_STRING)
        *out = (AddedToken){.text = v->text, .len = v->len};
    else
        TRY(added_read(v, out, e));
    out->special = true;
    return ST_OK;
}

static Status add_named(Tokenizer *t, const JsonValue *v, const char *key, int32_t *id, Err *e)
{
    AddedToken token;
    if (spec_absent(v))
        return ST_OK;
    if (v->type != JSON_STRING && v->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "\"%s\" is neither a string nor an object", key);
    TRY(named_token(v, &token, e));
    if (!added_find(t, token.text, token.len)) /* else it keeps its flags, special or not */
        TRY(added_add(t, token, e));
    if (id)
        *id = tokenizer_token_id(t, token.text, token.len);
    return ST_OK;
}

static int by_id(const void *a, const void *b)
{
    int64_t x = ((const AddedEntry *)a)->id, y = ((const AddedEntry *)b)->id;
    return (x > y) - (x < y);
}

Status config_added_entries(const JsonValue *map, AddedEntry **out, size_t *n, Err *e)
{
    *out = NULL;
    *n = 0;
    if (map->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "added_tokens_decoder is not an object");
    AddedEntry *entries = malloc((map->len + 1) * sizeof *entries);
    if (!entries)
        return no_memory(e);
    for (const JsonValue *v = map->child; v; v = v->next) {
        JsonValue key = {.type = JSON_NUMBER, .text = v->key, .len = v->key_len};
        entries[*n].spec = v;
        if (v->key_len == 0 || v->key[0] == '-' || !json_int64(&key, &entries[(*n)++].id)) {
            free(entries);
            return err_set(e, ST_INPUT, "added_tokens_decoder: \"%.80s\" is not an id", v->key);
        }
    }
    qsort(entries, *n, sizeof *entries, by_id);
    *out = entries;
    return ST_OK;
}

/* New tokens are added in the order of their ids. */
static Status load_added_decoder(Tokenizer *t, const JsonValue *map, const char *name, Err *e)
{
    IdCheck check = {0};
    AddedEntry *entries;
    size_t n;
    if (spec_absent(map))
        return ST_OK;
    TRY(config_added_entries(map, &entries, &n, e));
    Status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        AddedToken token;
        st = added_read(entries[i].spec, &token, e);
        if (st == ST_OK)
            st = added_add(t, token, e);
        if (st == ST_OK)
            st = added_check_id(t, &token, entries[i].id, &check, e);
    }
    free(entries);
    if (st == ST_OK)
        added_warn_ids(t, &check, name);
    return st;
}

Status config_load(Tokenizer *t, const JsonValue *config, const char *name, Err *e)
{
    static const char *const names[] = {"unk_token", "sep_token", "pad_token", "cls_token",
                                        "mask_token"};
    static const char more[] = "additional_special_tokens";
    if (config->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "it is not an object");
    TRY(load_added_decoder(t, json_get(config, "added_tokens_decoder"), name, e));
    TRY(add_named(t, json_get(config, "bos_token"), "bos_token", &t->bos_id, e));
    TRY(add_named(t, json_get(config, "eos_token"), "eos_token", &t->eos_id, e));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(add_named(t, json_get(config, names[i]), names[i], NULL, e));
    const JsonValue *list = json_get(config, more);
    if (!spec_absent(list) && list->type != JSON_ARRAY)
        return err_set(e, ST_INPUT, "\"%s\" is not a list", more);
    for (const JsonValue *v = spec_absent(list) ? NULL : list->child; v; v = v->next)
        TRY(add_named(t, v, more, NULL, e));
    return spec_bool(config, "clean_up_tokenization_spaces", false, &t->clean_up, e);
}

/* A template in tokenizer.json is obeyed; only without one do add_bos_token and add_eos_token
 * count. */
Status config_load_bos_rule(Tokenizer *t, const JsonValue *config, Err *e)
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
