"""Checks for the configurations of every tool: batch, learning rate and lengths, names, epochs."""

import codecs
import math
from collections.abc import Iterator
from pathlib import Path

from isobatch import _core
from isobatch.files.whole import read_bytes
from isobatch.planning.plan import plan
from isobatch.reason import Reason
from isobatch.recipes.recipe import Recipe
from isobatch.tools.parse import SHELLS
from isobatch.tools.read import BINARY
from isobatch.tools.tool import Case, Issue, Weight
from isobatch.words import count, counted, figure, number_of, real

_OF_RULE = ("optimizer", "noise_scale")
"""Fields of a recipe by which `rule="auto"` chooses."""
_SOURCES = {name: source for name, _, _, source in _core.rules()}


def check_any_tool(case: Case) -> Iterator[Issue]:
    """Finds issues of any tool: batch, learning rate, lengths, names, uneven steps."""
    yield from _bytes(case.reading.file)
    yield from _undivided(case)
    yield from _misspelt(case)
    yield from _too_long(case)
    yield from _grown(case)
    yield from _rule(case)
    yield from _lengths(case)
    yield from _uneven(case)


def _undivided(case: Case) -> Iterator[Issue]:
    for field, unit, split, source in (
        (
            "expert_parallel",
            "one set of experts",
            "the experts",
            "the GPUs are whole sets of experts: docs/reasons.md, expert_parallel",
        ),
        (
            "model_parallel",
            "one replica",
            "the model",
            "the product of tensor, pipeline and context parallelism divides the GPUs",
        ),
    ):
        gpus = case.fields.get(field) or 1
        if case.gpus % gpus:
            yield Issue.stop(
                f"{counted(case.gpus, 'GPU')} are not a multiple of the {gpus} that hold {unit}",
                f"{case.reading.keys.get(field, field)} splits {split}",
                source,
                f"{case.gpus // gpus * gpus or gpus} GPUs",
                field,
            )


def _bytes(file: str) -> Iterator[Issue]:
    """Finds byte order marks, carriage returns and UTF-16, fatal to bash or to the tool."""
    path = Path(file if Path(file).exists() else file.rpartition(":")[0])
    if not path.is_file() or path.suffix.lower() in BINARY:
        return
    data = read_bytes(path)
    head = data.removeprefix(codecs.BOM_UTF8)
    is_shell = path.suffix.lower() in SHELLS or (head.startswith(b"#!") and b"sh" in head.splitlines()[0])
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield Issue.stop(
            "the file is in UTF-16",
            "bash and the tools read UTF-8; PowerShell's > writes UTF-16",
            "Python, Path.read_text; measured on transformers 5.24",
            f"iconv -f UTF-16 -t UTF-8 {path.name} > NEW",
        )
    elif data.startswith(codecs.BOM_UTF8) and (is_shell or path.suffix.lower() in (".json", ".toml")):
        yield Issue.stop(
            "the file begins with a byte order mark",
            "bash takes it as a part of the first command, so that `#!` and `set -e` are unknown and sbatch "
            "refuses the script; JSON and TOML may not have one",
            "bash 5.2; Python, json.loads, tomllib.loads",
            f"sed -i '1s/^\\xEF\\xBB\\xBF//' {path.name}",
        )
    if is_shell and b"\r" in data:
        yield Issue.stop(
            f"line ends are CRLF, in {counted(data.count(bytes([13])), 'line')}",
            "bash takes the carriage return as a part of the line's last word: `set -e` and a line that goes "
            "on with \\ fail, and sbatch refuses the script",
            "bash 5.2; Slurm, sbatch: DOS line breaks",
            f"sed -i 's/\\r$//' {path.name}",
        )


def _misspelt(case: Case) -> Iterator[Issue]:
    for name, meant in case.reading.misspelt.items():
        yield Issue(
            f"{name} has no effect, or stops the run",
            f"{case.reading.title} has no such setting; {meant} is one",
            "the names in the tool's own configuration",
            meant,
            field=name,
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
            "warmup",
        )
    size = case.fields.get("dataset_size")
    if size and case.batch and case.batch > size:
        yield Issue(
            f"a step has {counted(case.batch, 'sample')}, the dataset {count(size)}",
            "an epoch is less than a step",
            "samples repeat within a step, or the loader is empty",
            "fewer GPUs, or a smaller batch",
            field="dataset_size",
        )


