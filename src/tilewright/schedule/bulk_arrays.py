"""What bulk copies ask of an array that they load or store, in closed form."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import BULK
from tilewright.ir.bulk_legality import TMA_DTYPES
from tilewright.lang.specs import TensorSpec


def against_array(name: str, spec: TensorSpec) -> Iterator[tuple[str, str]]:
    """Why bulk copies do not move boxes of an array, whichever way they go.

    Args:
        name: of the array.
        spec: its class.

    Yields:
        A sentence with the value and the limit, and how the array could be changed; empty if nobody can.
    """
    unit = max(BULK.unit_bytes // spec.dtype.bytes, 1)
    if spec.dtype.is_packed:
        yield f"{name} is packed {spec.dtype}, which bulk copies move as bytes of u8 alone", ""
    if spec.dtype.bytes > 1 and spec.dtype.name not in TMA_DTYPES:
        yield f"{name} is {spec.dtype}, which bulk copies do not move", ""
    if not 2 <= spec.rank <= BULK.rank:
        yield f"{name} has {spec.rank} dimensions; bulk copies move boxes of 2 to {BULK.rank}", ""
    if spec.align < BULK.unit_bytes:
        yield f"{name} begins at a multiple of {spec.align} bytes; bulk copies need {BULK.unit_bytes}", ""
    if spec.unit_dim is None:
        yield f"{name} is contiguous along none of its dimensions", ""
        return
    for dim, divisor in enumerate(spec.stride_divisors):
        if dim != spec.unit_dim and divisor % unit:
            text = (
                f"the stride of dimension {dim} of {name} is a multiple of {divisor} {spec.dtype}, not of "
                f"{BULK.unit_bytes} bytes, as bulk copies need"
            )
            yield text, f"rows of {name} padded to a multiple of {unit}"
    if spec.signed:
        yield f"strides of {name} may be negative; bulk copies step upwards alone", ""


def against_store(name: str, spec: TensorSpec) -> Iterator[str]:
    """Why bulk copies do not store boxes of an array, which they write in whole units of 16 bytes."""
    for text, _ in against_array(name, spec):
        yield text
    if spec.unit_dim is None:
        return
    unit, extent = max(BULK.unit_bytes // spec.dtype.bytes, 1), spec.extent_divisors[spec.unit_dim]
    if extent % unit:
        yield (
            f"rows of {name} are a multiple of {extent} {spec.dtype}, not of {BULK.unit_bytes} bytes, which "
            "bulk copies store as a whole: they would overwrite what follows each row"
        )
