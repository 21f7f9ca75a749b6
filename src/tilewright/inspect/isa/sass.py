"""NVIDIA's machine code as its disassembler lists it: instructions, their kinds and widths, and jumps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.arch import Arch
from tilewright.errors import LaunchError
from tilewright.inspect.isa.instructions import IsaLine, Kind
from tilewright.inspect.isa.reading import Isa, isa_of

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x?_?\w+|\.L_\w+):")
_FUNCTION = re.compile(r"^\.text\.(\w+):")
_FILE = re.compile(r'^\s*//## File ".*", line (\d+)(?: inlined at ".*", line (\d+))?\s*$')
_TARGET = re.compile(r"`\((\.L\w+)\)")

_KINDS = (
    (r"(HGMMA|IGMMA|QGMMA|BGMMA|HMMA|IMMA|QMMA|DMMA|BMMA|UTC\w*MMA)$", Kind.MATRIX),
    (r"(LDGSTS|UTMALDG|UBLKCP)$", Kind.TO_SHARED),
    (r"(LDG|LD)$", Kind.GLOBAL_LOAD),
    (r"(STG|ST|UTMASTG)$", Kind.GLOBAL_STORE),
    (r"(RED|REDG|ATOM|ATOMG|UTMAREDG)$", Kind.GLOBAL_ATOMIC),
    (r"(LDS|LDSM)$", Kind.SHARED_LOAD),
    (r"(STS|STSM)$", Kind.SHARED_STORE),
    (r"(ATOMS|SYNCS)$", Kind.SHARED_ATOMIC),
    (r"(LDL|STL)$", Kind.STACK),
    (r"(SHFL|MOVM)$", Kind.EXCHANGE),
    (r"(LDC|ULDC|LDCU)$", Kind.CONSTANT_LOAD),
    (r"(BAR|UCGABAR_WAIT)$", Kind.BARRIER),
    (r"CCTL", Kind.FLUSH),
    (r"(WARPGROUP|DEPBAR|LDGDEPBAR|MEMBAR|FENCE|ERRBAR|ARRIVES|UTMACMDFLUSH)$", Kind.WAIT),
    (r"(BRA|BRX|BRXU|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK|WARPSYNC)$", Kind.BRANCH),
    (r"(NOP|USETMAXREG|NANOSLEEP)$", Kind.HINT),
    (r"(U[A-Z]|R2UR|S2UR|VOTEU)", Kind.SCALAR),
)
_MATCHES = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_MATRICES = ("LDSM", "STSM")
"""Instructions that move as many words of a lane as their last suffix says."""

_ACCESSES = ("LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDGSTS")

_ENDS = ("BRA", "EXIT", "RET", "JMP", "BRX")

_ONCE_MORE = "BRA.U.ANY"
"""Behind what one lane executes: once more for lanes with other operands, of which our kernels have none."""


def read_sass(
    text: str, arch: Arch, resources: Mapping[str, Any], threads: int
) -> tuple[Isa, dict[int, int]]:
    """A kernel's machine code as `nvdisasm` listed it, and of its lines those of the text, if it said.

    Args:
        text: the listing.
        arch: the architecture.
        resources: what the kernel takes, as ``executable.resources`` has it.
        threads: of a block.

    Raises:
        LaunchError: there is no kernel in it.
    """
    lines: list[IsaLine] = []
    labels: dict[str, int] = {}
    sources: dict[int, int] = {}
    kernel, current = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if found := _FUNCTION.match(line):
            if kernel:
                break  # what follows is another function
            kernel = found[1]
        elif found := _LABEL.match(line):
            labels[found[1]] = len(lines)
        elif found := _FILE.match(line):
            current = int(found[2] or found[1])
        elif kernel and (found := _INSTRUCTION.match(line)):
            lines.append(_line(number, found[1], found[2], found[3]))
            if current:
                sources[number] = current
    if not lines:
        raise LaunchError(f"no machine code of a kernel for {arch.name} in what the disassembler listed")
    return isa_of(kernel, arch, lines, labels, dict(resources), threads), sources


def _line(number: int, predicate: str | None, mnemonic: str, rest: str) -> IsaLine:
    base, *suffixes = mnemonic.split(".")
    # What the predicate that never holds guards is never executed.
    kind = Kind.HINT if predicate == "!PT" else _kind(base, suffixes)
    size = accesses = 0
    if kind is Kind.HINT:
        pass
    elif base in _MATRICES:
        size, accesses = 4 * int(suffixes[-1] if suffixes[-1].isdigit() else 1), 1
    elif base in _ACCESSES:
        size, accesses = next((_WIDTHS[word] for word in suffixes if word in _WIDTHS), 4), 1
    jumps = kind is Kind.BRANCH and base not in ("BSSY", "BSYNC") and mnemonic != _ONCE_MORE
    jump = _TARGET.search(rest) if jumps else None
    falls = base not in _ENDS or predicate is not None or ".ANY" in mnemonic or ".DIV" in mnemonic
    text = f"{f'@{predicate} ' if predicate else ''}{mnemonic} {rest}".strip()
    return IsaLine(number, text, mnemonic, kind, size, accesses, jump[1] if jump else "", falls)


def _kind(base: str, suffixes: list[str]) -> Kind:
    if base == "SYNCS" and "PHASECHK" in suffixes:
        return Kind.WAIT
    return next((kind for match, kind in _MATCHES if match.match(base)), Kind.VECTOR)
