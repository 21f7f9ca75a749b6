"""Two successive products as algebra: with nothing in between, and with a softmax (attention)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ops.attending import flow
from tilewright.ops.attending.flow import BySoftmax
from tilewright.schedule.schedule import Schedule
from tilewright.targets.reference.exponentials import BASE, LOWEST, PAIRS, P, Q
from tilewright.targets.reference.residues import PRIME

from .member import Exact, Member, spec

MMA = Schedule(tw.atoms.MMA_F16, (32, 32, 32), (2, 1), 2, "cp_async", width=48, resident=True)
GROUPS = replace(
    MMA,
    atom=tw.atoms.wgmma("f16", 32),
    tile=(128, 32, 32),
    warps=(1, 1),
    staging="tma",
    roles="cooperative",
    groups=2,
    epilogue="staged",
)
LOOPS = {
    "two stages": MMA,
    "64 x 16, at once": replace(MMA, tile=(64, 16, 32), warps=(4, 1), stages=1, staging="direct"),
    "depth in parts": replace(MMA, tile=(32, 16, 16), resident=False),
    "results in parts": replace(MMA, width=16),
    "warpgroups": GROUPS,
    "persistent warpgroups": replace(GROUPS, blocks=2, epilogue="overlapped"),
    "bands": replace(
        GROUPS, tile=(64, 16, 32), atom=tw.atoms.wgmma("f16", 16), groups=1, blocks=3, group_n=1
    ),
}
"""Schedules of loops that carry a state."""


def chain() -> Member:
    """Two successive products, with several tiles, under several schedules."""
    m, k, n, p = 70, 24, 75, 40
    shapes = {"A": (1, m, k), "B": (n, k), "C": (n, p), "D": (1, m, p)}
    ways = {
        name: flow.gemm_chain.bind(activation=None, schedule=schedule) for name, schedule in LOOPS.items()
    }

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        a, b, c = (x[name].reshape(x[name].shape[-2:]) for name in "ABC")
        return {"D": ((a @ b.T % PRIME) @ c).reshape(1, 1, *shapes["D"])}

    return Member(ways, {name: spec("f16", 1, 1, *shape) for name, shape in shapes.items()}, want)


def attention(causal: bool) -> Member:
    """Weighted averages: four heads of queries for two of keys, of several tiles, under several schedules.

    The exponent is 1, so that one score is the largest whether or not it has been multiplied by it.
    """
    (m, n), depth, width, diagonal = (70, 75), 24, 40, 5
    shapes = {
        "Q": (1, 2, 2, m, depth),
        "K": (1, 2, n, depth),
        "V": (1, 2, n, width),
        "O": (1, 2, 2, m, width),
    }
    rows = (1, 2, 2, m)
    # Subtracts first: an exponent chosen by a comparison is no polynomial.
    words: dict[str, Any] = {"between": BySoftmax(power=0.0), "with_lse": True}
    ways = {
        name: flow.attention.bind(**words, scores=flow.Scores(causal), schedule=schedule)
        for name, schedule in LOOPS.items()
    }
    arrays = {name: spec("f16", *shape) for name, shape in shapes.items()} | {"L": spec("f32", *rows)}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        seen = np.arange(n) <= np.arange(m)[:, None] + diagonal if causal else np.ones((m, n), bool)
        averages, logarithms = [], []
        queries = x["Q"].reshape(4, m, depth)
        for head in range(4):
            q, k, v = queries[head], x["K"][0, head // 2], x["V"][0, head // 2]
            scores = q @ k.T
            words = np.where(seen, PAIRS.word((scores % (P * Q)).astype(np.uint64)), LOWEST)
            largest = np.take_along_axis(words, PAIRS.order(words).argmax(1)[:, None], 1)
            base = (largest & np.uint64(2**32 - 1)).astype(object)
            power = np.frompyfunc(lambda score: pow(BASE, int(score), P), 1, 1)
            weights = np.where(seen, power((scores - base) % Q), 0)
            total = weights.sum(1)[:, None] % P
            averages.append(weights @ v * np.frompyfunc(lambda x: pow(x, -1, P), 1, 1)(total))
            logarithm = PAIRS.add(PAIRS.function("log2", [PAIRS.word(total.astype(np.uint64))]), largest)
            logarithms.append(PAIRS.told(PAIRS.multiplied(logarithm, PAIRS.embedded(math.log(2)))))
        found = {"O": np.array(averages), "L": np.array(logarithms).astype(object)}
        return {"O": found["O"].reshape(shapes["O"]), "L": found["L"].reshape(rows)}

    numbers = {"exponent": 1.0, "diagonal": diagonal}
    return Member(ways, arrays | numbers, want, ring=PAIRS)
