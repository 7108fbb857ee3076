/* tests/support/made_model.h - random checkpoints of any shape, written as Hugging Face
 * directories.
 *
 * Every byte is a function of (seed, tensor, offset) alone, so the same spec gives the same files
 * anywhere. Values are scaled as in a trained network: activations and logits stay of order one. */
#ifndef MB_TESTS_MADE_MODEL_H
#define MB_TESTS_MADE_MODEL_H

#include "io/err.h"
#include "io/safetensors.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct MadeSpec {
    const char *family; /* one of made_family.c */
    int hidden, inter, experts, top_k, layers, vocab, heads, kv_heads, head_dim;
    TensorDtype dtype; /* DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    bool mxfp4;        /* experts of gpt_oss, in the published layout */
    bool stacked;      /* experts of the others as [E, 2 inter, hidden] */
    bool tied;         /* no lm_head.weight */
    bool no_prefix;    /* names without "model." */
    int dense_layer;   /* a layer that is dense, of width 2 * inter; -1: none. Where the first ones
                          are dense, it is the last of them. */
    uint64_t seed;
    int q_lora, kv_lora, nope, rope, v_dim; /* latent attention; q_lora 0: one matrix */
    int n_shared;                           /* shared experts, of inter each */
    int n_group, topk_group;                /* of experts; 0: no groups */
    int dense_inter;                        /* width of dense layers; 0: 2 * inter */
} MadeSpec;

typedef enum MadeKind { MADE_NORMAL, MADE_CODES, MADE_SCALES } MadeKind;

typedef struct MadeTensor {
    char name[120];
    TensorDtype dtype;
    int n_dims;
    int64_t shape[4];
    MadeKind kind;
    float mean, std; /* MADE_NORMAL */
    uint8_t middle;  /* MADE_SCALES: the scale byte, give or take one */
    int64_t bytes;   /* shape product times dtype; a test may make it lie */
    int part;        /* filled in by made_write */
} MadeTensor;

typedef struct MadeModel {
    MadeSpec spec;
    MadeTensor *tensors; /* [n]; tests edit them before writing */
    int n, cap;
    bool hollow; /* files get their headers and sizes, and holes in place of data */
} MadeModel;

Status made_create(const MadeSpec *spec, MadeModel *out, Err *e);
void made_free(MadeModel *m);

/* NULL: not there. */
MadeTensor *made_find(MadeModel *m, const char *name);
/* Appends a tensor of mean 0; returns it, or NULL when memory is short. */
MadeTensor *made_add(MadeModel *m, const char *name, TensorDtype dtype, int n_dims,
                     const int64_t *shape, float std);
void made_remove(MadeModel *m, const char *name);

/* Bytes first .. first+n-1 of t's data. first must be a multiple of 8. */
void made_fill(const MadeModel *m, const MadeTensor *t, int64_t first, int64_t n, uint8_t *out);

/* Writes config.json and model.safetensors into dir, which exists; or, where part_bytes > 0, parts
 * of about that size and the index. */
Status made_write(MadeModel *m, const char *dir, int64_t part_bytes, Err *e);

#endif
