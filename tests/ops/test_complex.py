"""`complex_matmul` in host memory: numbers, conjugates, strides, batches, planes, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import compare_complex, planes
from tilewright.ops import complex_matmul, complex_strategies
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.complex_products import four_products, three_products
from tilewright.ops.complex_strategies import strategy_for
from tilewright.ops.planes import Planes, Writing, splitting, splitting_of_two
from tilewright.ops.problem import problem_of
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.backends import backend_named
from tilewright.runtime.native import host_arch
from tilewright.schedule.question import Splitting
from tilewright.targets.atoms import TENSOR_CORE, fma
from tilewright.targets.target import CUDA

from .complex_cases import CASES, check, made, numbers

pytestmark = pytest.mark.in_turns(3)


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "4m") for name in CASES), ("c64, everything", "3m"), ("c32", "3m"), ("f32 planes", "3m")],
)
def test_every_element_is_right(name: str, target: str, method: str) -> None:
    arrays, factors, conjugates = made(name)
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    d = tw.complex_matmul(**arrays, **factors, **flags, method=method, target=target)
    if "out" in arrays:
        assert d is arrays["out"]
    else:
        assert isinstance(d, tuple) == isinstance(arrays["a"], tuple)
    part = tw.dtype(planes(arrays["a"])[0].dtype)
    how = Accumulation.of(
        TENSOR_CORE[part.name] if target == "reference" and part.name in ("f16", "bf16") else fma(part)
    )
    numbers_of = {"alpha": factors["alpha"], "beta": 1 if factors["beta"] is None else factors["beta"]}
    given = arrays["a"], arrays["b"], arrays.get("c")
    check(d, *given, how=how, conjugates=conjugates, **numbers_of, method=method)


def test_matmul_of_complex_arrays_and_a_result_that_is_added_to() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (numbers(rng, (48, 48), tw.f32, "interleaved") for _ in range(3))
    check(tw.matmul(a, b), a, b, None, conjugates=(0, 0))
    before = c.copy()
    assert tw.matmul(a, b, c, alpha=1j, beta=2 - 1j) is c
    check(c, a, b, before, conjugates=(0, 0), alpha=1j, beta=2 - 1j)
    parts = c.real, c.imag
    before = c.copy()
    assert tw.matmul(a, b, parts, c=c) is parts
    check(c, a, b, before, conjugates=(0, 0), beta=1)
    vector = tw.complex_matmul(a[0], b)
    assert vector.shape == (48,)
    check(vector[None], a[:1], b, None, conjugates=(0, 0))


def test_a_result_of_other_numbers() -> None:
    rng = np.random.default_rng(4)
    a, b = (numbers(rng, (20, 20), tw.f16, "interleaved") for _ in range(2))
    for wide in (
        tw.complex_matmul(a, b, out_dtype="c64"),
        tw.complex_matmul(a, b, out=np.empty((20, 20), "c8")),
    ):
        assert wide.dtype == np.complex64
        check(wide, a, b, None, conjugates=(0, 0))


@pytest.mark.parametrize("fault", ["a lost k", "a conjugate forgotten", "parts in the wrong order", "a sign"])
def test_what_is_wrong_is_found(fault: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (numbers(rng, (40, 40), tw.f32, "interleaved") for _ in range(2))
    d = tw.complex_matmul(a, b, conjugate_a=True)
    check(d, a, b, None, conjugates=(1, 0))
    if fault == "a lost k":
        d = tw.complex_matmul(a[:, 1:], b[1:], conjugate_a=True)
    elif fault == "a conjugate forgotten":
        d = tw.complex_matmul(a, b)
    elif fault == "parts in the wrong order":
        d = d.imag + 1j * d.real
    else:
        d = d.conj()
    with pytest.raises(tw.WrongResultError):
        check(d, a, b, None, conjugates=(1, 0))


X = np.ones((4, 4), np.complex64)
PLANES = (X.real, X.imag)
NARROW = (X.real.astype(tw.f8e4m3.numpy),) * 2


@pytest.mark.parametrize(
    ("error", "words", "given", "options"),
    [
        (tw.DTypeError, "a is f32, a real dtype; nearest", (X.real, X), {}),
        (tw.DTypeError, "of c64 and c128: convert one", (X, X.astype(np.complex128)), {}),
        (tw.DTypeError, "of a pair of f32 and c128: convert one", (PLANES, X.astype(np.complex128)), {}),
        (tw.DTypeError, "a is a pair of f32 and f64", ((X.real, X.imag.astype(float)), X), {}),
        (tw.DTypeError, "products of a pair of f8e4m3 are not supported", (NARROW, NARROW), {}),
        (tw.DTypeError, "out_dtype is f32, a @ b is complex", (X, X), {"out_dtype": "f32"}),
        (tw.LaunchError, "a is a tuple of 3 arrays", ((X.real,) * 3, X), {}),
        (tw.LaunchError, r"real parts of b have shape \(4, 4\), the imaginary parts \(4, 3\)",
         (X, (X.real, X.imag[:, :3])), {}),
        (tw.LaunchError, r"complex_matmul of .* K is 4 in a and 3 in b", (X, X[:3]), {}),
        (tw.LaunchError, r"out has shape \(4, 3\)", (X, X), {"out": np.empty((4, 3), np.complex64)}),
        (tw.LaunchError, "out and a share memory", (X, X.copy()), {"out": X}),
        (tw.LaunchError, "out and b share memory", (X.copy(), X), {"out": (X.real, np.empty((4, 4), "f4"))}),
        (tw.LaunchError, "imaginary parts of out share memory", (X, X), {"out": (X.real.copy(),) * 2}),
        (tw.LaunchError, "out and c share memory", (X.copy(), X.copy(), X.T), {"out": X, "beta": 1}),
        (tw.LaunchError, "beta=2j needs c or out, and neither is given", (X, X), {"beta": 2j}),
        (tw.LaunchError, "method='5m'; choose one of", (X, X), {"method": "5m"}),
        (tw.LaunchError, "precision='half'; choose one of exact, tf32", (X, X), {"precision": "half"}),
        (tw.LaunchError, "alpha='x'", (X, X), {"alpha": "x"}),
    ],
)  # fmt: skip
def test_what_is_refused(error: type[Exception], words: str, given: Any, options: Any) -> None:
    given = [one.copy() if one is X and "share" not in words else one for one in given]
    with pytest.raises(error, match=words):
        tw.complex_matmul(*given, **options)


def test_what_matmul_refuses_of_complex_arrays() -> None:
    with pytest.raises(tw.LaunchError, match="bias with complex arrays; nearest legal choice: c="):
        tw.matmul(X, X, bias=X[0])
    with pytest.raises(
        tw.LaunchError, match="activation='relu' with complex arrays; activations are defined for real"
    ):
        tw.matmul(X, X, activation="relu")
    for reduction in ("cluster", "reduce-scatter"):
        with pytest.raises(tw.LaunchError, match=r'with 2 sums.*legal choice: reduction="workspace"'):
            tw.matmul(X, X, split_k=2, reduction=reduction, target="cpu")
    with pytest.raises(tw.LaunchError, match="alpha=1j is complex and the arrays are real"):
        tw.matmul(X.real, X.real, alpha=1j)


@pytest.mark.parametrize(
    ("target", "split", "name"),
    [
        ("reference", {"split_k": 3}, "c64, everything"),
        ("reference", {"split_k": "stream"}, "bf16 planes"),
        ("cpu", {"split_k": 14, "reduction": "turnstile"}, "c64, everything"),
        ("cpu", {"split_k": "auto", "reduction": "atomic"}, "c128"),
    ],
)
def test_k_in_parts(target: str, split: dict[str, Any], name: str) -> None:
    arrays, factors, conjugates = made(name)
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    d = tw.complex_matmul(**arrays, **factors, **flags, **split, target=target)
    part = tw.dtype(planes(arrays["a"])[0].dtype)
    how = Accumulation.of(TENSOR_CORE["bf16"] if part == tw.bf16 else fma(part))
    beta = 1 if factors["beta"] is None else factors["beta"]
    added = arrays.get("c")
    check(d, arrays["a"], arrays["b"], added, how=how, conjugates=conjugates, **{**factors, "beta": beta})


@pytest.mark.parametrize("columns", [40, 3, 1])
@pytest.mark.parametrize("split", [{}, {"split_k": 2}, {"split_k": "auto"}])
def test_the_bits_of_a_row_do_not_depend_on_others(split: dict[str, Any], columns: int) -> None:
    """Few columns are multiplied as rows of the transposed product only without this promise."""
    rng = np.random.default_rng(9)
    a, b = (numbers(rng, shape, tw.f32, "interleaved") for shape in ((150, 1300), (1300, columns)))
    many, few = (
        tw.complex_matmul(rows, b, **split, batch_invariant=True, target="cpu") for rows in (a, a[:3])
    )
    check(many, a, b, None, conjugates=(0, 0))
    np.testing.assert_array_equal(many[:3], few)


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("shape", [(70, 1, 130), (200, 1, 33), (90, 5, 17), (3, 70, 40), (2, 123, 324)])
def test_few_columns_are_rows_of_the_transposed_product(shape: tuple[int, int, int], orders: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng([*shape, *map(ord, orders)])
    a, b = (
        np.require(numbers(rng, extents, tw.f32, "interleaved"), requirements=order)
        for extents, order in (((m, k), orders[0]), ((k, n), orders[1]))
    )
    product = plan_complex({"a": a, "b": b}, ComplexWanted(target="cpu"))
    assert product.schedule is not None
    if n != 5 and host_arch() in ("x86-64-v3", "x86-64-v4"):  # with 5 columns it depends on the vectors
        assert product.schedule.swap_ab == (n < m)
    product.run()
    check(product.result, a, b, None, conjugates=(0, 0))


def test_how_k_is_split_is_said_once() -> None:
    with pytest.raises(tw.LaunchError, match="complex_matmul: schedule= already fixes the split of K"):
        tw.complex_matmul(X, X.copy(), schedule=tw.Schedule(fma("f32"), (32, 32, 8)), split_k=2)
    with pytest.raises(tw.LaunchError, match="complex_matmul: batch_invariant=True with reduction"):
        tw.complex_matmul(X, X.copy(), batch_invariant=True, reduction="atomic")


def test_three_products_are_less_accurate_where_a_part_is_small() -> None:
    rng = np.random.default_rng(6)
    a, b = (numbers(rng, (40, 40), tw.f32, "interleaved") for _ in range(2))
    a.imag *= 1e-3
    b.imag *= 1e-3
    four, three = (tw.complex_matmul(a, b, method=method) for method in ("4m", "3m"))
    assert compare_complex(a, b, four).ok
    assert compare_complex(a, b, three, method="3m").ok
    assert not compare_complex(a, b, three).ok
    lost = tw.complex_matmul(a[:, 1:], b[1:], method="3m")
    assert not compare_complex(a, b, lost, method="3m").ok
    assert not compare_complex(a, b, three.conj(), method="3m").ok


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_planes_of_operands_first(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test declares planes profitable, as they are for matrix units that bulk copies feed."""
    monkeypatch.setattr(complex_strategies, "_planes_pay", lambda *given: True)
    for name in ("c64, everything", "c128"):
        arrays, factors, conjugates = made(name)
        given = {one: arrays.get(one) for one in ("a", "b", "c", "out")}
        flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
        product = plan_complex(given, ComplexWanted(**factors, **flags, target=target))
        assert [one.name for one in product.details.planes] == ["a", "b"]
        names = [executable.kernel.name for executable in product.run()]
        assert names == ["planes_of_both", "gemm_complex"]
        check(product.result, arrays["a"], arrays["b"], arrays["c"], conjugates=conjugates, **factors)


