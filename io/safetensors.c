/* io/safetensors.c - see safetensors.h. */
#include "io/safetensors.h"

#include "io/json.h"
#include "io/name_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100 * 1000 * 1000 }; /* the limit of the format's own reader */

static const struct {
    const char *name;
    int bytes;
} dtypes[N_DTYPES] = {
    [DTYPE_BOOL] = {"BOOL", 1},       [DTYPE_U8] = {"U8", 1},
    [DTYPE_I8] = {"I8", 1},           [DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [DTYPE_F8_E8M0] = {"F8_E8M0", 1},
    [DTYPE_I16] = {"I16", 2},         [DTYPE_U16] = {"U16", 2},
    [DTYPE_F16] = {"F16", 2},         [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_I32] = {"I32", 4},         [DTYPE_U32] = {"U32", 4},
    [DTYPE_F32] = {"F32", 4},         [DTYPE_I64] = {"I64", 8},
    [DTYPE_U64] = {"U64", 8},         [DTYPE_F64] = {"F64", 8},
};

const char *dtype_name(TensorDtype d)
{
    return dtypes[d].name;
}

int dtype_bytes(TensorDtype d)
{
    return dtypes[d].bytes;
}

void tensor_shape_text(char *out, size_t cap, int n_dims, const int64_t *shape)
{
    size_t at = (size_t)snprintf(out, cap, "[");
    for (int i = 0; i < n_dims && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < cap)
        snprintf(out + at, cap - at, "]");
}

/* What parsing holds besides the result. */
typedef struct Parser {
    const uint8_t *data; /* behind the header */
    uint64_t data_len;
    SafeTensors *out;
    Err *e;
} Parser;

static Status bad(const Parser *p, const JsonValue *tensor, const char *what)
{
    return err_set(p->e, ST_INPUT, "tensor \"%.200s\": %s", tensor->key, what);
}

static Status parse_dtype(const Parser *p, const JsonValue *tensor, TensorEntry *t)
{
    const JsonValue *v = json_get(tensor, "dtype");
    if (!v || v->type != JSON_STRING)
        return bad(p, tensor, "dtype is not a string");
    for (int d = 0; d < N_DTYPES; d++)
        if (json_is_string(v, dtypes[d].name)) {
            t->dtype = (TensorDtype)d;
            return ST_OK;
        }
    return err_set(p->e, ST_INPUT, "tensor \"%.200s\": dtype \"%.40s\" is not known", tensor->key,
                   v->text);
}

/* Fills in shape and bytes. */
static Status parse_shape(const Parser *p, const JsonValue *tensor, TensorEntry *t)
{
    const JsonValue *v = json_get(tensor, "shape");
    int64_t n = dtypes[t->dtype].bytes;
    if (!v || v->type != JSON_ARRAY)
        return bad(p, tensor, "shape is not a list");
    if (v->len > TENSOR_MAX_DIMS)
        return err_set(p->e, ST_INPUT, "tensor \"%.200s\": %zu dimensions, at most %d expected",
                       tensor->key, v->len, TENSOR_MAX_DIMS);
    for (const JsonValue *dim = v->child; dim; dim = dim->next) {
        int64_t size;
        if (!json_int64(dim, &size) || size < 0)
            return bad(p, tensor, "shape holds something that is not a size");
        if (__builtin_mul_overflow(n, size, &n))
            return bad(p, tensor, "shape is larger than any file");
        t->shape[t->n_dims++] = size;
    }
    t->bytes = n;
    return ST_OK;
}

static Status parse_offsets(const Parser *p, const JsonValue *tensor, TensorEntry *t)
{
    const JsonValue *v = json_get(tensor, "data_offsets");
    int64_t begin, end;
    if (!v || v->type != JSON_ARRAY || v->len != 2 || !json_int64(v->child, &begin) ||
        !json_int64(v->child->next, &end))
        return bad(p, tensor, "data_offsets is not a list of two integers");
    if (begin < 0 || end < begin)
        return err_set(p->e, ST_INPUT, "tensor \"%.200s\": data_offsets %lld to %lld run backwards",
                       tensor->key, (long long)begin, (long long)end);
    if ((uint64_t)end > p->data_len)
        return err_set(p->e, ST_INPUT,
                       "tensor \"%.200s\": data ends at byte %lld, but only %llu bytes of data are "
                       "there",
                       tensor->key, (long long)end, (unsigned long long)p->data_len);
    if (end - begin != t->bytes) {
        char shape[160];
        tensor_shape_text(shape, sizeof shape, t->n_dims, t->shape);
        return err_set(p->e, ST_INPUT, "tensor \"%.200s\": %lld bytes, %s %s expected %lld",
                       tensor->key, (long long)(end - begin), dtypes[t->dtype].name, shape,
                       (long long)t->bytes);
    }
    t->data = p->data + begin;
    return ST_OK;
}

static Status parse_tensor(const Parser *p, const JsonValue *v, TensorEntry *t)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    if (v->key_len == 0 || strlen(v->key) != v->key_len)
        return err_set(p->e, ST_INPUT, "a tensor name is empty or holds a NUL");
    if (v->type != JSON_OBJECT)
        return bad(p, v, "not an object");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_count_key(v, keys[i]) != 1)
            return err_set(p->e, ST_INPUT, "tensor \"%.200s\": %s occurs %d times, expected once",
                           v->key, keys[i], json_count_key(v, keys[i]));
    if (v->len != sizeof keys / sizeof *keys)
        return bad(p, v, "holds more than dtype, shape and data_offsets");
    t->name = arena_copy(&p->out->arena, v->key, v->key_len);
    if (!t->name)
        return err_set(p->e, ST_MEMORY, "not enough memory for a tensor name");
    TRY(parse_dtype(p, v, t));
    TRY(parse_shape(p, v, t));
    return parse_offsets(p, v, t);
}

