"""Every member of the family is one polynomial under every schedule, and each mutant of it is another one.

A sum that is split, promoted or added up by other blocks, an epilogue that is fused or a result that is
permuted changes nothing modulo a prime; a term that is dropped, doubled or taken from elsewhere does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil
from typing import Any

import pytest
from tests.hazards.mutate_async import remade

from tilewright.ir import ops
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.kernel import Kernel
from tilewright.ir.types import Memory
from tilewright.ops.products import BLOCK
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.runtime.reference import drawn
from tilewright.runtime.specimens import with_arrays
from tilewright.symbolic.expr import add
from tilewright.targets.reference import run
from tilewright.targets.reference.exponentials import PAIRS
from tilewright.targets.reference.residues import Residues
from tilewright.targets.target import REFERENCE
from tilewright.testing import residues
from tilewright.views.transforms import Tile

from .members import MEMBERS, Member


@lru_cache(maxsize=1)
def made(name: str) -> tuple[Member, dict[str, Any]]:
    member = MEMBERS[name]()
    return member, member.polynomial()


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("name", MEMBERS)
def test_every_way_is_the_polynomial_of_the_member(name: str) -> None:
    member, want = made(name)
    for way, bound in member.ways.items():
        words = {"given": member.residues(), "exponentials": member.ring is PAIRS}
        found = residues(bound, *member.arguments(bound), **words)
        assert found.keys() == want.keys()
        for array, expected in want.items():
            assert (found[array].astype(object) == expected).all(), way


class FirstBlock:
    """The first block of a member's first way, and its results."""

    def __init__(self, member: Member) -> None:
        bound = next(iter(member.ways.values()))
        filled = tuple(with_arrays(member.arguments(bound)))
        self.launch: Any = bound._prepare(filled, REFERENCE.name, None).prepared
        self.arrays, self.numbers = self.launch._unpacked(filled)
        self.residues, self.ring, self.modulus = member.residues(), member.ring, member.modulus
        self.kernel: Kernel = self.launch.executable.kernel

    def run(self, kernel: Kernel) -> dict[str, Any]:
        """Return the residues that a kernel writes; other elements are None."""
        held = drawn(self.kernel, self.arrays, 0, self.residues, self.ring)
        binding = self.launch.binding
        first = [(0,) * len(binding.grid)]
        run(kernel, held, binding.sizes, self.numbers, check=False, numbers=Residues(self.ring), blocks=first)
        return {name: self.ring.told(held[name]) for name in self.kernel.written_params}


Change = Callable[[ops.Op], tuple[ops.Op, ...]]


def changes(op: ops.Op) -> Iterator[tuple[str, Change]]:
    """Yield changes: products and steps along K left out or doubled, and tiles from other places."""
    if isinstance(op, ops.Mma | MmaAsync):
        yield "dropped", lambda one: ()
        if not isinstance(op, MmaAsync) or op.fresh is not True:  # a sum that begins at 0 is the same twice
            yield "doubled", lambda one: (one, one)
    elif isinstance(op, ops.For) and op.provenance == "mainloop":
        yield "without the first step", lambda one: (replace(one, start=add(one.start, 1)),)
        yield "without the last step", lambda one: (replace(one, stop=add(one.stop, -1)),)
    elif isinstance(op, ops.Reshape) and isinstance(op.transform, Tile) and _is_global(op):
        for dim, extent in enumerate(op.transform.shape):
            # So many neighbours have a scale or a zero point in common at most.
            run = BLOCK if op.source.buffer.name.startswith(("scale", "zero")) else extent
            yield f"shifted along dimension {dim}", partial(_shifted, dim=dim, by=ceil(run / extent))


def _is_global(op: ops.Reshape) -> bool:
    return op.source.is_tensor and op.source.tensor.memory is Memory.GLOBAL


def _shifted(op: ops.Op, dim: int, by: int) -> tuple[ops.Op, ...]:
    at = list(op.transform.at)
    at[dim] = add(at[dim], by)
    return (remade(op, transform=replace(op.transform, at=tuple(at))),)


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Yield kernels with one change each."""
    for number, op in enumerate(kernel.walk()):
        for what, change in changes(op):
            yield f"{op.verb} {number}, {what}", _with(kernel, number, change)


def _with(kernel: Kernel, number: int, change: Change) -> Kernel:
    """Return the kernel with another operation; its name and source line identify it."""
    wanted, done = [*kernel.walk()][number], []

    def visit(op: ops.Op, _: object) -> tuple[ops.Op, ...] | None:
        same = op.verb == wanted.verb and op.location is wanted.location
        if done or not same or [x.name for x in op.results] != [x.name for x in wanted.results]:
            return None
        done.append(op)
        return change(op)

    made = rewrite_kernel(kernel, visit)
    assert done, wanted
    return made


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("name", MEMBERS)
def test_every_mutant_is_another_polynomial(name: str) -> None:
    member, want = made(name)
    block, kinds = FirstBlock(member), set()
    right = block.run(block.kernel)
    written = {array: found < block.modulus for array, found in right.items()}
    for array, where in written.items():
        assert where.any()
        assert (right[array][where] == want[array][where]).all()
    for label, mutant in mutants(block.kernel):
        found = block.run(mutant)
        differ = [(found[array] != right[array])[where].any() for array, where in written.items()]
        assert any(differ), label
        kinds.add(label.partition(", ")[2])
    assert kinds >= {"dropped", "doubled", "shifted along dimension 0", "shifted along dimension 1"}
