"""Makes ../data/quant/online.json: SHA-256 of a checkpoint's weights after each --quantize, layer by layer.

Written from formats.md in numpy's float32 with ml_dtypes' conversions; int4 by compressed-tensors, Q8_0 by gguf.
What is hashed is the decoded float32 matrices, one after the other: q, k, v (or q_a, q_b, kv_a), o; then gate, up
of each expert, then the down projections; or those of a dense layer; then those of shared experts.

    python3 -m venv oracle && oracle/bin/pip install torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 \
        compressed-tensors==0.20.1 gguf==0.19.0
    oracle/bin/python tests/oracle/make_online.py ../shared/goldens
"""
import hashlib
import json
import pathlib
import sys

import gguf
import ml_dtypes
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors import safe_open

F = np.float32
OUT = pathlib.Path(__file__).parent.parent / "data" / "quant" / "online.json"


def cast(x, dtype, largest):
    return np.clip(x, F(-largest), F(largest)).astype(dtype).astype(F)


def e4m3(x):
    return cast(x, ml_dtypes.float8_e4m3fn, 448)


def e2m1(x):
    return cast(x, ml_dtypes.float4_e2m1fn, 6)


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(F)


def nvfp4(ws):  # formats.md section 4: one scale for the bank
    amax = max(F(np.abs(w).max()) for w in ws)
    g = F(2688) / max(amax, F(1e-8))
    scale_2 = F(1) / g
    out = []
    for w in ws:
        scaled = bf16(w * g).reshape(w.shape[0], -1, 16)
        s = e4m3(np.abs(scaled).max(axis=2, keepdims=True) * (F(1) / F(6)))
        o = np.where(s == 0, F(0), F(1) / np.where(s == 0, F(1), s))
        out.append((e2m1(scaled * o) * (s * scale_2)).reshape(w.shape))
    return out


def exponent(amax, largest):
    ratio = amax / F(largest)
    with np.errstate(divide="ignore"):
        return np.clip(np.ceil(np.log2(ratio.astype(np.float64))), -127, 127)


def mxfp8(ws):
    out = []
    for w in ws:
        g = w.reshape(w.shape[0], -1, 32)
        k = exponent(np.abs(g).max(axis=2, keepdims=True), 448)
        out.append((e4m3((g * np.exp2(-k)).astype(F)) * np.exp2(k).astype(F)).reshape(w.shape))
    return out


def mxfp4(ws):
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F)
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], F)
    out = []
    for w in ws:
        g = w.reshape(w.shape[0], -1, 32)
        k = exponent(np.abs(g).max(axis=2, keepdims=True), 6)
        q = (g * np.exp2(-k)).astype(F)
        q = np.where(q > 0, 1, -1).astype(F) * values[np.searchsorted(middles, np.abs(q), side="left")]
        out.append((q * np.exp2(k).astype(F)).reshape(w.shape))
    return out


def fp8_rows(w):
    amax = np.abs(w).max(axis=1, keepdims=True)
    s = np.where(amax == 0, F(1), amax / F(448))
    return e4m3(w / s) * s


def fp8_dynamic(ws):
    return [fp8_rows(w) for w in ws]


def fp8_block(ws):
    out = []
    for w in ws:
        y = np.empty_like(w)
        for r in range(0, w.shape[0], 128):
            for c in range(0, w.shape[1], 128):
                block = w[r:r + 128, c:c + 128]
                y[r:r + 128, c:c + 128] = fp8_rows(block.reshape(1, -1)).reshape(block.shape)
        out.append(y)
    return out


def int4(ws):
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="channel")
    out = []
    for w in ws:
        y = np.empty_like(w)
        for c in range(0, w.shape[1], 32):  # a group of each row, as channels of their own
            t = torch.from_numpy(w[:, c:c + 32].copy()).to(torch.bfloat16)
            scale, zero = calculate_qparams(t.amin(1, keepdim=True), t.amax(1, keepdim=True), args)
            q = quantize(t, scale, zero, args)
            # codes are integers: there is no -0
            y[:, c:c + 32] = dequantize(q.float(), scale.float(), zero.float(), args).float().numpy() + F(0)
        out.append(y)
    return out


