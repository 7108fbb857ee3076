/* quant/recipe_resolve.c - from a module's name to its scheme (formats.md 3.4, 3.5, 3.6). */
#include "quant/recipe_internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MODULE = 1024, MAX_CANDIDATES = 3 };

/* A module's name and the other names that mean it. */
typedef struct Candidates {
    const char *name[MAX_CANDIDATES];
    int n;
    char swapped[MAX_MODULE];
} Candidates;

static void candidates_of(const char *module, Candidates *c)
{
    static const char head[] = ".lm_head";
    size_t len = strlen(module);
    c->n = 0;
    c->name[c->n++] = module;
    if (len >= sizeof head && strcmp(module + len - (sizeof head - 1), head) == 0)
        c->name[c->n++] = "lm_head";
    if (recipe_swap(module, c->swapped, sizeof c->swapped))
        c->name[c->n++] = c->swapped;
}

static bool is_below(const char *name, const char *parent)
{
    size_t len = strlen(parent);
    return strncmp(name, parent, len) == 0 && name[len] == '.';
}

static Status disagree(const Recipe *r, const LayerEntry *a, const LayerEntry *b,
                       const char *module, Err *e)
{
    return recipe_bad(r, "quantized_layers", e,
                      "%.100s is %s but %.100s is %s: expected one algorithm for all of %.100s",
                      a->module, a->scheme->algo, b->module, b->scheme->algo, module);
}

static LayerEntry *find_entry(Recipe *r, const char *module)
{
    int i = r->n_layers ? name_table_find(&r->layer_names, module) : -1;
    if (i < 0)
        return NULL;
    r->layers[i].used = true;
    return &r->layers[i];
}

/* PARENT.name for each name of the list; all entries that exist must agree. */
static Status find_siblings(Recipe *r, const char *module, const char *const *names,
                            const LayerEntry **found, Err *e)
{
    int parent = (int)(recipe_last_part(module) - module);
    char other[MAX_MODULE];
    for (; *names; names++) {
        int n = snprintf(other, sizeof other, "%.*s%s", parent, module, *names);
        const LayerEntry *entry = n > 0 && (size_t)n < sizeof other ? find_entry(r, other) : NULL;
        if (entry && *found && (*found)->scheme != entry->scheme)
            return disagree(r, *found, entry, module, e);
        if (entry)
            *found = entry;
    }
    return ST_OK;
}

/* All entries below the module must agree: readers take the first, whatever the others say. */
static Status find_below(Recipe *r, const char *parent, const char *module,
                         const LayerEntry **found, Err *e)
{
    for (int i = 0; i < r->n_layers; i++) {
        LayerEntry *entry = &r->layers[i];
        if (!is_below(entry->module, parent))
            continue;
        entry->used = true;
        if (*found && (*found)->scheme != entry->scheme)
            return disagree(r, *found, entry, module, e);
        *found = entry;
    }
    return ST_OK;
}

/* quantized_layers on a linear layer or embedding; *found NULL: nothing there is about it. */
static Status find_layer(Recipe *r, const char *module, const LayerEntry **found, Err *e)
{
    Candidates c;
    const char *const *shards;
    candidates_of(module, &c);
    *found = NULL;
    for (int i = 0; i < c.n && !*found; i++)
        *found = find_entry(r, c.name[i]);
    for (int i = 0; i < c.n && !*found; i++) {
        const char *fused = recipe_fused_name(recipe_last_part(c.name[i]), &shards);
        const char *one[] = {fused, NULL};
        if (!fused)
            break;
        TRY(find_siblings(r, c.name[i], one, found, e));
        if (!*found)
            TRY(find_siblings(r, c.name[i], shards, found, e));
    }
    for (int i = 0; i < c.n && !*found; i++)
        TRY(find_below(r, c.name[i], module, found, e));
    return ST_OK;
}

/* The same of routed experts. Projections beside the bank ("moe.gate_proj") count last, and nothing
 * else beside it does: readers that take the first entry there may meet the router's. */
