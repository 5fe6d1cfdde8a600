"""Ranks for all tests that need some, and how long properties are looked at: `HYPOTHESIS_PROFILE=long` for longer."""

import os

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("long", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def two():
    """Two gloo ranks."""
    pytest.importorskip("torch", reason="the validator and the guard need torch")
    from ddp.pool import Pool

    pool = Pool(2)
    yield pool
    pool.close()
