"""Views of arrays as operands and results of dataflow kernels, on every target, element by element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.runtime.kernel import Kernel
from tilewright.schedule.schedule import Schedule

from .small import CASES


@tw.kernel(A="M K", B="K N", C="M N")
def inner(A, B, C):
    """Multiply the inner parts of A and B into the inner part of C."""
    left, right, out = A[1:-1, 2:], B[1:-1, 1:-1], C[1:-1, 1:-1]
    for m, n in tw.tiles(out):
        acc = tw.zeros()
        for k in tw.steps(left.shape[1]):
            acc += left[m, k] @ right[k, n]
        out[m, n] = acc


@tw.kernel(A="P Q K", B="N K", C="P Q N", bias="N")
def merged(A, B, C, bias):
    """Merge all positions to rows."""
    rows, out = A.merge(0), C.merge(0)
    for m, n in tw.tiles(out):
        acc = tw.zeros()
        for k in tw.steps(rows.shape[1]):
            acc += rows[m, k] @ B[n, k].T
        out[m, n] = tw.relu(acc + bias[n])


@tw.kernel(A="M K", B="K N", C="N M")
def turned(A, B, C):
    """Store the transposed result of transposed operands."""
    a, b, c = A.permute(1, 0), B.permute(1, 0), C.permute(1, 0)
    for m, n in tw.tiles(c):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += a[k, m].T @ b[n, k].T
        c[m, n] = acc


@tw.kernel(A="H M K", B="H K N", C="M H N")
def heads(A, B, C):
    """The result has neighbouring heads."""
    out = C.permute(1, 0, 2)
    for h, m, n in tw.tiles(out):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[h, m, k] @ B[h, k, n]
        out[h, m, n] = acc


@tw.kernel(X="N H W C", F="O T", bias="O", C="P O")
def convolution(X, F, bias, C):
    """Each position of a filter of 3 x 2 is a row, with the channels of its taps."""
    image = X.im2col(spatial=(1, 2), filter=(3, 2), padding=(1, 0), stride=(1, 2))
    tw.require(image.shape[0] == C.shape[0], "C has a row for each position of the filter")
    tw.require(image.shape[1] == F.shape[1], "F has a column for each channel of each tap")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(F.shape[1]):
            acc += image[m, k] @ F[n, k].T
        C[m, n] = tw.relu(acc + bias[n])


@tw.kernel(A="M K", B="K N", scale="R S", C="M N")
def scaled_by_blocks(A, B, scale, C):
    """There is one number for each 8 rows and 16 columns."""
    tw.require(scale.shape[0] == tw.ceil_div(C.shape[0], 8), "a row of scales for each 8 rows")
    tw.require(scale.shape[1] == tw.ceil_div(C.shape[1], 16), "a column of scales for each 16 columns")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc * scale[m // 8, n // 16]


SHAPES: dict[str, tuple[Kernel, dict[str, tuple[int, ...]]]] = {
    "inner": (inner, {"A": (50, 42), "B": (42, 37), "C": (50, 37)}),
    "merged": (merged, {"A": (5, 9, 40), "B": (24, 40), "C": (5, 9, 24), "bias": (24,)}),
    "turned": (turned, {"A": (33, 40), "B": (40, 48), "C": (48, 33)}),
    "convolution": (convolution, {"X": (2, 9, 8, 8), "F": (24, 48), "bias": (24,), "C": (72, 24)}),
    "scaled_by_blocks": (scaled_by_blocks, {"A": (33, 40), "B": (40, 37), "scale": (5, 3), "C": (33, 37)}),
    "heads": (heads, {"A": (3, 33, 40), "B": (3, 40, 24), "C": (33, 3, 24)}),
}


def arrays(name: str, kind: str) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    made = {
        one: rng.standard_normal(shape).astype(tw.dtype(kind).numpy) for one, shape in SHAPES[name][1].items()
    }
    made["C"][...] = 77
    return made


def compared(name: str, given: dict[str, Any], schedule: Schedule) -> StoredComparison:
    flow = SHAPES[name][0].flow(*given.values())
    kept = {one: array for one, array in given.items() if one != "C"}
    return compare_flow(flow, {"C": given["C"]}, kept, how=Accumulation.of(schedule.atom))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_element(name: str, kind: str, target: str) -> None:
    given = arrays(name, kind)
    ran = SHAPES[name][0](*given.values(), target=target)
    assert ran.target == target
    assert compared(name, given, ran.schedule).ok
    if name == "inner":
        border = given["C"].copy()
        border[1:-1, 1:-1] = 77
        assert (border == 77).all()


def test_the_comparison_rejects_another_row() -> None:
    given = arrays("heads", "f32")
    ran = heads(*given.values(), target="cpu")
    given["C"][4] = given["C"][5]
    assert not compared("heads", given, ran.schedule).ok


def test_requirements_are_asked_at_every_launch() -> None:
    given = arrays("convolution", "f32")
    with pytest.raises(tw.LaunchError, match="C has a row for each position of the filter"):
        convolution(*(given | {"C": given["C"][:-1]}).values(), target="cpu")
    flow = convolution.flow(*given.values())
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
    short = {one: array for one, array in given.items() if one != "C"} | {"F": given["F"][:, 1:]}
    with pytest.raises(tw.LaunchError, match="F has a column for each channel of each tap"):
        tw.ir.evaluate(flow, short)


def test_a_convolution_by_numpy() -> None:
    """The evaluator, the oracle of the other tests, equals NumPy's windows."""
    given = arrays("convolution", "f32")
    padded = np.pad(given["X"], ((0, 0), (1, 1), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (1, 2))[:, :, ::2]
    rows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(72, 48).astype(np.float64)
    want = np.maximum(rows @ given["F"].T.astype(np.float64) + given["bias"], 0)
    made = tw.ir.evaluate(convolution.flow(*given.values()), given, rounded=False)["C"]
    assert np.allclose(made, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["cp_async, staged", "fragments", "wgmma, registers", "split"])
def test_stagings_that_copy_views(form: str) -> None:
    schedule = replace(CASES[form].schedule, epilogue="staged")
    given = arrays("inner", "f16")
    ran = inner.bind(schedule=schedule)(*given.values(), target="reference")
    assert ran.schedule == schedule
    assert compared("inner", given, schedule).ok


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_text_without_spills(name: str, arch: str) -> None:
    given = arrays(name, "f16")
    made = SHAPES[name][0].compile(*given.values(), target="cuda", arch=arch)
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


def test_bulk_copies_leave_views_to_others() -> None:
    bulk = CASES["cooperative, overlapped"].schedule
    given = arrays("merged", "f16")
    made = merged.bind(schedule=bulk).compile(*given.values(), target="cuda", arch="sm_90a")
    assert made.schedule.staging == "registers"
    reason = "A and B are loaded through registers instead of TMA: A as a view: the tile walks along"
    assert any(reason in note for note in made.notes)
