"""How tensor cores add: the bits that a step keeps, the products that it adds together, and its rounding.

    python benchmarks/sum_bits.py --json results/h100_sum_bits.json
    python benchmarks/sum_bits.py --target model     # what the probes find for known sums

For each atom, a kernel of one step adds few addends, chosen for a question: large ones that cancel, and a
small one that survives or is lost. The large ones are products, or one of them is the accumulator. Then
models of a step (`tilewright.functions.conversions`) are compared with the instruction on random numbers, bit
by bit. The table names the model that agrees, or the nearest one. `--raw` keeps the results for other models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from reporting import arguments, keep, table

import tilewright as tw
from tilewright.functions.conversions import AlignedSum, keep_fraction
from tilewright.ir.mma import MmaAtom
from tilewright.targets.atoms import MMA_SYNC, WGMMA, wgmma

COLUMNS = 64
"""Columns of each atom of ``wgmma``."""

PROBES = 128
"""Rows of one launch."""

Instruction = Callable[[Any, Any, Any], Any]


@tw.kernel(A="M K", B="N K", C="M N", D="M N")
def one_step(A, B, C, D, *, mma):
    """D = C + A Bᵀ by one instruction for each tile."""
    tile_m, tile_n, depth = mma.tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    held = 128 // A.dtype.bytes if mma.atom.asynchronous else depth
    swizzle = 128 if mma.atom.asynchronous else None
    sA = tw.shared((tile_m, held), A.dtype, swizzle=swizzle)
    sB = tw.shared((tile_n, held), B.dtype, swizzle=swizzle)
    acc = tw.load(C.tile((tile_m, tile_n), (m, n)), mma.c())
    tw.copy(A.tile((tile_m, held), (m, 0)), sA, threads=mma.threads)
    tw.copy(B.tile((tile_n, held), (n, 0)), sB, threads=mma.threads)
    if mma.atom.asynchronous:
        tw.hopper.fence_async()
    tw.barrier()
    tw.mma(sA[:, 0:depth], sB[:, 0:depth], acc, mma)
    tw.copy(acc, D.tile((tile_m, tile_n), (m, n)))


def on_target(atom: MmaAtom, target: str) -> Instruction:
    """Run the instruction on a device, or on the reference."""
    bound = one_step.bind(mma=tw.TiledMma(atom))

    def step(a: Any, b: Any, c: Any) -> Any:
        out = np.zeros_like(c)
        if target != "cuda":
            bound(a, b, c, out, target=target)
            return out
        there = [tw.testing.device_put(x, target) for x in (a, b, c, out)]
        assert bound(*there).target == target
        return tw.testing.device_get(there[3])

    return step


def modelled(atom: MmaAtom, model: AlignedSum) -> Instruction:
    """Compute a step by a model."""

    def step(a: Any, b: Any, c: Any) -> Any:
        if atom.precision is not None:
            a, b = (keep_fraction(x, atom.precision, atom.rounding) for x in (a, b))
        return model.add(
            a.astype(np.float64), b.astype(np.float64), c, (atom.a_dtype, atom.b_dtype, atom.c_dtype)
        )

    return step


@dataclass
class Questions:
    """Sums of a few addends each, which one launch computes.

    Args:
        atom: the instruction.
        scale: exponent of both factors of the largest products.
    """

    atom: MmaAtom
    scale: int
    made: list[tuple[dict[int, tuple[float, float]], float]] = field(default_factory=list)

    @classmethod
    def of(cls, atom: MmaAtom) -> Questions:
        """Start without questions."""
        return cls(atom, 4 if atom.c_dtype.bits == 16 else 8)

    @property
    def top(self) -> int:
        """Exponent of the largest products."""
        return 2 * self.scale

    def large(self, sign: float = 1.0, mantissa: float = 1.0) -> tuple[float, float]:
        """Factors of the largest product."""
        return sign * mantissa * 2.0**self.scale, 2.0**self.scale

    def below(self, places: int, size: float = 1.0) -> tuple[float, float]:
        """Factors of a product a number of places below the largest ones."""
        exponent = self.top - places
        return size * 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)

    def ask(self, products: dict[int, tuple[float, float]], c: float = 0.0) -> int:
        """Add a question: a number plus products by their k; return the index of its answer."""
        self.made.append((products, c))
        return len(self.made) - 1

    def answers(self, step: Instruction) -> Any:
        """Return the instruction's results of all questions, as f64."""
        kinds = (self.atom.a_dtype, self.atom.b_dtype, self.atom.c_dtype)
        found = []
        for start in range(0, len(self.made), PROBES):
            part = self.made[start : start + PROBES]
            a, b = np.zeros((2, PROBES, self.atom.shape[2]))
            c = np.zeros((PROBES, PROBES))
            for row, (products, before) in enumerate(part):
                c[row, row] = before
                for k, (left, right) in products.items():
                    a[row, k], b[row, k] = left, right
            given = [x.astype(kind.numpy) for x, kind in zip((a, b, c), kinds, strict=True)]
            found.append(np.diagonal(step(*given)).astype(np.float64)[: len(part)])
        return np.concatenate(found)


