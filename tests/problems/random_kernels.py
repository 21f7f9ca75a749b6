"""Random dataflow kernels, and whether they have the results of NumPy.

Every number is a small integer, and no operation leaves the integers that f32 holds.  So a result is right or
wrong, whatever the order of the additions; softmax has a bound.  A kernel is a product, a loop that carries a
state and may store in each step, whole rows that are reduced, a flow without a product, or has a form of
`random_forms.py`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from tests.movers.random_movers import Array
from tests.targets.hip.machine import ARCHS, machines

import tilewright as tw

from .drafts import LARGEST, NARROW, POISON, Drawn, Numbers, replace_text
from .drafts import Draft as BaseDraft
from .drawing import placed
from .placing import Placed
from .random_forms import Forms

GPUS = ("sm_90a", "sm_80", "gfx942", "gfx1100")
"""Architectures whose schedules the reference computes."""


class Draft(Forms):
    """A kernel that is being drawn, with its form."""

    def products(self) -> None:
        """One or two products, functions of them, and reductions of rows and columns."""
        kind = self.draw.choice(("f16", "f32"))
        totals = []
        self.lines.append(" " * 8 + "acc = tw.zeros(dtype=tw.f32)")
        both = self.draw.random() < 0.3
        if both:
            self.lines.append(" " * 8 + "up = tw.zeros(dtype=tw.f32)")
        a = self.operand("P", "mk", kind)
        self.lines.append(" " * 8 + f"for k in tw.steps(P.shape[{len(a.axes) - 1}]):")
        for name, right in (("acc", "Q"), ("up", "R"))[: 1 + both]:
            b = self.transposed(self.operand(right, "nk", kind))
            left = a
            if self.draw.random() < 0.3:
                left = Drawn(f"tw.relu({a.text})", a.axes, np.maximum(a.elements, 0))
            made = self.product(left, b, "mn")
            self.lines.append(" " * 12 + f"{name} += {made.text}")
            totals.append(replace_text(made, name))
        value = self.expression(self.batch + "mn", self.draw.randint(0, 3), totals * 2)
        first = totals[0]
        text, elements = f"{first.text} + {value.text}", first.elements + value.elements
        if self.draw.random() < 0.3 and np.abs(elements).max() * self.extents["n"] < LARGEST:
            whole = np.broadcast_to(elements, self.shape(self.batch + "mn"))
            text, elements = f"({text}).cumsum(axis=1)", whole.cumsum(axis=-1)
        self.store("C", Drawn(text, self.batch + "mn", elements))
        is_scanned = "cumsum" in text
        if self.draw.random() < 0.4:
            self.store("rows", self.reduced(first, 1, self.draw.choice(("sum", "max", "min"))))
        if self.draw.random() < 0.3 and not is_scanned and "rows" not in self.results:
            self.store("columns", self.reduced(first, 0, self.draw.choice(("sum", "max", "min"))))
        if self.draw.random() < 0.2:
            self.store("D", totals[-1], transposed=True)
        self.tiles("mn", "C")

    def loop(self) -> None:
        """A loop that carries numbers of rows and sums of products; its steps may store prefix sums."""
        has_columns, body = self.draw.random() < 0.5, self.lines
        starts: list[str] = []
        values: list[Drawn] = []
        for at in range(self.draw.randint(1, 2)):
            value = self.expression(self.batch + "mn", self.draw.randint(0, 3))
            if self.draw.random() < 0.4:
                q, k = self.operand("Q", "mk", "f16"), self.transposed(self.operand("K", "nk", "f16"))
                whole = [
                    f"{one}[{self.batch + ', ' if self.batch else ''}{row}]"
                    for one, row in (("Q", "m"), ("K", "n"))
                ]
                value = Drawn(f"{whole[0]} @ {whole[1]}.T", self.batch + "mn", q.elements @ k.elements)
            values.append(self.named(f"x{at}", value, 3))
        cells: list[Drawn] = []
        results: list[str] = []
        for at in range(self.draw.randint(1, 3)):
            value, name = self.draw.choice(values), f"t{at}"
            how = self.draw.choice(("sum", "sum", "max", "min"))
            start = {
                "sum": "zeros((m,), tw.f32)",
                "max": "full((m,), -99.0, tw.f32)",
                "min": "full((m,), 99.0, tw.f32)",
            }
            starts.append(" " * 8 + f"{name} = tw.{start[how]}")
            new = self.reduced(value, 1, how)
            if how == "sum" and not results and self.draw.random() < 0.5:
                sums = np.cumsum(value.elements, axis=-1)
                stored = self.expression(self.batch + "mn", 1, values)
                made = Drawn(
                    f"{name}[:, None] + {value.text}.cumsum(axis=1) + {stored.text}",
                    self.batch + "mn",
                    sums + stored.elements,
                )
                self.store("S", made, transposed=self.draw.random() < 0.3, depth=3)
                results.append("S")
            elif how == "sum":
                body.append(" " * 12 + f"{name} += {new.text}")
                cells.append(replace_text(new, name))
                continue
            update = f"{name} + {new.text}" if how == "sum" else f"tw.{how}imum({name}, {new.text})"
            body.append(" " * 12 + f"{name}.assign({update})")
            limit = {
                "sum": new.elements,
                "max": np.maximum(new.elements, -99),
                "min": np.minimum(new.elements, 99),
            }
            cells.append(replace_text(Drawn(name, new.axes, limit[how]), name))
        sums_of_columns = None
        if has_columns:
            starts.append(" " * 8 + "acc = tw.zeros((m, e), tw.f32)")
            value, v = self.draw.choice(values), self.operand("V", "ne", "f16")
            left = Drawn(f"{value.text}.to(tw.f16)", value.axes, value.elements)
            made = self.product(left, v, "me")
            body.append(" " * 12 + f"acc += {made.text}")
            sums_of_columns = replace_text(made, "acc")
        long = next(name for name, (_, axes, _) in self.given.items() if "n" in axes)
        extent = f"{long}.shape[{self.given[long][1].index('n')}]"
        body[:0] = [*starts, " " * 8 + f"for n in tw.steps({extent}):"]
        self.store("rows", self.expression(self.batch + "m", 2, cells))
        if sums_of_columns is not None:
            columns = [
                Drawn(f"{one.text}[:, None]", self.batch + "me", one.elements[..., None]) for one in cells
            ]
            more = self.expression(self.batch + "me", 2, columns)
            text = f"{sums_of_columns.text} + {more.text}"
            self.store("C", Drawn(text, self.batch + "me", sums_of_columns.elements + more.elements))
            self.tiles("me", "C")
        else:
            self.tiles("m", "rows")

    def rows(self) -> None:
        """Whole rows of a product or of an array, what is reduced along them, and a product with them."""
        first = f"{self.batch}, m" if self.batch else "m"
        if self.draw.random() < 0.5:
            q, k = self.operand("Q", "mk", "f16"), self.transposed(self.operand("K", "nk", "f16"))
            second = "K[b]" if self.batch else "K"
            value = Drawn(f"Q[{first}] @ {second}.T", self.batch + "mn", q.elements @ k.elements)
        else:
            made = self.operand("A_mn", "mn")
            value = Drawn(f"A_mn[{first}]", made.axes, made.elements)
        self.lines.append(" " * 8 + f"x = {value.text}")
        x = replace_text(value, "x")
        if self.draw.random() < 0.5:
            ahead = self.draw.randint(-2, 20)
            self.lines.append(
                " " * 8 + f"x = tw.where(tw.positions(x) <= tw.positions(m)[:, None] + {ahead}, x, -7.0)"
            )
            places = [np.arange(self.extents[one]) for one in "mn"]
            seen = places[1] <= places[0][:, None] + ahead
            x = Drawn("x", x.axes, np.where(seen, x.elements, -7.0))
        top = self.reduced(x, 1, "max")
        self.lines.append(" " * 8 + f"top = {top.text}")
        away = Drawn("(x - top[:, None])", x.axes, x.elements - top.elements[..., None])
        self.store("rows", self.reduced(away, 1, self.draw.choice(("sum", "min"))))
        if self.draw.random() < 0.4:
            self.lines.append(" " * 8 + f"places[{first}] = {away.text}.argmax(axis=1).to(tw.f32)")
            self.results["places"] = self.batch + "m", away.elements.argmax(axis=-1).astype(np.float64)
        if self.draw.random() < 0.4:
            self.lines.append(" " * 8 + f"S[{first}] = {away.text}.cumsum(axis=1)")
            self.results["S"] = self.batch + "mn", away.elements.cumsum(axis=-1)
        elif self.draw.random() < 0.5:
            v = self.operand("V", "ne", "f16")
            small = np.maximum(away.elements, -9.0)
            whole = "V[b, :, e]" if self.batch else "V[:, e]"
            text = f"tw.maximum({away.text}, -9.0).to(tw.f16) @ {whole}"
            self.store("C", Drawn(text, self.batch + "me", small @ v.elements))
            return self.tiles("me", "C")
        return self.tiles("m", "rows")

    def elements(self) -> None:
        """Elements, their prefix sums in either order, and reductions of rows."""
        value = self.named("x", self.expression(self.batch + "mn", 3), 2)
        other = self.expression(self.batch + "mn", 1, [value])
        how = self.draw.choice(("plain", "cumsum(axis=1)", "cumsum(axis=1, reverse=True)", "cumsum(axis=0)"))
        match how:
            case "plain":
                made = Drawn(f"{value.text} - {other.text}", value.axes, value.elements - other.elements)
            case "cumsum(axis=0)":
                made = Drawn(f"{value.text}.{how}", value.axes, value.elements.cumsum(axis=-2))
            case "cumsum(axis=1)":
                made = Drawn(f"{value.text}.{how}", value.axes, value.elements.cumsum(axis=-1))
            case _:
                back = value.elements[..., ::-1].cumsum(axis=-1)[..., ::-1]
                made = Drawn(f"{value.text}.{how}", value.axes, back)
        self.store("C", made, transposed=self.draw.random() < 0.3)
        if self.draw.random() < 0.5 and "axis=0" not in how:
            self.store("rows", self.reduced(value, 1, self.draw.choice(("sum", "max", "min"))))
        axes = self.results["C"][0]
        self.tiles("mn", "C")
        if axes[-1] == "m":
            self.lines[0] = self.lines[0].replace(
                f"C.shape[{len(axes) - 2}], C.shape[{len(axes) - 1}]",
                f"C.shape[{len(axes) - 1}], C.shape[{len(axes) - 2}]",
            )


def drafted(number: int, target: str) -> Draft:
    """Draw a kernel."""
    draft = Draft(number, target)
    old = draft.products, draft.loop, draft.loop, draft.rows, draft.elements
    new = draft.operands, draft.groups, draft.bounded, draft.stored, draft.columns, draft.softmax
    more = draft.vectors, draft.inner, draft.vectors
    draft.draw.choice((*old, *new, *new, *more))()
    return draft


def carried_out(number: int, target: str) -> str:
    """Compute a random kernel; return what is wrong, or an empty text.

    The reference also computes it under the schedule that is chosen for a GPU.
    """
    wrong = outcome(number, target)[0]
    if target == "reference" and not wrong:
        wrong = outcome(number, target, GPUS[number % len(GPUS)])[0]
    return wrong


def outcome(
    number: int,
    target: str,
    gpu: str = "",
    factor: int = 1,
    drawn: Callable[[int, str], BaseDraft] = drafted,
) -> tuple[str, str]:
    """Compute a random kernel.

    Args:
        number: which.
        target: where.
        gpu: architecture of a GPU whose chosen schedule the kernel has; empty: the target's own choice.
        factor: the schedule is the choice for so many times larger extents.
        drawn: draws the kernel.

    Returns:
        What is wrong, and why the kernel is refused; empty if nothing is wrong, and if it is not refused.
    """
    draft = drawn(number, target)
    text, name = draft.text(), f"<random kernel {number} on {target}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"tw": tw}
    exec(compile(text, name, "exec"), space)
    held = {
        name: Array(
            elements.shape, placed(draft.draw, elements.shape, tw.dtype(kind), *layout), tw.dtype(kind)
        )
        for name, kind, elements, layout in _arrays(draft)
    }
    for one, array in held.items():
        poison = POISON if array.array.dtype.itemsize > 2 else 2.0 * NARROW
        array.array[...] = draft.given[one][2] if one in draft.given else draft.start.get(one, poison)
    there = {one: Placed(array.array, target) for one, array in held.items()}
    arguments = {one: at.there for one, at in there.items()}
    kernel = space["drawn"].bind()
    wide = gpu in ARCHS  # the reference computes it with waves of 64 lanes
    where = f"{gpu} reference" if wide else target
    try:
        with machines() if wide else nullcontext():
            vendor = "hip" if gpu.startswith("gfx") else "cuda"
            if factor > 1:
                like = _large(draft, arguments, factor)
                kernel = kernel.under(kernel.schedule_for(**like, target=vendor, arch=gpu))
            elif gpu and not wide:
                kernel = kernel.under(kernel.schedule_for(**arguments, target=vendor, arch=gpu))
            ran = kernel(**arguments, target=where)
    except (tw.TraceError, tw.ScheduleError, tw.LaunchError) as error:
        return "" if "nearest legal choice" in str(error) else f"{text}\n{error}", str(error)
    if ran.target != where:
        return f"{text}\nit ran on {ran.target}", ""
    for one, (_, right) in draft.results.items():
        found = there[one].fetched()
        right = np.where(right == POISON, 2.0 * NARROW, right) if found.dtype.itemsize == 2 else right
        off = np.abs(found.astype(np.result_type(found.dtype, np.float64)) - right)
        if (wrong := ~(off <= draft.bounds.get(one, 0.0))).any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            count = f"{np.count_nonzero(wrong)} of {right.size}"
            return f"{text}\n{one}{at} is {found[at]}, not {right[at]}; {count} are wrong, {ran.schedule}", ""
    for one, array in held.items():
        if not array.is_whole_around():
            return f"{text}\nmemory around {one} was written", ""
    return "", ""


def _large(draft: BaseDraft, arguments: dict[str, Any], factor: int) -> dict[str, Any]:
    """Arrays with larger extents, and the order of the arguments."""
    made = {}
    for name, array in arguments.items():
        axes = draft.given[name][1] if name in draft.given else draft.results[name][0]
        order = "F" if array.ndim > 1 and abs(array.strides[-1]) > abs(array.strides[-2]) else "C"
        made[name] = tw.like(tw.dtype(array.dtype), draft.large(axes, factor), order=order)
    return made


def _arrays(draft: BaseDraft) -> list[tuple[str, str, Numbers, tuple[Any, ...]]]:
    """Name, dtype, elements and layout of each array."""
    made: list[tuple[str, str, Numbers, tuple[Any, ...]]] = []
    for name, (kind, _, elements) in draft.given.items():
        made.append(
            (name, kind, elements, (draft.draw.choice("nnt"), draft.draw.random() < 0.5, False, False))
        )
    for name, (_, elements) in draft.results.items():
        made.append(
            (name, draft.kinds.get(name, "f32"), elements, ("n", False, True, draft.draw.random() < 0.3))
        )
    return made
