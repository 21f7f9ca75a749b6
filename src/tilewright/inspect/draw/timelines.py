"""Pictures of timelines: a row per agent and per stage of shared memory, logical steps from left to right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.inspect.draw.grids import MARGIN, TEXT, Swatch, framed, top_below
from tilewright.inspect.draw.layouts import spelled
from tilewright.inspect.draw.picture import (
    FAINT,
    HUES,
    LINE,
    MONO_WIDTH,
    PAPER,
    RULE,
    BoxMark,
    Label,
    Line,
    Mark,
    Picture,
    TextSpan,
    mixed,
)
from tilewright.inspect.timeline import Event, Timeline
from tilewright.targets.reference.rank_times import Costs, overlap_of
from tilewright.targets.reference.ranks import RanksReport
from tilewright.targets.reference.recorder import Touch

MOST_STEPS = 200
WIDE_STEP = 15.0
ROOM = 1300.0
ROW, GAP = 20.0, 4.0
SMALL = 9

COLOURS = {
    "load": mixed(HUES[0], PAPER, 0.55),
    "mma": mixed(HUES[1], PAPER, 0.65),
    "store": mixed(HUES[2], PAPER, 0.5),
    "copy": mixed(HUES[3], PAPER, 0.6),
    "arithmetic": mixed(HUES[4], PAPER, 0.6),
    "wait": "#eaeef2",
    "full": mixed(HUES[0], PAPER, 0.15),
}
LETTERS = dict(zip(COLOURS, "LMSCA.-", strict=True))
WORDS = {name: name for name in COLOURS} | {
    "mma": "multiply",
    "copy": "copy by threads",
    "full": "full, to be read",
}
ARRIVAL = HUES[6]


@dataclass(frozen=True)
class TimelineBar:
    """A bar in a row, from one step to another.

    Args:
        kind: the key of its colour.
        start: its first step.
        end: the step after its last.
        text: its possible texts, the longest first; the first that fits is shown.
        note: its tooltip.
    """

    kind: str
    start: int
    end: int
    text: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class TimelineRow:
    """One agent or one stage: its bars, and the steps of its arrivals."""

    name: str
    bars: tuple[TimelineBar, ...]
    arrivals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slot:
    """A part of shared memory that copies fill as a whole: a stage of a ring, or a tile."""

    name: str
    touch: Touch


@layouts
def draw_timeline(timeline: Timeline, first: int = 0, steps: int = MOST_STEPS) -> Picture:
    """Draw the work of each agent of a block, and the fills and reads of each stage of shared memory.

    Warps with equal events share a row.  The blocks of a cluster are drawn one below the other.

    Args:
        timeline: the timeline of a recorded run.
        first: the first step to show.
        steps: the number of steps to show, at most 200.

    Raises:
        LayoutError: too many steps, or a first step that does not exist.

    Example:
        >>> import tilewright as tw
        >>> from tilewright.inspect.subject import library_gemm
        >>> said = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 64), (2, 2), stages=4, staging="cp_async")
        >>> gemm = library_gemm("f16", "64x64x128", "nt", schedule=said)
        >>> print(tw.draw.draw_timeline(gemm.timeline(), steps=8).text)
        Timeline of gemm, block (0, 0)
        logical steps 0 to 8 of 20, from what waits for what; no measured times
        ...
        warps:
                  warps 0-3 |LLLLLL..|
        in the background:
        asynchronous copies | LLLLLL |
        ...
    """
    if not 1 <= steps <= MOST_STEPS:
        nearest = min(max(steps, 1), MOST_STEPS)
        raise LayoutError(f"{steps} steps cannot be shown", nearest)
    if not 0 <= first < max(timeline.steps, 1):
        nearest = min(max(first, 0), max(timeline.steps - 1, 0))
        raise LayoutError(f"step {first} of {timeline.steps} steps", nearest)
    last = min(first + steps, timeline.steps)
    sections: list[tuple[str, list[TimelineRow]]] = []
    places = [f"({', '.join(map(str, block))})" for block in timeline.blocks]
    for rank, place in enumerate(places):
        whose = f"block {place}: " if len(timeline.blocks) > 1 else ""
        sections += [
            (f"{whose}warps", warp_rows(timeline, rank)),
            (f"{whose}in the background", background_rows(timeline, rank)),
            (f"{whose}shared memory", slot_rows(timeline, rank)),
        ]
    what = "block" if len(timeline.blocks) == 1 else "the cluster of blocks"
    title = f"Timeline of {timeline.kernel}, {what} {' '.join(places)}"
    lengths = (f"{name.replace('_', ' ')} {steps}" for name, steps in vars(timeline.lengths).items())
    about = [
        f"logical steps {first} to {last} of {timeline.steps}, from what waits for what; no measured times",
        f"steps of each: {', '.join(lengths)}",
    ]
    shown = []
    for name, rows in sections:
        cut = []
        for row in rows:
            bars = tuple(
                replace(bar, start=max(bar.start, first), end=min(bar.end, last))
                for bar in row.bars
                if bar.end > first and bar.start < last
            )
            arrivals = tuple(at for at in row.arrivals if first <= at <= last)
            cut.append(TimelineRow(row.name, bars, arrivals))
        if rows:
            shown.append((name, cut))
    return _picture(title, about, shown, first, last)


RANK_WORDS = {"load": "copy to another rank", "mma": "tile", "wait": "wait for a shard"}
RANK_STEPS = 120
"""Most steps of a timeline of ranks."""


@layouts
def draw_ranks(report: RanksReport, costs: Costs | None = None) -> Picture:
    """Draw when the ranks of a run copy, multiply and wait: a row per copy engine and per running block.

    The times are simulated: the run says what waits for what, and ``costs`` how long copies and tiles take.

    Args:
        report: the report of `tw.testing.ranks`.
        costs: rates of links, multiplies and memory; default: those of `Costs`.

    Raises:
        LaunchError: blocks wait for ever, because too few of them run at once.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> shard, inbox = np.ones(4096, np.float32), np.zeros(4096, np.float32)
        >>> report = tw.testing.ranks([[tw.testing.send(shard, inbox)], []])
        >>> print(tw.draw.draw_ranks(report, tw.draw.Costs(link_gbs=1.6, latency_us=0)).text)
        Timeline of 2 ranks
        simulated: 10.24 µs in all; the busiest rank copies for 10.24 µs and multiplies for 0 µs
        ...
    """
    costs = costs or Costs()
    spans = report.log.times(costs)
    found = overlap_of(spans)
    least = max(found["all"], 1e-9) / RANK_STEPS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= least * (1 - 1e-9))
    kinds = {"copy": "load", "tile": "mma", "wait": "wait"}
    rows: dict[tuple[int, int], list[TimelineBar]] = {}
    for span in spans:
        start, end = round(span.start / step), round(span.end / step)
        lasts = f"{span.name}: {span.kind} from {span.start:.3f} to {span.end:.3f} µs"
        bar = TimelineBar(kinds[span.kind], start, max(end, start + 1), (), lasts)
        rows.setdefault((span.rank, span.lane), []).append(bar)
    sections = [
        (
            f"rank {rank}",
            [
                TimelineRow("copies" if lane < 0 else f"block {lane}", tuple(bars))
                for (own, lane), bars in sorted(rows.items())
                if own == rank
            ],
        )
        for rank in range(report.ranks)
    ]
    last = max((bar.end for bars in rows.values() for bar in bars), default=1)
    busiest = f"copies for {found['copies']:.4g} µs and multiplies for {found['tiles']:.4g} µs"
    about = [
        f"simulated: {found['all']:.4g} µs in all; the busiest rank {busiest}",
        f"costs: {costs}; one step is {step:g} µs",
    ]
    return _picture(f"Timeline of {report.ranks} ranks", about, sections, 0, last, RANK_WORDS)


# ---------------------------------------------------------------- rows


def warp_rows(timeline: Timeline, block: int = 0) -> list[TimelineRow]:
    """Return a row for each group of warps of a block with equal events."""
    by_warp: dict[int, list[Event]] = {warp: [] for warp in range(timeline.warps)}
    for event in timeline.events:
        if event.agent.startswith("warp ") and event.block == block:
            by_warp[event.warp].append(event)
    groups: dict[object, list[int]] = {}
    for warp, events in by_warp.items():
        key = tuple((e.op, e.start, e.end, e.barrier, e.stage, e.phase, e.touches) for e in events)
        groups.setdefault(key, []).append(warp)
    slots = slots_of(timeline, block)
    rows = []
    for warps in groups.values():
        events = by_warp[warps[0]]
        bars = tuple(_bar(event, slots) for event in events if event.end > event.start)
        arrivals = tuple(event.start for event in events if event.kind == "arrive")
        ops, barriers = {event.op for event in events}, {"barrier", "role_barrier", "cluster_barrier"}
        loads, multiplies = bool(ops & {"tma_load", "copy_async"}), bool(ops & {"mma_async", "mma"})
        part = "" if loads == multiplies else " (loads)" if loads else " (multiplies)"
        if ops <= barriers | {"cluster_wait"}:
            part = " (idle)"
        name = f"warp{'s' * (len(warps) > 1)} {spelled(warps)}{part}"
        rows.append(TimelineRow(name, bars, arrivals))
    return rows


def background_rows(timeline: Timeline, block: int = 0) -> list[TimelineRow]:
    """Return rows for each engine of a block; events at the same time take several rows."""
    slots = slots_of(timeline, block)
    rows = []
    events = [e for e in timeline.events if e.block == block and not e.agent.startswith("warp ")]
    for agent in dict.fromkeys(event.agent for event in events):
        lanes: list[list[Event]] = []
        seen = set()
        for event in events:
            key = (event.start, event.end, event.touches, event.line)
            # A copy that all warps issue together is one event.
            if event.agent != agent or key in seen:
                continue
            seen.add(key)
            free = next((lane for lane in lanes if lane[-1].end <= event.start), None)
            if free is None:
                lanes.append([event])
            else:
                free.append(event)
        for number, lane in enumerate(lanes):
            name = agent if number == 0 else ""
            rows.append(TimelineRow(name, tuple(_bar(event, slots) for event in lane)))
    return rows


def slot_rows(timeline: Timeline, block: int = 0) -> list[TimelineRow]:
    """Return a row for each stage of a block's shared memory: its fills, its reads, and when it is full."""
    return [TimelineRow(slot.name, tuple(_turns(timeline, slot))) for slot in slots_of(timeline, block)]


