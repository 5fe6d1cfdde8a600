"""The split, set in the objects of a script: a trainer's arguments, Accelerate, Lightning, DeepSpeed.

Each hook runs when its library has been imported, and asks the recorder when an object is made: for the value
of a setting in this run, and to keep the value in the code.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from types import ModuleType
from typing import Any

from . import current
from .record import Recorder

ENGINES = ("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged")
"""Arguments of TRL that generate by another engine than `model.generate`, which is played back."""
REDUCED = ("bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval")
_DEEPSPEED = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
_GPUS = ("gpu", "cuda")


def _patch_arguments(module: ModuleType) -> None:
    """Sets the fields of TrainingArguments wherever they are assigned, its subclasses' defaults included."""
    arguments: Any = module.TrainingArguments
    assign, finish = arguments.__setattr__, arguments.__post_init__
    names = {"per_device_train_batch_size": "micro_batch", "gradient_accumulation_steps": "accumulation"}

    def __setattr__(self: Any, name: str, value: Any) -> None:
        recorder = current()
        if name in names:
            recorder.typed.made(self, "arguments", **{names[name]: value})
            value = recorder.typed.number("arguments", names[name], value)
        elif recorder.typed.sets("arguments") and value:
            if name == "deepspeed":
                value = _with_batch(value, dict.fromkeys(_DEEPSPEED, "auto"))
            elif name == "accelerator_config":
                (getattr(value, "gradient_accumulation_kwargs", None) or {}).pop("num_steps", None)
            elif name == "auto_find_batch_size":
                value = False
        if name in ENGINES and value and recorder.on_cpu:
            recorder.note(f"{name} off", "off")
            value = False
        if name in REDUCED and value and recorder.in_float32:
            recorder.note(f"{name} off", "off")
            value = False
        assign(self, name, value)

    def __post_init__(self: Any) -> None:
        finish(self)
        current().typed.tell(self, names)
        current().arguments = [self]

    arguments.__setattr__, arguments.__post_init__ = __setattr__, __post_init__


def _patch_accelerator(module: ModuleType) -> None:
    _let_deepspeed_run(sys.modules["accelerate.state"])
    accelerator: Any = module.Accelerator
    initialize, accumulate = accelerator.__init__, accelerator.accumulate

    @functools.wraps(initialize)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder = current()
        if recorder.in_float32 and str(kwargs.get("mixed_precision") or "no") != "no":
            recorder.note(f"mixed_precision {kwargs['mixed_precision']} off", "off")
            kwargs["mixed_precision"] = "no"
        initialize(self, *args, **kwargs)
        if sys._getframe(1).f_globals.get("__name__") == "transformers.trainer":
            return  # the Trainer counts its passes itself
        typed = self.gradient_accumulation_steps
        recorder.typed.splits_batches = bool(getattr(self, "split_batches", False))
        recorder.typed.made(self, "accelerate", accumulation=typed, accumulates=False)
        recorder.typed.tell(self, {"gradient_accumulation_steps": "accumulation"})
        self.gradient_accumulation_steps = recorder.typed.number("accelerate", "accumulation", typed)
        plugin = getattr(self.state, "deepspeed_plugin", None)
        if plugin is not None and recorder.typed.sets("accelerate"):
            config = plugin.deepspeed_config
            if config.get(_DEEPSPEED[1]) in (typed, "auto"):  # another number is a fault of the script's
                config.update(_with_batch(config, _split_batch(recorder)))

    @functools.wraps(accumulate)
    def accumulate_passes(self: Any, *models: Any) -> Any:
        current().typed.made(self, "accelerate", accumulates=True)
        return accumulate(self, *models)

    accelerator.__init__, accelerator.accumulate = __init__, accumulate_passes


