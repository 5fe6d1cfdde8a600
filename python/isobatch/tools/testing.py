"""The tests of a tool's writer, for isobatch's own tools and those of other packages.

    from isobatch.tools.testing import LAWS

    @pytest.mark.parametrize("law", LAWS)
    def test_my_writer(law):
        law("mytrainer")

Each law takes a tool's name and raises AssertionError with the part of the plan that is lost.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from isobatch.errors import InputError
from isobatch.planning.export import Export
from isobatch.planning.plan import plan
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.tools.detect import tool_of
from isobatch.tools.export import export
from isobatch.tools.map import Setting, put, read_settings, unlisted, write_settings
from isobatch.tools.page import Reading, SettingsPage, leaves
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job, Planned
from isobatch.tools.tool import Writer

_BASE: dict[str, Any] = {
    "effective_batch": 256,
    "gpus": 8,
    "micro_batch": 8,
    "lr": 1e-3,
    "duration": "1000st",
    "warmup": "30st",
    "schedule": "cosine",
}
_RAMP = {"convention": "megatron", "duration": "256000sp", "warmup": None}
_FIELDS: dict[str, tuple[Any, ...]] = {
    "lr": ("lr", 1e-3, 2e-3),
    "min_lr": ("min_lr", 0.0, 1e-5),
    "schedule": ("schedule", "cosine", "linear"),
    "warmup_steps": ("warmup", "30st", "60st"),
    "total_steps": ("duration", "1000st", "2000st"),
    "eval_steps": ("eval_every", None, "50st"),
    "save_steps": ("save_every", None, "50st"),
    "log_steps": ("log_every", None, "50st"),
    "optimizer": ("optimizer", "adamw", "adam"),
    "beta1": ("betas", (0.9, 0.95), (0.8, 0.95)),
    "beta2": ("betas", (0.9, 0.95), (0.9, 0.99)),
    "eps": ("eps", 1e-8, 1e-6),
    "momentum": ("momentum", 0.9, 0.8, {"optimizer": "sgd"}),
    "weight_decay": ("weight_decay", 0.1, 0.2),
    "ema_decay": ("ema_decay", None, 0.99),
    "clip_norm": ("clip_norm", 1.0, 0.5),
    "precision": ("precision", None, "bf16"),
    "ramp": ("ramp", None, "64 64 16000", _RAMP),
    "seq_len": ("seq_len", 1024, 2048),
    "drop_last": ("drop_last", False, True, {"dataset_size": 25600}),
    "even_batches": ("even_batches", True, False, {"convention": "transformers"}),
}
"""By the part of a plan: a field of a recipe, two values of it, and the fields beside them. The plans differ
in nothing else."""


class _Instead:
    """A plan with other values in the place of some of its own."""

    def __init__(self, plan: Planned, **values: Any) -> None:
        self.plan, self.values = plan, values

    def __getattr__(self, name: str) -> Any:
        return self.values[name] if name in self.values else getattr(self.plan, name)


def plan_with(fields: Mapping[str, Any] | None = None, **settings: Any) -> Planned:
    """Plans a small run on two nodes.

    Args:
        fields: of the recipe, in the place of the usual ones.
        settings: of `ib.plan`.
    """
    recipe = Recipe(**{**_BASE, **(fields or {})})
    planned: Planned = plan(recipe, Cluster(nodes=2, gpu="H100"), **settings).require()
    return planned


def _warmed(start: float) -> Any:
    grown = plan_with({"optimizer": "sgd"}, policy="grow", rule="linear")
    end, peak = grown.warmup_steps or 0, grown.lr

    def lr_at(step: int) -> float:
        return grown.lr_at(step) if step >= end else start + (peak - start) * step / end

    return _Instead(grown, warmup_lr=start, lr_at=lr_at)


def _changed(name: str, first: Any, second: Any, beside: Mapping[str, Any] | None = None) -> list[Planned]:
    return [plan_with({**(beside or {}), name: value}) for value in (first, second)]


CHANGES: dict[str, Callable[[], list[Planned]]] = {
    **{part: lambda row=row: _changed(*row) for part, row in _FIELDS.items()},  # type: ignore[misc]
    "micro_batch": lambda: [plan_with(), plan_with(max_micro_batch=4)],
    "accumulation": lambda: [plan_with(), plan_with(max_micro_batch=4)],
    "effective_batch": lambda: [plan_with(), plan_with(policy=512, rule="none")],
    "warmup_lr": lambda: [_warmed(0.0), _warmed(1e-4)],
}
"""By the part of a plan, two plans that differ in it alone."""
JOBS = {
    "name": Job(name="another"),
    "command": Job(command=("other.py", "--x")),
    "image": Job(image="registry/image:1"),
    "resume": Job(resume="run/checkpoint-5"),
    "elastic": Job(elastic=True),
    "again": Job(again="isobatch plan job.toml"),
}
_OF_LAUNCHERS = ("elastic", "again")


def _writer(tool: str) -> Writer:
    writer = tool_of(tool).writer
    if writer is None:
        raise InputError(f"{tool} has no writer, so that none of its laws can be tested", field="tool")
    return writer


def _written(tool: str, plan: Planned, job: Job | None = None) -> tuple[str, tuple[str, ...]]:
    """Writes a plan, without the lines of the batches' product: they would hide a lost part."""
    sheet = export(plan, tool, job=job)
    return re.sub("(?m)^# isobatch: .*$", "", sheet.text), tuple(sheet.notes)


