"""Mutants: kernels that differ from a correct one in one small place, made by rewriting its IR."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

from tilewright.errors import LayoutError, LegalityError
from tilewright.ir import ops, verify
from tilewright.ir.copies import is_bulk
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Op
from tilewright.passes.rewrite import rewrite_kernel
from tilewright.symbolic.expr import add, mod
from tilewright.symbolic.nodes import TRUE
from tilewright.targets.reference import Report
from tilewright.targets.reference.findings import Finding, Findings
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Embed, Slice, Tile

from .mutate_async import Change, asynchronous_changes, remade, swaps
from .mutate_maps import map_changes
from .mutate_signals import signal_changes


@dataclass(frozen=True)
class Mutant:
    """A changed kernel, or None if building it raises an error."""

    name: str
    kernel: Kernel | None


class FoundError(Exception):
    """Ends a run at the checker's first hazard."""


@contextmanager
def ended_by_the_first_finding() -> Iterator[None]:
    """Context in which the first hazard ends a run: one hazard is enough to find a mutant."""

    def end(_: Findings, key: tuple[object, ...], finding: Finding, reach: int = 0) -> None:
        raise FoundError(finding.kind.value)

    with patch.object(Findings, "add", end):
        yield


def outcome(mutant: Mutant, execute: Callable[[Kernel], Report], is_right: Callable[[], bool]) -> str:
    """``"refused"``, ``"legality"``, ``"finding"``, ``"wrong result"`` or ``"survived"``."""
    if mutant.kernel is None:
        return "refused"
    if verify.violations(mutant.kernel):
        return "legality"
    try:
        with ended_by_the_first_finding():
            execute(mutant.kernel)
    except LegalityError:
        return "legality"
    except FoundError:
        return "finding"
    return "survived" if is_right() else "wrong result"


def mutants(kernel: Kernel, wanted: Container[str] | None = None) -> Iterator[Mutant]:
    """Return every mutant of a kernel, or the mutants with the given names."""
    for name, made in _named(kernel):
        if wanted is None or name in wanted:
            yield Mutant(name, made())


def names(kernel: Kernel) -> list[str]:
    """Return the names of all mutants, without building any."""
    return [name for name, _ in _named(kernel)]


def _named(kernel: Kernel) -> Iterator[tuple[str, Callable[[], Kernel | None]]]:
    """Yield each mutant's name (its operation, numbered within its kind) and a function that builds it."""
    counts: dict[str, int] = {}
    for op in kernel.walk():
        number = counts[op.verb] = counts.get(op.verb, -1) + 1
        for what, change in _changes(op):
            yield f"{op.verb} {number}: {what}", partial(_changed, kernel, op.verb, number, change)
    yield from swaps(kernel)


def _changed(kernel: Kernel, name: str, number: int, change: Change) -> Kernel | None:
    """Return the kernel with one operation changed; numbers follow the program order, outer ones first."""
    wanted = [op for op in kernel.walk() if op.verb == name][number]
    seen: list[Op] = []

    def visit(op: Op, rewriter: object) -> tuple[Op, ...] | None:
        if op.location is wanted.location and op.verb == name and _same_place(op, wanted) and not seen:
            seen.append(op)
            return change(op)
        return None

    try:
        rewritten = rewrite_kernel(kernel, visit)
    except LayoutError:
        return None
    assert seen, f"{name} {number} was not found"
    return rewritten


def _same_place(op: Op, wanted: Op) -> bool:
    """Return whether a rebuilt operation stands for ``wanted``: both use the same names."""
    names = [[value.name for value in (*o.results, *o.operands)] for o in (op, wanted)]
    return names[0] == names[1]


