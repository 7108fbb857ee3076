/* model/arch.c - reads config.json and generation_config.json: what all families share, and what
 * holds the result together. The rest is the family's. */
#include "model/arch.h"

#include "io/file.h"
#include "io/log.h"
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONFIG_BYTES = 64 << 20, /* a few thousand, or quantized_layers with every expert */
    /* Bounds that no real model comes near; within them no product of two sizes overflows int64_t,
     * nor a row of heads int. */
    MAX_LAYERS = 4096,
    MAX_HIDDEN = 1 << 20,
    MAX_VOCAB = 1 << 26,
    MAX_HEADS = 1 << 14,
    MAX_HEAD_DIM = 1 << 13,
    MAX_POSITIONS = 1 << 30
};

static const char *const common_understood[] = {"model_type",
                                                "hidden_size",
                                                "num_hidden_layers",
                                                "num_attention_heads",
                                                "num_key_value_heads",
                                                "head_dim",
                                                "vocab_size",
                                                "max_position_embeddings",
                                                "rms_norm_eps",
                                                "hidden_act",
                                                "tie_word_embeddings",
                                                "bos_token_id",
                                                "eos_token_id",
                                                "quantization_config",
                                                "quantization_config.*",
                                                "compression_config",
                                                "compression_config.*",
                                                "expert_dtype", /* quant/recipe reads it */
                                                NULL};

/* Around the model of a wrapper. */
static const char *const wrapper_understood[] = {"model_type",
                                                 "text_config",
                                                 "text_config.*",
                                                 "tie_word_embeddings",
                                                 "eos_token_id",
                                                 "quantization_config",
                                                 "quantization_config.*",
                                                 "compression_config",
                                                 "compression_config.*",
                                                 NULL};

/* What training, other programs and transformers' own bookkeeping leave behind. */
static const char *const common_harmless[] = {
    "architectures", "auto_map", "auto_map.*", "_name_or_path", "transformers_version",
    "torch_dtype", "dtype", "use_cache", "pad_token_id", "unk_token_id", "attention_dropout",
    "initializer_range", "output_router_logits", "output_attentions", "output_hidden_states",
    "return_dict", "router_aux_loss_coef", "router_jitter_noise", "id2label", "id2label.*",
    "label2id", "label2id.*", "chunk_size_feed_forward", "num_logits_to_keep", "problem_type",
    "use_bfloat16",
    /* Generation settings of old files, which
                                                 generation_config.json has replaced. */
    "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "max_length", "num_beams", "num_beam_groups", "num_return_sequences",
    "use_return_dict", "_attn_implementation", "_attn_implementation_autoset", "unsloth_fixed",
    "unsloth_version", NULL};

/* Sampling and bookkeeping keys that generation_config.json may hold without a warning. */
static const char *const generation_known[] = {"_from_model_config",
                                               "transformers_version",
                                               "bos_token_id",
                                               "eos_token_id",
                                               "pad_token_id",
                                               "do_sample",
                                               "temperature",
                                               "top_p",
                                               "top_k",
                                               "min_p",
                                               "repetition_penalty",
                                               "max_new_tokens",
                                               "max_length",
                                               "use_cache",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "output_scores",
                                               "return_dict_in_generate",
                                               "cache_implementation",
                                               "trust_remote_code",
                                               NULL};

static Status parse_heads(const cJSON *c, Arch *a, Err *e)
{
    TRY(config_int(c, "num_key_value_heads", 1, MAX_HEADS, &a->n_kv_heads, e));
    if (a->n_heads % a->n_kv_heads != 0)
        return err_set(e, ST_INPUT,
                       "num_attention_heads is %d, not a multiple of num_key_value_heads %d",
                       a->n_heads, a->n_kv_heads);
    if (!config_get(c, "head_dim") && a->hidden % a->n_heads != 0)
        return err_set(e, ST_INPUT,
                       "head_dim is missing, and hidden_size %d is not a multiple of "
                       "num_attention_heads %d",
                       a->hidden, a->n_heads);
    a->head_dim = a->hidden / a->n_heads;
    TRY(config_int(c, "head_dim", 1, MAX_HEAD_DIM, &a->head_dim, e));
    if (a->head_dim > MAX_HEAD_DIM)
        return err_set(e, ST_INPUT, "head_dim is %d, expected at most %d", a->head_dim,
                       MAX_HEAD_DIM);
    return ST_OK;
}

static Status parse_sizes(const cJSON *c, Arch *a, Err *e)
{
    double eps = 0;
    TRY(config_need_int(c, "num_hidden_layers", 1, MAX_LAYERS, &a->n_layers, e));
    TRY(config_need_int(c, "hidden_size", 1, MAX_HIDDEN, &a->hidden, e));
    TRY(config_need_int(c, "vocab_size", 1, MAX_VOCAB, &a->vocab, e));
    TRY(config_need_int(c, "num_attention_heads", 1, MAX_HEADS, &a->n_heads, e));
    TRY(config_need_int(c, "max_position_embeddings", 1, MAX_POSITIONS, &a->max_positions, e));
    a->n_kv_heads = a->n_heads;
    if (!a->family->own_heads)
        TRY(parse_heads(c, a, e));
    TRY(config_double(c, "rms_norm_eps", 1e-30, 1, &eps, e));
    a->eps = (float)eps;
    return config_only(c, "hidden_act", "silu", e);
}

