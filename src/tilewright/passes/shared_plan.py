"""The plan of shared memory: tensors whose lives do not meet lie in the same bytes.

Two tensors may share memory if every use of the one comes before every use of the other, for all threads, as
the program stands.  What is asked for, in the innermost block of operations that holds all uses of both:

- A barrier of the whole block of threads stands between the last use of the one and the first of the other.
  Within a role it is one of all threads at which they stand at the same time, as counted in
  `tilewright.ir.meetings`.  Across a cluster nothing is shared: no such barrier holds back its other blocks.
- Copies in groups into the first have been closed and waited for before that barrier.
- The first is not used by the engines beside the threads (bulk copies, asynchronous multiplies), whose end a
  barrier does not tell of.  If they use the second, a fence stands before the barrier.
- If the uses come again in a loop, the same holds from the end of a turn to the start of the next, and every
  turn begins with a copy into the whole of each tensor: nothing is carried over.

The choice is written into the kernel, as the place of each tensor: the reference, which runs this kernel too,
then gives both tensors the same bytes and compares accesses across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tilewright.ir import meetings
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
    Partition,
    Reshape,
    Shared,
)
from tilewright.ir.types import Value
from tilewright.passes.pipeline import Passed
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.symbolic.nodes import TRUE

Step = tuple[Op | None, Block, int]
"""On the way down to an operation: the operation around it, which of its blocks, the place in that block."""


def plan_shared(kernel: Kernel) -> Passed:
    """Let tensors in shared memory lie in the same bytes where their lives do not meet.

    Returns:
        The kernel with the place of each tensor, and a note for each that shares memory; the kernel as it is
        where none does, or nothing would be saved.
    """
    tensors = [op for op in kernel.walk() if isinstance(op, Shared)]
    if len(tensors) < 2 or kernel.cluster or any(op.at is not None for op in tensors):
        return kernel, ()
    lives = [Life.of(kernel, op) for op in tensors]
    met = meetings.at_once(kernel).union(map(id, _barriers(kernel.body)))
    apart = {
        frozenset((one.tensor.result, other.tensor.result))
        for one, other in combinations(lives, 2)
        if may_share(one, other, met)
    }
    places = _places(tensors, apart)
    notes = [
        f"{', '.join(_named(group))} lie in the same shared memory: a barrier is between their uses"
        for group in _groups(tensors, places)
    ]
    planned = _placed(kernel, places)
    before, after = layout_shared(kernel)[1], layout_shared(planned)[1]
    if not notes or after >= before:
        return kernel, ()
    return planned, (*notes, f"{after} bytes of shared memory instead of {before}")


def _barriers(block: Block) -> Iterator[Barrier]:
    """Those outside of roles."""
    for op in block.ops:
        if isinstance(op, Barrier):
            yield op
        for region in op.regions if not isinstance(op, Role) else ():
            yield from _barriers(region)


def _named(group: Sequence[Shared]) -> list[str]:
    return [str(op.result) for op in group]


# ---------------------------------------------------------------- lives


@dataclass(frozen=True)
class Life:
    """A tensor in shared memory, and where it is used.

    Args:
        tensor: its allocation.
        uses: the way to each operation that reads or writes it, from the kernel's body down.
    """

    tensor: Shared
    uses: tuple[tuple[Step, ...], ...]

    @staticmethod
    def of(kernel: Kernel, tensor: Shared) -> Life:
        """The life of a tensor of a kernel."""
        return Life(tensor, tuple(_uses(kernel.body, tensor.result, (), None)))

    def operations(self) -> Iterator[Op]:
        """The operations that use it."""
        for way in self.uses:
            _, block, place = way[-1]
            yield block.ops[place]

    @property
    def beside_threads(self) -> bool:
        """Whether engines that a barrier does not wait for use it."""
        return any(_is_beside_threads(op) for op in self.operations())


def _uses(block: Block, value: Value, way: tuple[Step, ...], around: Op | None) -> Iterator[tuple[Step, ...]]:
    for place, op in enumerate(block.ops):
        here = (*way, (around, block, place))
        # A view is no use; who accesses the rows that it chooses reads the index.
        is_view = isinstance(op, Reshape | Partition | Gather)
        if not is_view and any(v.buffer is value for v in (*op.operands, *op.read)):
            yield here
        for region in op.regions:
            yield from _uses(region, value, here, op)


def _is_beside_threads(op: Op) -> bool:
    if isinstance(op, Copy):
        return op.engine == "bulk" or op.completion == "barrier"
    return isinstance(op, MmaAsync)


def _is_grouped(op: Op, value: Value) -> bool:
    """Whether a copy into a tensor goes on until its group is waited for."""
    return isinstance(op, Copy) and op.completion == "group" and op.target.buffer is value


# ---------------------------------------------------------------- whether two lives meet


def may_share(one: Life, other: Life, met: frozenset[int]) -> bool:
    """Whether two tensors may lie in the same memory, by the rules at the top of this file.

    Args:
        one: a tensor.
        other: another one.
        met: the identities of barriers at which all threads stand at the same time.
    """
    if one.tensor.dtype.is_packed or other.tensor.dtype.is_packed:
        return False  # the reference keeps an element to a byte there, and could not look across them
    if not (one.uses and other.uses):
        return True
    common = _common([*one.uses, *other.uses])
    depth = len(common)
    around = [step[0] for step in one.uses[0][: depth + 1]]
    block = one.uses[0][depth][1]
    first, second = ([way[depth][2] for way in life.uses] for life in (one, other))
    if min(first) > min(second):
        one, other, first, second = other, one, second, first
    if max(first) >= min(second) or any(way[depth][1] is not block for way in (*one.uses, *other.uses)):
        return False
    between = range(max(first) + 1, min(second))
    if not _separated(block, one, other, max(first), between, met):
        return False
    if not any(isinstance(op, For) for op in around):
        return True
    again = [*range(max(second) + 1, len(block.ops)), *range(min(first))]
    fresh = all(_is_overwritten(block.ops[min(at)], life) for life, at in ((one, first), (other, second)))
    return fresh and _separated(block, other, one, max(second), again, met)


def _common(ways: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps that all ways begin with."""
    shortest = min(len(way) for way in ways) - 1
    count = 0
    while count < shortest and all(
        way[count][1] is ways[0][count][1]
        and way[count][2] == ways[0][count][2]
        # Two regions of one operation are two blocks.
        and way[count + 1][1] is ways[0][count + 1][1]
        for way in ways
    ):
        count += 1
    return ways[0][:count]


