"""Members of the GEMM family as algebra: kernels under many schedules, and their common polynomial.

Each member has several ragged tiles and steps.  `Member.want` computes the same residues with Python's
integers modulo `PRIME`.  The definitions use the numbers of each array, not a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.ops.complex_products import four_products, products_of_halves, three_products
from tilewright.ops.contraction import IN_KERNEL, posed, read_subscripts
from tilewright.ops.einsum import ARRAYS, plan_einsum
from tilewright.ops.gated_matmul import BIASES, gated
from tilewright.ops.products import (
    BLOCK,
    combined,
    grouped,
    grouped_along_k,
    in_halves,
    plain,
    scaled,
    scaled_by_blocks,
    scaled_in_groups,
)
from tilewright.ops.wanted import Dropout, Wanted
from tilewright.runtime.arrays import describe
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.targets.reference.residues import PRIME, residue

from .chains import attention, chain
from .member import Exact, Member, drawn, spec

M, N, K = 40, 24, 80
"""Two tiles along M and N, and three steps along K, all cut; rows of whole 16 bytes, for bulk copies."""

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


def under(kernel: Kernel, schedules: Mapping[str, tw.Schedule], **words: Any) -> dict[str, Bound]:
    """Return a kernel bound to each of some schedules."""
    return {name: kernel.bind(**words, schedule=one) for name, one in schedules.items()}


def _batched() -> Member:
    schedules = PARTITIONS | {"several batch items": replace(SYNC, batches=2)}
    like = {
        "A": spec("f16", 3, M, K),
        "B": spec("f16", 3, K, N, turned=True),
        "D": spec("f32", 3, M, N),
    }
    return Member(under(plain(1), schedules, precision="exact"), like, lambda x: {"D": x["A"] @ x["B"]})


def _combined() -> Member:
    like = {name: spec("f32", M, N) for name in "CRD"} | {"bias": spec("f32", N)}
    like |= {"A": spec("f16", M, K), "B": spec("f16", K, N, turned=True), "alpha": 0.75, "beta": -3.0}
    words = {"precision": "exact", "terms": frozenset(["alpha", "c", "bias", "residual"]), "activation": None}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        alpha, beta = residue(0.75), residue(-3.0)
        return {"D": alpha * (x["A"] @ x["B"]) + beta * x["C"] + x["bias"] + x["R"]}

    return Member(under(combined(0, tw.f32), PARTITIONS, **words), like, want)


def _grouped() -> Member:
    ends = np.array([3, 3, 37, M], np.int32)
    like = {"A": spec("f16", M, K), "B": spec("f16", 4, K, N, turned=True), "ends": ends}
    like |= {"bias": spec("f32", 4, N), "D": spec("f32", M, N)}
    words = {"precision": "exact", "terms": frozenset(["bias"]), "activation": None}
    schedules = {"direct": DIRECT, "persistent": replace(SYNC, blocks=2), "bulk copies": BULK}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        at = np.searchsorted(ends, np.arange(M), side="right")
        return {"D": np.stack([x["A"][m] @ x["B"][at[m]] + x["bias"][at[m]] for m in range(M)])}

    return Member(under(grouped(tw.f32), schedules, **words), like, want)


def _along_k() -> Member:
    ends = np.array([3, 3, 37, K], np.int32)
    like = {"A": spec("f16", M, K, turned=True), "B": spec("f16", K, N), "ends": ends}
    like |= {"bias": spec("f32", 4, N), "D": spec("f32", 4, M, N)}
    words = {"precision": "exact", "terms": frozenset(["bias"]), "activation": None}
    bulk = replace(BULK, atom=tw.atoms.wgmma("f16", 64), tile=(64, 64, 64))  # rows of 128 bytes along N
    schedules = {"direct": DIRECT, "persistent": replace(SYNC, blocks=2), "bulk copies": bulk}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        parts = [slice(*one) for one in zip([0, *ends], ends, strict=False)]
        return {"D": np.stack([x["A"][:, k] @ x["B"][k] + x["bias"][g] for g, k in enumerate(parts)])}

    return Member(under(grouped_along_k(tw.f32, ("bias",)), schedules, **words), like, want)


def _scaled() -> Member:
    like = {
        "A": spec("f16", M, K),
        "B": spec("f8e4m3", K, N, turned=True),
        "D": spec("f16", M, N),
    }
    like |= {
        "scale_a": spec("f32", M),
        "scale_b": spec("f32", N),
        "bias": spec("f32", N),
        "alpha": 1.0,
    }
    terms = frozenset(["scale_a", "scale_b", "bias"])
    ways = under(scaled(0), DECODED, multiplied=tw.f16, terms=terms, activation=None)
    return Member(
        ways, like, lambda x: {"D": x["A"] @ x["B"] * x["scale_a"][:, None] * x["scale_b"] + x["bias"]}
    )


def _gated() -> Member:
    like: dict[str, Any] = {"A": spec("f16", M, K), "D": spec("f32", M, N)}
    like |= {name: spec("f16", K, N, turned=True) for name in "BC"}
    like |= {name: spec("f32", M if name == "scale_a" else N) for name in ("scale_a", "scale_b", "scale_c")}
    like |= {**{name: spec("f32", N) for name in BIASES}, "alpha_b": 1.0, "alpha_c": 1.0}
    terms = frozenset(["scale_a", "scale_b", "scale_c", *BIASES])
    ways = under(gated(0, tw.f32, tw.f16), PARTITIONS, precision="exact", terms=terms, activation=None)

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        rows = x["scale_a"][:, None]
        first = x["A"] @ x["B"] * rows * x["scale_b"] + x["bias_b"]
        return {"D": first * (x["A"] @ x["C"] * rows * x["scale_c"] + x["bias_c"])}

    return Member(ways, like, want)


def _scaled_in_groups() -> Member:
    """8-bit integers, with scales and zero points for groups of 32."""
    depth, group = 96, 32
    b = np.random.default_rng(0).integers(-128, 128, (N, depth)).astype(np.int8).T
    like = {"A": spec("f16", M, depth), "B": b, "D": spec("f16", M, N), "alpha": 1.0}
    like |= {"scale_b": spec("f16", 3, N), "zero_b": spec("f16", 3, N)}
    like |= {"scale_a": spec("f32", M), "bias": spec("f32", N)}
    terms = frozenset(["scale_a", "scale_b", "zero_b", "bias"])
    schedules = {name: one for name, one in DECODED.items() if name != "bulk copies"}
    ways = under(scaled_in_groups(0), schedules, multiplied=tw.f16, group=group, terms=terms, activation=None)

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        zero, scale = (np.repeat(x[name], group, axis=0) for name in ("zero_b", "scale_b"))
        return {"D": x["A"] @ ((x["B"] - zero) * scale) * x["scale_a"][:, None] + x["bias"]}

    return Member(ways, like, want)


def _scaled_by_blocks() -> Member:
    """Two blocks along K and a ragged one, with scales of each row and of blocks of columns."""
    depth = 2 * BLOCK + 16
    like = {
        "A": spec("f16", M, depth),
        "B": spec("f16", depth, N, turned=True),
        "D": spec("f32", M, N),
        "alpha": 1.0,
    }
    like |= {"scale_a": spec("f32", M, 3), "scale_b": spec("f32", 3, 1), "bias": spec("f32", N)}
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
    """The grade f32: three products of four halves, scaled by the units of rows and columns."""
    like = {name: spec("f16", M, K) for name in ("A1", "A2")}
    like |= {name: spec("f16", K, N, turned=True) for name in ("B1", "B2")}
    like |= {"p": spec("f32", M), "q": spec("f32", N), "bias": spec("f32", N)}
    like |= {name: spec("f32", M, N) for name in "CRD"} | {"alpha": 1.0, "beta": 0.0}
    words = {"both": True, "terms": frozenset(["bias"]), "activation": None}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        sums = x["A1"] @ x["B1"] + x["A1"] @ x["B2"] + x["A2"] @ x["B1"]
        return {"D": sums * x["p"][:, None] ** 2 * x["q"] ** 2 + x["bias"]}

    return Member(under(in_halves(0, tw.f32), PROMOTED, **words), like, want)


ALPHA, BETA = 0.5 - 2j, 3 + 1j


def _complex(names: tuple[str, ...], kind: str, extents: tuple[int, int, int] = (M, N, K)) -> dict[str, Any]:
    """Return specimens of planes of complex operands, and the kernels' other arguments."""
    m, n, k = extents
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "out": (m, n)}
    like = {}
    for name in names:
        shape = next(shape for first, shape in shapes.items() if name.startswith(first))
        own = kind if name[0] in "ab" else "f32"
        like |= {part: spec(own, *shape, turned=name[0] == "b") for part in (name, f"{name}_im")}
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
    """Sums of both parts of each operand, the first conjugated, are separate arrays."""
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
    like |= {"p": spec("f32", m), "q": spec("f32", n)}
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
    """A contraction with a permuted result and an added array of the same order, all viewed as matrices."""
    named = read_subscripts(subscripts, [len(shape) for shape in shapes])
    extents = dict(zip(named.a + named.b, shapes[0] + shapes[1], strict=True))
    of = dict(zip(("a", "b"), shapes, strict=True))
    of |= dict.fromkeys(("residual", "out"), tuple(extents[label] for label in named.out))
    kinds = {"a": "f16", "b": "f16", "residual": "f32", "out": "f32"}
    infos = {name: describe(np.empty(shape, kinds[name].replace("f", "float"))) for name, shape in of.items()}
    problem = posed(named, layouts(infos))
    names = dict(zip(IN_KERNEL, "ABXYRD", strict=True))
    there = {name: name if name in problem.layouts else "out" for name in IN_KERNEL}
    seen = {name: problem.layouts[one].of(infos[one]) for name, one in there.items()}
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
    arrays = {name: np.empty(shape, kinds[name].replace("f", "float")) for name, shape in of.items()}
    in_call = {name: arrays.get(name) for name in ARRAYS}
    ways = {
        name: plan_einsum(subscripts, in_call, Wanted(schedule=one)).product.kernel
        for name, one in schedules.items()
    }
    return Member(ways, like, want, given)


