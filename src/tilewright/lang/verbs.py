"""Decorators of the language's functions: errors in a call are raised at the author's line."""

from __future__ import annotations

from tilewright.calls import Calls
from tilewright.errors import SignatureError, TraceError
from tilewright.lang.source import here
from tilewright.lang.tracer import current


def _refusal(message: str) -> TraceError:
    return TraceError(message, here())


class _MisfitError(TraceError, SignatureError):
    """The error of a call with unknown arguments, with the author's line."""


def _misfit(message: str) -> _MisfitError:
    return _MisfitError(message, here())


verb = Calls(_refusal, before=current, misfit=_misfit)
"""Decorator of functions that record operations, and so are legal only inside a kernel."""

inline = Calls(_refusal, misfit=_misfit)
"""Decorator of functions on integers and maps, which are also legal outside of kernels."""
