"""What bulk copies ask of arrays that they load or store, in closed form."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import BULK
from tilewright.dataflow.nodes import Node, Store
from tilewright.ir.bulk_legality import TMA_DTYPES
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.resources import Case, Side
from tilewright.schedule.stages import ROW_BYTES

Reasons = Iterator[tuple[str, str, str, Node | Store]]


def operand_rules(case: Case) -> Reasons:
    """Operands that bulk copies load."""
    if not case.is_bulk:
        return
    for side in case.sides:
        for text, nearest in _array(side.factor.name, side.spec):
            yield "staging", text, nearest or 'staging="cp_async"', side.factor.part
        for label, extent in _box(case, side):
            if extent > BULK.extent:
                text = (
                    f"a box of {extent} elements of {side.factor.name} along {label}; bulk copies take at "
                    f"most {BULK.extent}"
                )
                yield "tile", text, f"{BULK.extent} along {label}", side.factor.part


def _box(case: Case, side: Side) -> Iterator[tuple[str, int]]:
    """How far a box of an operand reaches along the dimension across its rows of 128 bytes."""
    depth = case.tile[2]
    if side.along_rows:
        yield side.factor.depth.name, depth
    else:
        one_panel = depth // side.width <= 1
        yield side.factor.row.name, side.rows * (max(side.sharing, 1) if one_panel else 1)


def _array(name: str, spec: TensorSpec) -> Iterator[tuple[str, str]]:
    """What bulk copies ask of an array, whichever way they go: what is wrong, and what else to do."""
    unit = max(BULK.unit_bytes // spec.dtype.bytes, 1)
    if spec.dtype.bytes > 1 and spec.dtype.name not in TMA_DTYPES:
        yield f"{name} is {spec.dtype}, which bulk copies do not move", ""
    if not 2 <= spec.rank <= BULK.rank:
        yield f"{name} has {spec.rank} dimensions; bulk copies move boxes of 2 to {BULK.rank}", ""
    if spec.align < BULK.unit_bytes:
        text = f"{name} begins at a multiple of {spec.align} bytes; bulk copies need {BULK.unit_bytes}"
        yield text, ""
    if spec.unit_dim is None:
        yield f"{name} is contiguous along none of its dimensions", ""
        return
    for dim, divisor in enumerate(spec.stride_divisors):
        if dim != spec.unit_dim and divisor % unit:
            text = (
                f"the stride of dimension {dim} of {name} is a multiple of {divisor} {spec.dtype}, not of "
                f"{BULK.unit_bytes} bytes, as bulk copies need"
            )
            yield text, f'staging="cp_async", or rows of {name} padded to a multiple of {unit}'
    if spec.signed:
        yield f"strides of {name} may be negative; bulk copies step upwards alone", ""


def slice_rules(case: Case) -> Reasons:
    """A staged epilogue goes through a tile in whole slices of 128 bytes of columns."""
    if case.schedule.epilogue != "staged":
        return
    store, (m, n, k) = case.form.stores[0], case.tile
    columns = ROW_BYTES // store.operand.dtype.bytes
    if n % columns:
        near = (m, -(-n // columns) * columns, k)
        kind = store.operand.dtype
        text = f"{n} columns of a tile are no multiple of {columns} {kind}, the 128 bytes of a slice"
        yield "epilogue", text, f'tile={near}, or epilogue="direct"', store


def epilogue_rules(case: Case) -> Reasons:
    """Results that bulk copies store, slice by slice."""
    schedule = case.schedule
    if schedule.epilogue != "staged":
        return
    stores = case.form.stores
    if len(stores) > 1:
        text = f"{len(stores)} results; a staged epilogue stores one"
        yield "epilogue", text, 'epilogue="direct"', stores[1]
    store = stores[0]
    name, spec = store.operand.name, case.specs[store.operand.name]
    columns = ROW_BYTES // spec.dtype.bytes
    if case.schedule.warps[1] > 1 and columns < case.tile[1]:
        text = (
            f"{case.schedule.warps[1]} warps side by side; a slice of {columns} columns is one warp's alone"
        )
        yield "epilogue", text, f'warps={(schedule.warps[0], 1)}, or epilogue="direct"', store
    if case.mma.tile[0] > BULK.extent:
        text = f"slices of {case.mma.tile[0]} rows; bulk copies store at most {BULK.extent}"
        yield "epilogue", text, f"{BULK.extent} rows of each group", store
    for text, _ in _array(name, spec):
        yield "epilogue", text, 'epilogue="direct"', store
    if spec.unit_dim is None:
        return
    if store.at[spec.unit_dim] != case.form.n:
        text = (
            f"{name} is contiguous along {store.at[spec.unit_dim].name}; slices lie along {case.form.n.name}"
        )
        yield "epilogue", text, 'epilogue="direct"', store
    unit, extent = BULK.unit_bytes // spec.dtype.bytes, spec.extent_divisors[spec.unit_dim]
    if extent % unit:
        text = (
            f"rows of {name} are a multiple of {extent} {spec.dtype}, not of {BULK.unit_bytes} bytes, which "
            "bulk copies store as a whole: they would overwrite what follows each row"
        )
        yield "epilogue", text, 'epilogue="direct"', store