static Status find_bank(Recipe *r, const char *bank, const char *const names[3],
                        const LayerEntry **found, Err *e)
{
    const char *const beside[] = {names[0], names[1], names[2], "gate_up_proj", NULL};
    Candidates c;
    candidates_of(bank, &c);
    *found = NULL;
    for (int i = 0; i < c.n && !*found; i++)
        *found = find_entry(r, c.name[i]);
    for (int i = 0; i < c.n && !*found; i++)
        TRY(find_below(r, c.name[i], bank, found, e));
    if (strcmp(recipe_last_part(bank), "experts") != 0)
        return ST_OK;
    for (int i = 0; i < c.n && !*found; i++) {
        char parent[MAX_MODULE];
        int len = (int)(recipe_last_part(c.name[i]) - c.name[i]) - 1;
        if (len <= 0 || len >= (int)sizeof parent)
            continue;
        /* find_siblings wants a name below the parent; the bank's own is one. */
        TRY(find_siblings(r, c.name[i], beside, found, e));
    }
    return ST_OK;
}

/* Of "fp8": no list names the head and the routers, and no reader quantizes them. */
static bool is_implicit(const char *module)
{
    static const char *const names[] = {"lm_head", "head", "gate", "router", "shared_expert_gate",
                                        NULL};
    const char *last = recipe_last_part(module);
    for (const char *const *n = names; *n; n++)
        if (strcmp(*n, last) == 0)
            return true;
    return false;
}

static bool is_codec(const QuantScheme *s)
{
    return s->format == FORMAT_Q8_0 || s->format == FORMAT_IQ2_XS || s->format == FORMAT_IQ2_XXS;
}

static Status resolve_linear(Recipe *r, const char *module, const QuantScheme **out, Err *e)
{
    bool excluded;
    *out = NULL;
    if (recipe_is_vision(module))
        return ST_OK;
    if (r->n_groups)
        return recipe_group_scheme(r, module, "Linear", out, e);
    if (r->n_layers) {
        const LayerEntry *entry = NULL;
        TRY(recipe_excluded(r, &r->layer_exclude, module, &excluded, e));
        if (!excluded)
            TRY(find_layer(r, module, &entry, e));
        if (entry)
            *out = entry->scheme;
        if (entry)
            return ST_OK;
    }
    TRY(recipe_excluded(r, &r->exclude, module, &excluded, e));
    if (!excluded && !(r->implicit_head && is_implicit(module)))
        *out = r->linear;
    return ST_OK;
}

Status recipe_linear(Recipe *r, const char *module, const QuantScheme **out, Err *e)
{
    return resolve_linear(r, module, out, e);
}

Status recipe_embedding(Recipe *r, const char *module, const QuantScheme **out, Err *e)
{
    const QuantScheme *s = NULL;
    const LayerEntry *entry = NULL;
    bool excluded;
    *out = NULL;
    if (recipe_is_vision(module))
        return ST_OK;
    if (r->n_groups) {
        TRY(recipe_group_scheme(r, module, "Embedding", &s, e));
    } else if (r->n_layers) {
        TRY(recipe_excluded(r, &r->layer_exclude, module, &excluded, e));
        if (!excluded)
            TRY(find_layer(r, module, &entry, e));
        s = entry ? entry->scheme : NULL;
    }
    if (!s && !r->n_groups) {
        TRY(recipe_excluded(r, &r->exclude, module, &excluded, e));
        s = excluded ? NULL : r->embedding;
    }
    if (s && s->format != FORMAT_Q8_0)
        return recipe_bad(r, NULL, e, "%.200s is %s, but an embedding can only be Q8_0%s", module,
                          s->algo, is_codec(s) ? "" : " or unquantized");
    *out = s;
    return ST_OK;
}

/* A projection's exclusion by wildcards must be the same for all experts. */
static Status drop_excluded(Recipe *r, PatternList *list, const char *bank, const char *name,
                            int n_experts, const QuantScheme **out, Err *e)
{
    char projection[128];
    int n = 0;
    if (!*out || !list->n)
        return ST_OK;
    for (int x = 0; x < n_experts; x++) {
        snprintf(projection, sizeof projection, "%d.%.100s", x, name);
        n += recipe_excluded_projection(list, bank, projection);
    }
    if (n && n < n_experts)
        return recipe_bad(r, list->key, e,
                          "excludes %s of %d of %d experts of %.200s, expected all or none", name,
                          n, n_experts, bank);
    if (n)
        *out = NULL;
    return ST_OK;
}

