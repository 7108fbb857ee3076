#!/usr/bin/env python3
"""Writes tests/data/quant/vectors.json: what other implementations make of inputs that a test can make again.

usage: make_quant_vectors.py tests/data/quant/vectors.json
       (PyPI: nvidia-modelopt 0.47.0, compressed-tensors 0.20.1, gguf 0.19.0, ml_dtypes 0.6.0, torch 2.15.0, numpy 2.4.6)

Inputs come from a 64-bit hash of (seed, index): see value() and byte() below and tests/support/quant_case.c.
Results are kept as SHA-256 of little-endian bytes.

  elements   every code decoded; encoders over inputs that hold all ties: ml_dtypes, and torch for E8M0
  decoders   random blocks through gguf's dequantization
  encoders   one matrix each:
      fp8 fp8_channel fp8_block nvfp4 mxfp8 mxfp4 nvfp4_of_mxfp4   nvidia-modelopt's export functions
      int4                                                         compressed-tensors
      q8_0                                                         gguf
      nvfp4_online int4_of_mxfp4   tensor operations of torch, in the weights' type, written here from the
                                   descriptions: no package on PyPI holds these two
"""
import hashlib
import json
import sys
import warnings

import gguf
import ml_dtypes
import numpy as np
import torch

warnings.filterwarnings("ignore")
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs  # noqa: E402
from compressed_tensors.quantization.lifecycle.forward import quantize as ct_quantize  # noqa: E402
from compressed_tensors.quantization.utils import calculate_qparams  # noqa: E402
from modelopt.torch.export import quant_utils  # noqa: E402
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor  # noqa: E402
from modelopt.torch.quantization.utils import numeric_utils, reduce_block_amax, reduce_block_padding  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def mix(seed, n):
    z = (np.uint64(seed) << np.uint64(32)) + np.arange(n, dtype=np.uint64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def byte(seed, n):
    return (mix(seed, n) >> np.uint64(56)).astype(np.uint8)


def value(seed, n, source, spread):
    """Floats of mixed sizes, some of them zeros of either sign; every 37th 32 are all zeros."""
    z = mix(seed, n)
    i = np.arange(n)
    below = np.zeros(n, np.int64)  # trailing ones of eight bits: smaller values are rarer
    run = np.ones(n, bool)
    for b in range(8):
        run &= (z >> np.uint64(23 + b) & np.uint64(1)) == 1
        below += run
    exponent = 124 - below - (z >> np.uint64(32) & np.uint64(3)).astype(np.int64)
    if spread:
        exponent += i // 32 % 61 - 30
    bits = exponent.astype(np.uint32) << 23 | (z & np.uint64(0x7FFFFF)).astype(np.uint32)
    bits[(z >> np.uint64(40) & np.uint64(63)) == 0] = 0
    bits[i // 32 % 37 == 5] = 0
    bits |= (z >> np.uint64(63)).astype(np.uint32) << 31
    bits &= np.uint32({"f32": 0xFFFFFFFF, "bf16": 0xFFFF0000, "f16": 0xFFFFE000}[source])
    return bits.view(np.float32)


def elements():
    low = [0x0000, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    bits = (np.arange(65536, dtype=np.uint32)[:, None] << 16 | np.array(low, np.uint32)).reshape(-1)
    v = bits.view(np.float32)
    number = np.where(np.isnan(v), np.float32(0), v)
    positive = np.abs(number)  # the sign of an E8M0 input is ignored

    def floats(a):  # one NaN for all
        a = a.astype(np.float32)
        return np.where(np.isnan(a), np.float32(np.nan), a).view(np.uint32)

    e8m0 = torch.from_numpy(positive.copy()).to(torch.float8_e8m0fnu).view(torch.uint8).numpy()
    decode8 = np.arange(256, dtype=np.uint8)
    decode16 = np.arange(65536, dtype=np.uint16)
    m = ml_dtypes
    with np.errstate(all="ignore"):
        return {
            "decode e4m3": sha(floats(decode8.view(m.float8_e4m3fn))),
            "decode e8m0": sha(floats(decode8.view(m.float8_e8m0fnu))),
            "decode e2m1": sha(floats(decode8[:16].view(m.float4_e2m1fn))),
            "decode f16": sha(floats(decode16.view(np.float16))),
            "decode bf16": sha(floats(decode16.view(m.bfloat16))),
            "encode bf16": sha(number.astype(m.bfloat16).view(np.uint16)),
            "encode f16": sha(number.astype(np.float16).view(np.uint16)),
            "encode e4m3": sha(np.clip(number, -448, 448).astype(m.float8_e4m3fn).view(np.uint8)),
            "encode e2m1": sha(np.clip(number, -6, 6).astype(m.float4_e2m1fn).view(np.uint8) & 15),
            "encode e8m0": sha(e8m0),
        }


def decoders():
    out = []
    for name, kind, unit in (("q8_0", gguf.GGMLQuantizationType.Q8_0, 34),
                             ("iq2_xs", gguf.GGMLQuantizationType.IQ2_XS, 74),
                             ("iq2_xxs", gguf.GGMLQuantizationType.IQ2_XXS, 66)):
        seed, rows, blocks = 100 + unit, 3, 5
        data = byte(seed, rows * blocks * unit).reshape(rows, blocks, unit)
        data[:, :, 1] &= 0xBF  # the scale's exponent: no infinities and NaN
        w = gguf.quants.dequantize(data.reshape(rows, -1), kind)
        out.append({"format": name, "seed": seed, "rows": rows, "blocks": blocks, "values": sha(w.astype("<f4"))})
    return out


def fp8(w, c):
    s = torch.tensor(max(w.abs().max().float().item(), c.get("amax", 0))) / 448
    return quant_utils.to_quantized_weight(w, s, quant_utils.QUANTIZATION_FP8), s


def fp8_channel(w, c):
    amax = w.abs().amax(1).float()
    s = torch.where(amax == 0, 448.0, amax) / 448  # an amax of 0 becomes the bound, as on export
    return quant_utils.to_quantized_weight(w, s, quant_utils.QUANTIZATION_FP8_PC_PT), s


def fp8_block(w, c):
    b = {-1: c["group"], -2: c["group"]}
    amax = reduce_block_amax(reduce_block_padding(w, b), b).float()
    s = torch.where(amax == 0, 448.0, amax) / 448
    q = quant_utils.to_quantized_weight(w, s, quant_utils.QUANTIZATION_FP8_PB_WO, block_size=c["group"])
    return q, s


def nvfp4(w, c):
    s2 = torch.tensor(max(w.abs().max().float().item(), c.get("amax", 0))) / 2688
    q, s, _ = NVFP4QTensor.quantize(w.clone(), c["group"], None, s2)
    return q._quantized_data, s


def mxfp8(w, c):
    s = MXFP8QTensor.get_weights_scaling_factor(w)
    return MXFP8QTensor.quantize_with_scale(w, s), s


def mxfp4(w, c):
    q, s = MXFP4QTensor.quantize(w, 32)
    return q._quantized_data, s


def nvfp4_online(w, c):
    dtype = w.dtype
    amax = torch.clamp(w.abs().max().float(), min=torch.tensor(1e-8))
    g = torch.tensor(2688.0) / amax
    x = (w.float() * g).to(dtype).float().reshape(w.shape[0], -1, 16)
    s = (x.abs().amax(-1) * torch.tensor(1 / 6, dtype=torch.float32)).clamp(max=448).to(torch.float8_e4m3fn)
    sf = s.float()
    up = torch.where(sf == 0, torch.zeros_like(sf), 1 / sf)
    y = (x * up[..., None]).reshape(w.shape).clamp(-6, 6).numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return torch.from_numpy(y[:, 0::2] | y[:, 1::2] << 4), s


def int4(w, c):
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True,
                            **({"strategy": "channel"} if c["group"] == w.shape[1] else
                               {"strategy": "group", "group_size": c["group"]}))
    x = w.reshape(w.shape[0], -1, c["group"])
    s, z = calculate_qparams(x.amin(-1), x.amax(-1), args)
    q = ct_quantize(w, s.to(torch.bfloat16).to(w.dtype), z, args, dtype=torch.int8)
    return pack_to_int32(q, 4), s.to(torch.bfloat16)


def int4_of_mxfp4(w, c):
    x = w.to(torch.bfloat16).reshape(w.shape[0], -1, 32)
    raw = torch.clamp(x.abs().amax(-1), min=torch.tensor(1e-6, dtype=torch.bfloat16)) / 7
    q = torch.clamp(torch.round(x / raw[..., None]), -7, 7).to(torch.int8).reshape(w.shape)
    return pack_to_int32(q, 4), raw


def q8_0(w, c):
    return torch.from_numpy(gguf.quants.quantize(w.float().numpy(), gguf.GGMLQuantizationType.Q8_0)), None


def nvfp4_of_mxfp4(w, c):
    q, s = mxfp4(w, c)
    blocks = q.reshape(w.shape[0], -1, 16)
    s = s.reshape(w.shape[0], -1)
    amax, _ = numeric_utils.mxfp4_to_nvfp4_global_amax(s)
    s2 = torch.tensor(amax) / 2688
    block = numeric_utils.mxfp4_to_nvfp4_per_block_amax(blocks, s)
    return q, (block / (6 * s2)).clamp(2**-9, 448).to(torch.float8_e4m3fn)


CASES = [
    (fp8, "bf16", 5, 96, {}), (fp8, "f16", 5, 96, {}), (fp8, "f32", 5, 97, {}), (fp8, "bf16", 3, 64, {"amax": 1.5}),
    (fp8_channel, "bf16", 40, 64, {}), (fp8_channel, "f32", 40, 63, {}), (fp8_channel, "f16", 3, 33, {}),
    (fp8_block, "bf16", 300, 260, {"group": 128}), (fp8_block, "f32", 128, 128, {"group": 128}),
    (fp8_block, "bf16", 130, 40, {"group": 16}),
    (nvfp4, "bf16", 40, 64, {"group": 16}), (nvfp4, "f32", 40, 64, {"group": 16}), (nvfp4, "f16", 9, 96, {"group": 32}),
    (nvfp4, "bf16", 64, 64, {"group": 16, "spread": 1}), (nvfp4, "bf16", 9, 48, {"group": 16, "amax": 3.0}),
    (nvfp4_online, "bf16", 40, 64, {}), (nvfp4_online, "f16", 40, 64, {}), (nvfp4_online, "f32", 9, 48, {}),
    (nvfp4_online, "bf16", 64, 64, {"spread": 1}),
    (mxfp8, "bf16", 40, 64, {}), (mxfp8, "f16", 40, 96, {}), (mxfp8, "bf16", 64, 64, {"spread": 1}),
    (mxfp8, "f32", 64, 64, {"spread": 1}),
    (mxfp4, "bf16", 40, 64, {}), (mxfp4, "f16", 40, 96, {}), (mxfp4, "bf16", 64, 64, {"spread": 1}),
    (mxfp4, "f32", 64, 64, {"spread": 1}),
    (nvfp4_of_mxfp4, "bf16", 40, 64, {}),
    (int4, "bf16", 40, 64, {"group": 32}), (int4, "bf16", 40, 256, {"group": 128}), (int4, "bf16", 9, 69, {"group": 69}),
    (int4, "bf16", 64, 64, {"group": 32, "spread": 1}),
    (int4_of_mxfp4, "bf16", 40, 64, {}), (int4_of_mxfp4, "bf16", 64, 64, {"spread": 1}),
    (q8_0, "bf16", 40, 64, {}), (q8_0, "f32", 9, 96, {}), (q8_0, "f16", 9, 96, {}),
]


def raw(t):
    t = t.contiguous()
    return t.view(torch.uint8).numpy() if t.dim() else t.reshape(1).view(torch.uint8).numpy()


def encoders():
    out = []
    for seed, (f, source, rows, cols, more) in enumerate(CASES, 1):
        w = torch.from_numpy(value(seed, rows * cols, source, more.get("spread", 0))).to(DTYPES[source])
        q, s = f(w.reshape(rows, cols), more)
        out.append({"format": f.__name__, "source": source, "rows": rows, "cols": cols, **more, "seed": seed,
                    "codes": sha(raw(q)), **({} if s is None else {"scales": sha(raw(s))})})
    return out


with open(sys.argv[1], "w") as out:
    parts = {"elements": [elements()], "decoders": decoders(), "encoders": encoders()}
    out.write("{" + ",\n".join(f'"{k}": [\n' + ",\n".join(map(json.dumps, v)) + "]" for k, v in parts.items()) + "}\n")