def slots_of(timeline: Timeline, block: int = 0) -> list[Slot]:
    """Return the slots of a block's shared memory: ranges that are filled and read as a whole.

    If several copies fill pieces of a slot, the slot is the range that one multiply reads.  A buffer with
    several slots numbers them, as stages.
    """
    written = {
        touch
        for event in timeline.events
        for touch in event.touches
        if touch.is_written and touch.block == block and event.kind in ("load", "copy")
    }
    buffers = dict.fromkeys(
        touch.buffer for event in timeline.events for touch in event.touches if touch in written
    )
    slots = []
    for buffer in buffers:
        pieces = {touch for touch in written if touch.buffer == buffer}
        stages = sorted(
            {_whole(piece, pieces, timeline) for piece in pieces}, key=lambda t: (t.first, t.last)
        )
        for number, touch in enumerate(stages):
            slots.append(Slot(f"{buffer}[{number}]" if len(stages) > 1 else buffer, touch))
    return slots


def _whole(piece: Touch, pieces: set[Touch], timeline: Timeline) -> Touch:
    """Return the part that a multiply reads, if this and other pieces fill it exactly; else the piece."""
    for event in timeline.events:
        for read in event.touches:
            if read.is_written or event.kind != "mma" or not read.overlaps(piece):
                continue
            inside = [p for p in pieces if read.first <= p.first and p.last <= read.last]
            if sum(p.last - p.first + 1 for p in inside) == read.last - read.first + 1:
                return Touch(read.buffer, read.first, read.last, True, read.block)
    return piece