def _tried(write: Callable[[], Export]) -> tuple[Export | None, str]:
    """Returns the written text, or None and the message of its refusal."""
    try:
        return write(), ""
    except InputError as error:
        return None, str(error)


def no_part_is_lost(tool: str) -> None:
    """Each part of a plan and of a job changes the file or its notes, or is listed in `leaves_out`."""
    writer, usual = _writer(tool), plan_with()
    silent = {part for part, pair in CHANGES.items() if len({_written(tool, plan) for plan in pair()}) == 1}
    jobs = {part: job for part, job in JOBS.items() if not writer.is_part or part not in _OF_LAUNCHERS}
    silent |= {part for part, job in jobs.items() if _written(tool, usual, job) == _written(tool, usual)}
    left_out = set(writer.leaves_out.split())
    lost, written = sorted(silent - left_out), sorted(left_out - silent)
    assert not lost, f"the writer of {tool} loses {lost}, or does not list them in leaves_out"
    assert not written, f"the writer of {tool} lists {written} in leaves_out, and writes them"


def only_launchers_start_on_any_gpus(tool: str) -> None:
    """A file to add to the user's own says so, and starts no elastic job; another is checked."""
    writer, usual = _writer(tool), plan_with()
    says_part = any("keep its other settings" in note for note in usual.to(tool).notes)
    assert says_part == writer.is_part, f"{tool}: is_part, and a note of the settings beside it"
    elastic, refusal = _tried(lambda: export(usual, tool, job=Job(elastic=True)))
    if writer.is_part:
        assert "starts no script: elastic is for launchers" in refusal, f"{tool} started an elastic job"
        return
    assert elastic is not None, refusal
    assert "ISOBATCH_WORLD_SIZE" not in elastic.text, f"{tool} checks the GPUs of an elastic job"
    assert "ISOBATCH_WORLD_SIZE" in export(usual, tool).text, f"{tool} starts on other GPUs than planned"


def ragged_plans_are_written_or_refused(tool: str) -> None:
    """A plan with unequal micro-batches says how to weight each loss, or is refused with both batches."""
    tuned = Recipe(**{**_BASE, "effective_batch": 32, "gpus": 1, "micro_batch": 2})
    for split in ("ragged", "uneven"):
        ragged = plan(tuned, Cluster(gpus_per_node=3, gpu="H100"), split=split)
        for form in _writer(tool).forms:
            sheet, refusal = _tried(partial(ragged.to, tool, form=form))
            if not _writer(tool).runs_ragged:
                assert "2 × 6 × 3 replicas would be 36 samples a step, not 32" in refusal, form
                continue
            assert sheet is not None, refusal
            text = sheet.text + " ".join(sheet.notes)
            assert "weight each loss by plan.loss_weights(rank)" in text, form
            assert re.search(r"EFFECTIVE_BATCH\W+(value\W+)?32\b", text), form


def ramps_are_written_or_noted(tool: str) -> None:
    """A tool without batch ramps says so in its notes."""
    notes = plan_with({**_RAMP, "ramp": "64 64 16000"}).to(tool).notes
    assert any("no batch ramp" in note for note in notes) != _writer(tool).runs_ramps, notes


def the_map_is_true(tool: str) -> None:
    """The tool's map has each setting both written and read, and its rows are as the tool's code is.

    A row of the engine's has the same value in the whole file, and gives the same field when the file is read
    again; a row of the tool's own code is written or read by it.
    """
    record = tool_of(tool)
    seen: set[str] = set()
    for planned in _plans() if record.reader else ():
        settings = dict(export(planned, tool).settings)
        reading = read_file(settings, tool)
        seen |= reading.used | leaves(settings).keys()
        lacks = [at for at in unlisted(settings, record.settings) if at in reading.used]
        assert not lacks, f"the map of {tool} lacks {lacks}, written and read"
        for row in record.settings:
            if row.reads and row.writes:
                _is_as_mapped(tool, row, leaves(write_settings(planned, (row,))), reading)
    keys = [key for row in record.settings for key in row.key.split()]
    unseen = [key for key in keys if not any(f"{place}.".startswith(f"{key}.") for place in seen)]
    unseen = [key for key in unseen if key not in _read_alone(tool, key)]
    assert not unseen, f"the map of {tool} has {unseen}, neither written nor read"


def _plans() -> Iterator[Planned]:
    yield from (plan for pair in CHANGES.values() for plan in pair())
    for fields in ({"schedule": "wsd"}, {"schedule": "wsd", **_RAMP}, {"optimizer": "muon"}):
        yield plan_with(fields)


def _is_as_mapped(tool: str, row: Setting, written: Mapping[str, Any], reading: Reading) -> None:
    places, alone = leaves(reading.settings), Reading(tool, tool, "", reading.settings)
    differ = [at for at, value in written.items() if places.get(at, value) != value]
    assert not differ, f"{tool} writes {differ} not as its map does"
    read_settings(SettingsPage(reading.settings, alone), (row,))
    for field, value in alone.fields.items() if written.keys() <= places.keys() else ():
        text = f"{tool} reads {row.key} as {field} {reading.fields.get(field)!r}, its map as {value!r}"
        assert reading.fields.get(field) == value, text


def _read_alone(tool: str, key: str) -> set[str]:
    """Returns the settings used by the reader of a file with this one alone."""
    settings: dict[str, Any] = {}
    put(settings, key, 1)
    try:
        return read_file(settings, tool).used
    except InputError:
        return set()


LAWS = (
    no_part_is_lost,
    only_launchers_start_on_any_gpus,
    ragged_plans_are_written_or_refused,
    ramps_are_written_or_noted,
    the_map_is_true,
)
