"""The first kernel of the design traces to the operations, names and lines of its author."""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import replace

import tilewright as tw
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import For, Mma
from tilewright.ir.printer import print_kernel
from tilewright.ir.verify import violations

from .kernels import CONSTANTS, DIMS, basic_gemm, names, ops, pointed, spec, trace, traced_gemm


def test_ops() -> None:
    kernel = traced_gemm()
    assert ops(kernel) == [
        *("shared", "shared", "fragment"),
        *("for", "view", "copy", "view", "copy", "barrier", "mma", "barrier"),
        *("view", "copy"),
    ]
    assert violations(kernel) == []


def test_names_are_the_authors() -> None:
    kernel = traced_gemm()
    assert names(kernel) == ["sA", "sB", "acc", "k", "A_tile", "B_tile", "C_tile"]
    assert [axis.sym.name for axis in kernel.grid] == ["m", "n"]
    assert [value.name for value in kernel.tensors] == ["A", "B", "C"]
    assert kernel.name == "basic_gemm"


def test_launch_shape() -> None:
    kernel = traced_gemm()
    assert (kernel.threads, kernel.lanes, kernel.shared_bytes) == (256, 32, 2 * 32 * (256 + 128))
    assert [str(axis.extent) for axis in kernel.grid] == ["(M + 248) // 256", "(N + 120) // 128"]
    assert kernel.written_params == {"C"}


def test_each_op_points_at_its_call() -> None:
    found = {op.results[0].name if op.results else op.name: op for op in traced_gemm().walk()}
    assert pointed(found["sA"].location) == "tw.shared((tile_m, tile_k), A.dtype)"
    assert pointed(found["k"].location) == "tw.range(tw.ceil_div(A.shape[1], tile_k))"
    assert pointed(found["A_tile"].location) == "A.tile((tile_m, tile_k), (m, k))"
    assert pointed(found["mma"].location) == "tw.mma(sA, sB, acc)"
    [frame] = found["mma"].location.frames
    assert frame.function == "basic_gemm"
    assert re.fullmatch(r"kernels\.py:\d+:9", str(frame))


def test_the_call_stack_goes_through_helper_functions() -> None:
    def stage(source, target):
        tw.copy(source, target, threads=(4, 8))

    def both(A, sA):
        stage(A, sA)

    def kernel(A):
        sA = tw.shared((8, 8), A.dtype)
        both(A.tile((8, 8), (0, 0)), sA)

    [copy] = [op for op in trace(kernel).walk() if op.name == "copy"]
    assert copy.location is not None
    assert [frame.function for frame in copy.location.frames] == ["stage", "both", "kernel"]
    texts = [pointed(type(copy.location)((frame,))) for frame in copy.location.frames]
    assert texts == [
        "tw.copy(source, target, threads=(4, 8))",
        "stage(A, sA)",
        "both(A.tile((8, 8), (0, 0)), sA)",
    ]


def test_locations_survive_rewriting() -> None:
    def rebuilt(block: Block) -> Block:
        return Block(tuple(rebuilt_op(op) for op in block.ops))

    def rebuilt_op(op: Op) -> Op:
        return replace(op, body=rebuilt(op.body)) if isinstance(op, For) else replace(op)

    kernel = traced_gemm()
    again = replace(kernel, body=rebuilt(kernel.body))
    assert [op.location for op in again.walk()] == [op.location for op in kernel.walk()]
    assert all(op.location is not None for op in again.walk())
    [multiply] = [op for op in again.walk() if isinstance(op, Mma)]
    assert pointed(replace(multiply, mma=CONSTANTS["mma"]).location) == "tw.mma(sA, sB, acc)"


def test_a_call_over_several_lines_is_marked_to_the_end_of_its_first() -> None:
    def kernel(A):
        tw.copy(
            A.tile((8, 8), (0, 0)), tw.shared((8, 8), A.dtype), threads=(4, 8)
        )  # fmt: skip

    [copy] = [op for op in trace(kernel).walk() if op.name == "copy"]
    assert copy.location is not None
    assert copy.location.excerpt().endswith("    tw.copy(\n    ^^^^^^^^")


def test_columns_count_characters_not_bytes() -> None:
    def kernel(A):
        _ = "äöü"; tw.barrier()  # fmt: skip # noqa: E702

    [barrier] = trace(kernel).walk()
    assert barrier.location is not None
    line, caret = barrier.location.excerpt().splitlines()[1:]
    assert line[caret.index("^") : caret.rindex("^") + 1] == "tw.barrier()"


def test_printing_locations_names_the_lines() -> None:
    text = print_kernel(traced_gemm(), locations=True)
    assert re.search(r"mma\(sA, sB, acc, mma=mma0\)  # kernels\.py:\d+:9\n", text)


def test_trace_time() -> None:
    """Timings are printed, never asserted."""

    def once() -> float:
        start = time.perf_counter()
        trace(basic_gemm, DIMS, C=spec(tw.f32), **CONSTANTS)
        return 1e3 * (time.perf_counter() - start)

    times = [once() for _ in range(5)]
    print(f"trace of the basic GEMM: median {statistics.median(times):.1f} ms, first {times[0]:.1f} ms")
