"""The configurations of the reference checkpoints: per family two that shared goldens leave out, each
with the mistakes (traps) that it has to tell apart from the right reading.

A Case gives config.json in the older published key style, less what all have alike. Style "old" is
written like that; style "new" is what transformers writes today for the same model. Sizes are odd on
purpose: no head width, hidden size or expert count is a multiple of what a kernel or a number of ranks
would like.
"""
import types
from dataclasses import dataclass, field
from typing import Callable

import torch


@dataclass
class Trap:
    """A wrong reading of a checkpoint: the same weights under another configuration, or a model that is
    edited after loading. The generator requires that each moves the logits by far more than the
    tolerance of the tests."""
    label: str
    config: dict = field(default_factory=dict)  # keys of config.json (old style) to replace
    edit: Callable = None                       # changes the model in place


@dataclass
class Case:
    name: str
    style: str
    config: dict
    traps: list
    lengths: tuple = (1, 21, 71)  # tokens of the three prompts
    theta: float = 1e4
    rope: dict = None             # rope_scaling
    scale: list = field(default_factory=list)  # (regex over tensor names, factor on the default spread)
    bias: tuple = (0.0, 0.0)      # mean and spread of e_score_correction_bias
    f32: tuple = ("e_score_correction_bias",)  # endings of the names that are F32 on disk, not BF16
    mtp: bool = False             # an extra layer on disk, index num_hidden_layers, as multi-token prediction stores it
    note: str = ""


# ---- traps -------------------------------------------------------------------------------------

def drop(*endings):
    """Zeroes the parameters whose names end so: what a loader does that overlooks them."""
    def edit(model):
        for name, p in model.named_parameters():
            if name.endswith(endings):
                p.zero_()
    return edit


NO_QKV_BIAS = Trap("q, k, v bias left out", edit=drop("q_proj.bias", "k_proj.bias", "v_proj.bias"))
NO_O_BIAS = Trap("o bias left out", edit=drop("o_proj.bias"))
DEFAULT_ROPE = Trap("rope_scaling ignored", {"rope_scaling": None})


def window(n):
    return [Trap(f"window {n - 1}", {"sliding_window": n - 1}), Trap(f"window {n + 1}", {"sliding_window": n + 1})]


def rope_key(case_rope, **changes):
    return {"rope_scaling": {**case_rope, **changes}}


def sigmoid_router(fill=float("-inf"), biased_weights=False, bias=True, group_best=2):
    """The router of deepseek_v3 and glm4_moe with one thing done differently."""
    def forward(self, x):
        x = x.view(-1, self.hidden_dim).float()
        score = (x @ self.weight.float().T).sigmoid()
        choice = score + self.e_score_correction_bias if bias else score
        groups = choice.view(len(x), self.num_group, -1)
        best = groups.topk(group_best, -1).values.sum(-1).topk(self.topk_group).indices
        kept = torch.zeros(len(x), self.num_group).scatter(1, best, 1) > 0
        masked = groups.masked_fill(~kept[..., None], fill).flatten(1)
        index = masked.topk(self.top_k).indices
        w = (choice if biased_weights else score).gather(1, index)
        if self.norm_topk_prob:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        return score, w * self.routed_scaling_factor, index

    def edit(model):
        for m in model.modules():
            if type(m).__name__ in ("DeepseekV3TopkRouter", "Glm4MoeTopkRouter"):
                m.forward = types.MethodType(forward, m)
    return edit


def group_score_sum(model):
    """deepseek_v2 with the group score of v3, the sum of two."""
    def forward(self, x):
        x = x.view(-1, self.hidden_dim).float()
        p = (x @ self.weight.float().T).softmax(-1)
        groups = p.view(len(x), self.num_group, -1)
        best = groups.topk(2, -1).values.sum(-1).topk(self.topk_group).indices
        kept = torch.zeros(len(x), self.num_group).scatter(1, best, 1) > 0
        w, index = groups.masked_fill(~kept[..., None], 0).flatten(1).topk(self.top_k)
        return p, w * self.routed_scaling_factor, index
    for m in model.modules():
        if type(m).__name__ == "DeepseekV2TopkRouter":
            m.forward = types.MethodType(forward, m)


