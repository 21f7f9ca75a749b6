"""Dataflow kernels under every form of schedule on a GPU, element by element, at ragged shapes."""

from __future__ import annotations

import pytest
from tests.gpu.schedules import FORMS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_every_layout(name: str) -> None:
    form = FORMS[name]
    for number, layout in enumerate(form.layouts):
        for shape in form.shapes(4, layout):
            before = form.arrays(shape, layout, number)
            ran, after = form.run(before)
            assert (ran.target, ran.schedule) == ("cuda", form.schedule)
            found = form.compare(before, after)
            assert found.ok, f"{layout} {shape}: {found}"


@pytest.mark.parametrize("name", ["cooperative f16", "ping-pong", "overlapped residual", "cluster (2, 2)"])
def test_the_same_bits_each_time(name: str) -> None:
    form = FORMS[name]
    before = form.arrays((1000, 520, 1096), "nt", 1)
    first = form.run(before)[1]["C"].tobytes()
    for _ in range(20):
        assert form.run(before)[1]["C"].tobytes() == first
