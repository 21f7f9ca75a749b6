"""The report of a kernel's machine code, and executions of its listing that count bank conflicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.amdgcn import ListingError, ListingExecution, execute
from tilewright.amdgcn.space import Watch
from tilewright.arch import Arch
from tilewright.errors import LaunchError
from tilewright.inspect.isa.instructions import IsaKind, IsaLine
from tilewright.inspect.isa.reading import Isa, isa_of, read_isa
from tilewright.inspect.isa.report import InstructionSource, IsaReport, compiled_lines, sources
from tilewright.inspect.subject import Subject
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.copies import is_by_threads
from tilewright.ir.kernel import ScalarParam, SizeParam, TensorParam
from tilewright.ir.ops import Copy, Mma
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import bind, number
from tilewright.runtime.device import cubin, cubin_with_lines
from tilewright.runtime.executable import Executable
from tilewright.runtime.hip import listing_with_lines
from tilewright.runtime.nvrtc import disassemble, find_nvdisasm
from tilewright.targets.simt.banks import Conflicts, asked_by_descriptor, conflicts_of, in_shared
from tilewright.targets.target import CUDA, HIP, target_named
from tilewright.threads.banks import bank_passes, lanes_together, served_together


def execute_listing(
    made: Executable,
    arrays: Mapping[str, Any],
    numbers: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    *,
    stores_once: bool = False,
) -> ListingExecution:
    """Execute a kernel from its listing for an AMD GPU, in the way of a launch.

    All waves of a block must pass the same number of barriers, which holds for verified kernels.

    Args:
        made: the kernel, compiled for the class of the arrays.
        arrays: the kernel's arrays, by parameter; results are stored in them.
        numbers: its numbers and integers.
        watch: an argument of `tilewright.amdgcn.execute`.
        stores_once: an argument of `tilewright.amdgcn.execute`.

    Raises:
        LaunchError: a number has no value.
        ListingError: the execution found an error.
    """
    assert made.listing is not None
    kernel, values = made.listing.kernel, dict(numbers or {})
    scalars = [param.value.name for param in kernel.passed if isinstance(param, ScalarParam)]
    if missing := [name for name in scalars if name not in values]:
        raise LaunchError(f"no value for {', '.join(missing)}, which kernel {kernel.name} takes")
    binding = bind(kernel, {name: describe(array) for name, array in arrays.items()}, values)
    given: list[Any] = []
    for param in kernel.passed:
        if isinstance(param, TensorParam):
            given.append(arrays[param.value.name])
        elif isinstance(param, SizeParam):
            given.append((np.int64 if param.bits == 64 else np.int32)(binding.sizes[param.sym.name]))
        elif isinstance(param, ScalarParam):
            given.append(number(param.value.name, param.value.dtype, values[param.value.name]))
        else:
            given.append(np.zeros(binding.workspaces[param.value.name], param.value.dtype.numpy))
    grid = (*binding.grid, 1, 1)[:3]
    return execute(
        made.assembly,
        given,
        grid,
        (kernel.threads, 1, 1),
        kernel=made.listing.entry,
        watch=watch,
        stores_once=stores_once,
        all_meet=True,
    )


class BankCounter:
    """The watch of an execution that counts bank conflicts.

    A pass serves as many lanes as fill all banks once. They are neighbours, but loads of 16 bytes take the
    lanes in the order of the architecture's record.

    Args:
        arch: the architecture of the banks.

    Example:
        >>> from tilewright.targets.amd import GFX1151
        >>> counter = BankCounter(GFX1151)
        >>> counter(7, 4, np.arange(32)[None] * np.array([[4], [8]]), False)
        >>> counter.lines[7]
        Conflicts(accesses=2, passes=3, fewest=2)
    """

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.lines: dict[int, Conflicts] = {}

    def __call__(
        self, line: int, size: int, offsets: np.ndarray[Any, np.dtype[np.int64]], writes: bool
    ) -> None:
        """Count an access of some waves."""
        if size == self.arch.access_bytes and not writes and self.arch.read_order:
            offsets = offsets[:, self.arch.read_order]
        together = lanes_together(size, self.arch.banks, self.arch.lanes)
        parts = served_together(offsets, together, self.arch.lanes)
        used = parts[(parts >= 0).any(axis=1)]
        passes = int(bank_passes(used, size, self.arch.banks).sum())
        found = Conflicts(len(offsets), passes, len(used))
        self.lines[line] = self.lines.get(line, Conflicts()) + found


# ----------------------------------------------------------------
# NVIDIA's machine code in the format of its disassembler.


_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x?_?\w+|\.L_\w+):")
_FUNCTION = re.compile(r"^\.text\.(\w+):")
_FILE = re.compile(r'^\s*//## File ".*", line (\d+)(?: inlined at ".*", line (\d+))?\s*$')
_TARGET = re.compile(r"`\((\.L\w+)\)")

_KINDS = (
    (r"(HGMMA|IGMMA|QGMMA|BGMMA|HMMA|IMMA|QMMA|DMMA|BMMA|UTC\w*MMA)$", IsaKind.MATRIX),
    (r"(LDGSTS|UTMALDG|UBLKCP)$", IsaKind.TO_SHARED),
    (r"(LDG|LD)$", IsaKind.GLOBAL_LOAD),
    (r"(STG|ST|UTMASTG)$", IsaKind.GLOBAL_STORE),
    (r"(RED|REDG|ATOM|ATOMG|UTMAREDG)$", IsaKind.GLOBAL_ATOMIC),
    (r"(LDS|LDSM)$", IsaKind.SHARED_LOAD),
    (r"(STS|STSM)$", IsaKind.SHARED_STORE),
    (r"(ATOMS|SYNCS)$", IsaKind.SHARED_ATOMIC),
    (r"(LDL|STL)$", IsaKind.STACK),
    (r"(SHFL|MOVM)$", IsaKind.EXCHANGE),
    (r"(LDC|ULDC|LDCU)$", IsaKind.CONSTANT_LOAD),
    (r"(BAR|UCGABAR_WAIT)$", IsaKind.BARRIER),
    (r"CCTL", IsaKind.FLUSH),
    (r"(WARPGROUP|DEPBAR|LDGDEPBAR|MEMBAR|FENCE|ERRBAR|ARRIVES|UTMACMDFLUSH)$", IsaKind.WAIT),
    (r"(BRA|BRX|BRXU|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK|WARPSYNC)$", IsaKind.BRANCH),
    (r"(NOP|USETMAXREG|NANOSLEEP)$", IsaKind.HINT),
    (r"(U[A-Z]|R2UR|S2UR|VOTEU)", IsaKind.SCALAR),
)
_MATCHES = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_MATRICES = ("LDSM", "STSM")
"""Instructions whose last suffix is the number of words of a lane."""

_ACCESSES = ("LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDGSTS")

_ENDS = ("BRA", "EXIT", "RET", "JMP", "BRX")

_ONCE_MORE = "BRA.U.ANY"
"""A branch back to instructions of one lane, for lanes with other operands; in our kernels all are equal."""


def read_sass(
    text: str, arch: Arch, resources: Mapping[str, Any], threads: int
) -> tuple[Isa, dict[int, int]]:
    """Read a kernel's machine code from a listing of `nvdisasm`, and the source lines of its instructions.

    Args:
        text: the listing.
        arch: the architecture.
        resources: the kernel's resources, by the names of ``executable.resources``.
        threads: threads of a block.

    Raises:
        LaunchError: the listing has no kernel.
    """
    lines: list[IsaLine] = []
    labels: dict[str, int] = {}
    sources: dict[int, int] = {}
    kernel, current = "", 0
    for row, line in enumerate(text.splitlines(), 1):
        if found := _FUNCTION.match(line):
            if kernel:
                break  # the next function
            kernel = found[1]
        elif found := _LABEL.match(line):
            labels[found[1]] = len(lines)
        elif found := _FILE.match(line):
            current = int(found[2] or found[1])
        elif kernel and (found := _INSTRUCTION.match(line)):
            lines.append(_line(row, found[1], found[2], found[3]))
            if current:
                sources[row] = current
    if not lines:
        raise LaunchError(f"no machine code of a kernel for {arch.name} in the listing of the disassembler")
    return isa_of(kernel, arch, lines, labels, dict(resources), threads), sources


def _line(number: int, predicate: str | None, mnemonic: str, rest: str) -> IsaLine:
    base, *suffixes = mnemonic.split(".")
    if predicate == "!PT":  # never executed
        kind = IsaKind.HINT
    elif base == "SYNCS" and "PHASECHK" in suffixes:
        kind = IsaKind.WAIT
    else:
        kind = next((kind for match, kind in _MATCHES if match.match(base)), IsaKind.VECTOR)
    size = accesses = 0
    if kind is IsaKind.HINT:
        pass
    elif base in _MATRICES:
        size, accesses = 4 * int(suffixes[-1] if suffixes[-1].isdigit() else 1), 1
    elif base in _ACCESSES:
        size, accesses = next((_WIDTHS[word] for word in suffixes if word in _WIDTHS), 4), 1
    jumps = kind is IsaKind.BRANCH and base not in ("BSSY", "BSYNC") and mnemonic != _ONCE_MORE
    jump = _TARGET.search(rest) if jumps else None
    falls = base not in _ENDS or predicate is not None or ".ANY" in mnemonic or ".DIV" in mnemonic
    text = f"{f'@{predicate} ' if predicate else ''}{mnemonic} {rest}".strip()
    return IsaLine(number, text, mnemonic, kind, size, accesses, jump[1] if jump else "", falls)


# ---------------------------------------------------------------- the report of a kernel


FEW = 128
"""Largest extent of the arrays for the execution of a listing."""

_SHARED = (IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE, IsaKind.TO_SHARED)


def isa_report(subject: Subject, target: str, arch: str | None = None) -> IsaReport:
    """Report the machine code of a kernel, with the author's lines, and bank conflicts of its accesses.

    Args:
        subject: the kernel and its arrays; its listing is executed on smaller arrays.
        target: the target that it is compiled for.
        arch: the target's architecture; default: its own.

    Raises:
        LaunchError: the target has no listing, the architecture is unknown, or the kernel has no main loop.
        ToolchainError: the disassembler for NVIDIA's GPUs is missing.
    """
    _check_readable(target)
    if arch is not None:
        target_named(target).architecture(arch)

    def arrays() -> Mapping[str, Any]:
        subject.require_numbers()
        return subject.small_arrays(FEW)

    return report_of(subject.compile(target, arch), arrays, subject.numbers)


def report_of(
    made: Executable, arrays: Callable[[], Mapping[str, Any]], numbers: Mapping[str, Any] | None = None
) -> IsaReport:
    """Report the machine code of a compiled kernel.

    Args:
        made: the kernel.
        arrays: makes arrays, by parameter; the listing is executed on them to count bank conflicts.
        numbers: the kernel's numbers and integers, for this execution.

    Raises:
        LaunchError: the target has no listing, or the kernel has no main loop.
        ToolchainError: the disassembler for NVIDIA's GPUs is missing.
    """
    _check_readable(made.target)
    isa, _ = _machine_code(made)
    accesses = isa.main.of(*_SHARED)  # refuses a kernel without a main loop before anything is executed
    # Source lines come from a second compilation with line numbers, if it has the same instructions.
    assert made.listing is not None
    again, lines = _machine_code(made, with_lines=True)
    known: dict[int, InstructionSource] = {}
    notes: tuple[str, ...] = COARSE if made.target == CUDA.name else ()
    if [line.text for line in again.whole.lines] == [line.text for line in isa.whole.lines]:
        pairs = zip(isa.whole.lines, again.whole.lines, strict=True)
        numbered = {one.line: lines[two.line] for one, two in pairs if two.line in lines}
        known = of_products(isa, sources(made.listing, numbered))
    else:
        notes = ("with line numbers the compiler writes other instructions, so that no lines are shown",)
    conflicts, counted = _counted(made, isa, arrays, numbers or {})
    if not conflicts:
        conflicts, counted = predicted(isa, known), f"predicted from layouts, for {counted}"
        if not accesses and not any(line.line in conflicts for line in isa.main.lines):
            counted = "no instruction of the main loop accesses shared memory"
    title = f"{isa.kernel} for {made.target} {isa.arch.name}"
    return IsaReport(title, isa, known, conflicts, counted, notes)


COARSE = ("an assembler's lines are coarse: an instruction may bear that of the one before it",)
"""Note of reports for NVIDIA's GPUs."""


