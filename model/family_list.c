/* model/family_list.c - the table of families; a new one is a file and a line here. */
#include "model/family_common.h"

#include <string.h>

static const Family *const families[] = {
    &family_qwen3_moe,   &family_mixtral,   &family_gpt_oss,  &family_deepseek_v3,
    &family_deepseek_v2, &family_kimi_k2,   &family_kimi_k25, &family_glm4_moe,
    &family_minimax_m2,  &family_qwen2_moe, &family_olmoe,    &family_granitemoe,
    &family_llama,       &family_qwen3,     &family_mistral,  NULL};

const Family *const *family_list(void)
{
    return families;
}

const Family *family_find(const char *model_type)
{
    for (const Family *const *f = families; *f; f++)
        if (strcmp((*f)->model_type, model_type) == 0)
            return *f;
    return NULL;
}
