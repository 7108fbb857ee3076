/* model/family_common.h - what several families read alike, in pieces that a family's parse puts
 * together. Each reads its own keys of config.json, which the family's table must list. */
#ifndef MB_MODEL_FAMILY_COMMON_H
#define MB_MODEL_FAMILY_COMMON_H

#include "model/family.h"

/* --- feed-forward layers --- */

/* The routed experts: their number under any of its names, how many a token takes, and their width
 * under inter_key. Fills in router.n_experts, router.top_k and moe_inter. min_experts 0 admits a
 * dense model, whose other two stay 0. */
Status family_parse_experts(const cJSON *config, int min_experts, const char *inter_key, Arch *out,
                            Err *e);
/* A model without experts: every layer is a dense FFN of width intermediate_size. */
Status family_parse_dense(const cJSON *config, Arch *out, Err *e);
/* Qwen's choice of dense layers: those that decoder_sparse_step skips or mlp_only_layers lists. A
 * model that is left without sparse layers becomes a dense one. */
Status family_parse_sparsity(const cJSON *config, Arch *out, Err *e);
/* DeepSeek's: the first first_k_dense_replace layers (n_first where the key is absent), and those
 * whose index is no multiple of moe_layer_freq. */
Status family_parse_first_dense(const cJSON *config, int n_first, Arch *out, Err *e);
/* n_shared_experts (n_shared where the key is absent; null: none) as one FFN. After the experts. */
Status family_parse_shared(const cJSON *config, int n_shared, Arch *out, Err *e);

/* --- routers --- */

/* n_group and topk_group, by default 1 and 1; refuses groups that cannot hold the choice. */
Status family_parse_groups(const cJSON *config, int n_group, int topk_group, Arch *out, Err *e);
/* DeepSeek-V3's router (models.md R4): sigmoid with a correction bias and groups, norm_topk_prob
 * (true), routed_scaling_factor (scale). Another scoring_func or topk_method is refused. */
typedef struct CorrectedRouter {
    int n_group, topk_group;
    double scale;
} CorrectedRouter;
Status family_parse_corrected(const cJSON *config, const CorrectedRouter *defaults, Arch *out,
                              Err *e);

/* --- attention --- */

/* layer_types: "full_attention" and, where window > 0, "sliding_attention" for each layer. Absent:
 * *given is false and out->layers is unchanged. */
Status family_parse_layer_types(const cJSON *config, int window, Arch *out, bool *given, Err *e);
/* Qwen's windows: none unless use_sliding_window; then of the layers that layer_types names, or of
 * those from max_window_layers (28) on, of sliding_window (4096) positions. */
Status family_parse_upper_windows(const cJSON *config, Arch *out, Err *e);
/* sliding_window of every layer; window: where the key is absent, while null is none. */
Status family_parse_window(const cJSON *config, int window, Arch *out, Err *e);
/* Multi-head latent attention (models.md 6.7): its sizes, the rope of its last lanes in out's rope
 * layout, and yarn's gain on the scale of the scores. q_lora_rank null: q is one matrix. */
Status family_parse_latent(const cJSON *config, Arch *out, Err *e);

extern const Family family_deepseek_v2, family_deepseek_v3, family_glm4_moe, family_gpt_oss,
    family_granitemoe, family_kimi_k2, family_kimi_k25, family_llama, family_minimax_m2,
    family_mistral, family_mixtral, family_olmoe, family_qwen2_moe, family_qwen3, family_qwen3_moe;

#endif
