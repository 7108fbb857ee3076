/* model/bind.h - tensors of the files found by the names that the architecture expects; what
 * checkpoint.c and its parts share.
 *
 * Publishers and libraries name the same tensor differently (a prefix, block_sparse_moe or mlp, w1
 * or gate_proj), so both what is expected and what is found is brought to one canonical form before
 * they meet. */
#ifndef MB_MODEL_BIND_H
#define MB_MODEL_BIND_H

#include "model/checkpoint.h"

enum { BIND_NAME_MAX = 512 };

/* Which dtypes a tensor may have. */
typedef enum DtypeSet {
    WEIGHTS, /* what every unquantized weight may be */
    CODES,   /* packed 4-bit codes, or a block codec's payload */
    CODES8,  /* E4M3 */
    CODES32, /* eight 4-bit codes in each element */
    POWERS,  /* E8M0 bytes, which publishers declare as any of the byte types */
    POWERS_OR_FLOATS,
    FLOATS, /* scales with a fraction */
    FLOATS_OR_POWERS,
    E4M3_SCALES,
    SHAPES
} DtypeSet;

typedef struct Shape {
    int n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
} Shape;

#define SHAPE1(a) ((Shape){1, {a}})
#define SHAPE2(a, b) ((Shape){2, {a, b}})
#define SHAPE3(a, b, c) ((Shape){3, {a, b, c}})
#define SHAPE4(a, b, c, d) ((Shape){4, {a, b, c, d}})

typedef struct Binder {
    const Arch *arch;
    Checkpoint *c;
    NameTable canonical; /* of c->files.entries, in the same order */
    Arena arena;
    bool in_experts;            /* what is bound now belongs to routed experts */
    char prefix[BIND_NAME_MAX]; /* in front of "embed_tokens.weight" in these files */
    Err *e;
} Binder;

Status bind_index_names(Binder *b);
/* The number of the tensor of that full name, or -1. */
int bind_find(const Binder *b, const char *name);
/* prefix, then the family's name of the layer, then name: out[BIND_NAME_MAX]. */
void bind_layer_name(const Binder *b, int layer, const char *name, char *out);
/* "%d" of a family's pattern replaced by n. */
void bind_fill_pattern(char *out, size_t room, const char *pattern, int n);

/* The tensor of that full name, which must have one of the dtypes and the shape; it counts as
 * params weights (those of a scale: 0). */
Status bind_name(Binder *b, const char *name, DtypeSet set, Shape shape, int64_t params,
                 const TensorEntry **out);
/* The same for a tensor that is there, or not: *out NULL. Any shape; the caller looks at it. */
Status bind_optional(Binder *b, const char *name, DtypeSet set, const TensorEntry **out);
/* An unquantized tensor of a layer. */
Status bind_plain(Binder *b, int layer, const char *name, Shape shape, const TensorEntry **out);
Status bind_wrong_shape(const Binder *b, const TensorEntry *t, const char *expected);

bool bind_is_plain(const TensorEntry *t); /* of a dtype that unquantized weights have */

/* What a linear layer that may be stored in full is doing in a quantized model. */
typedef enum LinearKind {
    LINEAR_ANY,     /* as the recipe says */
    LINEAR_OR_PLAIN /* routers, gates and heads: recipes speak of all layers and mean all but these */
} LinearKind;

/* module as the files spell it, by its weights, which are returned: out[BIND_NAME_MAX]; NULL and
 * as it was: they are not there. */
const TensorEntry *bind_spelled(const Binder *b, const char *module, char *out);
/* The tensors of a module, spelled as in the files, that are stored by scheme (NULL: in full). */
Status bind_scheme(Binder *b, const char *module, const QuantScheme *scheme, int64_t rows,
                   int64_t cols, LinearTensors *out);
/* The tensors of the module of that full name ("model.layers.0.self_attn.q_proj"). */
Status bind_linear_name(Binder *b, const char *module, LinearKind kind, int64_t rows, int64_t cols,
                        LinearTensors *out);
Status bind_linear(Binder *b, int layer, const char *module, LinearKind kind, int64_t rows,
                   int64_t cols, LinearTensors *out);
Status bind_embedding(Binder *b, const char *module, int64_t rows, int64_t cols,
                      LinearTensors *out);
/* The routed experts of a layer, in any of the ways in which they lie. */
Status bind_experts(Binder *b, int layer, ExpertTensors *t);
/* k_scale and v_scale of a layer, under any of their names. */
Status bind_kv_scales(Binder *b, int layer, LayerTensors *t);

#endif
