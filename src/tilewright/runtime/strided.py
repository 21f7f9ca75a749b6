"""Other extents and strides for an array of the caller's, in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.frameworks import ArrayInfo, Family, located


@dataclass(frozen=True, eq=False)
class Strided:
    """What stands for an array in calls of kernels, seen with other extents and strides.

    Args:
        array: the array, of any framework.
        info: what it is seen as; it begins where the array begins.
    """

    array: Any
    info: ArrayInfo


def family(of: Callable[[Any], Family]) -> Family:
    """How they are read: as they say, and on the stream that their arrays' framework uses.

    Args:
        of: the family of any array.
    """

    def locate(given: Strided, stream: int) -> tuple[Hashable, int]:
        return located(given.info)

    return Family(
        lambda given, stream: given.info,
        locate,
        lambda given: of(given.array).watch(given.array),
        lambda given, index: of(given.array).stream(given.array, index),
        one_stream=False,
    )