static Status experts_by_group(Recipe *r, const char *bank, const char *const names[3],
                               int n_experts, const QuantScheme *out[3], Err *e)
{
    for (int p = 0; p < 3; p++)
        for (int x = 0; x < n_experts; x++) {
            char module[MAX_MODULE];
            const QuantScheme *s;
            int n = snprintf(module, sizeof module, "%s.%d.%s", bank, x, names[p]);
            if (n < 0 || (size_t)n >= sizeof module)
                return recipe_bad(r, NULL, e, "the module name %.100s... is too long", bank);
            TRY(recipe_group_scheme(r, module, "Linear", &s, e));
            if (x && s != out[p])
                return recipe_bad(r, NULL, e,
                                  "%.200s is %s, but expert 0's is %s: expected one format for all "
                                  "experts of a layer",
                                  module, s ? s->algo : "unquantized",
                                  out[p] ? out[p]->algo : "unquantized");
            out[p] = s;
        }
    return ST_OK;
}

static Status no_stacked(const Recipe *r, const char *bank, const char *algo, Err *e)
{
    return recipe_bad(r, NULL, e,
                      "%.200s: experts in one tensor are not known as %s, expected FP8, NVFP4, "
                      "W4A16_NVFP4 or gpt-oss's mxfp4",
                      bank, algo);
}

Status recipe_experts(Recipe *r, const char *bank, const char *const names[3], int n_experts,
                      bool stacked, const QuantScheme *out[3], Err *e)
{
    const QuantScheme *s = NULL;
    bool excluded = false, found = false;
    PatternList *list = &r->exclude;
    out[0] = out[1] = out[2] = NULL;
    if (recipe_is_vision(bank))
        return ST_OK;
    if (r->n_groups) {
        TRY(experts_by_group(r, bank, names, stacked ? 1 : n_experts, out, e));
        return stacked && (out[0] || out[2]) ? no_stacked(r, bank, out[out[0] ? 0 : 2]->algo, e)
                                             : ST_OK;
    }
    if (r->n_layers) {
        const LayerEntry *entry = NULL;
        TRY(recipe_excluded(r, &r->layer_exclude, bank, &excluded, e));
        if (!excluded)
            TRY(find_bank(r, bank, names, &entry, e));
        found = entry != NULL;
        if (found) {
            list = &r->layer_exclude;
            s = entry->scheme;
            if (stacked)
                TRY(recipe_stacked_algo(r, s, &s, e));
            if (!s)
                return no_stacked(r, bank, entry->scheme->algo, e);
        }
    }
    if (!found) {
        TRY(recipe_excluded(r, &r->exclude, bank, &excluded, e));
        if (excluded)
            return ST_OK;
        if (stacked && r->experts && r->stacked_is_foreign)
            return no_stacked(r, bank, r->experts->algo, e);
        s = stacked ? r->stacked : r->experts;
    }
    for (int p = 0; p < 3; p++) {
        out[p] = s;
        if (!stacked)
            TRY(drop_excluded(r, list, bank, names[p], n_experts, &out[p], e));
    }
    return ST_OK;
}

Status recipe_check_fused(Recipe *r, const char *parent, const char *fused,
                          const char *const *shards, int n_shards, Err *e)
{
    const QuantScheme *first = NULL;
    const char *first_name = NULL, *plain = NULL;
    for (int i = 0; i < n_shards; i++) {
        char module[MAX_MODULE];
        const QuantScheme *s;
        int n = snprintf(module, sizeof module, "%s.%s", parent, shards[i]);
        if (n < 0 || (size_t)n >= sizeof module)
            return recipe_bad(r, NULL, e, "the module name %.100s... is too long", parent);
        TRY(resolve_linear(r, module, &s, e));
        if (!s)
            plain = shards[i];
        else if (first && first != s)
            return recipe_bad(r, NULL, e,
                              "%.200s.%s: %s is %s, but %s is %s: expected one format for all "
                              "parts of a fused layer",
                              parent, fused, first_name, first->algo, shards[i], s->algo);
        if (s && !first) {
            first = s;
            first_name = shards[i];
        }
    }
    if (first && plain)
        return recipe_bad(r, NULL, e,
                          "%.200s.%s: %s is excluded, but %s is %s: expected all parts of a fused "
                          "layer to be excluded, or none",
                          parent, fused, plain, first_name, first->algo);
    return ST_OK;
}
