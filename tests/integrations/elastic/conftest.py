"""One rank, with a process group as under torchrun."""

import pytest


@pytest.fixture(scope="session")
def one():
    pytest.importorskip("torch", reason="ElasticRun drives a torch training")
    from ddp.pool import Pool

    pool = Pool(1)
    yield pool
    pool.close()
