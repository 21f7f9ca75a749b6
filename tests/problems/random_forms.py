"""Forms of random dataflow kernels: chosen rows, groups, bounds in memory, several sums, and softmax."""

from __future__ import annotations

import numpy as np

from .drafts import LEVELS, POISON, Draft, Drawn, Numbers, looked_up, replace_text, size

U = 2.0**-24
"""Half of a unit in the last place of f32."""


class Forms(Draft):
    """Forms of kernels."""

    # ------------------------------------------------------------ operands of products

    def operands(self) -> None:
        """Products of chosen, decoded, masked and sliced operands, added up over one span or two."""
        kind = self.draw.choice(("f16", "f32"))
        self.lines.append(" " * 8 + "acc = tw.zeros(dtype=tw.f32)")
        left, right = self.side("P", "mk", kind), self.side("Q", "nk", kind)
        made = self.product(left, self.transposed(right), "mn")
        second = self.draw.choice(("", "", "same", "own", "row sums"))
        total = replace_text(made, "acc")
        sums: list[str] = []
        if second == "row sums":
            self.lines.append(" " * 8 + "low = tw.zeros((m,), tw.f32)")
            x = self.operand("P", "mk", kind)
            sums = [" " * 12 + f"low += ({x.text}.to(tw.f32) * {x.text}.to(tw.f32)).sum(axis=1)"]
            squares = (x.elements**2).sum(axis=-1)
        elif second == "own":
            self.lines.append(" " * 8 + "low = tw.zeros(dtype=tw.f32)")
        self.lines.append(" " * 8 + f"for k in tw.steps({size('k')}):")
        self.lines.append(" " * 12 + f"acc += {made.text}")
        self.lines += sums
        value = total
        if second in ("same", "own"):
            name = "acc" if second == "same" else "low"
            more = self.product(self.side("S", "mr", kind), self.transposed(self.side("T", "nr", kind)), "mn")
            self.lines.append(" " * 8 + f"for r in tw.steps({size('r')}):")
            self.lines.append(" " * 12 + f"{name} += {more.text}")
            if second == "same":
                value = total = Drawn("acc", made.axes, made.elements + more.elements)
            else:
                factor, low = self.draw.choice(("2.0", "1.0", "-1.0")), replace_text(more, "low")
                value = Drawn(
                    f"(acc + {factor} * low)", made.axes, total.elements + float(factor) * low.elements
                )
                if self.draw.random() < 0.3:
                    value = Drawn(
                        "(acc - tw.relu(low))", made.axes, total.elements - np.maximum(low.elements, 0)
                    )
        elif second == "row sums":
            value = Drawn("(acc - low[:, None])", made.axes, total.elements - squares[..., None])
        self.ending(value)
        self.tiles("mn", "C")

    def side(self, name: str, own: str, kind: str) -> Drawn:
        """An operand of a product, as (rows, k)."""
        axes = self.batch + own
        match self.draw.choice(
            ("plain", "chosen", "chosen", "along k", "mask", "part", "codes", "scaled", "turned")
        ):
            case "chosen":
                return self.chosen(f"{name}c", own, 0, kind)
            case "along k":
                return self.chosen(f"{name}k", own, 1, kind)
            case "mask":
                made, (mask, seen) = self.operand(name, own, kind), self.mask(own)
                return Drawn(f"tw.where({mask}, {made.text}, 0)", axes, np.where(seen, made.elements, 0.0))
            case "part":
                return self.part(own, self.draw.randrange(2), kind, divided=False)
            case "codes":
                codes = self.integers(f"{name}codes", axes, 0, len(LEVELS), ("i8", "u8", "i32"))
                return Drawn(
                    f"tw.take({LEVELS}, {codes.text}).to(tw.{kind})", axes, looked_up(LEVELS, codes.elements)
                )
            case "scaled":
                codes = self.integers(f"{name}numbers", axes, -2, 3, ("i8",))
                zero = self.operand(f"{name}zero", own[0])
                text = f"({codes.text}.to(tw.f32) - {zero.text}[:, None]).to(tw.{kind})"
                return Drawn(text, axes, codes.elements - zero.elements[..., None])
            case "turned":
                made = self.operand(f"{name}t", own[::-1], kind)
                return Drawn(f"{made.text}.T", axes, np.swapaxes(made.elements, -1, -2))
        return self.operand(name, own, kind)

    def ending(self, value: Drawn) -> None:
        """Store a value of a product under `C`, and what follows from it."""
        axes = self.batch + "mn"
        if self.draw.random() < 0.5:
            more = self.expression(axes, 2, [value])
            value = Drawn(f"({value.text} + {more.text})", axes, value.elements + more.elements)
        if self.draw.random() < 0.3:
            mask, seen = self.mask("mn")
            value = Drawn(f"tw.where({mask}, {value.text}, 0)", axes, np.where(seen, value.elements, 0.0))
        if self.draw.random() < 0.2:
            self.start["C"] = self.rng.integers(-2, 3, self.shape(axes)).astype(np.float64)
            old = Drawn(f"C[{', '.join(axes)}]", axes, self.start["C"])
            value = Drawn(f"{value.text} + {old.text}", axes, value.elements + old.elements)
        self.store("C", value)
        if self.draw.random() < 0.3 and "C" not in self.start:
            more = Drawn(f"tw.relu({value.text})", axes, np.maximum(value.elements, 0))
            self.store("D", more, transposed=self.draw.random() < 0.4)

    # ------------------------------------------------------------ groups of rows

    def groups(self) -> None:
        """Rows in groups: products, loops with bounds in memory, and elements."""
        self.batch, rows = "", self.extents["m"]
        count = self.extents["g"] = self.draw.randint(1, 5)
        ends = np.sort(self.rng.integers(0, rows + 1, count)).astype(np.float64)
        starts = np.append(0.0, ends[:-1])
        words = "groups=ends"
        kind = self.draw.choice(("i32", "i64"))
        if self.draw.random() < 0.4:
            starts, words = np.minimum(starts + self.rng.integers(0, 3, count), ends), "groups=(starts, ends)"
            self.given["starts"] = kind, "g", starts
        self.given["ends"] = kind, "g", ends
        of = np.full(rows, -1)
        for at in range(count):
            of[int(starts[at]) : int(ends[at])] = at
        form = self.draw.choice(("product", "product", "loop", "elements"))
        match form:
            case "product":
                value = self._grouped_product(of)
            case "elements":
                value = self.expression("mn", 2)
                if self.draw.random() < 0.6:
                    scale = self.operand("scale", "g")
                    value = Drawn(
                        f"({value.text} * scale[g])", "mn", value.elements * scale.elements[of][:, None]
                    )
                else:
                    bias = self.operand("bias", "gn")
                    value = Drawn(f"({value.text} + bias[g, n])", "mn", value.elements + bias.elements[of])
            case _:
                self._grouped_loop(of)
                self.lines.insert(0, f"    for g, m in tw.tiles({size('m')}, {words}):")
                return self._outside(of)
        self.store("C", value)
        if form == "product" and self.draw.random() < 0.3:
            self.store(
                "rows", self.reduced(replace_text(value, value.text), 1, self.draw.choice(("sum", "max")))
            )
        self.lines.insert(0, f"    for g, m, n in tw.tiles(({size('m')}, {size('n')}), {words}):")
        return self._outside(of)

    def _outside(self, of: Numbers) -> None:
        """Rows outside of all groups are not stored."""
        for name, (axes, elements) in self.results.items():
            made = np.broadcast_to(elements, self.shape(axes)).copy()
            made[of < 0] = POISON
            self.results[name] = axes, made

    def _grouped_product(self, of: Numbers) -> Drawn:
        kind = self.draw.choice(("f16", "f32"))
        left = self.side("P", "mk", kind) if self.draw.random() < 0.5 else self.operand("P", "mk", kind)
        order = self.draw.choice(("gnk", "gkn"))
        right = self.operand("W", order, kind)
        whole = right.elements if order == "gkn" else right.elements.swapaxes(1, 2)
        made = np.matmul(left.elements[:, None, :], whole[of])[:, 0]
        text = f"W[{', '.join(order)}]" + (".T" if order == "gnk" else "")
        self.lines += [
            " " * 8 + "acc = tw.zeros(dtype=tw.f32)",
            " " * 8 + f"for k in tw.steps({size('k')}):",
            " " * 12 + f"acc += {left.text} @ {text}",
        ]
        value = Drawn("acc", "mn", made)
        if self.draw.random() < 0.5:
            bias = self.operand("bias", "gn")
            value = Drawn("(acc + bias[g, n])", "mn", made + bias.elements[of])
        if self.draw.random() < 0.5:
            more = self.expression("mn", 2, [value])
            value = Drawn(f"({value.text} + {more.text})", "mn", value.elements + more.elements)
        return value

    def _grouped_loop(self, of: Numbers) -> None:
        limits = self.integers("limits", "g", 0, self.extents["n"] + 1, ("i32",))
        x = self.named("x", self.expression("mn", 2), 3)
        seen = np.arange(self.extents["n"]) < limits.elements[of][:, None]
        how = self.draw.choice(("sum", "max"))
        bounds = "end=limits[g]" if self.draw.random() < 0.7 else ""
        if not bounds:
            seen = np.ones_like(seen)
            del self.given["limits"]
        start = "zeros((m,), tw.f32)" if how == "sum" else "full((m,), -99.0, tw.f32)"
        update = "t + x.sum(axis=1)" if how == "sum" else "tw.maximum(t, x.max(axis=1))"
        made = (
            np.where(seen, x.elements, 0.0).sum(1)
            if how == "sum"
            else np.where(seen, x.elements, -99.0).max(1)
        )
        self.lines[:0] = [
            " " * 8 + f"t = tw.{start}",
            " " * 8 + f"for n in tw.steps({size('n')}{', ' + bounds if bounds else ''}):",
        ]
        self.lines.append(" " * 12 + f"t.assign({update})")
        more = self.expression("m", 1)
        self.store(
            "rows",
            Drawn(f"t + {more.text}", "m", np.maximum(made, -99.0 if how == "max" else made) + more.elements),
        )

    # ------------------------------------------------------------ bounds in memory

    def bounded(self) -> None:
        """Products and loops whose steps have bounds in memory, one pair for each batch."""
        self.batch = "b"
        span = self.draw.choice("kn")
        extent = self.extents[span]
        bounds = [self.rng.integers(0, extent + 1, self.extents["b"]).astype(np.float64) for _ in range(2)]
        low, high = np.minimum(*bounds), np.maximum(*bounds)
        words = "begin=begins[b], end=ends[b]"
        match self.draw.choice(("both", "both", "end", "before")):
            case "end":
                low, words = np.zeros_like(low), "end=ends[b]"
            case "before":
                high = np.sort(high)
                low, words = np.append(0.0, high[:-1]), "begin=None, end=ends[b]"
        if "begins" in words:
            self.given["begins"] = "i32", "b", low
        self.given["ends"] = "i32", "b", high
        place = np.arange(extent)
        seen = (place >= low[:, None]) & (place < high[:, None])
        if span == "k":
            kind = self.draw.choice(("f16", "f32"))
            a, b = self.side("P", "mk", kind), self.side("Q", "nk", kind)
            left = np.where(seen[:, None], a.elements, 0.0)
            made = self.product(Drawn(a.text, a.axes, left), self.transposed(b), "mn")
            self.lines += [
                " " * 8 + "acc = tw.zeros(dtype=tw.f32)",
                " " * 8 + f"for k in tw.steps({size('k')}, {words}):",
                " " * 12 + f"acc += {made.text}",
            ]
            self.ending(replace_text(made, "acc"))
            return self.tiles("mn", "C")
        x = self.named("x", self.expression("bmn", 2), 3)
        x = Drawn("x", x.axes, np.broadcast_to(x.elements, self.shape("bmn")))
        made = np.where(seen[:, None], x.elements, 0.0)
        starts = [" " * 8 + "t = tw.zeros((m,), tw.f32)"]
        if self.draw.random() < 0.4:
            sums = np.where(seen[:, None], made.cumsum(axis=-1), POISON)
            self.lines.append(" " * 12 + "S[b, m, n] = t[:, None] + x.cumsum(axis=1)")
            self.results["S"] = "bmn", sums
        self.lines.append(" " * 12 + "t.assign(t + x.sum(axis=1))")
        if self.draw.random() < 0.5:
            starts.append(" " * 8 + "best = tw.full((m,), -99.0, tw.f32)")
            self.lines.append(" " * 12 + "best.assign(tw.maximum(best, x.max(axis=1)))")
            self.results["top"] = "bm", np.where(seen[:, None], x.elements, -99.0).max(axis=-1)
        elif self.draw.random() < 0.5 and "S" not in self.results:
            v = self.operand("V", "ne", "f16")
            starts.append(" " * 8 + "acc = tw.zeros((m, e), tw.f32)")
            self.lines.append(" " * 12 + f"acc += x.to(tw.f16) @ {v.text}")
            self.results["C"] = "bme", made @ v.elements
        self.lines[:0] = [*starts, " " * 8 + f"for n in tw.steps({size('n')}, {words}):"]
        if "top" in self.results:
            self.lines.append(" " * 8 + "top[b, m] = best")
        self.store("rows", Drawn("t", "bm", made.sum(axis=-1)))
        if "C" in self.results:
            self.lines.append(" " * 8 + "C[b, m, e] = acc")
            return self.tiles("me", "C")
        return self.tiles("m", "rows")

    # ------------------------------------------------------------ stores to chosen rows

    def stored(self) -> None:
        """Products and elements that are stored to chosen rows, or added to them."""
        self.batch = ""
        rows, adds = self.extents["m"], self.draw.random() < 0.5
        self.extents["t"] = self.draw.randint(1, 30) if adds else rows + self.draw.randint(0, 5)
        to = (
            self.rng.integers(0, self.extents["t"], rows)
            if adds
            else self.rng.permutation(self.extents["t"])[:rows]
        )
        self.given["to"] = self.draw.choice(("i32", "i64")), "m", to.astype(np.float64)
        if self.draw.random() < 0.6:
            kind = self.draw.choice(("f16", "f32"))
            made = self.product(self.side("P", "mk", kind), self.transposed(self.side("Q", "nk", kind)), "mn")
            self.lines += [
                " " * 8 + "acc = tw.zeros(dtype=tw.f32)",
                " " * 8 + f"for k in tw.steps({size('k')}):",
                " " * 12 + f"acc += {made.text}",
            ]
            value = replace_text(made, "acc")
            if self.draw.random() < 0.5:
                more = self.expression("mn", 2, [value])
                value = Drawn(f"({value.text} + {more.text})", "mn", value.elements + more.elements)
        else:
            value = self.named("x", self.expression("mn", 2), 2)
        elements = np.broadcast_to(value.elements, self.shape("mn"))
        if self.draw.random() < 0.4:
            self.store("D", value)
        shape = self.shape("tn")
        start = self.rng.integers(-2, 3, shape).astype(np.float64) if adds else np.full(shape, POISON)
        made_of = start.copy()
        if adds:
            np.add.at(made_of, to, elements)
        else:
            made_of[to] = elements
        self.start["C"], self.results["C"] = start, ("tn", made_of)
        self.lines.append(" " * 8 + f"C[to[m], n] {'+=' if adds else '='} {value.text}")
        self.lines.insert(0, f"    for m, n in tw.tiles(({size('m')}, {size('n')})):")

    # ------------------------------------------------------------ reductions over rows

    def columns(self) -> None:
        """Reductions along axis 0 of elements, of a whole column, or of a loop over rows."""
        match self.draw.choice(("tiles", "whole", "loop", "steps")):
            case "tiles":
                value = self.named("x", self.expression(self.batch + "mn", 2), 2)
                for name, how in zip(
                    ("columns", "more"), self.draw.sample(("sum", "max", "min"), 2), strict=True
                ):
                    if name == "columns" or self.draw.random() < 0.5:
                        self.store(name, self.reduced(value, 0, how))
                if self.draw.random() < 0.5:
                    other = self.expression(self.batch + "mn", 1, [value])
                    self.store(
                        "C",
                        Drawn(f"{value.text} - {other.text}", value.axes, value.elements - other.elements),
                    )
                return self.sized_tiles("mn")
            case "whole":
                own = self.operand("A_mn", "mn")
                text = f"A_mn[{'b, ' if self.batch else ''}:, n]"
                whole = Drawn(text, own.axes, own.elements)
                how = self.draw.choice(("sum", "max", "min"))
                top = self.reduced(whole, 0, how)
                more = self.expression(self.batch + "n", 2)
                self.store(
                    "columns", Drawn(f"{top.text} + {more.text}", top.axes, top.elements + more.elements)
                )
                if self.draw.random() < 0.4:
                    at = Drawn(
                        f"{text}.argmax(axis=0).to(tw.f32)",
                        top.axes,
                        own.elements.argmax(axis=-2).astype(np.float64),
                    )
                    self.store("places", at)
                return self.sized_tiles("n")
            case "loop":
                value = self.named("x", self.expression(self.batch + "mn", 2), 3)
                how = self.draw.choice(("sum", "max"))
                made = self.reduced(value, 0, how)
                start, update = {
                    "sum": ("zeros((n,), tw.f32)", f"t + {made.text}"),
                    "max": ("full((n,), -9999.0, tw.f32)", f"tw.maximum(t, {made.text})"),
                }[how]
                self.lines.append(" " * 12 + f"t.assign({update})")
                self.lines[:0] = [" " * 8 + f"t = tw.{start}", " " * 8 + f"for m in tw.steps({size('m')}):"]
                more = self.expression(self.batch + "n", 1)
                self.store("columns", Drawn(f"t + {more.text}", made.axes, made.elements + more.elements))
                return self.sized_tiles("n")
        value = self.named("x", self.expression(self.batch + "mn", 2), 3)
        self.lines.append(" " * 12 + "t.assign(t + x.sum(axis=0))")
        self.lines[:0] = [
            " " * 8 + "t = tw.zeros((n,), tw.f32)",
            " " * 8 + f"for m in tw.steps({size('m')}):",
        ]
        at = next(at for at, line in enumerate(self.lines) if "t.assign" in line)
        stored = f"S[{', '.join(self.batch + 'mn')}] = t + x.cumsum(axis=0)"
        self.lines.insert(at, " " * 12 + stored)
        whole_value = np.broadcast_to(value.elements, self.shape(value.axes))
        self.results["S"] = value.axes, whole_value.cumsum(axis=-2)
        self.store("columns", Drawn("t", self.batch + "n", whole_value.sum(axis=-2)))
        return self.sized_tiles("n")

    def sized_tiles(self, axes: str) -> None:
        """Write the loop over tiles, with sizes of any array."""
        names = ", ".join(self.batch + axes)
        sizes = ", ".join(size(one) for one in self.batch + axes)
        extents = sizes if len(self.batch + axes) == 1 else f"({sizes})"
        self.lines.insert(0, f"    for {names} in tw.tiles({extents}{', batch=1' if self.batch else ''}):")

    # ------------------------------------------------------------ vectors, products of products

    def vectors(self) -> None:
        """One tiled dimension: elements, prefix sums, and products of matrices and vectors."""
        axes = self.batch + "m"
        how = self.draw.choice(("elements", "cumsum", "product", "dot", "rows"))
        if how == "elements":
            value = self.named("x", self.expression(axes, 3), 2)
            self.store("y", value)
            if self.draw.random() < 0.5:
                self.store("z", self.expression(axes, 2, [value]))
            return self.sized_tiles("m")
        if how == "cumsum":
            value = self.named("x", self.expression(axes, 2), 2)
            back = self.draw.random() < 0.5
            way = slice(None, None, -1 if back else 1)
            sums = value.elements[..., way].cumsum(axis=-1)[..., way]
            self.store("y", Drawn(f"x.cumsum(axis=0{', reverse=True' if back else ''})", axes, sums))
            return self.sized_tiles("m")
        kind = self.draw.choice(("f16", "f32"))
        a = self.side("P", "mk", kind)
        x = self.operand("x", "k", kind)
        if how == "rows":
            total = Drawn(f"({a.text}.to(tw.f32)).sum(axis=1)", axes, a.elements.sum(axis=-1))
            self.lines += [
                " " * 8 + "acc = tw.zeros((m,), tw.f32)",
                " " * 8 + f"for k in tw.steps({size('k')}):",
                " " * 12 + f"acc.assign(acc + {total.text})",
            ]
        else:
            total = Drawn("", axes, (a.elements @ x.elements[..., None])[..., 0])
            step = f"{a.text} @ {x.text}"
            self.lines += [
                " " * 8 + "acc = tw.zeros(dtype=tw.f32)",
                " " * 8 + f"for k in tw.steps({size('k')}):",
                " " * 12 + f"acc += {step}",
            ]
        value = replace_text(total, "acc")
        more = self.expression(axes, 2, [value])
        self.store("y", Drawn(f"acc + {more.text}", axes, value.elements + more.elements))
        return self.sized_tiles("m")

    def inner(self) -> None:
        """The sum of one product is an operand of another one."""
        self.extents["r"] = self.draw.randint(1, 16)
        axes, lead = self.batch + "mn", f"{self.batch}, " if self.batch else ""
        x, w = self.operand("P", "mk", "f16"), self.operand("Q", "nk", "f16")
        a, b = self.operand("L", "rk", "f16"), self.operand("R", "nr", "f16")
        low = np.clip(x.elements @ a.elements.swapaxes(-1, -2), -99, 99)
        acc = x.elements @ w.elements.swapaxes(-1, -2)
        made = low @ b.elements.swapaxes(-1, -2)
        cut = "tw.maximum(tw.minimum(low, 99.0), -99.0).to(tw.f16)"
        both = self.draw.random() < 0.6
        zeros = ", ".join(["tw.zeros(dtype=tw.f32)"] * (1 + both))
        self.lines += [
            " " * 8 + f"{'acc, low' if both else 'low'} = {zeros}",
            " " * 8 + f"for k in tw.steps({size('k')}):",
        ]
        if both:
            self.lines.append(" " * 12 + f"acc += {x.text} @ {w.text}.T")
        self.lines.append(" " * 12 + f"low += {x.text} @ L[{lead}:, k].T")
        value = Drawn(f"{'acc + ' * both}{cut} @ R[{lead}n].T", axes, made + acc * both)
        if not both:
            del self.given["Q"]
        self.lines.append(" " * 8 + f"total = {value.text}")
        self.ending(replace_text(value, "total"))
        return self.sized_tiles("mn")

    # ------------------------------------------------------------ softmax

    def softmax(self) -> None:
        """Softmax, and the logarithm of its sum, of whole rows, tiles or products."""
        axes = self.batch + "mn"
        way = self.draw.choice(("rows", "tiles", "product"))
        first = f"{self.batch}, m" if self.batch else "m"
        if way == "rows":
            made = self.operand("A_mn", "mn")
            x = Drawn(f"A_mn[{first}]", axes, made.elements)
        elif way == "tiles":
            x = self.expression(axes, 2)
            x = Drawn(
                f"(A_mn[{', '.join(axes)}] + tw.minimum({x.text}, 9.0))",
                axes,
                self.operand("A_mn", "mn").elements + np.minimum(x.elements, 9.0),
            )
        else:
            q, k = self.operand("Q", "mk", "f16"), self.transposed(self.operand("K", "nk", "f16"))
            second = "K[b]" if self.batch else "K"
            x = Drawn(f"Q[{first}] @ {second}.T", axes, q.elements @ k.elements)
        self.lines.append(" " * 8 + f"x = {x.text}")
        elements = np.broadcast_to(x.elements, self.shape(axes))
        if way != "tiles" and self.draw.random() < 0.4:
            ahead = self.draw.randint(0, 20)
            self.lines.append(
                " " * 8
                + f"x = tw.where(tw.positions(x) <= tw.positions(m)[:, None] + {ahead}, x, -float('inf'))"
            )
            seen = np.arange(self.extents["n"]) <= np.arange(self.extents["m"])[:, None] + ahead
            elements = np.where(seen, elements, -np.inf)
        top = elements.max(axis=-1, keepdims=True)
        power = np.exp(elements - top)
        total = power.sum(axis=-1, keepdims=True)
        # exp rounds its argument, which is at most `span` below 0, and its result; sums add up to n terms.
        span = np.where(np.isinf(elements), 0.0, np.abs(elements - top)).max(axis=-1, keepdims=True)
        relative = (self.extents["n"] + 4 * span + 40) * U
        shares = power / total
        stores = self.draw.sample(("C", "lse", "V"), self.draw.randint(1, 2))
        if "V" in stores:
            stores = (
                ["V", "lse"] if "lse" in stores and way != "tiles" else ["V"] if way != "tiles" else ["C"]
            )
        if "lse" in stores:
            text = "x.max(axis=1) + tw.log(tw.exp(x - x.max(axis=1)[:, None]).sum(axis=1))"
            self.lines.append(" " * 8 + f"lse[{', '.join(self.batch + 'm')}] = {text}")
            found = (top + np.log(total))[..., 0]
            self.results["lse"] = self.batch + "m", found
            self.bounds["lse"] = 2 * relative[..., 0] + 16 * U * (np.abs(top[..., 0]) + np.abs(found) + 1)
        if "C" in stores:
            index = ", ".join(axes) if way == "tiles" else first
            self.lines.append(" " * 8 + f"C[{index}] = tw.softmax(x)")
            self.results["C"] = axes, shares
            self.bounds["C"] = 2 * relative * shares + 2.0**-120
        if "V" in stores:
            v = self.operand("V", "ne", "f16")
            text = "V[b, :, e]" if self.batch else "V[:, e]"
            self.results["O"] = self.batch + "me", shares @ v.elements
            sizes = shares @ np.abs(v.elements)
            # Shares are rounded to f16, before or after the division by their sum.
            self.bounds["O"] = (2 * relative + 2.0**-10) * sizes + self.extents["n"] * 2.0**-23
            self.lines.append(
                " " * 8 + f"O[{', '.join(self.batch + 'me')}] = tw.softmax(x).to(tw.f16) @ {text}"
            )
            return self.sized_tiles("me")
        return self.sized_tiles("mn" if way == "tiles" else "m")
