"""Where the instructions of a listing come from: operations, the author's arrays, the author's lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op
from tilewright.ir.ops import Copy, For
from tilewright.targets.listing import Listing

_LOC = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)\b(.*)$")
_PLACE = re.compile(r":(\d+):\d+")


@dataclass(frozen=True)
class Source:
    """Where an instruction comes from.

    Args:
        line: of the emitted text.
        op: the operation that it was emitted for.
        tensors: the author's arrays that are meant: those that it accesses, or those whose numbers it moves.
        says: what the operation does.
        place: the author's line, and the field of the schedule, if one made the operation.
    """

    line: int
    op: Op
    tensors: tuple[str, ...]
    says: str
    place: str


def sources(listing: Listing, lines: Mapping[int, int]) -> dict[int, Source]:
    """Where instructions come from, for those of which it is known.

    Args:
        listing: the emitted text, with the operations that its lines spell.
        lines: for instructions, by whatever names them, the line of the text that each was compiled from.
    """
    text, held = listing.text.splitlines(), holdings(listing.kernel)
    names = [param.name for param in listing.kernel.tensors]
    first: dict[int, int] = {}
    for line, of in sorted(listing.lines.items()):
        first.setdefault(id(of), line)
    known: dict[int, Source] = {}
    found = {}
    for name, line in lines.items():
        if (op := listing.lines.get(line)) is None:
            continue
        if line not in known:
            begins = text[first[id(op)] - 1].strip()
            known[line] = Source(line, op, _arrays(op, held, names), _says(op, begins), _place(op))
        found[name] = known[line]
    return found


def compiled_lines(listing: str) -> dict[int, int]:
    r"""For each line of a compiler's listing, the line of the source that it says it was made of.

    Where functions were inlined, that is the line that calls the outermost of them.

    Args:
        listing: with directives ``.loc``, behind which the compiler says what was inlined where.

    Example:
        >>> compiled_lines(".loc 0 9 1 ; k.hip:9:1 @[ k.hip:48:2 ]\n s_nop 0\n .loc 0 0 0\n s_nop 1")
        {2: 48}
    """
    found, current = {}, 0
    for number, text in enumerate(listing.splitlines(), 1):
        if match := _LOC.match(text):
            places = _PLACE.findall(match[2])
            current = int(places[-1] if places else match[1])
        elif current:
            found[number] = current
    return found


def holdings(kernel: Kernel) -> dict[str, frozenset[str]]:
    """Whose numbers each buffer holds, or what was computed of them: the names of arrays.

    Args:
        kernel: lowered.
    """
    arrays = {param.name: frozenset([param.name]) for param in kernel.tensors}
    held, before = dict(arrays), -1
    while sum(map(len, held.values())) != before:
        before = sum(map(len, held.values()))
        for op in kernel.walk():
            of = frozenset().union(*(held.get(value.buffer.name, frozenset()) for value in op.read))
            for value in (*op.written, *op.results):
                name = getattr(value, "buffer", value).name
                held[name] = arrays.get(name) or held.get(name, frozenset()) | of
    return held


def _arrays(op: Op, held: Mapping[str, frozenset[str]], names: list[str]) -> tuple[str, ...]:
    touched = {value.buffer.name for value in (*op.read, *op.written)}
    found = touched & set(names) or frozenset().union(*(held.get(name, frozenset()) for name in touched))
    return tuple(name for name in names if name in found)


def _says(op: Op, begins: str) -> str:
    """What an operation does: the comment with which its text begins, or that itself."""
    if isinstance(op, For):
        return f"loop over {op.index.name}"
    words = begins.removeprefix("// ")
    if op.location is not None and words != begins:
        words = words.partition(": ")[2] or words
    if isinstance(op, Copy):
        words = words.removeprefix(f"{op.source} -> {op.target}")
        words = f"{op.source.buffer.name} -> {op.target.buffer.name}{words}"
    return words


def _place(op: Op) -> str:
    if op.location is None:
        return ""
    origin = op.location.origin
    return str(op.location.frame) + ("" if origin is None else f" {origin.field}")
