"""Split products for GPU tests and sanitizers: legal on Hopper, with every reduction."""

from __future__ import annotations

from tests.gpu.splits import ENGINES, SPLIT_FORMS, ways


def test_every_form_is_legal_as_it_stands() -> None:
    for form in SPLIT_FORMS.values():
        (layout,) = form.layouts
        arrays = form.arrays(next(form.shapes(0, layout)), layout, 1)
        bound = form.kernel.bind(schedule=form.schedule)
        assert bound.schedule_for(*arrays.values(), target="cuda", arch="sm_90a") == form.schedule


def test_every_engine_splits_in_every_way_with_every_layout() -> None:
    for engine in ENGINES:
        found = [form for name, form in SPLIT_FORMS.items() if name.startswith(f"{engine},")]
        assert [(form.schedule.split_k, form.schedule.reduction) for form in found] == [*ways()]
        assert {form.layouts[0] for form in found} == {"nt", "nn", "tn", "tt"}
        assert len({form.kernel.name for form in found}) == 2


def test_rows_are_as_few_as_one() -> None:
    form = SPLIT_FORMS["64 rows, 13 parts, workspace"]
    assert [shape[0] for shape in form.fixed()] == [1, 3, 16, 64]
    assert form.schedule.swap_ab
