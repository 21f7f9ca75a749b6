"""Where the author wrote something: columns, call stack, and the variables that a result is assigned to."""

from __future__ import annotations

import dis
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType

from tilewright.errors import Frame, Location, Origin, TilewrightError

# What runs beneath the author's code; `ops` writes kernels as authors do.
_ROOMS = ("lang", "dataflow", "runtime", "ir", "threads", "views", "layout", "symbolic", "targets")
_PACKAGE = Path(__file__).parents[1]
_LIBRARY = str(_PACKAGE) + os.sep
_OURS = (
    *(str(_PACKAGE / room) + os.sep for room in _ROOMS),
    str(_PACKAGE / "dtypes.py"),
    str(_PACKAGE / "calls.py"),
    str(_PACKAGE / "kinds.py"),
)
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_DEREF", "STORE_GLOBAL")
_LOADS = ("LOAD_FAST", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF")
_NO_NEXT = ("RETURN_", "RAISE_", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_NO_INTERRUPT")
"""How instructions begin after which the one below is not executed."""
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_ORIGIN: ContextVar[Origin | None] = ContextVar("what operations are being made from", default=None)
_RESULTS = ("BEFORE_WITH", "CALL", "BINARY", "COMPARE_OP", "UNARY_NEGATIVE", "FOR_ITER")


# ---------------------------------------------------------------- frames


def author_frame() -> FrameType:
    """The innermost frame that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        raise RuntimeError("no caller outside of tilewright")
    return frame


def author_frames() -> list[FrameType]:
    """The frames from the author's innermost one up to the kernel; outside of a kernel only the innermost."""
    first = author_frame()
    found = [first]
    frame = first.f_back
    while frame is not None and not _is_ours(frame):
        found.append(frame)
        frame = frame.f_back
    return found if frame is not None else [first]


def in_library(frame: FrameType) -> bool:
    """Whether a frame executes a function of this package that writes kernels as authors do."""
    return frame.f_code.co_filename.startswith(_LIBRARY)


def shown_frames() -> list[FrameType]:
    """`author_frames` without those of library functions that the author called."""
    frames = author_frames()
    return frames[_of_author([in_library(frame) for frame in frames]) :]


def _of_author(library: list[bool]) -> int:
    """The index of the innermost frame that is not the library's; 0 if the whole kernel is the library's."""
    return 0 if all(library) else library.index(False)


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    # What dataclasses generate has no file, but the module of its class.
    module = str(frame.f_globals.get("__name__")) if file == "<string>" else ""
    return file.startswith(_OURS) or module.startswith("tilewright.")


def here() -> Location:
    """The author's location: innermost frame first, up to the kernel function."""
    return Location(tuple(_describe(frame, frame.f_lasti) for frame in shown_frames()), _ORIGIN.get())


def origin() -> Origin | None:
    """What operations are being made from; None where the author writes them."""
    return _ORIGIN.get()


@contextmanager
def made_from(origin: Origin | None) -> Iterator[None]:
    """Operations of the with block are made from a value of a dataflow kernel; None: by the author."""
    token = _ORIGIN.set(origin)
    try:
        yield
    except TilewrightError as error:
        error.origin = error.origin or origin
        raise
    finally:
        _ORIGIN.reset(token)


def raised_at(error: BaseException, traceback: TracebackType | None = None) -> Location | None:
    """Where an error left the author's code for ours: as `here` would have said there.

    Args:
        error: the error.
        traceback: where to begin; default: at its outermost frame.
    """
    traceback = error.__traceback__ if traceback is None else traceback
    found: list[Frame] = []
    inside = False
    while traceback is not None:
        ours = _is_ours(traceback.tb_frame)
        if not ours:
            found = [_describe(traceback.tb_frame, traceback.tb_lasti), *(found if inside else ())]
        inside = not ours
        traceback = traceback.tb_next
    own = _of_author([frame.file.startswith(_LIBRARY) for frame in found]) if found else 0
    return Location(tuple(found[own:]), getattr(error, "origin", None)) if found else None


def _describe(frame: FrameType, offset: int) -> Frame:
    code = frame.f_code
    known = _frames(code)
    found = known.get(offset)
    if found is None:
        line, column, end_column = _positions(code)[offset // 2]
        found = Frame(code.co_filename, line or frame.f_lineno, column, end_column, code.co_name)
        known[offset] = found
    return found


def position(frame: FrameType) -> tuple[int | None, ...]:
    """First and last line, first and last column of what a frame executes."""
    return tuple(next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)))


@lru_cache(maxsize=512)
def _frames(code: CodeType) -> dict[int, Frame]:
    """The frames of a function by offset, shared by all operations that come from there."""
    return {}


@lru_cache(maxsize=512)
def _positions(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    found = []
    for line, end_line, column, end_column in code.co_positions():
        single = line == end_line and column is not None and end_column is not None
        found.append((line or 0, column or 0, (end_column or 0) if single else 0))
    return tuple(found)


# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Span:
    """Instructions of one frame with ``start < offset < stop``."""

    frame: FrameType
    start: int
    stop: int

    def reads_first(self, name: str) -> bool:
        """Whether a variable is read before it is written: from top to bottom, and on some way there is.

        Which way is taken is no matter of where the compiler put the instructions: some versions of Python
        move those that are seldom executed to the end.  Exceptions are no way.
        """
        if not next((access == "load" for access, _ in self._accesses(name)), False):
            return False
        offsets, found = instructions(self.frame.f_code)
        at = bisect_right(offsets, self.start)
        waiting, known = [at], set[int]()
        while waiting:
            at = waiting.pop()
            while at < len(found) and at not in known and self.start < offsets[at] < self.stop:
                known.add(at)
                instruction = found[at]
                accesses = [access for access, variable in _accesses(instruction) if variable == name]
                if accesses:
                    if accesses[0] == "load":
                        return True
                    break
                target = _target(instruction)
                if target is not None:
                    waiting.append(bisect_left(offsets, target))
                if instruction.opname.startswith(_NO_NEXT):
                    break
                at += 1
        return False

    def store(self, name: str) -> Frame | None:
        """Where a variable is written last."""
        offsets = [offset for access, offset in self._accesses(name) if access == "store"]
        return _describe(self.frame, offsets[-1]) if offsets else None

    def _accesses(self, name: str) -> Iterator[tuple[str, int]]:
        for access, offset in _accesses_by_name(self.frame.f_code).get(name, ()):
            if self.start < offset < self.stop:
                yield access, offset


def loop_body(frame: FrameType) -> Span:
    """The body of the ``for`` statement that a frame is at the head of; nothing if it is elsewhere."""
    head = instruction_at(frame)
    return Span(frame, frame.f_lasti, int(head.argval) if head.opname == "FOR_ITER" else frame.f_lasti)


def is_statement_loop(frame: FrameType) -> bool:
    """Whether the frame is at the head of a ``for`` statement, not of a comprehension."""
    offsets, found = instructions(frame.f_code)
    at = bisect_right(offsets, frame.f_lasti) - 1
    names = [instruction.opname for instruction in found[max(at - 1, 0) : at + 1]]
    return names == ["GET_ITER", "FOR_ITER"] and not frame.f_code.co_name.endswith(("comp>", "expr>"))


def instruction_at(frame: FrameType) -> dis.Instruction:
    """The instruction that a frame executes."""
    offsets, found = instructions(frame.f_code)
    # f_lasti may point into the inline cache behind the instruction.
    return found[max(bisect_right(offsets, frame.f_lasti) - 1, 0)]


def _target(instruction: dis.Instruction) -> int | None:
    """Where an instruction may jump to."""
    return int(instruction.argval) if instruction.opcode in _JUMPS else None


@lru_cache(maxsize=512)
def instructions(code: CodeType) -> tuple[list[int], list[dis.Instruction]]:
    """The instructions and their offsets, without argument prefixes."""
    found = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    return [instruction.offset for instruction in found], found


@lru_cache(maxsize=512)
def _accesses_by_name(code: CodeType) -> dict[str, list[tuple[str, int]]]:
    """For each local variable what is done to it, and at which offset, from top to bottom."""
    found: dict[str, list[tuple[str, int]]] = {}
    for instruction in instructions(code)[1]:
        for access, name in _accesses(instruction):
            found.setdefault(name, []).append((access, instruction.offset))
    return found


def _accesses(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """What an instruction does to local variables, in order: ``("load" or "store", name)``."""
    name = instruction.opname
    if name == "LOAD_FAST_AND_CLEAR" or not name.startswith((*_LOADS, *_STORES)):
        return []
    variables = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    kinds = [part.lower() for part in name.split("_") if part in ("LOAD", "STORE")]
    return list(zip(kinds, map(str, variables), strict=False))


# ---------------------------------------------------------------- names


def naming_frame() -> FrameType | None:
    """The frame whose statement ``a, b = call()`` names a result.

    Where a helper function returns the result at once, that of its caller.
    """
    return next((frame for frame in author_frames() if stored_names(frame) is not None), None)


def is_authors(frame: FrameType) -> bool:
    """Whether the names in a frame are the author's: not the library's, unless the kernel is."""
    return not in_library(frame) or in_library(author_frames()[-1])


def author_names(function: Callable[..., object]) -> frozenset[str]:
    """The names that a kernel's function, and those of its file that it calls, may give to anything.

    Their variables, and the strings that are names.
    """
    function = getattr(function, "__func__", function)
    assert isinstance(function, FunctionType)
    found: set[str] = set()
    codes, known = [function.__code__], set[CodeType]()
    while codes:
        code = codes.pop()
        if code in known:
            continue
        known.add(code)
        found.update(code.co_varnames, code.co_cellvars)
        found.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
        codes.extend(inner for inner in code.co_consts if isinstance(inner, CodeType))
        called = (function.__globals__.get(name) for name in code.co_names)
        codes.extend(
            one.__code__
            for one in called
            if isinstance(one, FunctionType) and one.__globals__ is function.__globals__
        )
    return frozenset(found)


def stored_names(frame: FrameType) -> tuple[str, ...] | None:
    """The variables that take the result of a frame's present instruction; None if it is returned."""
    offsets, names = _stores(frame.f_code)
    at = bisect_right(offsets, frame.f_lasti) - 1
    return names[at] if at >= 0 else ()


def loop_targets(frame: FrameType) -> list[str]:
    """The variables of the ``for`` statement that a frame is at the head of; a starred one with its star."""
    _, found = instructions(frame.f_code)
    following = found[found.index(instruction_at(frame)) + 1 :]
    if following[0].opname == "UNPACK_SEQUENCE":
        return _leading_stores(following[1:])[: int(following[0].argval)]
    if following[0].opname == "UNPACK_EX":
        before, after = int(following[0].argval) & 255, int(following[0].argval) >> 8
        names = _leading_stores(following[1:])[: before + 1 + after]
        return [f"*{name}" if at == before else name for at, name in enumerate(names)]
    return _leading_stores(following)[:1]


@lru_cache(maxsize=512)
def _stores(code: CodeType) -> tuple[list[int], list[tuple[str, ...] | None]]:
    """Offsets of all instructions, and for each the names that its result is stored in next."""
    offsets, found = instructions(code)
    names: list[tuple[str, ...] | None] = []
    for at, instruction in enumerate(found):
        following = found[at + 1 : at + 12]
        if following and following[0].opname == "COPY":
            following = following[1:]
        if not _gives_result(instruction) or not following:
            names.append(())
        elif following[0].opname == "RETURN_VALUE":
            names.append(None)
        elif following[0].opname == "UNPACK_SEQUENCE":
            names.append(tuple(_leading_stores(following[1:])[: int(following[0].argval)]))
        else:
            names.append(tuple(_leading_stores(following)[:1]))
    return offsets, names


def _gives_result(instruction: dis.Instruction) -> bool:
    in_place = instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("=")
    return instruction.opname.startswith(_RESULTS) and not in_place


def _leading_stores(following: list[dis.Instruction]) -> list[str]:
    names: list[str] = []
    for instruction in following:
        accesses = _accesses(instruction)
        names.extend(name for access, name in accesses if access == "store")
        if not accesses or accesses[-1][0] != "store":
            break
    return names