def minimax_router(use_bias=True, biased_weights=False, round_gate=False):
    def forward(self, x, bias):
        w = self.weight.bfloat16().float() if round_gate else self.weight
        score = (x.reshape(-1, self.hidden_dim) @ w.T).sigmoid()
        choice = score + bias if use_bias else score
        index = choice.topk(self.top_k).indices
        weight = (choice if biased_weights else score).gather(1, index)
        return score, weight / weight.sum(-1, keepdim=True), index

    def edit(model):
        for m in model.modules():
            if type(m).__name__ == "MiniMaxM2TopKRouter":
                m.forward = types.MethodType(forward, m)
    return edit


def softmax_scale_plain(model):
    """MLA without yarn's mscale in the softmax scale."""
    for m in model.modules():
        if hasattr(m, "qk_head_dim"):
            m.scaling = m.qk_head_dim ** -0.5


def latent_eps(eps):
    """The norms of the latents with the eps of config.json; transformers has 1e-6 there always."""
    def edit(model):
        for name, m in model.named_modules():
            if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
                m.variance_epsilon = eps
    return edit


def sinks_without_effect(model):
    for name, p in model.named_parameters():
        if name.endswith("sinks"):
            p.fill_(-1e4)


def swap_rope_layout(model):
    """deepseek_v2: rotates lanes i and i + dim/2 as a pair instead of neighbours."""
    for m in model.modules():
        if hasattr(m, "kv_a_proj_with_mqa"):
            n = m.qk_rope_head_dim
            order = torch.arange(n).view(2, n // 2).T.flatten()  # neighbours come from the two halves
            m.kv_a_proj_with_mqa.weight[m.kv_lora_rank:] = m.kv_a_proj_with_mqa.weight[m.kv_lora_rank:][order]
            q = m.q_proj if m.q_b_proj is None else m.q_b_proj
            heads = q.weight.view(m.num_heads, m.qk_head_dim, -1)
            heads[:, m.qk_nope_head_dim:] = heads[:, m.qk_nope_head_dim:][:, order]


# ---- families ----------------------------------------------------------------------------------

TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
PLAIN = {"hidden_act": "silu", "initializer_range": 0.02, "use_cache": True, "attention_dropout": 0.0,
         "max_position_embeddings": 512, **TOKENS}
CASES = []


def add(name, style, *, traps, config, **options):
    CASES.append(Case(name, style, {**PLAIN, **config}, traps, **options))


YARN4 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
add("qwen3_moe-a", "old", rope=YARN4, theta=1e6, lengths=(1, 23, 71), config=dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=101, hidden_size=44,
        intermediate_size=53, moe_intermediate_size=27, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, head_dim=20, num_experts=7, num_experts_per_tok=1, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[1], attention_bias=False, rms_norm_eps=1e-6,
        tie_word_embeddings=True, use_sliding_window=False, sliding_window=None, max_window_layers=3,
        output_router_logits=False, router_aux_loss_coef=0.001),
    traps=[DEFAULT_ROPE, Trap("weight of the only expert not 1", {"norm_topk_prob": False}),
           Trap("factor of cos and sin 1", rope_key(YARN4, attention_factor=1.0)),
           Trap("yarn from max_position_embeddings", rope_key(YARN4, original_max_position_embeddings=512)),
           Trap("q norm left out", edit=lambda m: [n.weight.fill_(1) for n in m.modules()
                                                   if type(n).__name__ == "Qwen3MoeRMSNorm" and len(n.weight) == 20])])
