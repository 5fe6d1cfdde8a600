"""Records the learning rates of Megatron-LM's own scheduler into this folder, for the arguments in the file.

    python tests/data/record_schedules.py        # needs megatron-core

The tests read the recordings, so that they do not need it.
"""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

FILE = Path(__file__).with_name("megatron_core_0.16.1.json")


def record(arguments: dict) -> list[float]:
    """Steps the scheduler 110 times by the arguments' increment."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    decay = {"start_wd": 0.0, "end_wd": 0.0, "wd_incr_steps": 1, "wd_incr_style": "constant"}
    own = {name: value for name, value in arguments.items() if name != "increment"}
    scheduler = OptimizerParamScheduler(SimpleNamespace(param_groups=[{}]), **own, **decay)
    rates = [scheduler.get_lr({})]
    for _ in range(110):
        scheduler.step(arguments["increment"])
        rates.append(scheduler.get_lr({}))
    return rates


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    runs = [run["arguments"] for run in json.loads(FILE.read_text())]
    recorded = [json.dumps({"arguments": arguments, "lr": record(arguments)}) for arguments in runs]
    FILE.write_text("[\n" + ",\n".join(recorded) + "\n]\n")
