/* tests/model/test_precision.c - the words of --activations and its relatives, and what the
 * defaults mean. */
#include "model/precision.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *activations, *override, *missing, *kv, *quantize;
    bool experts_only;
    const char *json; /* once resolved for the CPU; NULL: refused, and says */
    const char *says;
} cases[] = {
    {"defaults", NULL, NULL, NULL, NULL, NULL, false,
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"fp32\",\"quantize\":\"none\",\"quantize_experts_only\":false}",
     NULL},
    {"native is none on the CPU", "native", NULL, NULL, "bf16", NULL, false,
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"bf16\",\"quantize\":\"none\",\"quantize_experts_only\":false}",
     NULL},
    {"all of them", "stored", "nvfp4_per_token", "layer-max", "fp8", NULL, false,
     "{\"activations\":\"stored\",\"activation_override\":\"nvfp4_per_token\","
     "\"missing_input_scale\":\"layer-max\",\"kv_dtype\":\"fp8\",\"quantize\":\"none\",\"quantize_"
     "experts_only\":false}",
     NULL},
    {"nvfp4 cache", "none", NULL, NULL, "nvfp4", NULL, false,
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"nvfp4\",\"quantize\":\"none\",\"quantize_experts_only\":false}",
     NULL},
    {"the default has no name", "default", NULL, NULL, NULL, NULL, false, NULL,
     "expected none, stored or native"},
    {"unknown mode", "Stored", NULL, NULL, NULL, NULL, false, NULL, "--activations Stored"},
    {"unknown override", NULL, "fp8", NULL, NULL, NULL, false, NULL, "expected nvfp4_per_token"},
    {"unknown filling", NULL, NULL, "mean", NULL, NULL, false, NULL, "expected layer-max"},
    {"experts in nvfp4", NULL, NULL, NULL, NULL, "nvfp4", true,
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"fp32\",\"quantize\":\"nvfp4\",\"quantize_experts_only\":true}",
     NULL},
    {"fp8 blocks", NULL, NULL, NULL, NULL, "fp8-block", false,
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"fp32\",\"quantize\":\"fp8-block\",\"quantize_experts_only\":false}",
     NULL},
    {"quantize to nothing", NULL, NULL, NULL, NULL, "none", false, NULL,
     "--quantize none: expected"},
    {"experts of nothing", NULL, NULL, NULL, NULL, NULL, true, NULL, "needs --quantize"},
    {"unknown cache", NULL, NULL, NULL, "fp16", NULL, false, NULL,
     "expected fp32, bf16, fp8 or nvfp4"},
};

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Precision p;
        Err e;
        StrBuf text = {0};
        Status st = precision_parse(cases[i].activations, cases[i].override, cases[i].missing,
                                    cases[i].kv, cases[i].quantize, cases[i].experts_only, &p, &e);
        if (!cases[i].json) {
            failed += check_int(cases[i].name, st, ST_USAGE);
            failed += check_has(cases[i].name, e.text, cases[i].says);
            continue;
        }
        failed += check_int(cases[i].name, st, ST_OK);
        precision_resolve(&p, backend_find("cpu"));
        precision_json(&p, &text);
        failed += check_str(cases[i].name, text.data, cases[i].json);
        strbuf_free(&text);
    }
    return test_result(failed);
}
