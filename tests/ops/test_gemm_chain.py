"""`tw.gemm_chain`: two products in one kernel, element by element under a bound, or in two kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.references import ACTIVATIONS
from tilewright.checking.references import chained as chained_exactly
from tilewright.ops.attending.choice import Answer, AttentionQuestion
from tilewright.ops.attending.flow import gemm_chain as flow_of_chain
from tilewright.ops.gemm_chain import _seen, one_kernel_pays
from tilewright.ops.launching import Launch
from tilewright.ops.products import plain
from tilewright.runtime.arrays import describe
from tilewright.runtime.frameworks import Strided
from tilewright.targets.target import CUDA

from .attending import beyond

pytestmark = pytest.mark.in_turns(3)

FUNCTIONS = (None, "relu", "silu", "sigmoid")
"""Activations that are tried."""


class Chain:
    """Random factors, and error bounds from the documentation of `tw.gemm_chain`."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        element: tw.DType,
        activation: str | None,
        *lead: int,
        shared: bool = True,
    ) -> None:
        (m, k, n, p), rng = shape, np.random.default_rng(1)
        own = () if shared else lead
        shapes = ((*lead, m, k), (*own, k, n), (*own, n, p))
        self.a, self.b, self.c = (rng.standard_normal(s).astype(element.numpy) for s in shapes)
        self.element, self.activation = element, activation
        self.out = np.full((*lead, m, p), np.nan, element.numpy)

    def check(self, found: Any) -> None:
        """Check that every element is within its bound."""
        wanted, room = chained_exactly(self.a, self.b, self.c, self.activation)
        h = ACTIVATIONS[self.activation].meaning(self.a.astype(np.float64) @ self.b.astype(np.float64))
        n, c = self.c.shape[-2], self.c.astype(np.float64)
        error = np.abs(found.astype(np.float64) - wanted)
        name = f"chain of {self.element}, {self.a.shape}, {self.b.shape}, {self.c.shape}, {self.activation}"
        assert (error <= room).all(), f"{name}: {beyond(found, error, room)}"
        # A lost step of N is far outside; of long sums a longer one, as the bound grows with their length.
        if n > 64:
            step = 16 if n < 1024 else 64
            seen = (np.abs(h[..., :step] @ c[..., :step, :]) > room).mean()
            assert seen > 0.5, f"{name}: of {step} lost terms only {seen:.0%} of the elements would tell"

    def run(self, **words: Any) -> Any:
        found = tw.gemm_chain(self.a, self.b, self.c, activation=self.activation, out=self.out, **words)
        assert found is self.out
        return found


CHAINS = [
    ((70, 40, 90, 56), tw.f16, "relu", (), True),
    ((33, 200, 130, 17), tw.bf16, "silu", (), True),
    ((20, 33, 70, 250), tw.f16, None, (2, 3), True),
    ((20, 16, 70, 24), tw.bf16, "sigmoid", (3,), False),
]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("case", CHAINS, ids=lambda case: f"{case[0]}-{case[2]}")
def test_random_data(case: Any, target: str) -> None:
    shape, element, activation, lead, shared = case
    chain = Chain(shape, element, activation, *lead, shared=shared)
    chain.check(chain.run(target=target, fused=True))


@pytest.mark.parametrize("order", ["row by row", "column by column"])
@pytest.mark.parametrize("shape", [(200, 64, 152, 64), (70, 256, 104, 256), (70, 32, 136, 128)], ids=str)
def test_warpgroups(shape: tuple[int, int, int, int], order: str) -> None:
    """The test runs sm_90a's schedule for many rows on the reference: blocks compute tile after tile."""
    chain = Chain(shape, tw.bf16, "relu")
    _, k, _, p = shape
    b = chain.b.T if order == "row by row" else np.ascontiguousarray(chain.b.T)
    many = [np.zeros((1, 1, 1, 20000, columns), chain.a.dtype) for columns in (k, p)]
    arrays = chain.a[None, None, None], b[None, None], chain.c[None, None], chain.out[None, None, None]
    kernel = flow_of_chain.bind(activation="relu")
    known = kernel.schedule_for(many[0], *arrays[1:3], many[1], target="cuda", arch="sm_90a")
    assert isinstance(known, tw.Schedule)
    assert known.staging == "tma"
    made = flow_of_chain.bind(activation="relu", schedule=replace(known, blocks=2))
    assert made(*arrays, target="reference").target == "reference"
    chain.check(chain.out)


def test_the_dataflow_kernel_is_what_it_says() -> None:
    chain = Chain((20, 30, 70, 24), tw.f16, "relu")
    a, out = (array[None, None, None] for array in (chain.a, chain.out))
    b, c = (array[None, None] for array in (chain.b.T, chain.c))
    flow = flow_of_chain.flow(a, b, c, out, activation="relu")
    for run in (None, 7):
        chain.check(tw.ir.evaluate(flow, {"A": a, "B": b, "C": c}, run=run)["D"][0, 0, 0])


@pytest.mark.parametrize(
    ("shape", "element"),
    [((30, 300, 40, 20), tw.f16), ((30, 20, 40, 270), tw.bf16), ((30, 20, 40, 20), tw.f32)],
)
def test_two_kernels(shape: tuple[int, int, int, int], element: tw.DType) -> None:
    """A chain is two products if it does not fit one kernel, or would be no faster in one."""
    chain = Chain(shape, element, "relu")
    chain.check(chain.run(target="reference"))


