"""A schedule as text that is data: read back without running anything."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from tilewright.errors import ParseError, TilewrightError
from tilewright.ir.mma import MmaAtom
from tilewright.schedule.schedule import Schedule
from tilewright.targets import atoms

MAKERS: dict[str, Callable[..., MmaAtom]] = {"wgmma": atoms.wgmma, "fma": atoms.fma}
"""The functions that make atoms."""


@functools.cache
def schedule_format() -> str:
    """Hash of the meaning of a schedule's text: the fields, and the defaults that the text leaves out."""
    defaults = {field.name: field.default for field in fields(Schedule)}
    meaning = " ".join(name if value is MISSING else f"{name}={value!r}" for name, value in defaults.items())
    return hashlib.sha256(meaning.encode()).hexdigest()[:12]


def read_schedule(text: str) -> Schedule:
    """The schedule whose `repr` a text is.

    Only `tw.Schedule`, the atoms of `tw.atoms` and literals have a meaning here, so that a file from anywhere
    can be read.

    Raises:
        ParseError: the text is something else, or a value is none that a schedule has.

    Example:
        >>> written = 'tw.Schedule(tw.atoms.wgmma("bf16", 256), (128, 256, 64), stages=4, staging="tma")'
        >>> repr(read_schedule(written)) == written
        True
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "tw.Schedule":
            raise ValueError("no call of tw.Schedule")
        given = [_value(argument) for argument in call.args]
        named = {keyword.arg or "**": _value(keyword.value) for keyword in call.keywords}
        return Schedule(*given, **named)
    except (TilewrightError, SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        raise ParseError(f"{shown!r} is no schedule: {error}") from None


def _value(node: ast.expr) -> Any:
    return _atom(node) if isinstance(node, ast.Attribute | ast.Call) else ast.literal_eval(node)


def _atom(node: ast.expr) -> MmaAtom:
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node).removeprefix("tw.atoms.")
    if isinstance(node, ast.Call):
        if name not in MAKERS:
            raise ValueError(f"unknown atom {name}; known: {', '.join(MAKERS)} and the constants of tw.atoms")
        named = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in node.keywords}
        return MAKERS[name](*map(ast.literal_eval, node.args), **named)
    found = getattr(atoms, name, None)
    if not isinstance(found, MmaAtom):
        raise ValueError(f"unknown atom {name}")
    return found
