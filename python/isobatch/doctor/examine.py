"""Examines another tool's configuration on a number of GPUs before anything runs: the guard's static twin.

What `isobatch plan` refuses is a finding here by construction: `examine` joins the fields, makes the recipe
and plans it by the functions that the command uses, and turns each refusal into an issue.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from isobatch.doctor.checks import check_any_tool
from isobatch.doctor.record import FileRecord, findings_of
from isobatch.errors import InputError, missing
from isobatch.planning.plan import Plan, plan
from isobatch.planning.refusal import refusal
from isobatch.reason import Reason
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.tools.beside import merge, named_files
from isobatch.tools.detect import reader
from isobatch.tools.page import Reading
from isobatch.tools.read import count_of, joined_fields, missing_fields, read_file
from isobatch.tools.tool import ALIASES, MAX_LINE_CHARACTERS, Case, Issue, Weight
from isobatch.words import count, counted, printable

_OF_THE_SPLIT = (
    Reason.NOT_DIVISIBLE,
    Reason.MULTIPLE_UNMET,
    Reason.ACCUMULATION_UNMET,
    Reason.MICRO_BATCH_UNMET,
    Reason.MODEL_PARALLEL,
    Reason.EXPERT_PARALLEL,
    Reason.RAMP_NOT_DIVISIBLE,
)
"""Refusals of the tuned batch on these GPUs: no news if another batch is trained, or the run stops."""
_ABOUT = {
    **dict.fromkeys(_OF_THE_SPLIT, "effective_batch"),
    Reason.MODEL_PARALLEL: "model_parallel",
    Reason.EXPERT_PARALLEL: "expert_parallel",
    Reason.RAMP_NOT_DIVISIBLE: "ramp",
    Reason.BATCH_ABOVE_DATASET: "dataset_size",
    Reason.RUN_BELOW_STEP: "duration",
    Reason.SCHEDULE_UNMET: "schedule",
}
"""The field of a recipe that a refusal is about."""
_SPLITTING = ("effective_batch", "micro_batch", "batch_per_gpu", "accumulation", "gpus", "model_parallel")
_MANY_STEPS = 720_720
"""Steps of an epoch of unknown size: it is then neither too short nor uneven, also where it has whole
rollouts of several steps."""


class Examination(NamedTuple):
    """The issues of a configuration.

    Attributes:
        gpus: of the run to come; None where every row of a file was examined.
        batch: samples in a step on those GPUs, as the file is; None where it does not say.
        tuned: samples in a step of the tuned run; None where its GPUs are not known.
        findings: what its author may not have meant, the most expensive first.
        text: all of it in words.
    """

    reading: Reading
    gpus: int | None
    batch: int | None
    tuned: int | None
    findings: tuple[Issue, ...]
    text: str

    @property
    def healthy(self) -> bool:
        """Whether nothing stops the run, changes the training or is refused by isobatch plan."""
        return all(finding.weight is Weight.NOTE for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Returns the examination for JSON; an unknown setting or line of a finding is null."""
        record = FileRecord(
            file=self.reading.file or None,
            tool=self.reading.tool or None,
            gpus=self.gpus,
            batch=self.batch,
            tuned_batch=self.tuned,
            findings=findings_of(self.findings, self.reading),
            notes=[*self.reading.notes],
        )
        return dict(msgspec.to_builtins(record))


