"""Two groups of waves take turns at barriers in different places of the program; and their schedule."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.amdgcn import LdsRaceError, MissedBarrierError, UninitialisedError
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LegalityError
from tilewright.inspect.isa import Gates, IsaKind, broken, execute_listing, read_isa
from tilewright.inspect.report import movements
from tilewright.ops.products import plain
from tilewright.runtime.amdgcn import compile_text
from tilewright.runtime.executable import Executable
from tilewright.runtime.kernel import Bound

from .executed import launched
from .machine import listings, toolchain

pytestmark = pytest.mark.in_turns(3)

# ---------------------------------------------------------------- roles and barriers, by hand


ROWS = 3


@tw.kernel(X="M N", Y="M N")
def handed_over(X, Y, *, warps, behind):
    """The first role passes row after row to the second, at barriers in different lines."""
    held = tw.shared((1, 128), X.dtype)
    with tw.role(warps=warps):
        for row in tw.range(ROWS):
            tw.copy(X.tile((1, 128), (row, 0)), held, threads=128)
            tw.role_barrier(1, threads=256)
            for _ in range(behind):
                tw.role_barrier(1, threads=256)
    with tw.role(warps=warps):
        for row in tw.range(ROWS):
            tw.role_barrier(1, threads=256)
            tw.copy(held, Y.tile((1, 128), (row, 0)), threads=128)
            tw.role_barrier(1, threads=256)


@tw.kernel(X="M N")
def of_a_role(X, *, threads, registers):
    with tw.role(warps=2, registers=registers):
        tw.role_barrier(1, threads=threads)
    with tw.role(warps=2):
        tw.role_barrier(1, threads=threads)


@tw.kernel(X="M N", S="M")
def summed_by_a_role(X, S):
    with tw.role(warps=2):
        x = tw.fragment(tw.blocked((1, 128), (1, 128)), X.dtype)
        tw.copy(X.tile((1, 128), (0, 0)), x)
        tw.copy(tw.reduce_sum(x, 1, barrier=1).reshape(1), S.tile((1,), (0,)))


@tw.kernel(X="M N", Y="M N")
def in_background(X, Y):
    held = tw.shared((1, 128), X.dtype)
    with tw.role(warps=2):
        tw.copy_async(X.tile((1, 128), (0, 0)), held, threads=128)
        tw.async_commit()
        tw.async_wait(0)
        tw.role_barrier(1, threads=256)
    with tw.role(warps=2):
        tw.role_barrier(1, threads=256)
        tw.copy(held, Y.tile((1, 128), (0, 0)), threads=128)


def rows() -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((ROWS, 100)).astype(np.float32)
    return {"X": x, "Y": np.full_like(x, np.nan)}


@pytest.mark.parametrize(("arch", "warps"), [("gfx942", 2), ("gfx1151", 4)])
def test_roles_meet_at_different_lines(arch: str, warps: int) -> None:
    arrays, bound = rows(), handed_over.bind(warps=warps, behind=1)
    made, ran = launched(bound, arch, arrays)
    assert (arrays["X"] == arrays["Y"]).all()
    assert ran.mnemonics["s_barrier"] == 2 * ROWS * 2 * warps
    assert read_isa(made.assembly).resources["spilled_registers"] == 0
    if warps == 4:
        report = bound.check(*rows().values())
        assert report.is_clean, str(report)


def test_a_role_that_comes_less_often_is_refused() -> None:
    with pytest.raises(
        LegalityError, match=r"warp 2 reaches the barrier of all warps 3 times more than warp 0"
    ) as refused:
        handed_over.bind(warps=2, behind=0).compile(*rows().values(), target="hip", arch="gfx942")
    assert "equally many tw.role_barrier of all threads in each role" in str(refused.value)


def test_a_row_that_nobody_waits_for_is_found_in_the_listing() -> None:
    arrays = rows()
    made, _ = launched(handed_over.bind(warps=2, behind=1), "gfx942", arrays)
    assert made.assembly.count("s_barrier") == 4 * ROWS
    with pytest.raises((LdsRaceError, UninitialisedError)):
        execute_listing(replace(made, assembly=without_barrier(made.assembly, 0)), arrays)


@pytest.mark.parametrize(
    ("threads", "registers", "says"),
    [
        (
            128,
            None,
            (
                "a barrier of 128 threads; on gfx942 a barrier is for all 256 threads of a block",
                "threads=256",
            ),
        ),
        (
            256,
            40,
            (
                "registers=40 for a role; on gfx942 all waves of a kernel have the same number",
                "registers=None",
            ),
        ),
    ],
)
def test_what_the_machine_has_not_is_refused(
    threads: int, registers: int | None, says: tuple[str, str]
) -> None:
    bound = of_a_role.bind(threads=threads, registers=registers)
    with pytest.raises(LegalityError) as refused:
        bound.compile(np.zeros((1, 1), np.float32), target="hip", arch="gfx942")
    found = {(one.message, one.nearest) for one in refused.value.violations}
    assert says in found


def test_several_warps_of_a_role_meet_nowhere_by_themselves() -> None:
    with pytest.raises(tw.TraceError, match="which gfx942 does not support inside of a role"):
        summed_by_a_role.compile(
            np.zeros((1, 128), np.float32), np.zeros(1, np.float32), target="hip", arch="gfx942"
        )


def test_copies_of_a_role_are_done_at_once() -> None:
    arrays = rows()
    made, _ = launched(in_background, "gfx942", arrays)
    assert (arrays["X"][0] == arrays["Y"][0]).all()
    assert any(
        "X -> held is copied synchronously: this pass does not analyse accesses" in note
        for note in made.notes
    )


def without_barrier(assembly: str, number: int) -> str:
    """The listing without one of its barriers."""
    lines = assembly.splitlines()
    at = [line for line, text in enumerate(lines) if text.strip() == "s_barrier"]
    del lines[at[number]]
    return "\n".join(lines)


# ---------------------------------------------------------------- the schedule

SMALL = tw.Schedule(
    *(tw.atoms.MFMA_F16_K16, (128, 64, 32), (2, 2)),
    stages=2,
    staging="registers",
    roles="alternating",
    groups=2,
    k1=(8, 8),
)
LARGE = replace(SMALL, tile=(256, 256, 32), group_m=8)
"""Eight waves, two on each SIMD: what the sums of 256 x 256 leave room for."""

STAGED = replace(SMALL, epilogue="staged", interleaved=True)
"""Results leave in whole rows, through the memory that the ring lay in."""

TURNED = {"dealt": ((0, 0), (8, 32)), "turned": "b"}
"""B lies along its rows in memory."""


def bound(schedule: tw.Schedule) -> Bound:
    return plain(0).bind(precision="exact", schedule=schedule)


def posed(m: int, n: int, k: int, order: str = "nt", kind: str = "f16") -> dict[str, Any]:
    """Return random A and B, and a result of NaN."""
    rng, dtype = np.random.default_rng(3), tw.dtype(kind).numpy
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    return {
        "A": a,
        "B": b.T if order == "nt" else np.ascontiguousarray(b.T),
        "D": np.full((m, n), np.nan, dtype),
    }


CASES = {
    "4 steps": (SMALL, (150, 70, 104), "nt", "gfx942"),
    "1 step": (SMALL, (130, 66, 24), "nt", "gfx942"),
    "no step": (SMALL, (130, 66, 0), "nt", "gfx942"),
    "B turned around": (replace(SMALL, **TURNED), (150, 70, 72), "nn", "gfx942"),
    "persistent": (replace(SMALL, blocks=2, group_m=2), (150, 70, 72), "nt", "gfx942"),
    "in whole rows": (STAGED, (150, 70, 104), "nt", "gfx942"),
    "bf16": (replace(SMALL, atom=tw.atoms.MFMA_BF16_K16), (150, 70, 72), "nt", "gfx942"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_element_is_right_by_both_compilers(case: str) -> None:
    schedule, shape, order, arch = CASES[case]
    kind = schedule.atom.a_dtype.name
    arrays = posed(*shape, order, kind)
    made, ran = launched(bound(schedule), arch, arrays)
    assert made.schedule == schedule
    assert ran.mnemonics["s_barrier"] > 0
    compare_gemm(*arrays.values(), Accumulation.of(schedule.atom)).raise_if_wrong()
    if case in ("4 steps", "B turned around"):
        older = compile_text(made.source, arch, made.kernel.name, toolchain("older"))
        arrays["D"][:] = np.nan
        execute_listing(replace(made, assembly=older), arrays)
        compare_gemm(*arrays.values(), Accumulation.of(schedule.atom)).raise_if_wrong()


def test_the_reference_with_64_lanes_finds_no_hazard() -> None:
    arrays = posed(150, 70, 136)
    report = bound(SMALL).check(*arrays.values())
    assert report.is_clean, str(report)
    assert "512 threads in warps of 64" in str(report)


def test_a_barrier_less_is_found_in_the_listing() -> None:
    """Each barrier is left out in turn: those before the loop, the two in it, and the one after it.

    Without a barrier of one group, both groups do the same at once, or one has ended when the other arrives;
    hardware permits that.  The reference reports a deadlock in both cases.
    """
    arrays = posed(130, 66, 104)
    made, _ = launched(bound(SMALL), "gfx942", arrays)
    assert made.assembly.count("s_barrier") == 5
    of_one_group = (1, 4)
    for number in range(5):
        with pytest.raises(MissedBarrierError if number in of_one_group else LdsRaceError):
            execute_listing(replace(made, assembly=without_barrier(made.assembly, number)), arrays)


# ---------------------------------------------------------------- gates


@functools.cache
def whole(arch: str, schedule: tw.Schedule = LARGE) -> Executable:
    """The kernel for large matrices; B is contiguous along K."""
    of_rows = tw.TensorSpec(tw.f16, 2, 1, (16, 16), (16, 1), 16, False)
    of_columns = tw.TensorSpec(tw.f16, 2, 0, (16, 16), (1, 16), 16, False)
    return bound(schedule).compile(of_rows, of_columns, of_rows, target="hip", arch=arch)


def phases(assembly: str) -> list[Counter[IsaKind]]:
    """Count the instructions between barriers of the main loop, by kind; the loop ends where it begins."""
    found: list[Counter[IsaKind]] = [Counter()]
    for line in read_isa(assembly).main.lines:
        if line.kind is IsaKind.BARRIER:
            found.append(Counter())
        else:
            found[-1][line.kind] += 1
    return [found[0] + found[-1], *found[1:-1]]


def takes_turns(assembly: str) -> bool:
    """Whether all products are between two barriers, with only waits among them."""
    loads, *products = phases(assembly)
    return (
        len(products) == 1
        and not loads[IsaKind.MATRIX]
        and not {*products[0]} - {IsaKind.MATRIX, IsaKind.WAIT}
    )


@pytest.mark.parametrize(("arch", "products"), [("gfx90a", 32), ("gfx942", 32), ("gfx950", 16)])
def test_one_group_multiplies_while_the_other_one_loads(arch: str, products: int) -> None:
    """256 x 256 by eight waves: phases of loads alternate with phases of products; a SIMD has two waves."""
    made = whole(arch)
    isa = read_isa(made.assembly)
    assert takes_turns(made.assembly)
    assert phases(made.assembly)[1][IsaKind.MATRIX] == isa.main.mix[IsaKind.MATRIX] == products
    assert broken(isa, Gates(loads=4, matrix_per_load=products / 4, warps=2)) == ()
    assert isa.main.widths(IsaKind.SHARED_LOAD) == {16: 12}
    assert isa.resources["registers"] <= 256
    assert isa.resources["spilled_scalar_registers"] == isa.resources["stack_bytes"] == 0


def test_other_compilers_leave_it_so() -> None:
    for listing in listings(whole("gfx942")):
        isa = read_isa(listing)
        assert takes_turns(listing)
        assert broken(isa, Gates(loads=4, matrix_per_load=8, warps=2)) == ()
        assert isa.resources["spilled_scalar_registers"] == isa.resources["stack_bytes"] == 0


def test_results_leave_in_whole_rows_through_the_memory_of_the_ring() -> None:
    """The ring for 256 x 256 by 32 fills all 64 KB of a multiprocessor, so the epilogue reuses its memory."""
    made = whole("gfx942", replace(LARGE, epilogue="staged", interleaved=True, buffers=1))
    assert takes_turns(made.assembly)
    assert made.resources["shared_bytes"] == 65536
    assert made.resources["spilled_registers"] == made.resources["stack_bytes"] == 0
    assert set(re.findall(r"global_store_\w+", made.assembly)) == {"global_store_dwordx4"}


def test_operands_meet_in_no_bank() -> None:
    made = whole("gfx942")
    assert made.listing is not None
    moved = movements(made.listing.kernel, "hip", made.kernel)
    reads = [one for one in moved if one.source.startswith(("sA", "sB"))]
    assert len(reads) == 2
    assert all(one.passes == 1.0 for one in reads), [str(one) for one in reads]


def test_where_the_compiler_may_it_multiplies_between_the_loads() -> None:
    text = whole("gfx942").source
    free = text.replace("__builtin_amdgcn_sched_barrier(0);", "")
    assert free != text
    assert not takes_turns(compile_text(free, "gfx942"))


def test_one_group_of_as_many_warps_takes_no_turns() -> None:
    alone = replace(LARGE, warps=(4, 2), groups=1, stages=1, roles="none")
    assert not takes_turns(whole("gfx942", alone).assembly)


def test_one_more_pair_of_barriers_fails_the_gate() -> None:
    text = whole("gfx942").source
    often = text.replace(
        "block_barrier_of_shared();\n", "block_barrier_of_shared();\nblock_barrier_of_shared();\n"
    )
    found = {one.gate for one in broken(read_isa(compile_text(often, "gfx942")), Gates(warps=2))}
    assert "barriers" in found


# ---------------------------------------------------------------- what is refused

REFUSED = {
    "groups": ({"groups": 3, "tile": (192, 64, 32)}, "groups=2"),
    "stages": ({"stages": 1}, "stages=2"),
    "warps": ({"warps": (2, 1)}, "warps=(2, 2), or another multiple of 4 warps"),
    "bypass": ({"bypass": "a", "k1": (0, 8)}, 'bypass=""'),
    "epilogue": ({"epilogue": "overlapped"}, 'epilogue="staged"'),
    "split_k": ({"split_k": 2}, 'split_k=1, or roles="none"'),
    "balanced": ({"balanced": True}, 'balanced=False, or roles="none"'),
    "dealt": ({"dealt": ((0, 0), (64, 4))}, "(0, 0) instead of (64, 4)"),
    "tile": ({"tile": (512, 256, 32), "k1": (0, 0)}, "a smaller tile"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_schedule_that_cannot_be_is_refused(field: str) -> None:
    change, nearest = REFUSED[field]
    with pytest.raises(tw.ScheduleError) as refused:
        bound(replace(SMALL, **change)).compile(**posed(150, 70, 104), target="hip", arch="gfx942")
    assert any(one.rule == field and nearest in one.nearest for one in refused.value.violations), (
        refused.value
    )


@tw.kernel(A="M K", B="K N", D="M N")
def widened_weights(A, B, D):
    for m, n in tw.tiles(D):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n].to(tw.f16)
        D[m, n] = acc


@tw.kernel(A="M K", B="K N", D="M N")
def less_the_largest(A, B, D):
    for m, n in tw.tiles(D):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        D[m, n] = acc - acc.max(axis=1)[:, None]


@pytest.mark.parametrize(
    ("kernel", "weights", "says"),
    [
        (widened_weights, tw.f8e4m3, "copy operands without decoding them; B must be decoded"),
        (less_the_largest, tw.f16, "a reduction needs all warps of the block at once"),
    ],
    ids=["decoded", "reduced"],
)
def test_what_takes_no_turns_is_offered_one_group(kernel: tw.Kernel, weights: tw.DType, says: str) -> None:
    arrays = posed(150, 64, 104) | {"B": np.zeros((64, 104), weights.numpy).T}
    with pytest.raises(tw.ScheduleError) as refused:
        kernel.bind(schedule=SMALL).compile(**arrays, target="hip", arch="gfx942")
    [found] = [one for one in refused.value.violations if one.rule == "roles"]
    assert says in found.message
    assert found.nearest == 'roles="none", groups=1 and stages=1'
    plain_one = replace(SMALL, roles="none", groups=1, stages=1, k1=(0, 0))
    assert kernel.bind(schedule=plain_one).compile(**arrays, target="hip", arch="gfx942").assembly


@pytest.mark.parametrize(
    ("target", "arch", "atom"), [("hip", "gfx1151", "WMMA_F16"), ("cuda", "sm_90a", "MMA_F16")]
)
def test_other_machines_are_offered_one_group(target: str, arch: str, atom: str) -> None:
    schedule = replace(SMALL, atom=getattr(tw.atoms, atom))
    with pytest.raises(tw.ScheduleError) as refused:
        bound(schedule).compile(**posed(150, 70, 104), target=target, arch=arch)
    [found] = [one for one in refused.value.violations if one.rule == "roles"]
    assert f"{arch} has no matrix cores that work while other units load and compute" in found.message
    assert found.nearest == 'roles="none", groups=1 and stages=1'
