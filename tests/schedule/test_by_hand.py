"""Eight lines under a schedule and a hand-written kernel have the same text, except for names."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from tests.eight_lines import product as gemm

import tilewright as tw
from tilewright.schedule import sources

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\S")
WIDE = tw.TensorSpec(tw.f16, 2, 1, (8, 8), (8, 1), 16, False)


def tokens(text: str) -> list[str]:
    """Return the words of a text without its comments."""
    return TOKEN.findall(re.sub(r"//[^\n]*", "", text))


def differences(one: str, other: str) -> list[str]:
    """Return the lines in which two texts differ by more than a consistent renaming."""
    left, right = tokens(one), tokens(other)
    found = [] if len(left) == len(right) else [f"{len(left)} and {len(right)} words"]
    there, back = dict[str, str](), dict[str, str]()
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        named = a.isidentifier() and b.isidentifier()
        if not (named and there.setdefault(a, b) == b and back.setdefault(b, a) == a) and a != b:
            found.append(
                " ".join(left[place - 6 : place + 6]) + "  |  " + " ".join(right[place - 6 : place + 6])
            )
    return found


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def written(dtype: Any, out: Any, bound: Any, arch: str) -> str:
    specs = {"A": tw.like(dtype, 4096, 4096), "B": tw.like(dtype, 4096, 4096), "C": tw.like(out, 4096, 4096)}
    made = bound.compile(*specs.values(), target="cuda", arch=arch)
    assert not made.resources["spill_store_bytes"]
    return str(made.source)


def hopper(dtype: str, columns: int, stages: int, buffers: int, promote: int = 0) -> tw.Schedule:
    return tw.Schedule(
        tw.atoms.wgmma(dtype, columns),
        (128, columns, 128 // tw.dtype(dtype).bytes),
        stages=stages,
        staging="tma",
        roles="cooperative",
        groups=2,
        blocks=132,
        group_m=8,
        promote=promote,
        epilogue="staged",
        buffers=buffers,
    )


@pytest.mark.parametrize(
    ("dtype", "out", "columns", "period"),
    [("bf16", "bf16", 256, 0), ("f16", "f16", 192, 0), ("i8", "i32", 128, 0), ("f8e4m3", "bf16", 128, 4)],
)
def test_the_hopper_gemm(
    dtype: str, out: str, columns: int, period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By hand nothing is said of what the second-level cache keeps: matrices are read by many blocks there.
    monkeypatch.setattr(sources, "_readers", lambda *_: 0)
    names = example("03_hopper_gemm.py")
    stages, buffers = names["STAGES"][columns]
    # What is known of extents makes a text, and eight lines ask for little of it: both get the same.
    spec = {x: coarse_like(t) for x, t in (("A", dtype), ("B", dtype), ("C", out))}
    by_hand = names["bind"](tw.dtype(dtype), columns=columns, period=period or None)
    ours = gemm.bind(schedule=hopper(dtype, columns, stages, buffers, period))
    texts = [bound.compile(*spec.values(), target="cuda", arch="sm_90a").source for bound in (by_hand, ours)]
    assert not differences(*texts)


def coarse_like(dtype: str) -> tw.TensorSpec:
    unit = 16 // tw.dtype(dtype).bytes
    return tw.TensorSpec(tw.dtype(dtype), 2, 1, (1, unit), (unit, 1), 16, False)


def test_the_prefetched_gemm() -> None:
    by_hand = example("07_three_levels_gemm.py")
    schedule = tw.Schedule(tw.atoms.MMA_F16, (128, 128, 32), warps=(2, 2), stages=4, staging="fragments")
    spec = coarse_like("f16")
    texts = [
        bound.compile(spec, spec, spec, target="cuda", arch="sm_80").source
        for bound in (by_hand["bind"](by_hand["prefetched"]), gemm.bind(schedule=schedule))
    ]
    assert not differences(*texts)


def test_what_counts_as_a_difference() -> None:
    assert not differences("int a = b + 1; // one", "int x = y + 1;")
    assert differences("int a = b + 1;", "int x = y + 2;")
    assert differences("int a = b + a;", "int x = y + y;")
    assert differences("int a = b;", "int a = b; a = 1;")
