"""Products of bytes, by the processor's dot products or by pairs: exact, in every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import PROCESSORS
from tilewright.dtypes import DType
from tilewright.runtime import host, native
from tilewright.targets import cpu
from tilewright.targets.atoms import fma
from tilewright.targets.cpu.arch import operand_dtype

HAS = native.processor_flags()
DOTS = bool({"avx512_vnni", "avx_vnni"} & HAS)
MACHINES = {
    "dot products": ("native", "", DOTS),
    "dot products of AVX2": ("native", "x86-64-v3", DOTS and "avx2" in HAS),
    "pairs, AVX2": ("x86-64-v3", "x86-64-v3", {"avx2", "fma", "bmi2"} <= HAS),
    "pairs, AVX-512": ("x86-64-v4", "x86-64-v4", {"avx512bw", "avx512vl"} <= HAS),
}
"""What is compiled for, the architecture that is named, and whether this processor executes it."""

HERE = [
    (name, one)
    for name, (*_, is_executed) in MACHINES.items()
    for one in native.find_toolchains()
    if is_executed
]

PROBLEMS = (*((shape, "C") for shape in ((37, 41, 53), (131, 71, 517), (13, 33, 257))), ((37, 41, 53), "F"))
"""Shapes, and the order of A and B in memory."""


def fresh() -> Any:
    """Return a kernel without compiled code."""

    @tw.kernel(A="M K", B="K N", C="M N")
    def product(A, B, C):
        m, n = tw.block_index(tw.ceil_div(C.shape, (48, 64)))
        mma = tw.TiledMma(fma("i8", lanes=(1, 1), each=(6, 16)), tile=(48, 64))
        sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
        acc = tw.accumulator(mma)
        for k in tw.range(tw.ceil_div(A.shape[1], 32)):
            tw.copy(A.tile((48, 32), (m, k)), sA, threads=1)
            tw.copy(B.permute(1, 0).tile((64, 32), (n, k)), sB, threads=1)
            tw.mma(sA, sB, acc)
        tw.copy(acc, C.tile((48, 64), (m, n)))

    return product


def test_something_is_executed_here() -> None:
    assert HERE


@pytest.mark.parametrize(("name", "compiler"), HERE, ids=str)
def test_every_shape_and_layout_is_exact(
    name: str, compiler: native.Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    march, arch, _ = MACHINES[name]
    monkeypatch.setattr(native, "find_toolchain", lambda: compiler)
    monkeypatch.setattr(native, "NATIVE", f"-march={march}")
    if arch:
        monkeypatch.setattr(host, "host_arch", lambda: arch)
    kernel, rng = fresh(), np.random.default_rng(1)
    for (m, n, k), order in PROBLEMS:
        a, b = (
            np.asarray(rng.integers(-128, 128, shape), np.int8, order=order)  # type: ignore[call-overload]
            for shape in ((m, k), (k, n))
        )
        a[: m // 2], b[:, : n // 2] = -128, -128  # the largest products, with the same sign
        c = np.full((m, n), 99, np.int32)
        assert kernel(a, b, c, target="cpu").target == "cpu"
        assert np.array_equal(c, a.astype(np.int64) @ b.astype(np.int64)), (m, n, k, order)


@pytest.mark.parametrize(
    ("machine", "kind", "depth", "lanes", "wanted"),
    [
        ("x86-64-v4", "i8", 64, 16, tw.i8),
        ("x86-64-v3", "i8", 64, 8, tw.i8),
        ("x86-64-v3", "i8", 63, 8, tw.i32),
        ("x86-64-v3", "i8", 64, 2, tw.i32),
        ("x86-64-v3", "i8", 2048, 8, tw.i32),
        ("x86-64-v3", "u8", 64, 8, tw.i32),
        ("x86-64", "i8", 64, 4, tw.i32),
        ("aarch64", "i8", 64, 4, tw.i32),
        ("x86-64-v4", "f16", 64, 16, tw.f32),
    ],
)
def test_where_bytes_are_multiplied_as_they_are(
    machine: str, kind: str, depth: int, lanes: int, wanted: DType
) -> None:
    assert operand_dtype(fma(kind), depth, lanes, PROCESSORS[machine]) == wanted


def test_the_text_asks_the_compiler_for_what_the_machine_has() -> None:
    spec = [tw.like("i8", 100, 100), tw.like("i8", 100, 100), tw.like("i32", 100, 100)]
    for arch, has in (("x86-64-v4", True), ("x86-64-v3", True), ("generic", False)):
        text = cpu.emit(fresh().trace(*spec), arch).text
        assert ("vpdpbusd" in text, "vpmaddwd" in text, "multiply_i32" in text) == (has, has, not has)
