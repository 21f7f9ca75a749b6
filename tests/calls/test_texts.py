"""Damaged texts of flows, kernels and AMD listings give a result, or an error that names the fault.

`scripts/fuzz_texts.py` damages any number of texts; a failure's message contains the seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.calls import texts
from tests.calls.texts import ATTENDED, TEXTS, bad_end

import tilewright as tw
from tilewright import amdgcn

COUNT = 150
"""Damaged texts of each kind."""


@pytest.mark.parametrize("name", TEXTS)
def test_damaged_texts_end_in_an_answer_or_an_error_of_the_library(name: str) -> None:
    found = [end for seed in range(COUNT) if (end := bad_end(name, seed)) is not None]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", TEXTS)
def test_the_texts_that_are_damaged_are_right(name: str) -> None:
    text, use = TEXTS[name]
    use(text)


@pytest.mark.parametrize("error", [AttributeError, MemoryError, texts.TooSlowError])
def test_a_raw_error_is_found(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise error("x")

    monkeypatch.setitem(TEXTS, "flow", (TEXTS["flow"][0], fail))
    found = bad_end("flow", 0)
    assert found is not None
    assert found.what.startswith(error.__name__)


HEAD = "# tilewright flow 1\nflow('f')\nM = size()\nA = array(f32, (M, M))\nC = array(f32, (M,))\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("m = tile(f32)", "line 6: .*extent must be an integer"),
        ("m = tile(M)\nx: M[m] = C[m]", "line 7: .* is not a dtype"),
        ("m = tile(M)\nx: f32[m] = A[m]", "line 7: A has 2 dimensions, and 1 indices are given"),
        ("m = tile(M)\nx: f32[m] = A[m, m]", "line 7: a span is named twice"),
        ("m = tile(M)\nx: f32 = C[m]", "line 7: the axes are not those of the indices"),
        ("m = tile(M)\nx: f32[m] = C[m]\nC[m] = add(x, x)", "line 8: .*not a value"),
        ("m = tile(M)\nx: f32[m] = C[m]\ny: f16[m] = exp(x)", "line 8: exp of f32 is f32, not f16"),
        ("m = tile(M)\nx: f32[m] = C[m]\ny: f32[m] = exp(x, x)", "line 8: exp takes 1 operands, not 2"),
        (
            "m = tile(M)\nx: f32[m] = C[m]\ny: f32 = reduce('mean', x, axis=0)",
            "one of sum, max, min, not 'mean'",
        ),
        ("m = tile(M)\nx: f32[m] = C[m]\ny: f32 = reduce('sum', x, axis=1)", "over axis 1 of a value with 1"),
        (
            "m = tile(M)\nx: f32[m] = C[m]\ny: f32 = sum(m, x, x)",
            "a sum is along steps, and m is of kind tile",
        ),
        ("m = tile(M)\nk = steps(M)\nC[k] = 1.0", "line 8: a store inside of a loop over steps"),
        ("m = tile(M)\nC[m] = M", "line 7: .* is not a number"),
        ("m = tile(M)\nM = size()", "line 7: the name M is taken"),
        ("b = batch(M)\nm = tile(M)\nC[m] = 1.0", "without an index along the batch b"),
        ("m = tile(M)\nk = steps(M)\nx: f32[m] = cell('x', 0.0)\nC[m] = x", "C is stored from within a fold"),
        ("N = size(low=3, high=2)", "line 6: N has integers low, high and divisor"),
        ("require(M < 8, M)", "line 6: require takes a condition, a text and integers"),
        ("m = tile(M * 10000000000000000000000)", "line 6: 10000000000000000000000 has more than 64 bits"),
        ("V = view(A, (M,), Permute((1, 0)))", "the transforms give 2 dimensions, the shape has 1"),
    ],
)
def test_a_flow_says_its_line_and_what_does_not_fit(lines: str, said: str) -> None:
    with pytest.raises(tw.ParseError, match=said):
        tw.ir.parse_flow(f"{HEAD}{lines}\n")


FOLLOWED = (
    f"{HEAD}m = tile(M)\nk = steps(4294967296)\nx: f32[k] = position(k)\ny: f32 = reduce('sum', x, axis=0)\n"
)
FILLED = f"{HEAD}m = tile(M)\nx: f32[m] = C[m]\nC[m] = x\n"


@pytest.mark.parametrize(
    ("text", "arrays", "said"),
    [
        (FILLED, {"C": np.array(["x"])}, "C is .*; pass numbers"),
        (
            FILLED.replace("array(f32, (M,))", "array(f32, (4,))"),
            {"A": np.ones((4, 4)), "C": np.ones(5)},
            "has an extent of 5, and is declared with 4",
        ),
        (
            FILLED.replace("tile(M)", "tile(M + 1)"),
            {"C": np.ones(5)},
            "C has extent 5 along m, which runs to 6",
        ),
        (
            f"{FOLLOWED}C[m] = y\n",
            {"C": np.ones(5)},
            "a value of 4294967296 elements; a value has 0 to 268435456 here",
        ),
    ],
)
def test_arrays_that_a_flow_is_not_made_for_are_refused(
    text: str, arrays: dict[str, object], said: str
) -> None:
    with pytest.raises(tw.LaunchError, match=said):
        tw.ir.evaluate(tw.ir.parse_flow(text), arrays)


def test_a_number_that_is_none_is_refused() -> None:
    flow = tw.ir.parse_flow(TEXTS["flow of a fold"][0])
    with pytest.raises(tw.LaunchError, match="the number scale is 'half'; pass a number"):
        tw.ir.evaluate(flow, ATTENDED, {"scale": "half"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text: text.replace("threads=32", "threads=0", 1),
            "threads and lanes of a kernel are positive",
        ),
        (lambda text: text.replace("kernel('tables'", "kernel(3", 1), "the name of a kernel is a string"),
        (lambda text: text.replace("tensor(f32", "tensor(3", 1), "has dtype=3; dtype must be a DType"),
    ],
)
def test_a_kernel_says_its_line_and_what_does_not_fit(change: Callable[[str], str], said: str) -> None:
    text = tw.ir.print_kernel(tables.trace(tw.like("f32", 64)))
    assert change(text) != text
    with pytest.raises(tw.ParseError, match=rf"line \d+: .*{said}"):
        tw.ir.parse_kernel(change(text))


@tw.kernel(X="N")
def tables(X):
    part = X.tile((32,), (0,)).partition((32,))
    tw.copy(tw.load(part) * 2, part)


def test_an_operand_of_another_type_is_a_violation() -> None:
    text = tw.ir.print_kernel(tables.trace(tw.like("f32", 64)))
    damaged = text.replace("copy(part, loaded)", "s = scalar(f32)\ncopy(s, loaded)")
    assert damaged != text
    found = tw.ir.violations(tw.ir.parse_kernel(damaged))
    assert any(one.rule == "operand" and "s is neither a tensor" in str(one) for one in found), found


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "v_lshlrev_b32_e32 v1, 2, v0",
            "v_lshlrev_b32_e32 v1, 2, v999",
            "registers v have numbers up to 255",
        ),
        ("s[2:3], s[0:1]", "s[2:3000000000], s[0:1]", "an operand has 1 to 32 of them"),
        (
            "v_lshlrev_b32_e32 v1, 2, v0",
            "v_lshlrev_b32_e32 v1, 99999999999999999999, v0",
            "more than 64 bits",
        ),
        ("v_add_f32_e32 v2, v2, v2", "v_add_f32_e32 v2, v2, off", "'off' is neither registers nor a number"),
        ("v_add_f32_e32 v2, v2, v2", "v_add_f32_e32 s2, v2, v2", "s2.? is no vector register"),
        ("vmcnt(0)", "vmcnt(64)", "a wait until 64 of vmcnt are left; counters go to 63"),
        (".amdhsa_user_sgpr_count 2", ".amdhsa_user_sgpr_count 1000000000", "is more than 32"),
        (".size: 8", ".size: 4", "an address has 8 bytes"),
        (".size: 8", ".size: x", r"an argument with \.size 'x'"),
        (".offset: 0", ".place: 0", r"an argument with \.offset ''"),
    ],
)
def test_a_listing_says_what_is_not_understood(before: str, after: str, said: str) -> None:
    text = TEXTS["listing"][0]
    assert before in text
    with pytest.raises(amdgcn.ListingError, match=said):
        amdgcn.execute(text.replace(before, after), [np.arange(64, dtype=np.float32)], (1,), (64,))


@pytest.mark.parametrize(
    ("grid", "block", "said"),
    [
        ((1,), (2048,), "at most 1024 threads"),
        ((1 << 31,), (64,), "2\\*\\*32 threads or more"),
        ((1,), ("x",), "one to three extents of at least 1"),
    ],
)
def test_extents_that_no_launch_has_are_refused(grid: object, block: object, said: str) -> None:
    with pytest.raises(amdgcn.ListingError, match=said):
        amdgcn.execute(TEXTS["listing"][0], [np.arange(64, dtype=np.float32)], grid, block)