def _separated(
    block: Block, former: Life, later: Life, last: int, path: Sequence[int], met: frozenset[int]
) -> bool:
    """Whether a path orders all uses of one tensor, up to the place ``last``, before those of the other."""
    if former.beside_threads:
        return False
    done = _groups_are_done(block, former.tensor.result, range(last + 1))
    fenced = not later.beside_threads
    for number, at in enumerate(path):
        op = block.ops[at]
        if id(op) in met and done and fenced:
            return True
        fenced = fenced or isinstance(op, FenceAsync)
        done = done or _groups_are_done(block, former.tensor.result, [*range(last + 1), *path[: number + 1]])
    return False


def _groups_are_done(block: Block, value: Value, path: Sequence[int]) -> bool:
    """Whether the copies in groups into a tensor, of a path, have been closed and waited for at its end."""
    copies = [number for number, at in enumerate(path) if _has_group(block.ops[at], value)]
    if not copies:
        return True
    ops = [block.ops[at] for at in path[copies[-1] :]]
    return any(
        isinstance(op, AsyncWait) and op.pending == 0 and not _is_open(ops[:number], False)
        for number, op in enumerate(ops)
    )


def _has_group(op: Op, value: Value) -> bool:
    inner = (o for region in op.regions for o in region.walk())
    return any(_is_grouped(each, value) for each in (op, *inner))


def _is_open(ops: Sequence[Op], found: bool) -> bool:
    """Whether a group may be open, with copies in it, after some operations."""
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


def _is_overwritten(op: Op, life: Life) -> bool:
    """Whether an operation writes the whole of a tensor and reads nothing of it."""
    tensor = life.tensor.result
    return (
        isinstance(op, Copy)
        and op.target is tensor
        and op.reduction is None
        and op.source.buffer is not tensor
        and life.tensor.view.valid == TRUE
    )


# ---------------------------------------------------------------- places


def _places(tensors: Sequence[Shared], apart: Iterable[frozenset[Value]]) -> dict[Value, int]:
    """The byte offset of each tensor: the largest first, each as low as those leave it room that it meets."""
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


def _placed(kernel: Kernel, places: dict[Value, int]) -> Kernel:
    return rewrite_kernel(
        kernel,
        lambda op, _: (replace(op, at=places[op.result]),) if isinstance(op, Shared) else None,
    )


def _groups(tensors: Sequence[Shared], places: dict[Value, int]) -> Iterator[list[Shared]]:
    """Tensors that lie in the same bytes as the largest of them."""
    left = sorted(tensors, key=lambda op: -_bytes(op))
    while left:
        low = places[left[0].result]
        high = low + _bytes(left[0])
        group = [op for op in left if places[op.result] < high and places[op.result] + _bytes(op) > low]
        left = [op for op in left if op not in group]
        if len(group) > 1:
            yield [op for op in tensors if op in group]
