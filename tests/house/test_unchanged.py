"""`scripts/unchanged.py` detects a changed text, proposal and bit, and ignores changed names."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.backends import backend_named
from tilewright.schedule.choice import candidates

ROOT = Path(__file__).parents[2]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("unchanged", ROOT / "scripts" / "unchanged.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unchanged"] = module  # by which targets name their parts
    spec.loader.exec_module(module)
    return module


UNCHANGED = script()


@tw.kernel(A="M K", B="K N", bias="N", C="M N")
def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = tw.gelu(acc + bias[n])


@tw.kernel(Ab="Ma Ka", Bc="Ka Na", i="Na", Cd="Ma Na")
def descriptor(Ab, Bc, i, Cd):
    for ma, na in tw.tiles(Cd):
        x = tw.zeros(dtype=tw.f32)
        for ka in tw.steps(Ab.shape[1]):
            x += Ab[ma, ka] @ Bc[ka, na]
        Cd[ma, na] = tw.gelu(x + i[na])


@cache
def text_of(kernel: Any, arch: str) -> tuple[str, str]:
    """Return the text of a kernel for an architecture, and the name of its entry."""
    given = (
        tw.like("f16", 512, 256),
        tw.like("f16", 256, 384),
        tw.like("f16", 384),
        tw.like("f16", 512, 384),
    )
    target = UNCHANGED.owner(arch).name
    listing = backend_named(target).listing(kernel.trace(*given, target=target, arch=arch), arch)
    assert listing is not None
    return listing.text, listing.entry


@pytest.mark.parametrize("arch", ["sm_90a", "x86-64-v3", "gfx942"])
def test_names_and_places_do_not_count(arch: str) -> None:
    """The same eight lines have other names, some of which the library itself uses."""
    one, other = text_of(linear, arch), text_of(descriptor, arch)
    assert one[0] != other[0]
    assert UNCHANGED.normal_text(*one) == UNCHANGED.normal_text(*other)


CHANGES = {
    "a constant": ("sm_90a", r"0\.104835122\d*f", "0.10483513f"),
    "a constant of a processor": ("x86-64-v3", r"0\.104835122\d*f", "0.10483513f"),
    "an instruction": ("sm_90a", r"wgmma\.mma_async\.(\S+)\.f16\.f16", r"wgmma.mma_async.\1.bf16.bf16"),
    "an intrinsic": ("sm_90a", r"__syncwarp\(\)", "__syncthreads()"),
    "a function": ("gfx942", r"half_to_float\(rbias", "bfloat_to_float(rbias"),
    "a sign": ("x86-64-v3", r"\+ convert", "- convert"),
    "an index": ("sm_90a", r"\bA_map\b(?=, s)", "B_map"),
    "another variable": ("gfx942", r"\+ convert\[", "+ part["),
    "two arguments in the other order": ("x86-64-v3", r"(  int M;)\n(.*?)(  int K;)", r"\3\n\2\1"),
}


@pytest.mark.parametrize(("arch", "pattern", "instead"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_text_is_seen(arch: str, pattern: str, instead: str) -> None:
    text, name = text_of(linear, arch)
    changed, count = re.subn(pattern, instead, text, count=1, flags=re.DOTALL)
    assert count, f"there is no {pattern}:\n{text}"
    assert UNCHANGED.normal_text(text, name) != UNCHANGED.normal_text(changed, name)


def test_a_launch_is_written_down() -> None:
    """The record has the launch's arrays, order and text; only the requested parts are produced."""
    with UNCHANGED.machines():
        line = 'matmul(f32(M, K), f32(K, N), precision="f32")'
        pieces = UNCHANGED.RECORDED.pieces = []
        UNCHANGED.called(line, UNCHANGED.EXTENTS["large"], "sm_90a", filled=False)
    heads = pieces[::2]
    assert len(heads) == 2
    assert all("__global__" in text for text in pieces[1::2])
    assert "argument 0 + 0: f32 (2048, 1024) (1024, 1)" in heads[0]