@pytest.mark.parametrize(("method", "layout"), [("4m", "interleaved"), ("3m", "planar")])
def test_planes_lie_along_rows_for_tiles_that_are_less_deep(method: str, layout: str) -> None:
    """Bulk copies load 128 bytes of an array contiguous along K, and any number of rows of another."""
    how = tw.Schedule(
        tw.atoms.wgmma("f16", 64), (64, 64, 32), stages=3, staging="tma", roles="cooperative", blocks=2
    )
    rng = np.random.default_rng(7)
    a, b = (numbers(rng, shape, tw.f16, layout) for shape in ((72, 40), (40, 80)))
    product = plan_complex({"a": a, "b": b}, ComplexWanted(method=method, how=how, target="reference"))
    count = 3 if method == "3m" else 2
    assert [(len(one.kept), one.target) for one in product.details.planes] == [(count, 0), (count, 1)]
    assert product.run()[-1].schedule == how
    check(product.result, a, b, None, how=Accumulation.of(how.atom), conjugates=(0, 0), method=method)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("parts", [1, 2])
def test_both_parts_of_f32_are_copied_at_once_along_the_contiguous_dimension(order: str, parts: int) -> None:
    """A ring of pairs holds (rows, K) or (K, rows), as the operand lies in memory; all extents are ragged."""
    how = tw.Schedule(
        fma("f32", each=(4, 2), paired=True), (16, 16, 8), stages=3, staging="cp_async", split_k=parts
    )
    rng, (m, n, k), items = np.random.default_rng(len(order) + parts), (19, 21, 27), 2
    shapes = [
        (items, *(shape if letter == "n" else shape[::-1]))
        for shape, letter in zip(((m, k), (k, n)), order, strict=True)
    ]
    a, b = (
        one if letter == "n" else one.swapaxes(-1, -2)
        for one, letter in zip((numbers(rng, s, tw.f32, "interleaved") for s in shapes), order, strict=True)
    )
    wanted = ComplexWanted(conjugate_a=True, how=how, target="reference")
    product = plan_complex({"a": a, "b": b}, wanted)
    copied = [product.product.arrays[at].info for at in (0, 2)]
    assert [(info.shape[-1], abs(info.strides[-2])) for info in copied] == [(2, 2)] * 2
    assert product.run()[-1].target == "reference"
    for item in range(items):
        check(product.result[item], a[item], b[item], None, how=Accumulation.of(how.atom), conjugates=(1, 0))


