#!/usr/bin/env python3
"""Writes the reference checkpoints of ../data/families: one directory per entry of configurations.py
with config.json, model.safetensors (published tensor names and types) and golden.safetensors.

    make_families.py [--out DIR] [NAME ...]    writes all, or those named
    make_families.py --check DIR ...           recomputes the goldens of checkpoint directories

A draw of weights is kept only when the result can be compared at all: no router decision and no greedy
choice is near a tie, float64 agrees with float32, and every trap of the configuration shows. The
finished directory is read back by transformers and must give the same logits. See README.md.
"""
import argparse
import copy
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile

import numpy as np

import reference as ref  # before torch: it chooses the CPU

import torch
import transformers
from safetensors.torch import load_file, save_file

from configurations import CASES

GREEDY = 48               # tokens after prompt 1; it passes position 64
ROUTER_MARGIN = 2e-4      # standard deviations of a token's scores
GREEDY_MARGIN = 2e-3      # standard deviations of the logits
ROUNDING = 2e-5           # largest difference between float32 and float64
TRAP_SHOWS = 4e-3         # twenty times the tolerance of an fp32 engine
MAX_BYTES = 400_000
ATTEMPTS = 300

# Spread of a weight over 1/sqrt(inputs), by name in memory; the first match counts.
GAINS = [(r"(mlp|block_sparse_moe)\.(gate|router)\.weight$", 2.0), (r"shared_expert_gate", 1.5),
         (r"(q|k|q_b)_proj\.weight$", 1.6), (r"gate_up_proj$|gate_proj|up_proj", 1.2), (r"down_proj", 1.5),
         (r"lm_head", 1.0)]


class Rejected(Exception):
    pass


def config_json(case):
    """config.json in the older key style."""
    return {**case.config, "rope_theta": case.theta, "rope_scaling": case.rope, "torch_dtype": "bfloat16",
            "transformers_version": "4.55.0"}


def draw(case, name, shape, rng, tied):
    """Values of one tensor of the model, float32."""
    z = rng.standard_normal(shape)
    width = shape[-1]
    if re.search(r"norm\.weight$", name):
        value = 1 + 0.25 * z
    elif name.endswith("e_score_correction_bias"):
        value = case.bias[0] + case.bias[1] * z
    elif name.endswith("sinks"):
        value = 2 * z
    elif name.endswith("bias"):
        value = 0.5 * z
    elif name.endswith("embed_tokens.weight"):
        value = z / (math.sqrt(width) if tied else 1)
    else:
        if case.config["model_type"] == "gpt_oss" and len(shape) == 3:
            width = shape[1]  # stored as [experts, in, out]
        gain = next((g for pattern, g in GAINS if re.search(pattern, name)), 1.0)
        value = gain * z / math.sqrt(width)
    for pattern, factor in case.scale:
        if re.search(pattern, name):
            value = value * factor
    return torch.from_numpy(value.astype(np.float32))


def on_disk_type(case, name):
    """Names are matched without the parent that transformers renames in memory."""
    endings = tuple(e.replace("block_sparse_moe.", "") for e in case.f32)
    return torch.float32 if endings and name.endswith(endings) and "router" not in name else torch.bfloat16