def examine(
    path: str | os.PathLike[str],
    gpus: int | Cluster | None = None,
    *,
    tool: str | None = None,
    beside: Sequence[str | os.PathLike[str]] = (),
    **values: Any,
) -> Examination:
    """Examines a configuration on a given number of GPUs.

    Args:
        path: another tool's configuration, as for `Recipe.read`.
        gpus: where it is to run: their number, or a cluster; None: every row of a file that has one for each
            number of them.
        tool: whose it is; None: found by what is in it.
        beside: other files of the same run, which must not contradict it; DeepSpeed's file that it names is
            read by itself.
        values: what the file does not say, as fields of a recipe; `gpus` of the tuned run are `tuned_gpus`.

    Raises:
        InputError: the file cannot be read.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "args.json"
    >>> _ = file.write_text('{"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100}')
    >>> examine(file, 64, tuned_gpus=8).findings[0].what
    'a step has 512 samples, 8 × the 64 that it was tuned with'
    """
    if gpus is None:
        return _examine_table(read_file(path, tool))
    if not isinstance(gpus, Cluster) and (type(gpus) is not int or gpus < 1):
        raise InputError(f"gpus must be a whole number from 1, got {gpus!r}", field="gpus")
    cluster = gpus if isinstance(gpus, Cluster) else Cluster(gpus_per_node=gpus)
    for name in ("tuned_gpus", "batch_per_gpu", "accumulation", "model_parallel", "effective_batch"):
        if values.get(name) is not None:
            values[name] = count_of(name, values[name])
    reading = read_file(path, tool)
    own = {("gpus" if name == "tuned_gpus" else name): value for name, value in values.items()}
    world = cluster.nodes * cluster.gpus_per_node
    others = [read_file(file, "deepspeed") for file in named_files(reading)]
    others += [read_file(file) for file in beside]
    issues = [*_join(reading, others, world)]
    reading.notes += [
        error.message for to, error in reading.faults if to not in own and _is_open(reading, error)
    ]
    command = _plan_command([reading, *others], own, cluster, tool)
    trial = _try_plan([reading, *others], own, cluster, command)
    reading.notes += [f"{page.file}: {note}" for page in others for note in ("read too", *page.notes)]
    fields = {**reading.fields, **own}
    if (total := reading.fields.get("effective_batch")) is not None:
        fields["effective_batch"] = total  # one that is typed is the tuned run's
    batch = _batch(fields, world, total, trial.tuned) if _has_accumulation(reading, own) else None
    known = reader(reading.tool)
    assert known.reader is not None
    nodes = cluster.nodes if isinstance(gpus, Cluster) else None
    case = Case(known, reading, fields, world, batch, trial.tuned, trial.plan, command, nodes)
    reading.notes[:0] = _of_the_batch(case)
    issues += [*check_any_tool(case), *known.reader.check(case)]
    findings = _ranked([*issues, *_not_said_yet(trial.refusals, issues, case)])
    text = "\n".join(_lines(case, findings))
    return Examination(reading, world, batch, trial.tuned, findings, text)


def _examine_table(reading: Reading) -> Examination:
    """Examines all rows of a file; an unreadable row is an error here."""
    known = reader(reading.tool).reader
    if known is None or known.table is None:
        raise missing("gpus", "the number of GPUs that it is to run on, by --gpus N", file=reading.file)
    for to, error in reading.faults:
        if to == "scale_config":
            raise error
    rows, issues = known.table(reading)
    findings = _ranked(issues)
    lines = [_line(f"{reading.file}: {reading.title}, {rows}"), *map(_line, reading.notes)]
    lines += [*(error.message for _, error in reading.faults), *_numbered(findings)]
    text = "\n".join(lines)
    return Examination(reading, None, reading.fields.get("effective_batch"), None, findings, text)


# ---- what isobatch plan says of the same file ----


class _Trial(NamedTuple):
    """The result of the attempt to plan a file.

    Attributes:
        tuned: samples in a step of the tuned run; None where its GPUs are not known.
        plan: None where the recipe is not known, or cannot be trained there.
        refusals: each with its reason; None of a setting that cannot be read.
    """

    tuned: int | None
    plan: Plan | None
    refusals: list[tuple[Reason | None, Issue]]


def _join(reading: Reading, others: Sequence[Reading], gpus: int) -> Iterator[Issue]:
    """Adds the fields of the run's other files to a file's; contradictions are left out, as issues."""
    if not others:
        return
    for conflict in merge([reading, *others], strict=True).conflicts:
        yield conflict.issue or _refused(conflict.field, conflict.error)
        for name in (conflict.field, ALIASES.get(conflict.field, "")):
            conflict.page.drop(name)
    run = merge([reading, *others])
    names = ("effective_batch", "batch_per_gpu", "accumulation")
    total, micro, parts = (run.fields.get(name) for name in names)
    replicas = gpus // (run.fields.get("model_parallel") or 1)
    if total and micro and parts and total != micro * parts * replicas:
        yield Issue.stop(
            f"{count(total)} samples are not {micro} × {parts} × {counted(replicas, 'replica')}",
            f"{run.keys['effective_batch']} must be their product on these GPUs",
            "transformers, integrations/deepspeed.py: train_batch_size (calculated)",
            f'{run.keys["effective_batch"]}: {micro * parts * replicas}, or "auto", in '
            f"{run.owners['effective_batch'].file}",
            "effective_batch",
        )
        run.owners["effective_batch"].drop("effective_batch")
        run = merge([reading, *others])
    reading.fields, reading.keys = run.fields, run.keys
    reading.faults += [
        (to, error)
        for page in others
        for to, error in page.faults
        if to not in run.fields and not _is_open(page, error)
    ]


