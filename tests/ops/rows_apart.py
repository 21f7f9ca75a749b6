"""The sweep of row counts: with `batch_invariant=True`, a row has the same bits among any other rows.

    python -m tests.ops.rows_apart THREADS MACHINE PART COMPILER CASE...

Runs cases with one compiler of this machine, given by its number, or with each (``each``), in a child process
for each, and prints a line for each pair.  `test_rows_apart.py` asks for one case and one compiler at a time,
`scripts/try_rows.py` for all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import tilewright as tw
from tilewright.runtime import host, native, scheduled
from tilewright.schedule import tables
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import ScheduleTable

Array = np.ndarray[Any, Any]

ROWS = 260
"""Rows of the product whose bits all others must have."""

SHAPES = ((601, 48), (600, 33), (533, 72), (515, 25))
"""K and N. K has two periods of several blocks, the last one cut; N mod 16 is 0, 1, 8 and 9, and N is
more than one micro-tile of f64 at least."""

MACHINES = ("this one", "Zen 3")
"""What texts are compiled for: this processor; or vectors of 8 f32, tuned for a processor for which GCC
avoids chains of fused multiply-adds where it may choose."""


class Case(NamedTuple):
    """A way to call a product.

    Args:
        op: `matmul`, `scaled_mm`, `complex_matmul`, `gated_matmul` or `einsum`.
        a: dtype of the left operand; ``"(f16)"`` for a pair of arrays of f16.
        b: dtype of the right operand.
        orders: for each operand whether rows (``C``) or columns (``F``) are contiguous.
        words: arguments of the call; ``blocks`` gives each 128 places along K scales of their own.
        items: batch items.
        adds: whether c, bias and residual are added.
    """

    op: str
    a: str
    b: str
    orders: str = "CC"
    words: tuple[tuple[str, Any], ...] = ()
    items: int = 0
    adds: bool = False

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.words]
        words += ["c, bias, residual"] if self.adds else []
        words += [f"{self.items} items"] if self.items else []
        return ", ".join([f"{self.op} {self.a} @ {self.b} {self.orders}", *words])


def cases() -> Iterator[Case]:
    """Every dtype, and every option that changes the order of sums or the terms after them."""
    floats = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
    integers = ("boolean", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
    for name in floats + integers:
        yield Case("matmul", name, name)
    yield Case("matmul", "u64", "i64")  # multiplied in f64
    yield Case("matmul", "i16", "u8", words=(("out_dtype", "f32"),))
    for precision in ("f32", "tf32", "f16"):
        yield Case("matmul", "f32", "f32", words=(("precision", precision),))
    yield Case("matmul", "bf16", "bf16", words=(("precision", "f32"),))
    for name, orders in (("f32", "CF"), ("f32", "FC"), ("f32", "FF"), ("f64", "FF"), ("f16", "CF")):
        yield Case("matmul", name, name, orders)
    for split in (
        {"split_k": "auto"},
        {"split_k": 3},
        {"split_k": 2, "reduction": "turnstile"},
    ):
        yield Case("matmul", "f32", "f32", words=(*split.items(),))
    yield Case("matmul", "f16", "f16", words=(("split_k", "auto"),))
    for name, activation in (("f32", "gelu"), ("f16", "silu"), ("f64", "gelu_tanh")):
        words = (("alpha", 0.7), ("beta", -1.3), ("activation", activation))
        yield Case("matmul", name, name, words=words, adds=True)
    for name in ("f32", "f64"):
        yield Case("matmul", name, name, items=40)
    yield Case("matmul", "c64", "c64", "CF")
    for name in ("c64", "c128", "(f16)", "(bf16)"):
        for method in ("4m", "3m"):
            yield Case("complex_matmul", name, name, words=(("method", method),))
    yield Case("complex_matmul", "c32", "c32")
    for precision in ("f32", "tf32", "f16"):
        yield Case("complex_matmul", "c64", "c64", words=(("precision", precision),))
    yield Case("complex_matmul", "c64", "c64", "FC", words=(("conjugate_a", True), ("split_k", "auto")))

    for name, weights in (("f16", "f8e4m3"), ("bf16", "i8"), ("f32", "f8e5m2"), ("f8e4m3", "f8e4m3")):
        yield Case("scaled_mm", name, weights)
    yield Case("scaled_mm", "f16", "i8", "CF", words=(("split_k", "auto"),))
    for split in (
        {"split_k": "auto"},
        {},
    ):  # the second one runs with two threads, where the choice had differed
        yield Case("scaled_mm", "f16", "i8", words=(("blocks", True), ("out_dtype", "f32"), *split.items()))
    for name in ("f64", "f32", "f16", "bf16", "f8e4m3", "i8"):
        yield Case("gated_matmul", name, name)
    yield Case("gated_matmul", "bf16", "i8")
    for name, orders in (("f32", "CC"), ("f16", "FC")):
        yield Case("einsum", name, name, orders)
    yield Case("gated_matmul", "f32", "f32", "CF", words=(("activation", "gelu"), ("split_k", "auto")))


CASES = {str(case): case for case in cases()}


class Product:
    """A product whose single rows are computed again among other rows.

    Args:
        case: how it is called.
        k: the inner extent.
        n: columns of the result.
    """

    def __init__(self, case: Case, k: int, n: int) -> None:
        self._case, self._rng = case, np.random.default_rng(k * 1000 + n)
        rows = (case.items, ROWS) if case.items else (ROWS,)
        self._a = self._drawn(case.a, *rows, k)
        b = self._drawn(case.b, *rows[:-1], k, n)
        gates = self._drawn(case.b, k, n) if case.op == "gated_matmul" else []
        self._b = [np.asfortranarray(part) if case.orders[1] == "F" else part for part in b]
        self._gates = [np.asfortranarray(part) if case.orders[1] == "F" else part for part in gates]
        self._added = self._drawn(case.a, ROWS, n)[0] if case.adds else None
        self._bias = self._drawn(case.a, n)[0] if case.adds else None
        self._scales = self._rng.uniform(0.5, 2, n).astype(np.float32)
        self._block_scales = self._rng.uniform(0.5, 2, (-(-k // 128), n)).astype(np.float32)

    def _drawn(self, name: str, *shape: int) -> list[Array]:
        parts = []
        dtype = tw.dtype(name.strip("()"))
        for _ in range(2 if name[0] == "(" else 1):
            if dtype.kind in ("int", "uint", "bool"):
                low, high = (0, 2) if dtype.kind == "bool" else (-(2**62), 2**62)
                parts.append(self._rng.integers(low, high, shape).astype(dtype.numbers))
                continue
            real = self._rng.standard_normal(shape)
            if dtype.kind != "complex":
                parts.append(real.astype(dtype.numbers))
            elif dtype.name == "c32":
                parts.append(np.zeros(shape, dtype.numpy))
                parts[-1]["re"], parts[-1]["im"] = real, self._rng.standard_normal(shape)
            else:
                parts.append((real + 1j * self._rng.standard_normal(shape)).astype(dtype.numbers))
        return parts

    def rows(self, first: int, count: int) -> Array:
        """Return the bits of some rows, as an array of bytes of shape (parts, ..., rows, bytes of a row)."""
        case, taken = self._case, slice(first, first + count)
        a = [part[..., taken, :] for part in self._a]
        if case.orders[0] == "F":
            a = [np.asfortranarray(part) for part in a]
        words: dict[str, Any] = dict(case.words)
        if case.op == "scaled_mm":
            words["scale_b"] = self._block_scales if words.pop("blocks", False) else self._scales
        if self._added is not None:
            words |= {"c": self._added[taken], "residual": self._added[taken], "bias": self._bias}
        made = getattr(tw, case.op)(
            *(["mk,kn->mn"] if case.op == "einsum" else []),
            *(a if len(a) == 1 else [tuple(a)]),
            self._b[0] if len(self._b) == 1 else tuple(self._b),
            *self._gates,
            batch_invariant=True,
            target="cpu",
            **words,
        )
        parts = made if isinstance(made, tuple) else (made,)
        return np.stack([np.ascontiguousarray(part).view(np.uint8) for part in parts])

    def differing(self, counts: Iterable[int], keep: Callable[[int], None]) -> Iterator[str]:
        """Yield a line for each number of rows with which some row has other bits; rows come from all places.

        Args:
            counts: the numbers of rows.
            keep: is told each number of rows before it is computed.
        """
        keep(ROWS)
        whole = self.rows(0, ROWS)
        for count in counts:
            keep(count)
            first = 37 * count % (ROWS - count + 1)
            made = self.rows(first, count)
            if not np.array_equal(made, whole[..., first : first + count, :]):
                wrong = np.argwhere((made != whole[..., first : first + count, :]).any(-1))
                yield f"{count} rows from {first}: {len(wrong)} rows differ, the first at {wrong[0]}"


class Choices:
    """Schedules that one child process chose, for the next child; they do not depend on the compiler."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Schedule] = {}
        self._call: tuple[Any, ...] = ()
        self._chosen = tables.chosen

    def begin(self, *call: Any) -> None:
        """Begin another call; its choices are kept in their order."""
        self._call = call

    def chosen(self, question: Question, table: ScheduleTable | None) -> Schedule:
        """Return the choice for a problem of the call."""
        self._call = key = (*self._call, question.extents, question.processors, question.arch.name)
        if key not in self.known:
            self.known[key] = self._chosen(question, table)
        return self.known[key]


