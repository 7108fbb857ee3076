/* model/synthetic.c - see synthetic.h: the pools of values, and the list of tensors as a set. */
#include "model/synthetic_internal.h"

#include "quant/element.h"
#include "quant/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PERIOD = 16 << 20, START_ALIGN = 64 };

/* --- values --- */

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* About normal: the sum of four uniform variables, of variance 4/12. */
static float next_normal(uint64_t *state, float mean, float std)
{
    uint64_t r = next_random(state);
    float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) +
                (float)(r >> 48);
    return mean + std * 1.7320508f * (sum / 65536 - 2);
}

static void fill_pool(const SyntheticPool *p, uint8_t *out)
{
    uint64_t state = (uint64_t)p->kind << 32 ^ (uint64_t)(fabsf(p->std) * 1e9f);
    for (size_t i = 0; i < p->period; i += 8) {
        float v[8];
        uint16_t halves[4];
        uint64_t r;
        switch (p->kind) {
        case SYNTHETIC_BF16:
            for (int k = 0; k < 4; k++)
                halves[k] = float_to_bf16(next_normal(&state, p->mean, p->std));
            memcpy(out + i, halves, 8);
            break;
        case SYNTHETIC_F32:
            for (int k = 0; k < 2; k++)
                v[k] = next_normal(&state, p->mean, p->std);
            memcpy(out + i, v, 8);
            break;
        case SYNTHETIC_E4M3:
            for (int k = 0; k < 8; k++)
                out[i + (size_t)k] = float_to_e4m3(next_normal(&state, p->mean, p->std));
            break;
        case SYNTHETIC_CODES:
            r = next_random(&state);
            memcpy(out + i, &r, 8);
            break;
        case SYNTHETIC_POWERS:
            r = next_random(&state);
            for (int k = 0; k < 8; k++)
                out[i + (size_t)k] = (uint8_t)(p->mean - 1 + (float)(r >> 8 * k & 0xff) / 86);
            break;
        }
    }
}

/* The same pages again and again, len bytes of addresses. */
static Status map_pool(SyntheticPool *p, Err *e)
{
    int fd = memfd_create("moebatch synthetic values", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)p->period) != 0)
        goto fail;
    void *once = mmap(NULL, p->period, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (once == MAP_FAILED)
        goto fail;
    fill_pool(p, once);
    munmap(once, p->period);
    p->len = (p->most + p->period - 1) / p->period * p->period + p->period;
    void *all = mmap(NULL, p->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        goto fail;
    p->base = all;
    for (size_t at = 0; at < p->len; at += p->period)
        if (mmap(p->base + at, p->period, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            goto fail;
    close(fd);
    return ST_OK;
fail:
    (void)err_errno(e, "memory for random values");
    if (fd >= 0)
        close(fd);
    return e->code;
}

/* --- the list --- */

static TensorDtype dtype_of(SyntheticKind kind)
{
    static const TensorDtype dtypes[] = {[SYNTHETIC_BF16] = DTYPE_BF16,
                                         [SYNTHETIC_F32] = DTYPE_F32,
                                         [SYNTHETIC_E4M3] = DTYPE_F8_E4M3,
                                         [SYNTHETIC_CODES] = DTYPE_U8,
                                         [SYNTHETIC_POWERS] = DTYPE_U8};
    return dtypes[kind];
}

static int pool_of(Synthetic *s, SyntheticKind kind, float mean, float std)
{
    for (int i = 0; i < s->n_pools; i++)
        if (s->pools[i].kind == kind && s->pools[i].mean == mean && s->pools[i].std == std)
            return i;
    if (s->n_pools == SYNTHETIC_MAX_POOLS)
        return -1;
    s->pools[s->n_pools] = (SyntheticPool){.kind = kind, .mean = mean, .std = std};
    return s->n_pools++;
}

void synthetic_add(Synthetic *s, SyntheticKind kind, float mean, float std, int n_dims,
                   const int64_t *shape, const char *name)
{
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 256;
        SyntheticTensor *more = realloc(s->tensors, (size_t)cap * sizeof *more);
        if (!more) {
            s->failed = true;
            return;
        }
        s->tensors = more;
        s->cap = cap;
    }
    SyntheticTensor *t = &s->tensors[s->n];
    *t = (SyntheticTensor){.kind = kind, .n_dims = n_dims, .pool = pool_of(s, kind, mean, std)};
    t->bytes = dtype_bytes(dtype_of(kind));
    for (int i = 0; i < n_dims; i++)
        t->bytes *= t->shape[i] = shape[i];
    t->name = arena_copy(&s->arena, name, strlen(name));
    s->failed |= t->pool < 0 || !t->name;
    if (s->failed)
        return;
    s->n++;
    SyntheticPool *p = &s->pools[t->pool];
    p->most = (size_t)t->bytes > p->most ? (size_t)t->bytes : p->most;
    s->bytes += t->bytes;
}

Status synthetic_create(Synthetic **out, const char *shape, int n_layers, Err *e)
{
    Status st = ST_OK;
    Synthetic *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_set(e, ST_MEMORY, "not enough memory for a synthetic model");
    TRY_GOTO(synthetic_list(s, shape, n_layers, e));
    if (s->failed || s->config.failed) {
        st = err_set(e, ST_MEMORY, "not enough memory for the tensors of %s", shape);
        goto fail;
    }
    long page = sysconf(_SC_PAGESIZE);
    for (int i = 0; i < s->n_pools; i++) {
        SyntheticPool *p = &s->pools[i];
        size_t whole = (p->most + (size_t)page - 1) / (size_t)page * (size_t)page;
        p->period = whole < PERIOD ? whole : PERIOD;
        TRY_GOTO(map_pool(p, e));
    }
    *out = s;
    return ST_OK;
fail:
    synthetic_free(s);
    return st;
}

void synthetic_free(Synthetic *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_pools; i++)
        if (s->pools[i].base)
            munmap(s->pools[i].base, s->pools[i].len);
    free(s->tensors);
    arena_free(&s->arena);
    strbuf_free(&s->config);
    free(s);
}

const char *synthetic_name(const Synthetic *s)
{
    return s->shape;
}

const char *synthetic_config(const Synthetic *s, size_t *len)
{
    *len = s->config.len;
    return s->config.data;
}

int64_t synthetic_bytes(const Synthetic *s)
{
    return s->bytes;
}

Status synthetic_tensors(const Synthetic *s, TensorSet *out, Err *e)
{
    SafeTensors list = {.n = s->n};
    *out = (TensorSet){0};
    list.entries = arena_alloc(&list.arena, (size_t)s->n * sizeof *list.entries);
    if (!list.entries) {
        arena_free(&list.arena);
        return err_set(e, ST_MEMORY, "not enough memory for %d tensors", s->n);
    }
    uint64_t state = 1;
    for (int i = 0; i < s->n; i++) {
        const SyntheticTensor *t = &s->tensors[i];
        const SyntheticPool *p = &s->pools[t->pool];
        size_t start = next_random(&state) % p->period / START_ALIGN * START_ALIGN;
        TensorEntry *entry = &list.entries[i];
        *entry = (TensorEntry){.name = t->name,
                               .dtype = dtype_of(t->kind),
                               .n_dims = t->n_dims,
                               .data = p->base + start,
                               .bytes = t->bytes};
        memcpy(entry->shape, t->shape, sizeof t->shape);
    }
    return tensor_set_of(s->shape, &list, out, e);
}
