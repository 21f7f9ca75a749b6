"""Hash of the schedules that the rules propose; a table of measured schedules is valid for one hash.

    python benchmarks/rules.py [--write]

The corpus is a fixed set of questions for NVIDIA GPUs, the only machines with tables.  The hash changes if
the rules propose other schedules for any of them, or in another order.  Prints the hash; exits with 1 if
`tilewright.schedule.tables.RULES` differs.  ``--write`` writes it there.  All earlier tables are then
refused; ``choices.py --table`` writes the package's table again.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator

from dense_problems import KERNELS, Problem
from reporting import ROOT

from tilewright.schedule.choice import proposals
from tilewright.schedule.tables import RULES

TABLES = ROOT / "src" / "tilewright" / "schedule" / "tables.py"
ARCHS = ("sm_80", "sm_90a")
SHAPES = (
    *((1, 4096, 4096), (48, 4096, 14336), (64, 64, 65536)),
    *((512, 512, 512), (1000, 1000, 1000), (4096, 4096, 4096)),
)
OPERANDS = (
    *(("bf16", layout) for layout in ("nt", "nn", "tn", "tt")),
    *((dtype, "nt") for dtype in ("f16", "f8e4m3", "i8", "f32", "f64")),
    *((dtype, "nn") for dtype in ("f32", "f64")),
)


def corpus() -> Iterator[Problem]:
    """Yield the problems: products of every dtype, and all other kernels."""
    for dtype, layout in OPERANDS:
        for shape in SHAPES:
            yield Problem("", shape, dtype, layout)
    for shape in SHAPES:
        yield Problem("", shape, "f32", kernel="tf32_product")
        yield Problem("", shape, kernel="residual")
    for items, side in ((1000, 32), (512, 128), (16, 2048), (70000, 16)):
        yield Problem("", (side, side, side), kernel="batched", items=items)
        yield Problem("", (side, side, side), "f32", kernel="batched", items=items)
    for rows in (16, 128, 1024):
        yield Problem("", (8 * rows, 4096, 4096), kernel="grouped", sizes=(rows,) * 8)


def proposed(arch: str, problem: Problem) -> Iterator[str]:
    """Return all schedules that the rules propose for a problem, in order."""
    asked = KERNELS[problem.kernel].bind().question(*problem.specimens, target="cuda", arch=arch)
    assert asked is not None
    yield f"{arch}, {problem}"
    yield from (repr(one.schedule) for one in proposals(asked))


def rules_hash() -> str:
    """Return the hash of the proposals for the corpus."""
    digest = hashlib.sha256()
    for arch in ARCHS:
        for problem in corpus():
            for line in proposed(arch, problem):
                digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write it to {TABLES.relative_to(ROOT)}")
    asked, found = parser.parse_args(), rules_hash()
    print(found)
    if asked.write:
        text = TABLES.read_text("utf-8")
        TABLES.write_text(re.sub(r'^RULES = "\w*"$', f'RULES = "{found}"', text, flags=re.MULTILINE), "utf-8")
    elif found != RULES:
        sys.exit(f"the hash is not {RULES}: the rules propose other schedules; --write takes it")


if __name__ == "__main__":
    main()
