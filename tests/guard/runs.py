"""Runs a script of `scripts/` on each rank, whole: by the plan, or with a fault injected; and the plans that
they train by.
"""

import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

import isobatch as ib
from ddp.quiet import stay_offline

# Of torch 2.6 fully_shard asks a CPU's stream for what it does not have.
SHARDS_ON_A_CPU = hasattr(torch.cpu.Stream, "record_event")
NO_SHARDS = "this torch's fully_shard does not run on a CPU"
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "accelerated": ("accelerate",),
    "lit": ("lightning",),
    "timm_train": ("timm",),
    "vision_reference": ("torchvision",),
}
"""The libraries of each script that may not be there."""


FORMS = {
    "plain": {"dropout": 0.2, "workers": 2, "validated": True},
    "iterable": {"kind": "stream", "workers": 2, "evaluated": True},
}
"""Scripts that are a form of the loop in `scripts/loop.py`."""


class Outcome(NamedTuple):
    """The guard's result on a rank: its error or None, its unchecked list, its notes."""

    error: object
    unchecked: list
    notes: list


def run(script, plan_json, options=None, fault=None):
    """`fault` is a name in `injected.py`; the script's plan is then another than the guard's, or torch is."""
    from guard.injected import injected
    from isobatch.guard import GuardError, guard

    multiprocessing.set_start_method("fork", force=True)  # of loaders' workers: in milliseconds
    stay_offline()
    plan, guards = ib.Plan.from_json(plan_json), []

    def guarded(_, *args, **kwargs):
        guards.append(guard(plan, *args, **kwargs))
        return guards[-1]

    error = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(_clean)
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        form = "loop" if script in FORMS else script
        main = importlib.import_module(f"guard.scripts.{form}").main
        followed = stack.enter_context(injected(fault, plan, form)) if fault else plan
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        try:
            main(followed, guarded, folder, **FORMS.get(script, {}) | (options or {}))
        except GuardError as caught:
            # Its frames hold loaders' iterators: freed by the garbage collector, which ends the queues before
            # their workers hear of
            # it, each would be waited for.
            traceback.clear_frames(caught.__traceback__)
            error = caught.with_traceback(None)
    return Outcome(error, guards[0].unchecked if guards else [], guards[0].notes if guards else [])


def unequal_steps(plan_json):
    """Rank 1 is a step ahead at a check where all ranks meet."""
    from isobatch.guard import GuardError
    from isobatch.guard.run import Run

    run = Run(ib.Plan.from_json(plan_json), [], [], None)
    run.since += dist.get_rank()
    try:
        run.exchange("weights", 0)
    except GuardError as error:
        return error
    return None


def witnesses(plan_json, seeing):
    """The ranks with a fault, on each of them."""
    from isobatch.guard.run import Run

    run = Run(ib.Plan.from_json(plan_json), [], [], None)
    return run.witnesses("learning rate") if dist.get_rank() in seeing else None


def _clean():
    """Clears the libraries' state of a process."""
    gc.collect()  # iterators, with their workers
    torch._dynamo.reset()
    accelerate = sys.modules.get("accelerate")
    if accelerate is not None:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
    assert dist.is_initialized()


COMMON = {"micro_batch": 4, "clip_norm": 1.0, "warmup": "2st"}
FLAT = {"lr": 0.1, "optimizer": "sgd", "clip_norm": None, "warmup": None, "schedule": "constant"}
RECIPES = {
    "plain": {"lr": 0.1, "optimizer": "sgd", "dataset_size": 100, "duration": "3ep"},
    "nanogpt": {"lr": 1e-3, "duration": "9st"},
    "hf_trainer": {"lr": 1e-3, "dataset_size": 60, "duration": "3ep", "convention": "transformers"},
    "accelerated": {"lr": 1e-3, "dataset_size": 90, "duration": "3ep", "convention": "transformers"},
    "lit": {"lr": 1e-3, "dataset_size": 92, "duration": "3ep", "convention": "lightning"},
    "iterable": {"lr": 0.1, "optimizer": "sgd", "duration": "9st"},
    "timm_train": {"lr": 1e-3, "dataset_size": 50, "duration": "3ep", "drop_last": "loader", "warmup": "1ep"},
    "vision_reference": {
        "lr": 0.05,
        "optimizer": "sgd",
        "dataset_size": 52,
        "duration": "3ep",
        "schedule": "step(1ep, gamma=0.1)",
        "warmup": None,
    },
    "loop": {"lr": 0.1, "optimizer": "sgd", "dataset_size": 96, "duration": "3ep"},
    "loops": {"lr": 0.1, "optimizer": "sgd", "duration": "36st", "clip_norm": None},
    "titan": {"lr": 1e-3, "duration": "9st"},
    "between": {**FLAT, "dataset_size": 96, "duration": "3ep"},
    "beside": {**FLAT, "dataset_size": 96, "duration": "3ep"},
    "within": {**FLAT, "dataset_size": 96, "duration": "3ep"},
}


def plan_of(script, ranks=2, accumulation=None, **fields):
    """The plan of a script."""
    parts = accumulation or (
        1 if script in ("vision_reference", "loops", "between", "beside", "within") else 2
    )
    recipe = ib.Recipe(**{"effective_batch": 4 * ranks * parts, **COMMON, **RECIPES[script], **fields})
    plan = ib.plan(recipe, ranks)
    assert plan.accumulation == parts
    return plan
