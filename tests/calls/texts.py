"""Damaged texts of flows, kernels and AMD listings are read and used.

A damaged text must soon give a result or an error of the library, without much memory.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from tests.calls.performed import TooSlowError, limited

import tilewright as tw
from tilewright import amdgcn
from tilewright.calls import is_ours

SECONDS = 15.0
"""Processor time that one text may take."""

LETTERS = "()[]{}:,=%@._-+*/#'\"\\ \n\0é0123456789abfmMvs"
NUMBERS = (0, 1, 2, 3, 7, 31, 255, 1 << 31, 1 << 63, 1 << 64, 10**30, -1, -(1 << 40))


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def activated(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.silu(acc + bias[n])


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32)
def attended(Q, K, V, O, scale):
    for m, e in tw.tiles(O):
        top, below, acc = tw.full((m,), -np.inf, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            scores = tw.zeros()
            for d in tw.steps(Q.shape[1]):
                scores += Q[m, d] @ K[n, d].T
            scores = scores * scale
            new = tw.maximum(top, scores.max(axis=1))
            p = tw.exp(scores - new[:, None])
            below.assign(below * tw.exp(top - new) + p.sum(axis=1))
            acc.assign(acc * tw.exp(top - new)[:, None] + p @ V[n, e])
            top.assign(new)
        O[m, e] = acc / below[:, None]


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


ATTENDED = {"Q": ones(9, 4), "K": ones(6, 4), "V": ones(6, 3), "O": ones(9, 3)}
ARRAYS = {"A": ones(9, 5), "B": ones(7, 5), "bias": ones(7), "C": ones(9, 7), **ATTENDED}


def _flow(text: str) -> None:
    flow = tw.ir.parse_flow(text)
    tw.ir.print_flow(flow)
    tw.ir.evaluate(flow, ARRAYS, {"scale": 0.5})


def _kernel(text: str) -> None:
    kernel = tw.ir.parse_kernel(text)
    tw.ir.print_kernel(kernel)
    tw.ir.violations(kernel)


def _listing(text: str) -> None:
    amdgcn.execute(text, [np.arange(64, dtype=np.float32)], grid=(1,), block=(64,))


def _texts() -> dict[str, tuple[str, Callable[[str], None]]]:
    given = (tw.like("f32", 129, 67), tw.like("f32", 104, 67), tw.like("f32", 104), tw.like("f32", 129, 104))
    made = activated.compile(*given, target="reference")
    carried = attended.flow(*(tw.like("f32", *one.shape) for one in ATTENDED.values()), 0.5)
    large = [tw.like("f16", 4096, 4096)] * 2 + [tw.like("f16", 4096), tw.like("f16", 4096, 4096)]
    hopper = activated.trace(*large, target="cuda", arch="sm_90a")
    page = (Path(__file__).parents[2] / "docs" / "amd_listing.md").read_text()
    found = re.search(r'listing = """\n(.*?)"""', page, re.DOTALL)
    assert made.flow is not None
    assert found is not None
    return {
        "flow": (tw.ir.print_flow(made.flow), _flow),
        "flow of a fold": (tw.ir.print_flow(carried), _flow),
        "kernel with bulk copies": (tw.ir.print_kernel(hopper), _kernel),
        "kernel": (tw.ir.print_kernel(made.kernel), _kernel),
        "listing": (found.group(1), _listing),
    }


TEXTS = _texts()
"""Right texts by what they are, and what is done with them."""


def damaged(text: str, rng: Random) -> str:
    """Return a text with another number or word in one place, or with lost, added or repeated letters."""
    if rng.random() < 0.5:
        parts = re.split(r"(\W+)", text)
        words = [place for place, part in enumerate(parts) if re.fullmatch(r"\w+", part)]
        place = rng.choice(words)
        numbers = [one for one in words if parts[one].isdigit()]
        if numbers and rng.random() < 0.5:
            parts[rng.choice(numbers)] = str(rng.choice(NUMBERS))
        else:
            parts[place] = parts[rng.choice(words)]
        return "".join(parts)
    for _ in range(rng.randrange(1, 4)):
        at, length = rng.randrange(len(text)), rng.choice((1, 2, 4, 20, 40))
        piece = rng.choice(("", rng.choice(LETTERS), text[at : at + length]))
        begin = rng.randrange(len(text))
        text = text[:begin] + piece + text[begin + (length if not piece else 0) :]
    return text


class BadEnd(NamedTuple):
    """The wrong outcome of a damaged text, which should have been refused or used."""

    what: str
    where: str
    seed: int


def bad_end(name: str, seed: int) -> BadEnd | None:
    """Damage a text by a seed and use it; return None after a result or an error of the library."""
    text, use = TEXTS[name]
    try:
        with limited(SECONDS):
            use(damaged(text, Random(f"{name} {seed}")))
    except tw.TilewrightError:
        return None
    except (Exception, TooSlowError) as error:  # noqa: BLE001 each of them is what is looked for
        whole = getattr(error, "full_traceback", None) or error.__traceback__
        ours = [(frame, line) for frame, line in traceback.walk_tb(whole) if is_ours(frame)]
        frame, line = ours[-1] if ours else (None, 0)
        where = "" if frame is None else frame.f_code.co_filename.rpartition("tilewright/")[2]
        return BadEnd(f"{type(error).__name__}: {str(error)[:90]}", f"{where}:{line}", seed)
    return None
