"""Predicted counts of each operation's executions equal those of a run on the reference."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hazards.clusters import cluster_gemm

import tilewright as tw
from tilewright.errors import UnknownCountError
from tilewright.inspect import executions as room
from tilewright.inspect.executions import executions
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import Subject
from tilewright.ir import async_ops, ops
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op
from tilewright.targets.reference.asynchronous import REFERENCE
from tilewright.targets.reference.recorder import ExecutionRecorder
from tilewright.targets.reference.run import run

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNTED = (ops.Copy, ops.Mma, async_ops.MmaAsync)


def is_counted(op: Op) -> bool:
    return isinstance(op, COUNTED)


def executed(kernel: Kernel, subject: Subject) -> Counter[int]:
    """Return how often the reference executes each operation, by identity: once for each block or role."""
    arrays = {}
    for parameter in subject.bound.program.parameters:
        if parameter.kind == "tensor":
            shape = [subject.extents[dim] for dim in parameter.dims]
            arrays[parameter.name] = np.ones(shape, subject.dtypes[parameter.name].numpy)
    recorder = ExecutionRecorder(REFERENCE)
    numbers = {name: number for name, number in subject.numbers.items() if isinstance(number, float)}
    run(kernel, arrays, subject.binding(kernel).sizes, numbers, check=False, rules=recorder)
    return Counter(id(e.op) for e in recorder.executions if e.rank == 0 and is_counted(e.op))


def check(subject: Subject, least: int = 1) -> dict[str, int]:
    """Compare all operations of a kernel, and return the counts of the operations of each name."""
    kernel = subject.bound.trace(*subject.specs())
    found = list(executions(kernel, subject.binding(kernel), is_counted))
    assert [op for op, _ in found] == [op for op in kernel.walk() if is_counted(op)]
    expected = executed(kernel, subject)
    assert sum(expected.values()) >= least
    assert [count for _, count in found] == [expected[id(op)] for op, _ in found]
    names: dict[str, int] = {}
    for op, count in found:
        names[op.verb] = names.get(op.verb, 0) + count
    return names


def made(program: Any, shape: Mapping[str, int], dtype: tw.DType = tw.f16, **constants: Any) -> Subject:
    bound = program.bind(**constants)
    return Subject(bound, {p.name: dtype for p in bound.program.parameters}, shape)


def test_persistent_blocks_have_different_numbers_of_turns() -> None:
    """Five tiles on two blocks: one block has three iterations, the other two."""
    constants = (
        "stages=2",
        "buffers=1",
        "blocks=2",
        "group=1",
        "mma=tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64))",
    )
    example = f"{EXAMPLES / '03_hopper_gemm.py'}:hopper_gemm"
    found = check(from_file(example, "bf16", "M=600,N=64,K=72", constants))
    assert found == {"tma_load": 5 * 2 * 2, "mma_async": 5 * 2 * 2, "copy": 5 * 2, "tma_store": 5 * 2}


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2)])
def test_clusters(cluster: tuple[int, int]) -> None:
    mma = tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64))
    constants = {"mma": mma, "stages": 2, "buffers": 1, "blocks": 4, "group": 2, "cluster": cluster}
    check(made(cluster_gemm, {"M": 600, "N": 200, "K": 72}, tw.bf16, **constants), least=50)


def test_the_last_step_has_nothing_to_fetch() -> None:
    constants = ("tile=(64, 64, 32, 128)", "atom=tw.atoms.MMA_F16", "warps=4")
    example = f"{EXAMPLES / '08_fused_gemms.py'}:fused_gemms"
    found = check(from_file(example, "A=f16,B=f16,C=f16,D=f32", "M=70,N=130,K=72,P=136", constants))
    blocks, steps, k = 2 * 2, 3, 3
    assert found["copy_async"] == blocks * steps * (1 + 2 * k)


@pytest.mark.parametrize("shift", [0, 70, -40, -500])
@pytest.mark.parametrize("keys", [1, 150])
def test_causal_attention(shift: int, keys: int) -> None:
    """Later blocks see more keys; some see none."""
    constants = ("causal=True", "tile=TILES[64][0]", "warps=4", "atom=tw.atoms.MMA_F16", "scale=0.5")
    shape = f"B=1,H=2,M=300,N={keys},D=64"
    check(
        from_file(f"{EXAMPLES / '09_attention.py'}:attention", "f16", shape, (*constants, f"shift={shift}"))
    )


@pytest.mark.parametrize("shift", [0, -500])
def test_causal_attention_with_roles(shift: int) -> None:
    constants = ("causal=True", "keys=64", "depth=64", "stages=2", "groups=2", "atom=tw.atoms.wgmma")
    numbers = ("scale=0.5", f"shift={shift}")
    example = f"{EXAMPLES / '10_hopper_attention.py'}:hopper_attention"
    check(from_file(example, "bf16", "B=1,H=1,M=200,N=150,D=64", (*constants, *numbers)))


@tw.kernel(X="N")
def triangle(X, *, bound, step=1):
    """The bounds of both loops depend on the block and on each other."""
    m, n = tw.block_index((5, 3))
    held = tw.shared((32,), X.dtype)
    first = tw.let(m * 2 - 3)
    for i in tw.range(first, bound - n, step):
        size = tw.let(i * i - first)
        for j in tw.range(i, size):
            with tw.when((j + n) % 3 != 1):
                tw.copy(X.tile((32,), (0,)), held, threads=(32,))
            with tw.otherwise():
                tw.copy(held, X.tile((32,), (1,)), threads=(32,))
    with tw.when(n < m):
        tw.copy(X.tile((32,), (2,)), held, threads=(32,))


@pytest.mark.parametrize("constants", [{"bound": 7}, {"bound": 9, "step": 3}, {"bound": -20}], ids=str)
def test_loops_and_branches_that_depend_on_each_other(constants: dict[str, int]) -> None:
    check(made(triangle, {"N": 96}, **constants), least=9)


def test_sixteen_thousand_blocks_take_no_second() -> None:
    """Blocks differ in the number of keys that they see: 256 numbers, 65 792 iterations in all."""
    constants = (
        "causal=True",
        "tile=TILES[128][0]",
        "warps=8",
        "atom=tw.atoms.MMA_F16",
        "scale=0.5",
        "shift=0",
    )
    example = f"{EXAMPLES / '09_attention.py'}:attention"
    subject = from_file(example, "f16", "B=4,H=16,M=32768,N=32768,D=128", constants)
    kernel = subject.bound.trace(*subject.specs())
    binding = subject.binding(kernel)
    assert binding.blocks == 1 << 14
    began = time.perf_counter()
    found = list(executions(kernel, binding, is_counted))
    assert time.perf_counter() - began < 1
    products = sum(count for op, count in found if op.name == "mma")
    assert products == 2 * 64 * sum(2 * (m + 1) for m in range(256))


@tw.kernel(X="N")
def carried(X):
    held = tw.shared((32,), X.dtype)
    state = tw.var(0)
    for i in tw.range(X.shape[0]):
        state.set(i % 3)
        with tw.when(state.get() > 0):
            tw.copy(X.tile((32,), (0,)), held, threads=(32,))


@tw.kernel(X="N")
def endless(X):
    held = tw.shared((32,), X.dtype)
    for i in tw.range(X.shape[0]):
        with tw.when(i * i % 7 == 1):
            tw.copy(X.tile((32,), (0,)), held, threads=(32,))


def refusal(program: Any, extent: int) -> str:
    subject = made(program, {"N": extent})
    kernel = subject.bound.trace(*subject.specs())
    with pytest.raises(UnknownCountError) as caught:
        list(executions(kernel, subject.binding(kernel), is_counted))
    return str(caught.value)


def test_what_a_variable_decides_is_not_known() -> None:
    said = refusal(carried, 64)
    assert "how often this runs depends on state_now, which is neither a size nor an index" in said
    assert "with tw.when(state.get() > 0):" in said


def test_what_decides_nothing_that_is_wanted_need_not_be_known() -> None:
    subject = made(carried, {"N": 64})
    kernel = subject.bound.trace(*subject.specs())
    shared = list(executions(kernel, subject.binding(kernel), lambda op: isinstance(op, ops.SetVariable)))
    assert [count for _, count in shared] == [64]


def test_too_many_cases_are_refused() -> None:
    said = refusal(endless, room.MOST_CASES + 1)
    assert f"may differ among {room.MOST_CASES + 1} iterations" in said
    assert "for i in tw.range(X.shape[0]):" in said


@tw.kernel(X="M N")
def corner(X):
    m, n = tw.block_index(X.shape)
    with tw.when(m + n == 0):
        tw.copy(tw.load(X.tile((32, 1), (0, 0)).partition((32, 1))), X.tile((32, 1), (0, 0)))


def test_too_many_blocks_are_refused() -> None:
    subject = made(corner, {"M": 60_000, "N": 60_000})
    kernel = subject.bound.trace(*subject.specs())
    with pytest.raises(UnknownCountError, match=f"among 3600000000 blocks; {room.MOST_CASES} are tried"):
        list(executions(kernel, subject.binding(kernel), is_counted))
