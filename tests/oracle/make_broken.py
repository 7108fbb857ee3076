"""Makes ../data/broken: small checkpoints, each broken in one way, and cases.txt with what is said of each.

Needs nothing but Python 3.11:  python3 tests/oracle/make_broken.py

A line of cases.txt is NAME, the exit code of `inspect --deep`, what `run` does (with those flags): it
refuses with the same words, warns with them, or runs; and a part of the message; separated by tabs.
"""
import json
import pathlib
import random
import shutil
import struct

OUT = pathlib.Path(__file__).parent.parent / "data" / "broken"
HIDDEN, INTER, EXPERTS, VOCAB, HEADS, KV_HEADS, HEAD = 32, 32, 2, 8, 2, 1, 16
L, X = "model.layers.0.", "model.layers.0.mlp.experts."
PLAIN = ["lm_head", "model.embed_tokens", L + "mlp.gate"]
SHAPES = {
    L + "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    L + "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    L + "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    L + "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    **{f"{X}{e}.{p}": (INTER, HIDDEN) if p != "down_proj" else (HIDDEN, INTER)
       for e in range(EXPERTS) for p in ("gate_proj", "up_proj", "down_proj")},
}
f32 = lambda *v: struct.pack(f"<{len(v)}f", *v)
F32_LOWEST, NAN = f32(-3.4028234663852886e38), f32(float("nan"))


def bf16(rng, n, spread=0.05):
    return b"".join(f32(rng.gauss(0, spread))[2:] for _ in range(n))


def e4m3(rng, n):  # any code but NaN
    return bytes(c if c & 0x7F != 0x7F else c - 1 for c in rng.randbytes(n))


