"""`tilewright report`: a page that loads nothing, whose sections have the facts that other verbs give."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.tune import KernelInFile
from tilewright.cli.verbs import app
from tilewright.inspect.report import movements
from tilewright.inspect.subject import Subject
from tilewright.ir.types import FragmentType, Value
from tilewright.report import KernelFacts, page_of
from tilewright.report.facts import GivenSubject
from tilewright.report.graph import drawn, graph_of, layers_of
from tilewright.report.page import SECTIONS
from tilewright.threads.distribution import Distribution
from tilewright.tune.profiling import reasons_of

ROOT = Path(__file__).parents[2]
LINES = f"{ROOT}/docs/tutorial/step1_eight_lines.py"
EMPTY = {"meta", "link", "br", "hr", "img", "input", "rect", "line", "path"}


class Balanced(HTMLParser):
    """Collects the tags that are open, the ids, and the references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.loaded += [f"{tag} {name}" for name in given if name in ("src", "srcset", "action", "data")]
        if "href" in given:
            self.links.append(given["href"] or "")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        before = len(self.open)
        self.handle_starttag(tag, attrs)
        del self.open[before:]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"{tag} at {self.getpos()}")


def read(page: str) -> Balanced:
    found = Balanced()
    found.feed(page)
    found.close()
    return found


def eight_lines(target: str, extent: int = 256) -> KernelInFile:
    square, row = tw.like("bf16", extent, extent), tw.like("bf16", extent)
    return KernelInFile(f"{LINES}:linear", (), (square, square, row, square), target)