PLACES = range(6, 33)
"""Places below the largest addend at which small ones are tried."""


def kept(step: Instruction, atom: MmaAtom) -> dict[str, Any]:
    """Find the last kept place of small addends, by the positions of the large ones and the small one."""
    asked, last = Questions.of(atom), atom.shape[2] - 1
    one, most = 2.0**asked.top, 1.75
    cases: dict[str, Callable[[int], int]] = {
        "large products, small product": lambda at: asked.ask(
            {0: asked.large(), 1: asked.large(-1), 2: asked.below(at)}
        ),
        "large products, small product last": lambda at: asked.ask(
            {0: asked.large(), 1: asked.large(-1), last: asked.below(at)}
        ),
        "large products, small accumulator": lambda at: asked.ask(
            {0: asked.large(), 1: asked.large(-1)}, one * 2.0**-at
        ),
        "large accumulator, small product": lambda at: asked.ask(
            {0: asked.large(-1), 1: asked.below(at)}, one
        ),
        "1.75 in the accumulator": lambda at: asked.ask(
            {0: asked.large(-1, most), 1: asked.below(at)}, most * one
        ),
        "products 1.75 x 1": lambda at: asked.ask(
            {0: asked.large(1, most), 1: asked.large(-1, most), 2: asked.below(at)}
        ),
        "products 1.75 x 1.75": lambda at: asked.ask(
            {k: (sign * most * 2.0**asked.scale, most * 2.0**asked.scale) for k, sign in enumerate((1, -1))}
            | {2: asked.below(at)}
        ),
        "four large products": lambda at: asked.ask(
            {**{k: asked.large(1 if k < 2 else -1) for k in range(4)}, 4: asked.below(at)}
        ),
        "small products beside zero times the largest power": lambda at: asked.ask(
            {
                0: (0.0, powers(atom.b_dtype)[1]),
                1: (powers(atom.a_dtype)[0], powers(atom.b_dtype)[0]),
                2: (-powers(atom.a_dtype)[0], powers(atom.b_dtype)[0]),
            },
            powers(atom.a_dtype)[0] * powers(atom.b_dtype)[0] * 2.0**-at,
        ),
    }
    numbers = {name: [ask(at) for at in PLACES] for name, ask in cases.items()}
    answers = asked.answers(step)
    found = {}
    for name, at in numbers.items():
        left = [place for place, value in zip(PLACES, answers[at], strict=True) if value != 0]
        found[name] = max(left, default=0)
    return found