def test_parts_of_k_limit_registers_to_the_blocks_that_run_at_once() -> None:
    """Adding up parts takes more registers than the main loop. One block at once has no limit."""
    plane, out = np.empty((512, 512), np.float32), np.empty((512, 512), np.float64)
    bound = four_products(0, tw.f32)
    words: dict[str, Any] = {"precision": "exact", "terms": frozenset(), "conjugates": (False,) * 3}
    for each, beside in ((1, 0), (3, 3), (9, 5)):
        how = tw.Schedule(
            fma("f32", each=(4, 4), paired=True), (32, 64, 16), warps=(2, 2), stages=3, staging="cp_async",
            blocks=each * 132, split_k="stream",
        )  # fmt: skip
        kernel = bound.bind(**words, pairs=(None, tw.f32), schedule=how)
        ran = kernel.compile(
            plane.T, plane.T, plane, plane, *[out] * 4, 1, 0, 0, 0, target="cuda", arch="sm_90a"
        )
        assert (ran.kernel.resident, f"__launch_bounds__(128, {beside})" in ran.source) == (
            beside,
            beside > 0,
        )
        assert not beside or ran.resources["registers"] * 128 * beside <= 65536


def on_a_gpu(part: str, n: int, order: str = "nn") -> dict[str, ArrayInfo]:
    """Return descriptions of interleaved matrices in the memory of a GPU."""
    item, made = tw.dtype(part), {}
    for name, letter in zip(("a", "b", "out"), f"{order}n", strict=True):
        strides = (2 * n, 2) if letter == "n" else (2, 2 * n)
        for end, offset in (("", 0), ("_im", item.bytes)):
            made[name + end] = ArrayInfo(4096 + offset, (n, n), strides, item, ("cuda", 0), False, None)
    return made


