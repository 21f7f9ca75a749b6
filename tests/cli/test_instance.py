"""`tilewright instance`: both specializations of an instance in one code object, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.instances.ablated import given
from tests.instances.amd import ARCH, INSTANCES
from tests.instances.machine_code import functions
from tests.programs import CliRunner

from tilewright.cli.instance import _bound
from tilewright.cli.verbs import app
from tilewright.inspect.isa import IsaKind, execute_listing, read_isa
from tilewright.runtime.amdgcn import assemble

FILE = """import tilewright as tw
from dataclasses import replace
from tests.instances.seeds import SEED as tuned

gelu = replace(tuned, c_element_op="Gelu")
wrong = replace(tuned, block_size=128)
"""
SIZES = {"Default": (128, 256, 128), "MNKPadding": (130, 272, 72)}


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in a folder with two files; return its status, and its output as one line."""
    monkeypatch.chdir(tmp_path)
    Path("tuned_instances.py").write_text(FILE, encoding="utf-8")
    Path("empty.py").write_text("x = 1\n", encoding="utf-8")

    def runs(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["instance", *words])
        return done.exit_code, " ".join(done.output.split())

    return runs


def test_both_specializations_are_in_one_code_object(run: Run, tmp_path: Path) -> None:
    """The listing computes each element of both specializations within its bound."""
    words = ("tuned_instances.py:tuned", "--arch", ARCH, "--b-memory", "f8e4m3")
    status, said = run(*words, "--output", "both.hsaco", "--listing", "both.s")
    assert status == 0, said
    data, listing = (tmp_path / "both.hsaco").read_bytes(), (tmp_path / "both.s").read_text(encoding="utf-8")
    symbols = {name: one.symbol for name, one in INSTANCES.items()}
    assert {*functions(data)} == {*symbols.values()}
    assert all(f"{symbol}: " in said for symbol in symbols.values())
    assert assemble(listing, ARCH) == data
    for name, (m, n, k) in SIZES.items():
        main = read_isa(listing, symbols[name]).main
        assert main.mix[IsaKind.MATRIX] == 64
        assert main.widths(IsaKind.GLOBAL_LOAD) == {16: 8}
        kernel, specs = _bound(INSTANCES[name], ARCH, "f8e4m3")
        made = replace(kernel.compile(**specs, target="hip", arch=ARCH), assembly=listing)
        arrays = given(m, n, k)
        execute_listing(made, arrays, {"alpha": 1.0})
        wide = {key: value.astype(np.float64) for key, value in arrays.items()}
        sums = wide["A"] @ wide["B"] * wide["scale_b"]
        exact, sizes = sums + wide["bias"], np.abs(wide["A"]) @ np.abs(wide["B"]) * wide["scale_b"]
        slack = (k + 2) * 2.0**-24 * sizes + 3 * 2.0**-24 * (np.abs(sums) + np.abs(wide["bias"]))
        off = np.abs(arrays["D"].astype(np.float64) - exact)
        assert (off <= 1.01 * (slack + 2.0**-11 * np.abs(exact) + 2.0**-24)).all()


def test_one_specialization_of_the_product_alone(run: Run, tmp_path: Path) -> None:
    status, said = run(
        "tuned_instances.py:tuned", "--arch", "gfx1100", "--specializations", "KPadding", "-o", "one.hsaco"
    )
    assert status == 0, said
    symbol = replace(INSTANCES["Default"], gemm_specialization="KPadding").symbol
    assert {*functions((tmp_path / "one.hsaco").read_bytes())} == {symbol}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("tuned_instances.py:tuned", "--arch", "gfx942"), "legal: what has WMMA: gfx1100"),
        (("tuned_instances.py:tuned", "--arch", "gfx1"), "unknown architecture 'gfx1'"),
        (("tuned_instances.py:tuned", "--arch", ARCH, "--specializations", "K"), "choose one of Default, "),
        (("tuned_instances.py:tuned", "--arch", ARCH, "--specializations", "Defualt,,"), "nearest: Default;"),
        (
            ("tuned_instances.py:tuned", "--arch", ARCH, "--listing", "./made.hsaco"),
            "--output and --listing are both made.hsaco; nearest: made.s for one of them",
        ),
        (
            ("tuned_instances.py:tuned", "--arch", ARCH, "--specializations", "Default,Default"),
            "names Default twice; nearest: Default",
        ),
        (("tuned_instances.py:tunde", "--arch", ARCH), "nearest: tuned; choose one of tuned, gelu, wrong"),
        (("tuned_instances.py:gelu", "--arch", ARCH), "c_element_op is Gelu; nearest: PassThrough"),
        (("tuned_instances.py:wrong", "--arch", ARCH), "nearest legal choice: block_size=256"),
        (("empty.py:tuned", "--arch", ARCH), "empty.py has no instance"),
        (("tuned", "--arch", ARCH), "give FILE.py:NAME"),
        (("tuned_instances.py:tuned", "--arch", ARCH, "--b-memory", "f7"), "f7"),
    ],
)
def test_what_it_refuses(run: Run, words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    status, said = run(*words, "--output", "made.hsaco")
    assert status == 2
    assert text in said
    assert not (tmp_path / "made.hsaco").exists()


def test_the_folder_of_the_code_object_must_be_there(run: Run) -> None:
    status, said = run("tuned_instances.py:tuned", "--arch", ARCH, "--output", "nowhere/made.hsaco")
    assert status == 2
    assert "cannot write nowhere/made.hsaco" in said