static Status parse_tokens(const cJSON *c, Arch *a, Err *e)
{
    a->bos = -1;
    TRY(config_bool(c, "tie_word_embeddings", &a->tied, e));
    TRY(config_int(c, "bos_token_id", -1, a->vocab - 1, &a->bos, e));
    return config_id_list(c, "eos_token_id", a->vocab, a->eos, &a->n_eos, MAX_EOS, e);
}

/* What every family starts from; its parse changes what is different. */
static Status prepare(Arch *a, Err *e)
{
    a->norm = NORM_LLAMA;
    if (a->head_dim > 0)
        a->attn_scale = (float)(1 / sqrt(a->head_dim));
    a->embed_scale = a->residual_scale = a->logits_scale = 1;
    a->act = (ActSpec){.alpha = 1, .beta = 0, .limit = INFINITY};
    a->router.scale = 1;
    a->router.n_group = a->router.topk_group = 1;
    a->layers = calloc((size_t)a->n_layers, sizeof *a->layers);
    if (!a->layers)
        return err_set(e, ST_MEMORY, "not enough memory for %d layers", a->n_layers);
    for (int i = 0; i < a->n_layers; i++)
        a->layers[i].moe = true;
    return ST_OK;
}

static Status find_family(const cJSON *c, Arch *a, Err *e)
{
    const char *type = NULL;
    TRY(config_string(c, "model_type", &type, e));
    if (!type)
        return err_set(e, ST_INPUT, "model_type is missing");
    a->family = family_find(type);
    if (!a->family) {
        char known[400] = "";
        size_t used = 0;
        for (const Family *const *f = family_list(); *f && used < sizeof known; f++)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                     (*f)->model_type);
        return err_set(e, ST_INPUT, "model_type \"%.100s\" is not supported (%s are)", type, known);
    }
    snprintf(a->model_type, sizeof a->model_type, "%s", type);
    return ST_OK;
}

enum { N_TABLES = 5 };

/* Which keys may stand in the object that describes a model of this family, or around it. */
static void key_tables(const Family *f, const char *const **tables)
{
    tables[0] = f->wrapper ? wrapper_understood : common_understood;
    tables[1] = f->wrapper ? wrapper_understood : rope_keys;
    tables[2] = common_harmless;
    tables[3] = f->understood;
    tables[4] = f->harmless;
}

/* Checks the keys around the model of a wrapper, takes what they say of it, and goes on to its
 * text_config. *model is the object that describes the model. */
static Status unwrap(const cJSON *c, const char *const *accept, int n_accept, const cJSON **model,
                     Arch *a, Err *e)
{
    *model = c;
    TRY(find_family(c, a, e));
    if (!a->family->wrapper)
        return ST_OK;
    const char *const *tables[N_TABLES];
    key_tables(a->family, tables);
    TRY(config_check_keys(c, tables, N_TABLES, accept, n_accept, e));
    *model = config_get(c, "text_config");
    if (!cJSON_IsObject(*model))
        return err_set(e, ST_INPUT, "%s needs an object text_config", a->model_type);
    if (find_family(*model, a, e) != ST_OK)
        return err_in(e, "text_config");
    if (a->family->wrapper)
        return err_set(e, ST_INPUT, "text_config: model_type \"%s\" is not a text model",
                       a->model_type);
    return ST_OK;
}

static Status parse_model(const cJSON *c, const char *const *accept, int n_accept, Arch *a, Err *e)
{
    const char *const *tables[N_TABLES];
    key_tables(a->family, tables);
    TRY(config_check_keys(c, tables, N_TABLES, accept, n_accept, e));
    TRY(parse_sizes(c, a, e));
    TRY(parse_tokens(c, a, e));
    TRY(prepare(a, e));
    TRY(a->family->parse(c, a, e));
    if (a->router.top_k > a->router.n_experts)
        return err_set(e, ST_INPUT, "%d experts per token, but only %d experts", a->router.top_k,
                       a->router.n_experts);
    return ST_OK;
}

static Status parse_config(const cJSON *c, const char *const *accept, int n_accept, Arch *a, Err *e)
{
    const cJSON *model;
    TRY(unwrap(c, accept, n_accept, &model, a, e));
    if (model == c)
        return parse_model(c, accept, n_accept, a, e);
    if (parse_model(model, accept, n_accept, a, e) != ST_OK)
        return err_in(e, "text_config");
    TRY(config_bool(c, "tie_word_embeddings", &a->tied, e));
    return config_id_list(c, "eos_token_id", a->vocab, a->eos, &a->n_eos, MAX_EOS, e);
}

