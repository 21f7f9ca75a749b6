"""Repeated calls of operations and gradients: whatever a replay depends on is changed after it was kept."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import copysign
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw
import tilewright.torch as tt
from tilewright.errors import LaunchError
from tilewright.ops.replay import recorded_calls
from tilewright.runtime.plans import RECORDING
from tilewright.torch import layers, products
from tilewright.torch.registry import MOST_KEYS, MOST_TRIES, is_new, with_replay
from tilewright.torch.terms import numbers_of_codes

TIMES = MOST_TRIES


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return integers from -3 to 3: products of few of them are exact in every dtype."""
    numbers = torch.Generator("cpu").manual_seed(seed + sum(shape))
    made = torch.randint(-3, 4, shape, generator=numbers, device="cpu")
    return made.to(torch.get_default_device(), dtype)


class Counted:
    """A function with a replay, which counts the calls that were no replays."""

    def __init__(self, function: Callable[..., Any], tensors: int, words: int = 0) -> None:
        self.calls = 0

        def counted(*args: Any) -> Any:
            self.calls += 1
            return function(*args)

        places = range(tensors, tensors + words)
        self.call = with_replay(counted, range(tensors), places, places)

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def is_replayed(self, *args: Any) -> bool:
        """Call with other elements until a call is a replay; return whether one was."""
        for _ in range(TIMES):
            before = self.calls
            self.call(*args)
            if self.calls == before:
                return True
        return False


def two_products(a: Any, b: Any, c: Any, alpha: float = 1.0) -> Any:
    """Return a product of three matrices, and the transposed first product."""
    first = tt.matmul(a, b, alpha=alpha)
    return tt.matmul(first, c), first.mT


def check_two(counted: Counted, a: Any, b: Any, c: Any, alpha: float = 1.0) -> None:
    made, first = counted(a, b, c, alpha)
    exact = alpha * (a.double() @ b.double())
    assert torch.equal(first.double(), exact.mT)
    assert torch.equal(made.double(), exact @ c.double())
    assert made.dtype == first.dtype == a.dtype
    assert first.stride() == exact.to(a.dtype).mT.stride()


def test_new_elements_and_new_results() -> None:
    counted = Counted(two_products, 3, 1)
    given = drawn(5, 4), drawn(4, 6), drawn(6, 3)
    assert counted.is_replayed(*given, 1.0)
    calls = counted.calls
    kept = [counted(*given, 1.0) for _ in range(3)]
    assert len({one.data_ptr() for pair in kept for one in pair}) == 6
    for seed in range(3):
        check_two(counted, drawn(5, 4, seed=seed), drawn(4, 6, seed=seed), drawn(6, 3, seed=seed))
    for pair in kept[1:]:  # later calls did not change them
        assert all(map(torch.equal, pair, kept[0]))
    assert counted.calls == calls


