"""The main loops of products for AMD GPUs meet their limits, and degraded kernels do not.

Compilers give them other registers: they pass as the older one and the system's write them, too.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.inspect.isa import Breach, Gates, Isa, IsaKind, broken, read_isa
from tilewright.inspect.report import movements
from tilewright.ir.copies import Copy
from tilewright.ops.products import plain, scaled
from tilewright.runtime.amdgcn import compile_text
from tilewright.runtime.executable import Executable
from tilewright.symbolic.rebuilding import symbols
from tilewright.targets.amd import GFX942, GFX950
from tilewright.targets.simt.banks import in_shared
from tilewright.threads.banks import bank_conflicts

from .machine import ARCHS, listings

pytestmark = pytest.mark.in_turns(3)

WARPS = {"gfx942": 3, "gfx1151": 6}
"""What a SIMD should execute in turns, of 128 x 128 by 256 threads."""


REGISTERS = {"gfx942": 144, "gfx1151": 168}
"""The most vector registers of a thread: 64 sums, the operands of half a tile, and the next tile's 16."""


def whole(arch: str, dtype: str = "f16", order: str = "nn", unit: int = 16, **constants: Any) -> Executable:
    """The kernel for large matrices; extents, row pitches and addresses are multiples of ``unit``."""
    rows = tw.TensorSpec(tw.dtype(dtype), 2, 1, (unit, unit), (unit, 1), min(2 * unit, 16), False)
    columns = tw.TensorSpec(tw.dtype(dtype), 2, 0, (unit, unit), (1, unit), min(2 * unit, 16), False)
    b = columns if order[1] == "t" else rows
    return plain(0).compile(rows, b, rows, precision="exact", target="hip", arch=arch, **constants)


@functools.cache
def good(arch: str, order: str = "nn") -> Executable:
    return whole(arch, order=order)


def gates(arch: str, order: str = "nn") -> Gates:
    """The limits of `tw.matmul`: B along its rows is transposed in registers, pair by pair."""
    narrow = 4 if order == "nn" else 16
    return Gates(loads=4, warps=WARPS[arch], registers=REGISTERS[arch], shared_store_bytes=narrow)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("order", ["nn", "nt"])
def test_the_main_loop_passes_its_gates(arch: str, order: str) -> None:
    """128 x 128 by 256 threads: 4 loads of 16 bytes, 16 matrix instructions, no narrow access."""
    made = good(arch, order)
    assert made.schedule is not None
    assert made.schedule.tile == (128, 128, 32)
    products = {"gfx942": "v_mfma_f32_32x32x8_f16", "gfx1151": "v_wmma_f32_16x16x16_f16"}[arch]
    reads = {"gfx942": 8, "gfx1151": 24}[arch]
    found = [read_isa(listing) for listing in listings(made)]
    for isa in found:
        assert broken(isa, gates(arch, order)) == ()
        assert isa.main.mnemonics[products] == isa.main.mix[IsaKind.MATRIX] == 16
        assert isa.main.widths(IsaKind.SHARED_LOAD) == {16: reads}, "a lane reads 16 bytes of K at once"
        assert isa.resources["warps_per_simd"] == min(isa.limits.values())
    assert found[0].resources == made.resources


OTHERS = (
    *((arch, dtype, order) for arch in ARCHS for dtype, order in (("bf16", "nn"), ("i8", "nt"))),
    *(("gfx942", dtype, "nt") for dtype in ("f8e4m3fnuz", "f32", "f64")),
)
"""On gfx1151 there are no matrix instructions of the last three."""


@pytest.mark.parametrize(("arch", "dtype", "order"), OTHERS)
def test_other_dtypes_pass_the_same_gates(arch: str, dtype: str, order: str) -> None:
    """Tiles of f64 are 128 x 64 or smaller, so there are half as many loads."""
    asked = replace(gates(arch, order), loads=2) if dtype == "f64" else gates(arch, order)
    for listing in listings(whole(arch, dtype, order)):
        assert broken(read_isa(listing), asked) == ()


@pytest.mark.parametrize(
    ("arch", "dtype", "products"),
    [
        ("gfx90a", "bf16", {"v_mfma_f32_32x32x8bf16_1k": 16}),
        ("gfx942", "f8e4m3fnuz", {"v_mfma_f32_32x32x16_fp8_fp8": 16}),
        ("gfx950", "f16", {"v_mfma_f32_32x32x16_f16": 8}),
        ("gfx1100", "i8", {"v_wmma_i32_16x16x16_iu8": 32}),
        ("gfx1201", "f8e4m3", {"v_wmma_f32_16x16x16_fp8_fp8": 32}),
    ],
)
def test_other_architectures_multiply_by_their_own(arch: str, dtype: str, products: dict[str, int]) -> None:
    """A tile has 128 x 128 elements and 64 bytes along K, for any depth of an instruction."""
    made = whole(arch, dtype)
    main = read_isa(made.assembly).main
    assert {line.mnemonic: main.mnemonics[line.mnemonic] for line in main.of(IsaKind.MATRIX)} == products
    assert made.resources["stack_bytes"] == made.resources["spilled_registers"] == 0


