"""TMA of tensors of two to five dimensions: its meaning on the reference, and its text compiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.windows import window

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import Kind, run

from .boxes import LEGAL, NAMES, REFUSED, Case, store_boxes


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(("made", "kernel"), LEGAL)
def test_on_the_reference(made: Case, kernel: Any) -> None:
    assert made.is_right(kernel, "reference")


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(("made", "kernel"), LEGAL)
def test_the_text_compiles(made: Case, kernel: Any) -> None:
    traced = made.trace(kernel)
    assert [*verify.violations(traced), *cuda.violations(traced, "sm_90a")] == []
    text = cuda.emit(traced, "sm_90a").text
    assert f"tma_{kernel.__name__.partition('_')[0]}_{len(made.shape)}d(&" in text
    binary = compile_text(text, "sm_90a")
    assert "warning" not in binary.log
    assert not any(code in binary.log for code in FATAL)


@pytest.mark.parametrize("name", REFUSED)
def test_stores_of_rows_that_end_within_16_bytes_are_refused(name: str) -> None:
    """Hardware stores whole units of 16 bytes; on an H200, that overwrote the bytes after each row."""
    case = REFUSED[name]
    [found] = verify.violations(case.trace(store_boxes))
    extent, rank = case.shape[-1], len(case.shape)
    known = math.gcd(extent, 256)
    names = NAMES[-2 * rank + 1 :].split()
    assert f"dimension {rank - 1} of Y has {names[-1]} elements, a multiple of {known} {case.dtype}" in str(
        found
    )
    assert (
        "a store by TMA writes whole units of 16 bytes, and would overwrite the bytes after each row"
        in str(found)
    )
    assert f"tw.copy from shared memory, or an extent that is a multiple of {case.unit}" in str(found)
    assert "tw.hopper.tma_store(held, box_at(Y, held.shape, at))" in str(found)
    with pytest.raises(LegalityError, match="whole units of 16 bytes"):
        case.is_right(store_boxes, "reference")


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", REFUSED)
def test_the_reference_finds_what_is_stored_behind_rows(name: str) -> None:
    """The reference reports all elements between each row's end and the end of its unit."""
    case = REFUSED[name]
    tensor, boxes = case.arrays(store_boxes)
    boxes.array[...] = 0
    report = run(case.trace(store_boxes), {"Y": tensor.array, "Z": boxes.array})
    [found] = report.findings
    assert found.kind is Kind.OUT_OF_BOUNDS
    assert (found.tensor, found.access.action) == ("Y", "write")
    behind = -case.shape[-1] % case.unit
    assert f"the {behind} elements after each row are overwritten" in found.reason
    assert found.count == behind * math.prod(case.shape[:-1])
    assert tensor.is_whole_around()


def refusal(shape: tuple[int, ...], names: str, rows: int = 8, **wrong: Any) -> str:
    def kernel(X):
        held = tw.shared((rows, 64), X.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        held = wrong.get("held", lambda held: held)(held)
        inner = X[(0,) * (len(shape) - 2)]
        box = inner.tile(held.shape[-len(inner.shape) :], (0,) * len(inner.shape))
        tw.hopper.tma_load(box, held if len(shape) > 1 else held[0], full[0])

    start, strides = wrong.get("start", 0), wrong.get("strides")
    x = np.ndarray(shape, np.float16, np.zeros(1 << 16, np.uint8), start, strides)
    with pytest.raises(LegalityError) as refused:
        tw.kernel(X=names)(kernel)(x, target="reference")
    return str(refused.value)


@pytest.mark.parametrize("element", [tw.f16, tw.f32, tw.i8], ids=str)
def test_boxes_begin_at_multiples_of_16_bytes(element: tw.DType) -> None:
    """An H200 stops with an illegal instruction at other places."""
    unit, columns = 16 // element.bytes, 128 // element.bytes
    x = np.zeros((8, 4 * columns), element.numpy)

    def load(X, *, start):
        held = tw.shared((8, columns), X.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        box = window(X, held.shape, (0, tw.block_index(3) * columns + start))
        tw.hopper.tma_load(box, held, full[0])

    for start in (0, unit, -unit, 3 * unit):
        assert not verify.violations(tw.kernel(X="M N")(load).bind(start=start).trace(x))
    for start in (1, unit // 2, -1, unit + 1):
        [found] = verify.violations(tw.kernel(X="M N")(load).bind(start=start).trace(x))
        assert f"no known multiple of {unit} {element}, 16 bytes" in str(found)
        assert f"a multiple of {unit}, or tw.copy" in str(found)


def test_stores_begin_nowhere_before_the_tensor() -> None:
    """An H200 stops with an illegal instruction there; loads may begin before the tensor."""
    x = np.zeros((8, 64), np.float16)

    def store(Y, *, start):
        held = tw.shared((8, 64), Y.dtype, swizzle=128)
        tw.hopper.tma_store(held, window(Y, held.shape, (tw.block_index(3) + start, 0)))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)

    kernel = tw.kernel(Y="M N")(store)
    assert not verify.violations(kernel.bind(start=0).trace(x))
    [found] = verify.violations(kernel.bind(start=-3).trace(x))
    assert "a store by TMA begins at" in str(found)
    assert "along dimension 0 of Y, before its first element" in str(found)
    assert "a start of 0 or more, or tw.copy" in str(found)
    # Whether the first block's box begins there is not known before it runs.
    [report] = [finding for finding in kernel.bind(start=-1).check(x).findings if "TMA" in finding.reason]
    assert report.kind is Kind.OUT_OF_BOUNDS
    assert "a store by TMA begins at (-1, 0), before the tensor" in report.reason


def test_refusals_name_the_nearest_legal_choice() -> None:
    said = refusal((64,), "N")
    assert "X has 1 dimension; TMA copies boxes of rows" in said
    assert "pass it with a first dimension of 1" in said
    assert "X has 6 dimensions; TMA copies of at most 5 dimensions" in refusal((1,) * 6, "A B C D E F")
    said = refusal((4, 8, 64), "A B C", strides=(1024, -128, 2), start=1024)
    assert "stride X_stride1 of dimension 1 of X may be negative; TMA steps upwards only" in said
    assert "nearest legal choice: tw.copy, or an array whose strides are positive" in said
    said = refusal((4, 8, 64), "A B C", strides=(1024 + 2, 128, 2))
    assert "not of 16 bytes" in said
    assert "pad the rows to a multiple of 8 elements" in said
    assert "rows of the tile lie along dimension 2 of X, which has stride X_stride2" in refusal(
        (4, 8, 64), "A B C", strides=(4096, 512, 4)
    )
    said = refusal((4, 64, 64), "A B C", 256, held=lambda held: held.permute(1, 0))
    assert "rows of the tile lie along dimension 1 of X, which has stride" in said
    said = refusal((4, 64, 64), "A B C", held=lambda held: held[:, :32])
    assert "is not laid out in rows of 128 bytes" in said
