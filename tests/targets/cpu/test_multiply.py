"""Multiplies and the operations merged into them: B is packed panel by panel, sums begin without zeros."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.runtime import native
from tilewright.targets import cpu

MMA = tw.TiledMma(tw.atoms.fma(tw.f32), repeats=(12, 8))
TILE = (48, 64, 32)


@tw.kernel(A="M K", B="N K", C="M N")
def plain(A, B, C):
    """Copies and multiplies alternate."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(TILE[:2], (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def b_first(A, B, C):
    """B is copied before A."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(TILE[:2], (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def twice(A, B, C):
    """B is multiplied twice, panel by panel."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc * 0.5, C.tile(TILE[:2], (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def apart(A, B, C):
    """B is multiplied twice, and A is copied in between, so both multiplies need all of B."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc * 0.5, C.tile(TILE[:2], (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def crossed(A, B, C, *, again: bool = False):
    """Four products use two tiles of each operand; two are subtracted, in a second accumulator.

    With ``again`` the last tiles of one product are multiplied a second time.
    """
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    rows = [tw.shared((48, 32), A.dtype) for _ in range(2)]
    columns = [tw.shared((64, 32), B.dtype) for _ in range(2)]
    first, second = tw.accumulator(MMA), tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        for sA, sB in zip(rows, columns, strict=True):
            tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
            tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.barrier()
        tw.mma(rows[0], columns[0], first)
        tw.mma(rows[1], columns[1], second, negative=True)
        tw.mma(rows[0], columns[1], first)
        tw.mma(rows[1], columns[0], second, negative=True)
        tw.barrier()
    if again:
        tw.mma(rows[0], columns[0], first)
    tw.copy((first - second) * 0.25, C.tile(TILE[:2], (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def read_between(A, B, C):
    """The sums are stored after every step; parts that no multiply has reached are 0."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(acc, C.tile(TILE[:2], (m, n)))
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(TILE[:2], (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def ahead(A, B, C):
    """A tile of B is multiplied one step after its copy, so two tiles are in memory."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((2, 64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    count = tw.ceil_div(A.shape[1], 32)
    tw.copy(B.tile((64, 32), (n, 0)), sB[0], threads=32)
    for k in tw.range(count):
        with tw.when(k + 1 < count):
            tw.copy(B.tile((64, 32), (n, k + 1)), sB[(k + 1) % 2], threads=32)
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.barrier()
        tw.mma(sA, sB[k % 2], acc)
        tw.barrier()
    tw.copy(acc, C.tile(TILE[:2], (m, n)))


KERNELS = {kernel.name: kernel for kernel in (plain, b_first, twice, apart, crossed, read_between, ahead)}
SHAPES = [
    (48, 64, 32),
    (49, 65, 33),
    (1, 1, 1),
    (54, 80, 64),
    (25, 40, 33),
    (7, 17, 100),
    (95, 127, 31),
    (60, 30, 0),
]


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(
    ("name", "shape"),
    # The last copies its first tile of B whether there is one or not.
    [(name, shape) for name in KERNELS for shape in SHAPES if name != "ahead" or shape[2]],
)
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_products(name: str, shape: tuple[int, int, int], columns: bool) -> None:
    """C keeps its NaN outside of the result; scratch memory holds contents of other kernels."""
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    if columns:
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    whole = np.full((m + 2, n + 3), np.nan, np.float32)
    nans = np.full((200, 200), np.nan, np.float32)
    plain(nans, nans, nans.copy(), target="cpu")
    c = whole[1 : 1 + m, 1 : 1 + n]
    assert KERNELS[name](a, b, c, target="cpu").target == "cpu"
    compare_gemm(a, b.T, c, Accumulation.of(MMA.atom)).raise_if_wrong()
    assert np.isnan(whole).sum() == whole.size - c.size


def text_of(name: str, arch: str = "x86-64-v3") -> str:
    arrays = (tw.like("f32", 100, 100), tw.like("f32", 100, 100), tw.like("f32", 100, 100))
    return cpu.emit(KERNELS[name].trace(*arrays), arch).text


@pytest.mark.parametrize(
    ("name", "elems"), [("plain", 16 * 32), ("b_first", 16 * 32), ("twice", 16 * 32), ("apart", 64 * 32)]
)
def test_a_panel_of_b_takes_the_room_of_one(name: str, elems: int) -> None:
    listing = cpu.emit(KERNELS[name].trace(*[tw.like("f32", 100, 100)] * 3), "x86-64-v3")
    assert ("a panel of sB" in listing.text) == (elems == 16 * 32)
    sums = 2 if name in ("twice", "apart") else 1  # which stores a product of its sums, held beside them
    others = 48 * 32 * 4 + sums * 48 * 64 * 4
    # Large arrays are set apart by some lines of the cache.
    assert 0 <= listing.shared_bytes - others - elems * 4 <= 48 * 64 + 3 * 9 * 64


def test_products_of_the_same_tiles_share_their_loops() -> None:
    """Each panel of B is packed once for all of its products, and no tile is filled past an edge of K.

    One micro-kernel has the sums of all products in registers: each is loaded and stored once.
    """
    text = text_of("crossed")
    assert (
        len(re.findall(r"for \(Index m_panel = 0", text))
        == len(re.findall(r"for \(Index n_panel = 0", text))
        == 1
    )
    before, inside = text.split("for (Index n_panel")
    assert (
        before.count("a panel of ") == inside.count("a panel of ") == 2
    )  # of A, unless read in place, and B
    calls = re.findall(r"multiply_f32\w*<6,2>\(", inside)
    assert calls == ["multiply_f32_4_times<6,2>("]
    assert text.count("*(vector*)(c") == 2
    assert "inside1" not in text


@pytest.mark.parametrize(
    ("machine", "height", "in_parts"),
    [("x86-64-v4", 4, False), ("x86-64-v3", 6, True), ("aarch64", 4, False)],
)
def test_several_sums_have_low_micro_tiles_where_registers_hold_them(
    machine: str, height: int, in_parts: bool
) -> None:
    """There are sixteen vectors of sums; with fewer registers, the tile of one product is split."""
    text = text_of("crossed", machine)
    heights = {int(rows) for rows in re.findall(r"multiply_f32_4_times<(\d+),\d+>\(", text)}
    assert max(heights) == height
    assert ("first < VECTORS" in text) == in_parts
    assert max(map(int, re.findall(r"multiply_f32<(\d+),\d+>\(", text_of("plain", machine)))) > 4


def test_sums_to_which_products_are_added_alone_keep_the_micro_tile_of_one() -> None:
    arrays = [tw.like("f32", 100, 100)] * 3
    texts = [cpu.emit(crossed.trace(*arrays, again=again), "x86-64-v4").text for again in (False, True)]
    assert ["micro-tiles of 4x32" in text for text in texts] == [True, False]
    assert "micro-tiles of 12x32" in texts[1]


@pytest.mark.parametrize(
    ("name", "zeros"),
    [("plain", r"if \(\(K \+ \d+\) / 32 < 1\) \{"), ("read_between", r"\n  for \(Index e1")],
)
def test_zeros_are_written_only_where_they_are_read(name: str, zeros: str) -> None:
    text = text_of(name)
    before = text[: text.index("const Index k_end")]
    assert re.search(zeros, before), before[-600:]
    assert ("!(k == 0)" in text) == (name == "plain")


@tw.kernel(A="M K", B="N K", C="M N")
def counted(A, B, C, *, steps):
    """The first tiles along K are multiplied as often as the author says."""
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(MMA)
    for _ in tw.range(steps):
        tw.copy(A.tile((48, 32), (m, 0)), sA, threads=32)
        tw.copy(B.tile((64, 32), (n, 0)), sB, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(TILE[:2], (m, n)))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_zeros_of_a_known_number_of_steps_are_written_if_there_is_none(steps: int) -> None:
    rng = np.random.default_rng(steps)
    a, b = (rng.standard_normal((rows, 100)).astype(np.float32) for rows in (50, 70))
    nans, c = np.full((200, 200), np.nan, np.float32), np.full((50, 70), np.nan, np.float32)
    plain(nans, nans, nans.copy(), target="cpu")  # scratch memory is full of what that leaves
    made = counted.bind(steps=steps)(a, b, c, target="cpu")
    deep_a, deep_b = (np.tile(one[:, :32], (1, steps)) for one in (a, b))
    compare_gemm(deep_a, deep_b.T, c, Accumulation.of(MMA.atom)).raise_if_wrong()
    assert (": acc = 0\n" in made.listing.text) == (steps == 0)


def test_nothing_past_an_edge_is_filled_but_the_rest_of_a_micro_tile() -> None:
    """Along K nothing is filled: products end at K."""
    text = text_of("plain")
    fills = re.findall(r"sA\[[^]]*\] = 0;", text)
    assert fills
    assert re.search(r"for \(Index i0 = inside0; i0 < 6; \+\+i0\)", text)
    assert "inside1" not in text


TUNED = {"aarch64": ()}
if platform.machine() == "x86_64":
    TUNED = {name: (f"-march={name}", "-mtune=znver3") for name in ("x86-64-v3", "x86-64-v4")}
"""Options under which GCC chooses between fused and separate multiply-adds by the shape of a loop."""


def emitted(name: str, arch: str) -> str:
    """Return texts with micro-kernels of all sizes, for one dtype, or for several products at once."""
    if name == "crossed":
        return text_of(name, arch)
    mma = tw.TiledMma(tw.atoms.fma(tw.dtype(name)), repeats=(12, 8))
    dtypes = (name, name, mma.atom.c_dtype.name)
    return cpu.emit(of_dtype.trace(*[tw.like(one, 100, 100) for one in dtypes], mma=mma), arch).text


@tw.kernel(A="M K", B="N K", C="M N")
def of_dtype(A, B, C, *, mma):
    m, n = tw.block_index(tw.ceil_div(C.shape, TILE[:2]))
    sA, sB = tw.shared((48, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(A.tile((48, 32), (m, k)), sA, threads=32)
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=32)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(TILE[:2], (m, n)))


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("machine_arch", TUNED)
@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16", "crossed"])
def test_each_product_and_its_sum_are_one_instruction(
    toolchain: native.Toolchain, name: str, machine_arch: str, tmp_path: Path
) -> None:
    """This holds in micro-kernels of every size; otherwise a row's bits would depend on the row count."""
    (tmp_path / "kernel.cpp").write_text(emitted(name, machine_arch))
    command = [
        *toolchain.compiler,
        "-x",
        "c++",
        *native.flags(),
        *TUNED[machine_arch],
        "-S",
        "kernel.cpp",
        "-o",
        "kernel.s",
    ]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    pattern = r"^(\w*multiply_f\d+\w*ILi(\d+)ELi(\d+)E\w*[\w.]*):.*?^\s*\.size\s+\1"
    found = list(re.finditer(pattern, (tmp_path / "kernel.s").read_text(), re.MULTILINE | re.DOTALL))
    assert len(found) >= 6, "three heights and two widths"
    for function in found:
        # Several products at once are added up for one vector of columns after the other.
        several = "_times" in function[1]
        fused = len(re.findall(r"\b(?:vfn?madd\d+[ps][sd]|fml[as])\b", function[0]))
        assert fused >= int(function[2]) * (4 if several else int(function[3])), function[1]
        assert not re.findall(r"\b(?:vmul[ps][sd]|fmul)\b.*", function[0]), function[1]
