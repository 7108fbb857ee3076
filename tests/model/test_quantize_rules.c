/* tests/model/test_quantize_rules.c - recipes: which rule a module meets, and files that are
 * refused. */
#include "model/quantize_rules.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <string.h>

static int test_matching(void)
{
    static const char text[] =
        "{\"rules\": [{\"match\": \"model.layers.0.*\", \"format\": \"keep\"},"
        " {\"match\": \"experts\", \"format\": \"nvfp4\", \"group_size\": 32},"
        " {\"match\": \"shared\", \"format\": \"mxfp8\"}, {\"match\": \"dense\", \"format\": "
        "\"fp8\"},"
        " {\"match\": \"*.k_proj\", \"format\": \"bf16\"},"
        " {\"match\": \"attention\", \"format\": \"fp8-block\"},"
        " {\"match\": \"lm_head\", \"format\": \"q8_0\"}], \"kv_cache\": \"fp8\"}";
    static const struct {
        const char *module;
        ModuleKind kind;
        int want; /* TargetId, or -1: no rule */
    } cases[] = {
        {"model.layers.0.mlp.experts", MODULE_EXPERTS, TARGET_KEEP},
        {"model.layers.10.mlp.experts", MODULE_EXPERTS, TARGET_NVFP4},
        {"model.layers.1.mlp.shared_expert.up_proj", MODULE_SHARED, TARGET_MXFP8},
        {"model.layers.1.mlp.up_proj", MODULE_DENSE, TARGET_FP8_DYNAMIC},
        {"model.layers.1.self_attn.k_proj", MODULE_ATTENTION, TARGET_BF16},
        {"model.layers.1.self_attn.q_proj", MODULE_ATTENTION, TARGET_FP8_BLOCK},
        {"model.layers.1.self_attn.kv_b_proj", MODULE_KV_B, -1},
        {"lm_head", MODULE_HEAD, TARGET_Q8_0},
        {"model.embed_tokens", MODULE_EMBEDDING, -1},
    };
    QuantizeRules r;
    Err e = {0};
    int failed =
        check_int("parse", quantize_rules_parse(text, sizeof text - 1, false, &r, &e), ST_OK);
    if (failed)
        return check_str("parse", e.text, "");
    failed += check_true("cache", r.kv_given && r.kv_fp8);
    failed += check_true("nothing asked yet", quantize_rules_unused(&r) == &r.rules[0]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const QuantizeRule *rule = quantize_rules_find(&r, cases[i].kind, cases[i].module);
        failed += check_int(cases[i].module, rule ? (int)rule->target : -1, cases[i].want);
        if (rule && rule->target == TARGET_NVFP4)
            failed += check_int("its group", rule->group, 32);
    }
    failed += check_true("all met", !quantize_rules_unused(&r));
    quantize_rules_free(&r);

    /* With calibrated inputs "fp8" is the static one. */
    static const char one[] = "{\"rules\": [{\"match\": \"all\", \"format\": \"fp8\"}]}";
    failed += check_int("parse", quantize_rules_parse(one, sizeof one - 1, true, &r, &e), ST_OK);
    failed += check_int("calibrated", r.rules[0].target, TARGET_FP8_STATIC);
    failed += check_true("no cache", !r.kv_given && !r.kv_fp8);
    static const struct {
        ModuleKind kind;
        bool want;
    } all[] = {{MODULE_ATTENTION, true}, {MODULE_KV_B, false},   {MODULE_DENSE, true},
               {MODULE_SHARED, true},    {MODULE_EXPERTS, true}, {MODULE_HEAD, false},
               {MODULE_EMBEDDING, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        failed += check_int("all", quantize_rules_find(&r, all[i].kind, "x") != NULL, all[i].want);
    quantize_rules_free(&r);
    return failed;
}

static int test_refused(void)
{
    static const struct {
        const char *name, *text, *part;
    } cases[] = {
        {"not JSON", "{", "byte"},
        {"not an object", "[]", "not a JSON object"},
        {"no rules", "{}", "rules is missing"},
        {"empty", "{\"rules\": []}", "empty"},
        {"unknown key", "{\"rule\": []}", "\"rule\""},
        {"a rule that is none", "{\"rules\": [3]}", "rule 1 is not an object"},
        {"unknown format", "{\"rules\": [{\"match\": \"all\", \"format\": \"fp3\"}]}", "\"fp3\""},
        {"no match", "{\"rules\": [{\"format\": \"fp8\"}]}", "match is missing"},
        {"match is no string", "{\"rules\": [{\"match\": 1, \"format\": \"fp8\"}]}",
         "not a string"},
        {"key of a rule", "{\"rules\": [{\"match\": \"all\", \"format\": \"fp8\", \"bits\": 8}]}",
         "\"bits\""},
        {"key twice",
         "{\"rules\": [{\"match\": \"all\", \"match\": \"all\", \"format\": \"fp8\"}]}", "twice"},
        {"group", "{\"rules\": [{\"match\": \"all\", \"format\": \"nvfp4\", \"group_size\": 8}]}",
         "group_size"},
        {"group where none is",
         "{\"rules\": [{\"match\": \"all\", \"format\": \"fp8\", \"group_size\": 16}]}",
         "group_size"},
        {"second rule",
         "{\"rules\": [{\"match\": \"all\", \"format\": \"fp8\"}, {\"match\": \"\"}]}", "rule 2"},
        {"cache",
         "{\"rules\": [{\"match\": \"all\", \"format\": \"fp8\"}], \"kv_cache\": \"nvfp4\"}",
         "kv_cache"},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        QuantizeRules r;
        Err e = {0};
        failed += check_int(
            cases[i].name,
            quantize_rules_parse(cases[i].text, strlen(cases[i].text), false, &r, &e), ST_INPUT);
        failed += check_has(cases[i].name, e.text, cases[i].part);
    }
    return failed;
}

static int test_names(void)
{
    static const struct {
        const char *name;
        bool calibrated;
        TargetId want;
    } cases[] = {
        {"fp8", false, TARGET_FP8_DYNAMIC},
        {"fp8", true, TARGET_FP8_STATIC},
        {"fp8-static", true, TARGET_FP8_STATIC},
        {"fp8-block", false, TARGET_FP8_BLOCK},
        {"w4a16_nvfp4", false, TARGET_W4A16_NVFP4},
        {"mxfp8", false, TARGET_MXFP8},
        {"int4", false, TARGET_INT4},
        {"q8_0", false, TARGET_Q8_0},
    };
    int failed = 0;
    QuantizeRules r;
    Err e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Status st = quantize_rules_load(cases[i].name, i % 2, cases[i].calibrated, &r, &e);
        failed += check_int(cases[i].name, st, ST_OK);
        failed += check_int(cases[i].name, r.rules[0].target, cases[i].want);
        failed += check_str(cases[i].name, r.rules[0].match, i % 2 ? "experts" : "all");
        quantize_rules_free(&r);
    }
    failed += check_int("neither", quantize_rules_load("fp9", false, false, &r, &e), ST_USAGE);
    failed += check_has("neither", e.text, "fp8-static");
    temp_dir_put("rules.json", "{\"rules\": 1}", 12);
    failed +=
        check_int("bad file", quantize_rules_load("rules.json", false, false, &r, &e), ST_INPUT);
    failed += check_has("bad file", e.text, "rules.json: rules");
    failed += check_int("file of experts", quantize_rules_load("rules.json", true, false, &r, &e),
                        ST_USAGE);
    return failed;
}

int main(void)
{
    temp_dir_enter();
    return test_result(test_matching() + test_refused() + test_names());
}
