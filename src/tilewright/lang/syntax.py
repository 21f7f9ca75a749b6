"""Statements that leave a block early, found in the author's source where it can be read."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from tilewright.errors import Frame, Location
from tilewright.lang.source import author_frame

_JUMPS = {ast.Return: "return", ast.Break: "break", ast.Continue: "continue"}


def leaving(code: CodeType, location: Location) -> tuple[str, Location] | None:
    """What leaves the ``with`` or ``for`` statement whose call is at ``location``, and where; or None.

    ``continue`` does not leave a loop.  None, too, where the source cannot be read.
    """
    tree, indent = _tree(code)
    at = (location.frame.line, location.frame.column - indent)
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            heads: list[ast.expr] = [node.iter]
        elif isinstance(node, ast.With):
            heads = [item.context_expr for item in node.items]
        else:
            continue
        if any((head.lineno, head.col_offset) == at for head in heads):
            jump = next(_jumps(node.body, isinstance(node, ast.For)), None)
            return None if jump is None else (_JUMPS[type(jump)], _place(jump, indent, location))
    return None


def code_here() -> CodeType:
    """The code object of the author's innermost frame."""
    return author_frame().f_code


def _place(jump: ast.stmt, indent: int, location: Location) -> Location:
    frame, end = location.frame, (jump.end_col_offset or 0) + indent
    place = Frame(frame.file, jump.lineno, jump.col_offset + indent, end, frame.function)
    return Location((place, *location.frames[1:]))


@lru_cache(maxsize=256)
def _tree(code: CodeType) -> tuple[ast.AST, int]:
    """The syntax tree of a function, and by how much its source is indented."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return ast.Module([], []), 0
    ast.increment_lineno(tree, max(first - 1, 0))
    return tree, len(lines[0]) - len(lines[0].lstrip())


def _jumps(body: list[ast.stmt], in_loop: bool) -> Iterator[ast.stmt]:
    """The statements that leave a block; ``in_loop``: a loop around them takes up ``continue``."""
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
    """The statements directly inside a compound statement that is no loop."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            found.extend(child.body)
    return found
