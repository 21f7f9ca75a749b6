"""What rows or columns of a matrix are reduced to, in float64, and how far off a right result may be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

EXPONENTIALS = 2.0**-18
"""The errors of exponentials and of the logarithm themselves, in f32, beside those of their sums."""


class Reduced(NamedTuple):
    """What a reduction is, and how far off each number of a right result may be."""

    wanted: Doubles
    room: Doubles


def reductions(elements: Doubles, near: Doubles, axis: int, unit: float) -> dict[str, Reduced]:
    """The reductions of `tw.reduced_matmul`, by name.

    Args:
        elements: what is reduced.
        near: how far off each of them may be.
        axis: along which.
        unit: of rounding, in what sums are computed.
    """
    high, steps = elements.max(axis, keepdims=True), 4 * elements.shape[axis] * unit
    logarithm = np.log(np.exp(elements - high).sum(axis)) + high.squeeze(axis)
    wanted = {
        "sum": (elements.sum(axis), near.sum(axis) + steps * np.abs(elements).sum(axis)),
        "max": (elements.max(axis), near.max(axis)),
        "min": (elements.min(axis), near.max(axis)),
        "logsumexp": (logarithm, 2 * near.max(axis) + steps + EXPONENTIALS),
    }
    return {name: Reduced(exact, room + unit * np.abs(exact)) for name, (exact, room) in wanted.items()}