LINEAR = {"rope_type": "linear", "factor": 2.5}
add("qwen3_moe-b", "new", rope=LINEAR, theta=5e3, lengths=(1, 18, 66), config=dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=128, hidden_size=52,
        intermediate_size=61, moe_intermediate_size=20, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=5, head_dim=12, num_experts=11, num_experts_per_tok=6, norm_topk_prob=False,
        decoder_sparse_step=2, mlp_only_layers=[], attention_bias=True, rms_norm_eps=1e-5,
        tie_word_embeddings=False, use_sliding_window=False, sliding_window=None),
    traps=[DEFAULT_ROPE, NO_QKV_BIAS, NO_O_BIAS, Trap("weights renormalised", {"norm_topk_prob": True})])

add("mixtral-a", "old", theta=1e4, lengths=(1, 27, 135), config=dict(
        architectures=["MixtralForCausalLM"], model_type="mixtral", vocab_size=96, hidden_size=60,
        intermediate_size=37, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
        head_dim=None, num_local_experts=5, num_experts_per_tok=2, sliding_window=24, rms_norm_eps=1e-5,
        tie_word_embeddings=True, output_router_logits=False, router_aux_loss_coef=0.02,
        router_jitter_noise=0.0),
    traps=[*window(24), Trap("theta 1e6", {"rope_theta": 1e6})])
YARN6 = {"rope_type": "yarn", "factor": 6.0, "original_max_position_embeddings": 64, "beta_fast": 8.0,
         "beta_slow": 2.0}
add("mixtral-b", "new", rope=YARN6, theta=1e3, lengths=(1, 20, 77), config=dict(
        architectures=["MixtralForCausalLM"], model_type="mixtral", vocab_size=113, hidden_size=44,
        intermediate_size=21, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        head_dim=20, num_local_experts=11, num_experts_per_tok=5, sliding_window=64, rms_norm_eps=1e-5,
        tie_word_embeddings=False, output_router_logits=False, router_aux_loss_coef=0.001,
        router_jitter_noise=0.0),
    traps=[*window(64), DEFAULT_ROPE, Trap("truncate false", rope_key(YARN6, truncate=False)),
           Trap("beta 32 and 1", rope_key(YARN6, beta_fast=32.0, beta_slow=1.0))])

YARN_OSS = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 32}
OSS = [(r"gate_up_proj$", 1.6), (r"sinks", 1.0)]
add("gpt_oss-a", "old", rope=YARN_OSS, theta=1.5e5, lengths=(1, 19, 78), scale=OSS, config=dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=97, hidden_size=44,
        intermediate_size=23, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        head_dim=20, num_local_experts=5, num_experts_per_tok=4, experts_per_token=4, sliding_window=13,
        attention_bias=True, swiglu_limit=2.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
        initial_context_length=32, output_router_logits=False, router_aux_loss_coef=0.9),
    note="no layer_types: even layers slide",
    traps=[*window(13), Trap("truncate true", rope_key(YARN_OSS, truncate=True)), NO_QKV_BIAS, NO_O_BIAS,
           Trap("no sinks", edit=sinks_without_effect), Trap("swiglu_limit 7", {"swiglu_limit": 7.0}),
           Trap("odd layers slide", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
           Trap("router bias left out", edit=drop("router.bias")),
           Trap("down bias left out", edit=drop("down_proj_bias"))])
YARN_OSS_B = {**YARN_OSS, "truncate": True, "factor": 4.0, "beta_fast": 4.0}
add("gpt_oss-b", "new", rope=YARN_OSS_B, theta=2e3, lengths=(1, 22, 79), scale=[(r"gate_up_proj$", 3.0), (r"down_proj$", 0.3)],
    config=dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=109, hidden_size=40,
        intermediate_size=18, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5,
        head_dim=12, num_local_experts=11, num_experts_per_tok=1, sliding_window=64,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        attention_bias=False, swiglu_limit=7.0, rms_norm_eps=1e-5, tie_word_embeddings=True),
    traps=[*window(64), Trap("truncate false", rope_key(YARN_OSS_B, truncate=False)),
           Trap("no sinks", edit=sinks_without_effect), Trap("no clamp", {"swiglu_limit": 1e6}),
           Trap("layer_types ignored", {"layer_types": None}),
           Trap("router bias left out", edit=drop("router.bias")),
           Trap("gate_up bias left out", edit=drop("gate_up_proj_bias"))])