def _plan_command(
    pages: Sequence[Reading], own: Mapping[str, Any], cluster: Cluster, tool: str | None
) -> str:
    """Writes the command to plan the files there, with placeholders for missing fields."""
    reading = pages[0]
    where = f"--gpus {cluster.gpus_per_node}"
    if cluster.nodes > 1:
        where = f"--nodes {cluster.nodes} --gpus-per-node {cluster.gpus_per_node}"
    words = ["--tool", tool] if tool else []
    needs = {name: example for name, example, _ in missing_fields({**reading.fields, **own}, reading.keys)}
    words += [word for name, value in {**own, **needs}.items() for word in ("--set", f"{name}={value}")]
    files = [word for page in pages for word in ("--from", page.file)]
    return " ".join(["isobatch plan", *map(shlex.quote, (*files, *words)), where])


def _try_plan(pages: Sequence[Reading], own: Mapping[str, Any], cluster: Cluster, command: str) -> _Trial:
    """Plans the files as `isobatch plan` does, past refused settings, and with stand-ins for gaps."""
    reading = pages[0]
    refusals: list[tuple[Reason | None, Issue]] = [
        (None, _refused(to, error))
        for to, error in reading.faults
        if to not in own and not _is_open(reading, error)
    ]
    needs = {
        name: f"A plan also needs --set {name}={example}: {why}"
        for name, example, why in missing_fields({**reading.fields, **own}, reading.keys)
    }
    reading.notes += [text for name, text in needs.items() if name not in ("gpus", "effective_batch")]
    gaps = [(to, error) for to, error in reading.faults if to not in own and error.field in reading.gaps]
    reading.notes += [f"A plan also needs --set {to}=VALUE: {error.message}" for to, error in gaps]
    values = {**_stand_ins(needs, {**reading.fields, **own}, cluster), **own}
    sound = [replace(page, faults=[], fields=dict(page.fields)) for page in pages]
    while True:
        try:
            recipe = Recipe(**joined_fields(sound, values))
            break
        except InputError as error:
            if error.field in own and error.is_illegal_value:
                raise  # what was typed is no finding in the file
            refusals += [(None, _refused(cause.field or "", cause)) for cause in error.causes or (error,)]
            wrong = {*error.fields} - {*_SPLITTING}
            given = [*(page.fields for page in sound), values]
            if wrong.isdisjoint(set().union(*given)):
                return _Trial(None, None, refusals)
            for fields in given:
                for name in wrong:
                    fields.pop(name, None)
    if "effective_batch" in needs or not _has_accumulation(reading, own):
        return _Trial(None, None, refusals)
    planned = plan(recipe, cluster, **reading.demands)
    tuned = None if "gpus" in needs else recipe.effective_batch
    if planned.status != "infeasible":
        return _Trial(tuned, None if tuned is None else planned, refusals)
    for reason, why in refusal(planned, ()):
        text = f"isobatch plan refuses {counted(planned.world_size, 'GPU')}: {why}"
        source = reason.source or "docs/reasons.md"
        todo = f"{command} lists what would work"
        refusals.append(
            (reason, Issue(text, reason.text, source, todo, Weight.REFUSED, _ABOUT.get(reason, "")))
        )
    return _Trial(tuned, None, refusals)