def _turns(timeline: Timeline, slot: Slot) -> Iterator[TimelineBar]:
    """Yield the times in which a slot is full, then its fills and reads."""
    bars: list[TimelineBar] = []
    for event in timeline.events:
        for touch in event.touches:
            if not touch.overlaps(slot.touch):
                continue
            kind = event.kind
            phase = f"phase {event.phase}" if event.phase >= 0 and touch.is_written else ""
            text = (phase, f"{event.phase}") if phase else ()
            note = f"{'filled' if touch.is_written else 'read'} by {event.op}, {event.line}"
            made = TimelineBar(kind, event.start, event.end, text, f"{note}, {phase}" if phase else note)
            last = next((bar for bar in reversed(bars) if bar.note == made.note), None)
            if last is not None and last is bars[-1] and made.start <= last.end:
                bars[-1] = TimelineBar(kind, last.start, max(last.end, made.end), text, last.note)
            elif last is None or (made.start, made.end) != (last.start, last.end):
                bars.append(made)
    fills = [bar for bar in bars if bar.note.startswith("filled")]
    for at, fill in enumerate(fills):
        until = fills[at + 1].start if at + 1 < len(fills) else timeline.steps
        reads = [bar.end for bar in bars if bar.note.startswith("read") and fill.end <= bar.start < until]
        if reads and max(reads) > fill.end:
            yield TimelineBar("full", fill.end, max(reads), note="full")
    yield from bars


def _bar(event: Event, slots: Sequence[Slot]) -> TimelineBar:
    note = f"{event.op}: steps {event.start} to {event.end}"
    if event.barrier:
        note += f", {event.barrier}[{event.stage}] phase {event.phase}"
    note += f", {event.line}" if event.line else ""
    if event.kind == "wait":
        name = f"{event.barrier}[{event.stage}]"
        words = (f"{name} phase {event.phase}", f"{name} {event.phase}", name)
        text = words if event.barrier else (event.op.replace("_", " "),)
        return TimelineBar("wait", event.start, event.end, text, note)
    touched = [slot.name for slot in slots for touch in event.touches if touch.overlaps(slot.touch)]
    names = " ".join(dict.fromkeys(touched))
    kind = event.kind
    if kind == "issue":
        kind = {"mma_async": "mma", "tma_store": "store"}.get(event.op, "load")
    stages = {name.partition("[")[2].rstrip("]") for name in touched} - {""}
    same = [f"stage {stage}" for stage in stages] + sorted(stages) if len(stages) == 1 else []
    return TimelineBar(kind, event.start, event.end, (names, *same) if names else (), note)