static Status parse_generation(const cJSON *c, Arch *a, GenerationDefaults *g, Err *e)
{
    g->present = true;
    g->has_do_sample = config_get(c, "do_sample") != NULL;
    TRY(config_bool(c, "do_sample", &g->do_sample, e));
    g->has_temperature = config_get(c, "temperature") != NULL;
    TRY(config_double(c, "temperature", 0, 1e6, &g->temperature, e));
    g->has_top_p = config_get(c, "top_p") != NULL;
    TRY(config_double(c, "top_p", 1e-9, 1, &g->top_p, e));
    g->has_top_k = config_get(c, "top_k") != NULL;
    TRY(config_int(c, "top_k", -1, INT_MAX, &g->top_k, e));
    g->has_min_p = config_get(c, "min_p") != NULL;
    TRY(config_double(c, "min_p", 0, 1, &g->min_p, e));
    g->has_repetition_penalty = config_get(c, "repetition_penalty") != NULL;
    TRY(config_double(c, "repetition_penalty", 1e-9, 1e6, &g->repetition_penalty, e));
    g->has_max_new_tokens = config_get(c, "max_new_tokens") != NULL;
    TRY(config_int(c, "max_new_tokens", 1, INT_MAX, &g->max_new_tokens, e));
    TRY(config_id_list(c, "eos_token_id", a->vocab, a->eos, &a->n_eos, MAX_EOS, e));
    for (const cJSON *v = c->child; v; v = v->next)
        if (!config_is_empty(v) && !config_key_in(v->string, generation_known))
            log_warn_once("generation_config.json: key \"%.100s\" is not used", v->string);
    return ST_OK;
}

Status arch_parse(const char *config, size_t config_len, const char *generation,
                  size_t generation_len, const char *const *accept, int n_accept, Arch *out,
                  GenerationDefaults *gen, Err *e)
{
    Status st = ST_OK;
    cJSON *c = NULL, *g = NULL;
    const char *where = "config.json";
    *out = (Arch){0};
    *gen = (GenerationDefaults){0};
    TRY_GOTO(config_parse(config, config_len, &c, e));
    TRY_GOTO(parse_config(c, accept, n_accept, out, e));
    if (generation) {
        where = "generation_config.json";
        TRY_GOTO(config_parse(generation, generation_len, &g, e));
        TRY_GOTO(parse_generation(g, out, gen, e));
    }
    cJSON_Delete(c);
    cJSON_Delete(g);
    return ST_OK;
fail:
    err_in(e, "%s", where);
    cJSON_Delete(c);
    cJSON_Delete(g);
    arch_free(out);
    return st;
}

Status arch_load(const char *dir, const char *const *accept, int n_accept, Arch *out,
                 GenerationDefaults *gen, Err *e)
{
    char path[FILE_PATH_MAX], *config = NULL, *generation = NULL;
    size_t config_len, generation_len = 0;
    Status st;
    *out = (Arch){0};
    TRY(file_join(path, dir, "config.json", e));
    TRY(file_read(path, CONFIG_BYTES, &config, &config_len, e));
    TRY_GOTO(file_join(path, dir, "generation_config.json", e));
    if (file_exists(path))
        TRY_GOTO(file_read(path, CONFIG_BYTES, &generation, &generation_len, e));
    st = arch_parse(config, config_len, generation, generation_len, accept, n_accept, out, gen, e);
    if (st != ST_OK)
        err_in(e, "%s", dir);
fail:
    free(config);
    free(generation);
    return st;
}

static void list_keys(const cJSON *c, const char *prefix, StrBuf *out)
{
    const char *const *tables[N_TABLES];
    const char *type = "";
    Err ignored;
    StrBuf keys = {0};
    const Family *f =
        config_string(c, "model_type", &type, &ignored) == ST_OK ? family_find(type) : NULL;
    if (!f)
        return;
    key_tables(f, tables);
    config_list_unknown(c, tables, N_TABLES, &keys);
    for (char *line = keys.data, *end; line && (end = strchr(line, '\n')); line = end + 1)
        strbuf_fmt(out, "%s%.*s\n", prefix, (int)(end - line), line);
    out->failed |= keys.failed;
    strbuf_free(&keys);
    const cJSON *inner = config_get(c, "text_config");
    if (f->wrapper && cJSON_IsObject(inner) && !*prefix)
        list_keys(inner, "text_config.", out);
}

Status arch_unknown_keys(const char *dir, StrBuf *out, Err *e)
{
    char path[FILE_PATH_MAX], *text = NULL;
    size_t len;
    cJSON *c = NULL;
    TRY(file_join(path, dir, "config.json", e));
    TRY(file_read(path, CONFIG_BYTES, &text, &len, e));
    Status st = config_parse(text, len, &c, e);
    if (st == ST_OK)
        list_keys(c, "", out);
    else
        err_in(e, "%s", path);
    cJSON_Delete(c);
    free(text);
    return st == ST_OK && out->failed
               ? err_set(e, ST_MEMORY, "not enough memory for a list of keys")
               : st;
}

void arch_free(Arch *a)
{
    free(a->layers);
    free(a->rope.inv_freq);
    *a = (Arch){0};
}
