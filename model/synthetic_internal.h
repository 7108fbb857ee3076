/* model/synthetic_internal.h - what synthetic.c (values) and synthetic_shapes.c (shapes) share. */
#ifndef MB_MODEL_SYNTHETIC_INTERNAL_H
#define MB_MODEL_SYNTHETIC_INTERNAL_H

#include "model/synthetic.h"

typedef enum SyntheticKind {
    SYNTHETIC_BF16, /* about normal, of a mean and a standard deviation */
    SYNTHETIC_F32,
    SYNTHETIC_E4M3,
    SYNTHETIC_CODES, /* any byte */
    SYNTHETIC_POWERS /* E8M0: the mean, give or take one */
} SyntheticKind;

typedef struct SyntheticTensor {
    const char *name;
    SyntheticKind kind;
    int n_dims, pool;
    int64_t shape[4], bytes;
} SyntheticTensor;

typedef struct SyntheticPool {
    SyntheticKind kind;
    float mean, std;
    size_t most, period, len; /* bytes of the largest tensor; of the values; of addresses */
    uint8_t *base;
} SyntheticPool;

enum { SYNTHETIC_MAX_POOLS = 48 };

struct Synthetic {
    const char *shape; /* static storage */
    StrBuf config;
    SyntheticTensor *tensors; /* [n] */
    int n, cap;
    int64_t bytes;
    SyntheticPool pools[SYNTHETIC_MAX_POOLS];
    int n_pools;
    Arena arena; /* names */
    bool failed; /* memory ran out, or the pools did */
};

/* The configuration and the list of tensors of a shape. */
Status synthetic_list(Synthetic *s, const char *shape, int n_layers, Err *e);
/* shape: n_dims of them, at most 4. Failures show in s->failed. */
void synthetic_add(Synthetic *s, SyntheticKind kind, float mean, float std, int n_dims,
                   const int64_t *shape, const char *name);

#endif
