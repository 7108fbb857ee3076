/* model/family_common.h - what several families read alike. */
#ifndef MB_MODEL_FAMILY_COMMON_H
#define MB_MODEL_FAMILY_COMMON_H

#include "model/family.h"

/* The routed experts: their number under any of its names, how many a token takes, and their width
 * under inter_key. Fills in router.n_experts, router.top_k and moe_inter. min_experts 0 admits a
 * dense model, whose other two stay 0. */
Status family_parse_experts(const cJSON *config, int min_experts, const char *inter_key, Arch *out,
                            Err *e);

/* layer_types: "full_attention" and, where window > 0, "sliding_attention" for each layer. Absent:
 * *given is false and out->layers is unchanged. */
Status family_parse_layer_types(const cJSON *config, int window, Arch *out, bool *given, Err *e);

/* Refuses quantization_config but for the given method (NULL: any). */
Status family_check_quantization(const cJSON *config, const char *method, Err *e);

extern const Family family_qwen3_moe, family_mixtral, family_gpt_oss;

#endif
