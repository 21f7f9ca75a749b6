"""Pictures of bank conflicts: the bank of shared memory that each lane hits, and passes of each request."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.argument_checks import Count
from tilewright.calls import layouts
from tilewright.inspect.draw.grids import MARGIN, TEXT, Swatch, framed, shortened, top_below
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
from tilewright.layout.layout import Layout
from tilewright.layout.limits import LANES, WIDEST
from tilewright.threads.banks import WORD_BYTES, accesses, bank_conflicts, bank_passes, lanes_together
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View

BANKS = REFERENCE.banks
MOST_PASSES = 48
"""Largest number of passes in a picture; further requests are only counted."""

CELL = (28.0, 18.0)


@dataclass(frozen=True)
class Request:
    """Lanes that access shared memory together.

    Args:
        warp: the index of the warp.
        access: the index of its access, one vector per lane.
        hits: (thread, 4-byte word) for each word of each thread's vector.
    """

    warp: int
    access: int
    hits: tuple[tuple[int, int], ...]

    @property
    def banks(self) -> dict[int, dict[int, tuple[int, ...]]]:
        """The threads of each word in each bank that is hit; each word of a bank takes its own pass."""
        found: dict[int, dict[int, tuple[int, ...]]] = {}
        for thread, word in self.hits:
            words = found.setdefault(word % BANKS, {})
            words[word] = (*words.get(word, ()), thread)
        return found

    @property
    def degree(self) -> int:
        """Number of passes: the most words in one bank."""
        return int(bank_passes(np.array([[word * WORD_BYTES for _, word in self.hits]]), WORD_BYTES)[0])


@layouts(vector=WIDEST, element_bytes=WIDEST, lanes=LANES)
def bank_requests(
    view: View | Layout, distribution: Distribution, vector: Count, element_bytes: Count, lanes: Count = BANKS
) -> tuple[Request, ...]:
    """Return all requests of an access to shared memory, access by access, warp by warp.

    Args:
        view: the view of the tensor in shared memory, which begins at bank 0.
        distribution: the coordinates that each thread accesses, in order.
        vector: elements per access: consecutive values of a thread, neighbours in memory.
        element_bytes: size of an element.
        lanes: threads per warp.

    Raises:
        LayoutError: the distribution has another tile, or the vectors are not contiguous or not aligned.

    Example:
        >>> from tilewright.threads.distribution import blocked
        >>> columns = blocked((32, 4), threads=(32, 1), order=(0, 1))
        >>> [request.degree for request in bank_requests(Layout((32, 4), (32, 1)), columns, 4, 4)]
        [8, 8, 8, 8]
    """
    shared = View.of(view) if isinstance(view, Layout) else view
    size = vector * element_bytes
    together = lanes_together(size, BANKS, lanes)
    found = []
    for number, (first_byte, exists) in enumerate(accesses(shared, distribution, vector, element_bytes, {})):
        threads = range(len(first_byte))
        for warp, start in enumerate(range(0, len(threads), lanes)):
            for begin in range(start, min(start + lanes, len(threads)), together):
                hits: list[tuple[int, int]] = []
                for thread in threads[begin : min(begin + together, start + lanes)]:
                    if exists[thread]:
                        first = int(first_byte[thread])
                        words = range(first // WORD_BYTES, (first + size - 1) // WORD_BYTES + 1)
                        hits += ((thread, word) for word in words)
                if hits:
                    found.append(Request(warp, number, tuple(hits)))
    return tuple(found)


@layouts(vector=WIDEST, element_bytes=WIDEST, lanes=LANES)
def draw_banks(
    view: View | Layout,
    distribution: Distribution,
    vector: Count,
    element_bytes: Count,
    reader: str = "",
    lanes: Count = BANKS,
) -> Picture:
    """Draw the bank that each thread hits; a column is as high as the number of words hit in its bank.

    Args:
        view: the view of the tensor in shared memory, which begins at bank 0.
        distribution: the coordinates that each thread accesses, in order.
        vector: elements per access: consecutive values of a thread, neighbours in memory.
        element_bytes: size of an element.
        reader: the name of the access, for the title.
        lanes: threads per warp.

    Raises:
        LayoutError: the distribution has another tile, or the vectors are not contiguous or not aligned.

    Example:
        >>> from tilewright.threads.distribution import blocked
        >>> columns = blocked((32, 4), threads=(32, 1), order=(0, 1))
        >>> draw_banks(Layout((32, 4), (32, 1)), columns, vector=4, element_bytes=4).title
        '8-way bank conflicts'
    """
    requests = bank_requests(view, distribution, vector, element_bytes, lanes)
    shared = View.of(view) if isinstance(view, Layout) else view
    worst = bank_conflicts(shared, distribution, vector, element_bytes, lanes=lanes) if requests else 0
    title = f"{worst}-way bank conflicts" if worst > 1 else "No bank conflicts"
    title += f": {reader}" if reader else ""
    passes = sum(request.degree for request in requests)
    count = len(requests)
    cost = (
        f"{vector * element_bytes} bytes per lane; {count} request{'s' * (count != 1)} take {passes} "
        f"pass{'es' * (passes != 1)}, the worst {worst}"
    )
    about = [f"{view}, elements of {element_bytes} bytes", cost]
    totals = itertools.accumulate(request.degree for request in requests)
    fitting = max(sum(total <= MOST_PASSES for total in totals), 1)
    if fitting < count:
        about.append(f"the first {fitting} of {count} requests are shown")
    return _picture(title, about, requests[:fitting])


@dataclass(frozen=True)
class _BankBlock:
    """Neighbouring banks that serve the same threads in the same pass."""

    bank: int
    count: int
    row: int
    threads: tuple[int, ...]


def _blocks(request: Request) -> Iterator[_BankBlock]:
    """Yield the blocks of each pass of a request, from the left."""
    rows: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for bank, words in sorted(request.banks.items()):
        for row, threads in enumerate(words.values()):
            rows.setdefault(row, []).append((bank, threads))
    for row, cells in rows.items():
        numbered = enumerate(cells)
        for (_, threads), same in itertools.groupby(
            numbered, key=lambda item: (item[1][0] - item[0], item[1][1])
        ):
            banks = [bank for _, (bank, _) in same]
            yield _BankBlock(banks[0], len(banks), row, threads)


def _colour(row: int) -> str:
    """Return blue for the first pass, and vermilion for passes that a conflict adds."""
    return mixed(HUES[0], PAPER, 0.45) if row == 0 else mixed(HUES[6], PAPER, min(0.25 + 0.05 * row, 0.55))


def _name(request: Request) -> str:
    threads = sorted({thread for thread, _ in request.hits})
    return f"access {request.access}, T{spelled(threads)}"


def _picture(title: str, about: Sequence[str], requests: Sequence[Request]) -> Picture:
    names = [_name(request) for request in requests]
    left = MARGIN + max(map(len, names), default=0) * TEXT * MONO_WIDTH + 10
    right = left + BANKS * CELL[0]
    top = top_below(about)
    marks: list[Mark] = [Label(left - 6, top - 9, "bank", TEXT, "end", FAINT)]
    marks += [
        Label(left + (bank + 0.5) * CELL[0], top - 9, str(bank), TEXT, ink=FAINT) for bank in range(BANKS)
    ]
    y: float = top
    for name, request in zip(names, requests, strict=True):
        height = request.degree * CELL[1]
        marks.append(BoxMark(left, y, right - left, height, PAPER, RULE))
        for bank in range(4, BANKS, 4):
            x = left + bank * CELL[0]
            marks.append(Line(x, y, x, y + height, RULE, 0.75))
        passes = f"{request.degree} pass{'es' * (request.degree > 1)}"
        marks += [
            Label(left - 6, y + CELL[1] / 2, name, TEXT, "end", FAINT),
            Label(right + 6, y + CELL[1] / 2, passes, TEXT, "start", bold=request.degree > 1),
        ]
        for block in _blocks(request):
            x, wide = left + block.bank * CELL[0], block.count * CELL[0]
            at, text = y + block.row * CELL[1], f"T{spelled(block.threads)}"
            banks = f"bank{'s' * (block.count > 1)} {spelled(range(block.bank, block.bank + block.count))}"
            note = f"{banks}, pass {block.row}: T{','.join(map(str, block.threads))}"
            size = TEXT - 2 if len(text) * TEXT * MONO_WIDTH > wide - 2 else TEXT
            said = shortened(text, int((wide - 2) / (size * MONO_WIDTH)))
            marks += [
                BoxMark(x, at, wide, CELL[1], _colour(block.row), LINE, note=note),
                Label(x + wide / 2, at + CELL[1] / 2, said, size),
            ]
        y += height + 8
    legend = [
        Swatch(_colour(0), "first pass"),
        Swatch(_colour(4), "further passes: other words of a bank that is busy"),
        Swatch(None, f"T thread; a bank serves one word of {WORD_BYTES} bytes per pass"),
    ]
    return framed(title, about, right + 64 + MARGIN, marks, legend, y + 4, _table(requests))


def _table(requests: Sequence[Request]) -> Iterator[tuple[TextSpan, ...]]:
    for request in requests:
        yield ()
        yield (TextSpan(f"{_name(request)}: {request.degree} pass{'es' * (request.degree > 1)}"),)
        rows: dict[int, list[_BankBlock]] = {}
        for block in _blocks(request):
            rows.setdefault(block.row, []).append(block)
        for row, blocks in rows.items():
            line, at = [TextSpan("  ")], 0
            for block in sorted(blocks, key=lambda block: block.bank):
                line.append(TextSpan("    " * (block.bank - at)))
                room = 4 * block.count - 1
                line.append(TextSpan(shortened(f"T{spelled(block.threads)}", room).ljust(room), _colour(row)))
                line.append(TextSpan(" "))
                at = block.bank + block.count
            yield tuple(line)