def _check_readable(target: str) -> None:
    """Check that the machine code of a target can be read here.

    Raises:
        LaunchError: the target has no listing.
        ToolchainError: its disassembler is missing.
    """
    if target not in (HIP.name, CUDA.name):
        text = f"target {target} has no listing of machine code that is read here"
        raise LaunchError(text, f"--target {HIP.name} --arch {HIP.arch}")
    if target == CUDA.name:
        find_nvdisasm()


def _machine_code(made: Executable, *, with_lines: bool = False) -> tuple[Isa, dict[int, int]]:
    """Read a kernel's machine code, and with line numbers the source line of each line of the listing.

    AMD's is the compiler's own listing, NVIDIA's that of the toolkit's disassembler.
    """
    if made.target == HIP.name:
        text = listing_with_lines(made) if with_lines else made.assembly
        return read_isa(text), compiled_lines(text) if with_lines else {}
    binary = cubin_with_lines(made) if with_lines else cubin(made)
    text = disassemble(binary, find_nvdisasm(), lines=with_lines)
    return read_sass(text, CUDA.architecture(made.arch), made.resources, made.kernel.threads)


def of_products(isa: Isa, found: Mapping[int, InstructionSource]) -> dict[int, InstructionSource]:
    """Correct the sources of matrix instructions, which are always products.

    NVIDIA's assembler gives several `wgmma` of one product one row of its table of lines.  A `wgmma` after an
    instruction of another line seems to have that line; it belongs to the product before it.

    Args:
        isa: the machine code.
        found: the sources by the line of the listing.
    """
    mended, last = dict(found), None
    for line in isa.whole.lines:
        source = found.get(line.line)
        if source is not None and isinstance(source.op, Mma | MmaAsync):
            last = source
        elif line.kind is IsaKind.MATRIX and last is not None:
            mended[line.line] = last
    return mended


