"""A checkpoint folder of transformers' Trainer: the run's progress, and the arguments it was started with.

The values of its `training_args.bin`, a pickle, are read, and nothing in it is executed.
"""

import re
from pathlib import Path

from isobatch.errors import InputError, missing
from isobatch.files.whole import read_whole
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.parse import parse
from isobatch.tools.pickles import attributes
from isobatch.tools.tool import Reader, Tool
from isobatch.tools.trainer import HARMLESS, check
from isobatch.tools.transformers import read as read_arguments
from isobatch.words import counted

_STATE = "best_* epoch total_flos is_* num_input_tokens_seen stateful_callbacks* trial_* num_train_epochs"
"""Keys of a state beside `training_args.bin`."""


def read(page: SettingsPage) -> None:
    """Reads `trainer_state.json` alone, without the folder around it."""
    page.reading.step = page.whole("global_step")
    page.whole("train_batch_size", "batch_per_gpu")
    page.give("convention", "transformers", "")
    page.length("max_steps", "duration", "st")
    page.name_absent(accumulation="gradient_accumulation_steps", lr="learning_rate", warmup="warmup_steps")


def read_folder(folder: Path) -> Reading:
    """Reads the folder's `trainer_state.json`, its `training_args.bin`, and the number of processes.

    The length is that of `trainer_state.json`, counted by the Trainer: the dataset's size is not needed.
    """
    reading = Reading("checkpoint", CHECKPOINT.title, str(folder), {})
    state_file = folder / "trainer_state.json"
    if not state_file.is_file():
        raise missing(
            "trainer_state.json", "name a checkpoint folder, such as checkpoint-500", file=str(folder)
        )
    state = parse(read_whole(state_file), file=str(state_file), suffix=".json")
    arguments = _arguments(folder)
    reading.settings = {**arguments, **state}
    if arguments:
        read_arguments(SettingsPage(arguments, reading))
    else:
        reading.notes.append("no training_args.bin has arguments: those of the run are not known")
    read(SettingsPage(state, reading))
    epochs, steps = arguments.get("num_train_epochs"), arguments.get("max_steps")
    if "duration" in reading.fields and epochs and not (isinstance(steps, int | float) and steps > 0):
        # Resumed, the Trainer counts the steps of its epochs anew, on whatever GPUs.
        reading.keys["duration"] = "num_train_epochs"
    if not reading.fields.get("batch_per_gpu") and arguments:
        reading.fields["batch_per_gpu"] = arguments.get("per_device_train_batch_size")
    _processes(folder, arguments, reading)
    if reading.step is None or reading.step < 1:
        reading.faults.append(("", InputError("has no global_step", file=str(state_file))))
    return reading


def _arguments(folder: Path) -> dict[str, object]:
    for place in (folder, folder.parent):
        if (place / "training_args.bin").is_file():
            return attributes(place / "training_args.bin")
    return {}


def _processes(folder: Path, arguments: dict[str, object], reading: Reading) -> None:
    """Counts the processes by their files of random states; a single process leaves `rng_state.pth`."""
    ranks = [file for file in folder.glob("rng_state_*.pth") if re.fullmatch(r"rng_state_\d+", file.stem)]
    state = arguments.get("distributed_state")
    if ranks:
        reading.fields["gpus"], reading.keys["gpus"] = len(ranks), "rng_state_N.pth"
        processes = state.get("num_processes") if isinstance(state, dict) else None
        last = max(int(file.stem.removeprefix("rng_state_")) for file in ranks)
        if last >= len(ranks) or processes not in (None, len(ranks)):
            beside = f"rng_state_{last}.pth is there"
            if processes is not None:
                beside = f"training_args.bin says {counted(processes, 'process', 'processes')}"
            text = f"has {len(ranks)} files rng_state_N.pth, one a process, but {beside}: give gpus a value"
            reading.faults.append(("gpus", InputError(text, file=reading.file)))
    elif (folder / "rng_state.pth").is_file():
        reading.fields["gpus"], reading.keys["gpus"] = 1, "rng_state.pth"
    elif isinstance(state, dict) and type(state.get("num_processes")) is int:
        reading.fields["gpus"], reading.keys["gpus"] = state["num_processes"], "num_processes"
    if arguments.get("_n_gpu") not in (None, 0, 1):
        reading.notes.append("the run used DataParallel: its batch is split over the GPUs of one process")


CHECKPOINT = Tool(
    "checkpoint",
    "a checkpoint of transformers' Trainer",
    Reader("4.30 to 5", read, check, f"{HARMLESS} {_STATE}"),
    written_as="transformers",
)
