/* io/tensor_set.c - see tensor_set.h. */
#include "io/tensor_set.h"

#include "io/json.h"
#include "io/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MAX_INDEX_BYTES = 256 << 20,
    MAX_PARTS_OF_SET = 1 << 16,
    MAX_OPEN_PARTS = 512 /* a process may have 1024 files open */
};

static const char SINGLE[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";

/* What the index says, while its parts are read. */
typedef struct Index {
    Arena arena;
    const JsonValue *map; /* tensor -> part */
    NameTable tensors;    /* names in map, in order */
    const char **part_of; /* [tensors.n] */
} Index;

static void index_free(Index *x)
{
    free(x->part_of);
    name_table_free(&x->tensors);
    arena_free(&x->arena);
}

/* A part lies in the directory itself: the index comes from elsewhere, and must not lead elsewhere.
 */
static bool part_name_ok(const JsonValue *v)
{
    static const char suffix[] = ".safetensors";
    size_t n = sizeof suffix - 1;
    return v->type == JSON_STRING && v->len > n && v->len < 256 && strlen(v->text) == v->len &&
           v->text[0] != '.' && !strchr(v->text, '/') && strcmp(v->text + v->len - n, suffix) == 0;
}

static Status index_read(const char *dir, Index *out, Err *e)
{
    char path[FILE_PATH_MAX], *text = NULL;
    size_t len;
    JsonValue *root;
    Status st;
    TRY(file_join(path, dir, INDEX, e));
    TRY(file_read(path, MAX_INDEX_BYTES, &text, &len, e));
    st = json_parse(text, len, &out->arena, &root, e);
    free(text);
    if (st != ST_OK)
        return err_in(e, "%s", INDEX);
    out->map = root->type == JSON_OBJECT ? json_get(root, "weight_map") : NULL;
    if (!out->map || out->map->type != JSON_OBJECT || out->map->len == 0)
        return err_set(e, ST_INPUT, "%s: weight_map is missing or empty", INDEX);
    if (out->map->len > INT_MAX / 4)
        return err_set(e, ST_INPUT, "%s: too many tensors", INDEX);
    TRY(name_table_create(&out->tensors, (int)out->map->len, e));
    out->part_of = malloc(out->map->len * sizeof *out->part_of);
    if (!out->part_of)
        return err_set(e, ST_MEMORY, "not enough memory for the index");
    for (const JsonValue *v = out->map->child; v; v = v->next) {
        int added, i = name_table_add(&out->tensors, v->key, &added);
        if (strlen(v->key) != v->key_len)
            return err_set(e, ST_INPUT, "%s: a tensor name holds a NUL", INDEX);
        if (!added)
            return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": listed twice", INDEX, v->key);
        if (!part_name_ok(v))
            return err_set(
                e, ST_INPUT,
                "%s: tensor \"%.200s\": \"%.100s\" is not the name of a .safetensors file "
                "in this directory",
                INDEX, v->key, v->type == JSON_STRING ? v->text : "");
        out->part_of[i] = v->text;
    }
    return ST_OK;
}

static Status add_part(TensorSet *s, const char *dir, const char *name, Err *e)
{
    char path[FILE_PATH_MAX];
    TensorPart *p = &s->parts[s->n_parts];
    *p = (TensorPart){.name = arena_copy(&s->arena, name, strlen(name))};
    if (!p->name)
        return err_set(e, ST_MEMORY, "not enough memory for the parts");
    TRY(file_join(path, dir, name, e));
    TRY((s->n_parts < MAX_OPEN_PARTS ? file_map_open : file_map)(path, &p->map, e));
    s->n_parts++; /* from here on tensor_set_close takes care of it */
    if (safetensors_parse(p->map.data, p->map.len, &p->header, e) != ST_OK)
        return err_in(e, "%s", name);
    return ST_OK;
}

/* All entries of all parts under one table of names. */
static Status gather(TensorSet *s, Err *e)
{
    int64_t n = 0;
    for (int p = 0; p < s->n_parts; p++)
        n += s->parts[p].header.n;
    if (n > INT_MAX / 4)
        return err_set(e, ST_INPUT, "too many tensors");
    TRY(name_table_create(&s->names, (int)n, e));
    s->entries = malloc(((size_t)n + 1) * sizeof *s->entries);
    if (!s->entries)
        return err_set(e, ST_MEMORY, "not enough memory for %lld tensors", (long long)n);
    for (int p = 0; p < s->n_parts; p++)
        for (int i = 0; i < s->parts[p].header.n; i++) {
            TensorEntry *t = &s->parts[p].header.entries[i];
            int added, at = name_table_add(&s->names, t->name, &added);
            t->part = p;
            if (!added)
                return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": is in %s as well",
                               s->parts[p].name, t->name, tensor_set_file(s, s->entries[at]));
            s->entries[s->n++] = t;
        }
    return ST_OK;
}