def run(case: Case, compiler: str, threads: int, machine: str, part: int, choices: Choices) -> list[str]:
    """Yield the differences in this process; the last line counts the comparisons.

    Args:
        case: how products are called.
        compiler: name of the toolchain.
        threads: of the CPU target.
        machine: one of `MACHINES`.
        part: 0 for each number of rows with each of `SHAPES`; from 1 to 12: one in twelve with two of the
            shapes, others in another part.
        choices: schedules that are known.
    """
    os.environ["TILEWRIGHT_THREADS"] = str(threads)
    toolchain = next(one for one in native.find_toolchains() if one.name == compiler)
    with ExitStack() as patches:

        def replace(owner: Any, name: str, value: Any) -> None:
            patches.enter_context(patch.object(owner, name, value))

        replace(native, "find_toolchains", lambda path=None: (toolchain,))
        replace(scheduled, "chosen", choices.chosen)
        if machine == "Zen 3" and platform.machine() == "x86_64":
            replace(native, "ARITHMETIC", (*native.ARITHMETIC, "-mtune=znver3"))
            if native.host_arch() == "x86-64-v4":
                replace(native, "NATIVE", "-march=x86-64-v3")
                replace(host, "host_arch", lambda: "x86-64-v3")
        found, compared = [], 0
        for number, (k, n) in enumerate(SHAPES):
            if part and (part + number) % 2:
                continue
            counts = range(1 + (part + 3 * number) % 12, ROWS, 12) if part else range(1, ROWS)
            product = Product(case, k, n)
            lines = product.differing(counts, partial(choices.begin, case, k, n))
            found += [f"K={k}, N={n}: {line}" for line in lines]
            compared += len(counts)
    return [*found, str(compared)]


