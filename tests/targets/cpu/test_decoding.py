"""Weights in groups, decoded while their panels are packed: right to the bit, in every form."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import scaled
from tilewright.ops.products import scaled_in_groups
from tilewright.runtime import host, native

HAS = native.processor_flags()
Array = np.ndarray[Any, Any]
MACHINES = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= HAS,
    "x86-64-v3": {"avx2", "fma", "bmi2"} <= HAS,
    "x86-64": "sse2" in HAS,
}
"""What is compiled for, and whether this processor executes it; native besides."""

HERE = ["native", *(name for name, is_executed in MACHINES.items() if is_executed)]

FORMS = [
    # kind, along, multiplied, zeros, group, groups, columns
    ("i4", "k", "f16", "i8", 32, 5, 70),
    ("i4", "k", "f16", None, 128, 3, 33),
    ("i4", "k", "bf16", "u8", 64, 3, 40),
    ("i4", "k", "f16", "f16", 96, 2, 35),
    ("i4", "k", "f32", "f32", 40, 4, 19),
    ("i4", "k", "bf16", None, 256, 2, 64),
    ("i4", "n", "f16", "u8", 32, 5, 70),
    ("i4", "n", "bf16", "bf16", 8, 3, 34),
    ("f4e2m1", "k", "f16", None, 32, 3, 70),
    ("f4e2m1", "k", "f16", "f16", 48, 3, 31),
    ("f4e2m1", "n", "bf16", "i8", 128, 2, 36),
    ("i8", "k", "f16", "i8", 64, 3, 45),
    ("i8", "n", "bf16", None, 32, 3, 38),
    ("f8e4m3", "k", "f16", None, 128, 2, 70),
    ("f8e5m2", "n", "f32", "f32", 32, 3, 35),
]


def codes(kind: str, shape: tuple[int, int]) -> Array:
    """Return numbers of a dtype: all finite ones if there is room."""
    rng = np.random.default_rng(sum(shape))
    if kind in ("i4", "i8"):
        most = 8 if kind == "i4" else 128
        return rng.integers(-most, most, shape)
    made = rng.integers(0, 16 if kind == "f4e2m1" else 256, shape).astype(np.uint8)
    found = made.view(tw.dtype(kind).numbers).astype(np.float32)
    return np.where(np.isfinite(found), found, 1)


def held(numbers: Array, kind: str, along: str) -> Any:
    """Return the numbers in every other row of a larger array."""
    stored = numbers.T if along == "k" else numbers
    if tw.dtype(kind) in (tw.i4, tw.f4e2m1):
        given = tw.pack(stored, kind)
    else:
        given = stored.astype(tw.dtype(kind).numbers)
    whole = np.full((2 * len(given), given.shape[1] + 3), 77, np.uint8).view(given.dtype)
    whole[::2, : given.shape[1]] = given
    there = whole[::2, : given.shape[1]]
    there = there.T if along == "k" else there
    return tw.packed(there, kind) if tw.dtype(kind) in (tw.i4, tw.f4e2m1) else there


def rounded(values: Array, kind: str) -> Array:
    """Round numbers to a format; they are exact in f32, or rounding twice gives the same result."""
    return values.astype(np.float32).astype(tw.dtype(kind).numbers).astype(np.float32)


def decoded(numbers: Array, scales: Array, zeros: Array | None, group: int, kind: str) -> Array:
    """Return the decoded weights; each step rounds as the flow says."""
    wide = numbers.astype(np.float32)
    if zeros is not None:
        wide = rounded(wide - rounded(zeros, kind).repeat(group, 0), kind)
    return rounded(wide * rounded(scales, kind).repeat(group, 0), kind)


def run(a: Array, b: Any, scales: Array, zeros: Array | None, group: int, kind: str) -> tuple[Array, Any]:
    """Return a product by a new kernel, and the kernel's compiled form."""
    terms = frozenset({"scale_b"} if zeros is None else {"scale_b", "zero_b"})
    kernel = scaled_in_groups.__wrapped__(0).bind(
        multiplied=tw.dtype(kind), group=group, terms=terms, activation=None
    )
    columns = scales.shape[1]
    out = np.full((len(a), columns), np.nan, np.float32)
    unread = np.ones(len(a), np.float32), np.ones(columns, np.float32)
    given = (a, b, unread[0], scales, scales if zeros is None else zeros, unread[1], out, 1.0)
    made = kernel(*given, target="cpu")
    return out, made


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("machine", HERE)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_weight_is_decoded_to_the_bit(
    form: tuple[Any, ...], machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each row of A has one number, products equal the weights; others are within their bound."""
    kind, along, wide, zero, group, groups, columns = form
    if machine != "native":
        monkeypatch.setattr(native, "NATIVE", f"-march={machine}")
        monkeypatch.setattr(host, "host_arch", lambda: machine)
    depth, dtype = group * groups, tw.dtype(wide).numbers
    columns += columns % 2 if along == "n" else 0
    numbers, rng = codes(kind, (depth, columns)), np.random.default_rng(group)
    scales = rng.standard_normal((groups, columns)).astype(dtype)
    scales[:, ::7], scales[-1, 1::9] = rng.choice([0.0, 2.0**-20, -(2.0**-24), 900.0], (1,)).astype(dtype), 0
    zeros = None if zero is None else rng.integers(0 if zero == "u8" else -9, 9, scales.shape)
    if zero not in (None, "i8", "u8"):
        zeros = zeros + rng.standard_normal(scales.shape) / 4
    zeros = None if zeros is None else zeros.astype(tw.dtype(zero).numbers)
    b, expected = held(numbers, kind, along), decoded(numbers, scales, zeros, group, wide)
    out, made = run(np.eye(depth).astype(dtype), b, scales, zeros, group, wide)
    assert np.array_equal(out, expected)
    assert "compute_each" in made.listing.text, "as panels are packed"
    looked_up = (
        made.arch == "x86-64-v4" and (kind, along) in (("i4", "k"), ("f4e2m1", "k")) and group % 16 == 0
    )
    assert ("multiply_looked_up" in made.listing.text) == looked_up
    for m in (1, 3, 13):
        a = rng.standard_normal((m, depth)).astype(dtype)
        exact, size = (f(a.astype(float)) @ f(expected.astype(float)) for f in (lambda x: x, np.abs))
        out, _ = run(a, b, scales, zeros, group, wide)
        assert (np.abs(out - exact) <= (depth + 1) * 2.0**-24 * size).all()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("m", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("zero", [None, "i8"])
@pytest.mark.parametrize(
    ("kind", "along", "group"),
    [
        ("i4", "k", 128),
        ("i4", "k", 32),
        ("i4", "n", 64),
        ("f4e2m1", "k", 64),
        ("i8", "k", 96),
        ("f8e4m3", "k", 32),
    ],
)
def test_no_pass_is_needed(
    m: int, kind: str, along: str, group: int, zero: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel computes all of a launch, also of a known one; each element is within its bound."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a pass of its own")

    monkeypatch.setattr(scaled, "plan_widened", refuse)
    rng, depth, columns = np.random.default_rng(m), 4 * group, 132
    numbers = codes(kind, (depth, columns))
    scales = rng.uniform(-2, 2, (4, columns)).astype(np.float16)
    zeros = None if zero is None else rng.integers(-8, 8, scales.shape).astype(np.int8)
    a, bias = rng.standard_normal((m, depth)).astype(np.float16), rng.standard_normal(columns, np.float32)
    wide = decoded(numbers, scales, zeros, group, "f16").astype(np.float64)
    exact, size = a.astype(float) @ wide + bias, np.abs(a.astype(float)) @ np.abs(wide) + np.abs(bias)
    asked = {"scale_b": scales, "group": group, "bias": bias, "out_dtype": "f32", "target": "cpu"}
    asked |= {} if zeros is None else {"zero_b": zeros}
    for _ in range(2):
        made = tw.scaled_mm(a, held(numbers, kind, along), **asked)
        assert (np.abs(made - exact) <= (depth + 2) * 2.0**-24 * size).all()


SPECIAL = [8188.0, 8190.0, -8190.0, 65504.0, np.inf, np.nan, 2.0**-24, -(2.0**-23), 3 * 2.0**-24, 0.0, -0.0]


@pytest.mark.parametrize("wide", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("kind", "zero"), [("i4", None), ("i4", "i8"), ("f4e2m1", None)])
def test_scales_out_of_the_ordinary_give_what_the_reference_gives(
    kind: str, zero: str | None, wide: str
) -> None:
    """Infinities, NaN, overflowing and subnormal scales are in columns of one product, and each alone.

    One of them decides how the whole product is rounded, and would hide the effects of the others.
    """
    dtype, group = tw.dtype(wide).numbers, 16
    special = [*SPECIAL, float(ml_dtypes.finfo(dtype).max), float(ml_dtypes.finfo(dtype).smallest_normal)]
    together, size = np.array([special], np.float64).astype(dtype), len(special)
    every = np.arange(16).astype(np.uint8).view(tw.f4e2m1.numbers).astype(np.float32)
    numbers = np.tile((np.arange(-8, 8) if kind == "i4" else every)[:, None], (1, size))
    zeros = None if zero is None else np.arange(size)[None].astype(np.int8) * 9 - 60
    b = held(numbers, kind, "k")
    asked: dict[str, Any] = {"group": group, "out_dtype": "f32"}
    if zeros is not None:
        asked["zero_b"] = zeros
    rows = np.concatenate([np.eye(group), np.ones((1, group))]).astype(dtype)
    alone = [np.full_like(together, one) for one in together[0]] if wide != "f32" else []  # never rounded
    for scales in (together, *alone):
        with np.errstate(all="ignore"):
            found, expected = (
                tw.scaled_mm(rows, b, **asked, scale_b=scales, target=on) for on in ("cpu", "reference")
            )
        assert found.shape == (group + 1, size)
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert np.array_equal(found[:-1], expected[:-1], equal_nan=True), scales[0, 0]
