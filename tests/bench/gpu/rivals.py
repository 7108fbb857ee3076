#!/usr/bin/env python3
"""tests/bench/gpu/rivals.py - what torch and transformers make of the expert layers of bench_moe, in the same columns.

python3 tests/bench/gpu/rivals.py [--quick]

  torch bf16     torch._grouped_mm: gate and up, down, and a layer of router, permutation, SwiGLU and weighted sum around them
  torch fp8      torch._scaled_grouped_mm, rows and weights in E4M3 with a scale per row, made in the layer's time alone
  grouped, eager transformers' own layer of gpt-oss and Qwen3-MoE, with experts_implementation grouped_mm and eager
Weights are random bf16 or E4M3 (torch has no kernel for MXFP4); routing is uniform. Times are medians. Ratios as bench_moe's:
prefill over dense bf16 GEMM of 8192^3, decode (at most 8 tokens an expert) over a device copy. A line that cannot be had says
why. Not needed by anything; it is for people who compare.
"""
import sys
import time

import torch

MODELS = [  # name, hidden, inter, experts, top_k
    ("gpt-oss-20b", 2880, 2880, 32, 4),
    ("gpt-oss-120b", 2880, 2880, 128, 4),
    ("Qwen3-30B-A3B", 2048, 768, 128, 8),
    ("DeepSeek-V3, 32 local", 7168, 2048, 32, 8),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def seconds(run, budget=0.15):
    """The median of runs that take about budget seconds together."""
    run()
    torch.cuda.synchronize()
    times, start = [], time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < budget and len(times) < 30):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[len(times) // 2]


def limits():
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    source = torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    dense = 2 * 8192**3 / seconds(lambda: a @ b)
    copy = 2 * source.numel() / seconds(lambda: target.copy_(source))
    rate = 0
    try:
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
        one = torch.ones((), device=DEVICE)
        rate = 2 * 8192**3 / seconds(lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16))
    except (RuntimeError, TypeError) as why:
        print("dense FP8:", str(why).splitlines()[0])
    return dense, copy, rate


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