# Keys of the published files that this table has no use for; real ones have them.
DEEPSEEK = {"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "pretraining_tp": 1, "seq_aux": True,
            "attention_bias": False}
YARN_V2L = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 32}
NO_MSCALE = Trap("no mscale in the softmax scale", edit=softmax_scale_plain)
add("deepseek_v2-a", "old", rope=YARN_V2L, theta=1e4, lengths=(1, 25, 70), config=dict(
        architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", vocab_size=103, hidden_size=51,
        intermediate_size=45, moe_intermediate_size=19, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
        v_head_dim=17, n_routed_experts=7, n_shared_experts=2, num_experts_per_tok=5, n_group=1,
        topk_group=1, topk_method="greedy", scoring_func="softmax", norm_topk_prob=False,
        routed_scaling_factor=1.0, first_k_dense_replace=1, rms_norm_eps=1e-6,
        tie_word_embeddings=False, **DEEPSEEK),
    note="V2-Lite: no q_lora",
    traps=[NO_MSCALE, DEFAULT_ROPE, Trap("half rope", edit=swap_rope_layout),
           Trap("shared experts left out", edit=drop("shared_experts.down_proj.weight"))])
YARN_V2 = {"type": "yarn", "factor": 16, "beta_fast": 16, "beta_slow": 1, "mscale": 1.0,
           "mscale_all_dim": 0.6, "original_max_position_embeddings": 16}
add("deepseek_v2-b", "new", rope=YARN_V2, theta=1e3, lengths=(1, 20, 67),
    scale=[(r"experts\.down_proj", 0.12), (r"shared_experts\.down_proj", 8.0)], config=dict(
        architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", vocab_size=128, hidden_size=45,
        intermediate_size=33, moe_intermediate_size=13, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=22, kv_lora_rank=26, qk_nope_head_dim=10, qk_rope_head_dim=12,
        v_head_dim=14, n_routed_experts=15, n_shared_experts=3, num_experts_per_tok=4, n_group=5,
        topk_group=2, topk_method="group_limited_greedy", scoring_func="softmax", norm_topk_prob=False,
        routed_scaling_factor=16.0, first_k_dense_replace=2, rms_norm_eps=1e-6,
        tie_word_embeddings=True, **DEEPSEEK),
    note="V2: q_lora, groups by their best expert",
    traps=[NO_MSCALE, Trap("group score of two", edit=group_score_sum), Trap("no groups", {"topk_method": "greedy"}),
           Trap("scaling left out", {"routed_scaling_factor": 1.0}), Trap("half rope", edit=swap_rope_layout),
           Trap("factor of cos and sin 1", rope_key(YARN_V2, attention_factor=1.0)),
           Trap("two dense layers taken for one", edit=drop("layers.1.mlp.down_proj.weight"))])

YARN_V3 = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
           "mscale_all_dim": 1.0, "original_max_position_embeddings": 32}
