"""Kernels under the hazard checker: `check` for the sizes of some arrays, `check_sizes` for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from tilewright.calls import launches
from tilewright.lang.program import Program
from tilewright.runtime.backends import broken_rules
from tilewright.runtime.checking import Blocks
from tilewright.runtime.executable import Prepared
from tilewright.runtime.specimens import in_order, with_arrays

if TYPE_CHECKING:  # a target is loaded when it is asked for
    from tilewright.runtime.reference import PreparedReference
    from tilewright.targets.reference.report import Report

CHECKED = ("lanes", "target", "arch", "outputs", "partial", "blocks")
"""The options of `Bound.check`; other names are those of arguments and constants."""


class BoundChecks:
    """What a bound kernel has of the checker."""

    program: Program

    def _prepare(self, arguments: tuple[Any, ...], target: str | None) -> Prepared:
        raise NotImplementedError

    @launches.of("Bound.check")
    def check(
        self,
        *arguments: Any,
        lanes: int | None = None,
        target: str | None = None,
        arch: str | None = None,
        outputs: str | Sequence[str] = (),
        partial: str | Sequence[str] = (),
        blocks: Blocks | None = None,
        **named: Any,
    ) -> Report:
        """Run on copies of the arguments under the hazard checker, on the host, and report what it finds.

        Args:
            arguments: as for a launch; the caller's arrays are not written.  `tw.like` values stand for
                arrays of random numbers.
            lanes: threads per warp; default: as many as the kernel's MMA atom has.
            target: whose rules the kernel must keep too: shared memory, threads, instructions of ``"cuda"``
                or ``"cpu"``; no such machine is needed.  Default: none.
            arch: the target's architecture, e.g. ``"sm_90a"``; default: that of this machine.
            outputs: names of arrays whose contents mean nothing before the launch: they begin as NaN, and an
                element that is read before it is written is found.  Others may be read, as ``C += A B`` does.
            partial: names of written arrays that the kernel may leave elements of as they are.
            blocks: ``"all"``, how many, or the indices of those that run.  Default: all while that is the
                work of seconds, and then those that stand for others: of blocks that are equal up to their
                place the first, its neighbours and the last, and pairs that touch one element.
            named: arguments by the names of the kernel's parameters.

        Returns:
            Races, out-of-bounds and unwritten accesses, deadlocks, elements of written arrays that nothing
            writes, with the source lines; bank conflicts and global-memory sectors; the rules of ``target``
            that are broken.  Its head says what it is about: sizes, blocks, operations that never ran, loops
            that were too short for their ring.  ``report.raise_if_any()`` makes findings an error.

        Raises:
            LaunchError: the arguments do not fit the kernel, no such target or architecture, blocks that the
                grid does not have, or other lanes than warps have.
            LegalityError: the kernel breaks rules that hold on every target.
        """
        given = tuple(with_arrays(in_order(self.program, arguments, named)))
        prepared = cast("PreparedReference", self._prepare(given, "reference"))
        rules_of, broken = broken_rules(prepared.executable.kernel, target, arch)
        report = prepared.check(given, lanes=lanes, outputs=outputs, partial=partial, blocks=blocks)
        return replace(report, target=rules_of, violations=broken)


class _Splits(Protocol):
    def _split(self, named: Mapping[str, Any]) -> tuple[BoundChecks, dict[str, Any]]: ...


class KernelChecks:
    """What a kernel has of the checker."""

    @launches.of("Kernel.check")
    def check(self: _Splits, *arguments: Any, **named: Any) -> Report:
        """Run on copies of the arguments under the hazard checker, with the options of `Bound.check`."""
        options = {name: named.pop(name) for name in CHECKED if name in named}
        bound, given = self._split(named)
        return bound.check(*arguments, **options, **given)
