"""The tests in JAX run on processors, with numbers of 64 bits; the page has those of 32 bits."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_platforms", "cpu")


@pytest.fixture(autouse=True)
def numbers_of_64_bits(request: pytest.FixtureRequest) -> Iterator[None]:
    with jax.enable_x64(request.path.name != "test_page.py"):
        yield
