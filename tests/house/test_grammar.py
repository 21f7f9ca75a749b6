"""Its script writes the page of the grammar, and the page's traits are true of kernels."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.ir import asynchronous
from tests.ir.kernels import EACH, trace

from tilewright.ir.op import ANYWHERE, ENGINES, REGISTERS, SCOPES, Op
from tilewright.ir.ops import OPS
from tilewright.ir.types import TensorType, Value

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("grammar", ROOT / "scripts" / "grammar.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run: python scripts/grammar.py"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_operation_says_what_it_touches_and_orders(op: type[Op]) -> None:
    assert set(op.traits.memories) <= {*ANYWHERE}
    assert set(op.traits.engines) <= {*ENGINES}
    if op.orders is not None:
        assert op.orders.scope in SCOPES
        assert set(op.orders.memories) <= {*ANYWHERE}
        assert {*op.orders.before, *op.orders.after} <= {*ENGINES}
        assert op.orders.half in ("", "release", "acquire")
    touched = {role for role in op.roles.values() if role in ("reads", "writes", "updates")}
    assert bool(touched - {"uses"}) <= bool(op.traits.memories) or op.name in ("set_var", "get_var")


def memory_of(value: Value) -> str:
    return value.type.memory.value if isinstance(value.type, TensorType) else REGISTERS


@pytest.mark.parametrize("name", [*EACH, *asynchronous.EACH])
def test_contents_lie_where_an_operation_says(name: str) -> None:
    kernel = trace(EACH[name]) if name in EACH else asynchronous.trace(asynchronous.EACH[name])
    for op in kernel.walk():
        touched = [value for value in (*op.read, *op.written) if value.is_tensor or value.is_fragment]
        assert {memory_of(value) for value in touched} <= {*op.traits.memories}, op.name
        assert op.traits.engines or not touched, f"{op.name} touches contents, so something executes it"
