"""Merge consecutive multiplies of slices of K into one multiply.

A micro-kernel loads and stores its part of the accumulator once per call; the deeper a multiply, the less
that costs.  Slices in separate tensors that only copies and these multiplies use move side by side into one
tensor, and each copy writes a box of it.  The order of the additions stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.builder import make
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, If, Mma, Op, Reshape, Shared
from tilewright.ir.types import Value
from tilewright.passes.rewrite import Rewriter, names_of, rewrite_kernel
from tilewright.views.transforms import Slice
from tilewright.views.view import View

MOST_DEPTH = 256
"""Beyond that there is nothing to gain, and panels leave the first-level cache."""


@dataclass(frozen=True)
class _Group:
    """Multiplies that can be done together.

    Args:
        members: in program order.
        at: the one in whose place all of them are done.
    """

    members: tuple[Mma, ...]
    at: Mma

    @property
    def sides(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The slices of A and those of B."""
        return tuple(op.a for op in self.members), tuple(op.b for op in self.members)


def join_multiplies(kernel: Kernel, slices: Iterable[str]) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel with multiplies of successive slices joined.

    Args:
        kernel: with one thread.
        slices: shared tensors that copies fill as a whole, and that nothing else names but multiplies.

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
    used = dict.fromkeys(side for group in groups for side in group.sides)
    made = {side: _side_by_side([held[v] for v in side], names.unique(f"{side[0]}_slices")) for side in used}
    joined = replace(kernel, body=_joined(kernel.body, groups, made))
    notes = [f"{', '.join(map(str, side))} lie side by side in {op.result}" for side, op in made.items()]
    return rewrite_kernel(joined, _boxes(made)), tuple(notes)


# ---------------------------------------------------------------- finding


def _groups(block: Block, held: Mapping[Value, Shared]) -> Iterator[_Group]:
    """Runs of multiplies in each block, as long as they can be brought to one place."""
    group: _Group | None = None
    for op in block.ops:
        for region in op.regions:
            yield from _groups(region, held)
        if isinstance(op, Mma) and op.a in held and op.b in held:
            longer = _longer(group, op, block)
            if longer is None and group is not None:
                yield group
            group = longer or _Group((op,), op)
    if group is not None:
        yield group


def _longer(group: _Group | None, op: Mma, block: Block) -> _Group | None:
    """The group with one more multiply, if there is a place for all of them."""
    if group is None:
        return None
    first, members = group.members[0], (*group.members, op)
    values = [value for one in members for value in (one.a, one.b)]
    depth = sum(_depth(one.a) for one in members)
    if (op.c, op.mma) != (first.c, first.mma) or len(set(values)) < len(values) or depth > MOST_DEPTH:
        return None
    return next((_Group(members, at) for at in members if _can_meet(members, at, block)), None)


def _can_meet(members: Sequence[Mma], at: Mma, block: Block) -> bool:
    """Whether every member may be done in the place of one of them."""
    place = _index(block, at)
    for member in members:
        low, high = sorted((_index(block, member), place))
        between = [op for op in block.ops[low + 1 : high] if not any(op is other for other in members)]
        named = {value.buffer for op in Block(tuple(between)).walk() for value in op.operands}
        written = {value.buffer for op in Block(tuple(between)).walk() for value in op.written}
        if member.c in named or member.a in written or member.b in written:
            return False
    return True


def _index(block: Block, wanted: Op) -> int:
    return next(at for at, op in enumerate(block.ops) if op is wanted)


def _depth(operand: Value) -> int:
    depth = operand.tensor.shape[1]
    assert isinstance(depth, int)
    return depth


def _together(kernel: Kernel, groups: Sequence[_Group]) -> list[tuple[Value, ...]]:
    """The slices that may lie side by side: defined in one block, and each in one place of one company."""
    sides = list(dict.fromkeys(side for group in groups for side in group.sides))
    blocks = [kernel.body, *(region for op in kernel.walk() for region in op.regions)]
    homes = {value: at for at, block in enumerate(blocks) for op in block.ops for value in op.results}
    seen = [value for side in sides for value in side]
    return [
        side for side in sides if len({homes[v] for v in side}) == 1 and all(seen.count(v) == 1 for v in side)
    ]


# ---------------------------------------------------------------- rewriting


def _side_by_side(slices: Sequence[Shared], name: str) -> Shared:
    """One tensor for all slices."""
    rows = slices[0].view.shape[0]
    shape = (rows, sum(_depth(op.result) for op in slices))
    view = View.strided(shape, (shape[1], 1))
    first = slices[0]
    return make(
        Shared, name, first.location, dtype=first.dtype, view=view, elems=view.elems, align=first.align
    )


def _joined(block: Block, groups: Sequence[_Group], made: Mapping[tuple[Value, ...], Shared]) -> Block:
    """The block with one multiply in the place of each group."""
    ops: list[Op] = []
    for op in block.ops:
        group = next((group for group in groups if any(op is member for member in group.members)), None)
        if group is None:
            ops.append(_inside(op, groups, made))
        elif op is group.at:
            a, b = (made[side].result for side in group.sides)
            ops.append(replace(group.at, a=a, b=b))
    return Block(tuple(ops))


def _inside(op: Op, groups: Sequence[_Group], made: Mapping[tuple[Value, ...], Shared]) -> Op:
    match op:
        case For():
            return replace(op, body=_joined(op.body, groups, made))
        case If():
            then, otherwise = (_joined(block, groups, made) for block in (op.then, op.otherwise))
            return replace(op, then=then, otherwise=otherwise)
        case _:
            return op


def _boxes(made: Mapping[tuple[Value, ...], Shared]) -> Callable[[Op, Rewriter], tuple[Op, ...] | None]:
    """A change that makes each slice a box of the tensor that holds all of them, defined before the first."""
    wholes = {value.name: (side, op) for side, op in made.items() for value in side}
    defined: set[str] = set()

    def change(op: Op, rewriter: Rewriter) -> tuple[Op, ...] | None:
        if not isinstance(op, Shared) or op.result.name not in wholes:
            return None
        side, whole = wholes[op.result.name]
        start = sum(_depth(value) for value in side[: [v.name for v in side].index(op.result.name)])
        box = Slice((None, (start, start + _depth(op.result))))
        view = make(Reshape, op.result.name, op.location, source=whole.result, transform=box)
        first = whole.result.name not in defined
        defined.add(whole.result.name)
        return (whole, view) if first else (view,)

    return change
