/* model/quantize_plan.h - what a quantized checkpoint will hold: every tensor of every part, and
 * which matrix of the source each is made from.
 *
 * The plan depends on the source's headers, the rules and the calibration alone, so every rank
 * makes the same one, and a later run finds what an earlier one has finished. */
#ifndef MB_MODEL_QUANTIZE_PLAN_H
#define MB_MODEL_QUANTIZE_PLAN_H

#include "io/safetensors_write.h"
#include "model/checkpoint.h"
#include "model/observe.h"
#include "model/quantize_rules.h"

/* A linear layer of the source, or the routed experts of a layer. */
typedef struct PlanModule {
    const char *name; /* "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts" */
    ModuleKind kind;
    int layer; /* -1: none */
    TargetId target;
    int group;                    /* columns that share a scale; 0: none do */
    const LinearTensors *linear;  /* NULL for routed experts: */
    const ExpertTensors *experts; /* these */
    float input_amax;             /* calibrated, of a linear layer's inputs */
    int shares; /* modules with the same number share an amax, where the target wants that; -1: none
                 */
    bool written; /* its tensors are in the plan */
} PlanModule;

/* One matrix to be encoded. */
typedef struct PlanMatrix {
    const LinearTensors *source;
    int expert;        /* of a stack, else 0 */
    int64_t first_row; /* of the source's matrix */
    int64_t rows, cols;
    TargetId target;
    int group;
    FormatId rounds_to; /* "source" of encode.h */
    bool of_mxfp4;      /* the source is MXFP4 */
    bool transposed;    /* codes and scales are stored [cols, rows] */
    int set;            /* matrices with the same number share a scale; they are neighbours */
    int weight, scale;  /* tensors of the plan; scale -1: none */
    int64_t weight_at, scale_at; /* where in them, for experts of a stack */
    int global; /* the tensor's scale, written with the first of those that share it; -1: none, or not
                   by this matrix */
} PlanMatrix;

/* A tensor that is copied, or has a value known from the start. */
typedef struct PlanFixed {
    int tensor;
    const TensorEntry *copy; /* NULL: */
    uint8_t value[16];       /* these bytes */
} PlanFixed;

typedef struct PlanPart {
    int first_tensor, n_tensors, first_matrix, n_matrices, first_fixed, n_fixed;
    char name[64]; /* "model-00002-of-00007.safetensors" */
    StrBuf header;
    int64_t bytes; /* of the file */
} PlanPart;

typedef struct QuantizePlan {
    PlanModule *modules;
    TensorPlan *tensors;
    PlanMatrix *matrices;
    PlanFixed *fixed;
    PlanPart *parts;
    int n_modules, n_tensors, n_matrices, n_fixed, n_parts;
    int cap_modules, cap_tensors, cap_matrices, cap_fixed, cap_parts;
    int n_sets;
    bool kv_fp8;          /* k_scale and v_scale are written */
    int n_unseen_experts; /* experts without calibrated inputs, which took their layer's largest */
    int64_t tensor_bytes; /* of all tensors */
    Arena arena;
} QuantizePlan;

typedef struct PlanRequest {
    const Checkpoint *source;
    const Arch *arch;
    QuantizeRules *rules;
    const Observer *seen; /* what calibration saw; NULL: there was none */
    bool will_calibrate;  /* for quantize_plan_check: seen is not there yet */
    const char *identity; /* of source, rules and calibration, in hex: put into every part */
    int64_t part_bytes;   /* a part ends with the module that takes it over this */
    bool kv_fp8;          /* wanted; needs the calibration */
} PlanRequest;

/* Borrows the source and the arena's names; messages name the module. */
Status quantize_plan_make(const PlanRequest *request, QuantizePlan *out, Err *e);
/* Only refuses what quantize_plan_make would refuse of the rules; identity and part_bytes do not
 * matter. */
Status quantize_plan_check(const PlanRequest *request, Err *e);
void quantize_plan_free(QuantizePlan *p); /* all zero is fine, and so is twice */

#endif