def test_another_order_of_proposals_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        tw.like("f16", 512, 256),
        tw.like("f16", 256, 384),
        tw.like("f16", 384),
        tw.like("f16", 512, 384),
    )
    question = linear.bind().question(*given, target="cuda", arch="sm_90a")
    assert question is not None
    found = candidates(question)
    assert len(found) > UNCHANGED.RANKED
    before = UNCHANGED.ranked(question)
    assert UNCHANGED.ranked(question) == before
    swapped = (*found[:4], found[5], found[4], *found[6:])
    monkeypatch.setattr(UNCHANGED, "candidates", lambda _: swapped)
    assert UNCHANGED.ranked(question) != before


def test_proposals_are_asked_of_every_launch() -> None:
    """Nothing is launched, but the call goes to its end, past the launches before the product."""
    lines = {
        'matmul(f32(M, K), f32(K, N), precision="f32")': ["explicit", "tw.Schedule"],
        'complex_matmul(c64(M, K), c64(K, N), method="3m")': ["explicit", "tw.Schedule"],
        "scaled_mm(f16(M, K), f8e5m2.T(K, N), scale_b=f32(N), prepass=True)": ["explicit", "tw.Schedule"],
        "attention(f16(L, M, 64), f16(L, N, 64), f16(L, N, 64))": ["tw.Schedule"],
    }
    extents = {"L": 3, "M": 1111, "N": 2222, "K": 512}
    with UNCHANGED.machines():
        for line, kinds in lines.items():
            found = [re.split("[(:]", piece)[0] for piece in UNCHANGED._proposed(line, extents, "sm_90a")]
            assert found == kinds, line


def test_another_bit_is_seen() -> None:
    found = np.linspace(-1, 1, 1000).astype(np.float16).reshape(10, 100)
    changed = found.copy()
    changed.view(np.uint16)[3, 7] ^= 1
    assert UNCHANGED.hash_of(found) == UNCHANGED.hash_of(np.asfortranarray(found))
    assert UNCHANGED.hash_of(found) != UNCHANGED.hash_of(changed)
    assert UNCHANGED.hash_of(np.float32([0.0])) != UNCHANGED.hash_of(np.float32([-0.0]))


def test_differences_are_told() -> None:
    before = {"texts": {"one": ["x", "y"], "two": ["z"], "three": ["w"]}}
    now = {"texts": {"one": ["x", "q"], "two": ["z", "z"], "four": ["w"]}}
    assert UNCHANGED.differences(before, before, whole=True) == []
    assert UNCHANGED.differences(before, now, whole=True) == [
        "texts: one: piece 1",
        "texts: two: 1 pieces became 2",
        "texts: four: was not there before",
        "texts: three: is there no more",
    ]
    assert len(UNCHANGED.differences(before, now, whole=False)) == 3


def test_every_member_is_called_with_every_option() -> None:
    """A new member or option needs a line; `forms` covers schedules."""
    missing = []
    for name in UNCHANGED.MEMBERS:
        called = [line for line in UNCHANGED.CALLS if re.search(rf"\b{name}\(", line)]
        assert called, name
        options = inspect.signature(getattr(tw, name)).parameters.values()
        words = {option.name for option in options if option.kind == option.KEYWORD_ONLY}
        words -= {"target", "stream", "schedule"}
        missing += [f"{name}: {word}" for word in words if not any(f"{word}=" in line for line in called)]
    assert not missing


def test_two_trees_have_the_same_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of the repository's files do not count, because another tree lies elsewhere."""
    entry = ("one", lambda: [f"Frame({ROOT}/src/tilewright/ops/matmul.py)"])
    monkeypatch.setattr(UNCHANGED, "PARTS", {"fake": lambda: iter([entry])})
    assert [*UNCHANGED.produced(["fake"])] == [("fake", "one", ["Frame(/src/tilewright/ops/matmul.py)"])]