def tried(
    case: Case, threads: int, machine: str, part: int, compiler: str
) -> Iterator[tuple[str, list[str]]]:
    """Yield compilers with the lines of `run`, in a child process that gets the earlier choices."""
    context = multiprocessing.get_context("fork")
    choices = Choices()
    toolchains = native.find_toolchains()
    for toolchain in toolchains if compiler == "each" else [toolchains[int(compiler) % len(toolchains)]]:
        ours, theirs = context.Pipe(duplex=False)
        asked = (case, toolchain.name, threads, machine, part)
        child = context.Process(target=_told, args=(theirs, choices, *asked))
        child.start()
        theirs.close()
        try:
            lines, choices.known = ours.recv()
        except EOFError:
            lines = ["the process ended without an answer"]
        child.join()
        yield toolchain.name, lines


def _told(
    pipe: Any, choices: Choices, case: Case, compiler: str, threads: int, machine: str, part: int
) -> None:
    lines = run(case, compiler, threads, machine, part, choices)
    pipe.send((lines, choices.known))


def command(threads: int, machine: str, part: int, compiler: str, *names: str) -> list[str]:
    """Return the command that runs cases in a new process, from the root of the repository."""
    words = str(threads), machine, str(part), compiler
    return [sys.executable, "-m", "tests.ops.rows_apart", *words, *names]


def main() -> int:
    """See the top of this file."""
    threads, machine, part, chosen, *names = sys.argv[1:]
    wrong = 0
    for name in names:
        for compiler, lines in tried(CASES[name], int(threads), machine, int(part), chosen):
            *found, compared = lines
            is_right = not found and compared.isdigit()
            wrong += not is_right
            said = f"{compared} numbers of rows" if is_right else "WRONG\n    " + "\n    ".join(lines)
            print(f"{name}; {compiler}, {threads} threads, {machine}: {said}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
