/* model/family_mixtral.c - Mixtral: GQA, softmax then top-k with weights that always sum to one. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

#include <limits.h>

static const char *const understood[] = {"num_local_experts",   "num_experts",
                                         "num_experts_per_tok", "intermediate_size",
                                         "sliding_window",      NULL};
static const char *const harmless[] = {NULL};

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    int window = 0;
    a->eps = a->eps > 0 ? a->eps : 1e-5f;
    TRY(config_int(c, "sliding_window", 1, INT_MAX, &window, e));
    for (int i = 0; i < a->n_layers; i++)
        a->layers[i].window = window;
    TRY(family_parse_experts(c, 1, "intermediate_size", a, e));
    a->router.kind = ROUTER_SOFTMAX_TOPK;
    a->router.renormalize = true;
    return rope_parse(c, a->head_dim, a->max_positions, 1e6, &a->rope, e);
}

const Family family_mixtral = {
    .model_type = "mixtral",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "block_sparse_moe.gate",
              .gate = "block_sparse_moe.experts.%d.w1",
              .up = "block_sparse_moe.experts.%d.w3",
              .down = "block_sparse_moe.experts.%d.w2",
              .experts = "mlp.experts."},
};