/* The index and the parts must tell the same. */
static Status check_index(const TensorSet *s, const Index *x, Err *e)
{
    for (int i = 0; i < s->n; i++) {
        const TensorEntry *t = s->entries[i];
        int at = name_table_find(&x->tensors, t->name);
        if (at < 0)
            return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": not listed in %s",
                           tensor_set_file(s, t), t->name, INDEX);
        if (strcmp(x->part_of[at], tensor_set_file(s, t)) != 0)
            return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": %s expects it in %s",
                           tensor_set_file(s, t), t->name, INDEX, x->part_of[at]);
    }
    for (int i = 0; i < x->tensors.n; i++)
        if (!tensor_set_find(s, x->tensors.names[i]))
            return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": listed in %s, but not there",
                           x->part_of[i], x->tensors.names[i], INDEX);
    return ST_OK;
}

static Status open_parts(const char *dir, TensorSet *s, Index *x, Err *e)
{
    NameTable parts;
    TRY(name_table_create(&parts, x->tensors.n, e));
    for (int i = 0, added; i < x->tensors.n; i++)
        name_table_add(&parts, x->part_of[i], &added);
    Status st = ST_OK;
    s->parts = calloc((size_t)parts.n, sizeof *s->parts);
    if (!s->parts)
        st = err_set(e, ST_MEMORY, "not enough memory for %d parts", parts.n);
    else if (parts.n > MAX_PARTS_OF_SET)
        st = err_set(e, ST_INPUT, "%s: %d parts, at most %d expected", INDEX, parts.n,
                     MAX_PARTS_OF_SET);
    for (int i = 0; i < parts.n && st == ST_OK; i++)
        st = add_part(s, dir, parts.names[i], e);
    name_table_free(&parts);
    return st;
}

/* --- packs --- */

static int place_order(const void *key, const void *place)
{
    int64_t tensor = *(const int64_t *)key, at = ((const PackPlace *)place)->tensor;
    return (tensor > at) - (tensor < at);
}

const PackPlace *tensor_set_places(const TensorSet *s, const TensorEntry *t, int64_t *n)
{
    const TensorPart *p = &s->parts[t->part];
    *n = 0;
    if (!p->kept || p->kept->n_places == 0)
        return NULL;
    const PackPlace *all = p->kept->places;
    int64_t tensor = t - p->header.entries;
    const PackPlace *at =
        bsearch(&tensor, all, (size_t)p->kept->n_places, sizeof *all, place_order);
    if (!at)
        return NULL;
    while (at > all && at[-1].tensor == tensor)
        at--;
    while (at + *n < all + p->kept->n_places && at[*n].tensor == tensor)
        ++*n;
    return at;
}

