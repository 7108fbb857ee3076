/* tests/support/made_model.c - see made_model.h. */
#include "tests/support/made_model.h"

#include "io/file.h"
#include "io/strbuf.h"
#include "quant/tensor.h"
#include "tests/support/made_family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what there is --- */

static int64_t bytes_of(const MadeTensor *t)
{
    int64_t n = dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

MadeTensor *made_add(MadeModel *m, const char *name, TensorDtype dtype, int n_dims,
                     const int64_t *shape, float std)
{
    if (m->n == m->cap) {
        int cap = m->cap ? 2 * m->cap : 64;
        MadeTensor *more = realloc(m->tensors, (size_t)cap * sizeof *more);
        if (!more)
            return NULL;
        m->tensors = more;
        m->cap = cap;
    }
    MadeTensor *t = &m->tensors[m->n++];
    *t = (MadeTensor){.dtype = dtype, .n_dims = n_dims, .kind = MADE_NORMAL, .std = std};
    snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
    t->bytes = bytes_of(t);
    return t;
}

MadeTensor *made_find(MadeModel *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

void made_remove(MadeModel *m, const char *name)
{
    MadeTensor *t = made_find(m, name);
    if (!t)
        return;
    memmove(t, t + 1, (size_t)(m->tensors + m->n - (t + 1)) * sizeof *t);
    m->n--;
}

void made_free(MadeModel *m)
{
    free(m->tensors);
    *m = (MadeModel){0};
}

/* --- values --- */

static uint64_t mix(uint64_t z) /* splitmix64's finalizer */
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t key_of(const MadeModel *m, const MadeTensor *t)
{
    uint64_t h = mix(m->spec.seed + 0x9e3779b97f4a7c15u);
    for (const char *c = t->name; *c; c++)
        h = mix(h ^ (unsigned char)*c);
    return h;
}

/* About normal: the sum of four uniform variables, of variance 4/12. */
static float normal_of(uint64_t r, float mean, float std)
{
    float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) +
                (float)(r >> 48);
    return mean + std * 1.7320508f * (sum / 65536 - 2);
}

/* Nearest even; values here are neither subnormal nor near the largest in half precision. */
static uint16_t half_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude < 0x38800000) /* below 2^-14: whole multiples of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(v) * 16777216));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

/* The value at byte offset at, in t's dtype; integer dtypes, which only broken checkpoints have,
 * get zeros. */
static void put_value(const MadeTensor *t, uint64_t key, int64_t at, uint8_t *out)
{
    int size = dtype_bytes(t->dtype);
    float v = normal_of(mix(key + (uint64_t)(at / size) * 0x9e3779b97f4a7c15u), t->mean, t->std);
    uint16_t bits = t->dtype == DTYPE_F16 ? half_of(v) : float_to_bf16(v);
    memset(out, 0, (size_t)size);
    if (t->dtype == DTYPE_F32)
        memcpy(out, &v, sizeof v);
    else if (t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16)
        memcpy(out, &bits, sizeof bits);
    int64_t whole = llrintf(v);
    if (t->dtype == DTYPE_I64)
        memcpy(out, &whole, sizeof whole);
}

void made_fill(const MadeModel *m, const MadeTensor *t, int64_t first, int64_t n, uint8_t *out)
{
    uint64_t key = key_of(m, t);
    int size = dtype_bytes(t->dtype);
    if (t->kind == MADE_NORMAL) {
        for (int64_t i = 0; i + size <= n; i += size)
            put_value(t, key, first + i, out + i);
        return;
    }
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t r = mix(key + (uint64_t)((first + i) / 8) * 0x9e3779b97f4a7c15u);
        uint8_t bytes[8];
        memcpy(bytes, &r, 8);
        for (int b = 0; b < 8 && t->kind == MADE_SCALES; b++)
            bytes[b] = (uint8_t)(t->middle - 1 + bytes[b] % 3);
        memcpy(out + i, bytes, (size_t)(n - i < 8 ? n - i : 8));
    }
}

/* --- files --- */

static Status write_text(const char *dir, const char *name, const StrBuf *b, Err *e)
{
    char path[FILE_PATH_MAX];
    TRY(file_join(path, dir, name, e));
    FILE *f = b->failed ? NULL : fopen(path, "wb");
    if (!f)
        return err_errno(e, "%s", path);
    size_t got = fwrite(b->data, 1, b->len, f);
    if (fclose(f) != 0 || got != b->len)
        return err_errno(e, "%s", path);
    return ST_OK;
}

