"""A run's real settings, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isobatch.equivalence.running import Running
from isobatch.equivalence.running_recipe import Mismatch, shown_value
from isobatch.words import count, counted, few, figure, real

_RATES = 3
"""Learning rates that are shown of the first steps, and of the rest of the run."""


def text_of(running: Running, different: Sequence[Mismatch]) -> str:
    """Describes a run, and its differences from its command."""
    return "\n".join(_lines(running, different))


def _lines(running: Running, different: Sequence[Mismatch]) -> Iterator[str]:
    yield f"Runs {running.title}, seen for {running.seconds:.0f} s and ended before its second optimizer step"
    if running.effective_batch is None:
        passes = counted(running.accumulation, "pass", "passes")
        yield f"A step: {counted(running.ranks, 'rank')} × {passes} of a batch that was not seen"
    else:
        yield (
            f"A step has {counted(running.effective_batch, 'sample')}: {counted(running.ranks, 'rank')} × "
            f"{counted(running.accumulation, 'pass', 'passes')} × "
            f"{counted(running.micro_batch or 0, 'sample')}"
        )
    size = running.dataset_size
    yield "Dataset: its size was not seen" if size is None else f"Dataset: {counted(size, 'row')}"
    yield f"Optimizer: {running.optimizer} of {counted(running.parameters, 'parameter')}"
    yield from (f"  {_group_line(group)}" for group in running.groups)
    clip = running.clip_norm
    yield "Clipping: none in this step" if clip is None else f"Clipping: gradient norm at most {real(clip)}"
    yield from _schedule_lines(running)
    yield from running.notes
    if different:
        yield "Not as the command says:"
        yield from (
            f"  {difference.field}: expected {difference.stated}, runs {difference.observed}"
            for difference in different
        )
    elif running.stated:
        yield "As the command says."


def _group_line(group: Mapping[str, Any]) -> str:
    names = ("initial_lr" if "initial_lr" in group else "lr", "betas", "eps", "momentum", "weight_decay")
    values = {name: group[name] for name in names if group.get(name) is not None}
    tensors = f"{group['tensors']} tensors: " if "tensors" in group else ""
    return tensors + ", ".join(
        f"{name.removeprefix('initial_')} {shown_value(value)}" for name, value in values.items()
    )


def _schedule_lines(running: Running) -> Iterator[str]:
    scheduler, total = running.scheduler, running.total_steps
    of = "a run of unknown length" if total is None else counted(total, "step")
    if scheduler is None:
        yield f"Learning rate: {real(running.lr)}, no scheduler of torch; {of}"
        return
    steps = scheduler["steps"]
    if steps == 0:
        yield f"Learning rate: {scheduler['kind']}, which the script does not step with its optimizer; {of}"
        return
    shown = {
        *range(_RATES),
        *(len(running.rates) * part // _RATES for part in range(_RATES)),
        len(running.rates) - 1,
    }
    rates = [
        f"{figure(rate)} at step {count(at + 1)}"
        for place, (at, rate) in enumerate(running.rates)
        if place in shown
    ]
    yield f"Learning rate: {scheduler['kind']}, {of}: {few(rates, 2 * _RATES + 1)}"
