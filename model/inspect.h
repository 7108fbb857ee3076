/* model/inspect.h - what a checkpoint is and what running it would take, from its config.json and
 * the headers of its files alone. */
#ifndef MB_MODEL_INSPECT_H
#define MB_MODEL_INSPECT_H

#include "io/safetensors.h"
#include "model/arch.h"
#include "model/quant_map.h"

/* Tensors of one kind: of a dtype, or skipped for one reason. */
typedef struct TensorGroup {
    const char *name; /* of the dtype, or the reason; static */
    int n;
    int64_t bytes;
} TensorGroup;

enum { MAX_TENSOR_GROUPS = 16 };

typedef struct TensorGroups {
    TensorGroup at[MAX_TENSOR_GROUPS]; /* in the order of the files */
    int n;
} TensorGroups;

/* Tensors that are used: all but routed experts, or those. */
typedef struct WeightCount {
    int64_t params, bytes;
    TensorGroups dtypes;
} WeightCount;

/* What one rank holds once it has loaded, each weight in the format of the files; what a backend
 * adds (padding, vectors in float32) is not counted. */
typedef struct RankShare {
    int n_experts; /* routed experts of each sparse layer */
    int64_t dense_bytes, expert_bytes;
} RankShare;

typedef struct Inspection {
    Arch arch;
    int n_sparse; /* layers with routed experts */
    int n_parts, n_tensors;
    WeightCount dense, experts;
    int64_t active_params; /* those that one token meets: the whole embedding, a tied head once */
    TensorGroups skipped;
    QuantMap quant;
    int64_t kv_values;        /* per token, all layers */
    int64_t window_kv_values; /* those of them that a layer's window lets go of */
    int n_ranks;
    RankShare *ranks;   /* [n_ranks] */
    char *unknown_keys; /* of config.json, accepted because they are empty: one a line, or NULL */
} Inspection;

/* n_ranks >= 1. Not collective; reads no tensor data. Refuses what loading would refuse, but for
 * what only the data shows. */
Status inspect_open(const char *dir, const char *const *accept, int n_accept, int n_ranks,
                    Inspection *out, Err *e);
void inspect_close(Inspection *s); /* all zero is fine, and so is twice */

#endif