def q8_0(ws):
    kind = gguf.GGMLQuantizationType.Q8_0
    return [gguf.quants.dequantize(gguf.quants.quantize(w, kind), kind) for w in ws]


FORMATS = {"nvfp4": nvfp4, "mxfp4": mxfp4, "mxfp8": mxfp8, "fp8-dynamic": fp8_dynamic, "fp8-block": fp8_block,
           "int4": int4, "q8_0": q8_0}
ANY_WIDTH = ["fp8-dynamic", "fp8-block", "int4"]


class Files:
    def __init__(self, directory):
        self.f = safe_open(directory / "model.safetensors", "pt")
        self.names = set(self.f.keys())

    def get(self, name):
        return self.f.get_tensor(name).float().numpy()

    def linear(self, prefix, *names):
        return [self.get(f"{prefix}.{n}.weight") for n in names]


def banks_of(files, layer, n_experts):
    """[(where, [matrices that share a bank])]"""
    p = f"model.layers.{layer}."
    attn, mlp = p + "self_attn", p + "mlp"
    banks = []
    if attn + ".kv_a_proj_with_mqa.weight" in files.names:
        for n in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"):
            banks.append((False, files.linear(attn, n)))
    else:
        banks.append((False, files.linear(attn, "q_proj", "k_proj", "v_proj")))
    banks.append((False, files.linear(attn, "o_proj")))
    if mlp + ".experts.gate_up_proj" in files.names:  # gpt_oss: [E, in, 2 inter], rows interleaved once turned
        both, down = files.get(mlp + ".experts.gate_up_proj"), files.get(mlp + ".experts.down_proj")
        for e in range(n_experts):
            t = np.ascontiguousarray(both[e].T)
            banks.append((True, [np.ascontiguousarray(t[0::2]), np.ascontiguousarray(t[1::2])]))
        for e in range(n_experts):
            banks.append((True, [np.ascontiguousarray(down[e].T)]))
    elif mlp + ".experts.0.gate_proj.weight" in files.names:
        for e in range(n_experts):
            banks.append((True, files.linear(f"{mlp}.experts.{e}", "gate_proj", "up_proj")))
        for e in range(n_experts):
            banks.append((True, files.linear(f"{mlp}.experts.{e}", "down_proj")))
    else:
        banks.append((False, files.linear(mlp, "gate_proj", "up_proj")))
        banks.append((False, files.linear(mlp, "down_proj")))
    for shared in ("shared_expert", "shared_experts"):
        if f"{mlp}.{shared}.gate_proj.weight" in files.names:
            banks.append((False, files.linear(f"{mlp}.{shared}", "gate_proj", "up_proj")))
            banks.append((False, files.linear(f"{mlp}.{shared}", "down_proj")))
    return banks


def digests(directory, names):
    config = json.loads((directory / "config.json").read_text())
    n_experts = config.get("num_experts") or config.get("n_routed_experts") or config.get("num_local_experts")
    files = Files(directory)
    out = {}
    for name in names:
        for only in (False, True):
            key = name + (" experts-only" if only else "")
            out[key] = []
            for layer in range(config["num_hidden_layers"]):
                h = hashlib.sha256()
                for expert, ws in banks_of(files, layer, n_experts):
                    for w in FORMATS[name](ws) if expert or not only else ws:
                        h.update(np.ascontiguousarray(w, F).tobytes())
                out[key].append(h.hexdigest())
    return out


def main():
    goldens = pathlib.Path(sys.argv[1])
    families = OUT.parent.parent / "families"
    result = {"shared": {}, "families": {}}
    for name in ("qwen3_moe-bf16", "gpt_oss-bf16", "deepseek_v3-bf16", "qwen2_moe-bf16"):
        result["shared"][name] = digests(goldens / name, FORMATS)
    result["families"]["qwen3_moe-a"] = digests(families / "qwen3_moe-a", ANY_WIDTH)
    OUT.write_text(json.dumps(result, indent=0) + "\n")


if __name__ == "__main__":
    main()
