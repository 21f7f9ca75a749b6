"""A target's name stands in one place, each part that a record names is there, and each record is whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.arch import Arch
from tilewright.targets.target import MEANT, TARGETS, Target, part, serving, target_named

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "src" / "tilewright" / "targets" / "target.py"
QUOTED = re.compile(rf"^({'|'.join(TARGETS)})$|=['\"]({'|'.join(TARGETS)})['\"]")


def literal_names(tree: ast.AST) -> Iterator[str]:
    """Strings of a program, docstrings apart, that are a target's name or tell a user to say one."""
    documents = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # of a module, a class, a function or a constant
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documents:
            continue
        if QUOTED.search(node.value):
            yield f"{node.lineno}: {node.value!r}"


def test_a_name_of_a_target_stands_in_its_record_alone() -> None:
    assert list(literal_names(ast.parse('"""cuda"""\nif t == "cuda": f(f"target=\'cpu\'")'))) == [
        "2: 'cuda'",
        "2: \"target='cpu'\"",
    ]
    sources = [path for path in (ROOT / "src").rglob("*.py") if path != RECORDS]
    found = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in sources
        for name in literal_names(ast.parse(path.read_text()))
    ]
    assert not found, f"ask its record in {RECORDS.relative_to(ROOT)}:\n" + "\n".join(found)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_part_of_a_record_is_there(target: Target) -> None:
    for place in (
        *(target.backend, target.clock, target.rivals, target.configuration),
        *filter(None, (target.place, target.wait, target.present, target.tools)),
    ):
        assert callable(part(place)), place
    assert target.architectures
    assert not target.arch or target.arch in target.architectures
    for name, arch in target.architectures.items():
        assert isinstance(arch, Arch)
        assert arch.name == name
        assert target.architecture(name) is target.architecture(arch) is arch
        assert arch.lanes not in arch.other_lanes
    assert all(MEANT[other] == target.name for other in target.called)
    assert serving(target.memory).memory == target.memory
    assert target_named(target.name) is target
