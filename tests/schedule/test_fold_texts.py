"""Loops that carry a state: their lines, their graph, the explicit kernels, and the compiled text."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.attending import gradients
from tilewright.schedule.schedule import Schedule

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    found = importlib.util.spec_from_file_location("loops", ROOT / "examples" / "18_loops_with_a_state.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def lines(kernel: Any) -> int:
    """Return a kernel's lines of code from its ``def`` on; a signature is one line, a docstring none."""
    source = textwrap.dedent(inspect.getsource(kernel.program.function))
    made = ast.parse(source).body[0]
    assert isinstance(made, ast.FunctionDef)
    body = made.body[1:] if ast.get_docstring(made) else made.body
    code = source.splitlines()[body[0].lineno - 1 :]
    return 1 + sum(bool(one.strip()) and not one.strip().startswith("#") for one in code)


def test_lines(example: ModuleType) -> None:
    assert lines(example.attention) <= 15
    assert lines(example.attention_of_rows) <= 6
    assert lines(example.gradient_of_queries) + lines(example.gradients_of_keys) <= 40
    assert lines(example.cross_entropy) <= 15
    assert lines(example.gradient) + lines(example.gradient_of_words) <= 16
    assert lines(example.moments) <= 15
    ours = (gradients.prepare, gradients.gradient_of_queries, gradients.gradients_of_keys)
    assert sum(map(lines, ours)) <= 60, "with a bias, a bound, windows and shared heads"


def given(name: str, rows: int = 4096, keys: int = 4096, columns: int = 128) -> list[Any]:
    """Return specimens of the arguments of an example's kernel."""
    q, k = (tw.like("f16", count, columns) for count in (rows, keys))
    row = tw.like("f32", rows)
    if name in ("attention", "attention_of_rows"):
        return [q, k, k, q, 0.125]
    if name == "gradients_of_keys":
        return [q, k, k, q, row, row, k, k, 0.125]
    return [q, k, k, q, row, row, q, 0.125]


HOPPER = Schedule(
    tw.atoms.wgmma("f16", 128),
    (128, 128, 128),
    stages=2,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=132,
    group_n=8,
    epilogue="overlapped",
    width=128,
    resident=True,
)
AMPERE = Schedule(
    tw.atoms.MMA_F16, (128, 32, 128), (4, 1), stages=3, staging="cp_async", width=128, resident=True
)
DECODE = Schedule(
    tw.atoms.MMA_F16,
    (16, 64, 128),
    stages=3,
    staging="cp_async",
    blocks=264,
    split_k="auto",
    width=128,
    resident=True,
)
BACKWARD = Schedule(
    tw.atoms.MMA_F16, (64, 32, 64), (4, 1), stages=2, staging="cp_async", width=64, resident=True
)
OF_QUERIES = replace(HOPPER, atom=tw.atoms.wgmma("f16", 96), tile=(128, 96, 128), stages=3, epilogue="staged")
OF_KEYS = replace(HOPPER, atom=tw.atoms.wgmma("f16", 64), tile=(128, 64, 128), stages=3, registers=240)
FORMS: dict[str, tuple[str, list[Any], Schedule, str]] = {
    "attention_hopper": ("attention", given("attention"), HOPPER, "sm_90a"),
    "attention_ampere": ("attention", given("attention"), AMPERE, "sm_80"),
    "decode": ("attention", given("attention", rows=1, keys=65536), DECODE, "sm_90a"),
    "gradient_of_queries": (
        "gradient_of_queries",
        given("gradient_of_queries", columns=64),
        BACKWARD,
        "sm_80",
    ),
    "gradient_of_queries_hopper": (
        "gradient_of_queries",
        given("gradient_of_queries"),
        OF_QUERIES,
        "sm_90a",
    ),
    "gradients_of_keys_hopper": ("gradients_of_keys", given("gradients_of_keys"), OF_KEYS, "sm_90a"),
    "gradients_of_keys": ("gradients_of_keys", given("gradients_of_keys", columns=64), BACKWARD, "sm_80"),
}


@pytest.mark.parametrize("form", FORMS)
def test_explicit_kernels(form: str, example: ModuleType, golden: Any) -> None:
    name, arguments, schedule, arch = FORMS[form]
    bound = getattr(example, name).bind(schedule=schedule)
    text = tw.ir.print_kernel(bound.trace(*arguments, target="cuda", arch=arch))
    golden(text, f"{form}.ir")
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


@pytest.mark.parametrize("form", ["attention_hopper", "decode"])
def test_texts_that_are_compiled(form: str, example: ModuleType, golden: Any) -> None:
    name, arguments, schedule, arch = FORMS[form]
    made = getattr(example, name).bind(schedule=schedule).compile(*arguments, target="cuda", arch=arch)
    golden(made.source, f"{form}.cu")
    assert not made.resources["spill_store_bytes"]


