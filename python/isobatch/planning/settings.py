"""The settings: how to plan. Each one is listed here, with its type, its default and what it does.

`plan` and `replan` take them as keywords, a fleet as columns too, and the command line as options, all from
this list. The core has their legal values. Nothing heavy is imported here, since `isobatch --help` reads it.
"""

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

from isobatch.errors import InputError, must_be, raise_all, together, unknown
from isobatch.limits import plain, plain_whole, whole_fields

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
Split: TypeAlias = Literal["even", "uneven", "ragged", "smaller"]
RampRule: TypeAlias = Literal["none", "linear", "sqrt", "saturating", "surge", "muon", "power", "auto"]


class Settings(NamedTuple):
    """All settings, in the core's order. Beside each: the name of its value in the help, and its effect."""

    policy: Annotated[
        Policy | int,
        "POLICY|BATCH",
        "keep (default): batch size and learning rate stay; grow: the samples per replica stay; goodput: "
        "reach the same loss soonest (needs a profile and a noise scale); or the effective batch to reach",
    ] = "keep"
    rule: Annotated[
        Rule,
        "RULE",
        "how the learning rate follows the batch (default auto; `isobatch explain --rules` lists them)",
    ] = "auto"
    max_micro_batch: Annotated[
        int | None,
        "N",
        "largest per-device batch (samples in a forward pass); default: what fits in memory by the profile, "
        "else the tuned one",
    ] = None
    min_micro_batch: Annotated[
        int,
        "N",
        "smallest micro-batch; if it equals max_micro_batch, the micro-batch is fixed",
    ] = 1
    max_batch: Annotated[int | None, "N", "largest effective batch"] = None
    batch_tolerance: Annotated[
        float, "FRACTION", "let the batch change by up to this fraction, to a size that divides evenly"
    ] = 0.0
    split: Annotated[
        Split,
        "SPLIT",
        "if the batch does not divide evenly: even (default): no plan; uneven: some replicas take one more "
        "micro-batch; ragged: micro-batches differ in size (both need weighted losses); smaller: the largest "
        "batch below it that divides",
    ] = "even"
    micro_batch_multiple: Annotated[
        int, "N", "take only micro-batches that are a multiple of N (8 for tensor cores)"
    ] = 1
    accumulation_multiple: Annotated[
        int, "N", "take only accumulations that are a multiple of N (pipeline stages)"
    ] = 1
    batch_multiple: Annotated[
        int, "N", "take only batches that are a multiple of N (generations in a group, as in GRPO)"
    ] = 1
    short_epochs: Annotated[
        bool, "", "allow a batch above dataset_size: each epoch is then one short step, as trainers run it"
    ] = False
    ramp_rule: Annotated[
        RampRule,
        "RULE",
        "how the learning rate follows the batch in a ramp, relative to the full batch: none (default), or a "
        "rule that moves the learning rate alone",
    ] = "none"
    beta2_rule: Annotated[
        str,
        "CHOICE",
        "how beta2 follows the batch: auto (default): by the rule; half_life: it keeps its half-life in "
        "samples, beta2^k (Marek 2025); half_life:0.9 or auto:0.95: not lowered below this floor",
    ] = "auto"
    duration_scale: Annotated[
        str | float | None,
        "RATIO[^POWER]",
        "length of the run / length of the tuned run; with a power, as in 8^0.3, the learning rate is "
        "multiplied by RATIO^-POWER (contested: published laws have 0.3 to 0.51, and -0.307), without one it "
        "stays",
    ] = None
    deadline_hours: Annotated[float | None, "H", "refuse plans that take longer (needs a profile)"] = None
    budget: Annotated[float | None, "COST", "refuse plans that cost more (needs a profile)"] = None

    @property
    def fixed_micro_batch(self) -> int | None:
        """The only micro-batch allowed, where the smallest is also the largest."""
        least = self.min_micro_batch
        return least if least == self.max_micro_batch and least > 1 else None

    @property
    def duration(self) -> tuple[float, float | None]:
        """`duration_scale` in parts: the ratio of lengths, and the learning rate's power of it, if any."""
        ratio, _, power = str(1.0 if self.duration_scale is None else self.duration_scale).partition("^")
        return float(ratio), float(power) if power else None

    @property
    def beta2_floor(self) -> float:
        """The floor under beta2; 0 where there is none."""
        return float(self.beta2_rule.partition(":")[2] or 0.0)

    def changed(self) -> dict[str, Any]:
        """The names of the settings away from their defaults.

        >>> Settings(policy="grow").changed()
        {'policy': 'grow'}
        """
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}


