/* model/weights.h - the weights that one rank holds: all dense ones, and its shard of the routed
 * experts. */
#ifndef MB_MODEL_WEIGHTS_H
#define MB_MODEL_WEIGHTS_H

#include "dist/placement.h"
#include "model/arch.h"

typedef struct LayerWeights {
    float *attn_norm, *ffn_norm; /* [hidden] */
    Weight *qkv;                 /* parts q, k, v */
    float *qkv_bias;             /* [(n_heads + 2 n_kv_heads) * head_dim] or NULL */
    float *q_norm, *k_norm;      /* [head_dim], or the full width for QK_NORM_FULL; or NULL */
    Weight *o;
    float *o_bias; /* [hidden] or NULL */
    float *sinks;  /* [n_heads] or NULL */
    /* ATTN_LATENT, instead of qkv: q_a and q_a_norm are NULL without q_lora, q is then over
     * hidden. */
    /* [q_lora], [n_heads * (nope + rope)], [latent_dim + rope_dim] outputs */
    Weight *q_a, *q, *kv_a;
    float *q_a_norm, *kv_a_norm;       /* [q_lora], [latent_dim] */
    Weight *latent_up, *latent_absorb; /* LatentWeights */
    Weight *router;
    float *router_bias;       /* [n_experts] or NULL */
    float *router_correction; /* [n_experts] or NULL */
    /* this rank's experts, in local order; w13 NULL when it owns none, or in a dense layer */
    FfnSpec experts;
    FfnSpec dense;       /* of a dense layer; w13 NULL otherwise */
    FfnSpec shared;      /* shared experts of a MoE layer as one FFN; w13 NULL: none */
    Weight *shared_gate; /* [1, hidden] or NULL */
} LayerWeights;

typedef struct Weights {
    const BackendOps *ops;
    Backend *backend;
    int n_layers;
    Weight *embed;     /* WEIGHT_LOOKUP */
    Weight *head;      /* also when tied: the two uses have different layouts */
    float *final_norm; /* [hidden] */
    LayerWeights *layers;
    /* What loading cost, for metrics. */
    int64_t bytes_read, dense_bytes, expert_bytes;
} Weights;

/* Reads DIR/model.safetensors or the parts of DIR/model.safetensors.index.json. Checks that
 * every expected tensor is there with the right dtype and shape and that every tensor in the
 * files is used or skipped for a stated reason (all headers, on every rank); reads only the
 * experts that placement gives to rank. Not collective. */
Status weights_load(const char *dir, const Arch *arch, const Placement *placement, int rank,
                    const BackendOps *ops, Backend *backend, Weights *out, Err *e);
void weights_free(Weights *w);

/* Digest of a checkpoint as contract.md section 4 says: config and tokenizer files, every
 * safetensors header, file sizes, and a fixed sample of the bytes of every tensor. hex: 65
 * bytes. */
Status weights_digest(const char *dir, char *hex, Err *e);
/* Of tokenizer.json or the file of ranks, tokenizer_config.json and generation_config.json where
 * present. */
Status tokenizer_digest(const char *dir, char *hex, Err *e);

#endif
