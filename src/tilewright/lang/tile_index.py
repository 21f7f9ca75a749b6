"""The tiles of a tensor, indexed by their position in its partition: all, or one row or column of them."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from tilewright.errors import TraceError
from tilewright.ir.types import Value
from tilewright.lang.scalars import Index, as_tuple, spelled_slice, unwrap, wrap
from tilewright.lang.source import here
from tilewright.symbolic.expr import ceil_div


class Tileable(Protocol):
    """Protocol of a tensor that can be cut into tiles."""

    @property
    def value(self) -> Value:
        """The tensor's value in the IR."""

    def tile(self, shape: Any, at: Any) -> Any:
        """Return one tile of the tensor."""


class Tiles:
    """The partition of a tensor into tiles of one shape; see `Tensor.tiles`.

    Args:
        source: the tensor, in global or shared memory.
        extents: extents of a tile; None takes the whole dimension.
        at: for each dimension, the index that is already chosen, or None.
    """

    def __init__(
        self, source: Tileable, extents: tuple[int | None, ...], at: tuple[Index | None, ...] | None = None
    ) -> None:
        self.source = source
        self.extents = extents
        self.at = at or (None,) * len(extents)

    @property
    def free(self) -> tuple[int, ...]:
        """The dimensions without an index."""
        return tuple(
            dim
            for dim, (extent, at) in enumerate(zip(self.extents, self.at, strict=True))
            if extent is not None and at is None
        )

    @property
    def shape(self) -> tuple[Any, ...]:
        """Number of tiles along each free dimension; the last ones may reach past the edge."""
        return tuple(
            wrap(ceil_div(self.source.value.tensor.shape[d], self.extents[d] or 1)) for d in self.free
        )

    def __getitem__(self, index: Any) -> Any:
        """Return a tile, or the remaining tiles if a dimension is kept with ``:``, ``...`` or omitted."""
        free, parts = self.free, list(as_tuple(index))
        if any(part is Ellipsis for part in parts):
            where = next(at for at, part in enumerate(parts) if part is Ellipsis)
            parts[where : where + 1] = [slice(None)] * (len(free) - len(parts) + 1)
        if len(parts) > len(free):
            raise TraceError(f"{len(parts)} indices for tiles along {len(free)} dimensions", here())
        chosen = list(self.at)
        for dim, part in zip(free, parts, strict=False):
            if isinstance(part, slice):
                if part != slice(None):
                    raise TraceError(
                        f"tiles {spelled_slice(part)} of dimension {dim}: an index or ':' chooses tiles; "
                        "nearest legal choice: slice the tensor before it is cut into tiles",
                        here(),
                    )
                continue
            unwrap(part)
            chosen[dim] = part
        made = Tiles(self.source, self.extents, tuple(chosen))
        return made if made.free else self.source.tile(self.extents, made.at)

    def __call__(self, *index: object) -> NoReturn:
        """Refuse a call: tiles are indexed, not called.

        Raises:
            TraceError: always.
        """
        spelled = ", ".join(map(str, index))
        raise TraceError(
            f"tiles({spelled}): tiles are indexed; nearest legal choice: tiles[{spelled}]", here()
        )

    def __iter__(self) -> NoReturn:
        raise TraceError(
            "tiles are not iterated over: write `for i in tw.range(tiles.shape[0])` and index them", here()
        )

    def __repr__(self) -> str:
        return f"tiles {self.extents} at {self.at} of {self.source!r}"
