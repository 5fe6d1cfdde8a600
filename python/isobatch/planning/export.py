"""A plan as the file of a tool, and a launcher's needs beside the plan: the values of `Plan.to`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isobatch.errors import InputError
from isobatch.files.whole import write_whole


@dataclass(frozen=True)
class Export:
    """A file for a tool.

    Attributes:
        tool, file: the tool, and the usual name of such a file.
        text: the whole file.
        notes: what the tool cannot say or does differently, and what changed from the tuned run.
        settings: the values in it.
        of_file: the notes for somebody who fills in or copies the file.
    """

    tool: str
    file: str
    text: str
    notes: tuple[str, ...]
    settings: Mapping[str, Any]
    of_file: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all."""
        write_whole(path, self.text.encode())


@dataclass(frozen=True)
class Job:
    """A launcher's needs beside the plan.

    Attributes:
        command: the training script and its own arguments, word by word.
        resume: a checkpoint to go on from.
        elastic: whether the script trains with ElasticRun: then it may start on any number of GPUs.
        again: the command to plan anew, without the GPUs, for the message of a start on other GPUs.
        own: the settings of the file that the plan was made from, if it is of the same tool.
        elsewhere: the lines of the run's other files that the plan changes.
    """

    name: str = "isobatch"
    command: tuple[str, ...] = ("train.py",)
    image: str | None = None
    resume: str | None = None
    elastic: bool = False
    again: str = "isobatch plan RECIPE"
    own: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (self.name, *self.command, self.image or "", self.resume or "", self.again):
            if "\0" in text:
                raise InputError(f"{text!r} has a zero byte, which no command line can carry", field="name")
        if not self.name.strip():
            raise InputError("name must be a text that is not empty", field="name")
        if not self.command:
            raise InputError("command must name a script, such as train.py", field="command")