@pytest.mark.parametrize(
    ("shape", "gains"),
    [
        ((20000, 64, 4096, 64), True),
        ((4096, 256, 4096, 256), False),
        # An H200 took 32 us for one kernel and 41 for two; 21 for the other.
        ((8888, 128, 2024, 32), True),
        ((10168, 80, 752, 200), True),
        # 54 and 79 us in two kernels: one has too few blocks, or would multiply more slowly.
        ((7656, 240, 3104, 80), False),
        ((25584, 208, 1920, 128), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("element", [np.float16, np.float32])
def test_one_kernel_is_chosen_where_it_gains(
    shape: tuple[int, int, int, int], gains: bool, element: Any
) -> None:
    m, k, n, p = shape
    extents = {"a": (m, k), "b": (k, n), "c": (n, p), "out": (m, p), "middle": (m, n)}
    given = {name: np.empty(shape, element) for name, shape in extents.items()}
    infos = {name: describe(array) for name, array in given.items()}
    question = AttentionQuestion(_seen(infos), CUDA.architecture("sm_90a"), 132)
    answer = Answer(flow_of_chain.bind(activation="relu"))
    seen = tuple(Strided(given[name], info) for name, info in answer.views(question.infos).items())
    products = [
        Launch(plain(0).bind(precision="exact"), tuple(Strided(given[x], infos[x]) for x in names), names)
        for names in (("a", "b", "middle"), ("middle", "c", "out"))
    ]
    paid = one_kernel_pays(question, Launch(answer.kernel, seen, ("a", "b", "c", "out")), products)
    assert paid is (gains and element is np.float16)


@pytest.mark.parametrize("order", ["C", "F"])
def test_warpgroups_multiply_chains_of_all_columns(order: Any) -> None:
    """Steps are as long as their ring has room, also in whole panels, if b is contiguous along N."""
    for k, p in ((80, 144), (208, 80), (208, 128), (248, 112), (256, 256)):
        shapes = ((9000, k), (k, 640), (640, p), (9000, p))
        a, b, c, d = (np.empty(shape, np.float16) for shape in shapes)
        given = {"a": a, "b": np.empty(b.shape, b.dtype, order), "c": c, "out": d}
        answer = Answer(flow_of_chain.bind(activation="relu"))
        views = answer.views(_seen({name: describe(array) for name, array in given.items()}))
        arrays = [Strided(given[name], info) for name, info in views.items()]
        made = answer.kernel.schedule_for(*arrays, target="cuda", arch="sm_90a")
        assert made is not None
        assert made.by_bulk
        assert made.tile[1] >= 64


def test_nothing_to_multiply() -> None:
    a, b, c = (np.ones(shape, np.float16) for shape in ((5, 8), (8, 0), (0, 3)))
    assert (tw.gemm_chain(a, b, c) == 0).all()
    assert tw.gemm_chain(a[:0], a[:0].T.reshape(8, 0), c).shape == (0, 3)


X, Y = np.ones((6, 8), np.float16), np.ones((6, 8), np.float16)
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "depth": ({"b": X}, tw.LaunchError, "b with 8 rows, one for each column of a"),
    "steps": ({"c": X[:5]}, tw.LaunchError, "c with 6 rows, one for each column of b"),
    "rank": ({"a": X[0]}, tw.LaunchError, r"a with shape \(M, K\)"),
    "batches": (
        {"b": np.ones((3, 8, 6), np.float16)},
        tw.LaunchError,
        "b with two dimensions, or with the leading",
    ),
    "mixture": ({"c": X.astype(np.float32)}, tw.DTypeError, "c is f32; nearest legal choice: one dtype"),
    "out": ({"out": X[:5]}, tw.LaunchError, r"out with shape \(6, 8\)"),
    "overlap": ({"out": X}, tw.LaunchError, "out and [ac] share memory"),
    "in place": ({"c": Y, "out": Y}, tw.LaunchError, "out and c share memory"),
    "activation": ({"activation": "rely"}, tw.LaunchError, "activation='rely'; choose one of .*relu"),
    "too wide": (
        {"c": np.ones((6, 257), np.float16), "fused": True},
        tw.LaunchError,
        "fused=True, but P is 257, and one kernel takes 1 to 256; nearest legal choice: fused=False",
    ),
    "too deep": (
        {"a": np.ones((6, 257), np.float16), "b": np.ones((257, 6), np.float16), "fused": True},
        tw.LaunchError,
        "fused=True, but K is 257, and one kernel takes 1 to 256; nearest legal choice: fused=False",
    ),
    "dtype": (
        {name: x.astype(np.float64) for name, x in (("a", X), ("b", X.T), ("c", X))} | {"fused": True},
        tw.LaunchError,
        "the arrays are f64, and one kernel takes f16, bf16, f32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    changed, error, words = WRONG[name]
    given: dict[str, Any] = {"a": X, "b": X.T.copy(), "c": X} | changed
    with pytest.raises(error, match=words):
        tw.gemm_chain(given.pop("a"), given.pop("b"), given.pop("c"), **given)


@pytest.mark.parametrize(("arch", "order"), [("sm_90a", "C"), ("sm_90a", "F"), ("sm_80", "C")])
def test_text_compiles_without_spills(arch: str, order: Any) -> None:
    a, b, c, d = (np.zeros(shape, np.float16) for shape in ((9000, 128), (128, 64), (64, 128), (9000, 128)))
    b = np.zeros(b.shape, b.dtype, order)
    given = dict(zip(("a", "b", "c", "out"), (a, b, c, d), strict=True))
    answer = Answer(flow_of_chain.bind(activation="relu"))
    views = answer.views(_seen({name: describe(array) for name, array in given.items()}))
    arrays = [Strided(given[name], info) for name, info in views.items()]
    made = answer.kernel.compile(*arrays, target="cuda", arch=arch)
    assert made.resources["spill_store_bytes"] == 0
    assert ("wgmma" in made.source) == (arch == "sm_90a")
