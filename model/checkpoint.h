/* model/checkpoint.h - the tensors of a checkpoint, each bound to the place in the model that it
 * fills.
 *
 * Accounting is strict: every expected tensor is there with the right dtype and shape, and every
 * tensor in the files is bound or skipped for a reason written down here. Only headers are read. */
#ifndef MB_MODEL_CHECKPOINT_H
#define MB_MODEL_CHECKPOINT_H

#include "model/arch.h"
#include "model/linear.h"
#include "model/synthetic.h"

/* gate and up [inter, hidden], down [hidden, inter] of each expert, or in stacks: gate_up [2 inter,
 * hidden] per expert, interleaved (row 2i gate, 2i + 1 up) or gate first. */
typedef struct ExpertTensors {
    bool stacked, interleaved;
    LinearTensors *gate, *up, *down; /* [n_experts], not stacked */
    LinearTensors gate_up, stacked_down;
    const TensorEntry *gate_up_bias,
        *down_bias; /* [E, 2 inter] interleaved, [E, hidden]; or NULL */
} ExpertTensors;

typedef struct FfnTensors {
    LinearTensors gate, up, down; /* [inter, hidden] twice, [hidden, inter] */
} FfnTensors;

/* NULL, or without weight, where the architecture has none. */
typedef struct LayerTensors {
    const TensorEntry *attn_norm, *ffn_norm;
    LinearTensors q, k, v, o;
    const TensorEntry *q_bias, *k_bias, *v_bias, *o_bias;
    const TensorEntry *q_norm, *k_norm, *sinks;
    const TensorEntry *k_scale, *v_scale; /* of the KV cache; NULL: there is none */
    /* ATTN_LATENT, with q over q_a's outputs or hidden; kv_b [n_heads * (nope + v), latent] */
    LinearTensors q_a, kv_a, kv_b;
    const TensorEntry *q_a_norm, *kv_a_norm;
    LinearTensors router;
    const TensorEntry *router_bias, *router_correction;
    FfnTensors dense;  /* of a dense layer */
    FfnTensors shared; /* shared experts of a sparse one, */
    LinearTensors shared_gate;
    ExpertTensors experts; /* and its routed ones */
} LayerTensors;

/* What became of a tensor of the files. */
typedef struct TensorUse {
    const char *skipped; /* why it is not used; NULL: it is */
    bool bound, expert;  /* has a place; among the routed experts */
    int64_t params;      /* weights in it; 0 for scales */
} TensorUse;

typedef struct Checkpoint {
    TensorSet files;
    Recipe *recipe;
    LinearTensors embed, head;      /* tied: head is embed, */
    const TensorEntry *unused_head; /* and here is the head that lies beside it */
    const TensorEntry *final_norm;
    LayerTensors *layers; /* [n_layers] */
    int n_layers;
    TensorUse *use; /* [files.n] */
    Arena arena;    /* scales that were stored in another type than the kernels take */
    int n_skipped;
} Checkpoint;

/* Not collective. Messages name file, tensor and expectation. arch must outlive nothing: what is
 * needed is copied. */
Status checkpoint_open(const char *dir, const Arch *arch, Checkpoint *out, Err *e);
/* The same of a checkpoint that no file holds; s must outlive *out. */
Status checkpoint_open_synthetic(const Synthetic *s, const Arch *arch, Checkpoint *out, Err *e);
/* What reading the quantization configuration warned of, as log lines. */
void checkpoint_warn_of_recipe(const Checkpoint *c);
/* Warns where the files of a tied model hold another head: a file whose config.json is wrong looks
 * like that. Reads both. */
void checkpoint_check_tied(const Checkpoint *c);
void checkpoint_close(Checkpoint *c); /* all zero is fine, and so is twice */

#endif
