"""A training in chunks has the same bits on any number of ranks.

And what would break that is refused before the first step.
"""

import random

import numpy as np
import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from torch import nn  # noqa: E402

from ddp import chunked, surviving  # noqa: E402
from ddp.crews import Ranks, faults  # noqa: E402
from ddp.pool import Pool  # noqa: E402
from isobatch.elastic.summation import GradientLayout, TreeSum, roots_of  # noqa: E402
from isobatch.integrations.torch import ElasticRun  # noqa: E402
from isobatch.training.chunks import own_chunks, seeded  # noqa: E402


@pytest.fixture(scope="module")
def three():
    pool = Pool(3)
    yield pool
    pool.close()


def ends(answers):
    """The digests of all ranks, which must be equal."""
    first = answers[0][1]
    assert all(digests == first for _, digests in answers)
    return first


# ---- equal bits ----


@pytest.mark.parametrize("workload", chunked.WORKLOADS)
def test_weights_are_equal_to_the_last_bit_at_one_two_and_three_ranks(two, three, workload):
    alone = chunked.train(workload, every=1)[1]
    assert len(set(alone.values())) == len(alone)  # Every step changes something.
    assert ends(two(chunked.train, workload, every=1)) == alone
    assert ends(three(chunked.train, workload, every=1)) == alone


def test_workers_augment_the_same_samples(two):
    assert ends(two(chunked.train, "vit", workers=2)) == chunked.train("vit", workers=0)[1]


def test_restarts_at_two_three_and_one_ranks_have_the_bits_of_an_undisturbed_run(two, three):
    (checkpoint, _), *_ = two(chunked.train, stop=2)
    (checkpoint, _), *_ = three(chunked.train, checkpoint=checkpoint, stop=5)
    assert chunked.train(checkpoint=checkpoint)[1] == chunked.train()[1]


def test_another_seed_has_other_bits():
    assert chunked.train(seed=6)[1] != chunked.train()[1]


def test_a_rank_that_is_lost_and_one_that_joins_leave_the_bits_as_they_are(tmp_path):
    options = {
        "ranks": 3,
        "min_ranks": 1,
        "lease": 5.0,
        "steps": 40,
        "pause": 0.3,
        "chunk": 3,
        "dropout": 0.2,
    }
    with Ranks(tmp_path, options) as ranks:
        ranks.start_all()
        ranks.wait_for(lambda line: line.get("done") == 2)
        ranks.start("late")
        ranks.processes["r1"].kill()
        ranks.finish(alone := surviving.undisturbed(options), {"r0": 0, "r1": -9, "r2": 0, "late": 0})
        assert max(line.get("crew", 0) for line in ranks.lines) >= 1
    assert faults(tmp_path, alone) == ([], 0.0)


# ---- a difference is found ----


def test_one_ulp_in_one_chunk_is_found_at_its_step_and_the_chunk_is_named(two, tmp_path, monkeypatch):
    clean = chunked.train(every=1)[1]
    # Where the sum of the chunks is larger, it may round an ulp away.
    chunk = next(
        chunk
        for chunk in range(chunked.CHUNKS)
        if chunked.train(planted=(3, chunk))[1]["end"] != clean["end"]
    )
    folders = [tmp_path / "clean", tmp_path / "planted"]
    monkeypatch.setenv("ISOBATCH_CHUNK_DIGESTS", str(folders[0]))
    chunked.train()
    planted = ends(two(chunked.with_digests, folders[1], planted=(3, chunk), every=1))
    assert next(step for step in clean if clean[step] != planted[step]) == 3
    lines_of = [
        {line for path in folder.glob("rank-*.txt") for line in path.read_text().splitlines()}
        for folder in folders
    ]
    # The eighth step is an epoch's last, of half the samples.
    assert [len(each) for each in lines_of] == [7 * chunked.CHUNKS + chunked.CHUNKS // 2] * 2
    different = sorted(tuple(map(int, line.split()[:2])) for line in lines_of[1] - lines_of[0])
    assert [place for place in different if place[0] <= 3] == [(3, chunk)]


def test_the_digest_sees_a_bit_of_the_optimizer_and_not_the_learning_rate():
    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = ElasticRun.digest(net, optimizer)
    optimizer.param_groups[0]["lr"] = 5.0
    assert ElasticRun.digest(net, optimizer) == before
    optimizer.state[net.weight]["exp_avg"][0, 0] *= 1 + 1e-6
    assert ElasticRun.digest(net, optimizer) != before


# ---- refusals ----


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (chunked.normed, "batch norm in training mode, got BatchNorm1d '1'"),
        (chunked.Sparse, "sparse gradients, got Embedding 'layer'"),
        (chunked.Counting, "buffer 'calls' of Counting changes in forward"),
        (chunked.Nondeterministic, "scatter_cuda does not have a deterministic implementation"),
        (chunked.sharded, "does not support FSDP"),
    ],
    ids=["batch norm", "sparse", "buffer", "kernel", "FSDP"],
)
def test_networks_whose_bits_would_depend_on_the_rank_are_refused_on_all_ranks(two, net, words):
    for message in two(chunked.refused, net):
        assert words in message


