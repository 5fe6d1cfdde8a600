"""Common faults, put into a script from outside: another plan than the guard's, or another behaviour of
torch.

A wrong line in the script would have the same effect. The scripts stay as they are."""

import contextlib
import itertools
import sys
import types
from functools import partial
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import isobatch as ib
from guard.scripts import parts

LATER = 3  # optimizer steps before a fault that comes later
OPTIMIZERS = torch.optim.AdamW, torch.optim.SGD


class Place:
    """Where a fault is put: the script's module, the plan, this rank, the optimizer steps done and what the
    script made.
    """

    def __init__(self, plan, script):
        self.plan, self.module = plan, sys.modules[f"guard.scripts.{script}"]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.stack, self.steps, self.backwards = contextlib.ExitStack(), 0, 0
        self.schedulers, self.optimizers = [], []
        for kind in OPTIMIZERS:
            kind([nn.Parameter(torch.zeros(1))], lr=0.1)  # with its first instance, a kind gets torch's hooks

    def put(self, thing, name, new):
        """In place of an attribute, until the script ends."""
        self.stack.enter_context(mock.patch.object(thing, name, new, create=True))

    def around(self, thing, name, wrap):
        """`wrap(own, *args)` in place of a method."""
        own = getattr(thing, name)

        def called(*args, **kwargs):
            # The guard's own calls are as they are.
            if sys._getframe(1).f_globals["__name__"].startswith("isobatch."):
                return own(*args, **kwargs)
            return wrap(own, *args, **kwargs)

        self.put(thing, name, called)

    def after(self, kind, then):
        """`then(thing)` for each object of a kind in the script."""
        own = kind.__init__

        def made(thing, *args, **kwargs):
            own(thing, *args, **kwargs)
            then(thing)

        self.put(kind, "__init__", made)

    def count(self):
        """Notes optimizers, schedulers, optimizer steps and backwards."""
        for kind in OPTIMIZERS:
            self.after(kind, self.optimizers.append)
        self.after(torch.optim.lr_scheduler.LambdaLR, self.schedulers.append)

        def stepped(*_):
            self.steps += 1

        handle = register_optimizer_step_post_hook(stepped)
        self.stack.callback(handle.remove)

        def backward(own, *args, **kwargs):
            own(*args, **kwargs)
            self.backwards += 1

        self.around(Tensor, "backward", backward)


@contextlib.contextmanager
def injected(fault, plan, script):
    """Gives the script's plan."""
    place = Place(plan, script)
    with place.stack:
        place.count()
        yield FAULTS[fault](place) or plan


FAULTS = {}


def fault(function):
    """A fault's name is its function's, with spaces."""
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


# The loss.


def _units(place):
    """A micro-batch's samples; in a Trainer, its labels."""
    return place.plan.micro_batch * (place.module.BLOCK - 1 if hasattr(place.module, "hf") else 1)


FACTORS = {
    "no division": lambda place: place.plan.accumulation,
    "divided twice": lambda place: 1 / place.plan.accumulation,
    "divided by ranks": lambda place: 1 / place.world,
    "a factor on the loss": lambda _: 1.7,
    "summed loss": _units,
    "nan on a rank": lambda place: torch.nan if place.rank else 1.0,
    "nan later": lambda place: torch.nan if place.rank and place.steps >= LATER else 1.0,
}


def _times(factor):
    def wrap(place):
        place.around(Tensor, "backward", lambda own, self, *a, **k: own(self * factor(place), *a, **k))

    return wrap


FAULTS.update({name: _times(factor) for name, factor in FACTORS.items()})


@fault
def own_labels_only(place):
    """Another loss than the guard's: of five times the first label."""

    def loss(own, loop, model, batch):
        return own(loop, model, [batch[0], batch[1] * torch.tensor([5.0, 1.0])])

    place.around(place.module.Loop, "loss_of", loss)


# Faults of the averaging over ranks.


def _summing(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda future: future.value()[0])


@fault
def backward_outside(place):
    """The forward in no_sync, the backward outside."""
    own = DDP.forward

    def quiet(self, *args, **kwargs):
        with self.no_sync():
            return own(self, *args, **kwargs)

    place.put(DDP, "forward", quiet)


@fault
def never_synchronized(place):
    place.put(DDP, "require_backward_grad_sync", property(lambda _: False, lambda *_: None))