def _stand_ins(needs: Iterable[str], fields: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Returns values for missing fields, chosen to cause no refusal."""
    parallel = fields.get("model_parallel") or 1
    replicas = max(1, cluster.nodes * cluster.gpus_per_node // parallel)
    micro = fields.get("batch_per_gpu") or fields.get("micro_batch") or 1
    batch = fields.get("effective_batch") or micro * (fields.get("accumulation") or 1) * replicas
    values = {"lr": 1.0, "gpus": replicas * parallel, "effective_batch": batch, "seq_len": 1}
    values["dataset_size"] = batch * _MANY_STEPS
    return {name: values[name] for name in needs}


def _has_accumulation(reading: Reading, own: Mapping[str, Any]) -> bool:
    """Tells whether the accumulation is known: a file may say it in a way that only the run can read."""
    return "accumulation" in own or all(field != "accumulation" for field, _ in reading.faults)


def _is_open(reading: Reading, error: InputError) -> bool:
    """Tells whether a refused setting lacks a value, or is "auto", to be filled in by the run."""
    if error.field in reading.gaps:
        return True
    return str(reading.value_of(error.field or "")).strip().lower() == "auto"


def _refused(to: str, error: InputError) -> Issue:
    """Makes the finding of a refused setting; `to` is the recipe's field to give in its place."""
    fields = (*Recipe.__struct_fields__, "batch_per_gpu")
    todo = f"correct it, or give --set {to}=VALUE" if to in fields else "correct it"
    if (error.file or "").partition(":")[0].endswith((".py", ".sh", ".bash", ".sbatch", ".slurm")):
        todo += ", or start the script once, which reads it exactly: isobatch doctor -- COMMAND"
    text = f"isobatch plan refuses: {error.message}"
    return Issue(text, "no plan can be made of it", "docs/tools.md", todo, Weight.REFUSED, error.field or to)


def _not_said_yet(
    refusals: Iterable[tuple[Reason | None, Issue]], issues: Sequence[Issue], case: Case
) -> Iterator[Issue]:
    """Yields the refusals without a finding of their own."""
    stops = any(issue.weight is Weight.STOPS for issue in issues)
    fields = {issue.field for issue in issues if issue.field and issue.weight is not Weight.NOTE}
    for reason, issue in refusals:
        if reason in _OF_THE_SPLIT and (stops or case.growth != 1):
            continue
        if reason is None or issue.field not in fields:
            yield issue


def _batch(fields: Mapping[str, Any], gpus: int, total: int | None, tuned: int | None) -> int | None:
    """Computes the samples in a step there: a file's `total` stays, a batch per GPU grows with the GPUs.

    A batch that was typed is the tuned run's: it is the file's where the file leaves one to the run.
    """
    if _has_no_batch(fields):
        return None
    micro = fields.get("batch_per_gpu") or fields.get("micro_batch")
    replicas = gpus // (fields.get("model_parallel") or 1)
    is_typed = fields.get("effective_batch") is not None
    if total is None and micro and replicas and ("accumulation" in fields or not is_typed):
        return int(micro) * int(fields.get("accumulation") or 1) * replicas
    return int(fields["effective_batch"]) if is_typed else tuned


def _has_no_batch(fields: Mapping[str, Any]) -> bool:
    """Tells whether a number of the batch is below 1: it is refused elsewhere."""
    names = ("batch_per_gpu", "micro_batch", "accumulation", "effective_batch")
    return any(fields.get(name, 1) < 1 for name in names if fields.get(name) is not None)


# ---- in words ----


def _ranked(issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """Sorts issues by their weight, the most expensive first."""
    return tuple(sorted(issues, key=lambda issue: list(Weight).index(issue.weight)))


def _of_the_batch(case: Case) -> Iterator[str]:
    """Yields the unknowns of the batch, and how to check the file once it is changed."""
    if case.batch is None and not _has_no_batch(case.fields):
        yield "The file does not say the batch: give --set batch_per_gpu=N or effective_batch=N."
    if case.tuned is None and case.fields.get("gpus") is None:
        yield (
            "The GPUs that it was tuned on are not known: --set gpus=N, or its batch by --set "
            "effective_batch=N, compares with the tuned run."
        )
    if case.growth != 1 and case.fields.get("effective_batch") is None:
        yield (
            f"After the change, check the file by its tuned batch: isobatch doctor {case.reading.file} "
            f"--set effective_batch={case.tuned} --gpus {case.gpus}"
            f"{' (without --set gpus)' if case.fields.get('gpus') else ''}"
        )


def _split(case: Case, batch: int) -> str:
    """Writes how the file's micro-batch makes the batch there; nothing where it does not."""
    micro = case.fields.get("batch_per_gpu")
    if type(micro) is not int or micro < 1 or not case.replicas or batch % (micro * case.replicas):
        return ""
    return f" = {micro} × {batch // (micro * case.replicas)} × {counted(case.replicas, 'replica')}"


def _line(text: str) -> str:
    """Writes a text in one line, whatever is in the names of a file."""
    return printable(text, MAX_LINE_CHARACTERS)


def _lines(case: Case, findings: Sequence[Issue]) -> Iterator[str]:
    yield _line(f"{case.reading.file}: {case.reading.title}, on {counted(case.gpus, 'GPU')}")
    if case.batch is not None:
        yield f"As it is, a step has {counted(case.batch, 'sample')}{_split(case, case.batch)}."
    if case.tuned is not None and case.growth == 1:
        yield "That is the batch that it was tuned with: the learning rate stays."
    yield from map(_line, case.reading.notes)
    yield from _numbered(findings)


def _numbered(findings: Sequence[Issue]) -> Iterator[str]:
    for number, finding in enumerate(findings, start=1):
        if number == 1 or finding.weight is not findings[number - 2].weight:
            yield f"{finding.weight}:"
        yield f"{number}. {finding}"
    if not findings:
        yield "Nothing found."