static void add_header(const MadeModel *m, int part, StrBuf *b)
{
    int64_t at = 0;
    strbuf_str(b, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (int i = 0; i < m->n; i++) {
        const MadeTensor *t = &m->tensors[i];
        if (t->part != part)
            continue;
        strbuf_fmt(b, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [", t->name, dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++)
            strbuf_fmt(b, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
        strbuf_fmt(b, "], \"data_offsets\": [%lld, %lld]}", (long long)at,
                   (long long)(at + t->bytes));
        at += t->bytes;
    }
    strbuf_str(b, "}");
    while (b->len % 8 != 0)
        strbuf_str(b, " ");
}

/* As long as with data, but without any. */
static Status write_hole(const MadeModel *m, int part, FILE *f, const char *path, Err *e)
{
    int64_t bytes = 0;
    for (int i = 0; i < m->n; i++)
        bytes += m->tensors[i].part == part ? m->tensors[i].bytes : 0;
    long at = fflush(f) == 0 ? ftell(f) : -1;
    if (at < 0 || ftruncate(fileno(f), at + bytes) != 0)
        return err_errno(e, "%s", path);
    return ST_OK;
}

static Status write_data(const MadeModel *m, int part, FILE *f, const char *path, Err *e)
{
    enum { PIECE = 1 << 20 };
    if (m->hollow)
        return write_hole(m, part, f, path, e);
    uint8_t *piece = malloc(PIECE);
    Status st = piece ? ST_OK : err_set(e, ST_MEMORY, "not enough memory for %d bytes", PIECE);
    for (int i = 0; i < m->n && st == ST_OK; i++) {
        const MadeTensor *t = &m->tensors[i];
        for (int64_t at = 0; t->part == part && at < t->bytes && st == ST_OK; at += PIECE) {
            int64_t n = t->bytes - at < PIECE ? t->bytes - at : PIECE;
            made_fill(m, t, at, n, piece);
            if (fwrite(piece, 1, (size_t)n, f) != (size_t)n)
                st = err_errno(e, "%s", path);
        }
    }
    free(piece);
    return st;
}

static Status write_part(const MadeModel *m, int part, const char *dir, const char *name, Err *e)
{
    char path[FILE_PATH_MAX];
    StrBuf header = {0};
    uint8_t length[8];
    Status st = ST_OK;
    TRY(file_join(path, dir, name, e));
    add_header(m, part, &header);
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header.len >> 8 * i);
    FILE *f = header.failed ? NULL : fopen(path, "wb");
    if (!f)
        st = err_errno(e, "%s", path);
    else if (fwrite(length, 1, 8, f) != 8 || fwrite(header.data, 1, header.len, f) != header.len)
        st = err_errno(e, "%s", path);
    if (st == ST_OK)
        st = write_data(m, part, f, path, e);
    if (f && fclose(f) != 0 && st == ST_OK)
        st = err_errno(e, "%s", path);
    strbuf_free(&header);
    return st;
}

static void part_name(char *out, size_t room, int part, int n_parts)
{
    snprintf(out, room, "model-%05d-of-%05d.safetensors", part + 1, n_parts);
}

/* Deals the tensors to parts; returns how many there are. */
static int deal(MadeModel *m, int64_t part_bytes)
{
    int part = 0;
    int64_t filled = 0;
    for (int i = 0; i < m->n; i++) {
        if (part_bytes > 0 && filled > 0 && filled + m->tensors[i].bytes > part_bytes) {
            part++;
            filled = 0;
        }
        filled += m->tensors[i].bytes;
        m->tensors[i].part = part;
    }
    return part + 1;
}

static Status write_index(const MadeModel *m, int n_parts, const char *dir, Err *e)
{
    StrBuf b = {0};
    char name[64];
    strbuf_str(&b, "{\"metadata\": {}, \"weight_map\": {");
    for (int i = 0; i < m->n; i++) {
        part_name(name, sizeof name, m->tensors[i].part, n_parts);
        strbuf_fmt(&b, "%s\n\"%s\": \"%s\"", i ? "," : "", m->tensors[i].name, name);
    }
    strbuf_str(&b, "\n}}\n");
    Status st = write_text(dir, "model.safetensors.index.json", &b, e);
    strbuf_free(&b);
    return st;
}

Status made_write(MadeModel *m, const char *dir, int64_t part_bytes, Err *e)
{
    StrBuf config = {0};
    char name[64];
    made_config(&m->spec, &config);
    Status st = write_text(dir, "config.json", &config, e);
    strbuf_free(&config);
    int n_parts = deal(m, part_bytes);
    if (part_bytes <= 0)
        return st == ST_OK ? write_part(m, 0, dir, "model.safetensors", e) : st;
    for (int p = 0; p < n_parts && st == ST_OK; p++) {
        part_name(name, sizeof name, p, n_parts);
        st = write_part(m, p, dir, name, e);
    }
    return st == ST_OK ? write_index(m, n_parts, dir, e) : st;
}
