"""Shared-memory allocation: tensors with disjoint lifetimes share the same bytes.

Two tensors may share memory if, for all threads, every use of the first comes before every use of the second.
The conditions, in the innermost block of operations that contains all uses of both, are:

- A barrier of all threads of the block is between the last use of the first and the first use of the second.
  Within a role, all threads must be at this barrier at the same time, as counted in
  `tilewright.ir.deadlocks`.  In a cluster nothing is shared: a block barrier does not hold back other blocks.
- Group copies into the first tensor are committed and waited for before that barrier.
- Asynchronous engines (bulk copies, asynchronous multiplies) do not use the first tensor, because a barrier
  does not wait for them.  If they use the second tensor, a fence is before the barrier.
- If the uses repeat in a loop, the same holds from the end of one iteration to the start of the next.  Every
  iteration also starts with a copy into the whole of each tensor, so no value is carried over.

The kernel stores the chosen offset of each tensor.  The reference runs the same kernel: it gives both tensors
the same bytes and compares accesses across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tilewright.ir import deadlocks
from tilewright.ir.async_ops import FenceAsync, MmaAsync, Role
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Block,
    Copy,
    For,
    Gather,
    If,
    Op,
    PartitionOp,
    Reshape,
    Shared,
)
from tilewright.ir.types import Value
from tilewright.passes.effects import PathStep
from tilewright.passes.pipeline import Pass, Passed
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.symbolic.nodes import TRUE


def plan_shared(kernel: Kernel) -> Passed:
    """Let shared tensors with disjoint lifetimes use the same bytes.

    Returns:
        The kernel with the offset of each tensor, and a note for each tensor that shares memory.  The kernel
        is unchanged if no tensor shares memory or if sharing saves nothing.
    """
    tensors = [op for op in kernel.walk() if isinstance(op, Shared)]
    if len(tensors) < 2 or kernel.cluster or any(op.at is not None for op in tensors):
        return kernel, ()
    lives = [Life.of(kernel, op) for op in tensors]
    met = deadlocks.at_once(kernel).union(map(id, _barriers(kernel.body)))
    apart = {
        frozenset((one.tensor.result, other.tensor.result))
        for one, other in combinations(lives, 2)
        if may_share(one, other, met)
    }
    places = _places(tensors, apart)
    notes = [
        f"{', '.join(str(op.result) for op in group)} share the same bytes of shared memory: a barrier "
        "separates their uses"
        for group in _groups(tensors, places)
    ]
    planned = rewrite_kernel(
        kernel, lambda op, _: (replace(op, at=places[op.result]),) if isinstance(op, Shared) else None
    )
    before, after = layout_shared(kernel)[1], layout_shared(planned)[1]
    if not notes or after >= before:
        return kernel, ()
    return planned, (*notes, f"{after} bytes of shared memory instead of {before}")


SHARED_PLAN = Pass(
    "shared-plan",
    "Shared tensors with disjoint lifetimes share the same bytes.",
    lambda kernel, arch: plan_shared(kernel),
)


def _barriers(block: Block) -> Iterator[Barrier]:
    """Return the barriers outside of roles."""
    for op in block.ops:
        if isinstance(op, Barrier):
            yield op
        for region in op.regions if not isinstance(op, Role) else ():
            yield from _barriers(region)


# ---------------------------------------------------------------- lives


@dataclass(frozen=True)
class Life:
    """A tensor in shared memory and its uses.

    Args:
        tensor: its allocation.
        uses: the path from the kernel's body to each operation that reads or writes it.
    """

    tensor: Shared
    uses: tuple[tuple[PathStep, ...], ...]

    @staticmethod
    def of(kernel: Kernel, tensor: Shared) -> Life:
        """Collect the uses of a tensor in a kernel."""
        return Life(tensor, tuple(_uses(kernel.body, tensor.result, (), None)))

    def operations(self) -> Iterator[Op]:
        """The operations that use the tensor."""
        return (way[-1].op for way in self.uses)

    @property
    def uses_async_engines(self) -> bool:
        """Whether engines that a barrier does not wait for use the tensor."""
        return any(
            isinstance(op, MmaAsync)
            or (isinstance(op, Copy) and (op.engine == "bulk" or op.completion == "barrier"))
            for op in self.operations()
        )


def _uses(
    block: Block, value: Value, way: tuple[PathStep, ...], around: Op | None
) -> Iterator[tuple[PathStep, ...]]:
    for place, op in enumerate(block.ops):
        here = (*way, PathStep(around, block, place))
        # Making a view is not a use. The operations that access its rows read the index.
        is_view = isinstance(op, Reshape | PartitionOp | Gather)
        if not is_view and any(v.buffer is value for v in (*op.operands, *op.read)):
            yield here
        for region in op.regions:
            yield from _uses(region, value, here, op)


# ---------------------------------------------------------------- whether two lives meet


def may_share(one: Life, other: Life, met: frozenset[int]) -> bool:
    """Return whether two tensors may share memory, by the rules at the top of this file.

    Args:
        one: a tensor.
        other: another tensor.
        met: the identities of barriers at which all threads are at the same time.
    """
    if one.tensor.dtype.is_packed or other.tensor.dtype.is_packed:
        return False  # the reference stores one element per byte, so it cannot compare across the tensors
    if not (one.uses and other.uses):
        return True
    depth = len(_common([*one.uses, *other.uses]))
    around = [step.owner for step in one.uses[0][: depth + 1]]
    block = one.uses[0][depth].block
    first, second = ([way[depth].at for way in life.uses] for life in (one, other))
    if min(first) > min(second):
        one, other, first, second = other, one, second, first
    if max(first) >= min(second) or any(way[depth].block is not block for way in (*one.uses, *other.uses)):
        return False
    if not _separated(block, one, other, max(first), range(max(first) + 1, min(second)), met):
        return False
    if not any(isinstance(op, For) for op in around):
        return True
    # In a loop, each tensor must begin an iteration with a copy into all of it.
    for life, at in ((one, first), (other, second)):
        op, tensor = block.ops[min(at)], life.tensor.result
        if not isinstance(op, Copy) or op.target is not tensor or op.source.buffer is tensor:
            return False
        if op.reduction is not None or life.tensor.view.valid != TRUE:
            return False
    again = [*range(max(second) + 1, len(block.ops)), *range(min(first))]
    return _separated(block, other, one, max(second), again, met)


def _common(ways: Sequence[tuple[PathStep, ...]]) -> tuple[PathStep, ...]:
    """Return the common prefix of all paths."""
    shortest = min(len(way) for way in ways) - 1
    count = 0
    while count < shortest and all(
        way[count].block is ways[0][count].block
        and way[count].at == ways[0][count].at
        # Two regions of one operation are two blocks.
        and way[count + 1].block is ways[0][count + 1].block
        for way in ways
    ):
        count += 1
    return ways[0][:count]


def _separated(
    block: Block, former: Life, later: Life, last: int, path: Sequence[int], met: frozenset[int]
) -> bool:
    """Return whether a path orders all uses of one tensor, up to index ``last``, before the other's."""
    if former.uses_async_engines:
        return False
    done = _groups_are_done(block, former.tensor.result, range(last + 1))
    fenced = not later.uses_async_engines
    for number, at in enumerate(path):
        op = block.ops[at]
        if id(op) in met and done and fenced:
            return True
        fenced = fenced or isinstance(op, FenceAsync)
        done = done or _groups_are_done(block, former.tensor.result, [*range(last + 1), *path[: number + 1]])
    return False


