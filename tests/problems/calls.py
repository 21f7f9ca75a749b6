"""Random calls of `tw.matmul`: batches, vectors, functions of the sums, and splits of K."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tests.movers.random_movers import Placed
from tests.problems.drawing import EACH, KINDS, Group, extents_of, placed, way
from tests.problems.partitions import PARTITIONS

import tilewright as tw
from tilewright.ops.problem import result_shape
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule

RESULT_SIZED = ("c", "residual")
"""Arguments that are broadcast to the result."""

FUNCTIONS = (None, None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")


@dataclass(frozen=True)
class Call:
    """A call of `tw.matmul`.

    Args:
        number: number of the call.
        group: the properties that it shares with others; the subject is ``"matmul"``.
        shapes: shapes of the arrays, by the names of the arguments.
        places: strides and start of each array, in elements.
        kinds: dtypes of the arrays.
        words: the other arguments.
        in_place: arguments that are ``out`` itself; ``"beta"``: it multiplies the old contents of ``out``.
        integers: whether all numbers are small integers.
    """

    number: int
    group: Group
    shapes: dict[str, tuple[int, ...]]
    places: dict[str, Placed]
    kinds: dict[str, str]
    words: dict[str, Any]
    in_place: tuple[str, ...]
    integers: bool

    def __str__(self) -> str:
        arrays = ", ".join(f"{name} {self.kinds[name]}{shape}" for name, shape in self.shapes.items())
        words = ", ".join(f"{name}={value!r}" for name, value in self.words.items())
        return (
            f"{self.number}, {self.group.partition}: matmul({arrays}; {words}), in place: {self.in_place}, "
            f"{self.group.layout}, strides {[self.places[name].strides for name in self.places]}"
        )

    @property
    def extents(self) -> dict[str, int]:
        """The extents L, M, N and K."""
        a, b = self.shapes["a"], self.shapes["b"]
        batch = np.broadcast_shapes(a[:-2], b[:-2])
        m, n = a[-2] if len(a) > 1 else 1, b[-1] if len(b) > 1 else 1
        return {"L": prod(batch), "M": m, "N": n, "K": a[-1]}

    @property
    def aliases(self) -> list[str]:
        """Return the arguments that are ``out`` itself."""
        return [name for name in self.in_place if name != "beta"]

    @property
    def is_atomic(self) -> bool:
        """Whether parts of K are added in any order."""
        how = self.group.schedule
        return how is not None and how.reduction == "atomic" and how.split_k not in (None, 1)

    def source(self, name: str) -> str:
        """Return an argument's array: its own, ``out``, or None."""
        return "out" if name in self.in_place or (name == "c" and "beta" in self.in_place) else name

    @property
    def scale_of_c(self) -> float:
        """Return the factor of `c`, or of ``out`` instead; 0 if it is not read."""
        beta = self.words.get("beta")
        has_c = "c" in self.shapes or "c" in self.in_place
        return float(has_c) if beta is None else float(beta)


def call(number: int, target: str, partition: str = "") -> Call:
    """Return a call that depends only on number, target and partition; None: all partitions in turn."""
    index, place = divmod(number, EACH)
    group, words, kinds = _shared(index, target, partition)
    draw = random.Random(f"call {number} {target} {partition}")
    extents = extents_of(draw, group, target)
    shapes = _shapes(draw, group, extents)
    made = Call(number, group, shapes, {}, kinds, words, (), draw.random() < 0.3)
    result = result_shape(shapes["a"], shapes["b"])
    for name in kinds:
        if name == "bias":
            shapes[name] = shapes["b"][-1:] if len(shapes["b"]) > 1 else (1,)
        elif name in RESULT_SIZED:
            shapes[name] = _broadcast(draw, result)
        elif name == "out":
            shapes[name] = result
    in_place = tuple(
        name
        for name in RESULT_SIZED
        if name in kinds and "out" in kinds and kinds[name] == kinds["out"] and draw.random() < 0.4
    )
    for name in in_place:
        del shapes[name]
    if words.get("beta") and "c" not in shapes and "c" not in in_place:
        in_place = (*in_place, "beta")
    for name, shape in shapes.items():
        letter, odd = group.layout["ab".index(name) if name in "ab" else 2], place == EACH - 1
        stored = name == "out"
        made.places[name] = placed(
            draw, shape, tw.dtype(kinds[name]), letter, group.padded, stored, odd and not group.padded
        )
    return replace(made, in_place=in_place)