def roundings(step: Instruction, atom: MmaAtom, bits: int) -> dict[str, float]:
    """Find the remainder of addends below the last kept place, and of sums with more bits than the result."""
    asked, depth = Questions.of(atom), atom.shape[2]
    one, fraction = 2.0**asked.top, atom.c_dtype.mantissa
    unit = one * 2.0**-bits
    large = {0: asked.large(), 1: asked.large(-1)}
    small = {
        "0.75": [(2, asked.below(bits + 1, 1.5))],
        "-0.75": [(2, asked.below(bits + 1, -1.5))],
        "1.75": [(2, asked.below(bits, 1.75))],
        "-1.75": [(2, asked.below(bits, -1.75))],
        "all other k 0.75": [(k, asked.below(bits + 1, 1.5)) for k in range(2, depth)],
        "all other k -0.75": [(k, asked.below(bits + 1, -1.5)) for k in range(2, depth)],
    }
    numbers = {f"of units: {name}": asked.ask({**large, **dict(given)}) for name, given in small.items()}
    last = 2.0**-fraction
    sums = {
        "1 + last/2": ([asked.below(fraction + 1)], 1.0),
        "1 + 3/4 last": ([asked.below(fraction + 1), asked.below(fraction + 2)], 1.0),
        "1 + last + last/2": ([asked.below(fraction + 1)], 1 + last),
        "-1 - 3/4 last": ([asked.below(fraction + 1, -1), asked.below(fraction + 2, -1)], -1.0),
        "1 - last/4": ([asked.below(fraction + 2, -1)], 1.0),
        "1 - last/8": ([asked.below(fraction + 3, -1)], 1.0),
        "1 + (1 + last)": ([asked.large()], 1 + last),
        "1 + (1 + 3 last)": ([asked.large()], 1 + 3 * last),
    }
    rounding = {
        f"of last bits, beyond 1: {name}": asked.ask(dict(enumerate(given)), before * one)
        for name, (given, before) in sums.items()
    }
    answers = asked.answers(step)
    found = {name: float(answers[at] / unit) for name, at in numbers.items()}
    found |= {name: float((abs(answers[at]) / one - 1) / last) for name, at in rounding.items()}
    return found