@pytest.mark.parametrize(("rows", "keys"), [(64, 300), (1, 129)])
def test_keys_that_no_query_sees_end_the_loop(rows: int, keys: int, example: ModuleType) -> None:
    """If all keys of a warpgroup come after every query, it takes no step that is not loaded."""
    rng = np.random.default_rng(rows)
    q, d_out = rng.standard_normal((2, rows, 64)).astype(np.float16)
    k, v = rng.standard_normal((2, keys, 64)).astype(np.float16)
    wide = [one.astype(np.float64) for one in (q, k, v, d_out)]
    seen = np.arange(keys) <= np.arange(rows)[:, None]
    scores = np.where(seen, 0.125 * wide[0] @ wide[1].T, -np.inf)
    log = np.log(np.exp(scores).sum(1))
    p = np.exp(scores - log[:, None])
    delta = (p @ wide[2] * wide[3]).sum(1)
    d_scores = 0.125 * p * (wide[3] @ wide[2].T - delta[:, None])
    found = np.full((2, keys, 64), np.nan, np.float16)
    schedule = replace(OF_KEYS, tile=(128, 64, 64), width=64, blocks=2)
    given = (q, k, v, d_out, log.astype(np.float32), delta.astype(np.float32), *found, 0.125)
    made = example.gradients_of_keys.bind(schedule=schedule)(*given, target="reference")
    assert made.target == "reference"
    # Weights, their gradients and the results are rounded to f16; f32 values are closer by far.
    most = 0.125 * p * (np.abs(wide[3]) @ np.abs(wide[2]).T + np.abs(delta)[:, None])
    terms = (d_scores, most, wide[0]), (p, p, wide[3])
    for one, (left, size, right) in zip(found, terms, strict=True):
        bound = 4 * 2.0**-11 * (size.T @ np.abs(right)) + 2.0**-14
        assert (np.abs(one - left.T @ right) <= bound).all()


@tw.kernel(Q="M D", K="N D", L="M", scale=tw.f32)
def logarithms(Q, K, L, scale):
    """Return the logarithm of the sum of exponentials of each row, with a causal mask."""
    for m in tw.tiles(L):
        top, total = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            s = tw.where(tw.positions(n) <= tw.positions(m)[:, None], s * scale, -math.inf)
            new = tw.maximum(top, s.max(axis=1))
            total.assign(total * tw.exp(top - new) + tw.exp(s - new[:, None]).sum(axis=1))
            top.assign(new)
        L[m] = tw.log(total) + top


@pytest.mark.parametrize(("rows", "keys", "depth", "groups"), [(200, 200, 136, 2), (300, 260, 136, 3)])
def test_steps_that_one_group_does_not_see_release_all_parts(
    rows: int, keys: int, depth: int, groups: int
) -> None:
    """A score of several tiles has as many tiles in each step of another group."""
    rng = np.random.default_rng(depth)
    q, k = (rng.standard_normal((count, depth)).astype(np.float16) for count in (rows, keys))
    wide = 0.125 * q.astype(np.float64) @ k.astype(np.float64).T
    wide = np.where(np.arange(keys) <= np.arange(rows)[:, None], wide, -np.inf)
    expected = np.log(np.exp(wide).sum(1))
    run = 64 * (groups - 1)
    schedule = Schedule(
        tw.atoms.wgmma("f16", run),
        (64 * groups, run, 64),
        stages=2,
        staging="tma",
        roles="cooperative",
        groups=groups,
        blocks=2,
        registers=160,
    )
    found = np.full(rows, np.nan, np.float32)
    made = logarithms.bind(schedule=schedule)(q, k, found, 0.125, target="reference")
    assert made.target == "reference"
    bound = 2.0**-18 * np.abs(q.astype(np.float64)) @ np.abs(k.astype(np.float64)).T + 2.0**-18
    assert (np.abs(found - expected) <= bound.max(1)).all()


@pytest.mark.parametrize("name", ["attention", "attention_of_rows", "gradients_of_keys"])
def test_graphs(name: str, example: ModuleType, golden: Any) -> None:
    made = getattr(example, name).flow(*given(name))
    text = tw.ir.print_flow(made)
    golden(text, f"{name}.flow")
    assert tw.ir.parse_flow(text) == made


def test_softmax_of_a_product(golden: Any) -> None:
    @tw.kernel(X="M K", W="K N", Y="M N")
    def softmax(X, W, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = tw.softmax(X[m] @ W)

    arguments = [tw.like("f16", 4096, 1024), tw.like("f16", 1024, 2048), tw.like("f16", 4096, 2048)]
    schedule = Schedule(tw.atoms.MMA_F16, (64, 128, 32), (4, 1), stages=4, staging="cp_async")
    text = tw.ir.print_kernel(softmax.bind(schedule=schedule).trace(*arguments, target="cuda", arch="sm_80"))
    golden(text, "softmax.ir")
    kept = Schedule(
        tw.atoms.wgmma("f16", 256),
        (128, 256, 64),
        stages=4,
        staging="tma",
        roles="cooperative",
        groups=2,
        blocks=132,
        split_k="auto",
        fold="kept",
    )
    text = tw.ir.print_kernel(softmax.bind(schedule=kept).trace(*arguments, target="cuda", arch="sm_90a"))
    golden(text, "softmax_hopper.ir")
