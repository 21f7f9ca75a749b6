"""Passes give kernels of the same IR: they print, parse back, verify, and have notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.arch import REFERENCE
from tilewright.errors import Frame, Location
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Barrier, Block, Copy, For, FragmentOp, Mma, Op, Redistribute, Reshape, Shared
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.ir.verify import broken_rules
from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.memory_instructions import resolve_vectors, settle_async
from tilewright.passes.relayout import relayout_shared
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

TEXT = (Path(__file__).parent / "gemm.ir").read_text()


@pytest.fixture
def gemm() -> Kernel:
    return parse_kernel(TEXT)


def sound(kernel: Kernel) -> str:
    """Return the kernel's text, after checking that it parses back and that the kernel breaks no rule."""
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    assert [str(violation) for op in kernel.walk() for violation in broken_rules(op)] == []
    return text


def of(kernel: Kernel, kind: type[Op]) -> list[Op]:
    return [op for op in kernel.walk() if isinstance(op, kind)]


def swizzled(op: Shared, using: tuple[Op, ...]) -> tuple[Swizzle, ...] | None:
    return (Swizzle(2, 3, 3),) if op.result.name == "sA" else None


def test_a_rewrite_that_changes_nothing_gives_the_same_text(gemm: Kernel) -> None:
    assert sound(rewrite_kernel(gemm, lambda op, rewriter: None)) == TEXT


def test_results_are_retyped_and_keep_their_buffer(gemm: Kernel) -> None:
    expanded = expand_mma(gemm)
    changed, _ = relayout_shared(expanded, swizzled)
    [step] = [op for op in of(changed, Reshape) if op.results[0].name == "sA_step"]
    [shared] = [op for op in of(changed, Shared) if op.results[0].name == "sA"]
    assert step.results[0].buffer is shared.results[0]
    assert "^" in str(step.results[0].tensor.view)
    assert sound(changed)


