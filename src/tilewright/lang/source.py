"""Where the author wrote something: columns, call stack, and the variables that a result is assigned to."""

from __future__ import annotations

import dis
import sys
from bisect import bisect_right
from functools import lru_cache
from types import CodeType, FrameType

from tilewright.errors import Frame, Location

_PACKAGE = __name__.rpartition(".")[0]
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_DEREF", "STORE_GLOBAL")


def author_frame() -> FrameType:
    """The innermost frame that is not in this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        raise RuntimeError("no caller outside tilewright.lang")
    return frame


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module == _PACKAGE or module.startswith(_PACKAGE + ".")


def here() -> Location:
    """The author's location: innermost frame first, up to the kernel function."""
    frames: list[Frame] = []
    frame: FrameType | None = author_frame()
    while frame is not None and not _is_ours(frame):
        frames.append(_describe(frame))
        frame = frame.f_back
    return Location(tuple(frames))


def _describe(frame: FrameType) -> Frame:
    code = frame.f_code
    line, column, end_column = _positions(code)[frame.f_lasti // 2]
    return Frame(code.co_filename, line or frame.f_lineno, column, end_column, code.co_name)


@lru_cache(maxsize=512)
def _positions(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    found = []
    for line, end_line, column, end_column in code.co_positions():
        single = line == end_line and column is not None and end_column is not None
        found.append((line or 0, column or 0, (end_column or 0) if single else 0))
    return tuple(found)


def assigned_names() -> tuple[str, ...]:
    """The variables that the author's statement ``a, b = call()`` assigns; empty if there are none."""
    frame = author_frame()
    offsets, names = _stores(frame.f_code)
    # f_lasti may point into the inline cache behind the call instruction.
    at = bisect_right(offsets, frame.f_lasti) - 1
    return names[at] if at >= 0 else ()


@lru_cache(maxsize=512)
def _stores(code: CodeType) -> tuple[list[int], list[tuple[str, ...]]]:
    """Offsets of all instructions, and for each call the names that its result is stored in next."""
    instructions = list(dis.get_instructions(code))
    names: list[tuple[str, ...]] = []
    for at, instruction in enumerate(instructions):
        following = instructions[at + 1 : at + 12]
        if not instruction.opname.startswith("CALL") or not following:
            names.append(())
        elif following[0].opname == "UNPACK_SEQUENCE":
            names.append(tuple(_leading_stores(following[1:])[: int(following[0].argval)]))
        else:
            names.append(tuple(_leading_stores(following)[:1]))
    return [instruction.offset for instruction in instructions], names


def _leading_stores(instructions: list[dis.Instruction]) -> list[str]:
    names: list[str] = []
    for instruction in instructions:
        if instruction.opname in _STORES:
            names.append(str(instruction.argval))
        elif instruction.opname == "STORE_FAST_STORE_FAST":
            names.extend(str(name) for name in instruction.argval)
        elif instruction.opname == "STORE_FAST_LOAD_FAST":
            names.append(str(instruction.argval[0]))
            break
        else:
            break
    return names


def next_stored_name(frame: FrameType, default: str) -> str:
    """The first variable stored after the frame's present instruction: the target of a ``for``."""
    for offset, name in _stored(frame.f_code):
        if offset > frame.f_lasti:
            return name
    return default


@lru_cache(maxsize=512)
def _stored(code: CodeType) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("STORE_"):
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            found.append((instruction.offset, str(names[0])))
    return tuple(found)