def _shared(index: int, target: str, partition: str) -> tuple[Group, dict[str, Any], dict[str, str]]:
    """Draw the properties that several calls share: dtypes, functions of the sums, and options."""
    draw = random.Random(f"calls {index} {target} {partition}")
    partition = partition or PARTITIONS[index % len(PARTITIONS)]
    kind = draw.choice(KINDS)
    out = _out(draw, kind)
    layout = "".join(draw.choice("nt") for _ in range(2)) + draw.choice("nnnt")
    other = draw.choice((out, out, "f32", "f16", "bf16", "f64", "i8"))
    if out == "i32" and tw.dtype(other).is_float:  # whose fractions it would lose
        other = "i32"
    made = Group(index, partition, "matmul", kind, out, other, layout, draw.random() < 0.5, "")
    words = _words(draw, out)
    if kind == "f32" and target != "cpu" and draw.random() < 0.2:  # processors compile it for 10 seconds
        words["precision"] = "tf32"
    kinds = {"a": kind, "b": kind}
    for name in ("bias", *RESULT_SIZED):
        if draw.random() < 0.35:
            kinds[name] = other
    if draw.random() < 0.7:
        kinds["out"] = out
    elif out != _natural(kind):
        words["out_dtype"] = out
    if draw.random() < 0.35 and ("c" in kinds or "out" in kinds):
        words["beta"] = draw.choice((0, 1, -2, 3) if out == "i32" else (0, 1, -2, 0.5))
    schedule = way(draw, made, target)
    if isinstance(schedule, Schedule):
        words["schedule"] = schedule
    elif isinstance(schedule, Splitting):
        words |= asdict(schedule)
    return replace(made, schedule=schedule), words, kinds


def _natural(kind: str) -> str:
    """Return the dtype of a result without a requested dtype."""
    return "i32" if kind == "i8" else "f16" if kind.startswith("f8") else kind


def _out(draw: random.Random, kind: str) -> str:
    if kind == "i8":
        return draw.choice(("i32", "i32", "f32", "f64"))
    return draw.choice((_natural(kind), _natural(kind), "f32", "bf16", "f64"))


def _words(draw: random.Random, out: str) -> dict[str, Any]:
    """Draw numbers and functions; those of integers give no fractions."""
    words: dict[str, Any] = {}
    whole = out == "i32"
    if draw.random() < 0.4:
        words["alpha"] = draw.choice((2, -1, 0) if whole else (2, -0.5, 0, 1.25))
    if (function := draw.choice(("relu", None) if whole else FUNCTIONS)) is not None:
        words["activation"] = function
    return words


def _shapes(draw: random.Random, group: Group, extents: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Draw shapes of a and b: matrices, broadcast batches of them, and vectors."""
    m, n, k = (extents[name] for name in "MNK")
    items = extents["L"]
    if group.partition == "batches":
        lead: tuple[int, ...] = draw.choice(((items,), (items,), (1, items), (-(-items // 3), 3)))
        return {"a": (*lead, m, k), "b": (*lead, k, n)}
    first, second = draw.choice(
        (((), ()),) * 4
        + (
            ((items,), ()),
            ((), (items,)),
            ((items,), (items,)),
            ((2, 1), (items,)),
            ((items, 1), (1, 2)),
            ((1,), (2, items)),
            ((1, 1), ()),
        )
    )
    made = {"a": (*first, m, k), "b": (*second, k, n)}
    turn = draw.random()
    if turn < 0.06:
        made["a"] = (k,)
    elif turn < 0.12:
        made["b"] = (k,)
    elif turn < 0.14:
        made = {"a": (k,), "b": (k,)}
    return made


def _broadcast(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to another one, mostly the same."""
    if draw.random() < 0.6:
        return shape
    made = tuple(1 if draw.random() < 0.4 else extent for extent in shape)
    return made[draw.randint(0, len(made)) :]
