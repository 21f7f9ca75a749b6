"""Eight lines and their results: the graph, the explicit kernel, and the compiled text."""

from __future__ import annotations

from dataclasses import replace

import tilewright as tw

LIKE_EXAMPLE_03 = tw.Schedule(
    tw.atoms.wgmma("bf16", 256),
    (128, 256, 64),
    stages=4,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=132,
    group_m=8,
    epilogue="staged",
)


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.silu(acc + bias[n])


GIVEN = [
    tw.like("bf16", 1024, 512),
    tw.like("bf16", 768, 512),
    tw.like("bf16", 768),
    tw.like("bf16", 1024, 768),
]


def test_graph(golden) -> None:
    flow = linear.flow(*GIVEN)
    golden(tw.ir.print_flow(flow), "linear.flow")
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow


def test_explicit_kernel(golden) -> None:
    traced = linear.bind(schedule=LIKE_EXAMPLE_03).trace(*GIVEN, target="cuda", arch="sm_90a")
    text = tw.ir.print_kernel(traced)
    golden(text, "linear.ir")
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


def test_text_that_is_compiled(golden) -> None:
    made = linear.bind(schedule=LIKE_EXAMPLE_03).compile(*GIVEN, target="cuda", arch="sm_90a")
    golden(made.source, "linear.cu")
    assert not made.resources["spill_store_bytes"]


def test_text_of_a_stream_of_steps(golden) -> None:
    schedule = replace(LIKE_EXAMPLE_03, split_k="stream")
    made = linear.bind(schedule=schedule).compile(*GIVEN, target="cuda", arch="sm_90a")
    golden(made.source, "linear_stream.cu")
    assert not made.resources["spill_store_bytes"]


def test_text_of_parts_in_a_cluster(golden) -> None:
    smaller = replace(LIKE_EXAMPLE_03, atom=tw.atoms.wgmma("bf16", 128), tile=(128, 128, 64))
    schedule = replace(smaller, blocks=0, registers=0, split_k=4, reduction="cluster")
    made = linear.bind(schedule=schedule).compile(*GIVEN, target="cuda", arch="sm_90a")
    golden(made.source, "linear_cluster.cu")
    assert not made.resources["spill_store_bytes"]


@tw.kernel(A="M K", B="N K", scale="N", C="M N")
def widened(A, B, scale, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].to(A.dtype).T
        C[m, n] = acc * scale[n]


def test_text_of_an_operand_that_is_widened_on_its_way(golden) -> None:
    given = [tw.like("f16", 1024, 512), tw.like("f8e4m3", 768, 512), tw.like("f32", 768)]
    schedule = replace(LIKE_EXAMPLE_03, atom=tw.atoms.wgmma("f16", 256), tile=(128, 256, 128), stages=2)
    schedule = replace(schedule, swap_ab=True, buffers=1)
    made = widened.bind(schedule=schedule).compile(
        *given, tw.like("f16", 1024, 768), target="cuda", arch="sm_90a"
    )
    golden(made.source, "widened.cu")
    assert not made.resources["spill_store_bytes"]


def test_text_for_the_host(golden) -> None:
    schedule = tw.Schedule(
        tw.atoms.fma("bf16", lanes=(1, 1), each=(6, 16)), (768, 2048, 256), staging="panels"
    )
    made = linear.bind(schedule=schedule).compile(*GIVEN, target="cpu", arch="x86-64-v3")
    golden(made.source, "linear.cpp")
