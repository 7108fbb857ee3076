/* model/weights.h - the weights that one rank holds: all dense ones, and its shard of the routed
 * experts. */
#ifndef MB_MODEL_WEIGHTS_H
#define MB_MODEL_WEIGHTS_H

#include "dist/placement.h"
#include "model/arch.h"
#include "model/precision.h"
#include "model/synthetic.h"

/* A matrix that every token meets, with what its inputs are rounded to. */
typedef struct Linear {
    Weight *w;
    float *bias; /* [outputs] or NULL */
    int n_parts, cols;
    RowFormat rows[MAX_PARTS]; /* of each part */
    bool coded;                /* w is WEIGHT_CODED, for rows in rows[0] */
} Linear;

typedef struct LayerWeights {
    float *attn_norm, *ffn_norm; /* [hidden] */
    Linear qkv;                  /* parts q, k, v */
    float *q_norm, *k_norm;      /* [head_dim], or the full width for QK_NORM_FULL; or NULL */
    Linear o;
    float *sinks; /* [n_heads] or NULL */
    KvFormat kv;
    /* ATTN_LATENT, instead of qkv: q_a and q_a_norm are empty without q_lora, q is then over
     * hidden. */
    /* [q_lora], [n_heads * (nope + rope)], [latent_dim + rope_dim] outputs */
    Linear q_a, q, kv_a;
    float *q_a_norm, *kv_a_norm;       /* [q_lora], [latent_dim] */
    Weight *latent_up, *latent_absorb; /* LatentWeights */
    RowFormat latent_rounding;         /* of the latent, once, before both uses of kv_b_proj */
    Linear router;
    float *router_correction; /* [n_experts] or NULL */
    /* this rank's experts, in local order; w13 NULL when it owns none, or in a dense layer */
    FfnSpec experts;
    RowFormat expert_rows; /* what rows are rounded to before they are dispatched */
    FfnSpec dense;         /* of a dense layer; w13 NULL otherwise */
    FfnSpec shared;        /* shared experts of a MoE layer as one FFN; w13 NULL: none */
    RowFormat dense_rows[2], shared_rows[2]; /* what gate reads, what up reads */
    Linear shared_gate;                      /* [1, hidden], or empty */
} LayerWeights;

typedef struct Weights {
    const BackendOps *ops;
    Backend *backend;
    int n_layers;
    Weight *embed;     /* WEIGHT_LOOKUP */
    Linear head;       /* also when tied: the two uses have different layouts */
    float *final_norm; /* [hidden] */
    LayerWeights *layers;
    /* What loading cost, for metrics. */
    int64_t bytes_read, dense_bytes, expert_bytes;
    /* Declared static activations without a scale; layers whose quantized cache has none. */
    int n_missing_input_scales, n_missing_kv_scales;
} Weights;

/* All borrowed; needed only while loading, but ops and backend, which the weights live in. */
typedef struct WeightsConfig {
    const char *dir;
    const Synthetic *synthetic; /* in place of dir; NULL: dir */
    const Arch *arch;
    const Precision *precision;
    const Placement *placement;
    int rank;
    const BackendOps *ops;
    Backend *backend;
    Team *team; /* checks values, quantizes with precision->quantize; NULL: the caller alone */
} WeightsConfig;

/* Reads DIR/model.safetensors or the parts of DIR/model.safetensors.index.json. Checks that
 * every expected tensor is there with the right dtype and shape and that every tensor in the
 * files is used or skipped for a stated reason (all headers, on every rank); reads only the
 * experts that placement gives to rank. With precision->quantize, matrices are quantized on their
 * way (online.h). Where experts round by a static scale, input_scale of
 * expert_rows and experts.inner is the largest of this rank's experts (0: it has none), and the
 * caller takes the largest over ranks. Not collective. */
Status weights_load(const WeightsConfig *config, Weights *out, Err *e);
void weights_free(Weights *w);

/* Digest of a checkpoint as contract.md section 4 says: config and tokenizer files, every
 * safetensors header, file sizes, and a fixed sample of the bytes of every tensor. hex: 65
 * bytes. */
Status weights_digest(const char *dir, char *hex, Err *e);
/* Of tokenizer.json or the file of ranks, tokenizer_config.json and generation_config.json where
 * present. */
Status tokenizer_digest(const char *dir, char *hex, Err *e);

#endif
