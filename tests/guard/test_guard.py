"""The guard in a training script of one's own: each mistake where people make it, and its name."""

import contextlib
import dataclasses
import itertools
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the guard needs torch")

import torch
import torch.distributed as dist
from torch.nn.functional import l1_loss, mse_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from guard.runs import run as rank
from guard.runs import unequal_steps, witnesses
from isobatch.equivalence import tensors
from isobatch.guard import Cause, GuardError, gradient, guard, run
from isobatch.guard import optimizer as guard_optimizer
from isobatch.integrations.torch import PlanLR
from plan_of import loop_of


def made_for(ranks, **fields):
    return loop_of(ranks, **{"duration": "2ep", "warmup": "3st", **fields})


def plan(ranks=2, **fields):
    return made_for(ranks, **fields).to_json()


PLAIN = plan()
RAGGED = plan(effective_batch=45, dataset_size=450, split="ragged", micro_batch=None, max_micro_batch=8)
UNEVEN = plan(effective_batch=40, dataset_size=400, split="uneven")


@pytest.fixture
def train(two):
    """Outcomes of two ranks in a loop of `scripts/loop.py`, with a fault injected or none."""

    def outcomes(plan, fault=None, **how):
        return two(rank, "loop", plan, how, fault)

    return outcomes


@pytest.mark.parametrize(
    ("planned", "how"),
    [
        *((PLAIN, how) for how in ({}, {"dropout": 0.5, "norm": True}, {"loss": False}, {"compiled": True})),
        (PLAIN, {"evaluated": True}),  # a validation through the wrapper may leave it in eval mode
        *((PLAIN, {"layers": layers}) for layers in ((1, 1), (0.25, 1), (1, 10), (0, 1))),
        *((planned, {"kind": "unequal"}) for planned in (RAGGED, UNEVEN)),
    ],
)
def test_a_script_that_follows_the_plan_goes_through(train, planned, how):
    outcomes = train(planned, **how)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert (outcomes[0].unchecked == []) == how.get("loss", True)


MISTAKES = {
    "summed loss": (Cause.SUMMED_LOSS, "8×"),
    "no division": (Cause.NOT_DIVIDED, "3×"),
    "scheduler per process": (Cause.SCHEDULER_PER_PROCESS, "2× too fast"),
    "scheduler per micro batch": (Cause.SCHEDULER_PER_MICRO_BATCH, "3× too fast"),
}
"""Faults that a healthy part might hide; `faults.py` has them all."""


def named(error, cause, detail=""):
    """Whether an error names this cause first, with this detail in its words."""
    assert error is not None, "went through"
    assert error.cause is cause, str(error)
    assert detail in error.diagnosis
    return True


def test_unequal_ranks_with_a_mean_loss_are_named(train):
    for error, *_ in train(RAGGED, kind="unequal", mistake="uneven mean"):
        assert error.cause is Cause.UNEVEN_MEAN
        assert "plan.loss_weights(rank)" in error.advice


def test_another_world_size_is_named(train):
    for error, *_ in train(plan(effective_batch=96, ranks=4)):
        assert (error.cause, error.step) == (Cause.ANOTHER_WORLD_SIZE, 0)


@pytest.mark.parametrize("mistake", [None, "summed loss", "no division"])
@pytest.mark.parametrize("bound", [1e-3, 0.02, 1e-7, None])
def test_clipping_is_healthy_and_hides_nothing(train, mistake, bound):
    """By the norm, or by value with a bound."""
    for error, unchecked, _ in train(
        plan(clip_norm=0.01 if bound is None else None), mistake, clip_value=bound
    ):
        assert unchecked == []
        assert error is None if mistake is None else named(error, *MISTAKES[mistake])


def test_groups_that_are_all_off_alike_are_named_as_one_would_be(train):
    for error, *_ in train(PLAIN, "lr times ranks", layers=(1, 1)):
        assert named(error, Cause.ANOTHER_LR, "2× the plan's")
        assert error.ranks == ()


@pytest.mark.parametrize("layers", [(0.25, 1), (1, 3)])
@pytest.mark.parametrize(
    ("mistake", "cause"),
    [
        ("lr times ranks", (Cause.ANOTHER_LR, "no parameter group has the plan's")),
        ("scheduler per process", MISTAKES["scheduler per process"]),
        ("scheduler per micro batch", MISTAKES["scheduler per micro batch"]),
    ],
)
def test_factors_of_groups_hide_no_mistake(train, mistake, cause, layers):
    for error, *_ in train(PLAIN, mistake, layers=layers):
        assert named(error, *cause)
        assert error.step <= 1


