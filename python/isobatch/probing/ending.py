"""How a probe ends: with what its trials say, or with what is missing and which budget would do. No torch."""

from __future__ import annotations

import msgspec

from isobatch.errors import InputError
from isobatch.probing.concluding import lr_finding, seconds_needed
from isobatch.probing.options import ProbeOptions, budget_text
from isobatch.probing.report import Probe
from isobatch.probing.rounds import Rounds
from isobatch.words import counted, duration

WHY = {
    "budget": "{} were spent before",
    "interrupted": "interrupted after {}, before",
}

MORE = 1.25
"""A budget that was spent is not advised again, whatever the trials say."""


def with_rates(probe: Probe, rounds: Rounds, stopped: str | None) -> Probe:
    """A probe of learning rates with what its trials say.

    Args:
        probe: without them; `beside_seconds` is what went elsewhere.
        rounds: played as far as they go.
        stopped: what ended them before they were done.

    Raises:
        InputError: no round is complete: then which budget would do.
    """
    needed = seconds_needed(rounds, probe.beside_seconds)
    if needed is not None and stopped == "budget":
        needed = max(needed, MORE * probe.budget_seconds)
    found = lr_finding(rounds, needed)
    trials = tuple(rounds.journal.found)
    if found is None:
        raise nothing_known(rounds.scope.options, probe.seconds, needed, len(trials), stopped)
    return msgspec.structs.replace(probe, lr=found, trials=trials, stopped=stopped)


def nothing_known(
    options: ProbeOptions, seconds: float, needed: float | None, made: int, stopped: str | None = "budget"
) -> InputError:
    """What to say where nothing can be said: what was made, and which budget would do."""
    if stopped in WHY:
        time = options.budget_seconds if stopped == "budget" else seconds
        why = WHY[stopped].format(duration(time))
    else:
        why = f"{stopped} before"
    text = f"{why} the first round of trials was complete, so that nothing can be said."
    if made:
        text += f" {counted(made, 'trial')} made."
    if needed is not None:
        text += f" A budget of {budget_text(needed)} would likely do."
    elif stopped == "budget":
        text += (
            " Getting ready alone took that long: try the default of 10m."
            if options.budget_seconds < 600
            else " Getting ready alone took that long: raise the budget."
        )
    if options.measure == "lr" and made:
        text += (
            f" {options.trials} keeps the trials: the same command goes on from there."
            if options.trials is not None
            else " --trials FILE would keep them for the next run."
        )
    return InputError(text, field="budget" if stopped == "budget" else None)
