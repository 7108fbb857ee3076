/* tests/support/made_family.h - what made models of each family hold: names and shapes of tensors,
 * and config.json. Written from the publishers' files, apart from the tables under test. */
#ifndef MB_TESTS_MADE_FAMILY_H
#define MB_TESTS_MADE_FAMILY_H

#include "io/strbuf.h"
#include "tests/support/made_model.h"

typedef struct MadeFamily {
    const char *name;
    bool latent, qkv_bias, o_bias, sinks, shared_gate;
    bool first_dense; /* DeepSeek's way to say which layers are dense, not Qwen's */
    bool no_experts;
    int qk_norm;            /* 0: none, 1: a head, 2: the full width */
    const char *router;     /* name of its matrix in a layer */
    const char *correction; /* and of the bias for the choice, always F32; NULL: none */
    const char *experts;    /* in front of "3.w1.weight" or "3.gate_proj.weight" */
    const char *proj[3];    /* gate, up, down of an expert */
    const char *stack[2];   /* of gate and up, of down: all experts in one; NULL: mlp.experts. */
    const char *shared;     /* in front of gate_proj.weight of the shared experts */
    const char *n_experts_key, *inter_key;
    const char *config; /* further keys of config.json, each ended by a comma */
} MadeFamily;

/* NULL: there is none of that name. */
const MadeFamily *made_family(const char *name);
void made_config(const MadeSpec *s, StrBuf *out);

#endif
