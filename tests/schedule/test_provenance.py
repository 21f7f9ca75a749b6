"""Every operation of an expanded kernel names its value of the graph and its field of the schedule."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.nodes import ArrayPart, Node, Store
from tilewright.ir.copies import Copy
from tilewright.ir.printer import print_kernel
from tilewright.runtime.kernel import Bound
from tilewright.schedule.expand import Expanded
from tilewright.schedule.rings import DirectStaging
from tilewright.targets import cuda

from .forms import BULK, FORMS, PROGRAM, SYNC, expanded, flow_of, specs


@pytest.mark.parametrize("form", FORMS)
def test_every_operation_has_both(form: str) -> None:
    kernel = expanded(FORMS[form])
    names = {field.name for field in fields(tw.Schedule)}
    for op in kernel.walk():
        origin = op.location and op.location.origin
        assert origin is not None, f"{op} has none"
        assert isinstance(origin.node, Node | Store)
        assert origin.field in names
        assert eval(origin.value, {"tw": tw}) == getattr(FORMS[form], origin.field)
        assert {frame.function for frame in op.location.shown} == {"linear"}


class Unchecked(Expanded):
    """The kernel that a schedule makes, legal or not."""

    trace = Expanded.unchecked


def unchecked(schedule: tw.Schedule) -> Unchecked:
    return Unchecked(PROGRAM, flow_of(specs()), schedule)


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = ((130, 264), (72, 264), (72,), (130, 72))
    return [rng.standard_normal(shape).astype(np.float16) for shape in shapes]


@pytest.mark.parametrize("form", FORMS)
def test_copies_of_operands_and_results_name_their_parts(form: str) -> None:
    kernel = expanded(FORMS[form])
    seen = {}
    for op in kernel.walk():
        if isinstance(op, Copy) and op.source.is_tensor and op.location and op.location.origin:
            node = op.location.origin.node
            seen[op.source.buffer.name] = node.operand.name if isinstance(node, ArrayPart) else node
    assert {name: seen[name] for name in ("A", "B", "bias")} == {"A": "A", "B": "B", "bias": "bias"}


def test_a_deadlock_names_the_authors_line_and_the_field() -> None:
    report = str(Bound(unchecked(replace(BULK, stages=1)), {}).check(*arrays()))
    assert "deadlock" in report
    assert "acc += A[m, k] @ B[n, k].T" in report
    assert "as the schedule makes it by stages=1" in report
    assert "bulk.py" not in report


def test_a_race_names_the_authors_line_and_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectStaging, "_meet", lambda self: None)
    report = str(Bound(unchecked(SYNC), {}).check(*arrays()))
    assert "race" in report
    assert "acc += A[m, k] @ B[n, k].T" in report
    assert 'as the schedule makes it by staging="direct"' in report
    assert "as the schedule makes it by atom=tw.atoms.MMA_F16" in report
    assert "rings.py" not in report


def test_a_broken_rule_names_the_authors_line_and_the_field() -> None:
    kernel = unchecked(replace(SYNC, stages=40, staging="cp_async")).trace(specs())
    [found] = [one for one in cuda.violations(kernel, "sm_90a") if one.rule == "shared bytes"]
    assert "acc += A[m, k] @ B[n, k].T" in str(found)
    assert "as the schedule makes it by stages=40" in str(found)


def test_an_error_of_the_expansion_names_the_authors_line_and_the_field() -> None:
    with pytest.raises(tw.TraceError) as refused:
        unchecked(replace(FORMS["cp_async"], stages=1)).trace(specs())
    assert "acc += A[m, k] @ B[n, k].T" in str(refused.value)
    assert "as the schedule makes it by stages=1" in str(refused.value)


def test_texts_name_the_authors_line_and_the_field() -> None:
    kernel = expanded(BULK)
    text = cuda.emit(kernel, "sm_90a").text
    assert "// forms.py:25 staging: A.tile((128, 64), (m, k)) -> " in text
    assert "// forms.py:25 atom: acc += sA[" in text
    assert "// forms.py:26 epilogue: " in text
    assert 'by staging="tma"' in print_kernel(kernel, locations=True)
    assert not [
        line for line in text.splitlines() if "// " in line and ".py" in line and "forms.py" not in line
    ]
