"""The page about JAX: its code runs."""

from __future__ import annotations

from tests.house.test_documents import IN_JAX, ROOT, run_document


def test_the_page() -> None:
    failed = run_document((ROOT / "docs" / IN_JAX).read_text(), IN_JAX)
    assert not failed, failed
