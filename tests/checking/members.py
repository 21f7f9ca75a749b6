"""Members of the GEMM family as algebra: kernels under many schedules, and the polynomial that they all are.

Each has extents of several ragged tiles and steps; `Member.want` computes with Python's integers modulo
`PRIME`, of the same residues.  What the members are is said by the numbers of each array, not by a kernel.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import tilewright as tw
from tilewright.ops.attending import by_warpgroups, by_warps
from tilewright.ops.attending.activated import ByActivation
from tilewright.ops.attending.softmax import BySoftmax
from tilewright.ops.attending.tiles import WarpgroupTiles, WarpTiles
from tilewright.ops.complex_products import four_products, products_of_halves, three_products
from tilewright.ops.contraction import posed
from tilewright.ops.contractions import IN_KERNEL
from tilewright.ops.einsum import Dropout, bound_for
from tilewright.ops.planning import Wanted
from tilewright.ops.products import (
    BLOCK,
    combined,
    grouped,
    in_halves,
    plain,
    scaled,
    scaled_by_blocks,
    scaled_in_groups,
)
from tilewright.ops.subscripts import read_subscripts
from tilewright.runtime.arrays import describe
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.targets.reference.exponentials import BASE, LOWEST, PAIRS, P, Q
from tilewright.targets.reference.residues import MODULO_PRIME, PRIME, Ring, residue

M, N, K = 40, 24, 80
"""Two tiles along M and N, and three steps along K, all cut; rows of whole 16 bytes, for bulk copies."""

Exact = np.ndarray[Any, Any]
"""Python's integers."""

WRITTEN = ("D", "out", "out_im", "O", "L")
"""What the members' kernels write."""

SYNC = tw.Schedule(tw.atoms.MMA_F16, (32, 16, 32), warps=(2, 1), stages=3, staging="cp_async")
BULK = tw.Schedule(
    tw.atoms.wgmma("f16", 16), (64, 16, 64), stages=2, staging="tma", roles="cooperative", epilogue="direct"
)
SPLIT = {
    "split by workspace": replace(SYNC, split_k=2),
    "split by turnstile": replace(SYNC, split_k=2, reduction="turnstile"),
    "stream-K": replace(SYNC, split_k="stream", blocks=3),
}
DIRECT = replace(SYNC, staging="direct", stages=1)
"""Without a ring of stages: each operation stands in its kernel once."""
PARTITIONS = {
    "direct": DIRECT,
    "data-parallel": SYNC,
    "bulk copies": BULK,
    "swapped": replace(SYNC, swap_ab=True),
    **SPLIT,
}
PROMOTED = {name: replace(one, promote=1) for name, one in PARTITIONS.items()}
FRAGMENTS = replace(SYNC, staging="fragments")
DECODED = {
    "fragments": FRAGMENTS,
    "swapped fragments": replace(FRAGMENTS, swap_ab=True),
    "split fragments": replace(FRAGMENTS, split_k=2),
    "bulk copies": replace(BULK, tile=(64, 16, 128), swap_ab=True),
}


@dataclass(frozen=True)
class Member:
    """A member of the family.

    Args:
        ways: kernels that are to be the same, by what distinguishes them; the first one has mutants.
        like: specimens of the arrays, and numbers, by parameter.
        want: what they write, by parameter, given the residues of the arrays that are read.
        given: residues that are not random.
        ring: what they are residues of.
    """

    ways: Mapping[str, Bound]
    like: Mapping[str, Any]
    want: Callable[[dict[str, Exact]], dict[str, Exact]]
    given: Mapping[str, Any] = field(default_factory=dict)
    ring: Ring = MODULO_PRIME

    @property
    def modulus(self) -> int:
        """Of what every way writes."""
        return PRIME if self.ring is MODULO_PRIME else P

    def residues(self) -> dict[str, Any]:
        """Of all arrays of floats that are read."""
        arrays = {name: self.like[name] for name in self.like.keys() - {*WRITTEN}}
        arrays = {name: one for name, one in arrays.items() if hasattr(one, "shape")}
        floats = {name: one for name, one in arrays.items() if tw.dtype(one.dtype).is_float}
        return {name: drawn(name, one.shape) for name, one in floats.items()} | dict(self.given)

    def arguments(self, bound: Bound) -> list[Any]:
        """Specimens and numbers, in the order of a kernel's parameters."""
        return [self.like[one.name] for one in bound.program.parameters if one.name in self.like]

    def polynomial(self) -> dict[str, Exact]:
        """What every way is to write, modulo `modulus`."""
        integers = {name: one for name, one in self.like.items() if isinstance(one, np.ndarray)}
        exact = {name: one.astype(object) for name, one in (integers | self.residues()).items()}
        return {name: one % self.modulus for name, one in self.want(exact).items()}