class Layer:
    """A layer of experts around two grouped products."""

    def __init__(self, hidden, inter, experts, top_k, fp8):
        self.experts, self.top_k, self.fp8 = experts, top_k, fp8
        self.router = torch.randn(experts, hidden, device=DEVICE, dtype=torch.bfloat16) / hidden**0.5
        self.w13, self.s13 = self.weight(experts, 2 * inter, hidden)
        self.w2, self.s2 = self.weight(experts, hidden, inter)

    def weight(self, experts, outputs, inputs):
        w = torch.empty(experts, outputs, inputs, device=DEVICE, dtype=torch.bfloat16).normal_(std=inputs**-0.5)
        if not self.fp8:
            return w.transpose(1, 2), None
        scale = w.abs().amax(dim=2).float() / 448
        return (w / scale[..., None]).to(torch.float8_e4m3fn).transpose(1, 2), scale

    def coded(self, rows):
        """Rows as product takes them: in FP8 codes and a scale each."""
        if not self.fp8:
            return rows, None
        scale = rows.abs().amax(dim=1).float() / 448
        return (rows / scale[:, None]).to(torch.float8_e4m3fn), scale

    def product(self, coded, weight, scale, ends):
        rows, row_scale = coded
        if not self.fp8:
            return torch._grouped_mm(rows, weight, offs=ends)
        return torch._scaled_grouped_mm(rows, weight, row_scale, scale, offs=ends, out_dtype=torch.bfloat16)

    def choose(self, x):
        value, expert = torch.topk(x @ self.router.t(), self.top_k, dim=-1)
        return value.softmax(-1), expert

    def group(self, expert):
        order = expert.flatten().argsort(stable=True)
        ends = torch.histc(expert.flatten().float(), self.experts, 0, self.experts - 1).cumsum(0).to(torch.int32)
        return order, ends

    def forward(self, x):
        weight, expert = self.choose(x)
        order, ends = self.group(expert)
        inner = swiglu(self.product(self.coded(x[order // self.top_k]), self.w13, self.s13, ends))
        out = self.product(self.coded(inner), self.w2, self.s2, ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=DEVICE)
        return (out[back].view(*expert.shape, -1) * weight[..., None]).sum(1)


def report(model, codes, tokens, times, dense, copy, weight_bytes):
    name, hidden, inter, experts, top_k = model
    up, down, layer = times
    pairs = tokens * top_k
    f13, f2 = 4.0 * pairs * hidden * inter, 2.0 * pairs * hidden * inter
    line = "%-22s %-11s %-8s %6d %5d |" % (name, codes, "uniform", tokens, pairs // experts)
    line += "".join(" %8.3f" % (t * 1e3) if t else "        -" for t in times) + " ms |"
    if pairs <= 8 * experts:
        distinct = experts * (1 - (1 - top_k / experts) ** tokens) / experts
        b13, b2 = distinct * weight_bytes * 2 / 3, distinct * weight_bytes / 3
        work, limit, what = (b13, b2, b13 + b2), copy, "bytes/copy:"
    else:
        work, limit, what = (f13, f2, f13 + f2), dense, "flops/dense:"
    line += " " + what
    for label, amount, t in zip(("up", "down", "layer"), work, times):
        if t:
            line += " %s %.3f" % (label, amount / t / limit)
    if pairs > 8 * experts:
        line += " (%.0f TF)" % ((f13 + f2) / layer * 1e-12)
    print(line, flush=True)


def torch_layers(model, sizes, dense, copy):
    _, hidden, inter, experts, top_k = model
    for fp8 in (False, True):
        codes = "torch fp8" if fp8 else "torch bf16"
        try:
            layer = Layer(hidden, inter, experts, top_k, fp8)
            for tokens in sizes:
                x = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)
                order, ends = layer.group(layer.choose(x)[1])
                rows = layer.coded(x[order // top_k])
                inner = layer.coded(swiglu(layer.product(rows, layer.w13, layer.s13, ends)))
                times = (
                    seconds(lambda: layer.product(rows, layer.w13, layer.s13, ends)),
                    seconds(lambda: layer.product(inner, layer.w2, layer.s2, ends)),
                    seconds(lambda: layer.forward(x)),
                )
                report(model, codes, tokens, times, dense, copy, 3.0 * experts * hidden * inter * (1 if fp8 else 2))
        except (RuntimeError, TypeError, AttributeError, ValueError) as why:
            print("%-22s %-11s not to be had: %s" % (model[0], codes, str(why).splitlines()[0][:100]))
        layer = None
        torch.cuda.empty_cache()


def transformers_block(model, way):
    """The layer as transformers has it, in bf16 with random weights."""
    name, hidden, inter, experts, top_k = model
    if name.startswith("gpt-oss"):
        from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

        config = GptOssConfig(
            hidden_size=hidden, intermediate_size=inter, num_local_experts=experts, num_experts_per_tok=top_k
        )
        kind = GptOssMLP
    else:
        from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

        config = Qwen3MoeConfig(
            hidden_size=hidden, moe_intermediate_size=inter, num_experts=experts, num_experts_per_tok=top_k
        )
        kind = Qwen3MoeSparseMoeBlock
    config._experts_implementation = way
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            block = kind(config)
    finally:
        torch.set_default_dtype(previous)
    for p in block.parameters():
        p.data.normal_(std=p.shape[-1] ** -0.5)
    return block.eval()


def transformers_layers(model, sizes, dense, copy):
    _, hidden, inter, experts, top_k = model
    for way, codes in (("grouped_mm", "hf grouped"), ("eager", "hf eager")):
        try:
            block = transformers_block(model, way)
            for tokens in sizes:
                x = torch.randn(1, tokens, hidden, device=DEVICE, dtype=torch.bfloat16)
                report(
                    model, codes, tokens, (0, 0, seconds(lambda: block(x))), dense, copy, 6.0 * experts * hidden * inter
                )
        except Exception as why:  # whatever another version of transformers does
            print("%-22s %-11s not to be had: %s" % (model[0], codes, (str(why).splitlines() or [repr(why)])[0][:100]))
        block = None
        torch.cuda.empty_cache()


def main():
    if DEVICE == "cpu":
        print("skipped: no CUDA device")
        return 77
    quick = "--quick" in sys.argv
    torch.manual_seed(1)
    with torch.no_grad():
        dense, copy, fp8 = limits()
        print(
            "torch %s, %s: device copy %.2f TB/s (read and written), dense bf16 8192^3 %.0f TFLOP/s, FP8 %.0f"
            % (torch.__version__, torch.cuda.get_device_name(), copy * 1e-12, dense * 1e-12, fp8 * 1e-12)
        )
        print("%-22s %-11s %-8s %6s %5s | %8s %8s %8s    | ratios" % tuple("model codes routing tokens mean up down layer".split()))
        for model in MODELS:
            if quick and model not in (MODELS[0], MODELS[2]):
                continue
            sizes = [8 * model[3] // model[4], 8192] if quick else [model[3] // model[4], 8 * model[3] // model[4], 8192, 32768]
            torch_layers(model, sizes, dense, copy)
            if not model[0].startswith("DeepSeek"):
                transformers_layers(model, sizes, dense, copy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
