"""Examines another tool's configuration on a number of GPUs before anything runs: the guard's static twin."""

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from isobatch import _core
from isobatch.errors import InputError, missing
from isobatch.planning.plan import Plan, plan
from isobatch.reason import Reason
from isobatch.recipes.recipe import Recipe
from isobatch.tools.detect import reader
from isobatch.tools.page import Reading
from isobatch.tools.read import complete, count_of, join, read_file
from isobatch.tools.tool import MAX_LINE_CHARACTERS, Case, Issue, Weight
from isobatch.words import count, counted, figure, printable, real

_SOURCES = {name: source for name, _, _, source in _core.rules()}


class Examination(NamedTuple):
    """The issues of a configuration.

    Attributes:
        batch: samples in a step on those GPUs, as the file is; None where it does not say.
        findings: what its author may not have meant, the most expensive first.
        text: all of it in words.
        healthy: whether nothing was found that stops the run or changes the training.
    """

    batch: int | None
    findings: tuple[Issue, ...]
    text: str

    @property
    def healthy(self) -> bool:
        """Whether nothing was found that stops the run or changes the training."""
        return all(finding.weight is Weight.NOTE for finding in self.findings)


def examine(
    path: str | os.PathLike[str], gpus: int | None = None, *, tool: str | None = None, **given: Any
) -> Examination:
    """Examines a configuration on a given number of GPUs.

    Args:
        path: another tool's configuration, as for `Recipe.read`.
        gpus: where it is to run; None: every row of a file that has one for each number of them.
        tool: whose it is; None: found by what is in it.
        given: what the file does not say, as fields of a recipe; `gpus` of the tuned run are `tuned_gpus`.

    Raises:
        InputError: the file cannot be read, or contradicts itself.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "args.json"
    >>> _ = file.write_text('{"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100, "max_grad_norm": 1.0}')
    >>> examine(file, 64, tuned_gpus=8).findings[0].what
    'a step has 512 samples, 8 × the 64 that it was tuned with'
    """
    if gpus is None:
        return _examine_table(read_file(path, tool))
    if type(gpus) is not int or gpus < 1:
        raise InputError(f"gpus must be a whole number from 1, got {gpus!r}", field="gpus")
    for name in ("tuned_gpus", "batch_per_gpu", "accumulation", "model_parallel", "effective_batch"):
        if given.get(name) is not None:
            given[name] = count_of(name, given[name])
    found = read_file(path, tool)
    fields = {
        **found.fields,
        **{("gpus" if name == "tuned_gpus" else name): value for name, value in given.items()},
    }
    tuned: int | None = None
    batch: int | None = None
    made: Plan | None = None
    if "accumulation" in given or all(field != "accumulation" for field, _ in found.faults):
        by_hand = {"gpus" if name == "tuned_gpus" else name for name in given}
        tuned, made = _tuned(fields, found, by_hand, gpus)
        batch = _batch(fields, gpus, tuned)
    known = reader(found.tool)
    assert known.reader is not None
    case = Case(known, found, fields, gpus, batch, tuned, made)
    findings = _ranked((*_general(case), *known.reader.check(case)))
    return Examination(case.batch, findings, "\n".join(_lines(case, findings)))


def _examine_table(found: Reading) -> Examination:
    """Examines all rows of a file; one that cannot be read is an error here, as nothing else is looked at."""
    known = reader(found.tool).reader
    if known is None or known.table is None:
        raise missing("gpus", "the number of GPUs that it is to run on, by --gpus N", file=found.file)
    for to, error in found.faults:
        if to == "scale_config":
            raise error
    rows, issues = known.table(found)
    findings = _ranked(issues)
    lines = [_line(f"{found.file}: {found.title}, {rows}"), *map(_line, found.notes)]
    lines += [*(error.message for _, error in found.faults), *_numbered(findings)]
    return Examination(found.fields.get("effective_batch"), findings, "\n".join(lines))