/* The header is that of a whole file; what of it is here is told by the places. */
static Status add_kept_part(TensorSet *s, const PackPart *kept, Err *e)
{
    TensorPart *p = &s->parts[s->n_parts];
    *p = (TensorPart){.name = kept->name, .kept = kept};
    s->n_parts++;
    void *reserved = mmap(NULL, (size_t)kept->file_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (kept->file_bytes <= 0 || reserved == MAP_FAILED)
        return err_errno(e, "%s: addresses for %lld bytes", kept->name,
                         (long long)kept->file_bytes);
    p->reserved = reserved;
    if (safetensors_parse_header(kept->header, (size_t)kept->header_bytes, p->reserved,
                                 (size_t)kept->file_bytes, &p->header, e) != ST_OK)
        return err_in(e, "%s: %s", s->pack->path, kept->name);
    if (p->header.n != kept->n_tensors)
        return err_set(e, ST_INPUT, "%s: %s: %d tensors, but checksums of %lld", s->pack->path,
                       kept->name, p->header.n, (long long)kept->n_tensors);
    p->state = calloc((size_t)p->header.n + 1, sizeof *p->state);
    if (!p->state)
        return err_set(e, ST_MEMORY, "not enough memory for %d tensors", p->header.n);
    int64_t at = 0;
    for (int i = 0; i < p->header.n; i++) {
        TensorEntry *t = &p->header.entries[i];
        int64_t n;
        t->part = s->n_parts - 1;
        (void)tensor_set_places(s, t, &n);
        if (n > 0)
            continue;
        t->data = kept->data + at;
        at += (t->bytes + 15) / 16 * 16;
    }
    if (at != kept->data_bytes)
        return err_set(e, ST_INPUT, "%s: %s: %lld bytes of tensors, expected %lld", s->pack->path,
                       kept->name, (long long)kept->data_bytes, (long long)at);
    return ST_OK;
}

static Status open_pack(const char *path, TensorSet *s, Err *e)
{
    s->pack = malloc(sizeof *s->pack);
    if (!s->pack)
        return err_set(e, ST_MEMORY, "not enough memory for a pack");
    Status st = pack_file_open(path, s->pack, e);
    if (st != ST_OK) {
        free(s->pack);
        s->pack = NULL;
        return st;
    }
    s->parts = calloc((size_t)s->pack->n_parts + 1, sizeof *s->parts);
    if (!s->parts)
        return err_set(e, ST_MEMORY, "not enough memory for %d parts", s->pack->n_parts);
    for (int i = 0; i < s->pack->n_parts; i++)
        TRY(add_kept_part(s, &s->pack->parts[i], e));
    return gather(s, e);
}

Status tensor_set_open(const char *dir, TensorSet *out, Err *e)
{
    char path[FILE_PATH_MAX];
    Index x = {0};
    Status st = ST_OK;
    *out = (TensorSet){.list_name = SINGLE};
    if (pack_file_is(dir)) {
        TRY_GOTO(open_pack(dir, out, e));
        return ST_OK;
    }
    TRY_GOTO(file_join(path, dir, INDEX, e));
    bool sharded = file_exists(path);
    TRY_GOTO(file_join(path, dir, SINGLE, e));
    bool single = file_exists(path);
    if (!sharded && !single) {
        st = err_set(e, ST_IO, "%s: neither %s nor %s is there", dir, SINGLE, INDEX);
        goto fail;
    }
    if (sharded && single) {
        log_warn_once("%s: both %s and %s are there; the single file is read", dir, SINGLE, INDEX);
        sharded = false;
    }
    if (sharded) {
        out->list_name = INDEX;
        TRY_GOTO(index_read(dir, &x, e));
        TRY_GOTO(open_parts(dir, out, &x, e));
    } else {
        out->parts = calloc(1, sizeof *out->parts);
        if (!out->parts) {
            st = err_set(e, ST_MEMORY, "not enough memory for a part");
            goto fail;
        }
        TRY_GOTO(add_part(out, dir, SINGLE, e));
    }
    TRY_GOTO(gather(out, e));
    if (sharded)
        TRY_GOTO(check_index(out, &x, e));
    index_free(&x);
    return ST_OK;
fail:
    index_free(&x);
    tensor_set_close(out);
    return st;
}

Status tensor_set_of(const char *name, SafeTensors *entries, TensorSet *out, Err *e)
{
    *out = (TensorSet){.list_name = name, .parts = calloc(1, sizeof *out->parts)};
    if (!out->parts) {
        safetensors_free(entries);
        return err_set(e, ST_MEMORY, "not enough memory for a part");
    }
    out->parts[0] = (TensorPart){.name = name, .header = *entries};
    out->n_parts = 1;
    *entries = (SafeTensors){0};
    Status st = gather(out, e);
    if (st != ST_OK)
        tensor_set_close(out);
    return st;
}

void tensor_set_close(TensorSet *s)
{
    for (int p = 0; p < s->n_parts; p++) {
        safetensors_free(&s->parts[p].header);
        file_unmap(&s->parts[p].map);
        if (s->parts[p].reserved)
            munmap(s->parts[p].reserved, (size_t)s->parts[p].kept->file_bytes);
        free(s->parts[p].state);
    }
    if (s->pack)
        pack_file_close(s->pack);
    free(s->pack);
    free(s->parts);
    free(s->entries);
    name_table_free(&s->names);
    arena_free(&s->arena);
    *s = (TensorSet){0};
}

const TensorEntry *tensor_set_find(const TensorSet *s, const char *name)
{
    int i = name_table_find(&s->names, name);
    return i < 0 ? NULL : s->entries[i];
}

const char *tensor_set_file(const TensorSet *s, const TensorEntry *t)
{
    return s->parts[t->part].name;
}