def grouping(step: Instruction, atom: MmaAtom) -> dict[str, list[int]]:
    """Find the k at which a small product survives, by the k of two large ones that cancel.

    A small product is lost if it is added with the large ones or before them; after them it survives.
    """
    asked, depth, place = Questions.of(atom), atom.shape[2], 30
    numbers = {
        (at, k): asked.ask({at: asked.large(), at + 1: asked.large(-1), k: asked.below(place)})
        for at in range(depth - 1)
        for k in range(depth)
        if k not in (at, at + 1)
    }
    apart = {
        (at, k): asked.ask(
            {at: asked.large(), (at + depth // 2) % depth: asked.large(-1), k: asked.below(place)}
        )
        for at in range(depth // 2)
        for k in range(depth)
        if k % (depth // 2) != at
    }
    before = {
        k: asked.ask({k: asked.large(-1), (k + 1) % depth: asked.below(place)}, 2.0**asked.top)
        for k in range(depth)
    }
    answers = asked.answers(step)
    found = {}
    for title, given in (("neighbours at", numbers), ("half of K apart, at", apart)):
        for at in sorted({at for at, _ in given}):
            found[f"{title} {at}"] = [k for (first, k), n in given.items() if first == at and answers[n] != 0]
    found["accumulator cancelled at k, next one left"] = [k for k, n in before.items() if answers[n] != 0]
    return found


def edges(step: Instruction, atom: MmaAtom) -> dict[str, float]:
    """Probe denormal numbers and the largest ones."""
    asked = Questions.of(atom)
    wide = atom.a_dtype.bits >= 16 and atom.a_dtype.name != "f16"
    cases = {
        "denormal accumulator": ({}, 2.0**-140 if atom.c_dtype.bits == 32 else 2.0**-20),
        "largest of f32 + half its last bit": (
            ({0: (2.0**60, 2.0**43)} if wide else {}),
            float(np.finfo(np.float32).max) if atom.c_dtype.bits == 32 else 65504.0,
        ),
        "sum beyond f32": ({0: (2.0**63, 2.0**63), 1: (2.0**63, 2.0**63)} if wide else {}, 1.7e38 * wide),
        "product 2**-140": ({0: (2.0**-70, 2.0**-70)} if wide else {}, 0.0),
        "product 2**-160 of large sum of two": (
            {0: (2.0**-80, 2.0**-69), 1: (2.0**-80, 2.0**-69)} if wide else {},
            0.0,
        ),
        "least denormal of A x 1": ({0: (least(atom.a_dtype), 1.0)}, 0.0),
    }
    numbers = {name: asked.ask(*given) for name, given in cases.items()}
    answers = asked.answers(step)
    found = {name: float(answers[at]) for name, at in numbers.items()}
    for name, factors in (("of a denormal factor", (least(atom.a_dtype), 1.0)),):
        size = factors[0] * factors[1]
        if size < 2.0**-100:
            continue
        lost = Questions.of(atom)
        at = [lost.ask({0: factors, 1: (-factors[0], factors[1])}, size * 2.0**-place) for place in PLACES]
        values = lost.answers(step)
        found[f"places kept beside products {name}"] = max(
            (place for place, n in zip(PLACES, at, strict=True) if values[n] != 0), default=0
        )
    return found


def powers(kind: tw.DType) -> tuple[float, float]:
    """Return a small power of two, whose square has 32 places below it in f32, and the largest power."""
    ends = ml_dtypes.finfo(kind.numpy)
    return 2.0 ** max(ends.minexp, -40), 2.0 ** (ends.maxexp - 1)


def least(kind: tw.DType) -> float:
    """Return the smallest number of a dtype."""
    bits = np.ones(1, np.dtype(f"u{kind.bytes}"))
    return float(bits.view(kind.numpy)[0])


def drawn(rng: np.random.Generator, atom: MmaAtom, data: str, rows: int) -> tuple[Any, Any, Any]:
    """Draw random A, B and C of a class of data."""
    depth, kinds = atom.shape[2], (atom.a_dtype, atom.b_dtype, atom.c_dtype)
    shapes = ((rows, depth), (rows, depth), (rows, rows))
    a, b, c = (rng.standard_normal(shape) for shape in shapes)
    reach = 3 if 8 in (kinds[0].bits, kinds[1].bits) or kinds[2].bits == 16 else 7
    if data == "wide":
        a, b, c = (x * np.exp2(rng.integers(-reach, reach + 1, x.shape)) for x in (a, b, c))
        c *= np.exp2(rng.integers(-reach, reach + 1, c.shape))
    elif data == "cancelling":
        unit = np.exp2(rng.integers(-reach, reach + 1, (1, depth)))
        a, b = a * unit, b * unit
        half = depth // 2
        a[:, half:], b[:, half:] = -a[:, :half] * (rng.random((rows, half)) < 0.9), b[:, :half]
        c *= 2.0**-reach
    elif data == "large accumulator":
        c *= 2.0 ** (2 * reach)
    elif data == "bits":
        patterns = (
            rng.integers(0, 256, (*shape, kind.bytes), np.uint8).view(np.dtype(f"u{kind.bytes}"))[..., 0]
            for shape, kind in zip(shapes, kinds, strict=True)
        )
        with np.errstate(invalid="ignore"):
            a, b, c = (x.view(kind.numpy).astype(np.float64) for x, kind in zip(patterns, kinds, strict=True))
        a, b, c = (np.where(np.isfinite(x), x, 1.0) for x in (a, b, c))
    elif data == "tiny":
        floor = {"f16": -20, "f8e4m3": -8, "f8e5m2": -15}
        a, b = (
            x * np.exp2(floor.get(kind.name, -66) + rng.integers(-4, 5, x.shape))
            for x, kind in ((a, kinds[0]), (b, kinds[1]))
        )
        ends = floor.get(kinds[0].name, -66) + floor.get(kinds[1].name, -66)
        c *= np.exp2((ends if kinds[2].bits == 32 else -20) + rng.integers(-8, 9, c.shape))
    return a.astype(kinds[0].numpy), b.astype(kinds[1].numpy), c.astype(kinds[2].numpy)


DATA = ("normal", "wide", "cancelling", "large accumulator", "tiny", "bits")


def models(atom: MmaAtom, bits: Sequence[int]) -> Iterator[AlignedSum]:
    """Return the models to try."""
    groups = [group for group in (32, 16, 8, 4, 2) if group <= atom.shape[2]]
    for at, zeros, group in itertools.product(bits, (True, False), groups):
        yield AlignedSum(at, group, zeros=zeros)
        yield AlignedSum(at, group, "nearest", zeros=zeros)
        if at < atom.c_dtype.mantissa:
            yield AlignedSum(at, group, fraction=at, zeros=zeros)


def differing(atom: MmaAtom, model: AlignedSum, cases: dict[str, Any]) -> dict[str, float]:
    """Return the share of elements whose bits differ, by class of data."""
    found = {}
    for name, (given, made) in cases.items():
        expected = modelled(atom, model)(*given)
        same = (made == expected) | (np.isnan(made) & np.isnan(expected))
        found[name] = float(1 - same.mean())
    return found


def fitted(step: Instruction, atom: MmaAtom, bits: int, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model that agrees with the instruction, or the nearest one."""
    rng = np.random.default_rng(0)
    cases = {}
    for data in DATA:
        given = drawn(rng, atom, data, rows)
        cases[data] = given, step(*given)
    near = [at for at in (bits, bits + 1, bits - 1, bits + 2, bits - 2) if at > 0]
    scored = []
    for model in models(atom, near):
        off = differing(atom, model, cases)
        scored.append((sum(off.values()), model))
        if not scored[-1][0]:
            break
    total, model = min(scored, key=lambda one: one[0])
    found = {"model": asdict(model), "agrees": total == 0, "differing": differing(atom, model, cases)}
    return found, {f"{atom.name} {name}": made for name, (_, made) in cases.items()}


def atoms() -> list[MmaAtom]:
    """Return the atoms whose sums lose bits."""
    found = [*MMA_SYNC, *(wgmma(row.a, COLUMNS, row.b, row.c) for row in WGMMA)]
    return [atom for atom in found if atom.sum_bits is not None]


def measured(atom: MmaAtom, step: Instruction, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all findings for an atom, and its results for random numbers."""
    places = kept(step, atom)
    bits = places["large products, small product"]
    model, made = fitted(step, atom, bits, rows)
    found = {
        "atom": atom.name,
        "kept": places,
        "rounding": roundings(step, atom, bits),
        "groups": grouping(step, atom),
        "edges": edges(step, atom),
        **model,
    }
    return found, made


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=("cuda", "reference", "model"), default="cuda")
    parser.add_argument("--atoms", default="", help="atoms whose names contain this")
    parser.add_argument("--raw", type=Path, help="write the atoms' results for random numbers to this .npz")
    asked = parser.parse_args()
    rows, lines, raw = [], [], {}
    chosen = [atom for atom in atoms() if asked.atoms in atom.name]
    for atom in chosen[:: 4 if asked.quick else 1]:
        if asked.target == "model":
            step = modelled(atom, AlignedSum(13 if "e4m3" in atom.name else 25, min(atom.shape[2], 16)))
        else:
            step = on_target(atom, asked.target)
        found, made = measured(atom, step, 64 if asked.quick else 96)
        raw |= made
        rows.append(found)
        model = AlignedSum(**found["model"])
        worst = max(found["differing"].items(), key=lambda one: one[1])
        lines.append(
            (
                atom.name,
                *list(found["kept"].values()),
                model.group,
                model.bits,
                model.rounding,
                "dtype" if model.fraction is None else model.fraction,
                "yes" if model.zeros else "no",
                "yes" if found["agrees"] else "NO",
                f"{worst[1]:.2g} {worst[0]}",
            )
        )
        print(f"\n{atom.name}\n  kept: {found['kept']}\n  rounding: {found['rounding']}")
        left = {
            str(ks): [name for name, at in found["groups"].items() if at == ks]
            for ks in found["groups"].values()
        }
        print(f"  left after others: {left}\n  edges: {found['edges']}")
        print(f"  model {model}: agrees {found['agrees']}, differing {found['differing']}", flush=True)
    head = (
        "atom",
        *(f"({n + 1})" for n in range(len(rows[0]["kept"]))),
        "group",
        "bits",
        "rounds",
        "fraction",
        "zeros",
        "agrees",
        "worst",
    )
    print()
    print(table(head, lines))
    print("\n".join(f"({n + 1}) last place kept: {name}" for n, name in enumerate(rows[0]["kept"])))
    if asked.raw is not None:
        np.savez_compressed(asked.raw, **raw)
    keep(asked, "sum_bits", "cuda" if asked.target == "cuda" else "cpu", rows)


if __name__ == "__main__":
    main()
