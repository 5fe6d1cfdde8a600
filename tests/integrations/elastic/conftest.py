"""One rank, with a process group as under torchrun; and a store of a run."""

from contextlib import closing

import pytest


@pytest.fixture(scope="session")
def single():
    pytest.importorskip("torch", reason="ElasticRun drives a torch training")
    from ddp.pool import Pool

    with closing(Pool(1)) as pool:
        yield pool


@pytest.fixture
def rank(monkeypatch):
    """Pretends to be a process of torchrun."""

    def become(rank, size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))

    return become


@pytest.fixture
def raw():
    """A store, as anybody may write to it."""
    torch = pytest.importorskip("torch", reason="survivors drives a torch training")
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield server
    del server


@pytest.fixture
def store(raw):
    """The address of a store."""
    return f"127.0.0.1:{raw.port}"
