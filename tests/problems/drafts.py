"""Values of random dataflow kernels: the text of a value is drawn together with its elements in NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw

Numbers = np.ndarray[Any, np.dtype[np.float64]]

LARGEST_EXTENT = {"reference": 40, "cpu": 160, "cuda": 700}
LARGEST = 2.0**22
"""The largest number that an operation may give; f32 holds all integers up to four times as many."""

SLICES = {"1:": slice(1, None), "2:-1": slice(2, -1)}

NARROW = 2.0**10
"""The largest number that is converted to f16."""

POISON = 2.0**23 + 1

LEVELS = (-2.0, 0.0, 1.0, 3.0, -1.0)
"""Constants of a table."""

CODES = ("i32", "i64", "i8", "u8", "i16")
"""Dtypes of codes."""


@dataclass(frozen=True)
class Drawn:
    """A value of a kernel.

    Args:
        text: as the kernel writes it.
        axes: its dimensions, each a letter.
        elements: its elements over whole dimensions, in f64.
    """

    text: str
    axes: str
    elements: Numbers


class Draft:
    """A kernel that is being drawn.

    Args:
        number: from which everything follows.
        target: where it will run.
    """

    def __init__(self, number: int, target: str) -> None:
        self.draw, self.rng = random.Random(number), np.random.default_rng(number)
        most = LARGEST_EXTENT[target]
        self.extents = {name: self.draw.randint(1, most) for name in "mneks"}
        self.extents |= {"b": self.draw.randint(1, 3), "k": self.draw.randint(1, 40)}
        self.extents |= {"t": self.draw.randint(1, 30), "r": self.draw.randint(1, 20)}
        for name in "mne":
            if self.draw.random() < 0.1:
                self.extents[name] = self.draw.randint(1, 4)
        if self.draw.random() < 0.4:  # several tiles
            long = self.draw.choice("mnk")
            self.extents[long] = self.draw.randint(40, 8 * LARGEST_EXTENT["reference"])
        self.batch = "b" if self.draw.random() < 0.25 else ""
        self.given: dict[str, tuple[str, str, Numbers]] = {}
        """Dtype, dimensions and elements of each operand."""

        self.results: dict[str, tuple[str, Numbers]] = {}
        """Dimensions and elements of each result."""

        self.start: dict[str, Numbers] = {}
        """What a result holds before the launch; default: poison."""

        self.bounds: dict[str, Numbers] = {}
        """The largest error of a result that is not an integer."""

        self.rules: dict[str, tuple[str, str]] = {}
        """Dimensions that follow from others, and how."""

        self.kinds: dict[str, str] = {}
        """Dtypes of results that are not f32."""

        self.before: list[str] = []
        """Conditions on sizes."""

        self.lines: list[str] = []

        self.parts: dict[str, Drawn] = {}
        self.wide = ["chosen", "table", "codes", "part", "shared", "mask"] if self.draw.random() < 0.7 else []
        """Kinds of elements that only some kernels have."""

    # ------------------------------------------------------------ arrays

    def operand(self, name: str, axes: str, kind: str = "f32", *, batched: bool = True) -> Drawn:
        """An array that the kernel reads, the same one for the same name."""
        axes = self.batch + axes if batched else axes
        if name not in self.given:
            shape = [self.extents[one] for one in axes]
            self.given[name] = kind, axes, self.rng.integers(-2, 3, shape).astype(np.float64)
        return Drawn(f"{name}[{', '.join(axes)}]", axes, self.given[name][2])

    def integers(self, name: str, axes: str, low: int, high: int, kinds: Sequence[str]) -> Drawn:
        """An array of integers from `low` to below `high`, the same one for the same name."""
        if name not in self.given:
            shape = [self.extents[one] for one in axes]
            numbers = self.rng.integers(low, high, shape).astype(np.float64)
            self.given[name] = self.draw.choice(kinds), axes, numbers
        return Drawn(f"{name}[{', '.join(axes)}]", axes, self.given[name][2])

    def derived(self, one: str, extent: int, condition: str) -> str:
        """A dimension whose extent follows from that of another one.

        Args:
            one: the other dimension.
            extent: the extent.
            condition: the extent as the kernel writes it.
        """
        letter = next(c for c in "fhijlopquvwxyz" if c not in self.extents)
        self.extents[letter], self.rules[letter] = extent, (one, condition)
        self.before.append(f'    tw.require({size(letter)} == {condition.format(size(one))}, "sizes fit")')
        return letter

    def store(self, name: str, value: Drawn, *, transposed: bool = False, depth: int = 2) -> None:
        """Store a value as a result."""
        axes, elements = value.axes, np.broadcast_to(value.elements, self.shape(value.axes))
        text = value.text
        if transposed:
            axes, elements = axes[:-2] + axes[:-3:-1], np.swapaxes(elements, -1, -2)
            text = f"({text}).T"
        largest = abs(elements).max(initial=0)
        if name not in self.start and largest < NARROW and self.draw.random() < 0.25:
            self.kinds[name] = self.draw.choice(("f16", "i32", "f64", "i16"))
            text = f"({text}).to(tw.{self.kinds[name]})"
        self.results[name] = axes, elements
        self.lines.append(f"{' ' * 4 * depth}{name}[{', '.join(axes)}] = {text}")

    def large(self, axes: str, factor: int) -> tuple[int, ...]:
        """Extents of an array of a larger problem of this kernel."""
        made = {name: extent * factor for name, extent in self.extents.items()}
        for name, (one, condition) in self.rules.items():
            made[name] = eval(condition.format(made[one]), {"tw": tw})
        return tuple(made[one] for one in axes)

    def shape(self, axes: str) -> tuple[int, ...]:
        """Extents of a value."""
        return tuple(self.extents[one] for one in axes)

    # ------------------------------------------------------------ values

    def leaf(self, axes: str) -> Drawn:
        """An element of an array, a position, or a value that is the same along a dimension."""
        last, own = axes[-1], axes.removeprefix(self.batch)
        whole = len(own) == 2
        kinds = ["array"] + (["rows", "columns", "transposed", "turned", "place"] if whole else ["place"])
        kinds += self.wide
        match self.draw.choice(kinds):
            case "chosen":
                return self.chosen(f"G_{own}", own, self.draw.randrange(len(own)))
            case "table":
                if self.draw.random() < 0.5:
                    codes = self.integers(f"codes_{own}", axes, 0, len(LEVELS) + 1, CODES)
                    return Drawn(f"tw.take({LEVELS}, {codes.text})", axes, looked_up(LEVELS, codes.elements))
                table = self.operand("table", "t", batched=False)
                codes = self.integers(f"places_{own}", axes, 0, self.extents["t"], CODES)
                return Drawn(f"tw.take(table, {codes.text})", axes, looked_up(table.elements, codes.elements))
            case "codes":
                codes = self.integers(f"numbers_{own}", axes, -2, 3, ("i8", "i16", "i32", "f16"))
                return Drawn(f"{codes.text}.to(tw.f32)", axes, codes.elements)
            case "part":
                return self.part(own, self.draw.randrange(len(own)))
            case "shared" if self.batch and self.draw.random() < 0.5:
                which = self.integers("which", "b", 0, self.extents["t"], ("i32", "i64"))
                value = self.operand(f"pool_{own}", "t" + own, batched=False)
                spans = ", ".join(("which[b]", *own))
                return Drawn(f"pool_{own}[{spans}]", axes, value.elements[which.elements.astype(int)])
            case "shared" if self.batch:
                return self.operand(f"shared_{own}", own, batched=False)
            case "mask" if whole:
                mask, seen = self.mask(own)
                return Drawn(f"tw.where({mask}, 1.0, -1.0)", axes, np.where(seen, 1.0, -1.0))
            case "rows":
                value = self.expression(axes[:-1], 1)
                return Drawn(f"({value.text})[:, None]", axes, value.elements[..., None])
            case "columns":
                value = self.expression(self.batch + last, 1)
                return Drawn(value.text, axes, value.elements[..., None, :])
            case "transposed":
                value = self.operand(f"T_{own}", own[::-1])
                return Drawn(f"{value.text}.T", axes, np.swapaxes(value.elements, -1, -2))
            case "turned":
                value = self.operand(f"A_{own}", own)
                colons = ":, " * (len(axes) - 1)
                text = value.text.replace("[", f"[{colons}::-1][", 1)
                return Drawn(text, axes, value.elements[..., ::-1])
            case "place":
                one = self.draw.choice(own)
                column = "[:, None]" if whole and one == own[0] else ""
                places = np.arange(self.extents[one], dtype=np.float64) % 5
                return Drawn(
                    f"(tw.positions({one}) % 5).to(tw.f32){column}",
                    axes,
                    places[:, None] if column else places,
                )
        return self.operand(f"{self.draw.choice('AB')}_{own}", own)

    def chosen(self, name: str, own: str, at: int, kind: str = "f32") -> Drawn:
        """An array whose dimension `at` is chosen by integers."""
        one = own[at]
        rows = self.integers(f"rows_{one}", one, 0, self.extents["t"], ("i32", "i32", "i64"))
        name = f"{name}_{at}"
        batched = self.draw.random() < 0.7
        if name in self.given:
            batched = len(self.given[name][1]) > len(own)
        value = self.operand(name, own[:at] + "t" + own[at + 1 :], kind, batched=batched)
        index = [*value.axes[: len(value.axes) - len(own)], *own]
        index[at - len(own)] = f"rows_{one}[{one}]"
        elements = np.take(value.elements, rows.elements.astype(int), axis=at - len(own))
        return Drawn(f"{name}[{', '.join(index)}]", self.batch + own, elements)

    def part(self, own: str, at: int, kind: str = "f32", *, divided: bool = True) -> Drawn:
        """A slice of an array, or one element for several neighbours."""
        one, extent = own[at], self.extents[own[at]]
        kinds = ["every second", "odd", "tail", "inner", "back"] + ["neighbours"] * divided
        kind_of = self.draw.choice(kinds)
        name = f"{kind_of.replace(' ', '_')}_{own}_{at}{kind.removeprefix('f32')}"
        if name in self.parts:
            return self.parts[name]
        more, condition, index = {
            "every second": (2 * extent, "2 * {}", "::2"),
            "odd": (2 * extent, "2 * {}", "1::2"),
            "back": (2 * extent, "2 * {}", "::-2"),
            "tail": (extent + 1, "{} + 1", "1:"),
            "inner": (extent + 3, "{} + 3", "2:-1"),
            "neighbours": (-(-extent // 3), "tw.ceil_div({}, 3)", ""),
        }[kind_of]
        letter = self.derived(one, more, condition)
        value = self.operand(name, own[:at] + letter + own[at + 1 :], kind)
        lead = len(value.axes) - len(own) + at
        spans = list(self.batch + own)
        if index:
            first, _, step = index.partition("::")
            where = slice(int(first) if first else None, None, int(step)) if "::" in index else SLICES[index]
            elements = value.elements[(slice(None),) * lead + (where,)]
            text = f"{name}[{':, ' * lead}{index}][{', '.join(spans)}]"
        else:
            elements = np.take(value.elements, np.arange(extent) // 3, axis=lead)
            spans[lead] = f"{one} // 3"
            text = f"{name}[{', '.join(spans)}]"
        self.parts[name] = Drawn(text, self.batch + own, elements)
        return self.parts[name]

    def mask(self, own: str) -> tuple[str, Any]:
        """A mask of positions over rows and columns."""
        rows, columns = (np.arange(self.extents[one]) for one in own)
        row, column = f"tw.positions({own[0]})[:, None]", f"tw.positions({own[1]})"
        shift, width = self.draw.randint(-20, 20), self.draw.randint(1, 12)
        apart = rows[:, None] - columns
        return self.draw.choice(
            (
                (f"({column} <= {row} + {shift})", -apart <= shift),
                (f"({row} < {column} + {shift})", apart < shift),
                (
                    f"(({row} - {column} >= {shift}) & ({row} - {column} < {shift + width}))",
                    (apart >= shift) & (apart < shift + width),
                ),
            )
        )

    def expression(self, axes: str, depth: int, more: Sequence[Drawn] = ()) -> Drawn:
        """A value of at most so many operations.

        Args:
            axes: its dimensions.
            depth: operations one inside of the other, at most.
            more: values with these dimensions that it may contain.
        """
        if depth == 0 or self.draw.random() < 0.2:
            return self.draw.choice(more) if more and self.draw.random() < 0.6 else self.leaf(axes)
        one, other = (self.expression(axes, depth - 1, more) for _ in range(2))
        a, b = one.elements, other.elements
        text, elements = self.draw.choice(
            (
                (f"({one.text} + {other.text})", a + b),
                (f"({one.text} - {other.text})", a - b),
                (f"({one.text} * {other.text})", a * b),
                (f"tw.maximum({one.text}, {other.text})", np.maximum(a, b)),
                (f"tw.minimum({one.text}, {other.text})", np.minimum(a, b)),
                (f"tw.where({one.text} < {other.text}, {one.text}, 3.0)", np.where(a < b, a, 3.0)),
                (f"tw.where({one.text} == {other.text}, 0.0, {other.text})", np.where(a == b, 0.0, b)),
                (f"(tw.relu({one.text}) - abs({other.text}))", np.maximum(a, 0) - abs(b)),
            )
        )
        return Drawn(text, axes, elements) if abs(elements).max() <= LARGEST else one

    def named(self, name: str, value: Drawn, depth: int) -> Drawn:
        """A value under a name; it varies along all of its dimensions, and is small."""
        own = value.axes.removeprefix(self.batch)
        full = self.operand(f"A_{own}", own)
        elements = np.broadcast_to(full.elements + value.elements, self.shape(value.axes))
        if abs(elements).max() > 50:
            elements = np.clip(elements, -3.0, 3.0)
            value = Drawn(
                f"tw.maximum(tw.minimum({full.text} + {value.text}, 3.0), -3.0)", value.axes, elements
            )
        else:
            value = Drawn(f"{full.text} + {value.text}", value.axes, elements)
        self.lines.append(f"{' ' * 4 * depth}{name} = {value.text}")
        return replace_text(value, name)

    def reduced(self, value: Drawn, axis: int, how: str) -> Drawn:
        """A reduction along a dimension of a tile: 0 or 1."""
        at = axis - 2
        functions: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}
        elements = functions[how](np.broadcast_to(value.elements, self.shape(value.axes)), axis=at)
        axes = value.axes[:at] + (value.axes[at + 1 :] if at < -1 else "")
        return Drawn(f"({value.text}).{how}(axis={axis})", axes, elements)

    def product(self, a: Drawn, b: Drawn, axes: str) -> Drawn:
        """A product of two tiles, the second one as (k, columns)."""
        return Drawn(f"{a.text} @ {b.text}", self.batch + axes, a.elements @ b.elements)

    def transposed(self, value: Drawn) -> Drawn:
        """The transpose of a matrix, or of each matrix of a batch."""
        axes = value.axes[:-2] + value.axes[:-3:-1]
        return Drawn(f"{value.text}.T", axes, np.swapaxes(value.elements, -1, -2))

    def tiles(self, axes: str, result: str) -> None:
        """Write the loop over the tiles of a result, before what was written so far."""
        names = ", ".join(self.batch + axes)
        dims = [f"{result}.shape[{at}]" for at in range(len(self.batch + axes))]
        extents = dims[0] if len(dims) == 1 else f"({', '.join(dims)})"
        batch = ", batch=1" if self.batch else ""
        self.lines.insert(0, f"    for {names} in tw.tiles({extents}{batch}):")

    def text(self) -> str:
        """The text of the kernel."""
        own = {letter for _, axes, _ in self.given.values() for letter in axes}
        own |= {letter for axes, _ in self.results.values() for letter in axes}
        for letter in sorted({*self.extents} - own):
            if any(size(letter) in line for line in (*self.before, *self.lines)):
                self.operand(f"long_{letter}", letter, batched=False)  # for its extent alone
        dims = {name: axes for name, (_, axes, _) in self.given.items()}
        dims |= {name: axes for name, (axes, _) in self.results.items()}
        declared = ", ".join(f'{name}="{" ".join(axes.upper())}"' for name, axes in dims.items())
        head = f"@tw.kernel({declared})", f"def drawn({', '.join(dims)}):"
        text = "\n".join((*head, *self.before, *self.lines, ""))
        for letter in self.extents:
            name = next((name for name, axes in dims.items() if letter in axes), "")
            text = text.replace(size(letter), f"{name}.shape[{dims[name].index(letter)}]" if name else "?")
        return text


def size(letter: str) -> str:
    """Stand for the extent of a dimension, until the arrays of the kernel are known."""
    return f"<{letter}>"


def looked_up(table: Any, codes: Numbers) -> Numbers:
    """Elements of a table by their codes; 0 for a code outside of it."""
    return np.append(np.asarray(table, np.float64), 0.0)[np.minimum(codes, len(table)).astype(int)]


def replace_text(value: Drawn, text: str) -> Drawn:
    """A value under another text."""
    return Drawn(text, value.axes, value.elements)