RAGGED = (("f32", "nt", 16), ("f16", "nt", 1), ("i8", "nt", 16))
"""Results that leave from registers, and rows that begin anywhere; edges may cut all of their tiles."""


@pytest.mark.parametrize(("dtype", "order", "unit"), RAGGED)
def test_conditions_of_lanes_neither_branch_nor_spill(dtype: str, order: str, unit: int) -> None:
    """A condition of 64 lanes takes two of the 106 scalar registers of a wave."""
    isa = read_isa(whole("gfx942", dtype, order, unit).assembly)
    assert isa.resources["spilled_scalar_registers"] == isa.resources["spilled_registers"] == 0
    assert isa.resources["stack_bytes"] == 0
    assert isa.main.mix[IsaKind.BRANCH] == 1, "that of the loop"
    assert not [line for line in isa.main.lines if line.mnemonic.startswith("flat_")]


def test_conditions_that_are_kept_from_turn_to_turn_spill() -> None:
    """If allowed, the compiler computes all conditions before the loop."""
    text = whole("gfx942", "f16", "nt", 1).source
    kept = text.replace('asm volatile("" : "+v"(x));', "")
    assert kept != text
    assert read_isa(compile_text(kept, "gfx942")).resources["spilled_scalar_registers"] > 0


# ---------------------------------------------------------------- kernels that are made worse


@functools.cache
def small(arch: str) -> Isa:
    """A quarter of the tile: each loaded number is multiplied half as often."""
    schedule = good(arch).schedule
    assert schedule is not None
    return read_isa(whole(arch, schedule=replace(schedule, tile=(64, 64, 32))).assembly)


@functools.cache
def unaligned(arch: str) -> Isa:
    """Matrices with no known alignment beyond that of their elements."""
    return read_isa(whole(arch, unit=1).assembly)


def along_rows(arch: str) -> Isa:
    """B is in shared memory as in global memory, so reads have two bytes."""
    schedule = good(arch).schedule
    assert schedule is not None
    tile = tw.Schedule(
        *(schedule.atom, schedule.tile, schedule.warps), staging="registers", group_m=8, k1=(8, 0), turned=""
    )
    return read_isa(whole(arch, schedule=tile).assembly)


def deep(arch: str) -> Isa:
    """Use four times as much shared memory."""
    schedule = good(arch).schedule
    assert schedule is not None
    return read_isa(whole(arch, schedule=replace(schedule, tile=(128, 128, 128))).assembly)


def mended(arch: str, old: str, new: str) -> Isa:
    """The kernel with another text in one place."""
    text = good(arch).source
    assert old in text
    return read_isa(compile_text(text.replace(old, new), arch))


def crowded(arch: str) -> Isa:
    """The compiler may use a quarter of the registers that sums, operands and predicates need."""
    schedule = good(arch).schedule
    assert schedule is not None
    text = whole(arch, schedule=replace(schedule, epilogue="direct", interleaved=False)).source
    few = "__attribute__((global, amdgpu_num_vgpr(48)))"
    return read_isa(compile_text(text.replace("__attribute__((global))", few), arch))


def ordering_all(arch: str) -> Isa:
    """Barriers that order global memory too, for the whole device."""
    return mended(arch, '"workgroup", "local"', '"agent"')


def meeting_often(arch: str) -> Isa:
    """Three barriers in each iteration."""
    barrier = "block_barrier_of_shared();\n  }"
    return mended(arch, barrier, f"block_barrier_of_shared();\n  {barrier}")


def waiting(arch: str) -> Isa:
    """The last product of an iteration waits for the next tile."""
    lines = good(arch).assembly.splitlines()
    last = read_isa(good(arch).assembly).main.of(IsaKind.MATRIX)[-1]
    lines.insert(last.line - 1, "\ts_waitcnt vmcnt(0)")
    return read_isa("\n".join(lines))


def sinking(arch: str) -> Isa:
    """The compiler may move the loads of the next tile after the products of this one."""
    return mended(arch, "    in_this_order();\n", "")


def large(arch: str) -> Isa:
    """Use twice as many sums."""
    schedule = good(arch).schedule
    assert schedule is not None
    return read_isa(whole(arch, schedule=replace(schedule, tile=(256, 128, 32))).assembly)