def small(**fields):
    """A plan of one process, eight samples a step, without warmup."""
    known = {"effective_batch": 8, "warmup": "0st", "dataset_size": None, "schedule": "constant"}
    return made_for(1, **{**known, **fields})


def linear(inputs=2, outputs=1, lr=0.1):
    """A model and its optimizer."""
    model = torch.nn.Linear(inputs, outputs)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def step(model, optimizer, x=None):
    """A step on a batch."""
    model(torch.ones(8, 2) if x is None else x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def alone(lr, set_rate=None, steps=70):
    """A loop of one process under guard. `set_rate` may spoil its learning rate before a step."""
    planned = made_for(1, effective_batch=8, duration="100st", dataset_size=None)
    model, optimizer = linear(lr=lr)
    scheduler = PlanLR(optimizer, planned)
    guard(planned).attach(model, optimizer)
    for step in range(steps):
        if set_rate is not None:
            set_rate(step, optimizer.param_groups[0])
        model(torch.ones(8, 2)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def test_a_learning_rate_in_a_tensor_is_as_exact_as_its_format():
    alone(torch.tensor(0.1))
    with pytest.raises(GuardError, match="another learning rate"):
        alone(torch.tensor(0.1), lambda step, group: group["lr"].mul_(1 + 1e-5) if step == 66 else None)


def test_a_learning_rate_on_a_gpu_is_read_at_every_16th_step(monkeypatch):
    monkeypatch.setattr(guard_optimizer, "waits", lambda rate: isinstance(rate, torch.Tensor))
    read = []

    class Rate(torch.Tensor):
        def __float__(self):
            read.append(True)
            return super().__float__()

    rate = torch.tensor(0.1).as_subclass(Rate)
    with pytest.raises(GuardError, match="another learning rate") as caught:
        alone(rate, lambda step, group: group["lr"].mul_(1.01) if step >= 33 else None)
    assert caught.value.step == 48
    by_the_scheduler = 49
    assert len(read) - by_the_scheduler < 24


@pytest.mark.filterwarnings("ignore:isobatch guard. the gradient is not clipped")
def test_the_guard_makes_nothing_as_large_as_a_parameter_but_the_reference():
    """In double precision each would be twice the largest parameter, perhaps without room in the step."""

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.dtype is torch.float64:
                self.elements = max(self.elements, result.numel())
            return result

    planned = small(duration="2st", clip_norm=0.5, dataset_size=16)
    model = torch.nn.Embedding(tensors.ELEMENTS // 2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.arange(16), 8)
    watch = guard(planned, lambda m, b: m(b).square().mean()).attach(model, optimizer, loader)
    with Largest() as largest:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
    assert watch.unchecked == []
    assert 0 < largest.elements <= tensors.ELEMENTS


@pytest.mark.parametrize("at", [0, 20, 66])
def test_a_learning_rate_that_is_no_number_is_seen_at_once(at):
    def spoil(step, group):
        if step == at:
            group["lr"] = float("nan")

    with pytest.raises(GuardError, match="learning rate nan") as caught:
        alone(0.1, spoil)
    assert caught.value.step == at


def test_a_sparse_gradient_may_be_the_one_that_is_kept():
    planned = small(duration="100st")
    model = torch.nn.Sequential(torch.nn.Embedding(9, 2, sparse=True), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard(planned).attach(model, optimizer)
    with pytest.raises(GuardError, match=r"gradient of rank 0 at step 19 is not finite"):
        for step in range(40):
            loss = model(torch.arange(8)).mean()
            (loss * torch.nan if step == 19 else loss).backward()
            optimizer.step()
            optimizer.zero_grad()


class Loader(DataLoader):
    pass


def test_a_loader_stays_the_object_that_it_was():
    """Its class and its attributes, under guard and afterwards; set_epoch may be called by name."""
    data = TensorDataset(torch.randn(16, 2))
    sampler = DistributedSampler(data, 1, 0)
    loader = Loader(data, 8, sampler=sampler)
    kinds = [Loader, DistributedSampler, torch.utils.data.BatchSampler]
    model, optimizer = linear()
    watch = guard(small(dataset_size=16)).attach(model, optimizer, loader)
    second = guard(small(dataset_size=16)).attach(*linear(), loader)
    for epoch in range(2):
        assert [type(value) for value in (loader, sampler, loader.batch_sampler)] == kinds
        assert len(list(Loader(data, 4))) == 4  # another loader goes its own way
        assert len(pickle.loads(pickle.dumps(loader))) == len(loader) == 2
        sampler.set_epoch(epoch=epoch)
        for (x,) in loader:
            step(model, optimizer, x)
    assert watch.run.step == watch.watch.served == second.watch.served == 4
    watch.finish()
    assert "__iter__" in vars(Loader)
    second.finish()
    assert [type(value) for value in (loader, sampler, loader.batch_sampler)] == kinds
    assert "__iter__" not in vars(Loader)


def test_the_error_says_what_it_is_about_and_crosses_processes():
    error = pickle.loads(pickle.dumps(GuardError(4, Cause.OTHER_WEIGHTS.likely("rank 1"), "seen", (1,))))
    assert (error.step, error.cause, error.text, error.ranks) == (4, Cause.OTHER_WEIGHTS, "seen", (1,))
    assert error.diagnosis == "weights differ between ranks (rank 1)"
    assert str(error).startswith(f"isobatch guard, before step 4: seen → {error.diagnosis}. Seed every rank")


def test_ranks_with_one_seed_draw_the_same_samples(train):
    for error, *_ in train(PLAIN, kind="by weights", mistake="one seed"):
        assert named(error, Cause.SAME_DATA)


def test_ranks_with_one_seed_draw_the_same_noise(train):
    for kind, noted in ("flow", True), ("", False):
        for error, _, notes in train(PLAIN, kind=kind, mistake="one seed", dropout=0.3):
            assert error is None
            assert [note.partition(" for ")[0] for note in notes] == [
                "all ranks draw the same random numbers"
            ] * noted


def test_another_warmup_inside_the_optimizer_is_named(train):
    for error, *_ in train(plan(schedule="constant"), kind="warms up", mistake="another warmup"):
        assert named(error, Cause.ANOTHER_LR, "another warmup")


def test_a_rate_of_the_optimizers_own_is_unchecked():
    model, optimizer = linear()
    optimizer.param_groups[0]["lr"] = None  # as transformers' Adafactor has it
    watch = guard(small(duration="2st")).attach(model, optimizer)
    assert "the learning rate: the optimizer sets a relative one itself" in watch.unchecked


def test_clipping_with_a_parameter_that_nobody_clears_is_no_other_bound(train):
    for error, _, notes in train(plan(clip_norm=0.05), kind="untrained"):
        assert error is None
        assert [note.split()[0] for note in notes] == ["1"]


def test_ranks_are_named_by_a_majority_only(train):
    assert tensors.differing([1, 0, 0]) == [0]
    for error, *_ in train(PLAIN, "other weights of rank 0"):
        assert error.ranks == ()
        assert "rank 1" not in str(error)
        assert named(error, Cause.OTHER_WEIGHTS, "they differ")


def test_a_model_compiled_in_place_is_watched_from_outside():
    model, optimizer = linear(3, 2)
    model.compile(backend="eager", fullgraph=True)  # any hook in the graph would be an error
    compiled = model._compiled_call_impl
    planned = small(dataset_size=64, micro_batch=4)
    loader = DataLoader(PAIRS, 4, shuffle=True)
    watch = guard(planned, mean_loss).attach(model, optimizer, loader)
    for _ in range(2):
        for index, batch in enumerate(loader, 1):
            (mean_loss(model, batch) / 2).backward()
            if index % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    watch.finish()
    assert watch.unchecked == []
    assert model._compiled_call_impl is compiled


def test_an_error_takes_the_guard_out_of_the_script():
    loader, (model, optimizer) = Loader(TensorDataset(torch.randn(16, 2)), 8), linear(lr=0.3)
    guard(small(dataset_size=16)).attach(model, optimizer, loader)
    assert "__iter__" in vars(Loader)
    with pytest.raises(GuardError):
        step(model, optimizer)
    assert "__iter__" not in vars(Loader)
    step(model, optimizer)


def test_catching_the_error_needs_no_torch():
    program = "import sys; from isobatch.guard import GuardError; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_unguardable_loops_are_refused():
    with pytest.raises(ib.InputError, match="infeasible"):
        guard(made_for(1000))
    planned = made_for(1, effective_batch=8)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ib.InputError, match="list cannot be watched"):
        guard(planned).attach(model, [])
    with pytest.raises(ib.InputError, match="tuple cannot be watched"):
        guard(planned).attach(model, torch.optim.SGD(model.parameters(), lr=0.1), ())


def test_samples_whose_ids_are_no_numbers_are_counted():
    class Sized(torch.utils.data.Dataset):
        """Ids are (index, size), as where images of several sizes are cropped."""

        def __len__(self):
            return 16

        def __getitem__(self, at):
            return torch.randn(2)

    class Batches(list):
        pass

    def run(size):
        batches = Batches([(index, 224) for index in range(start, start + size)] for start in (0, 8))
        loader = DataLoader(Sized(), batch_sampler=batches)
        model, optimizer = linear()
        watch = guard(small(dataset_size=16)).attach(model, optimizer, loader)
        for _epoch in range(2):
            for batch in loader:
                step(model, optimizer, batch)
        watch.finish()
        return watch

    watch = run(8)
    assert watch.notes == []
    assert "which samples: the sampler's ids are not whole numbers, such as (0, 224)" in watch.unchecked
    with pytest.raises(GuardError, match=r"micro-batches of \[7\] samples"):
        run(7)


def test_ranks_that_take_different_numbers_of_steps_are_named(two):
    for error in two(unequal_steps, PLAIN):
        assert (error.cause, error.ranks) == (Cause.UNEQUAL_STEPS, ())
        assert "0 at weights, 1 at weights" in error.text


PAIRS = TensorDataset(torch.randn(64, 3), torch.randn(64, 2))


def mean_loss(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def fit(planned, loss, every=None, reference=mean_loss, weight=None, loader=None, epochs=1):
    """One process under guard, with a step after `every` micro-batches."""
    torch.manual_seed(0)
    model, optimizer = linear(3, 2, planned.lr)
    if loader is None:
        loader = DataLoader(PAIRS, planned.micro_batch, shuffle=True)
    watch = guard(planned, reference, weight).attach(model, optimizer, loader)
    for _ in range(epochs):
        for index, batch in enumerate(loader, 1):
            (loss(model, batch) / planned.accumulation).backward()
            if index % (every or planned.accumulation) == 0:
                optimizer.step()
                optimizer.zero_grad()
    return watch


SMALL = small(effective_batch=16, dataset_size=64, micro_batch=4)


def test_another_loss_than_the_reference_is_named():
    with pytest.raises(GuardError) as caught:
        fit(SMALL, lambda m, b: l1_loss(m(b[0]), b[1]))
    assert caught.value.cause is Cause.ANOTHER_LOSS
    assert Cause.ANOTHER_SAMPLES.text in caught.value.diagnosis


@pytest.mark.parametrize("divided", [True, False])
def test_a_batch_may_be_a_dataclass(divided):
    @dataclasses.dataclass
    class Pair:
        x: torch.Tensor
        y: torch.Tensor

    def paired(rows):
        return Pair(*(torch.stack(column) for column in zip(*rows, strict=True)))

    def loss(model, batch):
        return mse_loss(model(batch.x), batch.y)

    loader = DataLoader(PAIRS, SMALL.micro_batch, shuffle=True, collate_fn=paired)
    if divided:
        assert fit(SMALL, loss, reference=loss, loader=loader).unchecked == []
        return
    with pytest.raises(GuardError, match="× accumulation"):
        fit(SMALL, lambda m, b: 4 * loss(m, b), reference=loss, loader=loader)


@pytest.mark.parametrize("fault", [None, "a mean of means"])
def test_batches_of_varying_sizes_are_compared_by_their_weight(fault):
    class Batches(list):
        pass

    batches = Batches([3 * at, 3 * at + 1, 3 * at + 2] if at % 2 else list(range(5)) for at in range(8))
    planned = small(effective_batch=8, micro_batch=4, duration="4st")

    def loss(model, batch):
        return mean_loss(model, batch) * (1 if fault else len(batch[0]) / 4)

    loader = DataLoader(PAIRS, batch_sampler=batches)
    expected = pytest.raises(GuardError, match="mean of passes' means") if fault else contextlib.nullcontext()
    with pytest.warns(UserWarning, match=r"micro-batches of \[5, 3\]"), expected:
        assert fit(planned, loss, weight=lambda b: len(b[0]), loader=loader).unchecked == []


def test_an_epoch_that_is_kept_and_repeated_is_named():
    """itertools.cycle keeps the batches of the first epoch: none is shuffled anew."""
    model, optimizer = linear(3, 2)
    planned = small(dataset_size=32)
    loader = DataLoader(TensorDataset(torch.randn(32, 3)), 8, shuffle=True)
    guard(planned).attach(model, optimizer, loader)
    with pytest.raises(GuardError, match="itertools.cycle") as caught:
        for (x,) in itertools.cycle(loader):
            step(model, optimizer, x)
    assert (caught.value.cause, caught.value.step) == (Cause.SAMPLES_REPEATED, 4)


def test_a_mean_over_each_micro_batchs_own_units_is_named():
    def units(batch):
        return float((batch[1] > 0).sum())

    def loss(model, batch):
        counted = batch[1] > 0
        return (model(batch[0]) - batch[1]).square()[counted].mean()

    with pytest.raises(GuardError) as caught:
        fit(SMALL, loss, reference=loss, weight=units)
    assert caught.value.cause is Cause.OWN_UNITS


def test_steps_that_a_scaler_may_have_skipped_are_named():
    with pytest.raises(GuardError) as caught:
        fit(SMALL, mean_loss, every=8)
    assert caught.value.cause is Cause.ANOTHER_ACCUMULATION
    assert Cause.SKIPPED_STEPS.text in caught.value.diagnosis


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_loader_over_an_iterable_dataset_is_watched(batch_size):
    """A batch's samples are unknown; the gradient's size is compared all the same."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            for _ in range(32 // (4 if batch_size is None else 1)):
                size = (4,) if batch_size is None else ()
                yield torch.randn(*size, 3), torch.randn(*size, 2)

    def run(factor):
        planned, loader = small(dataset_size=32, micro_batch=4), DataLoader(Stream(), batch_size)
        watch = fit(planned, lambda m, b: factor * mean_loss(m, b), loader=loader, epochs=2)
        watch.finish()
        return watch.unchecked

    assert run(1) == ["the samples: no loader over a dataset with ids was given"]
    with pytest.raises(GuardError) as caught:
        run(2)
    assert caught.value.cause is Cause.NOT_DIVIDED


@pytest.mark.parametrize("kind", ["noisy", "mixed"])
def test_batches_that_are_changed_on_the_way_have_no_reference(train, kind):
    for error, unchecked, _ in train(PLAIN, kind=kind):
        assert error is None
        assert unchecked == ["the gradient's size: the script changes the batches between loader and model"]


@pytest.mark.parametrize(("seeing", "named_ranks"), [([0], [0]), ([1], [1]), ([0, 1], [])])
def test_a_fault_seen_by_some_ranks_names_them(two, seeing, named_ranks):
    answers = two(witnesses, PLAIN, seeing)
    assert [answers[rank] for rank in seeing] == [named_ranks] * len(seeing)


UNLOADED = plan(dataset_size=None, duration="8st")


def test_a_run_that_ends_early_is_noted(train):
    for error, _, notes in train(UNLOADED, kind="drawn", loss=False, steps=6):
        assert (error, notes) == (None, ["the run ends after 6 of 8 planned optimizer steps"])


def test_a_loss_without_a_loader_is_noted_as_a_warning():
    watch = guard(made_for(1, effective_batch=8), lambda m, x: m(x).mean())
    with pytest.warns(UserWarning, match="isobatch guard: a loss was given and no loader"):
        watch.attach(*linear())
    assert len(watch.notes) == 1


@pytest.mark.parametrize("copied", [True, False])
def test_an_optimizer_may_have_its_own_copies_of_the_parameters(copied):
    """In another precision, say; then it is given gradients before it steps."""
    model = torch.nn.Linear(2, 1)
    masters = [torch.nn.Parameter(p.detach().double()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    planned = small(duration="1st")
    watch = guard(planned).attach(model, optimizer)
    model(torch.ones(8, 2)).mean().backward()
    if not copied:
        with pytest.raises(GuardError) as caught:
            optimizer.step()
        assert caught.value.cause is Cause.OPTIMIZER_PARAMETERS
        return
    for own, p in zip(masters, model.parameters(), strict=True):
        own.grad = p.grad.double()
    optimizer.step()
    watch.finish()


def two_layers(planned, makers=(), steps=4):
    """A loop of two layers: the attached optimizer has the first, `makers` make optimizers of the second."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=planned.lr)]
    optimizers += [make_optimizer(model[1].parameters()) for make_optimizer in makers]
    scheduler = PlanLR(optimizers[0], planned)
    watch = guard(planned).attach(model, optimizers[0])
    for _ in range(steps):
        model(torch.ones(8, 2)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        scheduler.step()
    return watch


DECAYING = small(duration="4st", schedule="linear")


def test_parameters_that_are_in_no_optimizer_are_noted():
    with pytest.warns(
        UserWarning, match=r"2 of the model's 4 parameters .* no optimizer .* such as 1.weight"
    ):
        two_layers(DECAYING)


def test_a_second_optimizer_follows_the_plan_as_a_group_would():
    watch = two_layers(small(duration="4st"), [lambda params: torch.optim.AdamW(params, lr=0.3)])
    watch.finish()
    assert watch.notes == []
    with pytest.raises(GuardError) as caught:
        two_layers(DECAYING, [lambda params: torch.optim.SGD(params, lr=0.1)])
    assert (caught.value.cause, caught.value.step) == (Cause.GROUP_STRAYS, 2)


def test_an_optimizer_that_never_steps_is_named_in_the_end():
    model, optimizer = linear()
    watch = guard(small(duration="4st")).attach(model, optimizer)
    model(torch.ones(8, 2)).mean().backward()
    with pytest.raises(GuardError, match="1 micro-batches without a step") as caught:
        watch.finish()
    assert caught.value.cause is Cause.NO_STEP


@pytest.mark.filterwarnings("ignore:isobatch guard")
def test_a_plan_of_one_step_is_followed_to_its_end():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard(small(duration="1st")).attach(model, optimizer)
    with pytest.raises(GuardError, match="two more optimizer steps, 1 planned"):
        for _ in range(3):
            step(model, optimizer)


@pytest.mark.parametrize(("decay", "stopped"), [(0.1, True), (0.0, False)])
def test_another_optimizer_is_named_where_it_is_another(decay, stopped):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=decay)
    guard(small(duration="2st", optimizer="adamw")).attach(model, optimizer)
    expected = pytest.raises(GuardError, match="the optimizer is Adam, adamw planned")
    with expected if stopped else contextlib.nullcontext():
        step(model, optimizer)


def test_settings_without_a_field_in_the_recipe_are_unchecked():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, maximize=True)
    watch = guard(small(duration="2st")).attach(model, optimizer)
    step(model, optimizer)
    assert watch.unchecked[-1].endswith("has no field for: maximize=True, nesterov=True")


@pytest.mark.parametrize("inside", [True, False])
def test_an_optimizer_may_clip_by_itself(inside):
    model, optimizer = linear()
    if inside:
        optimizer.param_groups[0]["max_grad_norm"] = 0.1  # as LAMB has it
    planned = small(duration="2st", clip_norm=0.1)
    guard(planned).attach(model, optimizer)
    expected = pytest.raises(GuardError, match="norm is 1.732 when the optimizer steps, 0.1 planned")
    with contextlib.nullcontext() if inside else expected:
        step(model, optimizer)


@pytest.mark.parametrize("minutes", [7, 90])
def test_the_guard_waits_as_long_as_the_training(minutes):
    """A rank saves a checkpoint and keeps the others waiting: only the training knows for how long."""
    limit = timedelta(minutes=minutes)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
    try:
        assert run._patience(None) == run._patience(dist.group.WORLD) == limit
    finally:
        dist.destroy_process_group()


def test_without_room_for_another_gradient_it_is_unchecked(monkeypatch):
    needs = []
    monkeypatch.setattr(gradient, "has_room", lambda device, needed: needs.append(needed))
    watch = fit(SMALL, lambda m, b: 3 * mean_loss(m, b))  # too large, which nobody can look at
    assert needs[-1] == 2 * 4 * 8 + 5 * 8 * 6  # two more gradients of eight float32, and pieces of the larger
    assert watch.unchecked == ["the gradient's size: no room for another gradient on the GPU"]


PAGE = (Path(__file__).parents[2] / "docs" / "guard.md").read_text(encoding="utf-8")


def test_the_page_names_every_attribute_of_the_error():
    attributes = vars(GuardError(0, Cause.NO_STEP, ""))
    assert [name for name in attributes if name[0] != "_" and f"`{name}`" not in PAGE] == []