@torch.no_grad()
def fill(model, case, rng):
    tied = case.config["tie_word_embeddings"]
    tensors = dict(model.named_parameters())
    tensors.update((n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    for name in sorted(tensors):
        value = draw(case, name, tuple(tensors[name].shape), rng, tied)
        tensors[name].copy_(value.to(on_disk_type(case, name)).float())


@torch.no_grad()
def effect(case, model, trap, ids, right):
    """How far the logits move when the checkpoint is read as the trap says."""
    wrong = copy.deepcopy(model)
    if trap.config:
        wrong = ref.build({**config_json(case), **trap.config})
        wrong.load_state_dict(model.state_dict())
    if trap.edit:
        trap.edit(wrong)
    return ref.difference(ref.logits(wrong, ids), right)


def attempt(case, number):
    """A model, its golden tensors and facts about them from one draw, or Rejected."""
    seed = hashlib.sha256(f"{case.name} {number}".encode()).digest()[:8]
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    model = ref.build(config_json(case))
    fill(model, case, rng)
    golden, vocab = {}, case.config["vocab_size"]
    with ref.Margins(model) as margins:
        for k, n in enumerate(case.lengths):
            ids = rng.integers(2, vocab, n).astype(np.int32)
            golden[f"input_ids.{k}"] = torch.from_numpy(ids)
            golden[f"logits.{k}"] = ref.logits(model, ids)
    if margins.smallest < ROUTER_MARGIN:
        raise Rejected("router")
    used = margins.experts_used()
    last, ids = golden["logits.2"], golden["input_ids.2"]
    if not 0.5 < float(last.std()) < 2:
        raise Rejected("spread")
    noise = ref.difference(ref.logits(copy.deepcopy(model).double(), ids).float(), last)
    if noise > ROUNDING:
        raise Rejected("float64")
    prompt = golden["input_ids.1"].tolist()
    with margins:
        tokens, greedy_margin = ref.greedy(model, prompt, GREEDY, GREEDY_MARGIN)
    if margins.smallest < ROUTER_MARGIN:
        raise Rejected("router while decoding")
    if greedy_margin < GREEDY_MARGIN:
        raise Rejected("greedy")
    made = tokens[len(prompt):]
    if case.config["eos_token_id"] in made or len(set(made)) < 8:
        raise Rejected("repeats or ends")
    golden["greedy.1"] = torch.tensor(tokens, dtype=torch.int32)
    effects = {t.label: effect(case, model, t, ids, last) for t in case.traps}
    weak = [f"{k}: {v:.1e}" for k, v in effects.items() if not v > TRAP_SHOWS]
    if weak:
        raise Rejected("no effect of " + "; ".join(weak))
    facts = {"router": margins.smallest, "greedy": greedy_margin, "noise": noise, "used": used,
             "std": float(last.std()), "effects": effects}
    return model, golden, facts


def mtp_layer(case, tensors, rng):
    """The tensors of one multi-token-prediction layer as published checkpoints store it: a decoder layer
    under the index after the last, its own embedding and head, and what joins the two inputs."""
    n, hidden = case.config["num_hidden_layers"], case.config["hidden_size"]
    out = {}
    for name, t in tensors.items():
        if name.startswith(f"model.layers.{n - 1}."):
            value = rng.standard_normal(tuple(t.shape)) * 30
            out[name.replace(f"layers.{n - 1}.", f"layers.{n}.")] = torch.from_numpy(value).to(t.dtype)
    head = (case.config["vocab_size"], hidden)
    for name, shape in {"embed_tokens": head, "shared_head.head": head, "shared_head.norm": (hidden,),
                        "enorm": (hidden,), "hnorm": (hidden,), "eh_proj": (hidden, 2 * hidden)}.items():
        value = rng.standard_normal(shape) * 30  # anything that used them would be far off
        out[f"model.layers.{n}.{name}.weight"] = torch.from_numpy(value).bfloat16()
    return out


def save(case, model, golden, directory):
    """The checkpoint directory. transformers' own save turns its names in memory into the published ones;
    types, the extra layer and the key style of config.json are ours."""
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        tensors = load_file(os.path.join(tmp, "model.safetensors"))
        with open(os.path.join(tmp, "config.json")) as f:
            newest = json.load(f)
    tensors = {n: t.to(on_disk_type(case, n)).contiguous() for n, t in tensors.items()}
    if case.mtp:
        tensors.update(mtp_layer(case, tensors, np.random.default_rng(1)))
    config = config_json(case)
    if case.style == "new":
        config = {**newest, "dtype": "bfloat16", "model_type": case.config["model_type"]}
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=case.style == "new")
        f.write("\n")
    save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    save_file(golden, os.path.join(directory, "golden.safetensors"))


def check_saved(case, model, directory):
    """transformers reads it back to the same weights and logits (a mapped F32 tensor may be aligned
    otherwise, and then its products round otherwise), and it is small."""
    again = ref.load(directory).state_dict()
    assert all(torch.equal(t, again[n]) for n, t in model.state_dict().items()), f"{directory}: weights differ"
    worst = ref.check_golden(directory)
    assert worst < 2e-6, f"{directory}: read back, the logits differ by {worst:.1e}"
    size = sum(e.stat().st_size for e in os.scandir(directory))
    assert size <= MAX_BYTES, f"{directory}: {size} bytes"
    tensors = load_file(os.path.join(directory, "model.safetensors"))
    f32 = {n for n, t in tensors.items() if t.dtype == torch.float32}
    assert bool(f32) == bool(case.f32 and any(n.endswith(case.f32) for n in tensors)), f32
    return size


def make(case, out):
    reasons = {}
    for number in range(ATTEMPTS):
        try:
            model, golden, facts = attempt(case, number)
        except Rejected as e:
            reasons[str(e)] = reasons.get(str(e), 0) + 1
            continue
        directory = os.path.join(out, case.name)
        save(case, model, golden, directory)
        facts.update(size=check_saved(case, model, directory), draw=number)
        return facts
    sys.exit(f"{case.name}: no draw was kept: {reasons}")


def row(case, facts):
    """The line of a configuration in the table of families."""
    c = case.config
    experts = next((c[k] for k in ("num_experts", "num_local_experts", "n_routed_experts") if k in c), 0)
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    if "kv_lora_rank" in c:
        head = f"{c['qk_nope_head_dim']}+{c['qk_rope_head_dim']}/{c['v_head_dim']}"
    shape = (f"{c['num_hidden_layers']} x {c['hidden_size']}, {c['num_attention_heads']}/{c['num_key_value_heads']} x {head}, "
             f"{'dense' if not experts else str(c['num_experts_per_tok']) + ' of ' + str(experts)}, "
             f"{'tied' if c['tie_word_embeddings'] else 'untied'}")
    traps = "; ".join(f"{k} ({v:.2g})" for k, v in facts["effects"].items())
    cells = [case.name, case.style, shape, ", ".join(map(str, case.lengths)),
             f"{case.note}. {traps}" if case.note else traps,
             f"{facts['router']:.0e}" if experts else "-", f"{facts['greedy']:.0e}"]
    return f"| {' | '.join(cells)} |"


def write_table(path, rows):
    """Replaces the rows of the configurations just made, keeps the others."""
    old = {}
    if os.path.exists(path):
        with open(path) as f:
            old = {line.split("|")[1].strip(): line.rstrip("\n") for line in f if re.match(r"\| \w+-\w ", line)}
    old.update(rows)
    with open(path, "w") as f:
        f.write(HEADER.format(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, n=GREEDY))
        f.writelines(old[c.name] + "\n" for c in CASES if c.name in old)


HEADER = """# Reference checkpoints by family

Written by `tests/oracle/make_families.py` with transformers {transformers} and torch {torch}; do not edit. Each directory is a checkpoint in the
published layout, random weights, and `golden.safetensors`: for k = 0..2 `input_ids.k` [T] int32 and `logits.k` [T, vocab] float32 at every
position, and `greedy.1`, prompt 1 and {n} greedy tokens after it without a stop (past position 64; token 1, the eos, does not occur).
Agreement of an fp32 path: max difference below 2e-4 of the logits' standard deviation (about 1); greedy tokens equal.

Shape: layers x hidden, query/KV heads x head width (MLA: nope+rope/value), experts per token of all. A number after a wrong reading is how
far it moves the logits of prompt 2, in standard deviations. Margins: the nearest any router decision and any greedy choice comes to a tie,
in standard deviations of a token's router scores and of the logits.

| directory | keys | shape | prompts | tells apart from | router | greedy |
|---|---|---|---|---|---|---|
"""


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default=os.path.join(here, "..", "data", "families"))
    p.add_argument("--check", action="store_true", help="the arguments are checkpoint directories with a golden.safetensors")
    p.add_argument("names", nargs="*")
    args = p.parse_args()
    if args.check:
        for directory in args.names:
            print(f"{directory}: {ref.check_golden(directory):.1e} of the logits' standard deviation, greedy equal", flush=True)
        return
    unknown = set(args.names) - {c.name for c in CASES}
    if unknown:
        sys.exit(f"no such configuration: {', '.join(sorted(unknown))}")
    os.makedirs(args.out, exist_ok=True)
    for case in CASES:
        if args.names and case.name not in args.names:
            continue
        facts = make(case, args.out)
        write_table(os.path.join(args.out, "README.md"), {case.name: row(case, facts)})
        effects = ", ".join(f"{k} {v:.1e}" for k, v in facts.pop("effects").items())
        print(case.name, {k: float(f"{v:.2g}") for k, v in facts.items()}, effects, flush=True)


if __name__ == "__main__":
    main()
