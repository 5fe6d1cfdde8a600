"""The settings: how to plan. Each one is listed here, with its type, its default and what it does.

`plan` and `replan` take them as keywords, a fleet as columns too, and the command line as options, all from this list. The core
has their legal values. Nothing heavy is imported here, since `isobatch --help` reads it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
    get_type_hints,
)

from isobatch.errors import InputError, together, unknown

F = TypeVar("F", bound=Callable[..., Any])
Policy: TypeAlias = Literal["keep", "grow", "goodput"]
Rule: TypeAlias = Literal[
    "none",
    "linear",
    "sqrt",
    "sde",
    "sde_smooth",
    "adascale",
    "adamscale",
    "saturating",
    "surge",
    "muon",
    "power",
    "auto",
]
RampRule: TypeAlias = Literal["none", "linear", "sqrt", "saturating", "surge", "muon", "power", "auto"]


class Settings(NamedTuple):
    """What was asked for, in the core's order. Beside each setting: what its value is called, and what it does."""

    policy: Annotated[
        Policy | int,
        "POLICY|BATCH",
        "keep (default): batch size and learning rate stay; grow: the samples per replica stay; goodput: reach the same loss "
        "soonest (needs a profile and a noise scale); or the effective batch to reach",
    ] = "keep"
    rule: Annotated[
        Rule,
        "RULE",
        "how the learning rate follows the batch (default auto; `isobatch explain --rules` lists them)",
    ] = "auto"
    max_micro_batch: Annotated[
        int | None,
        "N",
        "largest number of samples in a forward pass (per-device batch); else what fits in the cluster's memory by the profile, "
        "else the tuned one",
    ] = None
    fixed_micro_batch: Annotated[
        int | None, "N", "take this micro-batch and no other, as Megatron's --micro-batch-size does"
    ] = None
    min_micro_batch: Annotated[int, "N", "take no micro-batch below N"] = 1
    max_batch: Annotated[int | None, "N", "largest effective batch"] = None
    batch_tolerance: Annotated[
        float, "FRACTION", "let the batch change by up to this fraction, to a size that divides evenly"
    ] = 0.0
    decrease_batch: Annotated[
        bool,
        "",
        "where the batch does not divide evenly, take the largest below it that does (Megatron's --decrease-batch-size-if-needed)",
    ] = False
    micro_batch_multiple: Annotated[
        int, "N", "prefer micro-batches that are a multiple of N (8 for tensor cores)"
    ] = 1
    require_multiple: Annotated[bool, "", "insist on that multiple"] = False
    accumulation_multiple: Annotated[
        int, "N", "take only accumulations that are a multiple of N (pipeline stages)"
    ] = 1
    min_accumulation: Annotated[int, "N", "take no accumulation below N"] = 1
    batch_multiple: Annotated[
        int, "N", "take only batches that are a multiple of N (generations in a group, as in GRPO)"
    ] = 1
    ragged: Annotated[bool, "", "allow micro-batches of different sizes (their losses need weights)"] = False
    uneven: Annotated[
        bool, "", "allow some replicas one more micro-batch than others (their losses need weights)"
    ] = False
    short_epochs: Annotated[
        bool, "", "allow a batch above dataset_size: each epoch is then one short step, as trainers run it"
    ] = False
    ramp_rule: Annotated[
        RampRule,
        "RULE",
        "how the learning rate follows the batch within a ramp, as a factor of that at the full batch (default none: not at all)",
    ] = "none"
    beta_half_life: Annotated[bool, "", "keep the half-life of beta2 in samples: beta2^k (Marek 2025)"] = (
        False
    )
    min_beta2: Annotated[
        float,
        "BETA",
        "floor under a beta2 that the rule or beta_half_life lowers (0.9 or 0.95 are in use); it never lifts the tuned one",
    ] = 0.0
    muon_decay: Annotated[
        bool, "", "move Muon's weight decay by √k, as nanochat does (contested; else it stays)"
    ] = False
    duration_ratio: Annotated[
        float,
        "RATIO",
        "how many times as long the recipe's run is as the one that its learning rate was tuned for",
    ] = 1.0
    duration_power: Annotated[
        float | None,
        "P",
        "multiply the learning rate by duration_ratio^-P (contested: published laws have 0.3 to 0.51, and -0.307; default: it stays)",
    ] = None
    deadline_hours: Annotated[float | None, "H", "refuse plans that take longer (needs a profile)"] = None
    budget: Annotated[float | None, "COST", "refuse plans that cost more (needs a profile)"] = None

    def changed(self) -> dict[str, Any]:
        """Those that are not at their defaults, by name.

        >>> Settings(policy="grow").changed()
        {'policy': 'grow'}
        """
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}


class Keywords(TypedDict, total=False):
    """The settings as keywords, for type checkers."""

    policy: Policy | int
    rule: Rule
    max_micro_batch: int | None
    fixed_micro_batch: int | None
    min_micro_batch: int
    max_batch: int | None
    batch_tolerance: float
    decrease_batch: bool
    micro_batch_multiple: int
    require_multiple: bool
    accumulation_multiple: int
    min_accumulation: int
    batch_multiple: int
    ragged: bool
    uneven: bool
    short_epochs: bool
    ramp_rule: RampRule
    beta_half_life: bool
    min_beta2: float
    muon_decay: bool
    duration_ratio: float
    duration_power: float | None
    deadline_hours: float | None
    budget: float | None


DEFAULTS = Settings()
HYPERPARAMETERS = ("beta_half_life", "min_beta2", "muon_decay", "duration_ratio", "duration_power")
"""Settings that move the learning rate or the optimizer's values beside the rule, whatever the batch is split into."""
HOLDS_LOSS = ("adascale", "adamscale")
"""Rules under which a step counts for more than its samples."""


def with_settings(function: F) -> F:
    """Adds the settings to a docstring, a line each behind the one of `**settings`."""
    hints = get_type_hints(Settings, include_extras=True)
    lines = [
        textwrap.fill(
            f"{name}: {get_args(hint)[2]}.", 126, initial_indent=" " * 12, subsequent_indent=" " * 16
        )
        for name, hint in hints.items()
    ]
    marked = "        **settings: how to plan:\n"
    if function.__doc__:  # python -OO leaves none
        function.__doc__ = function.__doc__.replace(marked, marked + "\n".join(lines) + "\n")
    return function


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings of keywords.

    Args:
        given: values by name; those left out take their defaults.

    Returns:
        All settings. The core checks their values, when it plans.

    Raises:
        InputError: there is no setting of that name; the nearest one is named.

    >>> settings_of({"policy": "grow"}).policy
    'grow'
    """
    if not given:
        return DEFAULTS
    try:
        return Settings(**given)
    except TypeError:
        raise together([_no_setting(name) for name in given if name not in Settings._fields]) from None


def _no_setting(name: str) -> InputError:
    """A name that no setting has; what a recipe or a cluster says is a field there."""
    from isobatch.recipes.cluster import Cluster
    from isobatch.recipes.recipe import Recipe

    for owner, article in ((Cluster, "the Cluster"), (Recipe, "the Recipe")):
        if name in owner.__struct_fields__:
            todo = f"it is a field of {article}, or a column of the {'cluster' if owner is Cluster else 'job'}s of a fleet"
            return InputError(f"unknown setting {name!r}: {todo}", field=name)
    return unknown("setting", name, (*Settings._fields, "profile"), field=name)
