/* model/quantize_rules.h - which module is to be written in which format: a recipe's name, or a file
 * of rules.
 *
 * A file is one JSON object:
 *   {"rules": [{"match": "experts", "format": "nvfp4"},
 *              {"match": "attention", "format": "fp8-dynamic"},
 *              {"match": "model.layers.0.*", "format": "keep"}],
 *    "kv_cache": "fp8"}
 * The first rule that matches a module counts; what none matches stays as it is. "match" is one of
 *   all         every linear layer but the head, kv_b_proj, routers and gates
 *   experts     the routed experts        shared   the shared experts
 *   dense       feed-forward layers without experts
 *   attention   projections of attention but kv_b_proj
 * or a name of a module in which * stands for any characters: "lm_head",
 * "model.layers.*.self_attn.kv_b_proj", "model.layers.3.mlp.experts" (the routed experts of a layer
 * have one format). "format" is one of the table below, "keep", or "bf16"; "group_size" may go with
 * nvfp4, w4a16_nvfp4 (16, 32) and int4 (any). A rule that matches nothing is refused. */
#ifndef MB_MODEL_QUANTIZE_RULES_H
#define MB_MODEL_QUANTIZE_RULES_H

#include "io/arena.h"
#include "quant/tensor.h"

typedef enum TargetId {
    TARGET_KEEP,
    TARGET_BF16,
    TARGET_FP8_STATIC,
    TARGET_FP8_DYNAMIC,
    TARGET_FP8_BLOCK,
    TARGET_NVFP4,
    TARGET_W4A16_NVFP4,
    TARGET_MXFP8,
    TARGET_MXFP4,
    TARGET_INT4,
    TARGET_Q8_0,
    N_TARGETS
} TargetId;

typedef struct Target {
    TargetId id;
    const char *name; /* in rules, and as a recipe's name */
    const char *algo; /* ModelOpt's; NULL: not one of its formats */
    FormatId format;
    int multiple;       /* of columns */
    int group;          /* columns that share a scale, by default; 0: none do */
    bool static_inputs; /* needs the calibrated amax of inputs */
} Target;

const Target *quantize_target(TargetId id);

typedef enum ModuleKind {
    MODULE_ATTENTION,
    MODULE_KV_B, /* kv_b_proj of latent attention */
    MODULE_DENSE,
    MODULE_SHARED,
    MODULE_EXPERTS, /* all routed experts of a layer */
    MODULE_HEAD,
    MODULE_EMBEDDING, /* q8_0 only */
    MODULE_FIXED      /* routers and gates: never quantized */
} ModuleKind;

typedef struct QuantizeRule {
    const char *match;
    TargetId target;
    int group; /* 0: the target's own */
    bool used;
} QuantizeRule;

typedef struct QuantizeRules {
    const char *file; /* borrowed, for messages; NULL: a recipe's name, or bytes */
    QuantizeRule *rules;
    int n;
    bool kv_fp8, kv_given; /* kv_cache of the file: "fp8" or "none" */
    Arena arena;
} QuantizeRules;

/* recipe: a target's name, "fp8" (static with calibrated inputs, else dynamic), or a file. ST_USAGE
 * for an unknown name, ST_INPUT for a file that is not understood. experts_only: a name then means
 * the routed experts alone. */
Status quantize_rules_load(const char *recipe, bool experts_only, bool calibrated,
                           QuantizeRules *out, Err *e);
/* The same from the bytes of a file. */
Status quantize_rules_parse(const char *text, size_t len, bool calibrated, QuantizeRules *out,
                            Err *e);
void quantize_rules_free(QuantizeRules *r); /* all zero is fine, and so is twice */
/* The rule for a module, marked as used; NULL: none matches. */
const QuantizeRule *quantize_rules_find(QuantizeRules *r, ModuleKind kind, const char *module);
/* A rule that was never found; NULL: there is none. */
const QuantizeRule *quantize_rules_unused(const QuantizeRules *r);

#endif
