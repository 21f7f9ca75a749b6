"""Counters in CUDA text: the instructions, the threads that execute them, and the barriers around them."""

from __future__ import annotations

from tests.targets.test_signals import two_behind

import tilewright as tw
from tilewright.targets import cuda


def text(case: str, cases) -> str:
    return cuda.emit(cases[case](), "sm_80").text


def after(lines: list[str], first: str) -> list[str]:
    """Return the lines from the first one with this beginning."""
    return lines[next(at for at, line in enumerate(lines) if line.startswith(first)) :]


def test_a_warp_waits_and_a_thread_counts_between_barriers(cases) -> None:
    found = text("turnstile", cases)
    lines = [line.strip() for line in found.splitlines()]
    plain = [line for line in lines if not line.startswith("//")]
    assert after(plain, "if (tid < 32) await_counter(")[1] == "__syncthreads();"
    signal = plain.index(after(plain, "if (tid == 0) signal_counter_of(")[0])
    assert plain[signal - 1] == "__syncthreads();"
    for piece in ("red.release.gpu.global.inc.u32", "ld.acquire.gpu.global.u32", "nanosleep.u32"):
        assert piece in found


def test_a_ticket_goes_to_all_threads_through_shared_memory(cases) -> None:
    found = text("last_block_sum", cases)
    lines = [line.strip() for line in found.splitlines()]
    plain = [line for line in lines if not line.startswith("//")]
    taken = after(plain, "if (tid == 0) ticket[0] = take_ticket_of(")
    assert taken[1:3] == ["__syncthreads();", "const int ticket_1 = ticket[0];"]
    assert "atom.acq_rel.gpu.global.inc.u32" in found


def test_a_wait_for_less_than_0_is_a_wait_for_0() -> None:
    traced = two_behind.bind(blocks=3).trace(tw.like("f32", 96))
    assert "await_counter(turn, max_int(block - 1, 0));" in cuda.emit(traced, "sm_80").text


def test_a_counter_is_reset_by_one_thread(cases) -> None:
    found = text("around", cases)
    assert "if (tid == 0) reset_counter(came);" in found
    assert "if (tid == 0) signal_counter(came, 1);" in found
    assert "red.release.gpu.global.add.u32" in found
    assert "st.relaxed.gpu.global.u32 [%0], 0;" in found


@tw.kernel(X="N")
def draws(X):
    """Every block takes a number, without an end."""
    number = tw.ticket(tw.counter(1)[0])
    part = X.tile((32,), (number,)).partition((32,))
    tw.copy(tw.load(part) + 1, part)


def test_a_ticket_without_an_end_releases_and_acquires_too() -> None:
    assert "atom.acq_rel.gpu.global.add.u32" in cuda.emit(draws.trace(tw.like("f32", 96)), "sm_80").text