ZERO_FILL = Trap("masked groups 0, not -inf", edit=sigmoid_router(fill=0.0))
BIASED = Trap("biased scores as weights", edit=sigmoid_router(biased_weights=True))
UNBIASED = Trap("correction bias ignored", edit=sigmoid_router(bias=False))
add("deepseek_v3-a", "old", rope=YARN_V3, theta=1e4, lengths=(1, 24, 133), mtp=True, bias=(-1.3, 0.25),
    config=dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=99, hidden_size=44,
        intermediate_size=49, moe_intermediate_size=19, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
        v_head_dim=20, n_routed_experts=10, n_shared_experts=1, num_experts_per_tok=3, n_group=5,
        topk_group=2, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True,
        routed_scaling_factor=2.5, first_k_dense_replace=1, num_nextn_predict_layers=1, rms_norm_eps=1e-6,
        tie_word_embeddings=False, **DEEPSEEK),
    traps=[NO_MSCALE, DEFAULT_ROPE, ZERO_FILL, BIASED, UNBIASED,
           Trap("group score of the best", edit=sigmoid_router(group_best=1)),
           Trap("half rope", {"rope_interleave": False}), Trap("scaling left out", {"routed_scaling_factor": 1.0}),
           Trap("weights not renormalised", {"norm_topk_prob": False})])
YARN_V3B = {"type": "yarn", "factor": 8, "beta_fast": 8, "beta_slow": 1, "mscale": 0.7,
            "mscale_all_dim": 1.3, "original_max_position_embeddings": 16}
add("deepseek_v3-b", "new", rope=YARN_V3B, theta=1e3, lengths=(1, 18, 69), bias=(5.0, 0.4), config=dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=119, hidden_size=52,
        intermediate_size=31, moe_intermediate_size=13, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=None, kv_lora_rank=28, qk_nope_head_dim=10, qk_rope_head_dim=12,
        v_head_dim=14, n_routed_experts=15, n_shared_experts=2, num_experts_per_tok=6, n_group=3,
        topk_group=2, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=False,
        routed_scaling_factor=0.8, first_k_dense_replace=0, num_nextn_predict_layers=0, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_interleave=False, **DEEPSEEK),
    note="no q_lora, half rope, two shared experts, no dense layer",
    traps=[NO_MSCALE, DEFAULT_ROPE, BIASED, UNBIASED, Trap("interleaved rope", {"rope_interleave": True}),
           Trap("factor of cos and sin 1", rope_key(YARN_V3B, attention_factor=1.0)),
           Trap("weights renormalised", {"norm_topk_prob": True}),
           Trap("scaling left out", {"routed_scaling_factor": 1.0})])

KIMI = {**DEEPSEEK, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 1,
        "topk_group": 1, "routed_scaling_factor": 2.827, "num_nextn_predict_layers": 0, "n_shared_experts": 1,
        "first_k_dense_replace": 1}
YARN_K2 = {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
           "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}
add("kimi_k2-a", "old", rope=YARN_K2, theta=5e4, lengths=(1, 21, 73), bias=(-0.6, 0.3), config=dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", vocab_size=111, hidden_size=44,
        intermediate_size=41, moe_intermediate_size=18, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=16,
        v_head_dim=12, n_routed_experts=11, num_experts_per_tok=5, rms_norm_eps=1e-6,
        tie_word_embeddings=False, **KIMI),
    note="beta_fast = beta_slow = 1: the ramp is one lane wide",
    traps=[NO_MSCALE, UNBIASED, BIASED, Trap("beta_fast 32", rope_key(YARN_K2, beta_fast=32.0)),
           Trap("half rope", {"rope_interleave": False})])
YARN_K2B = {**YARN_K2, "factor": 64.0, "beta_fast": 32.0, "original_max_position_embeddings": 2048}
add("kimi_k2-b", "new", rope=YARN_K2B, theta=5e4, lengths=(1, 26, 65), bias=(2.0, 0.3),
    scale=[(r"q_a_proj|kv_a_proj", 0.01)], config=dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", vocab_size=97, hidden_size=40,
        intermediate_size=43, moe_intermediate_size=15, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=18, kv_lora_rank=22, qk_nope_head_dim=10, qk_rope_head_dim=12,
        v_head_dim=12, n_routed_experts=13, num_experts_per_tok=4, rms_norm_eps=1e-5,
        tie_word_embeddings=False, **KIMI),
    note="latents so small that the eps of their norms shows",
    traps=[NO_MSCALE, UNBIASED, Trap("latent norms with eps 1e-5", edit=latent_eps(1e-5)),
           Trap("beta_fast 1", rope_key(YARN_K2B, beta_fast=1.0))])