def test_locations_are_kept(gemm: Kernel) -> None:
    location = Location((Frame("kernel.py", 3, 0, 9, "f"),))

    def place(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        object.__setattr__(op, "location", location)
        return None

    expanded = expand_mma(rewrite_kernel(gemm, place))
    assert {op.location for op in expanded.walk()} == {location}


def test_widths_are_the_widest_legal(gemm: Kernel) -> None:
    resolved = resolve_vectors(expand_mma(gemm))
    sound(resolved)
    widths = {str(op.operands[0]): op.vector for op in of(resolved, Copy) if isinstance(op, Copy)}
    assert widths == {"A_tile": 1, "B_tile": 1, "sA_step": 2, "sB_step": 2, "acc": 1}


def test_narrow_asynchronous_copies_are_done_at_once(gemm: Kernel) -> None:
    text = re.sub(r"(copy\(A_tile.*)\)", r"\1, engine='async', completion='group')", TEXT)
    settled, notes = settle_async(resolve_vectors(parse_kernel(text)), REFERENCE)
    sound(settled)
    assert all(op.variant == "direct" for op in of(settled, Copy))
    assert notes == (
        "A -> sA is copied synchronously: 2 bytes at a time are too few for an asynchronous copy",
    )


def test_an_architecture_without_copies_in_the_background_does_all_at_once(gemm: Kernel) -> None:
    after = "\n    async_commit()\n    async_wait(pending=0)"
    text = re.sub(r"(copy\(A_tile.*)\)", rf"\1, engine='async', completion='group'){after}", TEXT)
    kernel, plain = parse_kernel(text), replace(REFERENCE, name="plain", async_bytes=())
    settled, notes = settle_async(resolve_vectors(kernel), plain)
    sound(settled)
    gone = {op.name for op in kernel.walk()} - {op.name for op in settled.walk()}
    assert gone == {"async_commit", "async_wait"}
    assert notes == ("A -> sA is copied synchronously: plain has no asynchronous copies",)


def test_a_policy_re_lays_out_and_says_so(gemm: Kernel) -> None:
    changed, notes = relayout_shared(gemm, swizzled)
    assert notes == ("sA re-laid out: swizzle<2, 3, 3>",)
    assert "sA = shared(dtype=f16, view=view((256, 32,), 32*i0 + ((8*((i0 // 2) % 4)) ^ i1), 8192)" in sound(
        changed
    )


def test_padding_grows_the_allocation(gemm: Kernel) -> None:
    changed, notes = relayout_shared(gemm, lambda op, using: View.strided(op.view.shape, (40, 1)))
    sound(changed)
    assert notes == ("sA re-laid out: strides (40, 1)", "sB re-laid out: strides (40, 1)")
    assert changed.shared_bytes == (255 * 40 + 32) * 2 + 16 + (127 * 40 + 32) * 2


def test_an_observed_layout_stays(gemm: Kernel) -> None:
    text = TEXT.replace(
        "    barrier()\n    mma(sA,",
        "    barrier()\n"
        "    sA_twisted = view(sA, transform=Swizzle(bits=2, base=3, shift=3))\n"
        "    mma(sA_twisted,",
    )
    assert text != TEXT
    assert relayout_shared(parse_kernel(text), swizzled)[1] == ()


def test_a_layout_that_would_break_a_rule_is_not_taken(gemm: Kernel) -> None:
    text = (
        re.sub(r"divisor=\d+", "divisor=256", TEXT)
        .replace("align=2", "align=16")
        .replace("copy(A_tile, sA,", "copy(A_tile, sA, vector=8,")
    )
    explicit = parse_kernel(text)
    sound(explicit)
    columns = relayout_shared(explicit, lambda op, using: View.strided(op.view.shape, (1, op.view.shape[0])))
    assert columns[1] == ("sB re-laid out: strides (1, 128)",)


def test_mma_of_shared_tensors_becomes_a_loop_over_atoms(gemm: Kernel) -> None:
    expanded = expand_mma(gemm)
    sound(expanded)
    [steps] = [op for op in of(expanded, For) if isinstance(op, For) and op.unroll]
    assert [type(op) for op in steps.body.ops] == [Reshape, FragmentOp, Copy, Reshape, FragmentOp, Copy, Mma]
    assert (steps.start, steps.stop) == (0, 2)
    assert print_kernel(expand_mma(expanded)) == print_kernel(expanded)


def test_mma_one_atom_deep_needs_no_loop(gemm: Kernel) -> None:
    text = TEXT.replace("(256, 32,)", "(256, 16,)").replace("(128, 32,)", "(128, 16,)")
    for old, new in (
        ("8192", "4096"),
        ("32*i0", "16*i0"),
        ("(256, 32)", "(256, 16)"),
        ("(128, 32)", "(128, 16)"),
    ):
        text = text.replace(old, new)
    shallow = parse_kernel(
        text.replace("(4, 1, 8), (64", "(4, 1, 4), (64")
        .replace("((8, 1, 1), (4, 0", "((4, 1, 1), (4, 0")
        .replace("((8, 1, 1), (2, 0", "((4, 1, 1), (2, 0")
    )
    expanded = expand_mma(shallow)
    sound(expanded)
    assert len(of(expanded, For)) == 1
    assert len(of(expanded, FragmentOp)) == 3


def test_a_fragment_operand_gives_a_part_of_its_registers_to_each_step(gemm: Kernel) -> None:
    expanded = expand_mma(gemm)
    kinds = [op.mma for op in of(expanded, Mma) if isinstance(op, Mma)]
    spread = kinds[0].a(32)

    def load(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Mma):
            return None
        fragment = rewriter.define(FragmentOp, "rA", dtype=op.a.dtype, distribution=spread)
        return (fragment, Copy(op.a, fragment.result), Mma(fragment.result, op.b, op.c, op.mma))

    mixed = expand_mma(rewrite_kernel(gemm, load))
    sound(mixed)
    assert len(of(mixed, For)) == 2
    [mma] = of(mixed, Mma)
    assert [v.fragment.shape for v in mma.operands[:2]] == [(256, 16), (128, 16)]
    [part] = of(mixed, Redistribute)
    assert isinstance(part, Redistribute)
    assert str(part.start) == "(0, 16*k_step)"


def test_names_of_new_values_keep_clear_of_the_authors(gemm: Kernel) -> None:
    text = sound(expand_mma(parse_kernel(TEXT.replace("acc", "sA_frag"))))
    assert "sA_frag_1 = fragment(" in text


def test_removing_operations(gemm: Kernel) -> None:
    bare = rewrite_kernel(gemm, lambda op, rewriter: () if isinstance(op, Barrier) else None)
    assert sound(bare) == TEXT.replace("    barrier()\n", "")
    assert isinstance(bare.body, Block)