def _let_deepspeed_run(states: Any) -> None:
    """Has Accelerate hand the training to DeepSpeed, on a CPU too."""
    state, device = states.AcceleratorState, "ACCELERATE_USE_CPU"
    initialize = state.__init__

    @functools.wraps(initialize)
    def __init__(
        self: Any, mixed_precision: Any = None, cpu: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        is_wanted = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
        flag = os.environ.pop(device, None) if is_wanted and not cpu else None
        if flag is not None:
            states.PartialState(cpu=True)  # it takes gloo then
        try:
            initialize(self, mixed_precision, cpu, *args, **kwargs)
        finally:
            if flag is not None:
                os.environ[device] = flag

    state.__init__ = __init__


def _patch_lightning(module: ModuleType) -> None:
    trainer: Any = module.Trainer
    initialize = trainer.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder = current()
        typed = kwargs.get("accumulate_grad_batches", 1)
        recorder.typed.made(self, "lightning", accumulation=typed)
        recorder.typed.tell(self, {"accumulate_grad_batches": "accumulation"})
        if recorder.typed.sets("lightning"):
            kwargs["accumulate_grad_batches"] = recorder.typed.number("lightning", "accumulation", typed)
        initialize(self, *args, **_placed(recorder, kwargs))

    trainer.__init__ = __init__


def _patch_fabric(module: ModuleType) -> None:
    fabric: Any = module.Fabric
    initialize = fabric.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **_placed(current(), kwargs))

    fabric.__init__ = __init__


def _placed(recorder: Recorder, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns Lightning's arguments with the ranks of this start, and those of a GPU for the CPU."""
    kwargs = dict(kwargs)
    if recorder.settings["sets"] or "TORCHELASTIC_RUN_ID" in os.environ:
        kwargs |= {"devices": int(os.environ.get("LOCAL_WORLD_SIZE", "1")), "num_nodes": 1}
    if not recorder.on_cpu:
        return kwargs
    changes = {}
    if str(kwargs.get("accelerator")) in _GPUS:
        changes["accelerator"] = "cpu"
    if recorder.in_float32 and str(kwargs.get("precision") or "32").partition("-")[0] not in ("32", "64"):
        changes["precision"] = "32-true"
    if str(kwargs.get("strategy")).startswith(("fsdp", "deepspeed")):
        changes["strategy"] = "ddp"
    for name, value in changes.items():
        recorder.note(f"{name} {kwargs[name]} off", "off")
        kwargs[name] = value
    return kwargs


class DeepSpeedConfig:
    """A dictionary or file for an engine."""


def _patch_deepspeed(module: ModuleType) -> None:
    deepspeed: Any = module
    initialize = deepspeed.initialize

    @functools.wraps(initialize)
    def initialize_split(args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        recorder = current()
        name = "config" if kwargs.get("config") is not None else "config_params"
        config = kwargs.get(name) or getattr(args, "deepspeed_config", None)
        if config is not None:
            typed = _with_batch(config, {})
            micro, passes, batch = map(typed.get, _DEEPSPEED)
            if batch and not (micro and passes):
                passes = passes or (batch // (micro * recorder.world) if micro else 1)
                micro = micro or batch // (passes * recorder.world)
            engine = DeepSpeedConfig()
            recorder.typed.made(engine, "deepspeed", micro_batch=micro, accumulation=passes or 1)
            recorder.typed.tell(engine, {_DEEPSPEED[0]: "micro_batch", _DEEPSPEED[1]: "accumulation"})
            if recorder.typed.sets("deepspeed"):
                config = _with_batch(config, _split_batch(recorder), add=True)
                kwargs |= {"config": config, "config_params": None}
                if getattr(args, "deepspeed_config", None) is not None:
                    args.deepspeed_config = None
        return initialize(args, *rest, **kwargs)

    deepspeed.initialize = initialize_split


def _split_batch(recorder: Recorder) -> dict[str, int]:
    """Returns DeepSpeed's settings of this run's split."""
    split = recorder.settings["split"]
    micro, passes = split["micro_batch"], split["accumulation"]
    return dict(zip(_DEEPSPEED, (micro, passes, split["ranks"] * passes * micro)))


def _with_batch(config: Any, values: dict[str, Any], *, add: bool = False) -> dict[str, Any]:
    """Returns a DeepSpeed configuration, a file or a dictionary, with other settings of its batch."""
    if not isinstance(config, dict):
        with open(config, encoding="utf-8") as file:
            config = json.load(file)
    return {**config, **{name: value for name, value in values.items() if add or name in config}}


PATCHES = {
    "transformers.training_args": _patch_arguments,
    "accelerate.accelerator": _patch_accelerator,
    "lightning.pytorch.trainer.trainer": _patch_lightning,
    "pytorch_lightning.trainer.trainer": _patch_lightning,
    "lightning.fabric.fabric": _patch_fabric,
    "lightning_fabric.fabric": _patch_fabric,
    "deepspeed": _patch_deepspeed,
}