def drawn(name: str, shape: tuple[int, ...]) -> Any:
    """Residues that follow from the name."""
    return np.random.default_rng(zlib.crc32(name.encode())).integers(0, PRIME, shape, np.uint64)


def under(kernel: Kernel, schedules: Mapping[str, tw.Schedule], **words: Any) -> dict[str, Bound]:
    """A kernel under each of some schedules."""
    return {name: kernel.bind(**words, schedule=one) for name, one in schedules.items()}


def _like(kind: str, *shape: int, turned: bool = False) -> Any:
    """A specimen, row by row or, each matrix, column by column."""
    *lead, rows, columns = shape if len(shape) > 1 else (1, *shape)
    inner = (1, rows) if turned else (columns, 1)
    steps = [rows * columns * int(np.prod(lead[at + 1 :])) for at in range(len(lead))]
    return tw.like(kind, *shape, strides=(*steps, *inner)[-len(shape) :])


def _batched() -> Member:
    schedules = PARTITIONS | {"several batch items": replace(SYNC, batches=2)}
    like = {"A": _like("f16", 3, M, K), "B": _like("f16", 3, K, N, turned=True), "D": _like("f32", 3, M, N)}
    return Member(under(plain(1), schedules, precision="exact"), like, lambda x: {"D": x["A"] @ x["B"]})


def _combined() -> Member:
    like = {name: _like("f32", M, N) for name in "CRD"} | {"bias": _like("f32", N)}
    like |= {"A": _like("f16", M, K), "B": _like("f16", K, N, turned=True), "alpha": 0.75, "beta": -3.0}
    words = {"precision": "exact", "terms": frozenset(["alpha", "c", "bias", "residual"]), "activation": None}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        alpha, beta = residue(0.75), residue(-3.0)
        return {"D": alpha * (x["A"] @ x["B"]) + beta * x["C"] + x["bias"] + x["R"]}

    return Member(under(combined(0, tw.f32), PARTITIONS, **words), like, want)


def _grouped() -> Member:
    ends = np.array([3, 3, 37, M], np.int32)
    like = {"A": _like("f16", M, K), "B": _like("f16", 4, K, N, turned=True), "ends": ends}
    like |= {"bias": _like("f32", 4, N), "D": _like("f32", M, N)}
    words = {"precision": "exact", "terms": frozenset(["bias"]), "activation": None}
    schedules = {"direct": DIRECT, "persistent": replace(SYNC, blocks=2), "bulk copies": BULK}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        at = np.searchsorted(ends, np.arange(M), side="right")
        return {"D": np.stack([x["A"][m] @ x["B"][at[m]] + x["bias"][at[m]] for m in range(M)])}

    return Member(under(grouped(tw.f32), schedules, **words), like, want)


def _scaled() -> Member:
    like = {"A": _like("f16", M, K), "B": _like("f8e4m3", K, N, turned=True), "D": _like("f16", M, N)}
    like |= {"scale_a": _like("f32", M), "scale_b": _like("f32", N), "bias": _like("f32", N), "alpha": 1.0}
    terms = frozenset(["scale_a", "scale_b", "bias"])
    ways = under(scaled(0), DECODED, multiplied=tw.f16, terms=terms, activation=None)
    return Member(
        ways, like, lambda x: {"D": x["A"] @ x["B"] * x["scale_a"][:, None] * x["scale_b"] + x["bias"]}
    )


