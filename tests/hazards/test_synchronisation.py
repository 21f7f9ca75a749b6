"""Warps that wait for what never comes; and rules and operations that the reference does not have yet."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tilewright.errors import MissingRuleError
from tilewright.ir import ops
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Op
from tilewright.targets.reference import REFERENCE, Kind, run
from tilewright.targets.reference.state import Pause
from tilewright.targets.rules import RuleTable


@dataclass(frozen=True)
class OnWarps(Op):
    """Only some warps execute the body: a role."""

    name = "on_warps"
    warps: tuple[int, ...] = ()
    body: Block = field(default_factory=Block)


@dataclass(frozen=True)
class Hang(Op):
    """Wait for what never happens."""

    name = "hang"


ROLES = RuleTable("reference with roles", parent=REFERENCE)


@ROLES.rule(OnWarps)
def _on_warps(machine, warp, op):
    if warp.index in op.warps:
        yield from machine.steps(warp, op.body)


@ROLES.rule(Hang)
def _hang(machine, warp, op):
    yield Pause(op, lambda: False)


def report(*body, threads=96):
    return run(Kernel("roles", (), (), threads, Block(body)), {}, rules=ROLES)


def test_barriers_that_all_warps_reach() -> None:
    found = report(ops.Barrier(), ops.Barrier())
    assert found.is_clean
    assert found.counters.barriers == 2


def test_a_warp_that_ends_while_others_wait_is_found(golden) -> None:
    found = report(OnWarps((0, 2), Block((ops.Barrier(),))))
    [finding] = found.findings
    assert finding.kind is Kind.DIVERGENCE
    assert found.blocks == 0
    golden(str(finding) + "\n", "divergence.txt")


def test_warps_that_wait_at_different_barriers_are_found() -> None:
    found = report(OnWarps((0,), Block((ops.Barrier(),))), OnWarps((1, 2), Block((ops.Barrier(),))))
    [finding] = found.findings
    assert finding.kind is Kind.DIVERGENCE
    assert "wait at different barriers" in str(finding)


def test_warps_that_wait_for_each_other_are_found() -> None:
    [finding] = report(OnWarps((1,), Block((Hang(),))), ops.Barrier()).findings
    assert finding.kind is Kind.DEADLOCK
    assert "warps 1 wait elsewhere while the others wait at the barrier" in str(finding)


def test_no_runnable_agent_is_a_deadlock() -> None:
    [finding] = report(OnWarps((0, 1), Block((Hang(),)))).findings
    assert finding.kind is Kind.DEADLOCK
    assert "deadlock: 2 of 3 warps wait for events that never happen" in str(finding)


def test_an_operation_without_a_rule_is_an_error_that_names_both() -> None:
    with pytest.raises(MissingRuleError, match="target reference has no rule for operation hang"):
        run(Kernel("roles", (), (), 32, Block((Hang(),))), {})
