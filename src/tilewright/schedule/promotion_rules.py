"""The rules of promoted sums, and of their scales: a sum is multiplied once, by what its products share."""

from __future__ import annotations

from tilewright.schedule.facts import Reasons
from tilewright.schedule.form import has_slices
from tilewright.schedule.plans import slices
from tilewright.schedule.resources import ScheduleOnMachine


def scaled(case: ScheduleOnMachine) -> Reasons:
    """What is added up before it is multiplied lies within one run of places that share a scale."""
    every, (m, n, depth) = case.form.scaled_every, case.tile
    if not every:
        return
    schedule, product = case.schedule, case.form.sum
    if every % depth:
        near = next(k for k in range(min(every, depth), 0, -1) if every % k == 0 and k % case.units[2] == 0)
        text = f"tiles of {depth} along K, and each {every} places have a scale in common"
        yield "tile", text, f"tile={(m, n, near)}, promote={every // near}", product
        return
    most = every // depth
    if not schedule.promote or most % schedule.promote:
        count = schedule.promote * depth or "all"
        text = f"sums of {count} products, of which each {every} have a scale in common"
        yield "promote", text, f"promote={most}", product
    elif schedule.promote > 1 and schedule.split_k == "stream":
        text = f'split_k="stream" of sums of {schedule.promote} tiles, which shares of the steps would cut'
        yield "split_k", text, 'split_k="auto"', product


def sliced(case: ScheduleOnMachine) -> Reasons:
    """Sums that are promoted slice by slice are stored so: those of a row are never in one fragment."""
    schedule, columns = case.schedule, case.mma.tile[1]
    count = slices(case.mma, schedule.promote)
    if count == 1:
        return
    buffered = schedule.stores_by_groups and schedule.epilogue != "direct" and schedule.split_k == 1
    if buffered and has_slices(case.form) and columns // count % case.leaving.columns == 0:
        return
    text = (
        f"{count} slices of {columns // count} columns, the atom's, which are promoted one after the other "
        "and must be stored so"
    )
    near = f'an atom of {columns} columns, or promote=2, or roles, epilogue="staged" and split_k=1'
    yield "atom", text, near, case.form.sum