CHANGES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "a shape": lambda: (drawn(7, 4), drawn(4, 6), drawn(6, 3)),
    "a depth": lambda: (drawn(5, 2), drawn(2, 6), drawn(6, 3)),
    "strides of a": lambda: (drawn(4, 5).mT, drawn(4, 6), drawn(6, 3)),
    "strides of c": lambda: (drawn(5, 4), drawn(4, 6), drawn(6, 8)[:, 2:5]),
    "a broadcast row": lambda: (drawn(1, 4).expand(5, 4), drawn(4, 6), drawn(6, 3)),
    "an alignment": lambda: (drawn(21)[1:].view(5, 4), drawn(4, 6), drawn(6, 3)),
    "a dtype": lambda: (drawn(5, 4).double(), drawn(4, 6).double(), drawn(6, 3).double()),
    "a batch": lambda: (drawn(2, 5, 4), drawn(4, 6), drawn(6, 3)),
    "one array twice": lambda: ((x := drawn(5, 5)), x, drawn(5, 3)),
    "arrays that overlap": lambda: ((x := drawn(8, 4))[:5], x[:4, :], drawn(4, 3)),
    "no rows": lambda: (drawn(0, 4), drawn(4, 6), drawn(6, 3)),
    "no depth": lambda: (drawn(5, 0), drawn(0, 6), drawn(6, 3)),
    "a number": lambda: (drawn(5, 4), drawn(4, 6), drawn(6, 3), 2.0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_of_a_kept_call(what: str) -> None:
    """A call of another kind gives its own results, before and after it is kept itself."""
    counted = Counted(two_products, 3, 1)
    assert counted.is_replayed(drawn(5, 4), drawn(4, 6), drawn(6, 3), 1.0)
    for _ in range(6):
        check_two(counted, *CHANGES[what]())
        check_two(counted, drawn(5, 4, seed=1), drawn(4, 6, seed=1), drawn(6, 3, seed=1))


def test_the_sign_of_a_zero() -> None:
    counted = Counted(lambda a, b, alpha: tt.matmul(a, b, alpha=copysign(1.0, alpha)), 2, 1)
    given = torch.ones(2, 2), torch.ones(2, 2)
    for _ in range(4):
        for alpha in (0.0, -0.0):
            assert counted(*given, alpha).unique().tolist() == [copysign(2.0, alpha)]
    assert counted.is_replayed(*given, -0.0)


NOT_REPLAYED: dict[str, Callable[[Any, Any], Any]] = {
    "an operand by PyTorch": lambda a, b: tt.matmul(a + a, b),
    "a result by PyTorch": lambda a, b: tt.matmul(a, b) * 2,
    "a copy": lambda a, b: tt.matmul(a.mT.contiguous().mT, 2 * b),
    "a part of a result": lambda a, b: tt.matmul(a, torch.cat([b, b], 1))[:, : b.shape[1]] * 2,
    "a part of the operands": lambda a, b: 2 * tt.matmul(a[:, 1:], b[1:]) + 2 * tt.matmul(a[:, :1], b[:1]),
    "a result in place": lambda a, b: tt.matmul(a, b).mul_(2),
}


@pytest.mark.parametrize("what", NOT_REPLAYED)
def test_calls_with_steps_of_pytorch(what: str) -> None:
    """A call of which PyTorch computes a part is never replayed."""
    counted = Counted(NOT_REPLAYED[what], 2)
    for seed in range(TIMES + 3):
        a, b = drawn(5, 4, seed=seed), drawn(4, 6, seed=seed)
        assert torch.equal(counted(a, b).double(), 2 * (a.double() @ b.double()))
    assert counted.calls == TIMES + 3


def test_an_argument_that_is_written() -> None:
    """A kernel that stores into an argument checks at each call that the arrays share no memory."""
    counted = Counted(lambda a, b, out: tilewright_mm(a, b, out), 3)
    a, b = drawn(4, 4), drawn(4, 4, seed=1)
    for _ in range(TIMES):
        out = torch.empty(4, 4)
        counted(a, b, out)
        assert torch.equal(out.double(), a.double() @ b.double())
    assert counted.calls == TIMES


@tw.kernel(A="M N", D="M N", C="M N")
def two_multiples(A, D, C):
    for m, n in tw.tiles(C):
        C[m, n] = A[m, n] * 2
        D[m, n] = A[m, n] * 3


def test_an_argument_that_a_kernel_stores() -> None:
    """Each call checks that it shares no memory with other arguments."""
    both = tt.op(two_multiples, results=("C",))
    for seed in range(TIMES):
        a, d = drawn(4, 4, seed=seed), torch.empty(4, 4)
        assert torch.equal(both(a, d), 2 * a)
        assert torch.equal(d, 3 * a)
    whole = drawn(5, 4)  # of the same alignment
    before = whole.clone()
    with pytest.raises(LaunchError, match="D and A share memory"):
        both(whole[:4], whole[1:])
    assert torch.equal(whole, before)


def tilewright_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    products.tilewright_mm(a, b, out=out)


def test_packed_operands_are_not_replayed() -> None:
    """The array of such a launch is no tensor, but holds one."""
    x, scales = drawn(3, 8), torch.ones(2, 4)
    words = None, None, None, 1.0, 4, "i4", None, None
    for seed in range(TIMES):
        codes = drawn(4, 4, seed=seed).to(torch.uint8).mT
        exact = x @ numbers_of_codes(codes, scales, None, 4, "i4")
        assert torch.equal(layers.SCALED_MM.run(x, codes, None, scales, None, *words), exact)


def test_numbers_that_never_repeat() -> None:
    """A seed is a part of the key: no such call is kept, and the table of its keys stays small."""
    counted = Counted(lambda x, seed: products.DROPOUT.run(x, 0.5, seed, 0), 1, 1)
    x = torch.ones(4, 8)
    first = [counted(x, seed) for seed in range(3)]
    for seed in range(MOST_KEYS + 20):
        counted(x, seed)
    assert counted.calls == MOST_KEYS + 23
    for seed in range(3):
        assert torch.equal(counted(x, seed), first[seed])
    assert not torch.equal(first[0], first[1])


def test_a_recording_needs_no_memory() -> None:
    """A result may have most of a GPU's memory."""
    made = list[int]()

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            made.append(0 if result.is_meta else result.numel())
            return result

    mode = Allocations()

    def product(a: Any, b: Any) -> Any:
        result = tt.matmul(a, b)
        mode.__enter__()  # sees all that is done with the result
        return result

    call, given = with_replay(product, range(2)), (drawn(5, 4), drawn(4, 6))
    for _ in range(2):  # the second one is recorded
        exact = given[0] @ given[1]
        result = call(*given)
        mode.__exit__(None, None, None)
        assert torch.equal(result, exact)
    assert made
    assert max(made) == 0


def test_an_error_ends_the_recording() -> None:
    def fails(a: Any, b: Any) -> Any:
        tt.matmul(a, b)
        raise ZeroDivisionError

    call = with_replay(fails, range(2))
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            call(drawn(2, 3), drawn(3, 2))
    assert RECORDING.launches is RECORDING.made is None


def test_functions_in_functions() -> None:
    inner = Counted(lambda a, b: tt.matmul(a, b), 2)
    outer = Counted(lambda a, b, c: inner(inner(a, b), c), 3)
    assert inner.is_replayed(drawn(5, 4), drawn(4, 6))
    assert outer.is_replayed(drawn(5, 4), drawn(4, 6), drawn(6, 3))
    for seed in range(3):
        a, b, c = drawn(5, 4, seed=seed), drawn(4, 6, seed=seed), drawn(6, 3, seed=seed)
        assert torch.equal(outer(a, b, c).double(), a.double() @ b.double() @ c.double())


def test_kept_calls_are_forgotten_with_their_code() -> None:
    """A replay holds machine code; when the code is dropped, later calls plan anew."""
    counted = Counted(two_products, 3, 1)
    given = drawn(5, 4), drawn(4, 6), drawn(6, 3), 1.0
    assert counted.is_replayed(*given)
    for one in [one for one in gc.get_objects() if type(one).__name__ == "Executable"]:
        for holder in list(one.holders):
            holder.forget(one)
    calls = counted.calls
    check_two(counted, *given)
    assert counted.calls == calls + 1


# ---------------------------------------------------------------- whatever observes a call


class Seen(TorchDispatchMode):
    """Lists the operations of this library."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "tilewright":
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_gradients_of_repeated_calls() -> None:
    layer = tt.Linear(6, 4)
    x = drawn(5, 6).requires_grad_()

    def gradients() -> tuple[torch.Tensor, ...]:
        y = layer(x)
        return torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))

    expected = [gradients() for _ in range(6)][-1]
    with Seen() as seen:
        found = gradients()
    assert seen.names.count("matmul.default") == 3
    assert "column_sums.default" in seen.names
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_transforms_and_batched_gradients_after_replays() -> None:
    weight, x = drawn(6, 4).requires_grad_(), drawn(5, 6)
    for _ in range(5):
        tt.matmul(x, weight).sum().backward()
    y = tt.matmul(x, weight)
    rows = drawn(3, 5, 4, seed=2)
    (found,) = torch.autograd.grad(y, weight, rows, is_grads_batched=True)
    assert torch.equal(found, torch.einsum("mk,bmn->bkn", x, rows))
    found = torch.func.vmap(torch.func.grad(lambda w, one: (tt.matmul(x, w) * one).sum()), (None, 0))(
        weight.detach(), rows
    )
    assert torch.equal(found, torch.einsum("mk,bmn->bkn", x, rows))


@pytest.mark.parametrize("of_rows", ["layer_norm", "layer_norm without a bias", "rms_norm"])
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
def test_norms_that_are_changed_in_place(of_rows: str, shape: tuple[int, ...]) -> None:
    given = [torch.ones(6).requires_grad_() for _ in range(2 if of_rows == "layer_norm" else 1)]
    norm = getattr(tt, of_rows.partition(" ")[0])
    for seed in range(5):
        x = drawn(*shape, seed=seed).requires_grad_()
        expected = norm(x, *given) * 2 + 1
        made = norm(x, *given)
        made *= 2
        made += 1
        assert torch.equal(made, expected)
        assert all(
            map(torch.equal, *(torch.autograd.grad(one.sum(), [x, *given]) for one in (made, expected)))
        )


def test_second_derivatives_after_replays() -> None:
    def first(create: bool, call: Callable[..., Any]) -> Any:
        x, w = drawn(5, 6).requires_grad_(), drawn(4, 6, seed=1).requires_grad_()
        dy = drawn(5, 4, seed=2).requires_grad_()
        found = torch.autograd.grad(call(x, w), (x, w), dy, create_graph=create)
        if not create:
            return found
        return torch.autograd.grad(sum((one.square().sum() for one in found), torch.zeros(())), (x, w, dy))

    for create in (False, False, False, False, True, False, True):
        found = first(create, tt.linear)
        exact = first(create, torch.nn.functional.linear)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_autocast_after_replays() -> None:
    layer, x = tt.Linear(6, 4), drawn(5, 6)
    for _ in range(5):
        layer(x).sum().backward()
    for param in layer.parameters():
        param.grad = None
    with torch.autocast(x.device.type, torch.bfloat16):
        y = layer(x)
        assert y.dtype == torch.bfloat16
        y.sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, x.sum(0).expand(4, 6))


def test_calls_are_recorded_after_replays() -> None:
    """A kept call does not hide launches from `recorded_calls`, which launches nothing."""
    counted = Counted(two_products, 3, 1)
    given = drawn(5, 4), drawn(4, 6), drawn(6, 3), 1.0
    assert counted.is_replayed(*given)
    assert len(recorded_calls(lambda: counted(*given))) == 2
    check_two(counted, *given)


def test_saved_tensors_that_hooks_change() -> None:
    """Hooks may return saved tensors with other strides, or another alignment."""
    x, weight = drawn(5, 6), drawn(6, 4)
    dy = drawn(5, 4, seed=3)

    def gradients() -> tuple[torch.Tensor, ...]:
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        return torch.autograd.grad(tt.matmul(a, b), (a, b), dy)

    expected = dy @ weight.mT, x.mT @ dy
    for _ in range(5):
        assert all(map(torch.equal, gradients(), expected))
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one.mT.contiguous().mT):
        for _ in range(4):
            assert all(map(torch.equal, gradients(), expected))
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one.expand(2, *one.shape)[1]):
        assert all(map(torch.equal, gradients(), expected))


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_that_are_wanted(bias: bool) -> None:
    """Each choice of gradients has its own replay."""
    given = [drawn(2, 5, 6), drawn(4, 6, seed=1), *([drawn(4, seed=2)] if bias else [])]
    dy = drawn(2, 5, 4, seed=3)
    for _ in range(5):
        for wanted in range(1, 2 ** len(given)):
            found, exact = [], []
            for call, made in ((tt.linear, found), (torch.nn.functional.linear, exact)):
                args = [one.clone().requires_grad_(bool(wanted >> at & 1)) for at, one in enumerate(given)]
                call(*args).backward(dy)
                made += [one.grad for one in args]
            for one, other in zip(found, exact, strict=True):
                assert (one is None) == (other is None)
                assert one is None or torch.equal(one, other)


def test_new_tensors_outside_of_a_recording() -> None:
    made = torch.empty(3)
    assert is_new(made) is made
    assert RECORDING.made is None