def _scaled_in_groups() -> Member:
    """Of whole numbers of 8 bits, with scales and zero points of groups of 32."""
    depth, group = 96, 32
    b = np.random.default_rng(0).integers(-128, 128, (N, depth)).astype(np.int8).T
    like = {"A": _like("f16", M, depth), "B": b, "D": _like("f16", M, N), "alpha": 1.0}
    like |= {"scale_b": _like("f16", 3, N), "zero_b": _like("f16", 3, N)}
    like |= {"scale_a": _like("f32", M), "bias": _like("f32", N)}
    terms = frozenset(["scale_a", "scale_b", "zero_b", "bias"])
    schedules = {name: one for name, one in DECODED.items() if name != "bulk copies"}
    ways = under(scaled_in_groups(0), schedules, multiplied=tw.f16, group=group, terms=terms, activation=None)

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        zero, scale = (np.repeat(x[name], group, axis=0) for name in ("zero_b", "scale_b"))
        return {"D": x["A"] @ ((x["B"] - zero) * scale) * x["scale_a"][:, None] + x["bias"]}

    return Member(ways, like, want)


def _scaled_by_blocks() -> Member:
    """Of two blocks along K and a ragged one, with scales of each row and of blocks of columns."""
    depth = 2 * BLOCK + 16
    like = {
        "A": _like("f16", M, depth),
        "B": _like("f16", depth, N, turned=True),
        "D": _like("f32", M, N),
        "alpha": 1.0,
    }
    like |= {"scale_a": _like("f32", M, 3), "scale_b": _like("f32", 3, 1), "bias": _like("f32", N)}
    terms = frozenset(["scale_a", "scale_b", "bias"])
    schedules = {
        "direct": replace(DIRECT, promote=2),
        "each block": replace(SYNC, promote=BLOCK // 32),
        "half of each": replace(SYNC, promote=BLOCK // 64),
        "each step": replace(SYNC, promote=1),
        "swapped": replace(SYNC, promote=2, swap_ab=True),
        "split": replace(SYNC, promote=4, split_k=2),
        "bulk copies": replace(BULK, promote=2),
    }
    words = {"multiplied": tw.f16, "shared": (1, BLOCK), "terms": terms, "activation": None}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        total: Any = x["bias"]
        for block, at in enumerate(range(0, depth, BLOCK)):
            part = x["A"][:, at : at + BLOCK] @ x["B"][at : at + BLOCK]
            total = total + part * x["scale_a"][:, block, None] * x["scale_b"][block, 0]
        return {"D": total}

    return Member(under(scaled_by_blocks(0), schedules, **words), like, want)


def _in_halves() -> Member:
    """The grade f32: three products of four halves, in the units of rows and columns."""
    like = {name: _like("f16", M, K) for name in ("A1", "A2")}
    like |= {name: _like("f16", K, N, turned=True) for name in ("B1", "B2")}
    like |= {"p": _like("f32", M), "q": _like("f32", N), "bias": _like("f32", N)}
    like |= {name: _like("f32", M, N) for name in "CRD"} | {"alpha": 1.0, "beta": 0.0}
    words = {"both": True, "terms": frozenset(["bias"]), "activation": None}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        sums = x["A1"] @ x["B1"] + x["A1"] @ x["B2"] + x["A2"] @ x["B1"]
        return {"D": sums * x["p"][:, None] ** 2 * x["q"] ** 2 + x["bias"]}

    return Member(under(in_halves(0, tw.f32), PROMOTED, **words), like, want)


ALPHA, BETA = 0.5 - 2j, 3 + 1j


def _complex(names: tuple[str, ...], kind: str, extents: tuple[int, int, int] = (M, N, K)) -> dict[str, Any]:
    """Specimens of planes of complex operands, and what else their kernels take."""
    m, n, k = extents
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "out": (m, n)}
    like = {}
    for name in names:
        shape = next(shape for first, shape in shapes.items() if name.startswith(first))
        own = kind if name[0] in "ab" else "f32"
        like |= {part: _like(own, *shape, turned=name[0] == "b") for part in (name, f"{name}_im")}
    like |= {"alpha_re": ALPHA.real, "alpha_im": ALPHA.imag, "beta_re": BETA.real, "beta_im": BETA.imag}
    return like


TERMS = {
    "terms": frozenset(["alpha", "turn", "c", "turn c"]),
    "conjugates": (True, False, False),
}


def _finished(re: Exact, im: Exact, x: dict[str, Exact]) -> dict[str, Exact]:
    numbers = (residue(one) for one in (ALPHA.real, ALPHA.imag, BETA.real, BETA.imag))
    a, a_im, b, b_im = numbers
    return {
        "out": a * re - a_im * im + b * x["c"] - b_im * x["c_im"],
        "out_im": a * im + a_im * re + b * x["c_im"] + b_im * x["c"],
    }


def _multiplied(x: dict[str, Exact]) -> dict[str, Exact]:
    a, a_im, b, b_im = x["a"], -x["a_im"], x["b"], x["b_im"]
    return _finished(a @ b - a_im @ b_im, a @ b_im + a_im @ b, x)


def _four() -> Member:
    schedules = {
        name: one for name, one in PARTITIONS.items() if "split" not in name and "stream" not in name
    }
    words = {"precision": "exact", **TERMS}
    like = _complex(("a", "b", "c", "out"), "f16")
    return Member(under(four_products(0, tw.f32), schedules, **words), like, _multiplied)


def _three() -> Member:
    """With the sums of both parts of each operand, the first conjugated, as arrays of their own."""
    like = _complex(("a", "b", "c", "out"), "f16")
    like |= {"a_sum": like["a"], "b_sum": like["b"]}
    held = {name: drawn(name, (M, K) if name[0] == "a" else (K, N)) for name in ("a", "a_im", "b", "b_im")}
    sums = {"a_sum": held["a"] + (PRIME - held["a_im"]), "b_sum": held["b"] + held["b_im"]}
    schedules = {
        name: one for name, one in PARTITIONS.items() if "split" not in name and "stream" not in name
    }
    ways = under(three_products(0, tw.f32), schedules, precision="exact", **TERMS)
    return Member(ways, like, _multiplied, {name: one % np.uint64(PRIME) for name, one in sums.items()})


def _complex_halves() -> Member:
    m, n, k = 24, 16, 40
    like = _complex(("a1", "a2", "b1", "b2", "c", "out"), "f16", (m, n, k))
    like |= {"p": _like("f32", m), "q": _like("f32", n)}
    schedules = {"direct": replace(DIRECT, promote=1), "bulk copies": replace(BULK, promote=1)}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        unit = x["p"][:, None] ** 2 * x["q"] ** 2
        re: Any = 0
        im: Any = 0
        for i, j in ((1, 1), (1, 2), (2, 1)):
            a, a_im, b, b_im = x[f"a{i}"], -x[f"a{i}_im"], x[f"b{j}"], x[f"b{j}_im"]
            re, im = re + a @ b - a_im @ b_im, im + a @ b_im + a_im @ b
        return _finished(re * unit % PRIME, im * unit % PRIME, x)

    return Member(under(products_of_halves(0, tw.f32), schedules, **TERMS), like, want)


def _contraction(subscripts: str, *shapes: tuple[int, ...]) -> Member:
    """A contraction with a permuted result, and what is added in its order; all seen as matrices."""
    named = read_subscripts(subscripts, [len(shape) for shape in shapes])
    extents = dict(zip(named.a + named.b, shapes[0] + shapes[1], strict=True))
    of = dict(zip(("a", "b"), shapes, strict=True))
    of |= dict.fromkeys(("residual", "out"), tuple(extents[label] for label in named.out))
    kinds = {"a": "f16", "b": "f16", "residual": "f32", "out": "f32"}
    infos = {name: describe(np.empty(shape, kinds[name].replace("f", "float"))) for name, shape in of.items()}
    problem = posed(named, infos)
    names = dict(zip(IN_KERNEL, "ABXYRD", strict=True))
    seen = {name: problem.infos.get(name, problem.infos["out"]) for name in IN_KERNEL}
    like = {
        names[name]: tw.like(info.dtype, *info.shape, strides=info.strides) for name, info in seen.items()
    }
    like |= dict(
        zip(("alpha", "seed", "offset", "threshold", "scale"), (1.0, *Dropout().numbers), strict=True)
    )
    whole = {name: drawn(name, of[name]) for name in ("a", "b", "residual")}

    def view(name: str, array: Any) -> Any:
        return as_strided(array, seen[name].shape, [8 * step for step in seen[name].strides])

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        a, b, residual = (whole[name].astype(object) for name in ("a", "b", "residual"))
        made = np.einsum(subscripts, a, b) + residual
        return {"D": view("out", np.ascontiguousarray(made % PRIME).astype(np.uint64)).astype(object)}

    given = {names[name]: view(name, array) for name, array in whole.items()}
    schedules = {name: replace(one, tile=(32, 64, 32)) for name, one in PARTITIONS.items()}
    schedules["bulk copies"] = replace(BULK, tile=(64, 64, 64), atom=tw.atoms.wgmma("f16", 64))
    ways = {name: bound_for(problem, infos, Wanted(schedule=one)) for name, one in schedules.items()}
    return Member(ways, like, want, given)


def _chain() -> Member:
    """Two products with nothing between them, by warps and by warpgroups, of several tiles."""
    m, k, n, p = 70, 24, 75, 40
    shapes = {"A": (m, k), "B": (n, k), "C": (n, p), "D": (m, p)}
    between = ByActivation(None)
    ways = {
        f"warps, {rows} x {keys}": by_warps.gemm_chain.bind(
            between=between, tiles=WarpTiles(rows, keys, 32, 48, rows // 16, tw.atoms.MMA_F16)
        )
        for rows, keys in ((32, 32), (64, 16))
    }
    tiles = WarpgroupTiles(32, 48, 32, 2, 1, own_output=False)
    ways["warpgroups"] = by_warpgroups.gemm_chain.bind(between=between, tiles=tiles, blocks=2)

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        a, b, c = (x[name][0, 0] for name in "ABC")
        return {"D": ((a @ b.T % PRIME) @ c)[None, None]}

    return Member(ways, {name: _like("f16", 1, 1, *shape) for name, shape in shapes.items()}, want)


def _attention(causal: bool) -> Member:
    """Weighted averages by warps and by warpgroups: four heads of queries for two of keys, of several tiles.

    The exponent is 1, so that one score is the largest whether or not it has been multiplied by it.
    """
    (m, n), depth, width, diagonal = (70, 75), 24, 40, 5
    shapes = {"Q": (1, 4, m, depth), "K": (1, 2, n, depth), "V": (1, 2, n, width), "O": (1, 4, m, width)}
    like = {name: _like("f16", *shape) for name, shape in shapes.items()} | {"L": _like("f32", 1, 4, m, 1)}
    words = {"causal": causal, "between": BySoftmax(negated=False), "with_lse": True}
    ways = {
        f"warps, {rows} x {keys}": by_warps.attention.bind(
            **words, tiles=WarpTiles(rows, keys, 32, 48, rows // 16, tw.atoms.MMA_F16)
        )
        for rows, keys in ((32, 32), (64, 16))
    }
    for groups, keys, own in ((1, 32, False), (2, 32, True), (2, 48, False)):
        tiles = WarpgroupTiles(32, 48, keys, 2, groups, own_output=own)
        name = f"{groups} warpgroups, {keys} keys"
        ways[name] = by_warpgroups.attention.bind(**words, tiles=tiles, blocks=2)

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        seen = np.arange(n) <= np.arange(m)[:, None] + diagonal if causal else np.ones((m, n), bool)
        averages, logarithms = [], []
        for head in range(4):
            q, k, v = x["Q"][0, head], x["K"][0, head // 2], x["V"][0, head // 2]
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
        return {"O": np.array(averages)[None], "L": np.array(logarithms).astype(object)[None]}

    numbers = {"exponent": 1.0, "diagonal": diagonal, "band": 2}
    return Member(ways, like | numbers, want, ring=PAIRS)


MEMBERS: dict[str, Callable[[], Member]] = {
    "batched": _batched,
    "combined": _combined,
    "grouped": _grouped,
    "scaled": _scaled,
    "scaled in groups": _scaled_in_groups,
    "scaled by blocks": _scaled_by_blocks,
    "grade f32": _in_halves,
    "complex 4M": _four,
    "complex 3M": _three,
    "complex at grade f32": _complex_halves,
    "einsum to heads": lambda: _contraction("bsk,khd->bhsd", (2, 24, 80), (80, 2, 64)),
    "einsum of 5-D": lambda: _contraction("aibk,kj->abij", (2, 3, 24, 24), (24, 40)),
    "chain": _chain,
    "attention": lambda: _attention(causal=False),
    "causal attention": lambda: _attention(causal=True),
}
"""Each is made when it is asked for."""