def test_ranks_with_unlike_threads_are_refused_by_name(two):
    for message in two(chunked.with_threads_of_the_rank):
        assert "the ranks differ in number of threads: 1 on rank 0, 2 on rank 1" in message
        assert ", and in default dtype; bits depend on it" in message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chunk": 3}, "chunk must divide the batch, 8, got 3"),
        ({"chunk": 0}, "chunk must be a whole number from 1, got 0"),
        ({"max_micro_batch": 4}, "max_micro_batch must be left out with chunk=2"),
        ({"policy": "grow"}, "policy must be keep or a batch with chunk="),
    ],
)
def test_settings_that_contradict_chunks_are_refused(settings, words):
    message = chunked.refused(chunked.linear, **settings)
    assert words in message


def test_more_ranks_than_chunks_are_refused(three):
    for message in three(chunked.refused, chunked.linear, chunk=4):
        assert "chunk=4 gives 2 chunks a step, too few for 3 ranks" in message


def test_loops_that_break_the_bits_are_refused():
    recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="1ep")
    run, net = ElasticRun(recipe, chunk=2), nn.Linear(1, 1)
    steps = run.steps(run.loader(range(8)))
    micro = next(iter(next(steps)))
    with pytest.raises(ib.InputError, match="needs the model of run.wrap"), micro.sync(net):
        pass
    with pytest.raises(ib.InputError, match="tokens must give a whole number from 0"):
        next(run.steps(run.loader(range(8)), tokens=lambda _: 0.5))
    run.wrap(net)
    with pytest.raises(ib.InputError, match="call backward inside"):
        for micro in next(steps := run.steps(run.loader(range(8)))):
            with micro.sync(net):
                pass
            net(micro.batch.float()[:, None]).sum().backward()


# ---- the parts ----


def test_roots_of_all_ranks_cover_the_chunks_once_and_are_few():
    for count in range(1, 40):
        for ranks in range(1, count + 1):
            chunks = []
            for rank in range(ranks):
                roots = roots_of(own_chunks(count, rank, ranks), count)
                assert len(roots) <= 2 * max(1, (count - 1).bit_length())
                assert all(start % size == 0 for start, size in roots)
                chunks += [chunk for start, size in roots for chunk in range(start, min(start + size, count))]
            assert chunks == [*range(count)]


def test_few_gradients_are_in_memory_while_chunks_are_added():
    layout = GradientLayout([torch.zeros(5)], 1)
    total = TreeSum(layout, range(64), 64, None)
    for number in range(64):
        total.add(number, [torch.full((5,), float(number))])
        assert len(total._sums) <= 6
    assert total.result()[0].tolist() == [float(sum(range(64)))] * 5


def test_gradients_lie_alike_in_memory_at_every_number_of_ranks():
    tensors = [torch.zeros(3), torch.zeros(2, 5, dtype=torch.bfloat16), torch.zeros(4, 3).t()]
    for ranks in (1, 2, 3):
        views = GradientLayout(tensors, ranks).views(GradientLayout(tensors, ranks).buffers(ranks))
        for tensor, view in zip(tensors, views, strict=True):
            assert (view.shape, view.stride(), view.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
            assert view.storage_offset() * view.element_size() % 512 == 0


def test_buffers_that_the_training_still_holds_are_not_used_again():
    layout = GradientLayout([torch.zeros(3)], 1)
    (gradient,) = layout.views(layout.buffers(1))
    gradient.fill_(7.0)
    layout.views(layout.buffers(1))[0].fill_(8.0)
    assert gradient.tolist() == [7.0] * 3


def test_a_parameter_that_no_chunk_uses_gets_no_gradient_and_one_that_a_chunk_uses_does(two):
    for gradients in two(chunked.gradients_of_a_net_with_branches):
        assert gradients == [True, True, False]
    assert chunked.gradients_of_a_net_with_branches() == [True, True, False]


def test_two_networks_of_a_run_have_the_bits_of_one_rank(three):
    alone = chunked.two_networks()
    assert three(chunked.two_networks) == [alone] * 3


def test_random_state_of_the_user_is_put_back():
    def draw():
        return float(torch.rand(1)), np.random.rand(), random.random()

    torch.manual_seed(4), np.random.seed(4), random.seed(4)
    expected = draw()
    torch.manual_seed(4), np.random.seed(4), random.seed(4)
    with seeded(1, 2, 3):
        first = draw()
    with seeded(1, 2, 3):
        assert draw() == first
    assert draw() == expected != first
