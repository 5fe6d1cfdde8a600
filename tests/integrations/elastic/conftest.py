"""One rank, with a process group as under torchrun."""

import pytest


@pytest.fixture(scope="session")
def single():
    pytest.importorskip("torch", reason="ElasticRun drives a torch training")
    from ddp.pool import Pool

    pool = Pool(1)
    yield pool
    pool.close()


@pytest.fixture
def rank(monkeypatch):
    """Pretends to be a process of torchrun."""

    def become(rank, size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))

    return become
