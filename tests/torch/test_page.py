"""The page about PyTorch: its code runs."""

from __future__ import annotations

from tests.house.test_documents import IN_TORCH, ROOT, run_document


def test_the_page() -> None:
    failed = run_document((ROOT / "docs" / IN_TORCH).read_text(), IN_TORCH)
    assert not failed, failed