def _changes(op: Op) -> Iterator[tuple[str, Change]]:
    yield from asynchronous_changes(op)
    yield from map_changes(op)
    yield from signal_changes(op)
    match op:
        case ops.Barrier() | ops.WarpBarrier() | ops.AsyncCommit() | ops.Mma():
            yield "removed", lambda op: ()
        case ops.AsyncWait():
            yield "removed", lambda op: ()
            yield "one more pending", lambda op: (replace(op, pending=op.pending + 1),)
            if op.pending:
                yield "one fewer pending", lambda op: (replace(op, pending=op.pending - 1),)
        case ops.Shared():
            yield "one element short", lambda op: (remade(op, elems=op.elems - 1),)
            yield "half", lambda op: (remade(op, elems=op.elems // 2),)
        case ops.FragmentOp():
            if op.fill is not None:
                yield "not filled", lambda op: (remade(op, fill=None),)
                if op.fill != 1:
                    yield "filled with one", lambda op: (remade(op, fill=1),)
        case ops.Reshape(transform=Tile() as tile):
            for dim in range(len(tile.at)):
                for by in (1, -1):
                    yield f"tile index {dim} {by:+}", _shifted_tile(dim, by)
        case ops.Reshape(transform=Slice() as box):
            for dim, part in enumerate(box.at):
                if not isinstance(part, tuple):
                    for by in (1, -1):
                        yield f"slice {dim} {by:+}", _shifted_slice(dim, by)
                    yield f"slice {dim} one around", _turned_slice(dim)
        case ops.Reshape(transform=Embed() as window):
            yield "window one later", _rewindowed(replace(window, offset=add(window.offset, -1)))
            for dim, stride in enumerate(window.strides):
                strides = tuple(add(s, int(d == dim)) for d, s in enumerate(window.strides))
                yield f"window stride {dim}: {add(stride, 1)}", _rewindowed(replace(window, strides=strides))
        case ops.Let():
            yield "one more", lambda op: (replace(op, value=add(op.value, 1)),)
        case ops.For():
            yield "starts one later", lambda op: (replace(op, start=add(op.start, 1)),)
            yield "stops one earlier", lambda op: (replace(op, stop=add(op.stop, -1)),)
            yield "stops one later", lambda op: (replace(op, stop=add(op.stop, 1)),)
        case ops.If():
            if op.condition != TRUE:
                yield "always", lambda op: op.then.ops
            yield "never", lambda op: ()
        case ops.Copy() if not is_bulk(op):
            yield "removed", lambda op: ()
            yield from _copy_changes(op)
        case _:
            return


def _copy_changes(op: ops.Copy) -> Iterator[tuple[str, Change]]:
    wide = 2 * (op.vector or widest_vector(op))
    yield "vector doubled", lambda op: (replace(op, vector=wide),)
    if wide > 2:
        yield "vector halved", lambda op: (replace(op, vector=wide // 4),)
    spread = op.distribution
    if spread is None:
        return
    for number, mode in enumerate(spread.threads):
        if mode.extent > 1:
            yield (
                f"threads {number} halved",
                _respread(_with_mode(spread, number, mode.extent // 2, mode.step)),
            )
            yield (
                f"threads {number} closer",
                _respread(_with_mode(spread, number, mode.extent, mode.step - 1)),
            )
    yield "threads in another order", _respread(replace(spread, threads=spread.threads[::-1]))


def _with_mode(spread: Distribution, number: int, extent: int, step: int) -> Distribution:
    modes = list(spread.threads)
    modes[number] = Mode(extent, modes[number].dim, step)
    return replace(spread, threads=tuple(modes))


def _respread(spread: Distribution) -> Change:
    return lambda op: (replace(op, distribution=spread),)


def _shifted_tile(dim: int, by: int) -> Change:
    def change(op: Op) -> tuple[Op, ...]:
        at = tuple(add(i, by) if d == dim else i for d, i in enumerate(op.transform.at))
        return (remade(op, transform=replace(op.transform, at=at)),)

    return change


def _rewindowed(window: Embed) -> Change:
    return lambda op: (remade(op, transform=window),)


def _shifted_slice(dim: int, by: int) -> Change:
    def change(op: Op) -> tuple[Op, ...]:
        at = tuple(add(i, by) if d == dim else i for d, i in enumerate(op.transform.at))
        return (remade(op, transform=Slice(at)),)

    return change


def _turned_slice(dim: int) -> Change:
    """Return the next index; after the last, the first."""

    def change(op: Op) -> tuple[Op, ...]:
        extent = op.source.tensor.shape[dim]
        at = tuple(mod(add(i, 1), extent) if d == dim else i for d, i in enumerate(op.transform.at))
        return (remade(op, transform=Slice(at)),)

    return change