def _ranked(issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """Sorts issues by their weight, the most expensive first."""
    return tuple(sorted(issues, key=lambda issue: list(Weight).index(issue.weight)))


def _batch(fields: Mapping[str, Any], gpus: int, tuned: int | None) -> int | None:
    """Samples in a step there: a batch of all stays where the tool works the accumulation out, a batch per GPU grows with them."""
    if fields.get("effective_batch") is not None and not {"batch_per_gpu", "accumulation"} <= fields.keys():
        return int(fields["effective_batch"])
    micro = fields.get("batch_per_gpu") or fields.get("micro_batch")
    replicas = gpus // (fields.get("model_parallel") or 1)
    if micro is None or not replicas:
        return tuned
    return int(micro) * int(fields.get("accumulation") or 1) * replicas


def _tuned(
    fields: Mapping[str, Any], found: Reading, by_hand: Collection[str], gpus: int
) -> tuple[int | None, Plan | None]:
    """Computes the batch of the tuned run, and the plan to keep it there."""
    try:
        done = complete(fields, found.keys)
    except InputError as error:
        found.notes.append(error.message)
        return None, None
    join(done, [found], {name: found for name in found.fields if name not in by_hand})
    batch = done.get("effective_batch")
    if batch is None:
        return batch, None
    recipe = _recipe({"lr": 1.0, **done}, found)  # the split does not depend on it
    if recipe is None:
        return batch, None
    made = plan(recipe, gpus)
    return batch, None if made.status == "infeasible" else made


def _recipe(fields: Mapping[str, Any], found: Reading) -> Recipe | None:
    """Makes the recipe, if need be without lengths of unknown units: a length in epochs without the dataset's size."""
    lengths = ("duration", "warmup", "schedule", "ramp")
    kept = {name: value for name, value in fields.items() if name not in lengths}
    for last, part in enumerate((fields, kept)):
        try:
            return Recipe(**part)
        except InputError as error:
            if last:
                found.notes.append(error.message)
    return None


def _split(case: Case, batch: int) -> str:
    """How the file's micro-batch makes the batch there; nothing where it does not."""
    micro = case.fields.get("batch_per_gpu")
    if type(micro) is not int or micro < 1 or not case.replicas or batch % (micro * case.replicas):
        return ""
    return f" = {micro} × {batch // (micro * case.replicas)} × {counted(case.replicas, 'replica')}"


def _line(text: str) -> str:
    """One line, whatever is in the names of a file."""
    return printable(text, MAX_LINE_CHARACTERS)


def _lines(case: Case, findings: Sequence[Issue]) -> Any:
    yield _line(f"{case.reading.file}: {case.reading.title}, on {counted(case.gpus, 'GPU')}")
    if case.batch is None:
        yield "The file does not say the batch: give --set batch_per_gpu=N or effective_batch=N."
    else:
        yield f"As it is, a step has {count(case.batch)} samples{_split(case, case.batch)}."
    if case.tuned is None:
        yield "The GPUs that it was tuned on are not known: --set gpus=N compares with them."
    elif case.growth == 1:
        yield "That is the batch that it was tuned with: the learning rate stays."
    yield from map(_line, case.reading.notes)
    yield from (error.message for to, error in case.reading.faults if to not in case.fields)
    yield from _numbered(findings)


def _numbered(findings: Sequence[Issue]) -> Iterator[str]:
    for number, finding in enumerate(findings, start=1):
        if number == 1 or finding.weight is not findings[number - 2].weight:
            yield f"{finding.weight}:"
        yield f"{number}. {finding}"
    if not findings:
        yield "Nothing found."


def _general(case: Case) -> Iterator[Issue]:
    """Finds issues of any tool: the batch, the rule of the learning rate, the lengths, names, uneven steps."""
    yield from _undivided(case)
    yield from _misspelt(case)
    yield from _too_long(case)
    yield from _grown(case)
    yield from _rule(case)
    yield from _lengths(case)
    yield from _uneven(case)


def _undivided(case: Case) -> Iterator[Issue]:
    parallel = case.fields.get("model_parallel") or 1
    if case.gpus % parallel:
        yield Issue.stop(
            f"{counted(case.gpus, 'GPU')} are no multiple of the {parallel} that hold one replica",
            f"{case.reading.keys.get('model_parallel', 'model_parallel')} splits the model",
            "the product of tensor, pipeline and context parallelism divides the GPUs",
            f"{case.gpus // parallel * parallel or parallel} GPUs",
        )


def _misspelt(case: Case) -> Iterator[Issue]:
    for name, meant in case.reading.misspelt.items():
        yield Issue(
            f"{name} has no effect, or stops the run",
            f"{case.reading.title} has no such setting; {meant} is one",
            "the names in the tool's own configuration",
            meant,
        )


def _too_long(case: Case) -> Iterator[Issue]:
    """Finds a warmup behind the run's end, and a batch above the dataset."""
    warmup, run = (str(case.fields.get(name) or "") for name in ("warmup", "duration"))
    same = next(
        (unit for unit in ("st", "ep", "sp", "tok") if warmup.endswith(unit) and run.endswith(unit)), ""
    )
    if same and float(warmup.removesuffix(same)) >= float(run.removesuffix(same)):
        yield Issue(
            f"the warmup does not end before the run: {warmup} of {run}",
            f"{case.key('warmup')} counts in the same unit as {case.key('duration')}",
            "the learning rate never reaches its peak; Megatron stops",
            case.line("warmup", "...") + "  (below the run's length)",
            Weight.STOPS if case.tool.name == "megatron" else Weight.CHANGES,
        )
    size = case.fields.get("dataset_size")
    if size and case.batch and case.batch > size:
        yield Issue(
            f"a step has {count(case.batch)} samples, the dataset {count(size)}",
            "an epoch is less than a step",
            "samples repeat within a step, or the loader is empty",
            "fewer GPUs, or a smaller batch",
        )


def _grown(case: Case) -> Iterator[Issue]:
    if case.growth == 1:
        return
    plan = case.plan
    change = ""
    if plan is not None:
        by_total = "global" in case.key("accumulation")  # the tool works the accumulation out
        parts = plan.effective_batch if by_total else plan.accumulation
        change = "; ".join((case.line("batch_per_gpu", plan.micro_batch), case.line("accumulation", parts)))
    yield Issue(
        f"a step has {count(case.batch or 0)} samples, {figure(case.growth)} × the {count(case.tuned or 0)} that it was tuned with",
        f"{case.key('batch_per_gpu')} counts per GPU, and the GPUs changed",
        "torch, DistributedDataParallel: each process has its own loader",
        change or "no split of the tuned batch fits these GPUs: isobatch plan --from lists what would",
    )


def _rule(case: Case) -> Iterator[Issue]:
    """The learning rate stays as it is in the file, whatever the batch does."""
    lr, name = case.fields.get("lr"), case.fields.get("optimizer", "adamw")
    if case.growth == 1 or lr is None:
        return
    rule, factor = ("linear", case.growth) if name == "sgd" else ("sqrt", case.growth**0.5)
    yield Issue(
        f"the learning rate {real(lr)} follows no rule: the batch is {figure(case.growth)} × the tuned one, the learning rate the same",
        f"nothing rescales it; for {name} the usual rule is {rule}: {real(lr * factor)} at this batch. With the tuned batch it stays",
        _SOURCES[rule],
        case.line("lr", real(lr * factor)) + "  (only if the batch is to move)",
    )


def _lengths(case: Case) -> Iterator[Issue]:
    """A number of steps is a number of samples times the batch."""
    if case.growth == 1:
        return
    # As a plan rounds them: the run takes a step for what is left, the warmup ends at the nearest.
    for field, what, whole in (
        ("duration", "the run", math.ceil),
        ("warmup", "the warmup", lambda steps: math.floor(steps + 0.5)),
    ):
        length = case.fields.get(field)
        counted_anew = case.key(field) == "num_train_epochs"  # a checkpoint's steps, which its epochs make
        if isinstance(length, str) and length.endswith("st") and not counted_anew:
            steps = float(length.removesuffix("st"))
            yield Issue(
                f"{what} takes {figure(case.growth)} × the samples of the tuned one",
                f"{case.key(field)} is {count(steps)} steps, and a step has more or fewer samples now",
                "samples = steps × batch",
                case.line(field, count(max(1, whole(round(steps / case.growth, 6)))).replace(",", ""))
                + "  (for the tuned samples, if the batch moves)",
            )


def _uneven(case: Case) -> Iterator[Issue]:
    plan = case.plan
    if plan is not None and Reason.UNEVEN_TAIL in plan.reasons:
        yield Issue.note(
            "the last step of an epoch is smaller, and the mean over its micro-batches weighs its samples more",
            Reason.UNEVEN_TAIL.text,
            Reason.UNEVEN_TAIL.source,
            "drop the incomplete batch, or multiply each micro-batch's loss by plan.loss_weights(rank)",
        )
    if plan is not None and Reason.PADDED in plan.reasons:
        yield Issue.note(
            f"an epoch repeats {count(plan.padded_samples or 0)} samples",
            Reason.PADDED.text,
            Reason.PADDED.source
            or "torch DistributedSampler, which repeats samples so that each rank has as many",
            "drop the incomplete batch, or leave it: the plan counts them",
        )
