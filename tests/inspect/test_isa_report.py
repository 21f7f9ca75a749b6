"""Reports of machine code: the author's lines and arrays, bank conflicts, text and HTML."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import tilewright as tw
from tilewright.amdgcn import ListingError
from tilewright.errors import LaunchError
from tilewright.inspect.isa import (
    Conflicts,
    IsaKind,
    IsaReport,
    isa_report,
    page,
    read_isa,
    report_of,
    sources,
)
from tilewright.inspect.isa.making import FEW, BankCounter, execute_listing, predicted
from tilewright.inspect.isa.report import compiled_lines, holdings
from tilewright.inspect.subject import Subject, library_gemm
from tilewright.ir.ops import Copy, Mma
from tilewright.runtime.hip import listing_with_lines
from tilewright.targets.hip import emit
from tilewright.targets.target import HIP

from .test_isa import NESTED

pytestmark = pytest.mark.in_turns(3)

ARCHS = ("gfx1151", "gfx942")


@tw.kernel(Weights="M K", Inputs="K N", Sums="M N")
def layer(Weights, Inputs, Sums):
    for m, n in tw.tiles(Sums):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(Weights.shape[1]):
            acc += Weights[m, k] @ Inputs[k, n]
        Sums[m, n] = tw.relu(acc)


LINE = layer.program.function.__code__.co_firstlineno + 5
"""Where the product is written."""


def subject(dtype: tw.DType = tw.f16) -> Subject:
    extents = {"M": 512, "N": 512, "K": 512}
    return Subject(layer.bind(), dict.fromkeys(("Weights", "Inputs", "Sums"), dtype), extents)


@functools.cache
def report(arch: str) -> IsaReport:
    return isa_report(subject(), "hip", arch)


def told(found: IsaReport, *kinds: IsaKind) -> list[tuple[tuple[str, ...], str]]:
    """Return the arrays and places of the main loop's instructions of some kinds."""
    lines = [line.line for line in found.isa.main.of(*kinds)]
    return [(found.sources[line].tensors, found.sources[line].place) for line in lines]


# ---------------------------------------------------------------- where instructions come from


@pytest.mark.parametrize("arch", ARCHS)
def test_line_numbers_change_no_instruction(arch: str) -> None:
    made = subject().compile("hip", arch)
    with_lines = listing_with_lines(made)
    assert ".loc" in with_lines
    assert ".loc" not in made.assembly
    one, other = read_isa(made.assembly), read_isa(with_lines)
    assert [line.text for line in one.whole.lines] == [line.text for line in other.whole.lines]
    assert one.resources == other.resources


@pytest.mark.parametrize("arch", ARCHS)
def test_instructions_name_the_authors_arrays_and_lines(arch: str) -> None:
    found = report(arch)
    loads = [tensors for tensors, _ in told(found, IsaKind.GLOBAL_LOAD)]
    assert list(dict.fromkeys(loads)) == [("Weights",), ("Inputs",)]
    assert {tensors for tensors, _ in told(found, IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE)} == {
        ("Weights",),
        ("Inputs",),
    }
    assert {tensors for tensors, _ in told(found, IsaKind.MATRIX)} == {("Weights", "Inputs")}
    places = [place for _, place in told(found, IsaKind.GLOBAL_LOAD, IsaKind.SHARED_LOAD, IsaKind.MATRIX)]
    assert all(place.startswith(f"test_isa_report.py:{LINE}:") for place in places), places
    assert {place.rpartition(" ")[2] for place in places} == {"staging", "atom"}
    known = [line.line in found.sources for line in found.isa.main.lines]
    assert sum(known) > 0.9 * len(known)


@pytest.mark.parametrize("arch", ARCHS)
def test_stores_of_the_result_name_it(arch: str) -> None:
    found = report(arch)
    stores = [found.sources[line.line] for line in found.isa.whole.of(IsaKind.GLOBAL_STORE)]
    assert {one.tensors for one in stores} == {("Sums",)}
    assert all(f"test_isa_report.py:{LINE + 1}:" in one.place for one in stores)


def test_every_line_of_the_text_is_that_of_an_operation() -> None:
    """The lines before the first operation, and the closing brace, are exceptions."""
    listing = emit(subject().bound.trace(*subject().specimens(), target="hip", arch="gfx942"), "gfx942")
    text = listing.text.splitlines()
    first = min(listing.lines)
    assert {*range(first, len(text))} == {*listing.lines}
    for line, op in listing.lines.items():
        if isinstance(op, Mma) and "//" in text[line - 1]:
            assert " += " in text[line - 1]
        if isinstance(op, Copy) and "//" in text[line - 1]:
            assert " -> " in text[line - 1]
    held = holdings(listing.kernel)
    assert held["sWeights"] == held["prefetched"] == {"Weights"}
    assert held["acc"] == {"Weights", "Inputs"}
    assert held["Sums"] == {"Sums"}


