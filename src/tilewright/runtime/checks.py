"""Kernels under the hazard checker: `check` for the sizes of given arrays, `check_sizes` for many sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tilewright.arch import Arch
from tilewright.argument_checks import is_integer, is_sequence, legal
from tilewright.calls import launches
from tilewright.errors import LaunchError, LegalityError
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.runtime.backends import arch_named, backend_named
from tilewright.runtime.binding import arrays_of
from tilewright.runtime.plans import Plan
from tilewright.runtime.specimens import in_order, with_arrays
from tilewright.targets.target import REFERENCE

if TYPE_CHECKING:
    from tilewright.runtime.reference import PreparedReference, ReferenceBackend
    from tilewright.targets.reference.report import Report, SizesReport

SECONDS = 30.0
"""Time after which `check_sizes` begins no further size."""

CHECKED = ("lanes", "target", "arch", "outputs", "partial", "blocks")
"""The options of `Bound.check`; other names are those of arguments and constants."""

Blocks: TypeAlias = str | int | Sequence[Any]
"""The blocks to run: ``"all"``, a number of them, or their indices."""

legal(
    "Blocks",
    '"all", a number of blocks or a sequence of their indices',
    "blocks",
    lambda value: value == "all" if isinstance(value, str) else is_integer(value) or is_sequence(value),
)


def resident_blocks(arch: Arch) -> int | None:
    """Return the blocks that every known product of an architecture runs at once; None if unknown."""
    boards = () if arch.rates is None else arch.rates.boards
    return min((board.multiprocessors for board in boards), default=None)


class BoundChecks:
    """The checker's methods of a bound kernel."""

    program: Program

    def _prepare(
        self, arguments: tuple[Any, ...], target: str | None, written_for: Arch | None = None
    ) -> Plan:
        raise NotImplementedError

    def trace(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Kernel:
        """Trace the kernel."""
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
        """Run on copies of the arguments under the hazard checker, on the host, and report its findings.

        Args:
            arguments: as for a launch; the caller's arrays are not written.  `tw.like` values stand for
                arrays of random numbers.
            lanes: threads per warp; default: as on ``arch``, or as the kernel's MMA atom needs.
            target: a target whose rules the kernel must keep too: shared memory, threads, instructions of
                ``"cuda"`` or ``"cpu"``; the machine is not needed.  Default: none.
            arch: the target's architecture, e.g. ``"sm_90a"``; default: that of this machine.
            outputs: names of arrays whose contents do not matter before the launch.  They begin as NaN, and
                a read before the first write is a finding.  Other arrays may be read, as in ``C += A B``.
            partial: names of written arrays in which the kernel may leave elements unwritten.
            blocks: ``"all"``, a number of blocks, or the indices of blocks to run.  Default: all blocks if
                that takes seconds; otherwise a sample: of equal blocks the first, its neighbours and the
                last, and pairs that touch one element.
            named: arguments by the names of the kernel's parameters.

        Returns:
            A report of races, out-of-bounds and unwritten accesses, deadlocks, and elements of written arrays
            that no operation writes, with source lines; bank conflicts and global-memory sectors; broken
            rules of ``target``.  Its head lists sizes, blocks, operations that never ran, and loops that were
            too short for their ring.  ``report.raise_if_any()`` makes findings an error.

        Raises:
            LaunchError: the arguments do not fit the kernel, no such target or architecture, blocks outside
                the grid, or a warp size that no machine has.
            LegalityError: the kernel breaks rules that hold on every target.
        """
        options = {"lanes": lanes, "target": target, "arch": arch, "blocks": blocks}
        # The default of both, an empty tuple, counts as not given.
        options |= {"outputs": outputs or None, "partial": partial or None}
        _refuse_clashes(self.program, len(arguments), named, options)
        given = tuple(with_arrays(in_order(self.program, arguments, named)))
        written_for = arch_named(target, arch)
        try:
            prepared = cast("PreparedReference", self._prepare(given, REFERENCE.name, written_for).prepared)
        except LegalityError:  # only the architecture's rules are broken: the report shows them
            prepared = cast("PreparedReference", self._prepare(given, REFERENCE.name).prepared)
        rules_of, broken = "", []
        if target is not None:
            backend = backend_named(target)
            chosen = arch or backend.arch_name()
            rules_of, broken = f"{target} {chosen}", backend.violations(prepared.executable.kernel, chosen)
        report = prepared.check(
            given,
            lanes=lanes,
            outputs=outputs,
            partial=partial,
            blocks=blocks,
            resident=resident_blocks(written_for),
        )
        return replace(report, target=rules_of, violations=tuple(broken))

    @launches.of("Bound.check_sizes")
    def check_sizes(
        self, *arguments: Any, sizes: Any = None, seconds: float = SECONDS, **named: Any
    ) -> SizesReport:
        """`check` at the most telling sizes: loops of no, one and many iterations, tiles cut by an edge.

        Each dimension is varied by itself, while the others have one whole tile or are long enough.  Loops
        along it run 0 and 1 times, as often as their ring of shared memory has stages, once more and once
        less, and 2 * stages + 1 times.  The grid has one and two blocks.  Each case comes with whole tiles,
        and with an edge that cuts the last tile.  Then all dimensions are ragged at once.  If a kernel takes
        only multiples, ragged sizes are multiples of 8, 16 or 64.  A condition that compares an extent, or
        the index of a loop or block, with a constant adds sizes just below and above it.  Integer arguments
        that decide what runs are 0, 1, 2, as given, and one more.  If blocks wait for each other, there is
        one block more than is certain to be resident.

        Args:
            arguments: arrays or `tw.like` values as specimens.  Their dtypes and the order of their
                dimensions in memory count; their extents and contents do not.  Numbers as for a launch.
            sizes: the extents and integers to try instead, by name: ``{"K": (0, 64, 100), "N": 64}``.
            seconds: no further size is begun after this time.
            named: arguments by the names of the kernel's parameters, and the options of `check`.

        Returns:
            One report of all sizes, with the reason for each: `findings`, each with the sizes that show it;
            sizes that the kernel refuses; operations that ran at no size; conditions that were always true.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no dimension has such a name.
            LegalityError: the kernel breaks rules at every size.

        Example:
            A barrier is missing after the second copy; a single iteration does not show it:

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
        infos = arrays_of(self.program, given)
        backend = cast("ReferenceBackend", backend_named(REFERENCE.name))

        def check(made: Sequence[Any], partial: Collection[str]) -> Report:
            return self.check(*made, **{**options, **({"partial": tuple(partial)} if partial else {})})

        resident = resident_blocks(arch_named(options.get("target"), options.get("arch")))
        return backend.check_sizes(
            self.program, self.trace, given, infos, check, sizes, float(seconds), resident
        )


def _refuse_clashes(
    program: Program, positional: int, named: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse an option of `check` whose name is that of a parameter without an argument.

    Raises:
        LaunchError: the name is that of an option and of a parameter.
    """
    for parameter in program.parameters[positional:]:
        if parameter.name not in named and options.get(parameter.name) is not None:
            raise LaunchError(
                f"check({parameter.name}=...): {parameter.name} is an option of check, and a parameter of "
                f"kernel {program.name}",
                "give the parameter by its position",
            )


class KernelChecks:
    """The checker's methods of a kernel."""

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
        """`check` at the most telling sizes; see `Bound.check_sizes`."""
        options = (*CHECKED, "sizes", "seconds")
        return self._called("check_sizes", options, arguments, named)  # type: ignore[no-any-return]

    def _called(self, method: str, names: Sequence[str], arguments: Any, named: dict[str, Any]) -> Any:
        """Call a method of the bound kernel; a name of one of the kernel's constants is no option."""
        own = self.program.constants
        options = {name: named.pop(name) for name in names if name in named and name not in own}
        _refuse_clashes(self.program, len(arguments), named, options)
        bound, given = self._split(named)
        return getattr(bound, method)(*arguments, **options, **given)