def section(page: str, name: str) -> str:
    """Return the text of a section, without tags."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    assert found is not None
    return " ".join(unescape(re.sub(r"<[^>]*>", "", found[1])).split())


@pytest.fixture(scope="module")
def on_hopper() -> dict[str, Any]:
    return KernelFacts(eight_lines("cuda"), "cuda", "sm_90a", check_seconds=0.01).record()


@pytest.fixture(scope="module")
def page(on_hopper: dict[str, Any]) -> str:
    return page_of(on_hopper)


def test_the_page_is_html_that_loads_nothing(page: str) -> None:
    found = read(page)
    assert not found.wrong
    assert not found.open
    assert len(found.ids) == len({*found.ids})
    assert not found.loaded
    assert {*found.links} == {f"#{name}" for name in SECTIONS}
    assert {*SECTIONS} <= {*found.ids}
    rest = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", rest.replace("//#", "").split("<main>")[0])
    assert not re.search(r"https?:", rest)


def test_unbalanced_tags_and_references_are_found(page: str) -> None:
    assert read(page.replace("</section>", "", 1)).wrong
    assert read(page.replace("<main>", '<main><script src="x.js"></script>', 1)).loaded


def test_texts_are_those_of_inspect(on_hopper: dict[str, Any], page: str) -> None:
    subject = GivenSubject.of(eight_lines("cuda"))
    stages = subject.stages("cuda", "sm_90a")
    assert [one["name"] for one in on_hopper["passes"]] == [stage.name for stage in stages]
    for one, stage in zip(on_hopper["passes"], stages, strict=True):
        assert [line["text"] for line in one["lines"]] == tw.ir.print_kernel(stage.kernel).splitlines()
    flow = [line["text"] for line in on_hopper["flow"]["text"]]
    assert "\n".join(flow) + "\n" == subject.flow()
    listing = subject.listing("cuda", "sm_90a")
    assert listing is not None
    assert [line["text"] for line in on_hopper["source"]["lines"]] == listing.text.splitlines()
    assert listing.text.splitlines()[-2].strip() in section(page, "source")
    assert subject.flow().splitlines()[-1] in section(page, "flow")


def test_differences_lead_from_pass_to_pass(on_hopper: dict[str, Any]) -> None:
    """The added and removed lines of a difference are those by which the texts differ."""
    before = [line["text"] for line in on_hopper["passes"][0]["lines"]]
    for one in on_hopper["passes"][1:]:
        after = [line["text"] for line in one["lines"]]
        added = sorted(line[1:] for line in one["difference"] if line.startswith("+"))
        removed = sorted(line[1:] for line in one["difference"] if line.startswith("-"))
        assert sorted([*before, *added]) == sorted([*after, *removed])
        assert bool(one["difference"]) == (before != after)
        before = after
    assert any(one["difference"] for one in on_hopper["passes"])


def test_the_schedule_has_the_parts_of_why(on_hopper: dict[str, Any], page: str) -> None:
    choice, other = reasons_of(eight_lines("cuda"), "sm_90a")
    mine, second, *more = on_hopper["schedule"]["candidates"]
    assert mine["parts_us"] == choice.record()["parts_us"]
    assert mine["total_us"] == choice.record()["total_us"]
    assert second["schedule"] == repr(other.candidate.schedule)
    assert second["parts_us"] == other.record()["parts_us"]
    assert len(more) == 2
    assert len({one["schedule"] for one in on_hopper["schedule"]["candidates"]}) == 4
    shown = section(page, "schedule")
    assert all(f"{us:.2f}" in shown for us in mine["parts_us"].values())
    assert repr(choice.candidate.schedule) in shown


def test_resources_and_accesses_are_the_compilers(on_hopper: dict[str, Any], page: str) -> None:
    made = GivenSubject.of(eight_lines("cuda")).compile("cuda", "sm_90a")
    rows = on_hopper["resources"]["rows"]
    assert rows["registers"] == made.resources["registers"]
    assert rows["spill load bytes"] == made.resources["spill_load_bytes"]
    assert made.listing is not None
    moved = movements(made.listing.kernel, "cuda", made.kernel)
    assert [one["text"] for one in on_hopper["accesses"]["copies"]] == [str(one) for one in moved]
    assert moved
    assert f"{made.resources['registers']:,} registers".replace(" ", "") in section(
        page, "resources"
    ).replace(" ", "")


def test_every_element_names_its_holder(on_hopper: dict[str, Any]) -> None:
    """The fragments of the last pass: the thread and the value of each element, by the distribution."""
    kernel = GivenSubject.of(eight_lines("cuda")).stages("cuda", "sm_90a")[-1].kernel
    known: dict[str, Distribution] = {}
    for op in kernel.walk():
        for value in op.results:
            if isinstance(value, Value) and isinstance(value.type, FragmentType):
                known[value.name] = value.type.distribution
    shown = on_hopper["layouts"]["fragments"]
    assert {name for one in shown for name in one["names"]} == {*known}
    rng, tried = np.random.default_rng(0), 0
    for one in shown:
        distribution = known[one["names"][0]]
        assert one["shape"] == list(distribution.shape)
        for at in rng.integers(0, len(one["thread"]), 50):
            coordinate = distribution.table[one["thread"][at], one["value"][at]]
            assert tuple(coordinate) == np.unravel_index(at, distribution.shape)
            tried += 1
    assert tried


def test_lines_and_names_are_marked_everywhere(on_hopper: dict[str, Any], page: str) -> None:
    place = "step1_eight_lines.py:40"
    assert "The author's lines step1_eight_lines.py. Point" in section(page, "lines")
    texts = [line["text"] for line in on_hopper["lines"]["lines"] if line["at"] == place]
    assert texts == ["            acc += A[m, k] @ B[n, k].T"]
    for name in ("lines", "flow", "passes", "source", "machine_code"):
        found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
        assert found is not None
        assert f'data-l="{place}"' in found[1], name
        if name != "machine_code":
            assert re.search(r'data-n="[^"]*\bA"', found[1]), name
    assert on_hopper["names"]["sA"] == ["A"]
    assert on_hopper["names"]["sB"] == ["B"]


def test_the_machine_code_is_that_of_isa(on_hopper: dict[str, Any]) -> None:
    found = on_hopper["machine_code"]
    if "missing" in found:
        assert "nvdisasm" in found["missing"]
        return
    rows = found["loops"]["the main loop"]
    multiplies = [row for row in rows if "HGMMA" in row["cells"][1]]
    assert multiplies
    assert {row["at"] for row in multiplies} == {"step1_eight_lines.py:40"}
    assert all(row["names"] == ["A", "B"] for row in multiplies)


def test_a_report_on_this_machine_has_a_time_and_a_verdict(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    arrays = ("A=96x64:f32", "B=80x64:f32", "bias=80:f32", "C=96x80:f32")
    options = [word for one in arrays for word in ("--shape", one)]
    ended = CliRunner().invoke(
        app, ["report", f"{LINES}:linear", *options, "--check-seconds", "600", "-o", str(target)]
    )
    assert ended.exit_code == 0, ended.output
    page = target.read_text()
    assert not read(page).wrong
    verdict = section(page, "check")
    assert "clean at 3 sizes" in verdict
    assert "A 96 × 64, B 80 × 64, bias 80, C 96 × 80" in verdict
    assert re.search(r"[\d.]+ *measured, µs", section(page, "time"))
    assert "no rates are known of" in section(page, "time")


def test_a_kernel_with_a_hazard_is_not_clean(tmp_path: Path) -> None:
    source = tmp_path / "turned.py"
    source.write_text(
        "import tilewright as tw\n\n\n"
        '@tw.kernel(X="M N", Y="M N")\n'
        "def turned(X, Y):\n"
        "    held = tw.shared((32, 32), X.dtype)\n"
        "    tw.copy(X.tile((32, 32), (0, 0)), held, threads=64)\n"
        "    tw.copy(held.permute(1, 0), Y.tile((32, 32), (0, 0)), threads=64)\n"
    )
    square = tw.like("f32", 32, 32)
    facts = KernelFacts(KernelInFile(f"{source}:turned", (), (square, square), "cpu"), "cpu", measured=False)
    made = facts.record()
    assert not made["check"]["clean"]
    assert any("read-write race" in one for one in made["check"]["findings"])
    assert "explicit" in made["flow"]["missing"]
    assert "read-write race" in section(page_of(made), "check")


def test_an_operation_is_planned_here_and_scheduled_for_another_machine(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    words = ["matmul", "192x128:bf16", "128x256:bf16", "--target", "hip", "--arch", "gfx942"]
    ended = CliRunner().invoke(app, ["report", *words, "--check-seconds", "0", "-o", str(target)])
    assert ended.exit_code == 0, ended.output
    page = target.read_text()
    assert not read(page).wrong
    assert "The library wrote the kernel of this operation, in tilewright/ops/" in section(page, "lines")
    assert "MFMA" in section(page, "schedule")
    assert "mfma" in section(page, "machine_code")
    assert "left out, as asked" in section(page, "check")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["matmul", "8x8:f32", "8x8:f32", "--target", "cdua"], "nearest: cuda"),
        (["matmul", "8x8:f32", "9x8:f32"], "K"),
        (["matmul", "8x8:f32"], "needs b"),
        (["matmull", "8x8:f32"], "nearest: matmul"),
        ([f"{LINES}:linear", "8x8:f32"], "no array B"),
        (["gemm", "64", "64", "64", "--target", "cuda", "--arch", "sm_1"], "sm_1"),
        (["gemm", "64", "64", "64", "--check-seconds", "-1"], "greater than or equal to 0"),
    ],
)
def test_what_is_refused_is_refused_before_a_page_is_written(
    words: list[str], said: str, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    ended = CliRunner().invoke(app, ["report", *words, "-o", str(target)])
    assert ended.exit_code == 2
    assert said in ended.output
    assert not target.exists()


def test_an_illegal_kernel_gives_the_usual_error(tmp_path: Path) -> None:
    source = tmp_path / "wide.py"
    source.write_text(
        "import tilewright as tw\n\n\n"
        '@tw.kernel(X="M N")\n'
        "def wide(X):\n"
        "    held = tw.shared((256, 1024), X.dtype)\n"
        "    tw.copy(X.tile((256, 1024), (0, 0)), held, threads=64)\n"
    )
    facts = KernelFacts(
        KernelInFile(f"{source}:wide", (), (tw.like("f32", 256, 1024),), "cuda"), "cuda", "sm_90a"
    )
    with pytest.raises(tw.LegalityError, match="shared"):
        facts.record()


def test_a_graph_has_an_edge_for_every_argument() -> None:
    subject = eight_lines("cpu")
    assert subject.flow is not None
    graph = graph_of(subject.flow)
    labels = [node["label"] for node in graph["nodes"]]
    pairs = {(labels[source], labels[target]) for source, target in graph["edges"]}
    assert ("A[m, k]", "Σ k: a @ b") in pairs
    assert ("silu(·)", "C[m, n]") in pairs
    layers = layers_of(len(labels), graph["edges"])
    assert all(layers[source] < layers[target] for source, target in graph["edges"])
    assert drawn(graph).count('<g class="node') == len(labels)


def test_boxes_of_a_drawing_do_not_overlap() -> None:
    graph = {
        "nodes": [
            {"id": at, "label": f"value {at}", "type": "f32", "kind": "map", "at": "", "names": []}
            for at in range(9)
        ],
        "edges": [[0, 4], [1, 4], [2, 5], [3, 5], [0, 5], [4, 6], [5, 6], [0, 8], [6, 7], [7, 8]],
    }
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', drawn(graph))
    rows: dict[str, list[tuple[float, float]]] = {}
    for x, y, width in boxes:
        rows.setdefault(y, []).append((float(x), float(x) + float(width)))
    assert len(boxes) == 9
    for row in rows.values():
        row.sort()
        assert all(end < start for (_, end), (start, _) in pairwise(row))


def test_small_arrays_keep_the_order_of_dimensions() -> None:
    subject = KernelInFile(
        f"{LINES}:product",
        (),
        (tw.like("f32", 300, 40, order="F"), tw.like("f32", 20, 40), tw.like("f32", 300, 20)),
        "cpu",
    )
    made = GivenSubject.of(subject).small_arrays(64)
    assert {name: one.shape for name, one in made.items()} == {"A": (64, 40), "B": (20, 40), "C": (64, 20)}
    assert made["A"].flags.f_contiguous
    assert made["B"].flags.c_contiguous
    assert isinstance(GivenSubject.of(subject), Subject)


def test_records_are_json(on_hopper: dict[str, Any]) -> None:
    assert json.loads(json.dumps(on_hopper, allow_nan=False)) == on_hopper


def test_reports_made_in_python_are_those_of_the_command_line(tmp_path: Path) -> None:
    square, row = tw.like("bf16", 256, 256), tw.like("bf16", 256)
    wanted = KernelFacts(eight_lines("cuda"), "cuda", "sm_90a", check_seconds=0.01).record()
    linear = eight_lines("cuda").bound()
    made = tw.kernel_report(
        linear, square, square, row, square, target="cuda", arch="sm_90a", check_seconds=0.01
    )
    for name in ("kernel", "arrays", "flow", "schedule", "passes", "layouts", "accesses", "source"):
        assert made.facts[name] == wanted[name]
    made.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == made.page
    assert not read(made.page).wrong
    shown = made._repr_html_()
    assert unescape(shown.partition('srcdoc="')[2].partition('"')[0]) == made.page
    assert set(made.missing) == {name for name in SECTIONS if "missing" in made.facts[name]}


@tw.kernel(A="M N", C="M N", s=tw.f32, n=int)
def scaled(A, C, s, n):
    for m, k in tw.tiles(C):
        C[m, k] = s * A[m, k] + n


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((5, 8), "f4"), np.ones((6, 8), "f4"), 2.0, 1), "M is 5 in A.shape[0] but 6 in C.shape[0]"),
        ((np.ones((6, 8), "f4"), np.ones((6, 8), "f4"), None, 1), "s=None must be a number"),
        ((np.ones((6, 8), "f4"), np.ones((6, 8), "f4"), "x", 1), "s='x' must be a number"),
        ((np.ones((6, 8), "f4"), np.ones((6, 8), "f4"), 2.0, 2**40), "n="),
        ((np.ones((6, 8), "f4"), np.ones((6, 8), "f4"), 2.0), "takes 4 arguments"),
    ],
)
def test_arguments_that_no_launch_takes_have_no_report(arguments: tuple[Any, ...], message: str) -> None:
    for target in ("reference", "cpu"):
        with pytest.raises(tw.LaunchError, match=re.escape(message)):
            tw.kernel_report(scaled, *arguments, target=target, check_seconds=0, measure=False)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    given = tw.like("f32", 6, 8), tw.like("f32", 6, 8), 2.0, 1
    made = tw.kernel_report(scaled, *given, target="reference", check_seconds=0)
    for path in (tmp_path, tmp_path / "absent" / "x.html", "/dev/full"):
        with pytest.raises(tw.TilewrightError, match="cannot write"):
            made.save(path)
    for wrong in (3, None):
        with pytest.raises(tw.LaunchError, match=r"nearest legal choice: 'report.html'"):
            made.save(wrong)


def test_a_report_on_a_call_shows_its_last_kernel() -> None:
    a, b = np.ones((40, 64), np.float32), np.ones((64, 24), np.float32)
    for named in ({"target": "reference"}, {"target": "cpu"}, {}):
        made = tw.kernel_report(tw.matmul, a, b, check_seconds=0, measure=False, **named)
        assert made.facts["target"] == named.get("target", "cpu")
        shapes = [one["shape"] for one in made.facts["arrays"].values()]
        assert [40, 64] in shapes
        assert [40, 24] in shapes
        assert made.facts["note"] == ""
    half = tw.like("f16", 256, 256)
    there = tw.kernel_report(tw.matmul, half, half, target="hip", arch="gfx942", check_seconds=0)
    assert (there.facts["target"], there.facts["arch"]) == ("hip", "gfx942")
    assert "planned for arrays of this machine" in there.facts["note"]


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((3,), {}, "3 is no kernel; nearest legal choice"),
        ((tw.ceil_div, 3, 4), {}, "is no kernel; nearest legal choice"),
        ((tw.matmul, np.ones((4, 4))), {}, "matmul: missing a required argument: 'b'"),
        ((tw.matmul, np.ones((4, 4)), np.ones((4, 4))), {"target": "cdua"}, "did you mean 'cuda'"),
        ((tw.matmul, np.ones((4, 4)), np.ones((4, 4))), {"check_seconds": -1}, "nearest legal choice: 0"),
        ((tw.matmul, np.ones((4, 4)), np.ones((5, 4))), {}, "matmul"),
        (
            (lambda x, target=None: x, np.ones((4, 5))),
            {},
            "of argument 0 float64[4x5] on cpu launches no kernel",
        ),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_made(
    arguments: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(tw.LaunchError, match=re.escape(message)):
        tw.kernel_report(*arguments, **named)
