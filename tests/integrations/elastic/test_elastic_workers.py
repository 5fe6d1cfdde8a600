"""The DataLoader's workers of an elastic run: they outlive a SIGTERM that the run outlives, and never the
run.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from isobatch.integrations.torch import ElasticRun  # noqa: E402


def begun(index):
    torch.utils.data.get_worker_info().dataset[index] = -1


def loader_of(dataset=None, **options):
    run = ElasticRun(ib.Recipe(**elastic.RECIPE), max_micro_batch=2)
    return run.loader([*range(70)] if dataset is None else dataset, num_workers=1, **options)


def test_a_worker_goes_on_after_a_sigterm():
    before, batches = {*multiprocessing.active_children()}, iter(loader_of())
    samples = next(batches).tolist()
    (worker,) = {*multiprocessing.active_children()} - before
    os.kill(worker.pid, signal.SIGTERM)
    for batch in batches:
        samples += batch.tolist()
    assert sorted(samples) == sorted([*range(70)] * 3)


def test_a_second_sigterm_ends_it():
    before, batches = {*multiprocessing.active_children()}, iter(loader_of(prefetch_factor=2))
    next(batches)
    (worker,) = {*multiprocessing.active_children()} - before
    with pytest.raises(RuntimeError, match="killed by signal: Terminated"):
        for _ in range(40):
            os.kill(worker.pid, signal.SIGTERM)
            time.sleep(0.1)


def workers():
    return {*multiprocessing.active_children()}


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_is_left_and_entered_again_has_no_more_workers(persistent):
    before = workers()
    run = ElasticRun(ib.Recipe(**elastic.RECIPE), max_micro_batch=2)
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler, counts, files = run.scheduler(optimizer), [], []
    for _ in range(3):
        loader = run.loader([*range(70)], num_workers=2, persistent_workers=persistent)
        for step in run.steps(loader):
            counts += [len(workers() - before) for _ in step]
            files.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            optimizer.step()
            scheduler.step()
            break
    assert {*counts} == {2}
    assert files[2] < files[0] + 4  # a second loop of workers has a dozen
    run._loop.free()
    assert workers() == before


def leave(sender, how):
    """Leaves a loop by `how`, and tells when the script is at its end."""
    run = ElasticRun(ib.Recipe(**elastic.RECIPE), max_micro_batch=2)
    loader = run.loader([*range(70)], num_workers=2, persistent_workers=how == "persistent")
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = run.scheduler(optimizer)
    steps = run.steps(loader)
    for step in steps:
        for _ in step:
            pass
        optimizer.step()
        scheduler.step()
        if step.number == 2 and how != "whole":
            break
    sender.send(time.time())


@pytest.mark.parametrize("how", ["whole", "break", "persistent"])
def test_workers_do_not_delay_the_end_of_their_rank(how):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=leave, args=(sender, how))
    process.start()
    script_end = receiver.recv()
    process.join(60)
    assert process.exitcode == 0
    assert time.time() - script_end < 20


class Group:
    """It may be freed by its own process only."""

    def __init__(self):
        self.itself, self.process = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.process:
            os._exit(7)


class Collected(list):
    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


def test_a_worker_leaves_its_rank_s_garbage_alone():
    gc.collect()
    gc.disable()
    try:
        Group()
        (first, *_) = loader_of(Collected(range(70)))
    finally:
        gc.enable()
    assert len(first) == 2


class Eager(multiprocessing.get_context("fork").Process):
    """A process that collects garbage before its own code runs, as torch's seeding of a worker may."""

    def _bootstrap(self, *args, **options):
        gc.set_threshold(1, 1, 1)
        gc.enable()
        return super()._bootstrap(*args, **options)


@pytest.mark.parametrize("collects", [True, False])
def test_no_fork_frees_its_rank_s_garbage_whoever_made_it(collects):
    gc.collect()
    gc.disable()
    try:
        Group()
        if collects:
            gc.set_threshold(0)
            gc.enable()
        process = Eager(target=gc.collect)
        process.start()
        assert gc.isenabled() is collects
    finally:
        gc.set_threshold(700, 10, 10)
        gc.enable()
    process.join(60)
    assert process.exitcode == 0


