"""Makes ../data/quant/row_formats.safetensors: activation rows and what each rounding scheme makes of them.

Written from the formulas in numpy's float32 and ml_dtypes' conversions, which share nothing with the C
code. Numbers are rounded after every operation, since numpy's float32 arrays do so.

    python3 -m venv oracle && oracle/bin/pip install numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
    oracle/bin/python tests/oracle/make_row_formats.py
"""
import pathlib
import numpy as np
import ml_dtypes
from safetensors.numpy import save_file

F = np.float32
OUT = pathlib.Path(__file__).parent.parent / "data" / "quant" / "row_formats.safetensors"


def e4m3(x):  # nearest, ties to even; saturates
    return np.clip(x, F(-448), F(448)).astype(ml_dtypes.float8_e4m3fn).astype(F)


def e2m1(x):
    # ml_dtypes has no NaN there; what a NaN becomes does not matter, since its scale is one
    return np.nan_to_num(np.clip(x, F(-6), F(6)), nan=6.0).astype(ml_dtypes.float4_e2m1fn).astype(F)


def groups(x, size):  # [n_groups][rows, <= size]
    return [x[:, i:i + size] for i in range(0, x.shape[1], size)]


def amax(x):
    return np.max(np.abs(x), axis=1, keepdims=True)


def pow2_ceil(s):
    m, exponent = np.frexp(s)  # s = m * 2^exponent, 1/2 <= m < 1
    return np.where(np.isfinite(s), np.ldexp(F(1), np.where(m == F(0.5), exponent - 1, exponent)), s).astype(F)


def fp8_static(x, scale, _):
    return e4m3(x * (F(1) / scale)) * scale


def fp8_token(x, _, __):
    s = np.maximum(amax(x) / F(448), F(1) / F(448 * 512))
    return e4m3(x / s) * s


def fp8_group(x, _, power_of_two):
    out = []
    for g in groups(x, 128):
        s = np.maximum(amax(g), F(1e-10)) / F(448)
        if power_of_two:
            s = pow2_ceil(s)
        out.append(e4m3(g / s) * s)
    return np.concatenate(out, axis=1)


def nvfp4_static(x, scale, _):
    g, out = F(1) / scale, []
    for block in groups(x, 16):
        s = e4m3(g * (amax(block) * (F(1) / F(6))))
        o = np.where(s == 0, F(0), F(1) / (s * (F(1) / g)))
        out.append(e2m1(block * o) * (s * scale))
    return np.concatenate(out, axis=1)


def nvfp4_token(x, _, __):
    s_t = amax(x) * (F(1) / F(2688))
    e = np.where(s_t > 0, F(1) / s_t, F(0))
    e = np.where(np.isinf(e), F(0), e)
    out = []
    for block in groups(x, 16):
        s = e4m3(e * amax(block) / F(6))
        q = np.where(s == 0, block * F(0), block * e / s)
        out.append(e2m1(q) * (s * s_t))
    return np.concatenate(out, axis=1)


def mxfp8(x, _, __):
    out = []
    for g in groups(x, 32):
        a = amax(g) / F(448)
        # float64 holds the logarithm of every float32 closely enough to tell it from a whole number
        k = np.clip(np.ceil(np.log2(a.astype(np.float64))), -127, 127)
        k = np.where(np.isnan(a), np.nan, k)
        with np.errstate(all="ignore"):
            up = np.exp2(-k).astype(F)
            down = np.exp2(k).astype(F)
        out.append(e4m3(g * up) * down)
    return np.concatenate(out, axis=1)


def rows(rng, width, spread):
    x = [rng.standard_normal(width) * s for s in spread]
    x.append(np.zeros(width))
    x.append(-np.zeros(width))
    x.append(np.where(np.arange(width) % 3 == 0, -0.0, rng.integers(-12, 13, width) / 2.0))  # ties of E2M1
    x.append(rng.integers(-512, 513, width) / 2.0 ** 9)  # ties of small E4M3
    x.append(rng.standard_normal(width) * 10.0 ** rng.uniform(-7, 4, width))
    x.append(np.where(np.arange(width) % 37 == 1, 300.0, 1e-3))  # most blocks round to nothing
    x.append(np.full(width, 1.5e-39) * rng.integers(-4, 5, width))  # subnormal
    x.append(np.full(width, 2.0e38) * rng.uniform(-1, 1, width))
    bad = rng.standard_normal(width)
    bad[width // 2] = np.nan
    x.append(bad)
    bad = rng.standard_normal(width)
    bad[width // 3] = -np.inf
    x.append(bad)
    return np.array(x).astype(F)


CASES = [  # name, function, widths, input_scale, power_of_two
    ("fp8_static", fp8_static, 45, 0.0123, False),
    ("fp8_static_two", fp8_static, 16, 0.5, False),
    ("fp8_token", fp8_token, 45, 1, False),
    ("fp8_group", fp8_group, 261, 1, False),
    ("fp8_group_two", fp8_group, 130, 1, True),
    ("nvfp4_static", nvfp4_static, 64, 0.01, False),
    ("nvfp4_static_odd", nvfp4_static, 48, 0.00137, False),
    ("nvfp4_token", nvfp4_token, 80, 1, False),
    ("mxfp8", mxfp8, 96, 1, False),
]


def main():
    rng = np.random.Generator(np.random.PCG64(20))
    tensors = {}
    for name, function, width, scale, power_of_two in CASES:
        x = rows(rng, width, (1, 1, 0.02, 30))
        with np.errstate(all="ignore"):
            y = function(x, F(scale), power_of_two)
        assert y.dtype == np.float32 and y.shape == x.shape
        tensors[name + ".x"], tensors[name + ".y"] = x, np.ascontiguousarray(y)
        tensors[name + ".input_scale"] = np.array(F(scale))
    OUT.parent.mkdir(exist_ok=True)
    save_file(tensors, OUT)


if __name__ == "__main__":
    main()