@tw.kernel(A="M K", B="N K", P="M R", Q="N R", D="M N")
def several_loops(A, B, P, Q, D):
    """The loop along R comes first, because its sum is scaled."""
    for m, n in tw.tiles(D):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        for r in tw.steps(P.shape[1]):
            low += P[m, r] @ Q[n, r].T
        D[m, n] = acc - 0.75 * low


@tw.kernel(A="M K", B="N K", D="M N")
def row_sums(A, B, D):
    for m, n in tw.tiles(D):
        acc, square, total = tw.zeros(), tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            a = A[m, k].to(tw.f32)
            square += (a * a).sum(axis=1)
            total += a.sum(axis=1)
        D[m, n] = acc * square[:, None] + total[:, None]


def _several_loops() -> Member:
    like = {"A": spec("f16", M, K), "B": spec("f16", N, K), "P": spec("f16", M, M), "Q": spec("f16", N, M)}
    schedules = PARTITIONS | {"fragments": FRAGMENTS, "promoted": PROMOTED["bulk copies"]}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        return {"D": x["A"] @ x["B"].T - residue(0.75) * (x["P"] @ x["Q"].T)}

    return Member(under(several_loops, schedules), like | {"D": spec("f32", M, N)}, want)


@tw.kernel(A="M K", B="N K", P="R K", Q="N R", D="M N")
def inner_products(A, B, P, Q, D):
    """The product of A and P is an operand of another one."""
    for m, n in tw.tiles(D):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            low += A[m, k] @ P[:, k].T
        D[m, n] = acc + (0.75 * low).to(A.dtype) @ Q[n].T