add("glm4_moe-a", "old", theta=1e4, lengths=(1, 29, 74), mtp=True, bias=(-0.9, 0.3), config=dict(
        architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", vocab_size=107, hidden_size=44,
        intermediate_size=47, moe_intermediate_size=17, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=1, head_dim=20, partial_rotary_factor=0.5, use_qk_norm=True,
        attention_bias=True, n_routed_experts=7, n_shared_experts=2, num_experts_per_tok=3, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0, first_k_dense_replace=1,
        num_nextn_predict_layers=1, rms_norm_eps=1e-5, tie_word_embeddings=False),
    traps=[NO_QKV_BIAS, UNBIASED, BIASED, Trap("all lanes rotate", {"partial_rotary_factor": 1.0}),
           Trap("weights not renormalised", {"norm_topk_prob": False}),
           Trap("q, k norm left out", edit=lambda m: [n.weight.fill_(1) for n in m.modules()
                                                      if type(n).__name__ == "Glm4MoeRMSNorm" and len(n.weight) == 20])])
LINEAR3 = {"rope_type": "linear", "factor": 3.0}
add("glm4_moe-b", "new", rope=LINEAR3, theta=100.0, lengths=(1, 20, 68), bias=(-1.4, 0.2), f32=(), config=dict(
        architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", vocab_size=128, hidden_size=40,
        intermediate_size=37, moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=24, partial_rotary_factor=0.25, use_qk_norm=False,
        attention_bias=False, n_routed_experts=10, n_shared_experts=1, num_experts_per_tok=3, n_group=2,
        topk_group=1, norm_topk_prob=False, routed_scaling_factor=2.5, first_k_dense_replace=2,
        num_nextn_predict_layers=0, rms_norm_eps=1e-5, tie_word_embeddings=True),
    note="two groups; correction bias stored as BF16",
    traps=[DEFAULT_ROPE, ZERO_FILL, BIASED, UNBIASED, Trap("half of the lanes rotate", {"partial_rotary_factor": 0.5}),
           Trap("scaling left out", {"routed_scaling_factor": 1.0}),
           Trap("weights renormalised", {"norm_topk_prob": True}),
           Trap("two dense layers taken for one", edit=drop("layers.1.mlp.down_proj.weight"))])

MINIMAX_F32 = ("block_sparse_moe.gate.weight", "e_score_correction_bias")
MINIMAX = {"use_qk_norm": True, "qk_norm_type": "per_layer", "scoring_func": "sigmoid", "use_routing_bias": True,
           "shared_intermediate_size": 0}
ROUNDED = Trap("gate rounded to bf16", edit=minimax_router(round_gate=True))
MM_BIASED = Trap("biased scores as weights", edit=minimax_router(biased_weights=True))
MM_UNBIASED = Trap("correction bias ignored", edit=minimax_router(use_bias=False))
add("minimax_m2-a", "old", theta=1e4, lengths=(1, 22, 75), bias=(-0.7, 0.3), f32=MINIMAX_F32, config=dict(
        architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", vocab_size=105, hidden_size=44,
        intermediate_size=23, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1, head_dim=20,
        rotary_dim=10, num_local_experts=7, num_experts_per_tok=3, num_mtp_modules=3, rms_norm_eps=1e-6,
        tie_word_embeddings=False, **MINIMAX),
    note="F32 gate",
    traps=[ROUNDED, MM_BIASED, MM_UNBIASED, Trap("all lanes rotate", {"rotary_dim": 20})])
