"""Listings with one deliberately wrong instruction: products in plain HIP, and kernels of the library.

``python -m tests.amdgcn.mutants`` writes all of them to `mutants.json` in this folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from tests.amdgcn.compiled import ARCHS, listing_text, typed
from tests.targets.hip.test_background import ring
from tests.targets.hip.test_turns import SMALL

import tilewright as tw
from tilewright.amdgcn import ListingError, execute
from tilewright.amdgcn.decode import WaitStep
from tilewright.amdgcn.state import Waves
from tilewright.inspect.isa import execute_listing
from tilewright.ops.products import plain
from tilewright.runtime import amdgcn
from tilewright.runtime.executable import Executable

RECORD = Path(__file__).with_name("mutants.json")

Shape = tuple[int, int, int]

SHAPES = ((136, 200, 40), (70, 144, 8), (133, 216, 8), (70, 176, 8), (3, 3, 0))
"""Masks of lanes matter where a tile is cut, in each half of it; without K other waits do."""

SHAPES_OF_OURS = ((70, 144, 8), (136, 200, 72), (133, 216, 40), (70, 176, 8), (3, 8, 0))
"""Whose rows of B are whole runs of 16 bytes; the first has a ragged tile, and finds most."""

SMALLER_SHAPES = ((70, 72, 104), (130, 80, 40), (133, 56, 8), (3, 8, 0))
"""Of tiles of 64 and of 128 rows."""

RINGS: dict[str, tw.Schedule] = {
    "alternating": SMALL,
    "loads into LDS": ring(tw.f16, 3, "staged").schedule,
}
"""Forms of the main loop that nobody chooses unasked."""

IDLE = "nothing on its way"
"""What is said of a wait that never had anything to wait for: without it the listing is as good."""


class Mutant(NamedTuple):
    """A listing in which one line is replaced."""

    line: int
    kind: str
    instruction: str
    text: str


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a listing: no barrier, no wait, weaker waits, other offsets, operands, masks."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for kind, new in _changes(line.strip()):
            yield Mutant(
                number + 1, kind, line.strip(), "\n".join([*lines[:number], new, *lines[number + 1 :]])
            )


def _changes(line: str) -> Iterator[tuple[str, str]]:
    name, _, rest = line.partition(" ")
    if name == "s_barrier":
        yield "dropped barrier", ""
    if name == "s_waitcnt":
        yield "dropped wait", ""
        for found in re.finditer(r"(vmcnt|lgkmcnt)\((\d+)\)", line):
            weaker = f"{found[1]}({int(found[2]) + 1})"
            yield "weaker wait", line[: found.start()] + weaker + line[found.end() :]
    if name.startswith("ds_"):
        yield "shifted offset", _shifted(line)
    if name.startswith(("v_wmma", "v_mfma")):
        d, a, b, c = re.findall(r"[^,\s]+\[[^\]]*\]|[^,\s]+", rest)[:4]
        yield "swapped fragments", f"{name} {d}, {b}, {a}, {c}"
    if "saveexec" in name:
        saved = rest.partition(",")[0]
        wide = name.endswith("64")
        yield "wrong mask", f"s_mov_b{64 if wide else 32} {saved}, exec{'' if wide else '_lo'}"


def _shifted(line: str) -> str:
    if "offset0:" in line:
        return re.sub(r"offset0:(\d+)", lambda found: f"offset0:{int(found[1]) + 2}", line)
    if "offset1:" in line:
        return f"{line} offset0:2"
    if "offset:" in line:
        return re.sub(r"offset:(\d+)", lambda found: f"offset:{int(found[1]) + 16}", line)
    return f"{line} offset:16"


def plain_hip(text: str, shape: Shape) -> bool:
    """Return whether a listing of the small program computes the product."""
    m, n, k = shape
    random = np.random.default_rng(4)
    a, b = (random.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    execute(text, typed([a, b, c, m, n, k]), (-(-n // 128), -(-m // 128)), (256,), stores_once=True)
    return is_product(a, b.T, c)


def ours(made: Executable, order: str, text: str, shape: Shape) -> bool:
    """Return whether a listing of the library does; rows have gaps, so reads past their end show."""
    m, n, k = shape
    random = np.random.default_rng(4)
    extents = (m, k), (n, k) if order == "nt" else (k, n)
    a, b = (random.standard_normal((rows, row + 8)).astype(np.float16)[:, :row] for rows, row in extents)
    b = b.T if order == "nt" else b
    d = np.full((m, n), np.nan, np.float32)
    execute_listing(replace(made, assembly=text), {"A": a, "B": b, "D": d}, stores_once=True)
    return is_product(a, b, d)


def is_product(a: Any, b: Any, found: Any) -> bool:
    """Return whether every element is within the bound of sums in f32."""
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[1] + 2) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))
    return bool(np.all(np.abs(found - wide[0] @ wide[1]) <= bound))


class Subject(NamedTuple):
    """A listing that is right, and how one tells.

    Args:
        text: the listing.
        is_right: whether a listing computes a product of some extents.
        shapes: the extents that are tried.
    """

    text: str
    is_right: Callable[[str, Shape], bool]
    shapes: tuple[Shape, ...]

    def verdict(self, text: str) -> str:
        """Return how a listing is found wrong: the error's class, ``"wrong numbers"``, or "" if it is not."""
        for shape in self.shapes:
            try:
                if not self.is_right(text, shape):
                    return "wrong numbers"
            except ListingError as error:
                return type(error).__name__
        return ""

    def idle_waits(self) -> set[int]:
        """Return lines of waits that had nothing to wait for, at any extents."""
        executed, needed = set[int](), set[int]()
        run = WaitStep.run

        def watched(step: WaitStep, waves: Waves) -> None:
            waits = waves.waits
            before = {stream: done.copy() for stream, done in waits.done.items()}
            run(step, waves)
            executed.add(step.line)
            if any((waits.done[stream] > done).any() for stream, done in before.items()):
                needed.add(step.line)

        with patch.object(WaitStep, "run", watched):
            assert all(self.is_right(self.text, shape) for shape in self.shapes)
        return executed - needed


