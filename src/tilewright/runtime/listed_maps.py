"""The tensor maps of the arrays of a list: encoded when the list first lies where it does, and kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.arch import BULK
from tilewright.ir.bulk_legality import in_plain_numbers
from tilewright.ir.copies import MAP_WORDS
from tilewright.ir.kernel import TensorMap
from tilewright.namespaces import part
from tilewright.runtime.listed import ArrayList, Integers, ListShape
from tilewright.runtime.recent import Recent

ENCODED = "tilewright.runtime.tensor_maps:encoded"
"""What encodes a map; loaded when the first is encoded."""

UNIT_BYTES = BULK.unit_bytes
"""What strides are multiples of."""

KEPT = 16
"""For how many sets of addresses the maps of a list are remembered, together."""

KEPT_MAPS = 4096
"""How many maps are remembered one by one."""


class ListMaps:
    """The maps of arrays of these extents and strides, wherever they lie.

    Args:
        shape: what the arrays of the list are.
    """

    def __init__(self, shape: ListShape) -> None:
        unit = shape.spec.unit_dim
        assert unit is not None, "the rules of bulk copies ask for one"
        self._shape, self._unit, self._steps = shape, unit - 1, shape.steps.copy()
        self._steps[:, self._unit] = 1
        self._kept: Recent[tuple[TensorMap, bool, bytes], Integers] = Recent(KEPT)

    def of(self, list_: ArrayList, form: TensorMap, *, encoded: bool) -> Integers:
        """The maps, as rows of integers; zeros for arrays without elements, which nobody copies.

        Args:
            list_: where the arrays lie.
            form: what the kernel asks of each map.
            encoded: whether a driver encodes them; in plain numbers, which name places in a buffer, if not.
        """
        places = list_.pointers if encoded else list_.starts
        key = (form, encoded, places.tobytes())
        found = self._kept.get(key)
        if found is None:
            found = self._made(places, form, encoded)
            self._kept.keep(key, found)
        return found

    def _made(self, places: Integers, form: TensorMap, encoded: bool) -> Integers:
        infos, there = self._shape.infos, self._shape.there
        made = np.zeros((len(infos), MAP_WORDS), np.int64)
        for at in np.flatnonzero(there):
            shape, steps, place = infos[at].shape, self._steps[at].tolist(), int(places[at])
            if not encoded:
                made[at] = in_plain_numbers(place, shape, steps, form.box)
                continue
            device = infos[at].device
            assert not isinstance(device, str), "drivers encode maps of what lies on their devices"
            words = _encoded(form, shape, self._stepped(shape, steps), place, device[1])
            made[at] = np.frombuffer(words, np.int64)
        return made

    def _stepped(self, shape: tuple[int, ...], steps: list[int]) -> tuple[int, ...]:
        """The strides as drivers take them: what is not stepped along has that of whole rows."""
        per_unit = UNIT_BYTES // self._shape.dtype.bytes
        whole = -(-shape[self._unit] // per_unit) * per_unit
        return tuple(
            step if extent > 1 or dim == self._unit else whole
            for dim, (extent, step) in enumerate(zip(shape, steps, strict=True))
        )


_MAPS: Recent[Any, bytes] = Recent(KEPT_MAPS)


def _encoded(
    form: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int, index: int
) -> bytes:
    """The map of one array, whichever list it is of: some stay where they are while others vary."""
    key = (form, shape, strides, address, index)
    found = _MAPS.get(key)
    if found is None:
        found = part(ENCODED)(*key)
        _MAPS.keep(key, found)
    return found