class Bare(nn.Module):
    """In DDP's place, where it was forgotten."""

    def __init__(self, module, **_):
        super().__init__()
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.data, 0)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        return contextlib.nullcontext()


@fault
def not_wrapped(place):
    name = next(
        name for name in ("DistributedDataParallel", "DDP", "NativeDDP") if name in vars(place.module)
    )
    place.put(place.module, name, Bare)


# Gradients and steps.


def zeroed(place):
    for optimizer in place.optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = None


def _cleared(*, before):
    """Clears the gradients before or after each backward."""

    def put(place):
        def backward(own, *args, **kwargs):
            if before:
                zeroed(place)
            own(*args, **kwargs)
            if not before:
                zeroed(place)

        place.around(Tensor, "backward", backward)

    return put


FAULTS["zero grad in each micro batch"] = _cleared(before=True)
FAULTS["zero grad before the step"] = _cleared(before=False)


def on_step(place, wrap):
    """`wrap(step)` in place of each optimizer's."""
    for kind in OPTIMIZERS:
        own = kind.step

        def step(self, *args, _own=own, **kwargs):
            return wrap(lambda: _own(self, *args, **kwargs))

        step.hooked = True  # torch puts its hooks around, once
        place.put(kind, "step", step)


@fault
def a_skipped_step(place):
    skipped = []

    def step(own):
        if place.steps == 2 and not skipped:
            skipped.append(True)
        else:
            own()

    on_step(place, step)


@fault
def eval_mode_kept(place):
    own = nn.Module.train

    def train(self, mode=True):
        return own(self, False) if mode and place.steps else own(self, mode)

    place.put(nn.Module, "train", train)


# Weights.


def _written_on(rank):
    """One rank's weights are other ones."""

    def put(place):
        def write(ddp):
            if place.rank == rank:
                with torch.no_grad():
                    next(ddp.parameters()).flatten()[0] += 1e-3

        place.after(DDP, write)

    return put


FAULTS["other weights"] = _written_on(1)
FAULTS["other weights of rank 0"] = _written_on(0)


@fault
def weights_part_later(place):
    """One rank alone loads a checkpoint, or an average of the weights."""

    def step(own):
        own()
        if place.rank and place.steps == LATER:
            with torch.no_grad():
                place.optimizers[0].param_groups[0]["params"][0].mul_(1.01)

    on_step(place, step)


# The learning rate.


@fault
def a_group_strays(place):
    def step(own):
        if place.steps >= LATER:
            place.optimizers[-1].param_groups[-1]["lr"] = 1e-5
        own()

    on_step(place, step)


def scheduled(place, wrap):
    """`wrap(scheduler, step)` in place of each step of the script's schedulers, but the first."""
    own = LRScheduler.step

    def step(self, *args, **kwargs):
        if self not in place.schedulers:
            return own(self, *args, **kwargs)
        return wrap(self, lambda: own(self, *args, **kwargs))

    place.put(LRScheduler, "step", step)
    return own


@fault
def scheduler_per_process(place):
    def several(_, step):
        for _ in range(place.world):
            step()

    scheduled(place, several)


@fault
def scheduler_too_early(place):
    own, ahead = LRScheduler.step, set()

    def step(kind_step):
        for scheduler in place.schedulers:
            if id(scheduler) not in ahead:
                ahead.add(id(scheduler))
                own(scheduler)
        kind_step()

    on_step(place, step)


@fault
def scheduler_per_micro_batch(place):
    own = scheduled(place, lambda *_: None)

    def backward(kind_backward, *args, **kwargs):
        kind_backward(*args, **kwargs)
        for scheduler in place.schedulers:
            own(scheduler)

    place.around(Tensor, "backward", backward)


@fault
def clipped_in_each_pass(place):
    def backward(own, *args, **kwargs):
        own(*args, **kwargs)
        nn.utils.clip_grad_norm_(place.optimizers[-1].param_groups[0]["params"], place.plan.recipe.clip_norm)

    place.around(Tensor, "backward", backward)


@fault
def clipped_before_the_averaging(place):
    def clipped(own, params, bound, **kwargs):
        params = list(params)
        own(params, bound, **kwargs)
        for param in params:
            dist.all_reduce(param.grad)
            param.grad /= place.world

    place.around(nn.utils, "clip_grad_norm_", clipped)
    place.put(DDP, "forward", lambda self, *args, **kwargs: self.module(*args, **kwargs))