add("minimax_m2-b", "new", rope=LINEAR3, theta=100.0, lengths=(1, 17, 68), bias=(3.0, 0.5), f32=MINIMAX_F32, config=dict(
        architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", vocab_size=120, hidden_size=40,
        intermediate_size=17, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, head_dim=28,
        rotary_dim=14, num_local_experts=11, num_experts_per_tok=5, rms_norm_eps=1e-5,
        tie_word_embeddings=True, **MINIMAX),
    note="F32 gate; MHA",
    traps=[ROUNDED, MM_BIASED, MM_UNBIASED, DEFAULT_ROPE, Trap("all lanes rotate", {"rotary_dim": 28})])

NO_SHARED_GATE = Trap("shared gate left out (1/2)", edit=drop("shared_expert_gate.weight"))
add("qwen2_moe-a", "old", theta=1e6, lengths=(1, 20, 72), config=dict(
        architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", vocab_size=100, hidden_size=60,
        intermediate_size=41, moe_intermediate_size=18, shared_expert_intermediate_size=35,
        num_hidden_layers=4, num_attention_heads=5, num_key_value_heads=1, num_experts=7,
        num_experts_per_tok=5, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[],
        use_sliding_window=False, sliding_window=32768, max_window_layers=4, rms_norm_eps=1e-6,
        tie_word_embeddings=False, output_router_logits=False, router_aux_loss_coef=0.001),
    note="no qkv_bias key: there are biases",
    traps=[NO_QKV_BIAS, NO_SHARED_GATE, Trap("weights renormalised", {"norm_topk_prob": True})])
add("qwen2_moe-b", "new", theta=1e4, lengths=(1, 25, 76), config=dict(
        architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", vocab_size=112, hidden_size=66,
        intermediate_size=39, moe_intermediate_size=17, shared_expert_intermediate_size=29,
        num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, num_experts=5,
        num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[0],
        qkv_bias=False, use_sliding_window=True, sliding_window=33, max_window_layers=1,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], rms_norm_eps=1e-6,
        tie_word_embeddings=True),
    note="layer_types is explicit, since readers differ about max_window_layers",
    traps=[*window(33), NO_SHARED_GATE, Trap("weights not renormalised", {"norm_topk_prob": False}),
           Trap("windows off", {"layer_types": ["full_attention"] * 3})])

add("olmoe-a", "old", theta=1e4, lengths=(1, 21, 71), config=dict(
        architectures=["OlmoeForCausalLM"], model_type="olmoe", vocab_size=104, hidden_size=60,
        intermediate_size=18, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
        num_experts=11, num_experts_per_tok=6, norm_topk_prob=False, clip_qkv=1.25, attention_bias=False,
        rms_norm_eps=1e-5, tie_word_embeddings=False, output_router_logits=False,
        router_aux_loss_coef=0.01),
    traps=[Trap("no clipping", {"clip_qkv": None}), Trap("weights renormalised", {"norm_topk_prob": True})])
add("olmoe-b", "new", theta=500.0, lengths=(1, 19, 70), config=dict(
        architectures=["OlmoeForCausalLM"], model_type="olmoe", vocab_size=117, hidden_size=66,
        intermediate_size=21, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        num_experts=5, num_experts_per_tok=3, norm_topk_prob=True, clip_qkv=None, attention_bias=True,
        rms_norm_eps=1e-5, tie_word_embeddings=True),
    note="GQA; bias before the norm over the full width",
    traps=[NO_QKV_BIAS, NO_O_BIAS, Trap("weights not renormalised", {"norm_topk_prob": False})])


def neutral(key, value=1.0):
    return Trap(f"{key} ignored", {key: value})


