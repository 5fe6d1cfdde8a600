"""Ranks for all tests that need some; and how hypothesis looks for counterexamples: quickly by default, `HYPOTHESIS_PROFILE=thorough` for longer."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared: a slow example is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", patient)
settings.register_profile("thorough", patient, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def two():
    """Two gloo ranks."""
    pytest.importorskip("torch", reason="the validator and the guard need torch")
    from ddp.pool import Pool

    pool = Pool(2)
    yield pool
    pool.close()
