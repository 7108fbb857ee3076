/* model/precision.c - see precision.h. */
#include "model/precision.h"

#include <string.h>

static const char *const activation_names[] = {[ACTIVATIONS_DEFAULT] = "default",
                                               [ACTIVATIONS_NONE] = "none",
                                               [ACTIVATIONS_STORED] = "stored",
                                               [ACTIVATIONS_NATIVE] = "native"};
static const char *const kv_names[] = {
    [KV_F32] = "fp32", [KV_BF16] = "bf16", [KV_FP8] = "fp8", [KV_NVFP4] = "nvfp4"};

static const char *const quantize_names[N_ONLINE_FORMATS] = {[ONLINE_NONE] = "none",
                                                             [ONLINE_NVFP4] = "nvfp4",
                                                             [ONLINE_MXFP4] = "mxfp4",
                                                             [ONLINE_MXFP8] = "mxfp8",
                                                             [ONLINE_FP8_DYNAMIC] = "fp8-dynamic",
                                                             [ONLINE_FP8_BLOCK] = "fp8-block",
                                                             [ONLINE_INT4] = "int4",
                                                             [ONLINE_Q8_0] = "q8_0"};

static int find(const char *const *names, int first, int n, const char *name)
{
    for (int i = first; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

Status precision_parse(const char *activations, const char *override, const char *missing,
                       const char *kv_dtype, const char *quantize, bool experts_only,
                       Precision *out, Err *e)
{
    *out = (Precision){0};
    if (activations) {
        int i = find(activation_names, ACTIVATIONS_NONE, ACTIVATIONS_NATIVE + 1, activations);
        if (i < 0)
            return err_set(e, ST_USAGE, "--activations %s: expected none, stored or native",
                           activations);
        out->activations = (ActivationMode)i;
    }
    if (override) {
        if (strcmp(override, "nvfp4_per_token") != 0)
            return err_set(e, ST_USAGE, "--activation-override %s: expected nvfp4_per_token",
                           override);
        out->per_token_experts = true;
    }
    if (missing) {
        if (strcmp(missing, "layer-max") != 0)
            return err_set(e, ST_USAGE, "--missing-input-scale %s: expected layer-max", missing);
        out->fill_input_scales = true;
    }
    if (kv_dtype) {
        int i = find(kv_names, 0, KV_NVFP4 + 1, kv_dtype);
        if (i < 0)
            return err_set(e, ST_USAGE, "--kv-dtype %s: expected fp32, bf16, fp8 or nvfp4",
                           kv_dtype);
        out->kv = (KvDtype)i;
        out->kv_given = true;
    }
    if (quantize) {
        int i = find(quantize_names, ONLINE_NONE + 1, N_ONLINE_FORMATS, quantize);
        if (i < 0)
            return err_set(e, ST_USAGE,
                           "--quantize %s: expected nvfp4, mxfp4, mxfp8, fp8-dynamic, fp8-block, "
                           "int4 or q8_0",
                           quantize);
        out->quantize = (OnlineFormat)i;
    }
    if (experts_only && !quantize)
        return err_set(e, ST_USAGE, "--quantize-experts-only: needs --quantize");
    out->quantize_experts_only = experts_only;
    return ST_OK;
}

void precision_resolve(Precision *p, const BackendOps *ops)
{
    if (p->activations == ACTIVATIONS_DEFAULT)
        p->activations = ops->host_memory ? ACTIVATIONS_NONE : ACTIVATIONS_NATIVE;
    if (p->activations == ACTIVATIONS_NATIVE && ops->host_memory)
        p->activations = ACTIVATIONS_NONE;
    if (!p->kv_given)
        p->kv = ops->host_memory ? KV_F32 : KV_BF16;
    p->kv_given = true;
}

void precision_json(const Precision *p, StrBuf *out)
{
    strbuf_fmt(out,
               "{\"activations\":\"%s\",\"activation_override\":%s,\"missing_input_scale\":%s,"
               "\"kv_dtype\":\"%s\",\"quantize\":\"%s\",\"quantize_experts_only\":%s}",
               activation_names[p->activations],
               p->per_token_experts ? "\"nvfp4_per_token\"" : "null",
               p->fill_input_scales ? "\"layer-max\"" : "null", kv_names[p->kv],
               quantize_names[p->quantize], p->quantize_experts_only ? "true" : "false");
}
