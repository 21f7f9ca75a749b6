"""Kernels under the hazard checker: `check` for the sizes of some arrays, `check_sizes` for many."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tilewright.arch import Arch
from tilewright.calls import launches
from tilewright.errors import LaunchError, LegalityError
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.runtime.backends import arch_named, backend_named, broken_rules
from tilewright.runtime.check_arguments import Blocks, resident_blocks
from tilewright.runtime.executable import Prepared
from tilewright.runtime.specimens import check_count, in_order, with_arrays
from tilewright.targets.target import REFERENCE

if TYPE_CHECKING:
    from tilewright.runtime.reference import PreparedReference, ReferenceBackend
    from tilewright.targets.reference.report import Report, SizesReport

SECONDS = 30.0
"""After which `check_sizes` begins no further size."""

CHECKED = ("lanes", "target", "arch", "outputs", "partial", "blocks")
"""The options of `Bound.check`; other names are those of arguments and constants."""


class BoundChecks:
    """What a bound kernel has of the checker."""

    program: Program

    def _prepare(
        self, arguments: tuple[Any, ...], target: str | None, written_for: Arch | None = None
    ) -> Prepared:
        raise NotImplementedError

    def trace(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Kernel:
        """The traced kernel."""
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
            lanes: threads per warp; default: as many as those of ``arch``, or of the kernel's MMA atom.
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
        options = {"lanes": lanes, "target": target, "arch": arch, "blocks": blocks}
        options |= {"outputs": _given(outputs), "partial": _given(partial)}
        _refuse_clashes(self.program, len(arguments), named, options)
        given = tuple(with_arrays(in_order(self.program, arguments, named)))
        written_for = arch_named(target, arch)
        try:
            prepared = cast("PreparedReference", self._prepare(given, REFERENCE.name, written_for))
        except LegalityError:  # of that architecture alone: then the report tells of it
            prepared = cast("PreparedReference", self._prepare(given, REFERENCE.name))
        rules_of, broken = broken_rules(prepared.executable.kernel, target, arch)
        report = prepared.check(
            given,
            lanes=lanes,
            outputs=outputs,
            partial=partial,
            blocks=blocks,
            resident=resident_blocks(written_for),
        )
        return replace(report, target=rules_of, violations=broken)

    @launches.of("Bound.check_sizes")
    def check_sizes(
        self,
        *arguments: Any,
        sizes: Any = None,
        seconds: float = SECONDS,
        **named: Any,
    ) -> SizesReport:
        """`check` at the sizes that show most: loops of no, one and many iterations, tiles cut by an edge.

        Each dimension is varied by itself, the others being of one whole tile or long enough: so that loops
        along it turn 0 and 1 times, as often as their ring of shared memory has stages, once more and once
        less, and 2 * stages + 1 times; so that the grid has one and two blocks; each with whole tiles, and
        with an edge that cuts the last one.  Then all dimensions are ragged at once.  Where a kernel takes
        multiples only, ragged sizes are multiples of 8, of 16, or of 64.  Conditions of the kernel that
        compare an extent, or the index of a loop or block, with a constant add sizes just below and above.
        Integer arguments that decide what runs are 0, 1, 2, as given, and one more.  If blocks wait for each
        other, there is one block more than is certain to be resident.

        Args:
            arguments: arrays or `tw.like` values as specimens: their dtypes, and in which order their
                dimensions lie in memory, are kept; their extents and contents are not.  Numbers as for a
                launch.
            sizes: the extents and integers to try instead, by name: ``{"K": (0, 64, 100), "N": 64}``.
            seconds: no further size is begun after this time.
            named: arguments by the names of the kernel's parameters, and the options of `check`.

        Returns:
            One report of all sizes, and why each was tried: `findings`, each with the sizes that show it;
            which sizes the kernel refuses; which operations ran at none, which conditions were true at all.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no dimension has such a name.
            LegalityError: the kernel breaks rules at every size.

        Example:
            A barrier is missing behind the second copy, which the first iteration alone does not show:

            >>> import tilewright as tw
            >>> @tw.kernel(X="N", Y="N")
            ... def through_shared(X, Y):
            ...     held = tw.shared(64, X.dtype)
            ...     for n in tw.range(tw.ceil_div(X.shape[0], 64)):
            ...         tw.copy(X.tile((64,), (n,)), held, threads=64)
            ...         tw.barrier()
            ...         tw.copy(held, Y.tile((64,), (n,)), threads=32)
            >>> report = through_shared.check_sizes(tw.like("f32", 100), tw.like("f32", 100))
            >>> [str(finding.kind.value) for finding in report.findings]
            ['read-write race']
            >>> sorted(dict(sizes)["N"] for sizes, one in report.reports if one.is_clean)
            [0, 1, 63, 64]
        """
        options = {name: named.pop(name) for name in CHECKED if name in named}
        _refuse_clashes(self.program, len(arguments), named, options)
        given = in_order(self.program, arguments, named)
        check_count(self.program, given)
        backend = cast("ReferenceBackend", backend_named(REFERENCE.name))

        def check(made: Sequence[Any], partial: Collection[str]) -> Report:
            return self.check(*made, **{**options, **({"partial": tuple(partial)} if partial else {})})

        resident = resident_blocks(arch_named(options.get("target"), options.get("arch")))
        return backend.check_sizes(self.program, self.trace, given, check, sizes, float(seconds), resident)


def _given(names: Any) -> Any:
    """Names of arrays; None for the default, none."""
    return None if isinstance(names, tuple) and not names else names


def _refuse_clashes(
    program: Program, positional: int, named: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse an option of `check` that has the name of a parameter which nothing else is given for.

    Raises:
        LaunchError: the name is both an option's and a parameter's.
    """
    for parameter in program.parameters[positional:]:
        if parameter.name not in named and options.get(parameter.name) is not None:
            raise LaunchError(
                f"check({parameter.name}=...): {parameter.name} is an option of check, and a parameter of "
                f"kernel {program.name}; nearest legal choice: give the parameter by its position"
            )


class KernelChecks:
    """What a kernel has of the checker."""

    program: Program

    def _split(self, named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        raise NotImplementedError

    @launches.of("Kernel.check")
    def check(self, *arguments: Any, **named: Any) -> Report:
        """Run on copies of the arguments under the hazard checker, with the options of `Bound.check`.

        If a constant of the kernel has the name of an option, the name is the constant's: for the option bind
        the constant first, ``kernel.bind(blocks=4).check(x, y, blocks="all")``.
        """
        return self._called("check", CHECKED, arguments, named)  # type: ignore[no-any-return]

    @launches.of("Kernel.check_sizes")
    def check_sizes(self, *arguments: Any, **named: Any) -> SizesReport:
        """`check` at the sizes that show most; see `Bound.check_sizes`."""
        options = (*CHECKED, "sizes", "seconds")
        return self._called("check_sizes", options, arguments, named)  # type: ignore[no-any-return]

    def _called(self, method: str, names: Sequence[str], arguments: Any, named: dict[str, Any]) -> Any:
        """A name that a constant of the kernel has is the constant's, as in a launch, and not an option's."""
        own = self.program.constants
        options = {name: named.pop(name) for name in names if name in named and name not in own}
        _refuse_clashes(self.program, len(arguments), named, options)
        bound, given = self._split(named)
        return getattr(bound, method)(*arguments, **options, **given)
