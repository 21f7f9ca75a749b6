"""Every loop along K with a member's products, or with loads for them, is marked as the main loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tilewright.ir import ops
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Block, Op
from tilewright.passes.rewrite import rewrite_kernel

from .members import MEMBERS

PRODUCTS = (ops.Mma, MmaAsync)
IN_BACKGROUND = ("async", "bulk")


def loops(block: Block, around: tuple[ops.For, ...] = ()) -> Iterator[tuple[Op, tuple[ops.For, ...]]]:
    """Return each product and background copy with the loops around it, the outermost first."""
    for op in block.ops:
        if isinstance(op, PRODUCTS) or (isinstance(op, Copy) and op.engine in IN_BACKGROUND):
            yield op, around
        for region in op.regions:
            yield from loops(region, (*around, op) if isinstance(op, ops.For) else around)


def is_main(loop: ops.For) -> bool:
    return loop.provenance == "mainloop"


def unnamed(kernel: Kernel) -> list[ops.For]:
    """Return loops around products or copies that are not the main loop, nor in it or around it."""
    found = (around[-1] for _, around in loops(kernel.body) if around and not any(map(is_main, around)))
    return [
        one for one in found if not any(isinstance(op, ops.For) and is_main(op) for op in one.body.walk())
    ]


@pytest.mark.parametrize("name", MEMBERS)
def test_loops_along_k_are_main_loops(name: str) -> None:
    member = MEMBERS[name]()
    for way, bound in member.ways.items():
        kernel = bound.trace(*member.arguments(bound))
        inside = [op for op, around in loops(kernel.body) if any(map(is_main, around))]
        assert any(isinstance(op, PRODUCTS) for op in inside), way
        assert unnamed(kernel) == [], way


def test_a_loop_that_does_not_say_so_is_found() -> None:
    member = MEMBERS["combined"]()
    bound = member.ways["data-parallel"]
    kernel = bound.trace(*member.arguments(bound))
    made = rewrite_kernel(
        kernel,
        lambda op, _: (replace(op, provenance=""),) if isinstance(op, ops.For) and is_main(op) else None,
    )
    assert unnamed(made)
