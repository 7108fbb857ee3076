/* model/family_common.c - see family_common.h. */
#include "model/family_common.h"

#include "model/config.h"

#include <string.h>

enum { MAX_EXPERTS = 1 << 14, MAX_TOP_K = 256, MAX_INTER = 1 << 22 };

Status family_parse_experts(const cJSON *config, int min_experts, const char *inter_key, Arch *out,
                            Err *e)
{
    static const char *const n_keys[] = {"num_experts", "num_local_experts", NULL};
    static const char *const k_keys[] = {"num_experts_per_tok", "num_experts_per_token",
                                         "experts_per_token", NULL};
    RouterSpec *r = &out->router;
    TRY(config_need_synonym(config, n_keys, min_experts, MAX_EXPERTS, &r->n_experts, e));
    if (r->n_experts == 0)
        return ST_OK;
    TRY(config_need_synonym(config, k_keys, 1, MAX_TOP_K, &r->top_k, e));
    return config_need_int(config, inter_key, 1, MAX_INTER, &out->moe_inter, e);
}

Status family_parse_layer_types(const cJSON *config, int window, Arch *out, bool *given, Err *e)
{
    const cJSON *list = config_get(config, "layer_types");
    int i = 0;
    *given = list != NULL;
    if (!list)
        return ST_OK;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != out->n_layers)
        return err_set(e, ST_INPUT, "layer_types is not a list of num_hidden_layers = %d names",
                       out->n_layers);
    for (const cJSON *v = list->child; v; v = v->next, i++) {
        const char *name = cJSON_IsString(v) ? v->valuestring : "";
        bool sliding = strcmp(name, "sliding_attention") == 0;
        if (!sliding && strcmp(name, "full_attention") != 0)
            return err_set(e, ST_INPUT, "layer_types: \"%.60s\" of layer %d is not supported", name,
                           i);
        if (sliding && window == 0)
            return err_set(e, ST_INPUT,
                           "layer_types: layer %d slides, but sliding_window is not set", i);
        out->layers[i].window = sliding ? window : 0;
    }
    return ST_OK;
}

Status family_check_quantization(const cJSON *config, const char *method, Err *e)
{
    const cJSON *q = config_get(config, "quantization_config");
    const char *got = "";
    if (!q)
        return ST_OK;
    if (!cJSON_IsObject(q))
        return err_set(e, ST_INPUT, "quantization_config is not an object");
    if (!q->child)
        return ST_OK;
    if (config_string(q, "quant_method", &got, e) != ST_OK)
        return err_in(e, "quantization_config");
    if (!method || strcmp(got, method) != 0)
        return err_set(e, ST_INPUT,
                       "quantization_config: quant_method \"%.60s\" is not supported for this "
                       "model_type (%s)",
                       got, method ? method : "only unquantized weights are");
    return ST_OK;
}
