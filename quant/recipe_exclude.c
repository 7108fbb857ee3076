/* quant/recipe_exclude.c - which modules a list of names and wildcards means (formats.md 3.4).
 *
 * The rules are those of the reading side, oddities included, because exporters rely on them: an
 * entry without wildcards excludes whatever contains it, so "model.layers.1" also means layer 12.
 * Where that is all that excludes a module, and the entry ends inside a name, a warning says so. */
#include "quant/recipe_internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MODULE = 1024, MAX_STEPS = 1 << 20 };

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

const char *recipe_last_part(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

const char *recipe_fused_name(const char *last, const char *const **shards)
{
    static const char *const qkv[] = {"q_proj", "k_proj", "v_proj", NULL};
    static const char *const gate_up[] = {"gate_proj", "up_proj", NULL};
    static const struct {
        const char *fused;
        const char *const *shards;
    } all[] = {{"qkv_proj", qkv}, {"gate_up_proj", gate_up}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const char *const *s = all[i].shards; *s; s++)
            if (strcmp(*s, last) == 0) {
                *shards = all[i].shards;
                return all[i].fused;
            }
    return NULL;
}

bool recipe_is_vision(const char *module)
{
    return strstr(module, "vision_tower") || strstr(module, "vision_model") ||
           strstr(module, "vit_large_projector");
}

bool recipe_swap(const char *module, char *out, size_t size)
{
    static const char a[] = "language_model.model.", b[] = "model.language_model.";
    const char *rest = module + sizeof a - 1;
    int n;
    if (starts_with(module, a))
        n = snprintf(out, size, "%s%s", b, rest);
    else if (starts_with(module, b))
        n = snprintf(out, size, "%s%s", a, rest);
    else
        return false;
    return n > 0 && (size_t)n < size;
}

/* One [seq] at p against c: the position behind it, or NULL when there is no closing bracket, which
 * makes the bracket an ordinary character. */
static const char *match_set(const char *p, unsigned char c, bool *hit)
{
    const char *s = p + 1;
    bool negate = *s == '!';
    *hit = false;
    s += negate;
    for (bool first = true; first || *s != ']'; first = false) {
        if (*s == 0)
            return NULL;
        unsigned char low = (unsigned char)*s, high = low;
        if (s[1] == '-' && s[2] && s[2] != ']') {
            high = (unsigned char)s[2];
            s += 2;
        }
        if (c >= low && c <= high)
            *hit = true;
        s++;
    }
    *hit ^= negate;
    return s + 1;
}

bool recipe_glob(const char *pattern, const char *text)
{
    const char *star = NULL, *retry = NULL;
    while (*text) {
        bool hit = false;
        const char *next = pattern + 1;
        if (*pattern == '*') { /* the last star decides: an earlier one need not take more */
            star = ++pattern;
            retry = text;
            continue;
        }
        if (*pattern == '[') {
            next = match_set(pattern, (unsigned char)*text, &hit);
            if (!next) {
                next = pattern + 1;
                hit = *text == '[';
            }
        } else {
            hit = *pattern && (*pattern == '?' || *pattern == *text);
        }
        if (hit) {
            pattern = next;
            text++;
        } else if (star) {
            pattern = star;
            text = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

/* Step 1: the name itself, that of the fused layer it is a part of, or, for what lies among
 * experts, any entry about one of them. */
static bool matches_exactly(const char *entry, const char *module)
{
    const char *const *shards, *last = recipe_last_part(module);
    const char *fused = recipe_fused_name(last, &shards);
    size_t parent = (size_t)(last - module);
    if (strcmp(entry, module) == 0)
        return true;
    if (fused && strncmp(entry, module, parent) == 0 && strcmp(entry + parent, fused) == 0)
        return true;
    return strstr(module, "experts") && strstr(entry, "experts") && strstr(entry, module);
}

static bool on_boundaries(const char *entry, const char *module)
{
    size_t len = strlen(entry);
    for (const char *at = strstr(module, entry); at; at = strstr(at + 1, entry))
        if ((at == module || at[-1] == '.') && (at[len] == 0 || at[len] == '.'))
            return true;
    return false;
}

static bool glob_with_parents(const Pattern *p, const char *module, bool parents)
{
    char parent[MAX_MODULE];
    if (!p->wild)
        return false;
    if (recipe_glob(p->text, module))
        return true;
    if (!parents || strlen(module) >= sizeof parent)
        return false;
    strcpy(parent, module);
    for (char *dot = strrchr(parent, '.'); dot; dot = strrchr(parent, '.')) {
        *dot = 0;
        if (recipe_glob(p->text, parent))
            return true;
    }
    return false;
}

static Status excluded_as(Recipe *r, PatternList *list, const char *module, bool *out, Err *e)
{
    Pattern *odd = NULL;
    bool sure = false;
    const char *inner =
        starts_with(module, "language_model.") ? module + strlen("language_model.") : module;
    for (int i = 0; i < list->n; i++) {
        Pattern *p = &list->p[i];
        bool exact = matches_exactly(p->text, module);
        bool part = strstr(module, p->text) != NULL; /* of inner, too, which lies in module */
        bool glob = glob_with_parents(p, module, list->parents);
        if (!exact && !part && !glob)
            continue;
        p->used = true;
        if (exact || glob || on_boundaries(p->text, module) || on_boundaries(p->text, inner))
            sure = true;
        else if (!p->warned)
            odd = p;
        *out = true;
    }
    if (sure || !odd)
        return ST_OK;
    odd->warned = true;
    return recipe_warn(r, e,
                       "%s: %s.%s: \"%.100s\" also keeps %.200s unquantized, whose name contains "
                       "it",
                       r->file, r->where, list->key, odd->text, module);
}

Status recipe_excluded(Recipe *r, PatternList *list, const char *module, bool *out, Err *e)
{
    char other[MAX_MODULE];
    *out = false;
    if (list->n == 0)
        return ST_OK;
    TRY(excluded_as(r, list, module, out, e));
    if (recipe_swap(module, other, sizeof other))
        TRY(excluded_as(r, list, other, out, e));
    return ST_OK;
}

bool recipe_excluded_projection(PatternList *list, const char *bank, const char *projection)
{
    char name[MAX_MODULE], other[MAX_MODULE];
    bool hit = false;
    int n = snprintf(name, sizeof name, "%s.%s", bank, projection);
    if (n < 0 || (size_t)n >= sizeof name)
        return false;
    bool swapped = recipe_swap(name, other, sizeof other);
    for (int i = 0; i < list->n; i++)
        if (list->p[i].wild && (recipe_glob(list->p[i].text, name) ||
                                (swapped && recipe_glob(list->p[i].text, other))))
            hit = list->p[i].used = true;
    return hit;
}

Status recipe_name_matches(Recipe *r, const Pattern *p, const char *module, bool *out, Err *e)
{
    size_t steps = MAX_STEPS, start = 0, end = 0;
    *out = false;
    if (!p->regex) {
        *out = strcmp(p->text, module) == 0;
        return ST_OK;
    }
    Status st =
        regex_find(p->regex, &r->stack, module, strlen(module), 0, &steps, out, &start, &end, e);
    if (st != ST_OK)
        return err_in(e, "%s: %s: \"%.100s\"", r->file, r->where, p->text);
    *out = *out && start == 0; /* re.match: the leftmost match begins where the name does */
    return ST_OK;
}
