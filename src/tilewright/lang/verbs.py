"""Calls of the language: what is wrong with one is said at the author's line."""

from __future__ import annotations

from tilewright.calls import Calls
from tilewright.errors import SignatureError, TraceError
from tilewright.lang.source import here
from tilewright.lang.tracer import current


def _refusal(message: str) -> TraceError:
    return TraceError(message, here())


class _MisfitError(TraceError, SignatureError):
    """A call whose arguments a verb does not have, at the author's line."""


def _misfit(message: str) -> _MisfitError:
    return _MisfitError(message, here())


verb = Calls(_refusal, before=current, misfit=_misfit)
"""For what records something: it belongs inside a kernel."""

inline = Calls(_refusal, misfit=_misfit)
"""For what computes with integers and maps: it may be used outside of kernels too."""