# ---------------------------------------------------------------- drawing


def _picture(
    title: str,
    about: Sequence[str],
    sections: Sequence[tuple[str, list[TimelineRow]]],
    first: int,
    last: int,
    words: Mapping[str, str] = WORDS,
) -> Picture:
    names = [row.name for _, rows in sections for row in rows] + [name for name, _ in sections]
    left = MARGIN + max(map(len, names), default=0) * TEXT * MONO_WIDTH + 10
    step = min(WIDE_STEP, ROOM / max(last - first, 1))
    right = left + (last - first) * step
    top = top_below(about)
    body: list[Mark] = []
    y: float = top
    for name, rows in sections:
        body.append(Label(MARGIN, y + 8, name, TEXT, "start", bold=True, mono=False))
        y += 18
        for row in rows:
            body += _row(row, left, y, step, first)
            y += ROW + GAP
        y += 6
    # A scale in steps.
    every = next(n for n in (5, 10, 20, 50) if n * step >= 40)
    scale: list[Mark] = []
    for at in range(-(-first // every) * every, last + 1, every):
        x = left + (at - first) * step
        scale += [Line(x, top, x, y - 8, RULE, 0.75), Label(x, top - 9, str(at), TEXT, ink=FAINT)]
    all_rows = [row for _, rows in sections for row in rows]
    kinds = {bar.kind for row in all_rows for bar in row.bars}
    legend = [Swatch(COLOURS[kind], text) for kind, text in words.items() if kind in kinds]
    if any(row.arrivals for row in all_rows):
        legend.append(Swatch(ARRIVAL, "arrival at a barrier"))
    if any("phase" in bar.note for row in all_rows for bar in row.bars):
        legend.append(Swatch(None, "a wait passes when the phase that it names is over"))
    width, lines = max(right + MARGIN + 10, 640), _table(sections, first, last, words)
    return framed(title, [*about, ""], width, [*scale, *body], legend, y + 2, lines)


def _row(row: TimelineRow, left: float, y: float, step: float, first: int) -> Iterator[Mark]:
    if row.name:
        yield Label(left - 8, y + ROW / 2, row.name, TEXT, "end")
    for bar in row.bars:
        x, wide = left + (bar.start - first) * step, (bar.end - bar.start) * step
        inset = 5 if bar.kind == "full" else 0
        edge = RULE if bar.kind in ("wait", "full") else LINE
        yield BoxMark(x, y + inset, wide, ROW - 2 * inset, COLOURS[bar.kind], edge, note=bar.note)
        text = next((text for text in bar.text if len(text) * SMALL * MONO_WIDTH <= wide - 6), "")
        if text:
            ink = FAINT if bar.kind == "wait" else "#1f2328"
            yield Label(x + wide / 2, y + ROW / 2, text, SMALL, ink=ink)
    for at in row.arrivals:
        x = left + (at - first) * step
        yield Line(x, y - 1, x, y + ROW + 1, ARRIVAL, 2.5)


def _table(
    sections: Sequence[tuple[str, list[TimelineRow]]], first: int, last: int, meanings: Mapping[str, str]
) -> Iterator[tuple[TextSpan, ...]]:
    """Yield rows with a letter per step, and the meaning of the letters."""
    names = max((len(row.name) for _, rows in sections for row in rows), default=0)
    used = set()
    for section, rows in sections:
        yield (TextSpan(f"{section}:"),)
        for row in rows:
            steps = [" "] * (last - first)
            for bar in row.bars:
                used.add(bar.kind)
                steps[bar.start - first : bar.end - first] = LETTERS[bar.kind] * (bar.end - bar.start)
            kinds = {letter: kind for kind, letter in LETTERS.items()}
            spans = [TextSpan(f"{row.name:>{names}} |")]
            for letter, same in itertools.groupby(steps):
                fill = COLOURS[kinds[letter]] if letter in kinds else None
                spans.append(TextSpan("".join(same), fill))
            yield (*spans, TextSpan("|"))
    yield ()
    words = {kind: "copy" if kind == "copy" else text for kind, text in meanings.items()}
    yield (TextSpan(", ".join(f"{LETTERS[kind]} {text}" for kind, text in words.items() if kind in used)),)
