"""Records the learning rates of Megatron-LM's and Composer's own schedulers into this folder.

    python tests/data/record_schedules.py        # needs megatron-core and mosaicml

The tests read the recordings, so that they need neither package.
"""

import json
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

HERE = Path(__file__).parent

MEGATRON = [
    {"lr_decay_style": style, "lr_warmup_steps": warmup, "min_lr": low, "init_lr": init}
    for style, warmup, low, init in [
        ("constant", 160, 0.0, 0.0),
        ("linear", 160, 1e-5, 0.0),
        ("linear", 0, 0.0, 0.0),
        ("cosine", 160, 1e-5, 1e-6),
        ("cosine", 0, 1e-5, 0.0),
        ("inverse-square-root", 160, 1e-4, 0.0),
        ("inverse-square-root", 0, 0.0, 0.0),
    ]
] + [
    {
        "lr_decay_style": "WSD",
        "lr_warmup_steps": 160,
        "min_lr": 1e-5,
        "init_lr": 0.0,
        "wsd_decay_steps": 480,
        "lr_wsd_decay_style": style,
    }
    for style in ("linear", "cosine", "exponential", "minus_sqrt")
]

# Each: name, the scheduler's own arguments, max_duration.
COMPOSER = [
    ("StepScheduler", {"step_size": "2ep", "gamma": 0.5}, "9ep"),
    ("StepScheduler", {"step_size": "100sp", "gamma": 0.9}, "9ep"),
    ("MultiStepScheduler", {"milestones": ["2ep", "55ba", "0.8dur"], "gamma": 0.3}, "9ep"),
    ("ConstantScheduler", {"alpha": 0.5, "t_max": "0.5dur"}, "9ep"),
    ("LinearScheduler", {"alpha_i": 0.2, "alpha_f": 0.9, "t_max": "5ep"}, "9ep"),
    ("ExponentialScheduler", {"gamma": 0.8}, "9ep"),
    ("ExponentialScheduler", {"gamma": 0.8, "decay_period": "777tok"}, "9ep"),
    ("CosineAnnealingScheduler", {"alpha_f": 0.1}, "9ep"),
    ("CosineAnnealingScheduler", {"t_max": "2000sp"}, "2000sp"),
    ("CosineAnnealingWarmRestartsScheduler", {"t_0": "10ba", "t_mult": 1.5, "alpha_f": 0.1}, "9ep"),
    ("CosineAnnealingWarmRestartsScheduler", {"t_0": "1ep"}, "9ep"),
    ("PolynomialScheduler", {"power": 2.0, "alpha_f": 0.1, "t_max": "70ba"}, "9ep"),
    ("MultiStepWithWarmupScheduler", {"t_warmup": "1ep", "milestones": ["3ep", "60ba"], "gamma": 0.3}, "9ep"),
    ("ConstantWithWarmupScheduler", {"t_warmup": "13ba", "alpha": 0.7}, "9ep"),
    ("LinearWithWarmupScheduler", {"t_warmup": "1ep", "alpha_i": 0.9, "alpha_f": 0.2}, "9ep"),
    ("CosineAnnealingWithWarmupScheduler", {"t_warmup": "0.1dur", "alpha_f": 0.05}, "9ep"),
    ("CosineAnnealingWithWarmupScheduler", {"t_warmup": "300sp"}, "2000sp"),
    ("PolynomialWithWarmupScheduler", {"t_warmup": "1ep"}, "9ep"),
]
EPOCH, SAMPLES, TOKENS, BATCHES = 11, 32, 320, 110


def megatron() -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    runs = []
    for case in MEGATRON:
        optimizer = SimpleNamespace(param_groups=[{}])
        arguments = {"max_lr": 3e-3, "lr_decay_steps": 1600, **case}
        decay = {"start_wd": 0.0, "end_wd": 0.0, "wd_incr_steps": 1, "wd_incr_style": "constant"}
        scheduler = OptimizerParamScheduler(optimizer, **arguments, **decay)
        seen = [scheduler.get_lr({})]
        for _ in range(110):
            scheduler.step(16)
            seen.append(scheduler.get_lr({}))
        runs.append({"arguments": {**arguments, "increment": 16}, "lr": seen})
    write("megatron_core_0.16.1.json", runs)


def composer() -> None:
    # The two modules alone: the packages' own imports pull in the trainer and all that it may log to.
    root = Path(find_spec("composer").submodule_search_locations[0])
    for name in ("composer", "composer.core", "composer.optim", "composer.utils"):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    sys.modules["composer.utils"].StringEnum = import_module("composer.utils.string_enum").StringEnum
    core, time = sys.modules["composer.core"], import_module("composer.core.time")
    core.Time, core.TimeUnit, core.State, core.PyTorchScheduler = time.Time, time.TimeUnit, object, object
    Time, Timestamp = time.Time, time.Timestamp
    peer = import_module("composer.optim.scheduler")

    runs = []
    for name, arguments, duration in COMPOSER:
        scheduler = getattr(peer, name)(**arguments)
        seen = []
        for batch in range(BATCHES):
            now = Timestamp(epoch=batch // EPOCH, batch=batch, sample=batch * SAMPLES, token=batch * TOKENS)
            state = SimpleNamespace(
                timestamp=now, max_duration=Time.from_timestring(duration), dataloader_len=Time(EPOCH, "ba")
            )
            seen.append(float(scheduler(state)))
        runs.append({"name": name, "arguments": arguments, "max_duration": duration, "lr": seen})
    write("mosaicml_0.32.1.json", runs)


def write(name: str, runs: list) -> None:
    (HERE / name).write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    megatron()
    composer()
