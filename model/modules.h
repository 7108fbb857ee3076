/* model/modules.h - every matrix of a checkpoint in one list, for what looks at all of them: the
 * quantization map, the digest of decoded weights, the lint. */
#ifndef MB_MODEL_MODULES_H
#define MB_MODEL_MODULES_H

#include "model/checkpoint.h"

enum { MODULE_NAME_MAX = 512 };

/* A linear layer, an embedding, an expert's projection, or a stack of all experts' projections. */
typedef struct Module {
    const LinearTensors *t; /* borrowed from the checkpoint */
    int layer;              /* -1: outside of the layers */
    int n_stack;            /* experts in one tensor; 0: no stack */
    bool expert;            /* routed */
} Module;

typedef struct Modules {
    Module *at; /* [n] in the order in which a token meets them, experts by number */
    int n;
} Modules;

/* A tied head is not there a second time. */
Status modules_create(const Checkpoint *c, const Arch *arch, Modules *out, Err *e);
void modules_free(Modules *m); /* all zero is fine, and so is twice */

/* Letters of "P" in "P.weight", "P.weight_packed" and "P_blocks"; other names count whole. */
int module_stem(const char *tensor);
/* "model.layers.0.self_attn.q_proj" in out[MODULE_NAME_MAX]; of a stack the name without suffix,
 * "model.layers.0.mlp.experts.down_proj". */
void module_name(const Module *m, char *out);
/* The name under which decoded values are known: of the weights in their plain form. */
void module_weight_name(const Module *m, char *out);
/* Codes, scales and what else belongs to them. */
int64_t module_bytes(const Module *m);
int64_t module_params(const Module *m);

#endif
