/* model/observe.h - the largest magnitudes that meet each linear layer, which calibration turns
 * into static scales. */
#ifndef MB_MODEL_OBSERVE_H
#define MB_MODEL_OBSERVE_H

#include "dist/comm.h"
#include "io/err.h"

#include <stdint.h>

typedef struct LayerSeen {
    float attn_in;  /* q, k, v; of latent attention q_a or q, and kv_a */
    float q_low;    /* q_b */
    float latent;   /* kv_b */
    float attn_out; /* o */
    float ffn_in;   /* gate and up of a dense layer or of shared experts; router and shared gate */
    float dense_inner;  /* down of a dense layer */
    float shared_inner; /* down of shared experts */
    float key, value;   /* what goes into the cache: keys after rope, or the latent as key */
    float *expert_in, *expert_inner; /* [n_experts], 0 for an expert that saw no token */
} LayerSeen;

typedef struct Observer {
    int n_layers, n_experts;
    LayerSeen *layers; /* [n_layers] */
    float head_in;
    float *experts; /* what the layers' arrays point into */
} Observer;

Status observer_create(Observer *o, int n_layers, int n_experts, Err *e);
void observer_free(Observer *o); /* all zero is fine, and so is twice */
/* The largest of all ranks, on all of them. Collective. */
Status observer_share(Observer *o, Comm *comm, Err *e);
/* *seen becomes at least the largest magnitude of n rows of width values, stride apart, in host
 * memory. A NaN counts as infinite. */
void observe_rows(float *seen, const float *x, int64_t n, int64_t width, int64_t stride);

#endif
