"""Syntax of the author's source: statements that leave a block early, and unpacked tuples."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from tilewright.errors import Frame, Location
from tilewright.lang.source import author_frame, is_authors, naming_frame, position, stored_names

_JUMPS = {ast.Return: "return", ast.Break: "break", ast.Continue: "continue"}


def leaving(code: CodeType, location: Location) -> tuple[str, Location] | None:
    """Return the statement that leaves the ``with`` or ``for`` block at ``location``, with its line, or None.

    ``continue`` does not leave a loop.  The result is also None if the source cannot be read.
    """
    if not _may_leave(code):
        return None
    at = (location.frames[0].line, location.frames[0].column)
    for node in ast.walk(_tree(code)):
        if isinstance(node, ast.For):
            heads: list[ast.expr] = [node.iter]
        elif isinstance(node, ast.With):
            heads = [item.context_expr for item in node.items]
        else:
            continue
        if any((head.lineno, head.col_offset) == at for head in heads):
            jump = next(_jumps(node.body, isinstance(node, ast.For)), None)
            return None if jump is None else (_JUMPS[type(jump)], _place(jump, location))
    return None


def code_here() -> CodeType:
    """Return the code object of the author's innermost frame."""
    return author_frame().f_code


def result_names() -> tuple[tuple[str, ...], bool]:
    """Return the variables that take the result of the current call, and whether they are the author's.

    This includes the variable in ``a, b = call(), call()``.  The list may be empty.
    """
    frame = naming_frame()
    if frame is None:
        return (), False
    names = stored_names(frame) or _unpacked(frame.f_code).get(position(frame), ())
    return names, is_authors(frame)


@lru_cache(maxsize=256)
def _unpacked(code: CodeType) -> dict[tuple[int | None, ...], tuple[str, ...]]:
    """Return, by position of each expression in a tuple assigned to a tuple, the variable that takes it."""
    found: dict[tuple[int | None, ...], tuple[str, ...]] = {}
    for node in ast.walk(_tree(code)):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        names, made = ([*ast.iter_child_nodes(side)] for side in (node.targets[0], node.value))
        several = all(isinstance(side, ast.Tuple | ast.List) for side in (node.targets[0], node.value))
        for name, part in zip(names, made, strict=False) if several and len(names) == len(made) else ():
            if isinstance(name, ast.Name) and isinstance(part, ast.expr):
                at = (part.lineno, part.end_lineno, part.col_offset, part.end_col_offset)
                found[at] = (name.id,)
    return found


def _place(jump: ast.stmt, location: Location) -> Location:
    frame = location.frames[0]
    end = (jump.end_col_offset or 0) if jump.end_lineno == jump.lineno else 0
    place = Frame(frame.file, jump.lineno, jump.col_offset, end, frame.function)
    return Location((place, *location.frames[1:]))


def _lines(code: CodeType) -> tuple[list[str], int, int]:
    """Return the lines of a function's file, its first line, and its last line with instructions."""
    last = max((line for _, _, line in code.co_lines() if line is not None), default=0)
    return linecache.getlines(code.co_filename), code.co_firstlineno, last


@lru_cache(maxsize=256)
def _may_leave(code: CodeType) -> bool:
    """Return whether the source may have a leaving statement; most kernels have none and need no parse."""
    lines, first, last = _lines(code)
    return re.search(r"\b(return|break|continue)\b", "".join(lines[first - 1 : last])) is not None


@lru_cache(maxsize=256)
def _tree(code: CodeType) -> ast.AST:
    """Return the syntax tree of a function, with the lines and columns of its file."""
    lines, first, last = _lines(code)
    if len(lines) < first:  # made by exec, without a file
        return ast.Module([], [])
    indented = lines[first - 1][:1].isspace()
    for stop in range(last, min(last + 100, len(lines)) + 1):  # the last statement may be longer
        text = "".join(lines[first - 1 : stop])
        try:
            tree = ast.parse("if 1:\n" + text if indented else text)
        except SyntaxError:
            continue
        return ast.increment_lineno(tree, first - 1 - indented)
    return ast.Module([], [])


def _jumps(body: list[ast.stmt], in_loop: bool) -> Iterator[ast.stmt]:
    """Yield the statements that leave a block; with ``in_loop``, ``continue`` only ends an iteration."""
    for statement in body:
        match statement:
            case ast.Return() | ast.Break():
                yield statement
            case ast.Continue() if not in_loop:
                yield statement
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case ast.For() | ast.While():
                yield from (jump for jump in _jumps(statement.body, True) if isinstance(jump, ast.Return))
                yield from _jumps(statement.orelse, in_loop)
            case _:
                yield from _jumps(_nested(statement), in_loop)


def _nested(statement: ast.stmt) -> list[ast.stmt]:
    """Yield the statements directly inside a compound statement other than a loop."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            found.extend(child.body)
    return found
