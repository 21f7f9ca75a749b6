"""Merge consecutive multiplies of slices of K into one multiply.

A micro-kernel loads and stores its part of the accumulator once per call, so a deeper multiply costs less.
Slices in separate tensors that only copies and these multiplies use become boxes of one tensor.  The order of
the additions does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.builder import make
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Mma, Op, Reshape, Shared
from tilewright.ir.types import Value
from tilewright.passes.expand_mma import depth_of
from tilewright.passes.rewrite import Rewriter, names_of, rewrite_kernel
from tilewright.targets.cpu.linear import place_of
from tilewright.views.transforms import Slice
from tilewright.views.view import View

MOST_DEPTH = 256
"""Largest depth of a joined multiply.  Deeper ones gain nothing, and panels leave the first-level cache."""


@dataclass(frozen=True)
class _Group:
    """Multiplies that can become one.

    Args:
        members: the multiplies, in program order.
        at: the member in whose place the joined multiply stands.
    """

    members: tuple[Mma, ...]
    at: Mma

    @property
    def sides(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The slices of A and those of B."""
        return tuple(op.a for op in self.members), tuple(op.b for op in self.members)


def join_multiplies(kernel: Kernel, slices: Iterable[str]) -> tuple[Kernel, tuple[str, ...]]:
    """Join multiplies of successive slices of K.

    Args:
        kernel: a kernel with one thread.
        slices: names of shared tensors that only whole copies and multiplies use.

    Returns:
        The kernel, and a note for each joined tensor.
    """
    held = {op.result: op for op in kernel.walk() if isinstance(op, Shared) and op.result.name in set(slices)}
    groups = [group for group in _groups(kernel.body, held) if len(group.members) > 1]
    together = _together(kernel, groups)
    groups = [group for group in groups if all(side in together for side in group.sides)]
    if not groups:
        return kernel, ()
    names = names_of(kernel)
    made: dict[tuple[Value, ...], Shared] = {}
    for side in dict.fromkeys(side for group in groups for side in group.sides):
        first, name = held[side[0]], names.unique(f"{side[0]}_slices")
        shape = (first.view.shape[0], sum(map(depth_of, side)))
        view = View.strided(shape, (shape[1], 1))
        kept: dict[str, Any] = {"dtype": first.dtype, "view": view, "elems": view.elems, "align": first.align}
        made[side] = make(Shared, name, first.location, **kept)
    joined = replace(kernel, body=_joined(kernel.body, groups, made))
    notes = [f"{', '.join(map(str, side))} lie side by side in {op.result}" for side, op in made.items()]
    return rewrite_kernel(joined, _boxes(made)), tuple(notes)


# ---------------------------------------------------------------- finding


def _groups(block: Block, held: Mapping[Value, Shared]) -> Iterator[_Group]:
    """Yield runs of multiplies in each block, as long as all of a run can stand in one place."""
    group: _Group | None = None
    for op in block.ops:
        for region in op.regions:
            yield from _groups(region, held)
        if isinstance(op, Mma) and op.a in held and op.b in held:
            longer: _Group | None = None
            if group is not None:
                first, members = group.members[0], (*group.members, op)
                values = [value for one in members for value in (one.a, one.b)]
                depth = sum(depth_of(one.a) for one in members)
                alike = (op.c, op.mma) == (first.c, first.mma) and len(set(values)) == len(values)
                if alike and depth <= MOST_DEPTH:
                    places = (at for at in members if _can_meet(members, at, block))
                    longer = next((_Group(members, at) for at in places), None)
                if longer is None:
                    yield group
            group = longer or _Group((op,), op)
    if group is not None:
        yield group


def _can_meet(members: Sequence[Mma], at: Mma, block: Block) -> bool:
    """Whether every member can move to the place of one of them."""
    place = place_of(block.ops, at)
    for member in members:
        low, high = sorted((place_of(block.ops, member), place))
        between = [op for op in block.ops[low + 1 : high] if not any(op is other for other in members)]
        named = {value.buffer for op in Block(tuple(between)).walk() for value in op.operands}
        written = {value.buffer for op in Block(tuple(between)).walk() for value in op.written}
        if member.c in named or member.a in written or member.b in written:
            return False
    return True


def _together(kernel: Kernel, groups: Sequence[_Group]) -> list[tuple[Value, ...]]:
    """The slices that can share a tensor: defined in one block, and each used once in one group."""
    sides = list(dict.fromkeys(side for group in groups for side in group.sides))
    blocks = [kernel.body, *(region for op in kernel.walk() for region in op.regions)]
    homes = {value: at for at, block in enumerate(blocks) for op in block.ops for value in op.results}
    seen = [value for side in sides for value in side]
    return [
        side for side in sides if len({homes[v] for v in side}) == 1 and all(seen.count(v) == 1 for v in side)
    ]


# ---------------------------------------------------------------- rewriting


def _joined(block: Block, groups: Sequence[_Group], made: Mapping[tuple[Value, ...], Shared]) -> Block:
    """Put one multiply in the place of each group."""
    ops: list[Op] = []
    for op in block.ops:
        group = next((group for group in groups if any(op is member for member in group.members)), None)
        if group is None:
            ops.append(op.with_regions(lambda region: _joined(region, groups, made)))
        elif op is group.at:
            a, b = (made[side].result for side in group.sides)
            ops.append(replace(group.at, a=a, b=b))
    return Block(tuple(ops))


def _boxes(made: Mapping[tuple[Value, ...], Shared]) -> Callable[[Op, Rewriter], tuple[Op, ...] | None]:
    """A change that makes each slice a box of the joined tensor, which is defined before the first slice."""
    wholes = {value.name: (side, op) for side, op in made.items() for value in side}
    defined: set[str] = set()

    def change(op: Op, rewriter: Rewriter) -> tuple[Op, ...] | None:
        if not isinstance(op, Shared) or op.result.name not in wholes:
            return None
        side, whole = wholes[op.result.name]
        start = sum(map(depth_of, side[: [v.name for v in side].index(op.result.name)]))
        box = Slice((None, (start, start + depth_of(op.result))))
        view = make(Reshape, op.result.name, op.location, source=whole.result, transform=box)
        first = whole.result.name not in defined
        defined.add(whole.result.name)
        return (whole, view) if first else (view,)

    return change