@fault
def scheduler_in_epochs_at_every_step(place):
    def step(own):
        own()
        for scheduler in schedulers:
            scheduler.step()

    schedulers = []
    place.after(torch.optim.lr_scheduler.StepLR, schedulers.append)
    on_step(place, step)


# Another plan than the guard's.


def _batch(plan, accumulation):
    return plan.effective_batch // plan.accumulation * accumulation


OTHER_FIELDS = {
    "another lr": lambda plan: {"lr": 1.5 * plan.recipe.lr},
    "lr times ranks": lambda plan: {"lr": plan.data_parallel * plan.recipe.lr},
    "another warmup": lambda _: {"warmup": "5st"},
    "another schedule": lambda _: {"schedule": "linear"},
    "another end": lambda plan: {"min_lr": plan.recipe.lr / 2},
    "another momentum": lambda _: {"momentum": 0.5},
    "another weight decay": lambda _: {"weight_decay": 0.3},
    "another micro batch": lambda plan: {
        "micro_batch": plan.micro_batch // 2,
        "effective_batch": plan.effective_batch // 2,
        "max_micro_batch": plan.micro_batch // 2,
    },
    "every micro batch a step": lambda plan: {"effective_batch": _batch(plan, 1)},
    "one micro batch more": lambda plan: {"effective_batch": _batch(plan, plan.accumulation + 1)},
    "a longer run": lambda _: {"duration": "14st"},
    "a run of another length": lambda plan: {"duration": "1ep", "warmup": plan.recipe.warmup},
    "drop last": lambda _: {"drop_last": True},
    "padded": lambda _: {"drop_last": False},
    "another dataset": lambda plan: {"dataset_size": plan.recipe.dataset_size // 2},
}


def _other(fields_of):
    """The plan of another recipe, on the same ranks."""

    def another_plan(place):
        fields = fields_of(place.plan)
        settings = {name: fields.pop(name) for name in ("max_micro_batch",) if name in fields}
        recipe = msgspec.structs.replace(place.plan.recipe, **fields)
        return ib.plan(recipe, place.plan.data_parallel, **settings)

    return another_plan


FAULTS.update({name: _other(fields) for name, fields in OTHER_FIELDS.items()})


# Arguments, and methods that do nothing.


def _patch(thing_of, name, new):
    """`new(own)` in place of an attribute of `thing_of(place)`."""

    def put(place):
        thing = thing_of(place)
        place.put(thing, name, new(getattr(thing, name)))

    return put


def _no_zero_grad(place):
    for kind in (Optimizer, nn.Module):
        place.put(kind, "zero_grad", lambda *_, **__: None)


def _made_with(kind, change):
    """`change(place, arguments)` of a constructor: its positional ones after self, then a dict."""

    def put(place):
        own = kind.__init__

        def made(self, *args, **kwargs):
            args, kwargs = change(place, args, kwargs)
            own(self, *args, **kwargs)

        place.put(kind, "__init__", made)

    return put


def _stretched(factor):
    """The shape of a LambdaLR, run through faster or slower."""

    def change(place, args, kwargs):
        optimizer, shape, *rest = args
        return (optimizer, lambda step: shape(step * factor(place)), *rest), kwargs

    return _made_with(torch.optim.lr_scheduler.LambdaLR, change)


@fault
def optimizer_of_another_model(place):
    """Made before the parameters are made anew."""

    def copied(_, args, kwargs):
        groups = [g if isinstance(g, dict) else {"params": [g]} for g in args[0]]
        copies = [{**g, "params": [nn.Parameter(p.detach().clone()) for p in g["params"]]} for g in groups]
        return (copies, *args[1:]), kwargs

    for kind in OPTIMIZERS:
        _made_with(kind, copied)(place)


def _every_second(own):
    """Draws with replacement."""

    def again(self):
        order = list(own(self))
        return iter([order[at // 2 * 2] for at in range(len(order))])

    return again


FAULTS.update(
    {
        "samples repeated": _patch(lambda _: DistributedSampler, "__iter__", _every_second),
        # The loop breaks: a stop by a criterion of its own, or range(steps) with too few of them.
        "an epoch ends early": _patch(
            lambda _: DataLoader,
            "__iter__",
            lambda own: lambda self: itertools.islice(own(self), len(self) - 2),
        ),
        # No step at an epoch's end: its last micro-batches come into the next epoch's first step.
        "the tail is carried": _patch(
            lambda _: DataLoader, "__len__", lambda own: lambda self: own(self) * 99
        ),
        # T_max = len(loader) · epochs, and the warmup likewise.
        "lengths in micro batches": _stretched(lambda place: 1 / place.plan.accumulation),
        # Prepared by Accelerate, without the lengths times W.
        "no scaling of a scheduler": _stretched(lambda place: place.world),
        "num replicas 1": _made_with(
            DistributedSampler, lambda _, args, kwargs: (args[:1], {**kwargs, "num_replicas": 1, "rank": 0})
        ),
        "another seed": _made_with(
            DistributedSampler, lambda place, args, kwargs: (args, {**kwargs, "seed": place.rank})
        ),
        "summed reference": _patch(
            lambda place: place.module, "mse_loss", lambda own: lambda x, y: own(x, y, reduction="sum")
        ),
        "wrapper bypassed": lambda place: place.put(
            DDP, "__call__", lambda self, *a, **k: nn.Module.__call__(self.module, *a, **k)
        ),
        "no zero grad": _no_zero_grad,
        "not clipped": _patch(
            lambda _: nn.utils, "clip_grad_norm_", lambda _: lambda *_, **__: torch.tensor(0.0)
        ),
        "clipped to another norm": _patch(
            lambda _: nn.utils, "clip_grad_norm_", lambda own: lambda p, bound, **k: own(p, bound / 3, **k)
        ),
        "stepped twice": lambda place: on_step(place, lambda own: (own(), own())[1]),
        "the same seed": _patch(lambda _: torch, "manual_seed", lambda own: lambda _: own(1337)),
        "workers share the stream": _patch(lambda _: parts, "get_worker_info", lambda _: lambda: None),
        "each rank its own tokens": _patch(
            lambda place: place.module.hf,
            "TrainingArguments",
            lambda own: lambda *a, **k: own(*a, **k, average_tokens_across_devices=False),
        ),
        "scheduler never": lambda place: scheduled(place, lambda *_: None) and None,
        "missing set epoch": lambda place: place.put(DistributedSampler, "set_epoch", lambda *_: None),
        "summed over ranks": lambda place: place.after(
            DDP, lambda ddp: ddp.register_comm_hook(None, _summing)
        ),
    }
)


# Data.


class Everything(RandomSampler):
    """All samples for each rank, in one order."""

    def __init__(self, data, **_):
        super().__init__(data, generator=torch.Generator().manual_seed(3))

    def set_epoch(self, epoch):
        self.generator.manual_seed(epoch)


def _unmarked(place, then=lambda _: None):
    """A model ignoring num_items_in_batch is not marked; `then` puts a second fault beside it."""

    def unmarked(_, args, kwargs):
        vars(kwargs["model"]).pop("accepts_loss_kwargs")
        return args, kwargs

    _made_with(place.module.hf.Trainer, unmarked)(place)
    then(place)


FAULTS["the trainer multiplies"] = _unmarked
for name, factor in (
    ("no division", FACTORS["no division"]),
    ("summed loss", lambda place: place.plan.micro_batch),
):
    FAULTS[f"{name} beside the trainers factor"] = partial(_unmarked, then=_times(factor))


@fault
def not_distributed(place):
    if hasattr(place.module, "pl"):
        wrong = {"use_distributed_sampler": False}
        _made_with(place.module.pl.Trainer, lambda _, args, kwargs: (args, kwargs | wrong))(place)
    elif hasattr(place.module, "hf") or hasattr(place.module, "Accelerator"):
        from accelerate import Accelerator

        place.put(Accelerator, "prepare_data_loader", lambda _, loader, *args, **kwargs: loader)
    else:
        place.put(place.module, "DistributedSampler", Everything)


@fault
def ranks_share_the_stream(place):
    place.put(parts, "dist", types.SimpleNamespace(**{**vars(dist), "get_rank": lambda: 0}))


def _size_of_one(place, args, kwargs):
    """The batch of one process where Accelerate's split_batches divides it."""
    if "batch_size" in kwargs:
        kwargs["batch_size"] = max(kwargs["batch_size"] // place.world, 1)
    return args, kwargs


FAULTS["loader not split"] = _made_with(DataLoader, _size_of_one)


# Trainers.


@fault
def a_scheduler_per_epoch(place):
    own = place.module.Lit.configure_optimizers

    def by_epoch(self):
        settings = own(self)
        settings["lr_scheduler"]["interval"] = "epoch"
        return settings

    place.put(place.module.Lit, "configure_optimizers", by_epoch)
