"""The division of a step's gradient: by samples, by units, or by what a trainer divides by."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.equivalence.causes import Share, explain_factor, explain_trainer
from isobatch.equivalence.laws import Cause, Diagnosis
from isobatch.errors import first_line
from isobatch.guard.clipping import Clipped
from isobatch.guard.reference import Recomputation
from isobatch.guard.run import Run
from isobatch.guard.trainers import Owner, counted_labels, every_label, takes_labels
from isobatch.limits import within


class LossDivision:
    """Knows the reference's division of a step's gradient, and the others of scripts.

    `again` holds the reference loss with its weight; `owner` is the trainer that divides, if one does.
    """

    def __init__(self, run: Run, again: Recomputation, owner: Owner | None) -> None:
        self._run, self._again, self._owner = run, again, owner
        # transformers' Trainer multiplies the gradient if the model's loss ignores a step's labels.
        self._multiplied, self._of_trainer = 1.0, owner is not None and owner.counts_labels
        self._units = 0.0  # of a step: samples, or what the loss is a mean over

    def settle(self, batch: Any) -> None:
        """Finds out, once, the units of a Trainer's mean loss, and the factor of the Trainer."""
        run, owner, again = self._run, self._owner, self._again
        self._owner = None
        if owner is None or not owner.counts_labels:
            return
        takes = isinstance(batch, Mapping) and "labels" in batch and takes_labels(again.model)
        own: tuple[float | None, bool] = None, False
        if takes:
            with again.replay(), contextlib.suppress(Exception):  # the reference says what is wrong
                counted = again.evaluated(counted_labels, batch)
                own = counted, counted == every_label(batch)
        counted, every = run.exchange("labels", own)[0]
        if takes and counted is None:
            self._multiplied = float(run.plan.accumulation or 1) * (run.ranks if owner.over_ranks else 1)
        if again.reference.assumed and (counted is None or every):
            weight = every_label if every else None
            again.reference = again.reference._replace(weight=weight, other_units=None)

    def shares(self, batches: list[Any]) -> list[float] | str:
        """Returns the factor of each micro-batch's mean loss, or why a batch's weight cannot be computed."""
        run, error, units = self._run, None, list[float]()
        try:
            units = self._weigh(batches)
        except Exception as raised:  # such as for rows that a trainer turns into samples itself
            error = first_line(raised)
        if why := next(filter(None, run.exchange("weight", error)), None):
            return f"the weight cannot be computed from the loader's batches ({why})"
        self._units = float(run.plan.effective_batch or 0)
        if self._again.reference.weight is None:
            return [float(share) for share in run.plan.loss_weights(run.rank)]
        self._units = sum(run.exchange("units", sum(units)))
        return [unit * run.ranks / self._units for unit in units]

    def others(self, batches: list[Any], shares: list[float]) -> Iterator[tuple[list[float], Cause]]:
        """Lists other factors of the micro-batches' mean losses, and their causes."""
        units, alternative = self._weigh(batches), self._again.reference.other_units
        if len(batches) > 1:
            yield [0.0] * (len(batches) - 1) + shares[-1:], Cause.LOST_PASSES
        yield [1 / len(batches)] * len(batches), Cause.OWN_UNITS if units else Cause.UNEVEN_MEAN
        if units:
            if alternative is not None:
                total = sum(map(alternative.units, batches))
                yield [unit / total for unit in units], Cause.RANKS_OWN_UNITS
            yield [unit / sum(units) for unit in units], Cause.RANKS_OWN_UNITS

    def excuses(self, like: Clipped, gate: float, batches: list[Any]) -> bool:
        """Tells whether the script divides by other units than the reference, as a healthy one may."""
        alternative, ratio = self._again.reference.other_units, self._other_ratio(batches)
        if alternative is None or not any(within(size / ratio - 1, gate) for size in like[:2]):
            return False
        self._run.note(alternative.note.format(ratio=ratio))
        return True

    def explain(self, ratio: float, gate: float, batches: list[Any] | None = None) -> Diagnosis | None:
        """Diagnoses a gradient `ratio` times too large; with `batches`, by the script's own units."""
        run, tolerance = self._run, max(0.02, gate / 3)
        share = Share(run.ranks, run.plan.accumulation or 1, self._units / len(run.planned) / run.ranks)
        if batches is not None:
            ratio /= self._other_ratio(batches)
        if self._of_trainer or self._multiplied != 1:
            return explain_trainer(ratio, self._multiplied, share, tolerance)
        return explain_factor(ratio, share, tolerance)

    def _weigh(self, batches: list[Any]) -> list[float]:
        """Returns the units under each micro-batch's loss; nothing where these are samples."""
        weight = self._again.reference.weight
        return [] if weight is None else [float(weight(batch)) for batch in batches]

    def _other_ratio(self, batches: list[Any]) -> float:
        """Computes the gradient's size if the script divides by the other units; 1 without such."""
        _, weight, alternative, _ = self._again.reference
        if alternative is None or weight is None:
            return 1.0
        units = [sum(map(weight, batches)), sum(map(alternative.units, batches))]
        reference_units, script_units = map(sum, zip(*self._run.exchange("other units", units), strict=True))
        return float(reference_units / script_units)