def test_lines_of_inlined_functions_are_those_of_their_calls() -> None:
    text = "\n".join(
        [
            "\t.loc\t0 44 19 prologue_end            ; kernel.hip:44:19",
            "\ts_nop 0",
            "\t.loc\t0 9 10 is_stmt 0       ; k.hip:9:10 @[ k.hip:20:1 @[ k.hip:48:20 ] ]",
            "\ts_nop 1",
            "\ts_nop 2",
            "\t.loc\t0 0 22                          ; kernel.hip:0:22",
            "\ts_nop 3",
        ]
    )
    assert compiled_lines(text) == {2: 44, 4: 48, 5: 48}


# ---------------------------------------------------------------- bank conflicts


def test_passes_are_counted_from_addresses() -> None:
    counter = BankCounter(HIP.architecture("gfx1151"))
    rows = np.arange(32)
    counter(1, 16, (rows * 16)[None], False)  # all neighbours: four parts, a pass each
    counter(2, 16, (rows * 128)[None], False)  # eight lanes of a part in the same four banks
    counter(3, 4, np.where(rows < 2, rows * 128, -1)[None], True)  # two lanes alone, in one bank
    counter(4, 4, np.zeros((2, 32), np.int64), False)  # one word for all lanes
    assert counter.lines == {
        1: Conflicts(1, 4, 4),
        2: Conflicts(1, 32, 4),
        3: Conflicts(1, 2, 1),
        4: Conflicts(2, 2, 2),
    }
    assert counter.lines[2].factor == 8


def test_loads_of_16_bytes_are_served_in_the_published_groups() -> None:
    """gfx90a and gfx942: lanes 0 to 3 with 20 to 23, 4 to 7 with 16 to 19, and so on; stores in order."""
    pairs = ((0, 20), (4, 16), (8, 28), (12, 24), (32, 52), (36, 48), (40, 60), (44, 56))
    in_groups = np.zeros(64, np.int64)
    for at, (first, second) in enumerate(pairs):
        in_groups[[*range(first, first + 4), *range(second, second + 4)]] = np.arange(8) * 16 + at * 4096
    lanes = np.arange(64)
    neighbours = (lanes % 8 ^ lanes // 16 % 2 * 4) * 16 + lanes // 8 * 4096
    for arch in ("gfx90a", "gfx942"):
        counter = BankCounter(HIP.architecture(arch))
        counter(1, 16, in_groups[None], False)
        counter(2, 16, neighbours[None], False)
        counter(3, 16, neighbours[None], True)
        assert counter.lines == {1: Conflicts(1, 8, 8), 2: Conflicts(1, 16, 8), 3: Conflicts(1, 8, 8)}


def test_all_banks_of_an_architecture_are_counted() -> None:
    """Neighbouring lanes of 16 bytes: eight fill the 32 banks of gfx942, sixteen the 64 of gfx950."""
    for arch, parts in (("gfx942", 8), ("gfx950", 4)):
        counter = BankCounter(HIP.architecture(arch))
        counter(1, 16, (np.arange(64) * 16)[None], True)
        assert counter.lines[1] == Conflicts(1, parts, parts)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_counted_is_what_layouts_predict(arch: str) -> None:
    """Addresses and layouts give the same conflicts of each access to shared memory in the main loop."""
    found = report(arch)
    arrays = "Weights of 128 x 128, Inputs of 128 x 128, Sums of 128 x 128"
    assert found.counted == f"counted while the listing was executed on {arrays}"
    expected = predicted(found.isa, found.sources)
    lines = [line.line for line in found.isa.main.of(IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE)]
    assert lines
    assert {line: found.conflicts[line].factor for line in lines} == {
        line: expected[line].factor for line in lines
    }


def test_the_counter_sees_the_listing_and_nothing_else() -> None:
    """Stores whose addresses lose their last bits, unlike the layout, conflict in banks."""
    made = subject().compile("hip", "gfx1151")
    arrays = subject().small_arrays(FEW)
    isa = read_isa(made.assembly)
    store = next(line for line in isa.main.of(IsaKind.SHARED_STORE) if line.bytes == 16)
    lines = made.assembly.splitlines()
    register = re.search(r"\bv\d+\b", lines[store.line - 1])
    assert register is not None
    lines.insert(store.line - 1, f"\tv_and_b32_e32 {register[0]}, 0xffffff80, {register[0]}")
    counter = BankCounter(isa.arch)
    with pytest.raises(ListingError):
        execute_listing(replace(made, assembly="\n".join(lines)), arrays, watch=counter)
    assert counter.lines[store.line + 1].factor > 1


def test_what_cannot_be_executed_is_predicted() -> None:
    found = isa_report(subject(), "hip", "gfx1201")
    assert found.counted.startswith("predicted from layouts, for the listing cannot be executed here: ")
    lines = [line.line for line in found.isa.main.of(IsaKind.SHARED_LOAD)]
    assert {found.conflicts[line].factor for line in lines} == {1.0}


@tw.kernel(A="M K", B="K N", D="M N", alpha=tw.f32)
def times(A, B, D, alpha):
    for m, n in tw.tiles(D):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        D[m, n] = acc * alpha


def test_a_number_without_a_value_leaves_conflicts_predicted() -> None:
    """Conflicts are counted by executing the listing, which needs the number's value."""
    given = Subject(times.bind(), dict.fromkeys("ABD", tw.f16), {"M": 512, "N": 512, "K": 512})
    found = isa_report(given, "hip", "gfx942")
    assert found.counted.startswith(
        "predicted from layouts, for the listing cannot be executed here: no value"
    )
    made = given.compile("hip", "gfx942")
    with pytest.raises(LaunchError, match="no value for alpha, which kernel times takes"):
        execute_listing(made, given.small_arrays(FEW))
    arrays = given.small_arrays(FEW)
    again = report_of(made, lambda: arrays, {"alpha": 2})
    assert again.counted == "counted while the listing was executed on " + ", ".join(
        f"{name} of 128 x 128" for name in "ABD"
    )
    assert again.met(IsaKind.SHARED_LOAD).factor == found.met(IsaKind.SHARED_LOAD).factor == 1
    product = 2 * (arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32))
    assert (arrays["D"] == product.astype(np.float16)).all(), "small integers are exact"