@functools.cache
def subject(name: str, arch: str) -> Subject:
    """Return the program in plain HIP (``"gemm.hip"``), ``"tw.matmul"`` of f16, or a product with a ring."""
    if name == "gemm.hip":
        return Subject(listing_text("gemm", arch), plain_hip, SHAPES)
    a, b, d = (tw.TensorSpec(dtype, 2, 1, (1, 8), (8, 1), 16, False) for dtype in (tw.f16, tw.f16, tw.f32))
    if name == "tw.matmul":
        made = plain(0).compile(a, b, d, precision="exact", target="hip", arch=arch)
        return Subject(made.assembly, functools.partial(ours, made, "nn"), SHAPES_OF_OURS)
    b = tw.TensorSpec(tw.f16, 2, 0, (8, 1), (1, 8), 16, False)
    bound = plain(0).bind(precision="exact", schedule=RINGS[name])
    made = bound.compile(a, b, d, target="hip", arch=arch)
    return Subject(made.assembly, functools.partial(ours, made, "nt"), SMALLER_SHAPES)


SUBJECTS = [
    *((name, arch) for name in ("gemm.hip", "tw.matmul") for arch in ARCHS),
    *((name, "gfx942") for name in RINGS),
]


def instructions(text: str) -> str:
    """Return a hash of a listing's instructions."""
    found = re.findall(r"^\s+([a-z]\w*_\w+[^;\n]*)", text, re.MULTILINE)
    return hashlib.sha256("\n".join(map(str.strip, found)).encode()).hexdigest()[:16]


def made_of(one: Subject) -> str:
    """Return the subject of a record: the instructions, and the compiler that wrote them."""
    return f"{instructions(one.text)} by {amdgcn.find_toolchain().name} {amdgcn.find_toolchain().version}"


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    record: dict[str, Any] = {"commit": commit.stdout.strip()}
    for name, arch in SUBJECTS:
        one = subject(name, arch)
        idle = one.idle_waits()
        found: dict[str, Counter[str]] = {}
        for mutant in mutants(one.text):
            unseen = IDLE if mutant.line in idle else "NOT FOUND"
            by = one.verdict(mutant.text) or unseen
            found.setdefault(mutant.kind, Counter())[by] += 1
            if by == "NOT FOUND":
                print(f"{name} {arch} line {mutant.line}: {mutant.kind} of {mutant.instruction}", flush=True)
        record[f"{name} {arch}"] = {kind: dict(count) for kind, count in sorted(found.items())}
        record[f"{name} {arch}, listing"] = made_of(one)
        print(f"{name} {arch}: {record[f'{name} {arch}']}", flush=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
