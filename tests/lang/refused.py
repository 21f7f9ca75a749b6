"""Helpers for the tests of refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw

from .kernels import trace

DECLARED = {"n": int, "alpha": tw.f32}


def refusal(kernel: Callable[..., Any]) -> tw.TraceError:
    """Return the error of a kernel over a matrix A, an integer n and a number alpha."""
    with pytest.raises(tw.TraceError) as caught:
        trace(kernel, DECLARED)
    return caught.value


def cases(module: dict[str, Any]) -> list[tuple[Callable[..., Any], str]]:
    """Return the kernels of a module, each with the text that its comment names for the caret."""
    found = []
    for value in module.values():
        code = getattr(value, "__code__", None)
        if code is not None and code.co_varnames[:3] == ("A", "n", "alpha"):
            [line] = [text for text in inspect.getsource(value).splitlines() if "  # " in text]
            found.append((value, line.split("  # ")[1].strip()))
    return found
