/* jobs/roofline.h - what the steps of a run must at least cost: floating point operations and bytes by
 * operation, and the time that they take at the limits that were measured.
 *
 * The floor of an operation in one layer and step is the larger of its bytes at the speed of memory
 * and its operations at the speed of products; roofline efficiency is the sum of floors over the time
 * that was measured. Bytes are weights that any token meets (of the experts: distinct ones), cached
 * keys and values, and rows in and out; norms, rope, residuals and sampling count nothing. */
#ifndef MB_JOBS_ROOFLINE_H
#define MB_JOBS_ROOFLINE_H

#include "model/model.h"

typedef enum RoofOp {
    ROOF_PROJECTIONS, /* q, k, v, o, those of latent attention included */
    ROOF_ATTENTION,
    ROOF_ROUTER,
    ROOF_EXPERTS, /* routed: three matrices as one operation */
    ROOF_DENSE,   /* dense layers and shared experts */
    ROOF_HEAD,
    N_ROOF_OPS
} RoofOp;

extern const char *const roof_op_names[N_ROOF_OPS];

/* The rows of one rank's step. A pair is a query and a key that it sees. */
typedef struct StepShape {
    int n_rows, n_wanted;
    /* of layers of a window (RoofModel.windows): pairs of prompt rows and of generated ones, and
     * positions whose keys and values are read, each once for a sequence */
    double pairs[MAX_KV_GROUPS][2], kv_rows[MAX_KV_GROUPS][2];
    double last_pairs[2]; /* of the last layer, which only rows that need logits go through */
} StepShape;

typedef struct RoofMatrix { /* what every row meets, */
    RoofOp op;
    double inputs, outputs, bytes;
    bool fp8;    /* rows and weights of 8 bits: counted at the speed of FP8 products */
    bool wanted; /* or only rows that need logits */
} RoofMatrix;

enum { ROOF_MAX_MATRICES = 16 };

typedef struct RoofLayer {
    RoofMatrix matrix[ROOF_MAX_MATRICES];
    int n_matrices;
    int window; /* among RoofModel.windows; -1: no attention (the head) */
    /* floating point operations of a pair, and of a cached position that is read (keys and values of
     * latents are made from it), for prompt rows and for generated ones; bytes of what is read beside
     * the cache */
    double pair_flops[2], kv_row_flops[2], attention_bytes;
    bool moe, last; /* last: rows that need no logits stop at its keys and values */
    /* chosen[e]: the share of tokens that chose this rank's expert e */
    const double *chosen;
} RoofLayer;

typedef struct RoofModel {
    RoofLayer *layers; /* [n_layers], the last one is the head */
    int n_layers;
    int windows[MAX_KV_GROUPS], n_windows;
    int n_ranks, n_local, top_k;
    double pair_share;   /* of all ranks' choices, those of this rank's experts */
    double act_bytes;    /* of a value of a row */
    double kv_row_bytes; /* of a position in a layer */
    double hidden, attention_width;
    /* of a choice: operations, values written and read between the matrices; of an expert: bytes */
    double expert_flops, expert_inner, expert_bytes;
    bool expert_fp8;
    double *chosen; /* [layers, n_local] */
} RoofModel;

typedef struct RoofCount {
    double flops, weight_bytes, kv_bytes, row_bytes, floor_s;
} RoofCount;

typedef struct Roofline {
    RoofCount op[N_ROOF_OPS];
} Roofline;

/* From a loaded model. load: model_expert_load's of all ranks together, tokens: rows that met a
 * router, likewise; NULL, 0: as if all experts were chosen alike. */
Status roof_model_create(RoofModel *out, const Model *m, const int64_t *load, int64_t tokens,
                         Err *e);
void roof_model_free(RoofModel *r); /* all zero is fine */

StepShape roof_step(const RoofModel *m, const Step *step);
/* Adds a step. limits.flops 0: only bytes count. */
void roof_add(Roofline *sum, const RoofModel *m, const StepShape *s, const BackendCeilings *limits);
RoofCount roof_total(const Roofline *r);

#endif
