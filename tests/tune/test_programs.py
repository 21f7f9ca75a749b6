"""Common parts of programs that show a kernel: arguments, wrong kernels, and their output."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilewright as tw
from tilewright.testing import do_bench, operands, parse_args, run_attention, run_gemm, softmax_attention

pytestmark = pytest.mark.in_turns(3)

MMA = tw.TiledMma(tw.atoms.fma(tw.f32), tile=(32, 32))


@tw.kernel(A="M K", B="N K", C="M N")
def skipping_gemm(A, B, C, *, tile, mma, skipped):
    """A product that leaves out its last ``skipped`` steps."""
    m, n = tw.block_index(tw.ceil_div(C.shape, tile[:2]))
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile[2]) - skipped):
        a = tw.load(A.tile((tile[0], tile[2]), (m, k)), tw.operand_a(mma, tile[2]))
        b = tw.load(B.tile((tile[1], tile[2]), (n, k)), tw.operand_b(mma, tile[2]))
        tw.mma(a, b, acc)
    tw.copy(acc, C.tile(tile[:2], (m, n)))


def skipping(count: int) -> tw.Bound:
    return skipping_gemm.bind(tile=(32, 32, 8), mma=MMA, skipped=count)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_right_gemm_is_told_of_in_two_lines(target: str) -> None:
    said = run_gemm(skipping(0), tw.f32, (37, 41, 43), target).splitlines()
    name = f"skipping_gemm<{target}, f32, 37x41x43 in tiles of 32x32x8, {MMA.atom}>"
    assert said[0].startswith(f"{name} on ")
    assert ": correct: " in said[0]
    assert said[1].startswith("Perf: ")
    assert said[1].endswith(name)


def test_what_is_not_asked_for_is_not_done() -> None:
    said = run_gemm(skipping(1), tw.f32, (37, 41, 43), "cpu", verify=False, time=False)
    assert said.startswith("Perf: ")


@pytest.mark.parametrize("init", ["random", "integers"])
def test_a_wrong_gemm_is_an_error(init: str) -> None:
    with pytest.raises(tw.WrongResultError):
        run_gemm(skipping(1), tw.f32, (37, 41, 43), "cpu", init=init)


@tw.kernel(Q="B H M D", K="B H N D", V="B H N D", O="B H M D", scale=tw.f32, shift=int)
def small_attention(Q, K, V, O, scale, shift, *, factor, causal):
    """16 queries see 16 keys, in one tile; the scores are wrong by a factor."""
    mma = tw.TiledMma(tw.atoms.MMA_F16, tile=(16, 16))
    h, b = tw.block_index((Q.shape[1], Q.shape[0]))
    scores, acc = tw.accumulator(mma), tw.accumulator(mma)
    keys, values = K[b, h].tile((16, 16), (0, 0)), V[b, h].tile((16, 16), (0, 0)).permute(1, 0)
    q = tw.load(Q[b, h].tile((16, 16), (0, 0)), tw.operand_a(mma, 16))
    tw.mma(q, tw.load(keys, tw.operand_b(mma, 16)), scores)
    seen = tw.causal_mask(scores, shift, 0) if causal else scores
    weights = tw.exp(seen * (scale * factor))
    rounded = tw.redistribute(weights.to(V.dtype), tw.operand_a(mma, 16))
    tw.mma(rounded, tw.load(values, tw.operand_b(mma, 16)), acc)
    tw.copy(acc / tw.reduce_sum(weights, 1), O[b, h].tile((16, 16), (0, 0)))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_compared(target: str, causal: bool) -> None:
    shape = (2, 1, 16, 16, 16)
    right, wrong = (small_attention.bind(factor=factor, causal=causal) for factor in (1.0, 1.1))
    said = run_attention(right, tw.f16, shape, target, causal=causal)
    assert said.startswith(f"attention<{target}, {'causal ' * causal}f16 2x1x16x16x16>: correct, ")
    assert said.endswith("Gflop/s") == (target == "cpu")
    with pytest.raises(tw.WrongResultError, match="an element is off by"):
        run_attention(wrong, tw.f16, shape, target, causal=causal)
    with pytest.raises(tw.WrongResultError):
        run_attention(right, tw.f16, shape, target, causal=not causal)


@pytest.mark.parametrize("shift", [None, 0, 3, -2])
def test_softmax_attention_row_by_row(shift: int | None) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 5, 4)), rng.standard_normal((3, 7, 4)), rng.standard_normal((3, 7, 2))
    found = softmax_attention(q, k, v, 0.7, shift)
    for head, row in np.ndindex(3, 5):
        last = 7 if shift is None else min(max(row + shift + 1, 0), 7)
        weights = [math.exp(0.7 * math.fsum(q[head, row] * k[head, key])) for key in range(last)]
        for column in range(2):
            products = [w * v[head, key, column] for key, w in enumerate(weights)]
            wanted = math.fsum(products) / math.fsum(weights) if weights else 0.0
            assert found[head, row, column] == pytest.approx(wanted, rel=1e-13, abs=1e-13)


def test_arrays_that_do_not_fit_are_refused() -> None:
    q = np.ones((2, 4))
    with pytest.raises(tw.LaunchError, match=r"q \(2, 4\), k \(2, 3\) and v \(2, 4\) do not fit"):
        softmax_attention(q, np.ones((2, 3)), q, 1.0)
    with pytest.raises(tw.LaunchError, match=r"a \(2, 4\) @ b \(2, 4\) and c \(2, 4\) do not fit"):
        tw.testing.compare_gemm(q, q, q)


@pytest.mark.parametrize(
    ("words", "shape", "how"),
    [
        ([], (64, 64, 64), {"verify": True, "init": "random", "time": True}),
        (["--small"], (8, 8, 8), {"verify": True, "init": "random", "time": True}),
        (["0", "1", "0"], (64, 64, 64), {"verify": False, "init": "integers", "time": False}),
        (["1", "2", "0", "5", "6", "7"], (5, 6, 7), {"verify": True, "init": "random", "time": False}),
    ],
)
def test_arguments(words, shape, how, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["program.py", *words])
    asked = parse_args(
        "A kernel.\n\nMore.", {"cpu": (64,) * 3, "reference": (4,) * 3}, {"cpu": (8,) * 3}, "M N K"
    )
    assert (asked.target, asked.shape, asked.how) == ("cpu", shape, how)


@pytest.mark.parametrize(
    "words", [["1", "2"], ["1", "3", "1"], ["1", "2", "1", "0", "1", "1"], ["--target", "tpu"]]
)
def test_wrong_arguments_end_the_program(words, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["program.py", *words])
    with pytest.raises(SystemExit) as ended:
        parse_args("A kernel.", {"cpu": (64,) * 3}, {"cpu": (8,) * 3}, "M N K")
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_numbers_are_refused_where_nothing_takes_them(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["program.py", "1", "2", "1"])
    with pytest.raises(SystemExit):
        parse_args("A kernel.", {"cpu": (64,)}, {"cpu": (8,)})


def test_a_time_is_in_milliseconds() -> None:
    made = operands("random", "f32", (64, 64, 64))
    taken = do_bench(lambda: [made.a @ made.b for _ in range(50)], "cpu")
    assert 1e-3 < taken < 1e3


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_an_array_that_is_reached_as_it_is_is_not_copied(target: str) -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert tw.testing.device_put(x, target) is x
    assert tw.testing.device_get(x) is x