@pytest.mark.parametrize(
    ("part", "precision", "n", "arch", "order", "targets"),
    [
        ("f16", "exact", 4096, "sm_90a", "nt", (1, 0)),
        ("f32", "tf32", 4096, "sm_90a", "nn", (1, 0)),
        ("f32", "exact", 4096, "sm_90a", "nn", (0, 1)),
        ("f32", "exact", 1024, "sm_80", "nt", (0, 1)),
        ("f32", "exact", 384, "sm_80", "nt", ()),
        ("f32", "exact", 512, "sm_90a", "nn", ()),
        ("f64", "exact", 4096, "sm_90a", "nn", ()),
        ("f16", "exact", 128, "sm_90a", "nn", ()),
    ],
)
def test_planes_are_written_where_they_are_estimated_to_pay(
    part: str, precision: str, n: int, arch: str, order: str, targets: tuple[int, ...]
) -> None:
    infos = on_a_gpu(part, n, order)
    machine = (CUDA.architecture(arch), 132)
    way = strategy_for(
        infos, problem_of(layouts(infos)), "4m", precision, machine, None, (False, False, False)
    )
    assert tuple(one.target for one in way.planes) == targets
    assert way.size_bytes == sum(2 * n * n * tw.dtype(part).bytes for _ in targets)
    three = strategy_for(
        infos, problem_of(layouts(infos)), "3m", precision, machine, None, (False, True, False)
    )
    assert [one.kept[-1] for one in three.planes] == ["_sum", "_sum"]
    assert [one.negative for one in three.planes] == [False, True]
    # Whether they pay depends on how many rows there are, and bits of a row may not.
    invariant = Splitting(batch_invariant=True)
    assert not strategy_for(
        infos, problem_of(layouts(infos)), "4m", precision, machine, invariant, (False,) * 3
    ).planes


