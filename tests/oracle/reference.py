"""What is common to every reference checkpoint: transformers' own forward pass in float32 with eager
attention and eager experts, how near to a tie the router comes, and greedy decoding.

Weights hold bf16 values (but for the few tensors that are F32 on disk), arithmetic is float32, so an
engine that computes in float32 must agree to rounding. See README.md for where transformers and the
family descriptions part ways.
"""
import copy
import json
import logging
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as hf_logging

torch.set_num_threads(1)
hf_logging.disable_progress_bar()
hf_logging.set_verbosity_error()
logging.getLogger("transformers").setLevel(logging.ERROR)

# A model_type that has no class of its own, and the one whose forward pass it shares.
ALIASES = {"kimi_k2": "deepseek_v3"}

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def make_config(config_json):
    """transformers' configuration from the contents of a config.json, old or new key style."""
    kind = ALIASES.get(config_json["model_type"], config_json["model_type"])
    # A copy, since from_dict adds keys to the nested objects that it is given.
    return CONFIG_MAPPING[kind].from_dict({**copy.deepcopy(config_json), "model_type": kind})


def build(config_json):
    """A model with unset weights, float32, eager."""
    config = make_config(config_json)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config, dtype=torch.float32, **EAGER)
    return model.eval()


def load(directory):
    """The model of a checkpoint directory as transformers reads it, float32, eager."""
    with open(os.path.join(directory, "config.json")) as f:
        config = make_config(json.load(f))
    cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return cls.from_pretrained(directory, config=config, dtype=torch.float32, **EAGER).eval()


@torch.no_grad()
def logits(model, ids):
    """[T, V] for the token ids of one sequence, without a cache."""
    return model(torch.as_tensor(ids, dtype=torch.long)[None], use_cache=False).logits[0]


def greedy(model, prompt, n, stop_below=0.0):
    """prompt and n greedy tokens, with the smallest gap between the two best logits on the way, in
    standard deviations of the logits. Ends early after a gap smaller than stop_below."""
    ids, gap = list(prompt), float("inf")
    for _ in range(n):
        last = logits(model, ids)[-1]
        best = last.topk(2)
        gap = min(gap, float((best.values[0] - best.values[1]) / last.std()))
        ids.append(int(best.indices[0]))
        if gap < stop_below:
            break
    return ids, gap


def routers(model):
    """The router modules in order of layers; none in a dense model."""
    return [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]


class Margins:
    """Context in which forward passes record, for every token and layer, the distance between the last
    expert (or group) chosen and the first one left out, in standard deviations of that token's scores:
    how much rounding error it takes to choose another. Also checks that the choice is the one that
    these scores explain, so a margin cannot be taken of the wrong quantity."""

    def __init__(self, model):
        self.model, self.smallest, self.chosen = model, float("inf"), []
        c = model.config
        self.n_group = getattr(c, "n_group", None) or 1
        self.topk_group = getattr(c, "topk_group", None) or 1
        self.grouped = c.model_type in ("deepseek_v3", "glm4_moe") or (
            getattr(c, "topk_method", None) == "group_limited_greedy")
        self.sigmoid = c.model_type in ("deepseek_v3", "glm4_moe", "minimax_m2")

    def __enter__(self):
        self.hooks = [m.register_forward_hook(self.record) for m in routers(self.model)]
        return self

    def __exit__(self, *_):
        for h in self.hooks:
            h.remove()

    def gap(self, values, k, scale):
        """Between the k-th and the next of values, in units of scale (one per row)."""
        if k >= values.shape[-1]:
            return
        top = values.topk(k + 1, dim=-1).values
        self.smallest = min(self.smallest, float(((top[:, k - 1] - top[:, k]) / scale).min()))

    def record(self, module, args, output):
        raw, _, index = output
        k = index.shape[-1]
        score = raw.float()
        if self.sigmoid:
            bias = args[1] if len(args) > 1 else module.e_score_correction_bias
            score = raw.float().sigmoid() + bias
        scale = score.std(dim=-1)
        if self.grouped and self.n_group > 1:
            by_group = score.view(score.shape[0], self.n_group, -1)
            group = by_group.topk(2, dim=-1).values.sum(-1) if self.sigmoid else by_group.amax(-1)
            self.gap(group, self.topk_group, scale)
            kept = torch.zeros_like(group).scatter(1, group.topk(self.topk_group).indices, 1) > 0
            score = by_group.masked_fill(~kept[..., None], float("-inf")).flatten(1)
        self.gap(score, k, scale)
        expected = score.topk(k).indices.sort().values
        assert torch.equal(expected, index.sort().values), "a router chose by other scores"
        self.chosen.append((module, index))

    def experts_used(self):
        """The smallest fraction of a layer's experts that some token used."""
        used = {}
        for module, index in self.chosen:
            used.setdefault(module, set()).update(index.flatten().tolist())
        return min((len(u) / m.weight.shape[0] for m, u in used.items()), default=1.0)


def difference(a, b):
    """max |a - b| in standard deviations of b, the measure in which agreement is stated."""
    return float((a - b).abs().max() / b.std())


def check_golden(directory):
    """The largest difference between golden.safetensors of a checkpoint and what load() computes now,
    over all prompts; greedy tokens must be equal."""
    golden = load_file(os.path.join(directory, "golden.safetensors"))
    model, worst = load(directory), 0.0
    for name in sorted(n for n in golden if n.startswith("input_ids.")):
        k = name.split(".")[1]
        worst = max(worst, difference(logits(model, golden[name]), golden[f"logits.{k}"]))
    prompt = golden["input_ids.1"].tolist()
    expected = golden["greedy.1"].tolist()
    ids, _ = greedy(model, prompt, len(expected) - len(prompt))
    assert ids == expected, f"{directory}: greedy tokens differ"
    return worst
