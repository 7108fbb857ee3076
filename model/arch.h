/* model/arch.h - what a checkpoint's config.json says, in the terms of the forward pass.
 *
 * A family fills in this description (family.h); forward.c reads nothing else. So a family is
 * data, and adding one changes no other. */
#ifndef MB_MODEL_ARCH_H
#define MB_MODEL_ARCH_H

#include "io/err.h"
#include "io/strbuf.h"
#include "kernels/backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Family Family;

typedef enum QkNorm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_FULL } QkNorm;

typedef enum AttnKind {
    ATTN_HEADS, /* grouped-query attention, multi-head included */
    ATTN_LATENT /* MLA: the cache holds latents */
} AttnKind;

typedef struct LayerArch {
    bool moe;   /* false: a dense FFN of width dense_inter */
    int window; /* sliding window of attention; 0: full */
} LayerArch;

typedef struct Rope {
    RopeLayout layout;
    int rotary_dim;          /* first lanes of a head */
    double attention_factor; /* multiplies cosines and sines */
    /* yarn's g(factor, mscale_all_dim), whose square multiplies the scores of MLA; else 1 */
    double latent_gain;
    float *inv_freq; /* [rotary_dim/2] */
} Rope;

enum { MAX_EOS = 16 };

typedef struct Arch {
    const Family *family;
    char model_type[64];
    int n_layers, hidden, vocab;
    int n_heads, n_kv_heads, head_dim;
    int max_positions;
    float eps;
    NormKind norm;
    QkNorm qk_norm;
    bool qkv_bias, o_bias, sinks;
    bool tied; /* lm_head is the embedding */
    AttnKind attn;
    LatentSpec latent;     /* ATTN_LATENT; its scale is attn_scale */
    int q_lora;            /* width of q_a_proj; 0: q is one matrix */
    float latent_norm_eps; /* of q_a_layernorm and kv_a_layernorm */
    float clip_qkv;        /* q, k and v are clamped to it after their norms; 0: not */
    float attn_scale, embed_scale, residual_scale;
    float logits_scale; /* logits are multiplied by it */
    Rope rope;
    RouterSpec router;      /* n_experts 0: a dense model */
    bool router_bias;       /* added to the logits */
    bool router_correction; /* added for the choice only */
    bool expert_bias;
    ActSpec act;
    int moe_inter, dense_inter; /* widths; 0 where there is no such layer */
    int shared_inter;           /* width of the shared experts together; 0: none */
    bool shared_gate;           /* their output is multiplied by sigmoid(a linear map of x) */
    LayerArch *layers;          /* [n_layers] */
    int eos[MAX_EOS], n_eos;    /* config.json and generation_config.json together */
    int bos;                    /* -1: none */
} Arch;

/* Sampling defaults of generation_config.json; a has_ field says whether the file has the key. */
typedef struct GenerationDefaults {
    bool present; /* the file exists */
    bool has_do_sample, do_sample;
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty,
        has_max_new_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    int top_k, max_new_tokens;
} GenerationDefaults;

/* Reads DIR/config.json and DIR/generation_config.json. Unknown keys are refused by name as
 * contract.md section 6 says, unless they are among accept[0..n_accept). */
Status arch_load(const char *dir, const char *const *accept, int n_accept, Arch *out,
                 GenerationDefaults *gen, Err *e);
/* The same from the bytes of the two files; generation NULL: there is none. */
Status arch_parse(const char *config, size_t config_len, const char *generation,
                  size_t generation_len, const char *const *accept, int n_accept, Arch *out,
                  GenerationDefaults *gen, Err *e);
/* The keys of DIR/config.json that are neither understood nor known to be harmless, and are
 * accepted because they are empty: one a line onto *out, those of a wrapped model with
 * "text_config." in front. */
Status arch_unknown_keys(const char *dir, StrBuf *out, Err *e);
void arch_free(Arch *a); /* all zero is fine, and so is twice */

/* cos and sin for positions 0 .. n_positions-1: table [n_positions, rotary_dim] as RopeSpec
 * wants it. */
void rope_fill_table(const Rope *rope, int n_positions, float *table);

#endif
