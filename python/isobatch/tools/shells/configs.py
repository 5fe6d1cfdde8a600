"""Training commands with their settings in a file: axolotl's, LLaMA-Factory's, TRL's, ms-swift's …"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

from isobatch.tools.shells.state import is_known, is_several

SWIFT = "swift"
"""The key of ms-swift's command in its settings: its flags are TRL's, under other defaults."""
_SWIFT = ("pt", "sft", "rlhf")
_COMMANDS = {
    "axolotl": ("train",),
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo"),
    "tune": ("run",),
    SWIFT: _SWIFT,
    "megatron": _SWIFT,
}
"""Programs, and those of their commands that train."""
_MODULES = {"axolotl.cli.train": "axolotl train", "llamafactory.cli": "llamafactory-cli train"}
_SWIFT_FILE = re.compile(r"swift/cli/(pt|sft|rlhf)\.py$")
_FLAGS = (
    "--config",
    "--config_file",
    "--config-file",
    "--config_path",
    "--job.config_file",
    "--cfg",
    "--yaml",
)
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


class Configured(NamedTuple):
    """A command with its settings in a file: for a known tool's command, it is the whole configuration."""

    command: str
    file: str
    is_tool: bool
    arguments: tuple[str, ...]


def swift_command(words: Sequence[str]) -> tuple[str, str] | None:
    """Returns ms-swift's program and command, such as ("swift", "rlhf"); None for another program."""
    for word, following in pairwise((*words, "")):
        name = PurePosixPath(word).name
        if name in (SWIFT, "megatron") and following in _SWIFT:
            return name, following
        if script := _SWIFT_FILE.search(word):
            return SWIFT, script[1]
    return None


def configured(words: Sequence[str]) -> Configured | None:
    """Returns the settings file of a command; None where it names none.

    >>> configured(["axolotl", "train", "cfg.yaml"])
    Configured(command='axolotl train', file='cfg.yaml', is_tool=True, arguments=())
    >>> configured("accelerate launch --config_file z.yaml run.py cfg.yaml lr=1".split())
    Configured(command='run.py', file='cfg.yaml', is_tool=False, arguments=('lr=1',))
    """
    for command, is_tool, arguments in _programs(words):
        file, flag = "", ""
        for number, (before, word) in enumerate(pairwise(("", *arguments))):
            name, equals, value = word.partition("=")
            if name in _FLAGS and equals:
                file, flag = value, word
            elif before in _FLAGS:
                file, flag = word, before
            elif _is_file(word) and not before.startswith("-"):
                file = word
            elif is_tool and number == 0 and word and (not is_known(word)):
                file = word  # of a variable
            if file:
                beside = [argument for argument in arguments if argument not in (file, flag)]
                return Configured(command, file, is_tool, tuple(beside))
    return None


def _programs(words: Sequence[str]) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Yields each possible program of a command: its name, whether a known tool's, and its arguments."""
    for place, word in enumerate(words):
        name, behind = PurePosixPath(word).name, place + 1
        if not is_known(word):
            continue
        if behind < len(words) and words[behind] in _COMMANDS.get(name, ()):
            yield f"{name} {words[behind]}", True, tuple(words[behind + 1 :])
        elif script := _SWIFT_FILE.search(word):
            yield f"{SWIFT} {script[1]}", True, tuple(words[behind:])
        elif word in _MODULES:
            yield _MODULES[word], True, tuple(each for each in words[behind:] if each != "train")
        elif name.endswith(".py"):
            yield name, False, tuple(words[behind:])


def _is_file(word: str) -> bool:
    return PurePosixPath(word).suffix in _SUFFIXES and not word.startswith("-") and not is_several(word)
