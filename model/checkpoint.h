/* model/checkpoint.h - the tensors of a checkpoint, each bound to the place in the model that it
 * fills.
 *
 * Accounting is strict: every expected tensor is there with the right dtype and shape, and every
 * tensor in the files is bound or skipped for a reason written down here. Only headers are read. */
#ifndef MB_MODEL_CHECKPOINT_H
#define MB_MODEL_CHECKPOINT_H

#include "io/tensor_set.h"
#include "model/arch.h"

typedef enum ExpertStorage {
    STORED_SINGLE,     /* a tensor per expert and projection */
    STORED_STACKED,    /* gate_up [E, 2 inter, hidden], gate first; down [E, hidden, inter] */
    STORED_TRANSPOSED, /* gate_up [E, hidden, 2 inter], interleaved; down [E, inter, hidden] */
    STORED_MXFP4       /* gate_up blocks [E, 2 inter, hidden/32, 16], interleaved; down [E, hidden,
                          inter/32, 16] */
} ExpertStorage;

typedef struct ExpertTensors {
    ExpertStorage storage;
    const TensorEntry **gate, **up, **down;    /* [n_experts] STORED_SINGLE */
    const TensorEntry *gate_up, *stacked_down; /* the others */
    const TensorEntry *gate_up_scales,
        *down_scales; /* STORED_MXFP4: [E, 2 inter, hidden/32], [E, hidden, inter/32] */
    const TensorEntry *gate_up_bias,
        *down_bias; /* [E, 2 inter] interleaved, [E, hidden]; or NULL */
} ExpertTensors;

typedef struct FfnTensors {
    const TensorEntry *gate, *up, *down; /* [inter, hidden] twice, [hidden, inter] */
} FfnTensors;

/* NULL where the architecture has none. */
typedef struct LayerTensors {
    const TensorEntry *attn_norm, *ffn_norm;
    const TensorEntry *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias;
    const TensorEntry *q_norm, *k_norm, *sinks;
    /* ATTN_LATENT, with q over q_a's outputs or hidden; kv_b [n_heads * (nope + v), latent] */
    const TensorEntry *q_a, *q_a_norm, *kv_a, *kv_a_norm, *kv_b;
    const TensorEntry *router, *router_bias, *router_correction;
    FfnTensors dense;  /* of a dense layer */
    FfnTensors shared; /* shared experts of a sparse one, */
    const TensorEntry *shared_gate;
    ExpertTensors experts; /* and its routed ones */
} LayerTensors;

/* What became of a tensor of the files. */
typedef struct TensorUse {
    const char *skipped; /* why it is not used; NULL: it is */
    bool bound, expert;  /* has a place; among the routed experts */
    int per_element;     /* weights in each element: 2 in packed 4-bit codes, 0 in scales */
} TensorUse;

typedef struct Checkpoint {
    TensorSet files;
    const TensorEntry *embed, *head, *final_norm; /* tied: head is embed, */
    const TensorEntry *unused_head;               /* and here is the head that lies beside it */
    LayerTensors *layers;                         /* [n_layers] */
    int n_layers;
    TensorUse *use; /* [files.n] */
    int n_skipped;
} Checkpoint;

/* Not collective. Messages name file, tensor and expectation. arch must outlive nothing: what is
 * needed is copied. */
Status checkpoint_open(const char *dir, const Arch *arch, Checkpoint *out, Err *e);
/* Warns where the files of a tied model hold another head: a file whose config.json is wrong looks
 * like that. Reads both. */
void checkpoint_check_tied(const Checkpoint *c);
void checkpoint_close(Checkpoint *c); /* all zero is fine, and so is twice */

#endif
