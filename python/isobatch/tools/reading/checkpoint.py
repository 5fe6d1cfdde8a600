"""A checkpoint folder of transformers' Trainer: how far the run is, and with which arguments it was started."""

from __future__ import annotations

import re
from pathlib import Path

from isobatch.errors import InputError, missing
from isobatch.files.whole import read_whole
from isobatch.tools.reading import transformers
from isobatch.tools.reading.common import length
from isobatch.tools.reading.inert import attributes
from isobatch.tools.reading.page import Found, Page
from isobatch.tools.reading.parse import parse

NAME = "checkpoint"
TITLE = "a checkpoint of transformers' Trainer"
VERSIONS = "4.30 to 5"
SIGNS = ("global_step", "log_history", "trial_params", "is_world_process_zero")
CALLED = transformers.CALLED


def read(page: Page) -> None:
    """`trainer_state.json` alone, without the folder around it."""
    page.found.step = page.whole("global_step")
    page.whole("train_batch_size", "batch_per_gpu")
    page.give("convention", "transformers", "")
    steps = page.whole("max_steps")
    if steps:
        page.give("duration", length(steps, "st"), "max_steps")


def read_folder(folder: Path, found: Found) -> None:
    """The folder: `trainer_state.json`, `training_args.bin` (its values; nothing in it is executed) and, for the number of
    processes, the files with each one's random state.

    The length is that of `trainer_state.json`, which the Trainer counted itself; so the size of the dataset is not needed.

    Raises:
        InputError: there is no `trainer_state.json`.
    """
    state_file = folder / "trainer_state.json"
    if not state_file.is_file():
        raise missing(
            "trainer_state.json", "name a checkpoint folder, such as checkpoint-500", file=str(folder)
        )
    state = parse(read_whole(state_file), file=str(state_file), suffix=".json")
    arguments = _arguments(folder)
    found.settings = {**arguments, **state}
    if arguments:
        transformers.read(Page(arguments, found))
    else:
        found.notes.append("there is no training_args.bin: the arguments of the run are not known")
    read(Page(state, found))
    epochs = arguments.get("num_train_epochs")
    if "duration" in found.fields and epochs and not _above_zero(arguments.get("max_steps")):
        # Resumed, the Trainer counts the steps of its epochs anew, on whatever GPUs.
        found.keys["duration"] = "num_train_epochs"
    if not found.fields.get("batch_per_gpu") and arguments:
        found.fields["batch_per_gpu"] = arguments.get("per_device_train_batch_size")
    _processes(folder, arguments, found)
    if found.step is None or found.step < 1:
        found.faults.append(("", InputError("says no global_step that was done", file=str(state_file))))


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _arguments(folder: Path) -> dict[str, object]:
    for place in (folder, folder.parent):
        if (place / "training_args.bin").is_file():
            return attributes(place / "training_args.bin")
    return {}


def _processes(folder: Path, arguments: dict[str, object], found: Found) -> None:
    """Each process leaves a file of its random state; one process alone leaves `rng_state.pth`."""
    ranks = [file for file in folder.glob("rng_state_*.pth") if re.fullmatch(r"rng_state_\d+", file.stem)]
    state = arguments.get("distributed_state")
    if ranks:
        found.fields["gpus"], found.keys["gpus"] = len(ranks), "rng_state_N.pth"
    elif (folder / "rng_state.pth").is_file():
        found.fields["gpus"], found.keys["gpus"] = 1, "rng_state.pth"
    elif isinstance(state, dict) and type(state.get("num_processes")) is int:
        found.fields["gpus"], found.keys["gpus"] = state["num_processes"], "num_processes"
    if arguments.get("_n_gpu") not in (None, 0, 1):
        found.notes.append("the run used DataParallel: its batch is split over the GPUs of one process")
