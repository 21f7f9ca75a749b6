"""Kernels that end with an activation keep their sums in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewright as tw

COOPERATIVE = tw.Schedule(
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
PING_PONG = replace(COOPERATIVE, atom=tw.atoms.wgmma("f16", 192), tile=(128, 192, 64), roles="ping-pong")


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def linear(A, B, bias, C, *, tanh):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.gelu(acc + bias[n], approximate=tanh)


@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize(("dtype", "schedule"), [("bf16", COOPERATIVE), ("f16", PING_PONG)])
def test_gelu_of_a_linear_layer_leaves_the_sums_in_registers(
    dtype: str, schedule: tw.Schedule, tanh: bool
) -> None:
    arrays = tw.like(dtype, 4096, 4096), tw.like(dtype, 4096, 4096), tw.like(dtype, 4096)
    bound = linear.bind(tanh=tanh, schedule=schedule)
    made = bound.compile(*arrays, tw.like(dtype, 4096, 4096), target="cuda", arch="sm_90a")
    # Of 232 registers 192 hold sums in ping-pong; erf's coefficients take a few that hold addresses.
    assert made.resources["spill_store_bytes"] <= (32 if schedule is PING_PONG and not tanh else 0)
    assert made.resources["registers"] <= 168
    assert "fast_gelu_tanh(" in made.source if tanh else "fast_gelu(" in made.source


@tw.kernel(A="M K", B="N K", bias="N", S="M N", C="M N")
def linear_and_sums(A, B, bias, S, C, *, act):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        sums = acc + bias[n]
        S[m, n] = sums
        C[m, n] = tw.gelu(sums, approximate=True) if act == "gelu" else tw.silu(sums)


SHAPES = [(16384, 3072, 768), (8192, 8192, 2048), (1000, 1000, 1000), (64, 3072, 768), (300, 77, 333)]


@pytest.mark.parametrize("kinds", [("bf16", "bf16"), ("bf16", "f32"), ("f32", "f32")], ids=str)
def test_a_schedule_is_chosen_for_two_results(kinds: tuple[str, str]) -> None:
    """Its buffers hold both results: a form has fewer of them, or fewer stages, than with one result."""
    for m, n, k in SHAPES:
        given = [tw.like(kinds[0], m, k), tw.like(kinds[0], n, k), tw.like(kinds[0], n)]
        given += [tw.like(kinds[1], m, n), tw.like(kinds[0], m, n)]
        bound = linear_and_sums.bind(act="silu")
        for target, arch in (("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942"), ("cpu", None)):
            made = bound.schedule_for(*given, target=target, arch=arch)
            if arch == "sm_90a" and (m, kinds[0]) == (16384, "bf16"):
                assert (made.staging, made.roles) == ("tma", "ping-pong")
                assert made.stages == (4 if kinds[1] == "bf16" else 3)


@pytest.mark.parametrize("act", ["gelu", "silu"])
def test_two_results_leave_the_sums_in_registers(act: str) -> None:
    given = [tw.like("bf16", *shape) for shape in ((16384, 768), (3072, 768), (3072,))]
    given += [tw.like("bf16", 16384, 3072)] * 2
    made = linear_and_sums.bind(act=act).compile(*given, target="cuda", arch="sm_90a")
    # The values of a slice are held for its second result: in ping-pong, with 192 sums, a few are spilled.
    assert made.resources["spill_store_bytes"] <= 96
    assert made.resources["registers"] <= 168
