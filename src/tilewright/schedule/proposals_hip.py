"""Proposals for AMD GPUs: matrix cores if they multiply the operands, with the next tile in registers.

Nothing was measured: the rules follow the machine's limits and rates.  In shared memory 16 bytes along K are
contiguous, so that a lane reads them at once.  An operand that is contiguous along its rows is transposed in
registers on its way there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.ir.mma import MmaAtom
from tilewright.schedule.family_estimates import AMD
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load
from tilewright.schedule.question import BAND, Candidate, Question, widened
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma
from tilewright.targets.matrix_cores import nearest

DEPTH_BYTES = 64
"""Bytes of a tile along K."""

WORD_BYTES = 16
"""Bytes that a lane reads at once."""

BESIDE = 2
"""Resident blocks that a multiprocessor should have room for."""

LEAST_WARPS = 4
"""Least number of warps of a block: one for each SIMD of a multiprocessor."""

MOST_SUMS = 64
"""Most sums of 32 bits in a lane; larger tiles have more warps."""

STAGED = ((False, 2), (True, 2), (True, 1))
"""Whether a tile is stored in slices, and the number of buffers; fewer barriers come first."""

SIDES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (32, 32))
"""Rows and columns of tiles, in order of preference between equal estimates."""


def candidates(question: Question) -> Iterator[Candidate]:
    """Tiles of several sizes in the order of their estimates, the legal ones first."""
    asked = question.form, question.classes, question.arch
    found: dict[Schedule, Candidate] = {}
    for rows, columns in SIDES:
        made = widened(_schedule(question, rows, columns), question)
        rule = f"a tile of {made.tile[0]} x {made.tile[1]}, the next one in registers"
        for interleaved, buffers in STAGED:
            staged = replace(made, epilogue="staged", interleaved=interleaved, buffers=buffers)
            if BESIDE * ScheduleOnMachine(staged, *asked).shared_bytes <= question.arch.shared_bytes:
                made, rule = staged, f"{rule}, stored in whole rows"
                break
        found.setdefault(made, Candidate(made, AMD.time_us(Load(question, made)), rule))
    ranked = sorted(found.values(), key=lambda one: one.estimate)
    legal = [one for one in ranked if not reasons(one.schedule, *asked)]
    yield from legal
    yield from (one for one in ranked if one not in legal)


def _schedule(question: Question, rows: int, columns: int) -> Schedule:
    """The schedule with a tile of about this number of rows and columns."""
    dtype, sums = question.dtype, question.form.sum.dtype
    atom = nearest(dtype, sums, question.arch.features)
    if atom is None or question.form.b.view.dtype != dtype:  # no matrix cores: a lane multiplies 4 x 4
        each = (4, 4) if dtype.bytes <= 4 else (2, 2)
        atom = fma(dtype, sums, lanes=(question.arch.lanes // 8, 8), each=each)
        tile = max(rows, 2 * atom.shape[0]), max(columns, 2 * atom.shape[1]), 16
        made = Schedule(atom, tile, _warps(atom, tile), group_m=BAND, staging="registers")
        return replace(made, staging="fragments", stages=3) if question.decodes else made
    m, n, k = atom.shape
    tile = (max(rows, m), max(columns, n), max(DEPTH_BYTES // dtype.bytes, k))
    made = Schedule(atom, tile, _warps(atom, tile), group_m=BAND, staging="registers")
    if any(factor.dtype.is_packed for factor in question.form.factors):
        return replace(made, staging="fragments", stages=3)
    (a, dealt_a, turned_a), (b, dealt_b, turned_b) = (_placed(question, made, side) for side in (0, 1))
    return replace(made, k1=(a, b), dealt=(dealt_a, dealt_b), turned=turned_a + turned_b)


def _warps(atom: MmaAtom, tile: tuple[int, int, int]) -> tuple[int, int]:
    """Warps along rows and columns: one for each SIMD, or more, so that sums leave registers free."""
    along, most = [1, 1], MOST_SUMS * 4 // max(atom.c_dtype.bytes, 4)
    while prod(along) < LEAST_WARPS or tile[0] * tile[1] > most * atom.lanes * prod(along):
        rows, columns = (tile[at] // (along[at] * atom.shape[at]) for at in (0, 1))
        if max(rows, columns) < 2:
            break
        along[int(tile[0] * along[1] <= tile[1] * along[0] if rows > 1 and columns > 1 else rows < 2)] *= 2
    return along[0], along[1]


def _placed(question: Question, schedule: Schedule, side: int) -> tuple[int, tuple[int, int], str]:
    """K1 of an operand, its entry of `dealt`, and its letter if it is transposed in registers."""
    word = max(WORD_BYTES // question.dtype.bytes, 1)
    rows, depth, threads = schedule.tile[side], schedule.tile[2], schedule.mma.threads
    major, each = question.majors[side], rows * depth // threads
    if major == "k":
        return word, (0, 0), ""
    if major == "" or each < 2 or word == 1:
        return 0, (0, 0), ""
    read = WORD_BYTES // (question.form.a, question.form.b)[side].dtype.bytes
    along_rows = min(read, each // 2)  # a write has at least two neighbours along K
    return word, (rows // along_rows, depth * along_rows // each), "ab"[side]
