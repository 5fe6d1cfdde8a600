"""Reading a live torch or transformers scheduler."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from isobatch.errors import InputError, must_be
from isobatch.schedules.peers import torch as ours
from isobatch.schedules.peers import transformers
from isobatch.schedules.schedule import Schedule

# Class → the attributes that hold its arguments.
_ATTRIBUTES = {
    "StepLR": ("step_size", "gamma"),
    "ConstantLR": ("factor", "total_iters"),
    "LinearLR": ("start_factor", "end_factor", "total_iters"),
    "ExponentialLR": ("gamma",),
    "PolynomialLR": ("total_iters", "power"),
    "CosineAnnealingLR": ("T_max", "eta_min"),
    "CosineAnnealingWarmRestarts": ("T_0", "T_mult", "eta_min"),
}
_FACTORS = {*_ATTRIBUTES, "MultiStepLR", "LambdaLR"} - {"CosineAnnealingWarmRestarts"}
# The function behind a LambdaLR of transformers → its name there, and what is called otherwise there.
_LAMBDAS = {
    "_get_constant_lambda": "constant",
    "_get_constant_schedule_with_warmup_lr_lambda": "constant_with_warmup",
    "_get_linear_schedule_with_warmup_lr_lambda": "linear",
    "_get_cosine_schedule_with_warmup_lr_lambda": "cosine",
    "_get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda": "cosine_with_restarts",
    "_get_polynomial_decay_schedule_with_warmup_lr_lambda": "polynomial",
    "_get_inverse_sqrt_schedule_lr_lambda": "inverse_sqrt",
    "_get_cosine_with_min_lr_schedule_with_warmup_lr_rate_lambda": "cosine_warmup_with_min_lr",
    "_get_wsd_scheduler_lambda": "warmup_stable_decay",
}


def from_torch(scheduler: Any, *, group: int = 0) -> Schedule:
    """The schedule of a live torch or transformers scheduler, from its step 0, whatever step it has reached.

    Args:
        scheduler: any scheduler that `isobatch.schedules.torch` has, SequentialLR and ChainedScheduler of
            them included, or one that transformers' get_scheduler made.
        group: the parameter group whose learning rate is meant.

    Raises:
        InputError: for a class that reacts to data, holds an arbitrary function, or is not known; `table` can
            hold what such a one printed.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> from_torch(torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)).at(30)
    0.5
    """
    kind = type(scheduler).__name__
    if kind in ("SequentialLR", "ChainedScheduler"):
        parts = [from_torch(part, group=group) for part in scheduler._schedulers]
        if kind == "SequentialLR":
            return ours.SequentialLR(0.0, parts, scheduler._milestones)
        for part in scheduler._schedulers:
            if type(part).__name__ not in _FACTORS or getattr(part, "eta_min", False):
                raise InputError(
                    f"scheduler must be a chain of factors, got one with {type(part).__name__}",
                    field="scheduler",
                )
        return ours.ChainedScheduler(_base(scheduler._schedulers[0], group), parts)
    if kind == "OneCycleLR":
        return _one_cycle(scheduler, group)
    if kind not in {*_ATTRIBUTES, "LambdaLR", "MultiStepLR", "CyclicLR"}:
        raise InputError(
            f"scheduler must be one that follows a formula, got {kind}; put what it printed into `table`",
            field="scheduler",
        )
    base = _base(scheduler, group)
    if kind == "LambdaLR":
        return _lambda(scheduler.lr_lambdas[group], base)
    if kind == "MultiStepLR":
        return ours.MultiStepLR(base, sorted(scheduler.milestones.elements()), scheduler.gamma)
    if kind == "CyclicLR":
        return _cyclic(scheduler, base, group)
    build: Callable[..., Schedule] = getattr(ours, kind)
    return build(base, **{name: getattr(scheduler, name) for name in _ATTRIBUTES[kind]})


def _base(scheduler: Any, group: int) -> float:
    bases = scheduler.base_lrs
    if not 0 <= group < len(bases):
        raise must_be(f"from 0 to {len(bases) - 1}, the optimizer's groups", group, field="group")
    return float(bases[group])


def _lambda(function: Any, base: float) -> Schedule:
    inner = function.func if isinstance(function, functools.partial) else function
    arguments = dict(function.keywords) if isinstance(function, functools.partial) else {}
    name = _LAMBDAS.get(getattr(inner, "__name__", ""))
    if name is None or not inner.__module__.startswith("transformers."):
        raise InputError(
            "scheduler must have a function of transformers, got another; put what it printed into `table`",
            field="scheduler",
        )
    if name == "cosine" and "min_lr_rate" in inspect.signature(inner).parameters:
        name = "cosine_with_min_lr"
        arguments.setdefault("min_lr_rate", 0.0)
    arguments.pop("lr_init", None)
    warmup, total = arguments.pop("num_warmup_steps", None), arguments.pop("num_training_steps", None)
    return transformers.get_scheduler(
        name, lr=base, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=arguments
    )


def _one_cycle(scheduler: Any, group: int) -> Schedule:
    values = scheduler.optimizer.param_groups[group]
    phases, total = scheduler._schedule_phases, scheduler.total_steps
    return ours.OneCycleLR(
        values["initial_lr"],
        max_lr=values["max_lr"],
        total_steps=total,
        pct_start=(phases[0]["end_step"] + 1) / total,
        anneal_strategy=scheduler._anneal_func_type,
        div_factor=values["max_lr"] / values["initial_lr"],
        final_div_factor=values["initial_lr"] / values["min_lr"],
        three_phase=len(phases) == 3,
    )


def _cyclic(scheduler: Any, base: float, group: int) -> Schedule:
    if scheduler._scale_fn_custom is not None:
        raise InputError(
            "scheduler must have no scale_fn of its own, got one; put what it printed into `table`",
            field="scheduler",
        )
    up = scheduler.total_size * scheduler.step_ratio
    return ours.CyclicLR(
        base,
        base_lr=base,
        max_lr=float(scheduler.max_lrs[group]),
        step_size_up=up,
        step_size_down=scheduler.total_size - up,
        mode=scheduler.mode,
        gamma=scheduler.gamma,
    )
