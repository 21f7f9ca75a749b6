"""Every line on the page for users of other libraries is traced and verified separately."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.ir import verify
from tilewright.targets.target import target_named

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.*) \| `([^`]*)` \|$", re.MULTILINE)
ROWS = [(there.strip(), here) for there, here in ROW.findall(PAGE)]


@tw.kernel(A="M K", B="N K", C="M N")
def snippet(A, B, C, *, text, folder):
    names: dict[str, Any] = {"tw": tw}
    first = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert first is not None
    execute(first[1], f"{folder}/names.py", names)
    within = {**names, **names["names"](A, B, C)}
    execute(f"def used():\n    {text}\n", f"{folder}/snippet.py", within)["used"]()


def execute(text: str, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute the text of a file; the recorder reads its source again."""
    Path(name).write_text(text, encoding="utf-8")
    exec(compile(text, name, "exec"), names)
    return names


def test_all_tables_are_read() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| There")]
    assert len(ROWS) == len(lines) >= 70


@pytest.mark.parametrize(("there", "here"), ROWS, ids=[there[:40] for there, _ in ROWS])
def test_each_line_is_legal(there: str, here: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    kernel = snippet.trace(a, b, np.empty((128, 128), np.float16), text=here, folder=str(tmp_path))
    assert verify.violations(kernel) == []


LACK = re.compile(r"\*\*What we do not have:\*\* (.*?)\.\n", re.DOTALL)
LACKS = [" ".join(item.split()) for found in LACK.findall(PAGE) for item in found.split("; ")]

SPACES = (tw, tw.hopper, tw.ir, tw.layouts, tw.testing)
NAMES = {name.lower() for space in SPACES for name in space.__all__}
SOURCES = [path.read_text(encoding="utf-8") for path in (Path(tw.__file__).parent).rglob("*.py")]


@tw.kernel(X="M N", I="M", Y="M N")
def adds(X, I, Y):
    for m, n in tw.tiles(Y):
        tw.copy(X[m, n], Y[m, n], reduction="add")


def refused(*kernels: tw.Kernel) -> bool:
    """Return whether no target launches any of the kernels."""
    for kernel in kernels:
        x, y = np.ones((40, 30), np.float32), np.empty((40, 30), np.float32)
        with pytest.raises(tw.TraceError, match=r"nearest legal choice"):
            kernel(x, np.arange(40, dtype=np.int32), y, target="reference")
    return True


def unnamed(*parts: str) -> bool:
    """Return whether no word of a public name begins with one of the parts."""
    return not [name for name in NAMES for start in parts if f"_{start}" in f"_{name}"]


def unwritten(*texts: str) -> bool:
    """Return whether no file of the library contains one of the texts."""
    return not [text for text in texts for source in SOURCES if text in source]


@tw.kernel(X="N", Y="N")
def copies(X, Y):
    tw.copy(X.tile((32,), (0,)), Y.tile((32,), (0,)), threads=32)


def untuned(name: str) -> bool:
    """Return whether `tilewright tune` refuses a kernel of this file, because it is explicit."""
    words = ["tune", f"{__file__}:{name}", "--shape", "X=32:f32", "--shape", "Y=32:f32", "--target", "cpu"]
    said = CliRunner().invoke(app, words)
    return said.exit_code == 2 and "explicit" in said.output


MISSING: dict[str, Callable[[], bool]] = {
    "atomics in dataflow kernels": lambda: refused(adds),
    "sorting": lambda: unnamed("sort", "top_k"),
    "derived gradients of kernels": lambda: unnamed("grad", "differentiate"),
    "tuning of explicit kernels": lambda: untuned("copies"),
    "GEMMs with 2:4 sparsity": lambda: unnamed("sparse") and unwritten("mma.sp", "wgmma.mma_async.sp"),
    "Blackwell": lambda: unwritten("tcgen05", "sm_100"),
    "programmatic access to single registers": lambda: unnamed("register"),
    "convolutions by TMA im2col": lambda: unwritten("cuTensorMapEncodeIm2col", ".im2col::"),
    "tensor maps that the kernel writes": lambda: unwritten("tensormap.replace"),
}
"""What the page says is missing, and whether it is."""


def lack(statement: str) -> str:
    return re.split(r" \(|: ", statement)[0]


def test_each_thing_that_is_said_to_be_missing_is_looked_for() -> None:
    assert {lack(statement) for statement in LACKS} == set(MISSING)


@pytest.mark.parametrize("statement", MISSING)
def test_what_is_said_to_be_missing_is_missing(statement: str) -> None:
    """If one of these comes to exist, the page must say so."""
    assert MISSING[statement]()


def ungrouped(k: int, batches: tuple[int, ...]) -> bool:
    """Return whether packed weights of K rows, with a scale for each 32 of them, are refused."""
    a, codes = np.ones((*batches, 8, k), np.float16), np.ones((*batches, k, 16), np.int8)
    scale = np.ones((*batches, max(k // 32, 1), 16), np.float16)
    with pytest.raises(tw.TilewrightError, match=r"nearest legal choice|scaled_mm"):
        tw.scaled_mm(a, tw.packed(tw.pack(codes, tw.i4), tw.i4), scale_b=scale, group=32, target="reference")
    return True


def bias_is_refused() -> bool:
    """Whether packed sequences take no bias."""
    x, ends = np.ones((4, 1, 8), np.float32), np.int32([0, 4])
    with pytest.raises(tw.LaunchError, match="bias with q_offsets; nearest legal choice"):
        tw.attention(x, x, x, bias=np.zeros((4, 4), np.float32), q_offsets=ends, target="reference")
    return True


ELSEWHERE: dict[tuple[str, str], Callable[[], bool]] = {
    ("attention", "A bias of packed sequences"): bias_is_refused,
    ("scaled", "groups for batches of weights"): lambda: ungrouped(64, (2,)),
    ("scaled", "groups that do not divide K"): lambda: ungrouped(72, ()),
}
"""What two other pages say is not there."""


@pytest.mark.parametrize(("page", "statement"), ELSEWHERE, ids=str)
def test_what_other_pages_say_is_not_there(page: str, statement: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    [said] = re.findall(r"\*\*Not supported\.\*\* (.*)", text)
    assert statement in said
    assert ELSEWHERE[page, statement]()


PRESENT: dict[str, Callable[[], bool]] = {
    r"tun(er|ing)": lambda: CliRunner().invoke(app, ["tune", "--help"]).exit_code == 0,
    r"AMD( GPUs?| hardware)?": lambda: target_named("hip").architectures["gfx1151"].name == "gfx1151",
    r"random numbers?": lambda: "random_bits" in NAMES,
    r"GEMMs? with packed weights|packed weights": lambda: "rearrange_weights" in NAMES,
    r"complex (numbers|products)": lambda: "complex_matmul" in NAMES,
    r"attention": lambda: "attention" in NAMES,
}
"""What the library has: how a sentence would name it, and the proof."""

DENIALS = r"[Tt]here (?:is|are) no|[Ww]e (?:do not|don't) have(?::\*\*)?|[Nn]o support for|[Dd]oes not have"
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.name not in {"CHANGELOG.md", "audit.md"} and path.parent.name != "decisions"
)


def denials(text: str) -> list[str]:
    """Return the sentences that deny a feature of the library.

    The feature must follow the denial directly, or be an item of its list, between commas or semicolons.
    """
    found = []
    for match in re.finditer(rf"(?:{DENIALS})\s+(.*?)(?:\.(?=\s|\Z)|\n\n|\Z)", text, re.DOTALL):
        items = re.split(r"[;,]\s|\s(?:and|or)\s|\s\(", " ".join(match[1].split()))
        found += [
            item
            for item in items
            for thing in PRESENT
            if re.fullmatch(rf"(?:a |an |any )?(?:{thing})(?: yet| here)?", item)
        ]
    return found


@pytest.mark.parametrize("thing", PRESENT)
def test_what_the_pages_may_not_deny_is_there(thing: str) -> None:
    assert PRESENT[thing]()


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_denies_what_is_there(page: Path) -> None:
    assert denials(page.read_text(encoding="utf-8")) == []


def test_a_denial_is_found() -> None:
    assert denials("There is no tuner yet.") == ["tuner yet"]
    old = "**What we do not have:** atomics there\n(here), sorting, random numbers, a tuner,\nAMD GPUs.\n"
    assert denials(old) == ["random numbers", "a tuner", "AMD GPUs"]
    assert denials("There is no GPU here, and AMD GPUs are the target hip.") == []