@pytest.mark.parametrize(("part", "arch"), [("f16", "sm_80"), ("f32", "sm_90a"), ("f64", "sm_90a")])
def test_text_for_interleaved_arrays_spills_nothing(part: str, arch: str) -> None:
    whole = np.empty((512, 512, 2), tw.dtype(part).numpy)
    parts = (whole[..., 0], whole[..., 1]) * 4
    kernel = four_products(0, tw.f64 if part == "f64" else tw.f32)
    bound = kernel.bind(
        precision="exact", terms=frozenset({"alpha", "turn", "c"}), conjugates=(True, False, False)
    )
    ran = bound.compile(*parts, 1, 0, 0, 0, target="cuda", arch=arch)
    assert ran.target == "cuda"
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


def test_planes_are_multiplied_by_warpgroups() -> None:
    """Bulk copies load tf32 planes in their order, and the result is stored interleaved."""
    plane, out = np.empty((4096, 4096), np.float32), np.empty((4096, 4096, 2), np.float32)
    parts = (plane, plane, plane.T, plane.T, *(out[..., 0], out[..., 1]) * 2)
    bound = four_products(0, tw.f32).bind(precision="tf32", terms=frozenset(), conjugates=(False,) * 3)
    ran = bound.compile(*parts, 1, 0, 0, 0, target="cuda", arch="sm_90a")
    assert ran.schedule is not None
    assert (ran.target, ran.schedule.staging, "wgmma" in ran.source) == ("cuda", "tma", True)
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


def test_three_products_of_16_bits_have_large_tiles() -> None:
    """With six operands along rows, four stages of 128 x 128 x 32 fit; three of depth 64 do not."""
    infos, machine = on_a_gpu("f16", 4096), (CUDA.architecture("sm_90a"), 132)
    way = strategy_for(infos, problem_of(layouts(infos)), "3m", "exact", machine, None, (False,) * 3)
    assert [(len(one.kept), one.target) for one in way.planes] == [(3, 0), (3, 1)]
    plane = np.empty((4096, 4096), np.float16)
    parts = (plane.T, plane.T, plane, plane, plane.T, plane, *[plane] * 4)
    bound = three_products(0, tw.f32).bind(precision="exact", terms=frozenset(), conjugates=(False,) * 3)
    ran = bound.compile(*parts, 1, 0, 0, 0, target="cuda", arch="sm_90a")
    assert "(128, 128, 32), stages=4" in str(ran.schedule)
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


def test_threads_of_a_block_write_planes_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that writes planes has one thread on a processor, and many on a GPU."""
    a = np.ones((6, 6), np.complex64)
    monkeypatch.setattr(complex_matmul, "backend_for", lambda op, infos, target: backend_named(target))
    for target, alone in (("cpu", True), ("cuda", False)):
        plan = plan_complex({"a": a, "b": a}, ComplexWanted(method="3m", target=target))
        [writes, _] = plan.launches
        assert {how.on_host for how in writes.kernel.constants["hows"]} == {alone}


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (3, 24, 16)], ids=str)
def test_planes_lie_as_the_array_does(shape: tuple[int, ...]) -> None:
    """By default planes are contiguous along the array's dimension with the smallest stride."""
    for gap in (1, 2):
        for along in (-1, -2):
            turned = shape if along == -1 else (*shape[:-2], shape[-1], shape[-2])
            whole = np.empty((*turned[:-1], gap * turned[-1]), np.float32)[..., ::gap]
            given = whole if along == -1 else whole.swapaxes(-1, -2)
            made = Planes.of("a", describe(given), ("", "_im"))
            assert given.shape == made.shape
            assert made.strides[along] == 1
            assert made.source == made.target == len(shape) + along