add("granitemoe-a", "old", theta=1e4, lengths=(1, 24, 70),
    scale=[(r"model\.norm", 24.0), (r"embed_tokens", 0.25), (r"o_proj|down_proj", 6.0)], config=dict(
        architectures=["GraniteMoeForCausalLM"], model_type="granitemoe", vocab_size=102, hidden_size=60,
        intermediate_size=23, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
        num_local_experts=7, num_experts_per_tok=5, embedding_multiplier=12.0, residual_multiplier=0.22,
        attention_multiplier=0.109375, logits_scaling=6.0, attention_bias=False, rms_norm_eps=1e-6,
        tie_word_embeddings=True, output_router_logits=False, router_aux_loss_coef=0.0),
    traps=[neutral("embedding_multiplier"), neutral("residual_multiplier"), neutral("logits_scaling"),
           neutral("attention_multiplier", 12 ** -0.5)])
add("granitemoe-b", "new", rope=YARN4, theta=1e4, lengths=(1, 20, 69), scale=[(r"lm_head", 0.5)], config=dict(
        architectures=["GraniteMoeForCausalLM"], model_type="granitemoe", vocab_size=114, hidden_size=66,
        intermediate_size=19, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, head_dim=22,
        num_local_experts=11, num_experts_per_tok=1, embedding_multiplier=0.6, residual_multiplier=0.7,
        attention_multiplier=0.31, logits_scaling=0.5, attention_bias=True, rms_norm_eps=1e-5,
        tie_word_embeddings=False),
    traps=[neutral("embedding_multiplier"), neutral("residual_multiplier"), neutral("logits_scaling"),
           neutral("attention_multiplier", 22 ** -0.5), DEFAULT_ROPE, NO_QKV_BIAS, NO_O_BIAS])

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
add("llama-a", "old", rope=LLAMA3, theta=5e3, lengths=(1, 22, 137), config=dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=98, hidden_size=60,
        intermediate_size=67, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, head_dim=20,
        attention_bias=False, mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-5, tie_word_embeddings=True),
    traps=[DEFAULT_ROPE, Trap("linear between the factors", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
           Trap("high_freq_factor 2", rope_key(LLAMA3, high_freq_factor=2.0))])
LINEAR4 = {"type": "linear", "factor": 4.0}
add("llama-b", "new", rope=LINEAR4, theta=1e4, lengths=(1, 18, 66), config=dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=121, hidden_size=66,
        intermediate_size=53, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
        attention_bias=True, mlp_bias=False, rms_norm_eps=1e-6, tie_word_embeddings=False),
    traps=[DEFAULT_ROPE, NO_QKV_BIAS, NO_O_BIAS])

add("qwen3-a", "old", theta=1e6, lengths=(1, 23, 71), config=dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=106, hidden_size=44,
        intermediate_size=59, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=20,
        attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=3,
        rms_norm_eps=1e-6, tie_word_embeddings=True),
    traps=[Trap("theta 1e4", {"rope_theta": 1e4})])
add("qwen3-b", "new", rope=YARN4, theta=1e4, lengths=(1, 20, 73), config=dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=128, hidden_size=52,
        intermediate_size=47, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5, head_dim=12,
        attention_bias=True, use_sliding_window=True, sliding_window=7, max_window_layers=1,
        rms_norm_eps=1e-6, tie_word_embeddings=False),
    traps=[*window(7), DEFAULT_ROPE, NO_QKV_BIAS, NO_O_BIAS, Trap("all layers slide", {"max_window_layers": 0})])

add("mistral-a", "old", theta=1e4, lengths=(1, 21, 79), config=dict(
        architectures=["MistralForCausalLM"], model_type="mistral", vocab_size=110, hidden_size=44,
        intermediate_size=63, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, head_dim=24,
        sliding_window=65, rms_norm_eps=1e-5, tie_word_embeddings=False),
    traps=window(65))
add("mistral-b", "new", rope=LLAMA3, theta=1e3, lengths=(1, 19, 70), config=dict(
        architectures=["MistralForCausalLM"], model_type="mistral", vocab_size=118, hidden_size=60,
        intermediate_size=45, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, head_dim=None,
        sliding_window=None, rms_norm_eps=1e-6, tie_word_embeddings=True),
    traps=[DEFAULT_ROPE, Trap("window 64", {"sliding_window": 64})])