WORSE = {
    "matrix_per_load": small,
    "loads": small,
    "global_bytes": unaligned,
    "shared_load_bytes": along_rows,
    "shared_store_bytes": unaligned,
    "spills": crowded,
    "barriers": meeting_often,
    "flushes_per_barrier": ordering_all,
    "waits_for_loads": waiting,
    "loads_behind_matrix": sinking,
    "registers": large,
    "warps": deep,
}


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("gate", WORSE)
def test_a_kernel_that_is_made_worse_fails_its_gate(arch: str, gate: str) -> None:
    found = {one.gate: one for one in broken(WORSE[gate](arch), gates(arch))}
    assert gate in found, found
    asked = getattr(gates(arch), gate)
    one = found[gate]
    assert one.limit == asked
    assert one.value != asked
    assert one.where


def test_every_gate_has_a_kernel_that_fails_it() -> None:
    assert WORSE.keys() == Gates.__dataclass_fields__.keys()


def test_a_breach_says_value_limit_and_instructions() -> None:
    told = str(Breach("matrix_per_load", 4 / 3, 4, (("v_wmma", 4), ("global_load_b128", 3))))
    assert told == "matrix_per_load: 1.33333, at least 4 (4 v_wmma, 3 global_load_b128)"


# ---------------------------------------------------------------- banks


@pytest.mark.parametrize("arch", ARCHS)
def test_operands_meet_in_no_bank(arch: str) -> None:
    """With the chosen swizzles, reads take one pass; writes of transposed operands take a few."""
    made = good(arch)
    assert made.listing is not None
    assert {note.split(":")[0] for note in made.notes if "re-laid out" in note} == {
        "sA re-laid out",
        "sB re-laid out",
    }
    moved = movements(made.listing.kernel, "hip", made.kernel)
    reads = [one for one in moved if one.source.startswith(("sA", "sB"))]
    writes = [one for one in moved if one.target.startswith(("sA", "sB"))]
    assert len(reads) >= 2
    assert all(one.passes == 1.0 for one in reads), [str(one) for one in reads]
    assert all(one.passes is not None and one.passes <= 2.0 for one in writes), [str(one) for one in writes]


@pytest.mark.parametrize("dtype", ["f16", "i8", "f32"])
def test_swizzles_know_all_banks_of_an_architecture(dtype: str) -> None:
    """64 banks serve sixteen lanes at once; with a swizzle for 32 banks these lanes conflict."""
    for arch in (GFX942, GFX950):
        made = whole(arch.name, dtype, "nt")
        assert made.listing is not None
        reads = [
            op
            for op in made.listing.kernel.walk()
            if isinstance(op, Copy) and op.target.is_fragment and in_shared(op.source)
        ]
        assert len(reads) >= 2
        for op in reads:
            size, banks = op.source.dtype.bytes, arch.banks
            at = dict.fromkeys(symbols(op.source.tensor.view.offset) - {*op.source.tensor.view.coords}, 0)
            if op.vector is None or op.vector * size != 16:
                continue
            found = bank_conflicts(op.source.tensor.view, op.spread, op.vector, size, banks, 64, at=at)
            assert found == 1, op


# ---------------------------------------------------------------- weights of 8 bits


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("order", ["nn", "nt"])
def test_weights_are_widened_on_their_way_to_shared_memory(arch: str, order: str) -> None:
    """Weights are widened once for all warps, two at a time; the main loop has the widest loads."""
    rows = tw.TensorSpec(tw.f16, 2, 1, (16, 16), (16, 1), 16, False)
    columns = tw.TensorSpec(tw.f8e4m3, 2, 0, (16, 16), (1, 16), 16, False)
    vector = tw.TensorSpec(tw.f32, 1, 0, (16,), (1,), 16, False)
    b = columns if order == "nt" else replace(rows, dtype=tw.f8e4m3)
    arrays = {"A": rows, "B": b, "scale_a": vector, "scale_b": vector, "bias": vector, "D": rows}
    terms = {"terms": frozenset({"scale_b", "bias"}), "activation": None}
    made = scaled(0).bind(multiplied=tw.f16, **terms).compile(**arrays, target="hip", arch=arch)
    assert made.schedule is not None
    assert (made.schedule.staging, made.schedule.tile) == ("registers", (128, 128, 32))
    narrow = {"nn": {"global_bytes": 8, "shared_store_bytes": 4}, "nt": {}}[order]
    gates = Gates(loads={"nn": 4, "nt": 3}[order], warps=3, registers=REGISTERS[arch], **narrow)
    for listing in listings(made):
        isa = read_isa(listing)
        assert broken(isa, gates) == ()
        assert isa.resources["spilled_scalar_registers"] == 0
        assert isa.main.mnemonics["v_pk_fma_f16"] == 8, "16 numbers of each thread, once"
        assert isa.main.mix[IsaKind.VECTOR] <= 8 * 16
    if order == "nt":
        return
    # Words that the compiler may take apart where they were loaded are waited for there, before all products.
    early = read_isa(compile_text(made.source.replace("anew(((word_4*)", "(((word_4*)"), arch))
    assert [one.gate for one in broken(early, gates)] == ["waits_for_loads"]