def _inner_products() -> Member:
    like = {"A": spec("f16", M, K), "B": spec("f16", N, K), "P": spec("f16", 24, K), "Q": spec("f16", N, 24)}
    whole = [name for name, one in PARTITIONS.items() if name not in SPLIT and not one.swap_ab]
    schedules = {
        name: replace(PARTITIONS[name], width=32) for name in whole if PARTITIONS[name].cluster[1] == 1
    }
    schedules["registers"] = replace(SYNC, staging="registers", stages=1, width=32)

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        return {"D": x["A"] @ x["B"].T + residue(0.75) * ((x["A"] @ x["P"].T) @ x["Q"].T)}

    return Member(under(inner_products, schedules), like | {"D": spec("f32", M, N)}, want)


def _row_sums() -> Member:
    like = {"A": spec("f16", M, K), "B": spec("f16", N, K), "D": spec("f32", M, N)}
    whole = {name: one for name, one in PARTITIONS.items() if name not in SPLIT}
    schedules = whole | {"fragments": FRAGMENTS, "registers": replace(SYNC, staging="registers", stages=1)}

    def want(x: dict[str, Exact]) -> dict[str, Exact]:
        a = x["A"]
        return {"D": (a @ x["B"].T) * (a * a).sum(axis=1)[:, None] + a.sum(axis=1)[:, None]}

    return Member(under(row_sums, schedules), like, want)


MEMBERS: dict[str, Callable[[], Member]] = {
    "batched": _batched,
    "combined": _combined,
    "grouped": _grouped,
    "groups along K": _along_k,
    "scaled": _scaled,
    "gated": _gated,
    "scaled in groups": _scaled_in_groups,
    "scaled by blocks": _scaled_by_blocks,
    "grade f32": _in_halves,
    "complex 4M": _four,
    "complex 3M": _three,
    "complex at grade f32": _complex_halves,
    "einsum to heads": lambda: _contraction("bsk,khd->bhsd", (2, 24, 80), (80, 2, 64)),
    "einsum of 5-D": lambda: _contraction("aibk,kj->abij", (2, 3, 24, 24), (24, 40)),
    "several loops": _several_loops,
    "row sums": _row_sums,
    "inner products": _inner_products,
    "chain": chain,
    "attention": lambda: attention(causal=False),
    "causal attention": lambda: attention(causal=True),
}
"""Each is made when it is asked for."""