static Status check_metadata(const Parser *p, const JsonValue *v)
{
    if (v->type != JSON_OBJECT)
        return err_set(p->e, ST_INPUT, "__metadata__ is not an object");
    for (const JsonValue *item = v->child; item; item = item->next)
        if (item->type != JSON_STRING)
            return err_set(p->e, ST_INPUT, "__metadata__: \"%.100s\" is not a string", item->key);
    return ST_OK;
}

static Status parse_members(const Parser *p, const JsonValue *header)
{
    SafeTensors *s = p->out;
    s->entries = arena_alloc(&s->arena, (header->len + 1) * sizeof *s->entries);
    if (!s->entries)
        return err_set(p->e, ST_MEMORY, "not enough memory for %zu tensors", header->len);
    for (const JsonValue *v = header->child; v; v = v->next) {
        if (strcmp(v->key, "__metadata__") == 0 && v->key_len == strlen("__metadata__")) {
            TRY(check_metadata(p, v));
            continue;
        }
        TensorEntry *t = &s->entries[s->n];
        *t = (TensorEntry){0};
        TRY(parse_tensor(p, v, t));
        s->n++;
    }
    return ST_OK;
}

static Status check_names(const Parser *p)
{
    NameTable names;
    Status st = name_table_create(&names, p->out->n, p->e);
    for (int i = 0; st == ST_OK && i < p->out->n; i++) {
        int added;
        name_table_add(&names, p->out->entries[i].name, &added);
        if (!added)
            st =
                err_set(p->e, ST_INPUT, "tensor \"%.200s\": occurs twice", p->out->entries[i].name);
    }
    name_table_free(&names);
    return st;
}

static int by_place(const void *a, const void *b)
{
    const TensorEntry *x = *(const TensorEntry *const *)a, *y = *(const TensorEntry *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors, in order of place, must tile the data. */
static Status check_places(const Parser *p)
{
    const SafeTensors *s = p->out;
    const TensorEntry **order = malloc(((size_t)s->n + 1) * sizeof *order);
    Status st = ST_OK;
    const uint8_t *at = p->data;
    if (!order)
        return err_set(p->e, ST_MEMORY, "not enough memory for %d tensors", s->n);
    for (int i = 0; i < s->n; i++)
        order[i] = &s->entries[i];
    qsort(order, (size_t)s->n, sizeof *order, by_place);
    for (int i = 0; i < s->n && st == ST_OK; i++) {
        if (order[i]->data < at)
            st = err_set(p->e, ST_INPUT, "tensor \"%.200s\": overlaps tensor \"%.200s\"",
                         order[i]->name, order[i - 1]->name);
        else if (order[i]->data > at)
            st = err_set(p->e, ST_INPUT,
                         "tensor \"%.200s\": %lld bytes in front of it belong to none",
                         order[i]->name, (long long)(order[i]->data - at));
        at = order[i]->data + order[i]->bytes;
    }
    if (st == ST_OK && (uint64_t)(at - p->data) != p->data_len)
        st = err_set(p->e, ST_INPUT, "%lld bytes behind the last tensor belong to none",
                     (long long)(p->data_len - (uint64_t)(at - p->data)));
    free(order);
    return st;
}

static uint64_t read_le64(const uint8_t *b)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | b[i];
    return v;
}

Status safetensors_parse(const uint8_t *file, size_t len, SafeTensors *out, Err *e)
{
    return safetensors_parse_header(file, len, file, len, out, e);
}

Status safetensors_parse_header(const uint8_t *header_bytes, size_t header_len, const uint8_t *file,
                                size_t len, SafeTensors *out, Err *e)
{
    Arena scratch = {0};
    JsonValue *header;
    Status st = ST_OK;
    *out = (SafeTensors){0};
    if (len < 8 || header_len < 8)
        return err_set(e, ST_INPUT, "%zu bytes, a safetensors file has at least 8", len);
    uint64_t n = read_le64(header_bytes);
    if (n > MAX_HEADER_BYTES)
        return err_set(e, ST_INPUT, "header of %llu bytes, at most %d expected",
                       (unsigned long long)n, MAX_HEADER_BYTES);
    if (n > len - 8 || n > header_len - 8)
        return err_set(e, ST_INPUT, "header of %llu bytes, but only %zu bytes follow",
                       (unsigned long long)n, len - 8);
    if (n == 0 || header_bytes[8] != '{')
        return err_set(e, ST_INPUT, "the header does not start with {");
    Parser p = {.data = file + 8 + n, .data_len = len - 8 - n, .out = out, .e = e};
    out->header_bytes = (int64_t)(8 + n);
    st = json_parse((const char *)header_bytes + 8, (size_t)n, &scratch, &header, e);
    if (st != ST_OK) {
        err_in(e, "header");
        goto fail;
    }
    TRY_GOTO(parse_members(&p, header));
    TRY_GOTO(check_names(&p));
    TRY_GOTO(check_places(&p));
    arena_free(&scratch);
    return ST_OK;
fail:
    arena_free(&scratch);
    safetensors_free(out);
    return st;
}

void safetensors_free(SafeTensors *s)
{
    arena_free(&s->arena);
    *s = (SafeTensors){0};
}