def quantize(kind, t, rng, name, rows, cols):
    """The tensors of one module."""
    if kind == "nvfp4":
        t[name + ".weight"] = ["U8", [rows, cols // 2], rng.randbytes(rows * cols // 2)]
        t[name + ".weight_scale"] = ["F8_E4M3", [rows, cols // 16], bytes(rng.choices(range(0x30, 0x48), k=rows * cols // 16))]
        t[name + ".weight_scale_2"] = ["F32", [], f32(0.01)]
        t[name + ".input_scale"] = ["F32", [], f32(0.002)]
    elif kind == "fp8":
        t[name + ".weight"] = ["F8_E4M3", [rows, cols], e4m3(rng, rows * cols)]
        t[name + ".weight_scale"] = ["F32", [], f32(0.0005)]
        t[name + ".input_scale"] = ["F32", [], f32(0.01)]
    elif kind == "blocks":
        t[name + ".weight"] = ["F8_E4M3", [rows, cols], e4m3(rng, rows * cols)]
        t[name + ".weight_scale_inv"] = ["F32", [1, 1], f32(0.0005)]
    elif kind == "mxfp4":
        t[name + ".weight"] = ["U8", [rows, cols // 2], rng.randbytes(rows * cols // 2)]
        t[name + ".weight_scale"] = ["U8", [rows, cols // 32], bytes(rng.choices(range(118, 124), k=rows * cols // 32))]
    elif kind == "int4":
        t[name + ".weight_packed"] = ["I32", [rows, cols // 8], rng.randbytes(rows * cols // 2)]
        t[name + ".weight_scale"] = ["BF16", [rows, cols // 32], b"".join(f32(0.01)[2:] for _ in range(rows * cols // 32))]
        t[name + ".weight_shape"] = ["I64", [2], struct.pack("<2q", rows, cols)]
    elif kind == "q8_0":
        blocks = b"".join(struct.pack("<e", 0.001) + rng.randbytes(32) for _ in range(rows * cols // 32))
        t[name + ".weight"] = ["U8", [rows, cols // 32, 34], blocks]
    else:
        t[name + ".weight"] = ["BF16", [rows, cols], bf16(rng, rows * cols)]


def quantization(kind):
    if kind in ("nvfp4", "fp8", "mxfp4"):
        q = {"quant_method": "modelopt", "quant_algo": kind.upper(), "ignore": list(PLAIN), "producer": {"name": "modelopt"}}
        return q | ({"group_size": 16} if kind == "nvfp4" else {})
    if kind == "blocks":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    if kind == "int4":
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32, "strategy": "group"}
        return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*mlp.gate$"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    if kind == "q8_0":
        entry = {"quant_algo": "Q8_0", "group_size": 32, "block_payload_bytes": 34, "packing": "ggml"}
        return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": [],
                "quantized_layers": {name: entry for name in SHAPES if ".experts." not in name} | {X[:-1]: entry}}


class Checkpoint:
    def __init__(self, kind):
        rng = random.Random(kind)
        self.config = {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": VOCAB, "hidden_size": HIDDEN,
            "intermediate_size": INTER, "moe_intermediate_size": INTER, "num_hidden_layers": 1, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "num_experts": EXPERTS, "num_experts_per_tok": 1,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
            "max_position_embeddings": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16"}
        self.q = quantization(kind)
        self.t = {}
        self.parts = None  # file -> names; the index lists what lies in index, or all
        self.index = None
        self.edit_bytes = lambda data: data
        for name, n in (("model.embed_tokens", VOCAB), ("lm_head", VOCAB), (L + "mlp.gate", EXPERTS)):
            self.t[name + ".weight"] = ["BF16", [n, HIDDEN], bf16(rng, n * HIDDEN)]
        for name, n in (("model.norm", HIDDEN), (L + "input_layernorm", HIDDEN), (L + "post_attention_layernorm", HIDDEN),
                        (L + "self_attn.q_norm", HEAD), (L + "self_attn.k_norm", HEAD)):
            self.t[name + ".weight"] = ["BF16", [n], f32(1.0)[2:] * n]
        for name, (rows, cols) in SHAPES.items():
            quantize(kind, self.t, rng, name, rows, cols)

    def put(self, name, at, data):
        old = self.t[name][2]
        self.t[name][2] = old[:at] + data + old[at + len(data):]

    def fill(self, name, byte):
        self.t[name][2] = bytes([byte]) * len(self.t[name][2])

    def header(self, names):
        at, out, data = 0, {}, b""
        for name in names:
            dtype, shape, raw = self.t[name][:3]
            out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
            at += len(raw)
            data += raw
        return out, data

    def file(self, names, edit_header=lambda h: None):
        header, data = self.header(names)
        edit_header(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data

    def write(self, directory, edit_header=lambda h: None):
        directory.mkdir(parents=True)
        config = self.config | ({"quantization_config": self.q} if self.q else {})
        (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if not self.parts:
            (directory / "model.safetensors").write_bytes(self.edit_bytes(self.file(self.t, edit_header)))
            return
        for part, names in self.parts.items():
            (directory / part).write_bytes(self.file(names))
        index = self.index or {name: part for part, names in self.parts.items() for name in names}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}, indent=0) + "\n")

    def split(self):
        names = list(self.t)
        self.parts = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
        self.index = {name: part for part, part_names in self.parts.items() for name in part_names}


CASES = []


def case(name, kind, code, refused, message, flags=""):
    def keep(edit):
        CASES.append((name, kind, code, refused, message, flags, edit))
        return edit
    return keep


def at(name):
    return f'model.safetensors: tensor "{name}": '


Q, O, UP, DOWN = L + "self_attn.q_proj", L + "self_attn.o_proj", X + "1.up_proj", X + "0.down_proj"
for sound in ("nvfp4", "fp8", "blocks", "mxfp4", "int4", "q8_0"):
    case("sound-" + sound, sound, 0, False, "0 errors, 0 warnings")(lambda c: None)


@case("scale-missing", "nvfp4", 1, True, at(UP + ".weight_scale") + "missing, expected the scales of NVFP4 weights")
def _(c): del c.t[UP + ".weight_scale"]


@case("global-missing", "nvfp4", 1, True, at(DOWN + ".weight_scale_2") + "missing, expected F32 []")
def _(c): del c.t[DOWN + ".weight_scale_2"]


@case("global-nan", "nvfp4", 1, True, at(UP + ".weight_scale_2") + "scale nan, expected a positive number")
def _(c): c.t[UP + ".weight_scale_2"][2] = NAN


@case("global-zero", "nvfp4", 1, True, at(O + ".weight_scale_2") + "scale 0, expected a positive number")
def _(c): c.t[O + ".weight_scale_2"][2] = f32(0)


@case("block-scale-nan", "nvfp4", 1, True, at(UP + ".weight_scale") + "scale [2, 1] is nan, expected a finite, not negative number")
def _(c): c.put(UP + ".weight_scale", 5, b"\x7f")


@case("block-scale-negative", "nvfp4", 1, True, at(Q + ".weight_scale") + "scale [3, 1] is -1, expected a finite, not negative number")
def _(c): c.put(Q + ".weight_scale", 7, b"\xb8")


@case("input-scale-infinite", "nvfp4", 1, True, at(UP + ".input_scale") + "scale inf, expected a positive number", "--activations stored")
def _(c): c.t[UP + ".input_scale"][2] = f32(float("inf"))


@case("packed-odd", "nvfp4", 1, True, at(UP + ".weight") + "shape [32, 15], expected [32, 16]")
def _(c): c.t[UP + ".weight"] = ["U8", [32, 15], c.t[UP + ".weight"][2][:32 * 15]]


@case("group-contradicts", "nvfp4", 1, True, "quantization_config says groups of 32")
def _(c): c.q["group_size"] = 32


@case("not-excluded", "nvfp4", 1, True, at(O + ".weight") + "dtype BF16, expected NVFP4 codes: quantization_config does not exclude this layer")
def _(c):
    for suffix in ("weight", "weight_scale", "weight_scale_2", "input_scale"):
        del c.t[f"{O}.{suffix}"]
    c.t[O + ".weight"] = ["BF16", [32, 32], bf16(random.Random(1), 1024)]


@case("excluded-but-quantized", "fp8", 1, True, at(O + ".weight") + "dtype F8_E4M3, expected BF16, F16 or F32 [32, 32]")
def _(c): c.q["ignore"].append(O)


@case("part-of-fused-excluded", "fp8", 1, True, "self_attn.qkv_proj: q_proj is excluded, but k_proj is FP8: expected all parts of a fused layer")
def _(c):
    c.q["ignore"].append(Q)
    for suffix in ("weight", "weight_scale", "input_scale"):
        del c.t[f"{Q}.{suffix}"]
    c.t[Q + ".weight"] = ["BF16", [32, 32], bf16(random.Random(2), 1024)]


@case("code-nan", "fp8", 1, True, at(DOWN + ".weight") + "value [1, 8] is not a finite number")
def _(c): c.put(DOWN + ".weight", 40, b"\xff")


@case("scale-sentinel", "fp8", 1, True, at(UP + ".weight_scale") + "scale is -3.40282e+38, expected a positive number")
def _(c): c.t[UP + ".weight_scale"][2] = F32_LOWEST


@case("scale-of-another-shape", "blocks", 1, True, at(UP + ".weight_scale_inv") + "shape [2, 1], expected [1, 1] or [1, 1, 1, 1]: blocks of 128 x 128")
def _(c): c.t[UP + ".weight_scale_inv"] = ["F32", [2, 1], f32(0.1, 0.1)]


@case("e8m0-255", "mxfp4", 1, True, at(DOWN + ".weight_scale") + "scale [9, 0] is 255 (not a number), expected 0 to 254")
def _(c): c.put(DOWN + ".weight_scale", 9, b"\xff")


@case("pack-says-another-shape", "int4", 1, True, at(UP + ".weight_shape") + "says [32, 28], expected [32, 32]")
def _(c): c.t[UP + ".weight_shape"][2] = struct.pack("<2q", 32, 28)


@case("block-infinite", "q8_0", 1, True, at(UP + ".weight") + "the scale of the block at [4, 0, 0] is not a finite number")
def _(c): c.put(UP + ".weight", 4 * 34, struct.pack("<e", float("inf")))


@case("algorithm-unknown", "fp8", 1, True, 'quantization_config.quant_algo: "FP7" is not known, expected FP8,')
def _(c): c.q["quant_algo"] = "FP7"


@case("scales-left-over", "fp8", 1, True, at(L + "mlp.gate.weight_scale") + "F32 [], but qwen3_moe of 1 layers has no such tensor")
def _(c): c.t[L + "mlp.gate.weight_scale"] = ["F32", [], f32(1)]


@case("norm-nan", "fp8", 1, True, at("model.norm.weight") + "value [3] is not a number")
def _(c): c.put("model.norm.weight", 6, b"\xc0\x7f")


@case("router-nan", "nvfp4", 1, True, at(L + "mlp.gate.weight") + "value [1, 2] is not a finite number")
def _(c): c.put(L + "mlp.gate.weight", 68, b"\x80\x7f")


@case("index-lists-what-is-absent", "mxfp4", 1, True, 'model-00002-of-00002.safetensors: tensor "model.layers.0.extra.weight": listed in model.safetensors.index.json, but not there')
def _(c):
    c.split()
    c.index["model.layers.0.extra.weight"] = "model-00002-of-00002.safetensors"


@case("index-lacks-a-tensor", "mxfp4", 1, True, f'model-00002-of-00002.safetensors: tensor "{UP}.weight": not listed in model.safetensors.index.json')
def _(c):
    c.split()
    del c.index[UP + ".weight"]


@case("tensor-in-two-parts", "mxfp4", 1, True, 'tensor "model.norm.weight": is in model-00001-of-00002.safetensors as well')
def _(c):
    c.split()
    c.parts["model-00002-of-00002.safetensors"].append("model.norm.weight")


@case("offsets-overlap", "fp8", 1, True, "overlaps tensor")
def _(c):
    def edit(h): h[UP + ".weight"]["data_offsets"] = [o - 8 for o in h[UP + ".weight"]["data_offsets"]]
    c.edit_header = edit


@case("offsets-beyond-the-file", "fp8", 1, True, f'model.safetensors: tensor "{X}1.down_proj.input_scale": ')
def _(c):
    def edit(h):
        last = h[X + "1.down_proj.input_scale"]
        last["data_offsets"] = [o + 64 for o in last["data_offsets"]]
    c.edit_header = edit


@case("cut-in-the-data", "int4", 1, True, "model.safetensors: tensor ")
def _(c): c.edit_bytes = lambda data: data[:-100]


@case("cut-in-the-header", "int4", 1, True, "model.safetensors: header of ")
def _(c): c.edit_bytes = lambda data: data[:500]


@case("exclusion-of-nothing", "nvfp4", 3, False, 'config.json: the quantization configuration speaks of "model.layers.7*", expected a name or pattern that some tensor has')
def _(c): c.q["ignore"].append("model.layers.7*")


@case("cache-of-another-kind", "fp8", 3, "warns", 'config.json: quantization_config.kv_cache_quant_algo: "INT8" is not known (FP8 and NVFP4 are); the KV cache is taken as unquantized')
def _(c): c.q["kv_cache_quant_algo"] = "INT8"


@case("expert-of-zeros", "fp8", 3, False, at(UP + ".weight") + "all weights are 0")
def _(c): c.fill(UP + ".weight", 0)


@case("twin-experts", "mxfp4", 3, False, at(UP + ".weight") + f'holds the same bytes as tensor "{X}0.up_proj.weight" in model.safetensors')
def _(c): c.t[UP + ".weight"][2] = c.t[X + "0.up_proj.weight"][2]


@case("scale-implausible", "fp8", 3, False, at(O + ".weight") + "the largest weight is 4.48e+05, expected 1e-06 to 1000")
def _(c):
    c.t[O + ".weight_scale"][2] = f32(1000)
    c.put(O + ".weight", 0, b"\x7e")


@case("scales-never-written", "nvfp4", 3, False, at(DOWN + ".weight_scale") + "64 scales are 0 where the codes are not, first in row 0, group 0")
def _(c): c.fill(DOWN + ".weight_scale", 0)


@case("input-scale-missing", "fp8", 3, False, at(UP + ".weight") + "has no input_scale, which activations as stored need")
def _(c): del c.t[UP + ".input_scale"]


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    lines = []
    for name, kind, code, refused, message, flags, edit in CASES:
        c = Checkpoint(kind)
        c.edit_header = lambda h: None
        edit(c)
        c.write(OUT / name, c.edit_header)
        lines.append("\t".join((name, str(code), refused if isinstance(refused, str) else "refused" if refused else "runs", flags or "-", message)))
    (OUT / "cases.txt").write_text("\n".join(lines) + "\n")


main()