# ---------------------------------------------------------------- what is shown


def hand_made() -> IsaReport:
    """Return the report of a hand-written listing for the text of a small kernel."""

    @tw.kernel(X="N", Y="N")
    def twice(X, Y):
        tw.copy(tw.load(X.tile((32,), (0,)).partition((32,))) * 2, Y.tile((32,), (0,)).partition((32,)))

    listing = emit(twice.trace(tw.like("f32", 64), tw.like("f32", 64)), "gfx942")
    isa = read_isa(NESTED)
    copies = [line for line, op in listing.lines.items() if isinstance(op, Copy)]
    lines = {isa.main.lines[0].line: copies[0], isa.main.lines[2].line: copies[-1]}
    return IsaReport(
        *("nested <by hand>", isa, sources(listing, lines)),
        conflicts={isa.loops[1].turn[0].line: Conflicts(4, 16, 8)},
        counted="counted by hand",
        notes=("a note",),
    )


def test_the_text_of_a_report(golden: Callable[[str, str], None]) -> None:
    text = re.sub(r"test_isa_report.py:\d+:\d+", "test_isa_report.py:LINE", str(hand_made()))
    golden(f"{text}\n", "isa.txt")


class Page(HTMLParser):
    """The parts of a page: its text, its tags, and its unclosed tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", [], []
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_whole_and_loads_nothing() -> None:
    text = page(hand_made())
    found = Page(text)
    assert found.open == []
    assert text.startswith("<!doctype html>")
    assert not {"src", "href"} & found.attributes
    assert not {"script", "link", "img"} & {*found.tags}
    assert "url(" not in text
    assert "<by hand>" in found.text
    assert "note: a note" in found.text


@pytest.mark.parametrize("arch", ARCHS)
def test_a_page_has_all_that_the_text_has(arch: str) -> None:
    found = report(arch)
    shown, text = Page(page(found)).text, str(found)
    for line, _, cells in found.rows():
        assert line.text in shown
        assert str(cells[0]) in text
    assert found.counted in shown
    [product] = {line.mnemonic for line in found.isa.main.of(IsaKind.MATRIX)}
    assert f"{found.isa.main.mix[IsaKind.MATRIX]} {product}" in shown


# ---------------------------------------------------------------- what is refused


def test_what_has_no_main_loop_is_refused() -> None:
    with pytest.raises(LaunchError, match="gfx1151 has no main loop: 0 matrix instructions"):
        isa_report(library_gemm("f32", "64x64x64"), "hip", "gfx1151")


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_targets_without_a_listing_are_refused(target: str) -> None:
    with pytest.raises(LaunchError, match=f"{target} has no listing.*nearest legal choice: --target hip"):
        isa_report(subject(), target)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"unknown architecture 'gfx94'.*did you mean 'gfx942'"):
        isa_report(subject(), "hip", "gfx94")