class Keywords(TypedDict, total=False):
    """The settings as keywords, for type checkers."""

    policy: Policy | int
    rule: Rule
    max_micro_batch: int | None
    min_micro_batch: int
    max_batch: int | None
    batch_tolerance: float
    split: Split
    micro_batch_multiple: int
    accumulation_multiple: int
    batch_multiple: int
    short_epochs: bool
    ramp_rule: RampRule
    beta2_rule: str
    duration_scale: str | float | None
    deadline_hours: float | None
    budget: float | None


DEFAULTS = Settings()
_OF_NAMES: dict[tuple[tuple[str, Any], ...], Settings] = {
    keywords: Settings(**dict(keywords))
    for policy in get_args(Policy)
    for rule in get_args(Rule)
    for names in [(("policy", policy), ("rule", rule))]
    for keywords in (names[:1], names[1:], names, names[::-1])
}
"""The settings of a policy, a rule or both by their names: making them anew is a sixth of a plan's time."""
_MAX_NAMES = 2
HYPERPARAMETERS = ("beta2_rule", "duration_scale")
"""Settings that move the learning rate or the optimizer's values beside the rule, whatever the split."""
HOLDS_LOSS = ("adascale", "adamscale")
"""Rules under which a step counts for more than its samples."""


def with_settings(function: F) -> F:
    """Adds the settings to a docstring, a line each behind the one of `**settings`."""
    import inspect

    hints = get_type_hints(Settings, include_extras=True)
    lines = [
        textwrap.fill(
            f"{name}: {get_args(hint)[2]}.", 110, initial_indent=" " * 8, subsequent_indent=" " * 12
        )
        for name, hint in hints.items()
    ]
    marked = "    **settings: how to plan:\n"
    if text := inspect.getdoc(function):  # python -OO leaves none; Python 3.13 indents none
        function.__doc__ = text.replace(marked, marked + "\n".join(lines) + "\n")
    return function


def settings_of(keywords: Mapping[str, Any]) -> Settings:
    """Returns all settings, those left out at their defaults; the core checks the values when it plans."""
    if not keywords:
        return DEFAULTS
    try:
        named = _OF_NAMES.get(tuple(keywords.items())) if len(keywords) <= _MAX_NAMES else None
    except TypeError:  # a value without a hash
        named = None
    if named is not None:
        return named
    try:
        return Settings(
            **{
                name: _policy(value)
                if name == "policy"
                else plain_whole(value)
                if name in whole_fields()
                else plain(value)
                for name, value in keywords.items()
            }
        )
    except TypeError:
        raise together([_no_setting(name) for name in keywords if name not in Settings._fields]) from None


def _policy(value: Any) -> Any:
    """Returns a policy; a batch as text, as a table has it, is a number."""
    is_batch = isinstance(value, str) and value.strip().isdecimal()
    return int(value) if is_batch else plain_whole(value)


def checked_settings(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all settings by name; one InputError names each unknown or illegal one."""
    from isobatch import _core

    values = settings_of(keywords)._asdict()
    raise_all(must_be(legal, value, field=name) for name, value, legal in _core.check_settings(values))
    return values


def _no_setting(name: str) -> InputError:
    """Builds the error of an unknown setting; a field of a recipe or a cluster is named as such."""
    from isobatch.recipes.cluster import Cluster
    from isobatch.recipes.recipe import Recipe

    for owner, article in ((Cluster, "the Cluster"), (Recipe, "the Recipe")):
        if name in owner.__struct_fields__:
            todo = (
                f"it is a field of {article}, or a column of the {'cluster' if owner is Cluster else 'job'}s "
                "of a fleet"
            )
            return InputError(f"unknown setting {name!r}: {todo}", field=name)
    return unknown("setting", name, (*Settings._fields, "profile"), field=name)


# ---- the rules that settings name ----


class ScalingRule(NamedTuple):
    """How a learning rate follows the batch: its name in `rule=`, formula, where it holds, and source."""

    rule: str
    formula: str
    holds: str
    source: str


class Rules(tuple[ScalingRule, ...]):
    """All scaling rules; a notebook shows them as a table, and `isobatch.plot` draws their curves."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Rules({', '.join(each.rule for each in self)})"


def rules() -> Rules:
    """Lists the scaling rules; in the formulas k is the new effective batch over the tuned one.

    >>> rules()[1].formula, rules()[1].holds
    ("η' = kη", 'SGD, up to the noise scale; it broke above 8192 images a step')
    """
    from isobatch import _core

    return Rules(ScalingRule(*each) for each in _core.rules())
