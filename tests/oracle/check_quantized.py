#!/usr/bin/env python3
"""Holds checkpoints that `moebatch quantize` wrote against the libraries that their formats come from.

usage: check_quantized.py MOEBATCH DIR...      (PyPI: torch, transformers, compressed-tensors, nvidia-modelopt, gguf, safetensors)

Every quantized tensor is decoded by the publisher's own code, and the SHA-256 of its float32 values compared with
what `moebatch inspect --digest` prints:
  quant_method modelopt            nvidia-modelopt's tensor classes; gguf for Q8_0
  quant_method compressed-tensors  transformers loads the directory as a model, compressed-tensors decompresses it
  quant_method mxfp4               transformers loads the directory as a model and dequantizes it
All files of the directory are read by safetensors, and its configuration by transformers.
"""
import glob
import hashlib
import json
import subprocess
import sys
import warnings

import torch
from safetensors import safe_open

warnings.filterwarnings("ignore")


def sha(t):
    return hashlib.sha256(t.detach().to(torch.float32).contiguous().numpy().tobytes()).hexdigest()


def read(directory):
    out = {}
    for name in sorted(glob.glob(directory + "/*.safetensors")):
        with safe_open(name, "pt") as f:
            out.update({k: f.get_tensor(k) for k in f.keys()})
    return out


def turned(t):
    return t.transpose(-1, -2)


def modelopt(w, stem, stack):
    """The values of one weight: [out, in], or [experts, in, out] of a stack."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
    join = "_" if stack else "."
    weight = w[stem if stack else stem + ".weight"]
    scale, double = w.get(f"{stem}{join}weight_scale"), w.get(f"{stem}{join}weight_scale_2")
    if scale is None:  # ggml's blocks
        import gguf
        return torch.from_numpy(gguf.quants.dequantize(weight.reshape(weight.shape[0], -1).numpy(),
                                                       gguf.GGMLQuantizationType.Q8_0))
    if double is not None:
        if stack:
            weight, scale = turned(weight).contiguous(), turned(scale).contiguous()
        shape = (*weight.shape[:-1], weight.shape[-1] * 2)
        group = shape[-1] // scale.shape[-1]
        v = NVFP4QTensor(shape, torch.float32, weight).dequantize(scale=scale, double_scale=double, block_sizes={-1: group})
        codes = torch.stack([weight & 15, weight >> 4], -1).reshape(shape)
        v = torch.where(codes == 8, -0.0, v)  # its table of values has no -0
        return turned(v) if stack else v
    if scale.dtype == torch.uint8 and weight.dtype == torch.uint8:
        shape = (weight.shape[0], weight.shape[1] * 2)
        return MXFP4QTensor(shape, torch.float32, weight).dequantize(scale=scale, block_sizes={-1: 32})
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(scale=scale)
    if scale.dim() == 4:
        return FP8QTensor(weight.shape, torch.float32, weight).dequantize(
            scale=scale.squeeze(3).squeeze(1), block_sizes={-1: 128, -2: 128})
    return FP8QTensor(weight.shape, torch.float32, weight).dequantize(
        scale=scale.reshape(-1, 1) if scale.dim() == 1 else scale)


def as_model(directory, **more):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **more)


def packed(directory):
    """transformers fuses experts into stacks; the library's own decompression leaves them apart."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor as C
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    config = json.load(open(directory + "/config.json"))["quantization_config"]
    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme(targets=group["targets"], weights=QuantizationArgs(**group["weights"]))
    w = read(directory)
    for name in [n for n in w if n.endswith(".weight_packed")]:
        stem = name[: -len(".weight_packed")]
        part = {k: w[f"{stem}.{k}"] for k in ("weight_packed", "weight_scale", "weight_shape")}
        part["weight_scale"] = part["weight_scale"].to(torch.float32)
        yield stem + ".weight", C.decompress(part, scheme=scheme)["weight"]


def check(moebatch, directory):
    from transformers import AutoConfig
    AutoConfig.from_pretrained(directory)
    config = json.load(open(directory + "/config.json"))["quantization_config"]
    text = subprocess.run([moebatch, "inspect", directory, "--digest"], check=True, capture_output=True, text=True).stdout
    want = {n: h for h, n in (line.split() for line in text.splitlines() if len(line.split()) == 2 and len(line.split()[0]) == 64)}
    w, got = read(directory), {}
    if config["quant_method"] == "modelopt":
        for name in want:
            stack = not name.endswith(".weight")
            got[name] = sha(modelopt(w, name if stack else name[: -len(".weight")], stack))
    elif config["quant_method"] == "compressed-tensors":
        got = {name: sha(v) for name, v in packed(directory)}
        model = as_model(directory)
        with torch.no_grad():
            assert torch.isfinite(model(torch.arange(8)[None]).logits).all()
    else:
        from transformers import Mxfp4Config
        model = as_model(directory, quantization_config=Mxfp4Config(dequantize=True))
        state = model.state_dict()
        got = {name: sha(state[name.removesuffix("_blocks")]) for name in want}
    same = sum(got.get(n) == h for n, h in want.items())
    print(f"{directory}: {same} of {len(want)} tensors as {config['quant_method']} reads them")
    return bool(want) and same == len(want)


ok = [check(sys.argv[1], d) for d in sys.argv[2:]]
sys.exit(0 if all(ok) else 1)