def _grown(case: Case) -> Iterator[Issue]:
    if case.growth == 1:
        return
    cause = f"{case.key('batch_per_gpu')} counts per GPU, and the GPUs changed"
    source = "torch, DistributedDataParallel: each process has its own loader"
    change = f"no split of the tuned batch fits these GPUs: {case.command} lists what would"
    if case.reading.fields.get("effective_batch") is not None:
        cause, source = f"{case.key('effective_batch')} counts all GPUs", "the same batch at every number"
        change = case.line("effective_batch", case.tuned)
    elif (plan := case.plan) is not None:
        by_total = "global" in case.key("accumulation")  # the tool works the accumulation out
        parts = plan.effective_batch if by_total else plan.accumulation
        change = "; ".join((case.line("batch_per_gpu", plan.micro_batch), case.line("accumulation", parts)))
    yield Issue(
        f"a step has {counted(case.batch or 0, 'sample')}, {figure(case.growth)} × the "
        f"{count(case.tuned or 0)} that it was tuned with",
        cause,
        source,
        change,
        field="batch_per_gpu",
    )


def _rule(case: Case) -> Iterator[Issue]:
    """The learning rate stays as it is in the file, whatever the batch does."""
    lr, name = case.fields.get("lr"), case.fields.get("optimizer", "adamw")
    if case.growth == 1 or lr is None or case.tuned is None or case.batch is None:
        return
    known = {key: case.fields[key] for key in _OF_RULE if case.fields.get(key) is not None}
    moved = plan(Recipe(effective_batch=case.tuned, lr=lr, **known), 1, policy=case.batch)
    rate = real(moved.lr or lr)
    yield Issue(
        f"the learning rate {real(lr)} follows no rule: the batch is {figure(case.growth)} × the tuned one, "
        "the learning rate the same",
        f"nothing rescales it; for {name} the usual rule is {moved.rule}: {rate} at this batch. With "
        "the tuned batch it stays",
        _SOURCES[moved.rule],
        case.line("lr", rate) + "  (only if the batch is to move)",
        field="lr",
    )


def _lengths(case: Case) -> Iterator[Issue]:
    """A number of steps is a number of samples times the batch."""
    if case.growth == 1:
        return
    # As a plan rounds them: the run takes a step for what is left, the warmup ends at the nearest.
    for field, name, whole in (
        ("duration", "the run", math.ceil),
        ("warmup", "the warmup", lambda steps: math.floor(steps + 0.5)),
    ):
        length = case.fields.get(field)
        # A share of the run follows it, as a checkpoint's steps follow its epochs.
        share = number_of(str(case.reading.value_of(case.key(field)))) or 1
        is_counted = case.key(field) == "num_train_epochs" or share < 1
        if isinstance(length, str) and length.endswith("st") and not is_counted:
            steps = float(length.removesuffix("st"))
            yield Issue(
                f"{name} takes {figure(case.growth)} × the samples of the tuned one",
                f"{case.key(field)} is {counted(steps, 'step')}, and a step has more or fewer samples now",
                "samples = steps × batch",
                case.line(field, count(max(1, whole(round(steps / case.growth, 6)))).replace(",", ""))
                + "  (for the tuned samples, if the batch moves)",
                field=field,
            )


def _uneven(case: Case) -> Iterator[Issue]:
    plan = case.plan
    if plan is not None and Reason.UNEVEN_TAIL in plan.reasons:
        yield Issue.note(
            "the last step of an epoch is smaller, and the mean over its micro-batches weighs its samples "
            "more",
            Reason.UNEVEN_TAIL.text,
            Reason.UNEVEN_TAIL.source,
            "drop the incomplete batch, or multiply each micro-batch's loss by plan.loss_weights(rank)",
            "dataset_size",
        )
    if plan is not None and Reason.PADDED in plan.reasons:
        yield Issue.note(
            f"an epoch repeats {counted(plan.padded_samples or 0, 'sample')}",
            Reason.PADDED.text,
            Reason.PADDED.source
            or "torch DistributedSampler, which repeats samples so that each rank has as many",
            "drop the incomplete batch, or leave it: the plan counts them",
            "dataset_size",
        )