def _counted(
    made: Executable, isa: Isa, arrays: Callable[[], Mapping[str, Any]], numbers: Mapping[str, Any]
) -> tuple[Mapping[int, Conflicts], str]:
    """Count bank conflicts in an execution of the listing; without one, return the reason."""
    if not made.assembly:
        return {}, f"listings for {isa.arch.name} are not executed"
    counter = BankCounter(isa.arch)
    try:
        given = arrays()
        execute_listing(made, given, numbers, counter)
    except (ListingError, LaunchError) as error:
        return {}, f"the listing cannot be executed here: {str(error).splitlines()[0]}"
    shapes = ", ".join(f"{name} of {' x '.join(map(str, array.shape))}" for name, array in given.items())
    return counter.lines, f"counted while the listing was executed on {shapes}"


def predicted(isa: Isa, known: Mapping[int, InstructionSource]) -> dict[int, Conflicts]:
    """Predict bank conflicts from the layouts of copies, by the line of the listing.

    Args:
        isa: the machine code.
        known: the sources of instructions, by the line of the listing.
    """
    found = {}
    for line in isa.whole.of(*_SHARED, IsaKind.MATRIX):
        op = known[line.line].op if line.line in known else None
        if isinstance(op, MmaAsync) and line.kind is IsaKind.MATRIX:
            operands = (one for one in (op.a, op.b) if one.is_tensor)
            found[line.line] = sum(map(asked_by_descriptor, operands), Conflicts())
        elif isinstance(op, Copy) and is_by_threads(op):
            value = op.source if line.kind is IsaKind.SHARED_LOAD else op.target
            if in_shared(value):
                found[line.line] = conflicts_of(op, value)
    return found
