"""Several files of one run: files named by another, their joined fields, and contradictions."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isobatch.errors import InputError
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.tool import ALIASES, Issue, Weight

_ALWAYS = ("lr", "accumulation", "effective_batch", "gpus")
"""Fields in which two files of a run must agree also where one of them is a default."""
_NAMING = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "deepspeed_config.deepspeed_config_file")
"""Settings of every tool that name a file of DeepSpeed."""
_TRAINERS = ("transformers", "trl", "axolotl", "llama_factory", "ms_swift")
"""Tools on transformers' Trainer."""
_ENGINES = ("deepspeed", "accelerate")
_COMPARED = (
    *("batch_per_gpu", "micro_batch", "accumulation", "effective_batch", "lr", "clip_norm", "betas", "eps"),
    *("weight_decay", "precision", "warmup", "duration"),
)
"""Fields of DeepSpeed's settings that the Trainer compares with its arguments."""


class Conflict(NamedTuple):
    """A field with two values: the later file's, and the earlier one's, by their names there."""

    field: str
    page: Reading
    key: str
    value: Any
    owner: Reading
    first_key: str
    first: Any

    def __str__(self) -> str:
        again = "" if self.key == self.first_key else f"{self.first_key} is "
        return f"{self.key} is {self.value} in {self.page.file}, but {again}{self.first} in {self.owner.file}"

    @property
    def error(self) -> InputError:
        """The refusal of a plan."""
        how = f"give {self.field} a value, as in --set {self.field}={self.first}"
        return InputError(f"{self}: {how}", field=self.field)

    @property
    def issue(self) -> Issue | None:
        """The cost of the contradiction where the tools themselves compare the files; else None."""
        change = f'{self.key}: {self.first}, or "auto", in {self.page.file}'
        if self.owner.tool in _ENGINES:
            change = f'{self.first_key}: {self.value}, or "auto", in {self.owner.file}'
        engine = self.owner if self.owner.tool in _ENGINES else self.page
        is_compared = _compares(self.page, self.owner) and self.field in _COMPARED
        if is_compared and is_said(engine, self.field):
            cause = "the Trainer compares DeepSpeed's settings with its own arguments when it starts"
            source = "transformers, integrations/deepspeed.py: HfTrainerDeepSpeedConfig.fill_match"
            return Issue.stop(str(self), cause, source, change, self.field)
        if engine.tool in _ENGINES and self.field == "accumulation":
            cause = "Accelerate takes DeepSpeed's value, 1 where its file has none, and warns"
            source = "accelerate, accelerator.py and utils/dataclasses.py: gradient_accumulation_steps"
            return Issue(str(self), cause, source, change, Weight.CHANGES, self.field)
        return None


class MergedFields(NamedTuple):
    """The joined fields of a run's files, with their names and files, and the contradictions."""

    fields: dict[str, Any]
    keys: dict[str, str]
    owners: dict[str, Reading]
    conflicts: list[Conflict]


def merge(pages: Sequence[Reading], values: Mapping[str, Any] = {}, *, strict: bool = False) -> MergedFields:
    """Joins the fields of all files; a value wins over another file's default.

    Args:
        pages: the files of a run.
        values: fields given beside them, in which they need not agree.
        strict: whether the Trainer's defaults contradict DeepSpeed's values too, as they do when it starts.
    """
    run = MergedFields({}, {}, {}, [])
    for page in pages:
        for own, value in page.fields.items():
            name = next((known for known in (own, ALIASES.get(own)) if known in run.owners), own)
            if name in values or own in values:
                continue
            owner = run.owners.get(name, page)
            is_own, is_before = is_said(page, own), is_said(owner, name)
            both = (is_own and is_before) or name in _ALWAYS
            if strict and name in _COMPARED and _compares(page, owner):
                both = name == "accumulation" or (is_own if page.tool in _ENGINES else is_before)
            if both and run.fields.get(name, value) != value:
                key, first_key = _key(page, name), _key(owner, name)
                run.conflicts.append(Conflict(name, page, key, value, owner, first_key, run.fields[name]))
            if owner is page or (is_own and not is_before):
                run.owners.pop(name, None)
                run.fields[name], run.keys[name], run.owners[name] = value, page.keys.get(own, own), page
    return run


def is_said(page: Reading, field: str) -> bool:
    """Tells whether a file sets a field itself, rather than taking its tool's default."""
    return page.value_of(_key(page, field)) is not None


def is_default(page: Reading, field: str) -> bool:
    """Tells whether a field has a value without a word in the file."""
    return field in page.fields and not is_said(page, field)


def note_named(page: SettingsPage) -> None:
    """Notes a named file of DeepSpeed, unless the run has one."""
    for key in _NAMING:
        if _is_file(file := page.raw(key)):
            text = f"{page.name(key)} {file} is not read here: isobatch plan reads it as another --from"
            page.note_until(text, lambda run: "deepspeed" in run.tools)
            page.reading.named[file] = text


def named_files(reading: Reading) -> Iterator[Path]:
    """Yields the named files of DeepSpeed, beside the file or in the working folder."""
    for name, note in reading.named.items():
        folders = (Path(reading.file.partition(":")[0]).parent, Path())
        places = [folder / name for folder in folders if (folder / name).is_file()]
        if places and not Path(name).is_absolute() and ".." not in Path(name).parts:
            reading.notes.remove(note)
            yield places[0]


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(".json")


def _key(page: Reading, field: str) -> str:
    names = (field, ALIASES.get(field, field))
    return next((page.keys[name] for name in names if page.keys.get(name)), field)


def _compares(page: Reading, owner: Reading) -> bool:
    """Tells whether the Trainer has one file, and DeepSpeed or its launcher the other."""
    tools = (page.tool, owner.tool)
    return any(tool in _TRAINERS for tool in tools) and any(tool in _ENGINES for tool in tools)
