"""The tests in JAX run on processors or on `--jax-platform`, with numbers of 64 bits; the page has 32."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import jax
import pytest

collect_ignore = [] if find_spec("flax") else ["test_flax.py"]


def pytest_report_header() -> str:
    return f"tests of models of Flax: {'left out; it is not installed' if collect_ignore else 'run'}"


def pytest_configure(config: pytest.Config) -> None:
    jax.config.update("jax_platforms", config.getoption("--jax-platform"))
    jax.config.update("jax_default_matmul_precision", "highest")  # of JAX's own products, on a GPU


@pytest.fixture(autouse=True)
def numbers_of_64_bits(request: pytest.FixtureRequest) -> Iterator[None]:
    with jax.enable_x64(request.path.name != "test_page.py"):
        yield
