"""Scripts such as nanoGPT's: globals, overridden by `configurator.py`; the accumulation counts all ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isobatch.equivalence.split import Split
from isobatch.errors import InputError, must_be
from isobatch.launch.words import given_settings
from isobatch.tools.scripts import python_literals

NANOGPT = "nanogpt"
_MICRO, _PASSES = "batch_size", "gradient_accumulation_steps"
_ALIKE = {"compile": "False", "dtype": "float32", "eval_iters": "1"}
"""Also a short evaluation: one of the configuration's length comes before the first step of every run."""
_ON_CPU = {"device": "cpu", "backend": "gloo"}


def is_nanogpt(program: Sequence[str]) -> bool:
    """Whether a script reads its overrides as nanoGPT does, and divides its accumulation by the ranks."""
    script = Path(program[0])
    if script.suffix != ".py" or not script.is_file():
        return False
    text = script.read_text(encoding="utf-8", errors="replace")
    return "configurator.py" in text and f"{_PASSES} //= ddp_world_size" in text


def nanogpt_split(program: Sequence[str], ranks: int) -> Split:
    """Reads the split as typed: of the words, else of their configurations, else of the script."""
    values: dict[str, Any] = {}
    for file in (word for word in program if not word.startswith("-") and Path(word).suffix == ".py"):
        # Assignments behind the script's configurator are derived from the values.
        text = Path(file).read_text(encoding="utf-8").partition("\nexec(open('configurator.py')")[0]
        values |= python_literals(text, file)
    values |= {setting.name: setting.value for setting in given_settings(program)}
    micro, passes = (_count(name, values.get(name)) for name in (_MICRO, _PASSES))
    if passes % ranks:
        text = f"{_PASSES} {passes} is not a multiple of {ranks} ranks, over which nanoGPT divides it"
        raise InputError(text)
    return Split(ranks, passes // ranks, micro)


def _count(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise must_be("a whole number from 1", value, field=f"--{name}")
    return value


def write_nanogpt(program: Sequence[str], split: Split, *, on_cpu: bool) -> list[str]:
    """Returns the program's words with a split's numbers last, where they override the configurations."""
    values: dict[str, Any] = {_MICRO: split.micro_batch, _PASSES: split.ranks * split.accumulation}
    values |= (_ON_CPU if on_cpu else {}) | _ALIKE
    named = {setting.name for setting in given_settings(program)} & values.keys()
    remaining = [word for word in program if word.partition("=")[0].removeprefix("--") not in named]
    return [*remaining, *(f"--{name}={value}" for name, value in values.items())]
