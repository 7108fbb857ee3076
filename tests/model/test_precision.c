/* tests/model/test_precision.c - the words of --activations and its relatives, and what the
 * defaults mean. */
#include "model/precision.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *activations, *override, *missing, *kv;
    const char *json; /* once resolved for the CPU; NULL: refused, and says */
    const char *says;
} cases[] = {
    {"defaults", NULL, NULL, NULL, NULL,
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"fp32\"}",
     NULL},
    {"native is none on the CPU", "native", NULL, NULL, "bf16",
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"bf16\"}",
     NULL},
    {"all of them", "stored", "nvfp4_per_token", "layer-max", "fp8",
     "{\"activations\":\"stored\",\"activation_override\":\"nvfp4_per_token\","
     "\"missing_input_scale\":\"layer-max\",\"kv_dtype\":\"fp8\"}",
     NULL},
    {"nvfp4 cache", "none", NULL, NULL, "nvfp4",
     "{\"activations\":\"none\",\"activation_override\":null,\"missing_input_scale\":null,"
     "\"kv_dtype\":\"nvfp4\"}",
     NULL},
    {"the default has no name", "default", NULL, NULL, NULL, NULL,
     "expected none, stored or native"},
    {"unknown mode", "Stored", NULL, NULL, NULL, NULL, "--activations Stored"},
    {"unknown override", NULL, "fp8", NULL, NULL, NULL, "expected nvfp4_per_token"},
    {"unknown filling", NULL, NULL, "mean", NULL, NULL, "expected layer-max"},
    {"unknown cache", NULL, NULL, NULL, "fp16", NULL, "expected fp32, bf16, fp8 or nvfp4"},
};

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Precision p;
        Err e;
        StrBuf text = {0};
        Status st = precision_parse(cases[i].activations, cases[i].override, cases[i].missing,
                                    cases[i].kv, &p, &e);
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
