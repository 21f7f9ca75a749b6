"""Every operation of an expanded kernel names the graph's value and the schedule's field that it is from."""

from __future__ import annotations

from dataclasses import fields

import pytest

import tilewright as tw
from tilewright.dataflow.nodes import Node, Store

from .forms import FORMS, expanded


@pytest.mark.parametrize("form", FORMS)
def test_every_operation_has_both(form: str) -> None:
    kernel = expanded(FORMS[form])
    names = {field.name for field in fields(tw.Schedule)}
    for op in kernel.walk():
        origin = op.location and op.location.origin
        assert origin is not None, f"{op} has none"
        assert isinstance(origin.node, Node | Store)
        assert origin.field in names
        assert eval(origin.value, {"tw": tw}) == getattr(FORMS[form], origin.field)
        assert {frame.function for frame in op.location.shown} == {"linear"}
