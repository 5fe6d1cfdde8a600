"""Ranks for all tests that need some."""

import pytest


@pytest.fixture(scope="session")
def two():
    """Two gloo ranks."""
    pytest.importorskip("torch", reason="the validator and the guard need torch")
    from ddp.pool import Pool

    pool = Pool(2)
    yield pool
    pool.close()