def _groups_are_done(block: Block, value: Value, path: Sequence[int]) -> bool:
    """Return whether a path's group copies into a tensor are committed and waited for at its end."""
    copies = [
        number
        for number, at in enumerate(path)
        for op in Block((block.ops[at],)).walk()
        if isinstance(op, Copy) and op.completion == "group" and op.target.buffer is value
    ]
    if not copies:
        return True
    ops = [block.ops[at] for at in path[copies[-1] :]]
    return any(
        isinstance(op, AsyncWait) and op.pending == 0 and not _is_open(ops[:number], False)
        for number, op in enumerate(ops)
    )


def _is_open(ops: Sequence[Op], found: bool) -> bool:
    """Return whether a group with copies may still be uncommitted after some operations."""
    for op in ops:
        match op:
            case Copy(completion="group"):
                found = True
            case AsyncCommit():
                found = False
            case For():
                once = _is_open(op.body.ops, found)
                found = found or once
            case If():
                found = _is_open(op.then.ops, found) or _is_open(op.otherwise.ops, found)
            case Role():
                found = found or _is_open(op.body.ops, found)
    return found


# ---------------------------------------------------------------- places


def _places(tensors: Sequence[Shared], apart: Iterable[frozenset[Value]]) -> dict[Value, int]:
    """Assign byte offsets, largest tensor first, each as low as tensors with overlapping lifetimes allow."""
    shared = set(apart)
    places: dict[Value, int] = {}
    placed: list[Shared] = []
    for op in sorted(tensors, key=lambda op: -_bytes(op)):
        taken = sorted(
            (places[other.result], places[other.result] + _bytes(other))
            for other in placed
            if frozenset((op.result, other.result)) not in shared
        )
        at = 0
        for low, high in taken:
            if at + _bytes(op) <= low:
                break
            at = max(at, -(-high // op.align) * op.align)
        places[op.result] = at
        placed.append(op)
    return places


def _bytes(op: Shared) -> int:
    return op.dtype.bytes_of(op.elems)


def _groups(tensors: Sequence[Shared], places: dict[Value, int]) -> Iterator[list[Shared]]:
    """Group tensors by the largest tensor whose bytes they share."""
    left = sorted(tensors, key=lambda op: -_bytes(op))
    while left:
        low = places[left[0].result]
        high = low + _bytes(left[0])
        group = [op for op in left if places[op.result] < high and places[op.result] + _bytes(op) > low]
        left = [op for op in left if op not in group]
        if len(group) > 1:
            yield [op for op in tensors if op in group]
