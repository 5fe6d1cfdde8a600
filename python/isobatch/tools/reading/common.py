"""What several tools share: how lengths, optimizers and launchers are written."""

from __future__ import annotations

from isobatch.errors import InputError, unknown
from isobatch.tools.reading.page import Page

_OPTIMIZERS = ("adamw", "adafactor", "rmsprop", "lamb", "lars", "lion", "muon", "adam", "sgd")


def length(number: float, unit: str) -> str:
    """A length as a recipe writes it.

    >>> length(3.0, "ep"), length(0.5, "ep"), length(2000, "st")
    ('3ep', '0.5ep', '2000st')
    """
    return f"{int(number) if number == int(number) else repr(float(number))}{unit}"


def share(fraction: float) -> str:
    """A fraction as a percentage, without the noise of binary fractions.

    >>> share(0.03), share(0.1), share(0.0333)
    ('3%', '10%', '3.33%')
    """
    return f"{float(f'{fraction * 100:.12g}'):g}%" if fraction * 100 < 1e6 else f"{fraction * 100}%"


def optimizer(page: Page, key: str, name: str | None) -> None:
    """The optimizer by any of its names: adamw_torch_fused, paged_adamw_8bit, decoupled_adamw."""
    if name is None:
        return
    plain = name.lower().replace("-", "_")
    for ours in _OPTIMIZERS:
        if ours in plain:
            page.give("optimizer", ours, key)
            if plain.replace("_torch", "").replace("_fused", "").replace("_bnb", "") != ours:
                page.note(f"{page.name(key)}: {name} is planned as {ours}")
            return
    page.fault("optimizer", unknown("optimizer", name, _OPTIMIZERS, field=page.name(key)))


def betas(page: Page, first: str, second: str, default: tuple[float, float] | None = None) -> None:
    """Adam's betas from two settings; where one is there, the other is Adam's own."""
    one_is_there = page.has(first) or page.has(second)
    fallback = default or ((0.9, 0.999) if one_is_there else (None, None))
    one = page.number(first, default=fallback[0])
    two = page.number(second, default=fallback[1])
    if one is not None and two is not None:
        page.give("betas", (one, two), first)


def torch_optimizer(page: Page) -> None:
    """The numbers of torch's optimizers, by torch's own names and defaults; the optimizer is known by now."""
    name = page.found.fields.get("optimizer")
    pair(page, "betas")
    page.number("eps", "eps")
    page.number("weight_decay", "weight_decay", default=0.01 if name == "adamw" else None)
    page.number("momentum", "momentum", default=0.0 if name == "sgd" else None)


def pair(page: Page, key: str) -> None:
    """Adam's betas from a list of two."""
    value = page.raw(key)
    if isinstance(value, list | tuple) and len(value) == 2:
        one, two = (page._number(key, item, "betas") for item in value)
        if one is not None and two is not None:
            page.give("betas", (one, two), key)
    elif value is not None:
        page.number(key, "betas")  # says what is wrong


def clip(page: Page, key: str, *, default: float | None = None) -> None:
    """A gradient norm; 0 and below switch clipping off."""
    value = page.number(key, default=default)
    if value is not None and value > 0:
        page.give("clip_norm", value, key)


def precision(page: Page, names: dict[str, str]) -> None:
    """The first of several switches that is on: {"bf16": "bf16", "fp16": "fp16"}."""
    for key, ours in names.items():
        if page.flag(key):
            page.give("precision", ours, key)
            return
        if page.raw(key) == "auto":
            page.note(f"{page.name(key)}: auto is decided on the machine; the precision is not planned")
            return


def launched(page: Page) -> None:
    """The GPUs of a torchrun, accelerate or deepspeed launch line, where a flag's value may be followed by the script's name."""
    first = {key: value[0] for key, value in page.settings.items() if isinstance(value, list) and value}
    page = Page({**page.settings, **first}, page.found, dashes=page.dashes)
    nodes = page.whole(page.first("nnodes", "num_nodes", "num_machines"), default=1)
    for key in ("nproc_per_node", "num_gpus"):
        if page.has(key):
            each = page.whole(key)
            if nodes and each:
                page.give("gpus", nodes * each, key)
            return
    if page.has("num_processes"):
        page.whole("num_processes", "gpus")


def unsupported(page: Page, key: str, what: str) -> None:
    """A schedule that no text of a recipe can say."""
    page.fault(
        "schedule", InputError(f"{what} cannot be planned: give schedule a value", field=page.name(key))
    )


def inherited(page: Page, key: str) -> bool:
    """Whether the file builds on others that are not read, which is said: then what it leaves out has no default."""
    names = page.raw(key)
    if names is None:
        return False
    listed = names if isinstance(names, list) else [names]
    page.note(
        f"builds on {', '.join(map(str, listed))}, which is not beside it and not read: give what is set there with --set"
    )
    return True
