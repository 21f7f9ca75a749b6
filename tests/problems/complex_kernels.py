"""Random dataflow kernels of complex numbers, and whether they have the results of NumPy.

Both parts of every number are small integers, as in `random_kernels`, so that a result is right or wrong.  A
kernel is a product, a loop with a complex state, or a flow without a product; each also reads real arrays.
"""

from __future__ import annotations

import numpy as np

from .drafts import LARGEST, Draft, Drawn, replace_text
from .random_kernels import GPUS, outcome

KINDS = ("c64", "c64", "c128")


class ComplexDraft(Draft):
    """A kernel of complex numbers that is being drawn."""

    def operand(self, name: str, axes: str, kind: str = "f32", *, batched: bool = True) -> Drawn:
        """An array that the kernel reads, the same one for the same name."""
        is_new = name not in self.given
        made = super().operand(name, axes, kind, batched=batched)
        if is_new and kind in KINDS:
            imaginary = self.rng.integers(-2, 3, made.elements.shape)
            self.given[name] = kind, made.axes, made.elements + 1j * imaginary
            return Drawn(made.text, made.axes, self.given[name][2])
        return made

    def number(self, axes: str) -> Drawn:
        """A complex element of an array, or a real one times a complex constant."""
        own = axes.removeprefix(self.batch)
        kinds = ["array", "array", "real", "constant"]
        kinds += ["rows", "columns", "transposed", "turned"] * (len(own) == 2) + self.wide[:1]
        match self.draw.choice(kinds):
            case "real":
                real = self.leaf(axes)
                return Drawn(f"(1j * {real.text})", axes, 1j * real.elements)
            case "constant":
                value = self.operand(f"Z_{own}", own, self.kind)
                return Drawn(f"((2 - 1j) * {value.text})", axes, (2 - 1j) * value.elements)
            case "rows":
                value = self.operand(f"r_{own[0]}", own[0], self.kind)
                return Drawn(f"({value.text})[:, None]", axes, value.elements[..., None])
            case "columns":
                value = self.operand(f"s_{own[1]}", own[1], self.kind)
                return Drawn(value.text, axes, value.elements[..., None, :])
            case "transposed":
                return self.transposed(self.operand(f"U_{own}", own[::-1], self.kind))
            case "turned":
                value = self.operand(f"Z_{own}", own, self.kind)
                colons = ":, " * (len(axes) - 1)
                return Drawn(value.text.replace("[", f"[{colons}::-1][", 1), axes, value.elements[..., ::-1])
            case "chosen":
                return self.chosen(f"H_{own}", own, self.draw.randrange(len(own)), self.kind)
        return self.operand(f"{self.draw.choice('XYZ')}_{own}", own, self.kind)

    def numbers(self, axes: str, depth: int, more: tuple[Drawn, ...] = ()) -> Drawn:
        """A complex value of at most so many operations, which may contain some values."""
        if depth == 0:
            return self.draw.choice(more) if more and self.draw.random() < 0.6 else self.number(axes)
        one, other = (self.numbers(axes, depth - 1, more) for _ in range(2))
        a, b = one.elements, other.elements
        real = self.expression(axes, 1)
        text, elements = self.draw.choice(
            (
                (f"({one.text} + {other.text})", a + b),
                (f"({one.text} - {other.text})", a - b),
                (f"({one.text} * {other.text})", a * b),
                (f"({one.text} * {other.text}.conj())", a * np.conj(b)),
                (f"({one.text} * {real.text})", a * real.elements),
                (f"({real.text} + {one.text})", real.elements + a),
                (f"(-{one.text}).conj()", -np.conj(a)),
                (f"abs(({one.text}).real)", abs(a.real)),
                (f"tw.where({one.text} == {other.text}, -{one.text}, {other.text})", np.where(a == b, -a, b)),
                (f"tw.where({real.text} < 0.0, {one.text}, {other.text})", np.where(real.elements < 0, a, b)),
                (f"({one.text}.real * {other.text} + 1j * {one.text}.imag)", a.real * b + 1j * a.imag),
            )
        )
        return Drawn(text, axes, elements) if abs(elements).max(initial=0) <= LARGEST else one

    def complex_named(self, name: str, value: Drawn, depth: int) -> Drawn:
        """A small complex value under a name, which varies along all of its dimensions."""
        full = self.operand(
            f"X_{value.axes.removeprefix(self.batch)}", value.axes.removeprefix(self.batch), self.kind
        )
        elements = np.broadcast_to(full.elements + value.elements, self.shape(value.axes))
        text = f"{full.text} + {value.text}"
        if abs(elements).max(initial=0) > 50:
            elements, text = np.broadcast_to(full.elements, elements.shape), full.text
        self.lines.append(f"{' ' * 4 * depth}{name} = {text}")
        return Drawn(name, value.axes, elements)

    def stored(self, name: str, value: Drawn, *, transposed: bool = False) -> None:
        """Store a complex value, or a real one that follows from it."""
        part = self.draw.choice(("", "", ".real", ".imag", "square"))
        a = value.elements
        match part:
            case "square" if (abs(a) ** 2).max(initial=0) <= LARGEST:
                made = Drawn(f"(({value.text}) * ({value.text}).conj()).real", value.axes, abs(a) ** 2)
                made = Drawn(made.text, made.axes, np.round(made.elements))
            case ".real" | ".imag":
                made = Drawn(f"({value.text}){part}", value.axes, getattr(a, part[1:]))
            case _:
                made = value
        axes, elements, text = made.axes, np.broadcast_to(made.elements, self.shape(made.axes)), made.text
        if transposed:
            axes, elements, text = axes[:-2] + axes[:-3:-1], np.swapaxes(elements, -1, -2), f"({text}).T"
        self.kinds[name] = self.kind if np.iscomplexobj(elements) else self.draw.choice(("f32", "f64"))
        if self.kinds[name] == "f64" and self.kind == "c64":
            text = f"({text}).to(tw.f64)"
        self.results[name] = axes, elements
        self.lines.append(f"{' ' * 8}{name}[{', '.join(axes)}] = {text}")

    # ------------------------------------------------------------ forms

    def factor(self, name: str, own: str) -> Drawn:
        """An operand of a product: complex or real, conjugated, scaled, or transposed."""
        kind = self.kind if self.draw.random() < 0.8 else {"c64": "f32", "c128": "f64"}[self.kind]
        value = self.operand(name, own, kind)
        match self.draw.choice(("plain", "plain", "conjugate", "scaled", "transposed")):
            case "conjugate" if kind == self.kind:
                return Drawn(f"{value.text}.conj()", value.axes, np.conj(value.elements))
            case "scaled":
                scale = self.operand(f"scale_{own[-1]}", own[-1], kind)
                return Drawn(
                    f"({value.text} * {scale.text})",
                    value.axes,
                    value.elements * scale.elements[..., None, :],
                )
            case "transposed" if name not in self.results:
                return self.transposed(self.operand(f"{name}t", own[::-1], kind))
        return value

    def products(self) -> None:
        """One or two products, functions of them, and sums of rows."""
        self.lines.append(" " * 8 + "acc = tw.zeros()")
        left, right = self.factor("P", "mk"), self.transposed(self.factor("Q", "nk"))
        made = self.product(left, right, "mn")
        is_less = self.draw.random() < 0.3
        self.lines.append(" " * 8 + "for k in tw.steps(<k>):")
        self.lines.append(" " * 12 + f"acc {'-' if is_less else '+'}= {made.text}")
        total = Drawn("acc", made.axes, -made.elements if is_less else made.elements)
        if not np.iscomplexobj(total.elements):
            total = Drawn("(1j * acc)", made.axes, 1j * total.elements)
        value = self.numbers(self.batch + "mn", self.draw.randint(0, 2), (total,))
        value = Drawn(f"{total.text} + {value.text}", value.axes, total.elements + value.elements)
        self.stored("C", value, transposed=self.draw.random() < 0.2)
        if self.draw.random() < 0.4:
            self.stored("rows", self.reduced(total, 1, "sum"))
        self.tiles_of("mn")

    def elements(self) -> None:
        """Elements, and sums of rows and of columns."""
        value = self.complex_named("x", self.numbers(self.batch + "mn", 2), 2)
        other = self.numbers(self.batch + "mn", 1, (value,))
        form = self.draw.choice(("elements", "rows", "both"))
        if form != "rows":
            made = Drawn(f"{value.text} - {other.text}", value.axes, value.elements - other.elements)
            self.stored("C", made, transposed=self.draw.random() < 0.3)
        if form != "elements":
            self.stored("rows", self.reduced(value, 1, "sum"))
        self.tiles_of("mn")

    def loop(self) -> None:
        """A loop that carries complex sums of rows, and sums of products."""
        body = self.lines
        value = self.complex_named("x", self.numbers(self.batch + "mn", 2), 3)
        starts = [" " * 8 + f"t = tw.zeros((m,), tw.{self.kind})"]
        new = self.reduced(value, 1, "sum")
        body.append(" " * 12 + f"t.assign(t + {new.text})")
        columns = None
        if self.draw.random() < 0.5:
            v = self.operand("V", "ne", self.kind)
            starts.append(" " * 8 + f"acc = tw.zeros((m, e), tw.{self.kind})")
            columns = self.product(value, v, "me")
            body.append(" " * 12 + f"acc += {columns.text}")
        body[:0] = [*starts, " " * 8 + "for n in tw.steps(<n>):"]
        self.stored("rows", replace_text(new, "t"))
        if columns is not None:
            self.stored(
                "C", Drawn("acc + t[:, None]", columns.axes, columns.elements + new.elements[..., None])
            )
        self.tiles_of("me" if columns is not None else "m")

    def tiles_of(self, axes: str) -> None:
        """Write the loop over tiles of these dimensions."""
        names = [*self.batch, *axes]
        extents = f"<{names[0]}>" if len(names) == 1 else f"({', '.join(f'<{one}>' for one in names)})"
        batch = ", batch=1" if self.batch else ""
        self.lines.insert(0, f"    for {', '.join(names)} in tw.tiles({extents}{batch}):")


def drafted(number: int, target: str) -> ComplexDraft:
    """Draw a kernel."""
    draft = ComplexDraft(number, target)
    draft.kind = draft.draw.choice(KINDS)
    draft.draw.choice((draft.products, draft.products, draft.elements, draft.loop))()
    return draft


def carried_out(number: int, target: str) -> str:
    """Compute a random kernel; return what is wrong, or an empty text.

    The reference also computes it under the schedule that is chosen for a GPU.
    """
    wrong = outcome(number, target, drawn=drafted)[0]
    if target == "reference" and not wrong:
        wrong = outcome(number, target, GPUS[number % len(GPUS)], drawn=drafted)[0]
    return wrong
