"""Listings made wrong in one instruction on purpose; all of them: ``python -m tests.amdgcn.mutants``."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from tests.amdgcn.compiled import ARCHS, listing_text, typed

from tilewright.amdgcn import ListingError, execute

SHAPES = ((136, 200, 40), (70, 144, 8), (133, 216, 8), (70, 176, 8), (3, 3, 0))
"""Masks of lanes matter where a tile is cut, in each half of it; without K other waits do."""


class Mutant(NamedTuple):
    """A listing in which one line is another."""

    line: int
    kind: str
    instruction: str
    text: str


def mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a listing: dropped barriers and waits, weaker waits, other offsets, operands, masks."""
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


def verdict(text: str, shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> str:
    """How a listing of the product is found out: the error's class, ``"wrong numbers"``, or not at all."""
    random = np.random.default_rng(4)
    for m, n, k in shapes:
        a, b = (random.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
        c = np.full((m, n), np.nan, np.float32)
        try:
            execute(text, typed([a, b, c, m, n, k]), (-(-n // 128), -(-m // 128)), (256,), stores_once=True)
        except ListingError as error:
            return type(error).__name__
        wide = a.astype(np.float64), b.astype(np.float64)
        bound = (k + 1) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]).T)
        if not np.all(np.abs(c - wide[0] @ wide[1].T) <= bound):
            return "wrong numbers"
    return ""


def main() -> None:
    for arch in ARCHS:
        found: Counter[tuple[str, str]] = Counter()
        for mutant in mutants(listing_text("gemm", arch)):
            by = verdict(mutant.text)
            found[mutant.kind, by or "NOT FOUND"] += 1
            if not by:
                print(f"{arch} line {mutant.line}: {mutant.kind} of {mutant.instruction} is not found")
        for (kind, by), count in sorted(found.items()):
            print(f"{arch}: {kind}: {count} by {by}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
