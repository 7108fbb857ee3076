#!/usr/bin/env python3
"""Writes tests/data/quant/exports.json: what nvidia-modelopt's own exports of reference checkpoints hold.

usage: make_quant_exports.py SHARED/goldens tests/data/quant/exports.json
       (PyPI: nvidia-modelopt 0.47.0, transformers 5.24.0, torch 2.15.0; a CPU will do, one minute)

The last case is not ModelOpt's: MXFP4 to int4 by operations of torch in bf16 (formats.md 2.12), packed by
compressed-tensors (0.20.1).

Per case one SHA-256 over all quantized weights and their scales, in the order of their names: name, dtype, shape and
bytes. Scales of inputs are left out: ModelOpt calibrates in bf16.
"""
import glob
import hashlib
import json
import os
import sys
import tempfile
import warnings

import modelopt.torch.quantization as mtq
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from modelopt.torch.export import export_hf_checkpoint
from safetensors import safe_open
from transformers import AutoModelForCausalLM

warnings.filterwarnings("ignore")
ALL = '{"rules": [{"match": "*.kv_b_proj", "format": "%s"}, {"match": "all", "format": "%s"}]}'
CASES = [("deepseek_v3-bf16", "NVFP4_DEFAULT_CFG", ALL % ("nvfp4", "nvfp4")),
         ("deepseek_v3-bf16", "FP8_DEFAULT_CFG", ALL % ("fp8", "fp8")),
         ("gpt_oss-bf16", "FP8_DEFAULT_CFG", "fp8"),
         ("gpt_oss-bf16", "NVFP4_DEFAULT_CFG", "nvfp4"),
         ("mixtral-bf16", "FP8_DEFAULT_CFG", "fp8-static"),
         ("glm4_moe-bf16", "MXFP8_DEFAULT_CFG", "mxfp8"),
         ("minimax_m2-bf16", "NVFP4_DEFAULT_CFG", "nvfp4"),
         ("olmoe-bf16", "FP8_PER_CHANNEL_PER_TOKEN_CFG", "fp8-dynamic")]


def calibrate(model):
    with torch.no_grad():
        for s in range(6):
            model((torch.arange(s, s + 64) % 300)[None])


def read(directory):
    tensors = {}
    for name in glob.glob(directory + "/*.safetensors"):
        with safe_open(name, "pt") as f:
            for k in f.keys():
                tensors[k] = f.get_slice(k).get_dtype(), f.get_tensor(k)
    return tensors


def int4_of_mxfp4(directory):
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.bfloat16)
    source, out = read(directory), {}
    for name in [n for n in source if n.endswith(".weight_scale")]:
        stem = name[: -len("_scale")]
        codes, scale = source[stem][1], source[name][1]
        rows, groups = scale.shape
        w = values[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(rows, groups, 32)
        w = w * torch.exp2(scale.float() - 127).to(torch.bfloat16)[..., None]
        raw = torch.clamp(w.abs().amax(-1), min=torch.tensor(1e-6, dtype=torch.bfloat16)) / 7
        q = torch.clamp(torch.round(w / raw[..., None]), -7, 7).to(torch.int8).reshape(rows, groups * 32)
        out[stem + "_packed"] = "I32", pack_to_int32(q, 4)
        out[name] = "BF16", raw
    return out


def digest(tensors):
    h, n = hashlib.sha256(), 0
    for name in sorted(tensors):
        dtype, t = tensors[name]
        if "weight_scale" in name or dtype in ("U8", "F8_E4M3", "I32"):
            h.update(f"{name} {dtype} {list(t.shape)}\n".encode())
            h.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            n += 1
    return n, h.hexdigest()


rows = []
for source, config, recipe in CASES:
    with tempfile.TemporaryDirectory() as out:
        model = AutoModelForCausalLM.from_pretrained(os.path.join(sys.argv[1], source), dtype=torch.bfloat16)
        model = mtq.quantize(model, getattr(mtq, config), calibrate)
        with torch.inference_mode():
            export_hf_checkpoint(model, export_dir=out)
        n, h = digest(read(out))
    rows.append({"source": source, "config": config, "recipe": recipe, "tensors": n, "sha256": h})
n, h = digest(int4_of_mxfp4(os.path.join(sys.argv[1], "qwen3_moe-mxfp4")))
rows.append({"source": "qwen3_moe-mxfp4", "config": "int4 of MXFP4", "recipe": '{"rules": [{"match": "experts", "format": "int4"}]}',
             "tensors": n, "sha256": h})
with open(sys.argv[2], "w") as f:
    f.write("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