def test_the_user_s_own_beginning_is_kept():
    (first, *_) = loader_of(worker_init_fn=begun)
    assert -1 in [index for batch in loader_of(worker_init_fn=begun) for index in batch.tolist()]
    assert len(first) == 2


SCRIPT = """
import multiprocessing, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from integrations.elastic.test_elastic_workers import loader_of, torch
loader, hangs = loader_of(), lambda _: time.sleep(600)
if sys.argv[2] == "its own":
    loader = torch.utils.data.DataLoader(range(9), num_workers=1, worker_init_fn=hangs)
batches = iter(loader)
if sys.argv[2] == "the run's":
    next(batches)
print(multiprocessing.active_children()[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process of its parent's end")
@pytest.mark.parametrize("loader", ["the run's", "its own"])
def test_a_worker_ends_with_its_rank(loader):
    tests = str(elastic.__file__).rsplit("/", 2)[0]
    command = [sys.executable, "-c", SCRIPT, tests, loader]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    worker, until = int(out.stdout), time.monotonic() + 2
    while os.path.exists(f"/proc/{worker}") and time.monotonic() < until:  # noqa: PTH110
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{worker}/exe")  # noqa: PTH110


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process of its parent's end")
@pytest.mark.parametrize(("daemon", "code"), [(True, 1), (False, 0)])
def test_a_worker_whose_rank_ended_before_it_was_tied_ends(monkeypatch, daemon, code):
    monkeypatch.setattr(os, "getppid", lambda: 1)
    process = multiprocessing.get_context("fork").Process(target=int, daemon=daemon)
    process.start()
    process.join(60)
    assert process.exitcode == code


# ---- deaths of workers ----


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(40))


def trained(kills, dataset, *, tokens=None, moment=0.0, **options):
    """Returns the batches and the loop's random numbers of a run with workers killed at some passes."""
    torch.manual_seed(0)
    recipe = {"effective_batch": 8, "lr": 0.1, "optimizer": "sgd", "dataset_size": 40, "duration": "2ep"}
    run, optimizer = ElasticRun(ib.Recipe(**recipe), max_micro_batch=2), None
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler, batches = run.scheduler(optimizer), []
    before = {*multiprocessing.active_children()}
    for step in run.steps(run.loader(dataset, **options), tokens):
        for number, micro in enumerate(step):
            batches.append((micro.batch.tolist(), torch.rand(1).item()))
            if (step.number, number) in kills:
                os.kill(({*multiprocessing.active_children()} - before).pop().pid, signal.SIGKILL)
                time.sleep(moment)
        optimizer.step()
        scheduler.step()
    return batches


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (range(40), {"num_workers": 2, "moment": 0.2}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (range(40), {"num_workers": 2}),
                (range(40), {"num_workers": 2, "persistent_workers": True}),
                (range(40), {"num_workers": 1, "tokens": len}),
                (Stream(), {"num_workers": 1}),
            ]
        ),
    ],
)
def test_a_worker_that_dies_costs_no_batch(dataset, options):
    alone = trained((), dataset, tokens=options.get("tokens"))
    assert trained({(2, 1), (2, 3), (6, 0)}, dataset, **options) == alone


class Deadly(list):
    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_sample_that_ends_each_worker_ends_the_rank():
    with pytest.raises(RuntimeError, match=r"workers died 3 times at a batch of step 4: .*DataLoader worker"):
        trained((), Deadly(range(40)), num_workers=1)


def test_a_worker_s_death_is_not_raised_in_the_midst_of_a_step():
    run = ElasticRun(ib.Recipe(**elastic.RECIPE), max_micro_batch=2)
    before, steps = {*multiprocessing.active_children()}, run.steps(run.loader([*range(70)], num_workers=1))
    next(iter(next(steps)))
    (worker,) = {*multiprocessing.active_children()} - before
    os.kill(worker.pid, signal.SIGKILL)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:  # The signal comes here.
        pass
    assert worker.exitcode == -signal.SIGKILL
    run._loop.free()
    steps.close()
