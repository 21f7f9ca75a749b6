"""Mistakes of published programs, made in the ladder's kernels, are refused with a remedy or found."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import ops, verify
from tilewright.ir.kernel import Kernel
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.targets import cuda
from tilewright.targets.reference import Kind, run
from tilewright.targets.simt.legality import held_at_multiplies, registers_of
from tilewright.views.transforms import Slice

from .kernels import gemm_arrays
from .ladder import example, traced
from .mutate_async import remade

LARGE = example("04_optimized_gemm.py")["LARGE"]
SMALL = {
    "tile": (32, 32, 16),
    "threads": tw.Layout((2, 32, 1), (1, 2, 1)),
    "mma": tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 1), repeats=(1, 4)),
    "vector": 1,
}
TUTORIAL = {"sA": 8196, "sB": 4100}
"""What the published optimised GEMM allocates: its layouts reach 8216 and 4120 elements."""


def arrays(m: int = 256, n: int = 128, k: int = 96) -> dict[str, np.ndarray]:
    return gemm_arrays(m, n, k, "f16", "f16")


def optimized(given: dict[str, np.ndarray], **choices: object) -> Kernel:
    return traced("optimized_gemm", given, **{**LARGE.constants, **choices})


def short(kernel: Kernel) -> Kernel:
    """Return the kernel with the published allocations."""

    def change(op: ops.Op, rewriter: object) -> tuple[ops.Op, ...] | None:
        if isinstance(op, ops.Shared) and op.result.name in TUTORIAL and op.elems != TUTORIAL[op.result.name]:
            return (remade(op, elems=TUTORIAL[op.result.name]),)
        return None

    return rewrite_kernel(kernel, change)


def test_the_published_allocation_is_refused_with_what_is_needed() -> None:
    found = verify.violations(short(optimized(arrays())))
    assert [(v.rule, v.nearest) for v in found] == [
        ("shared allocation", "elems=8216"),
        ("shared allocation", "elems=4120"),
    ]
    assert found[0].message == "sA reaches 8216 elements (the cosize of its layout) but allocates 8196"
    assert found[0].location is not None


def test_the_published_allocation_is_out_of_bounds_where_it_runs_all_the_same() -> None:
    given = arrays()
    found = run(short(optimized(given)), given).findings
    assert Kind.OUT_OF_BOUNDS in {finding.kind for finding in found}
    assert {"sA", "sB"} <= {f.tensor for f in found if f.kind is Kind.OUT_OF_BOUNDS}


@pytest.mark.parametrize("block", [(0, 9), (2, 15)])
def test_blocks_are_dealt_in_the_order_of_their_numbers(block: tuple[int, int]) -> None:
    """Block (m, n) writes only tile (m, n): the library does not reorder tiles.

    The published wrapper exchanges tiles from 8 on; 3 x 16 are more.
    """
    given = arrays(96, 512, 16)
    run(optimized(given, **SMALL), given, blocks=[block]).raise_if_any()
    m, n = (32 * index for index in block)
    written = np.zeros(given["C"].shape, bool)
    written[m : m + 32, n : n + 32] = True
    assert (np.isnan(given["C"]) == ~written).all()


def test_slices_are_pythons() -> None:
    """A negative end counts from the end and is excluded; the published wrapper includes it."""
    whole = tw.View.strided((8, 16), (16, 1))
    assert Slice(((0, -1), (None, None))).apply(whole).shape == (7, 16)
    assert Slice((-1, (4, None))).apply(whole).at((0,)) == 7 * 16 + 4


REFUSED = {
    "a vector that no access has": ({"vector": 16}, {"vector width": "vector=8"}),
    "a vector that is no power of two": ({"vector": 3}, {"vector width": "vector=8"}),
    "a K1 that the vectors do not fill": ({"k1": 4, "threads": (8, 32, 1)}, {"vector width": "vector=4"}),
    "a multiply of another tile": ({"tile": (256, 64, 32)}, {"mma shape": "repeats=(4, 4)"}),
}
"""Choices of `LARGE`'s constants that are illegal: the rules they break, and the remedy that each names."""


@pytest.mark.parametrize("case", REFUSED)
def test_an_illegal_choice_is_refused_with_the_nearest_legal_one(case: str) -> None:
    choices, expected = REFUSED[case]
    found = verify.violations(optimized(arrays(), **choices))
    for rule, remedy in expected.items():
        assert [v for v in found if v.rule == rule and remedy in v.nearest], [str(v) for v in found]
    assert all(v.nearest for v in found), [str(v) for v in found if not v.nearest]
    assert all(v.location for v in found)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"threads": (3, 64, 1)}, "3 threads cannot share .* nearest legal choice: threads=\\(2, 64, 1\\)"),
        ({"k1": 5}, "the product 30 is not known to be its extent 32; pad it to a multiple of 5 first"),
    ],
    ids=["threads that do not divide", "a K1 that does not divide"],
)
def test_what_no_tile_can_be_cut_into_is_refused_at_its_line(choices: dict[str, object], said: str) -> None:
    with pytest.raises(tw.TraceError, match=said) as caught:
        optimized(arrays(), **choices)
    assert "04_optimized_gemm.py:" in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("choices", "rule", "said", "nearest"),
    [
        (
            {"mma": tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (8, 8)), "threads": (4, 32, 1)},
            "registers",
            "registers per thread hold fragments here (acc 256, rA 32, rB 16); with 128 threads",
            "repeats=(4, 8), a tile of 128 x 128",
        ),
        (
            {"tile": (256, 128, 256)},
            "shared bytes",
            "bytes of shared memory (sA 131568, sB 66032, sC 65536)",
            "sA of ",
        ),
    ],
)
def test_what_an_architecture_cannot_hold_is_refused(
    choices: dict[str, object], rule: str, said: str, nearest: str, arch: str
) -> None:
    found = cuda.violations(optimized(arrays(k=512), **choices), arch)
    [violation] = [violation for violation in found if violation.rule == rule]
    assert said in violation.message
    assert arch in violation.message
    assert violation.nearest.startswith(nearest)
    assert violation.location is not None


def test_what_is_held_in_registers_is_counted_over_loops() -> None:
    kernel = optimized(arrays())
    held = [{value.name: registers_of(value) for value in alive} for _, alive in held_at_multiplies(kernel)]
    # In the loop the next tile is on its way; behind the loop only the sum is left.
    assert held == [{"acc": 128, "rA": 16, "rB": 8}, {"acc": 128}]
