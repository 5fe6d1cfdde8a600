"""Records the learning rates of Megatron-LM's own scheduler into this folder.

    python tests/data/record_schedules.py        # needs megatron-core

The tests read the recordings, so that they do not need it.
"""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

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


def write(name: str, runs: list) -> None:
    (HERE / name).write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    megatron()