@pytest.mark.parametrize(("part", "turned"), [("f32", True), ("f16", False)])
def test_planes_compile_for_a_gpu(part: str, turned: bool) -> None:
    """Pairs are read, and planes written, in 16 bytes at a time."""
    kind = tw.dtype(part)
    infos = on_a_gpu(part, 512)
    planes = Planes.of("a", infos["a"], ("", "_im", "_sum"), 0 if turned else None)
    pairs = np.empty((512, 512), np.float64 if part == "f32" else np.int32)
    dense = np.empty(planes.shape, kind.numpy)
    dense = dense.T if turned else dense
    how = Writing(planes.kept, kind, False, turned, True, False)
    given = (pairs, pairs, dense, dense, dense)
    alone = splitting(0).bind(how=how).compile(*given, target="cuda", arch="sm_90a")
    both = splitting_of_two(0).bind(hows=(how, how)).compile(*given, *given, target="cuda", arch="sm_90a")
    for ran in (alone, both):
        assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0
        assert (ran.resources["shared_bytes"] > 0) is turned
        narrow = [
            line for line in ran.source.splitlines() if "bytes at a time" in line and "shared" not in line
        ]
        assert narrow
        assert all("16 bytes at a time" in line for line in narrow if "there" not in line)


def test_planes_of_batches_with_ragged_extents_compile() -> None:
    """The number of blocks depends on the block's number, in one line or in two."""
    how = Writing(("", "_im"), tw.f32, False, True, False, False)
    given = [np.empty((3, 5, 37, 51), np.float32)] * 5
    made = splitting_of_two(2).bind(hows=(how, how)).compile(*given, *given, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == 0


@pytest.mark.parametrize("method", ["4m", "3m"])
def test_a_product_behind_planes_is_not_looked_at_again(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complex_strategies, "_planes_pay", lambda *given: True)
    rng = np.random.default_rng(8)

    def drawn() -> list[Any]:
        return [numbers(rng, (17, 17), tw.f32, "interleaved") for _ in range(3)]

    a, b, c = drawn()
    tw.complex_matmul(a, b, c, alpha=2, conjugate_b=True, method=method)
    tw.complex_matmul(a, b, out=c, conjugate_b=True, method=method)
    monkeypatch.setattr(complex_matmul, "plan_complex", lambda *given: pytest.fail("looked at"))
    a, b, c = drawn()
    made = tw.complex_matmul(a, b, c, alpha=3, conjugate_b=True, method=method)
    check(made, a, b, c, conjugates=(0, 1), alpha=3, beta=1, method=method)
    assert tw.complex_matmul(a, b, out=c, conjugate_b=True, method=method) is c
    check(c, a, b, None, conjugates=(0, 1), method=method)
    monkeypatch.undo()
    with pytest.raises(tw.LaunchError, match="out and b share memory"):
        tw.complex_matmul(a, b, out=b, conjugate_b=True, method=method)


def test_a_product_that_is_known_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)

    def drawn() -> list[Any]:
        return [numbers(rng, (24, 24), tw.f32, "interleaved") for _ in range(3)]

    def planar(x: Any) -> Any:
        return x.real.copy(), x.imag.copy()

    calls = {
        "a new result": lambda a, b, c, alpha: tw.complex_matmul(a, b, c, alpha=alpha),
        "in place": lambda a, b, c, alpha: tw.complex_matmul(a, b, c, alpha=alpha, out=c),
        "without c": lambda a, b, c, alpha: tw.matmul(a, b, c, alpha=alpha, beta=1),
        "planes": lambda a, b, c, alpha: tw.complex_matmul(planar(a), b, planar(c), alpha=alpha),
    }
    for call in calls.values():
        call(*drawn(), 2 + 1j)
    looked = []
    monkeypatch.setattr(complex_matmul, "plan_complex", lambda *given: looked.append(given))
    for call in calls.values():
        a, b, c = drawn()
        before = c.copy()
        check(call(a, b, c, 3 - 1j), a, b, before, conjugates=(0, 0), alpha=3 - 1j, beta=1)
    assert not looked


def test_what_shares_memory_is_refused_though_its_shapes_are_known() -> None:
    a, b, c = (np.ones((8, 8), np.complex64) for _ in range(3))
    for _ in range(2):
        tw.complex_matmul(a, b, out=c)
        tw.complex_matmul(a, b, out=(c.real.copy(), c.imag.copy()))
        tw.complex_matmul(a, b, c, out=c)
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.complex_matmul(c, b, out=c)
    with pytest.raises(tw.LaunchError, match="the real and imaginary parts of out share memory"):
        tw.complex_matmul(a, b, out=(a.real.copy(),) * 2)
    whole = np.ones((9, 8), np.complex64)
    tw.complex_matmul(a, b, whole[:8], out=whole[:8])
    with pytest.raises(tw.LaunchError, match="out and c share memory"):
        tw.complex_matmul(a, b, whole[1:], out=whole[:8])
