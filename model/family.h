/* model/family.h - the table of model families: one entry each, in family_NAME.c. */
#ifndef MB_MODEL_FAMILY_H
#define MB_MODEL_FAMILY_H

#include "model/arch.h"

#include <cjson/cJSON.h>

/* How the routed experts of a layer lie on disk. */
typedef enum ExpertLayout {
    EXPERTS_SINGLE, /* one tensor per expert and projection: [inter, hidden], [hidden, inter] */
    /* all in two tensors: gate and up rows [E, 2 inter, hidden], gate first; down [E, hidden,
     * inter] */
    EXPERTS_STACKED,
    EXPERTS_GPT_OSS /* stacked: gate_up_proj [E, hidden, 2 inter] transposed and interleaved, or MXFP4 *_blocks, *_scales */
} ExpertLayout;

/* Tensor name patterns without "model." prefix; %d is the layer, and in expert names the second
 * %d the expert. NULL where the family has none. What all families name alike (attention, norms,
 * the dense FFN) is in checkpoint.c. */
typedef struct FamilyNames {
    const char *layer; /* "layers.%d." */
    const char *router, *router_bias, *router_correction;
    const char *gate, *up, *down;               /* one expert */
    const char *experts;                        /* stacked: "mlp.experts." */
    const char *stacked_gate_up, *stacked_down; /* EXPERTS_STACKED */
    /* in front of "gate_proj.weight" and so on: "mlp.shared_experts." */
    const char *shared;
    const char *shared_gate;
} FamilyNames;

struct Family {
    const char *model_type; /* as in config.json */
    /* keys that parse reads, NULL-terminated; beyond those common to all */
    const char *const *understood;
    const char *const *harmless; /* keys that change nothing in inference */
    /* Fills in out (already holding what is common to all families) or refuses by name. */
    Status (*parse)(const cJSON *config, Arch *out, Err *e);
    /* head_dim and num_key_value_heads of config.json mean something else here: parse sets the
     * architecture's. */
    bool own_heads;
    /* The model is the object text_config of config.json, whose model_type says the family;
     * understood and harmless are then the keys around it, and there is no parse. */
    bool wrapper;
    ExpertLayout layout;
    FamilyNames names;
};

/* NULL: not supported. */
const Family *family_find(const char *model_type);
/* All of them, NULL-terminated, for messages and inspect. */
const Family *const *family_list(void);

#endif
