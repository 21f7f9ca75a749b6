"""`tw.matmul` for AMD GPUs: its numbers, by executing the listing, and its main loop, by reading it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import normal
from tilewright.inspect.report import movements
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.executable import Executable

from .executed import launched
from .loops import MATRIX, complaints, main_loop, names

ARCHS = ("gfx942", "gfx1151")
GEMM = plain(0)


def matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: tw.DType, transposed: bool) -> Any:
    """Random numbers of a dtype, contiguous along the rows or the columns."""
    extents = shape[::-1] if transposed else shape
    found = normal(rng, extents, dtype) if dtype.is_float else rng.integers(-128, 128, extents, np.int8)
    return found.T if transposed else found


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "order", "shape"),
    [
        (tw.f16, "nn", (200, 136, 72)),
        (tw.bf16, "tn", (70, 99, 41)),
        (tw.i8, "nt", (65, 48, 96)),
        (tw.f32, "nn", (33, 130, 40)),
        (tw.f64, "tt", (50, 34, 24)),
    ],
    ids=lambda value: str(value),
)
def test_products_of_the_listing(arch: str, dtype: tw.DType, order: str, shape: tuple[int, int, int]) -> None:
    """Ragged sizes; the result lies in the middle of numbers that must stay, and was not a number before."""
    rng, (m, n, k) = np.random.default_rng(7), shape
    a, b = matrix(rng, (m, k), dtype, order[0] == "t"), matrix(rng, (k, n), dtype, order[1] == "t")
    out = output_dtype(dtype).numpy
    around = np.full((m + 2, n + 8), -77, out)
    c = around[1:-1, :n]
    c[:] = np.nan if dtype.is_float else -(2**31)
    made, run = launched(GEMM.bind(precision="exact"), arch, {"A": a, "B": b, "D": c})
    assert made.schedule is not None
    atom = made.schedule.atom
    compare_gemm(a, b, c, Accumulation.of(atom)).raise_if_wrong()
    around[1:-1, :n] = -77
    assert (around == -77).all()
    multiplied = {"mfma": "v_mfma_", "wmma": "v_wmma_", "fma": "v_"}[atom.instruction]
    assert any(name.startswith(multiplied) for name in run.mnemonics)


def whole(arch: str, dtype: str = "f16", order: str = "nn", **constants: Any) -> Executable:
    """The kernel for large matrices whose rows are whole lines."""
    a, b, d = (tw.TensorSpec(tw.dtype(dtype), 2, unit, (16, 16), (16, 1), 16, False) for unit in (1, 1, 1))
    if order[1] == "t":
        b = tw.TensorSpec(tw.dtype(dtype), 2, 0, (16, 16), (1, 16), 16, False)
    return GEMM.compile(a, b, d, precision="exact", target="hip", arch=arch, **constants)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("order", ["nn", "nt"])
def test_the_main_loop_passes_its_gates(arch: str, order: str) -> None:
    """128 x 128 by 256 threads: 4 loads of 16 bytes, 16 matrix instructions or more, no narrow access."""
    made = whole(arch, order=order)
    assert made.schedule is not None
    assert made.schedule.tile == (128, 128, 32)
    assert list(complaints(made.assembly, loads=4)) == []
    found = names(main_loop(made.assembly))
    products = {"gfx942": "v_mfma_f32_32x32x8_f16", "gfx1151": "v_wmma_f32_16x16x16_f16"}[arch]
    assert found[products] == 16
    reads = found["ds_read_b128"] + found["ds_load_b128"]
    assert reads == {"gfx942": 8, "gfx1151": 24}[arch], "a lane reads 16 bytes of K at once"
    assert made.resources["stack_bytes"] == made.resources["spilled_registers"] == 0
    assert made.resources["warps_per_simd"] >= {"gfx942": 3, "gfx1151": 6}[arch]


@pytest.mark.parametrize(
    ("arch", "dtype", "products"),
    [
        ("gfx90a", "bf16", {"v_mfma_f32_32x32x8bf16_1k": 16}),
        ("gfx950", "f16", {"v_mfma_f32_32x32x16_f16": 8}),
        ("gfx1100", "i8", {"v_wmma_i32_16x16x16_iu8": 32}),
        ("gfx1201", "f8e4m3", {"v_wmma_f32_16x16x16_fp8_fp8": 32}),
    ],
)
def test_other_architectures_multiply_by_their_own(arch: str, dtype: str, products: dict[str, int]) -> None:
    """Whatever the depth of an instruction, a tile is one of 128 x 128 by 64 bytes."""
    made = whole(arch, dtype)
    found = names(main_loop(made.assembly))
    assert {name: count for name, count in found.items() if MATRIX.match(name)} == products
    assert made.resources["stack_bytes"] == made.resources["spilled_registers"] == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_that_is_made_worse_fails_its_gates(arch: str) -> None:
    """B as it lies in memory, along its rows, is read two bytes at a time."""
    good = whole(arch).schedule
    assert good is not None
    made = whole(
        arch,
        schedule=tw.Schedule(
            good.atom, good.tile, good.warps, staging="registers", group_m=8, k1=(8, 0), turned=""
        ),
    )
    assert any("shared memory is read by" in one for one in complaints(made.assembly, loads=4))


@pytest.mark.parametrize("arch", ARCHS)
def test_operands_meet_in_no_bank(arch: str) -> None:
    """Swizzles are chosen so that reads take one pass; what is turned around is written in a few."""
    made = whole(arch)
    assert made.listing is not None
    assert {note.split(":")[0] for note in made.notes if "re-laid out" in note} == {
        "sA re-laid out",
        "sB re-laid out",
    }
    moved = movements(made.listing.kernel, "hip", arch, made.kernel)
    reads = [one for one in moved if one.source.startswith(("sA", "sB"))]
    writes = [one for one in moved if one.target.startswith(("sA", "sB"))]
    assert len(reads) >= 2
    assert all(one.passes == 1.0 for one in reads), [str(one) for one in reads]
    assert all(one.passes is not None and one.passes <= 2.0 for one in writes), [str(one) for one in writes]
