"""Numbers, names and values as people write them."""

import math
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_MAX_VALUE_CHARACTERS = 80
"""Characters of a value in a message."""


class _Cut(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        # Nested aliases of YAML grow by the power of the level.
        self.maxlevel, self.maxstring, self.maxother = 2, _MAX_VALUE_CHARACTERS, _MAX_VALUE_CHARACTERS
        self.maxtuple = self.maxlist = self.maxset = self.maxdict = 4

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 - the base has it
        # Python refuses to write numbers of more than 4,300 digits.
        return repr(x) if x.bit_length() < 256 else f"a number of {x.bit_length():,} bits"


_CUT = _Cut()


def shown(value: Any) -> str:
    """A value as Python writes it, cut: of a large one a message holds the beginning.

    >>> shown("0.1"), shown(-1), len(shown("x" * 10**6)) < 100, shown(10**400)
    ("'0.1'", '-1', True, 'a number of 1,329 bits')
    """
    text = _CUT.repr(value)
    return text if len(text) <= 2 * _MAX_VALUE_CHARACTERS else f"{text[: 2 * _MAX_VALUE_CHARACTERS]}…"


def printable(text: str, most: int = 400) -> str:
    """Writes a foreign text on one line: without control characters and secrets of URLs, cut if long.

    >>> printable("a.csv\\x1b[2J\\nall is well")
    'a.csv\\\\x1b[2J\\\\nall is well'
    """
    text = redacted(text)
    cut = text if len(text) <= most else f"{text[:most]}…"
    return cut if cut.isprintable() else "".join(map(_visible, cut))


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


_ADDRESS = re.compile(r"(?<=\w\w:/)(/?)([^\s'\"]+)")
"""A URL behind its scheme. A path loses one of its slashes."""
_PARAMETER = re.compile(r"([?&][^=\s&?]*=)[^&\s'\"]+")
_SECRET = re.compile(r"key|secret|token|password|credential|sig", re.IGNORECASE)


def redacted(text: str) -> str:
    """Removes the secrets of URLs from a text, in linear time.

    >>> redacted("s3://KEY:SECRET@bucket/jobs?access_key=A&region=eu")
    's3://…@bucket/jobs?access_key=…&region=eu'
    >>> redacted("s3:/KEY:SECRET@bucket/jobs"), redacted("C:/me@home: gone")
    ('s3:/…@bucket/jobs', 'C:/me@home: gone')
    """
    if "@" not in text and "=" not in text:
        return text
    text = _ADDRESS.sub(_without_user, text)
    return _PARAMETER.sub(lambda part: f"{part[1]}…" if _SECRET.search(part[1]) else part[0], text)


def _without_user(address: re.Match[str]) -> str:
    """Drops all before the last @ where a password is there, else before the @ of the host."""
    user, at, rest = address[2].partition("@")
    if not at or ("/" in user and ":" not in user):
        return address[0]
    return f"{address[1]}…@{rest.rpartition('@')[2] if ':' in user else rest}"


def readable(text: str) -> str:
    """Lines for people, each as `printable` has it: what a command says goes through here.

    >>> readable("s3://KEY:SECRET@bucket/a\\x1b[2J\\nall is well").split("\\n")
    ['s3://…@bucket/a\\\\x1b[2J', 'all is well']
    """
    return "\n".join(printable(line, len(line)) for line in text.split("\n"))


def count(number: float) -> str:
    """A whole number with separators.

    >>> count(1281216), count(-224)
    ('1,281,216', '-224')
    """
    return f"{int(number):,}"


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """A count with its noun.

    >>> counted(1, "row"), counted(3459, "row"), counted(2, "policy", "policies")
    ('1 row', '3,459 rows', '2 policies')
    """
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def exact(number: float | None) -> str:
    """Writes an exact number, or `unknown`.

    >>> exact(1281216), exact(2e-5), exact(None)
    ('1,281,216', '2e-5', 'unknown')
    """
    return "unknown" if number is None else count(number) if isinstance(number, int) else real(number)


def figure(number: float | None, digits: int = 3) -> str:
    """Writes an approximate number: three significant digits, separators above a thousand.

    >>> [figure(x) for x in (295_512, 1234.5, 4.98, 0.07391, 2e-5, 1.5e12, 0, 16)]
    ['296,000', '1,230', '4.98', '0.0739', '2e-5', '1.5e12', '0', '16']
    """
    if number is None:
        return "unknown"
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    rounded = float(f"{number:.{digits - 1}e}")
    if 10**digits <= abs(rounded) < 1e9:
        return f"{rounded:,.0f}"
    return _exponent(f"{rounded:.{digits}g}")


def ranged(value: float, error: float | None, write: Callable[[float], str] = figure) -> str:
    """Writes a forecast with its range; without one where half its width is not known.

    >>> ranged(69, 17.25), ranged(69, None), ranged(69, 80, lambda hours: duration(hours * 3600))
    ('69 (51.8 to 86.2)', '69', '2 d 21 h (up to 6 d 5 h)')
    """
    if not error or error != error:
        return write(value)
    low = f"{write(value - error)} to" if error < value else "up to"
    return f"{write(value)} ({low} {write(value + error)})"


def real(number: float) -> str:
    """Writes an exact number, such as a learning rate: as short as it can be written, to at most six digits.

    >>> [real(x) for x in (2e-5, 0.1, 0.0003, 1.0, 0.30000000000000004)]
    ['2e-5', '0.1', '0.0003', '1', '0.3']
    """
    return _exponent(f"{number:.6g}")


def cited(text: str, source: str) -> str:
    """Adds the source to a sentence.

    >>> cited("no more than 8 epochs", "Smith 2018"), cited("no more than 8 epochs", "")
    ('no more than 8 epochs [Smith 2018]', 'no more than 8 epochs')
    """
    return f"{text} [{source}]" if source else text


def _exponent(text: str) -> str:
    base, e, power = text.partition("e")
    return f"{base}e{int(power)}" if e else base


_SPANS = ((86_400, "d", 24, 3_600, "h"), (3_600, "h", 60, 60, "min"), (60, "min", 60, 1, "s"))


def duration(seconds: float) -> str:
    """A time in its two largest units; below a minute, three digits.

    >>> [duration(x) for x in (2_077_200, 18_000, 3_599.9, 61, 12.345, 0.00045)]
    ['24 d 1 h', '5 h', '1 h', '1 min 1 s', '12.3 s', '0.45 ms']
    """
    if not math.isfinite(seconds):
        return f"{seconds:g} s"
    for at, (long, unit, most, short, part) in enumerate(_SPANS):
        # A time that rounds up to the larger unit is written in it.
        if seconds >= long - short / 2 or (at == len(_SPANS) - 1 and seconds >= 59.5):
            whole, rest = divmod(round(seconds / short), most)
            return f"{count(whole)} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{figure(seconds)} s" if seconds >= 0.9995 or seconds == 0 else f"{figure(seconds * 1000)} ms"


def hours(number: float) -> str:
    """Writes hours; many of them in days too.

    >>> hours(4.5), hours(538.2)
    ('4.5', '538 (22 d 10 h)')
    """
    return figure(number) + (f" ({duration(number * 3600)})" if number >= 48 else "")


def percent(share: float, *, signed: bool = False) -> str:
    """A share as a percentage, to three digits.

    >>> percent(0.7391), percent(-0.0156, signed=True), percent(1), percent(0.5, signed=True)
    ('73.9 %', '-1.56 %', '100 %', '+50 %')
    """
    return f"{'+' if signed and share > 0 else ''}{figure(share * 100)} %"


def share(fraction: float) -> str:
    """A fraction as a length of a recipe: a percentage, to twelve places.

    >>> share(0.03), share(0.07), share(0.0333), share(1 / 3)
    ('3%', '7%', '3.33%', '33.333333333333%')
    """
    return f"{fraction * 100:.12f}".rstrip("0").rstrip(".") + "%"


def price(amount: float, currency: str) -> str:
    """A price with the sign of its currency; letters are followed by a space.

    >>> price(751_234, "$"), price(63_900, "EUR"), price(12, "A$")
    ('$751,000', 'EUR 63,900', 'A$12')
    """
    return f"{currency}{' ' if currency[-1:].isalpha() else ''}{figure(amount)}"


def spent(hours: float, error: float, cost: float, currency: str) -> str:
    """Writes a run's time and, if known, its cost, with their ranges; NaN is unknown.

    >>> spent(2.0, 0.5, 10.0, "$"), spent(2.0, math.nan, math.nan, "$")
    ('2 h (1 h 30 min to 2 h 30 min), $10 ($7.5 to $12.5)', '2 h')
    """
    took = ranged(hours, error, lambda value: duration(value * 3600))
    if cost != cost:
        return took
    paid = ranged(cost, cost * error / hours if hours else None, lambda value: price(value, currency))
    return f"{took}, {paid}"


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MAX_NUMBER_DIGITS = 400


def number_of(text: str) -> int | float | None:
    """Reads a number of a table's cell, also in forms unknown to JSON: `.1`, `1.`, `+64`, `0064`, `64.0`;
    None where the text is no number.

    >>> [number_of(text) for text in (".1", "64.0", "1e3", "0064", "64.5", "90ep")]
    [0.1, 64, 1000, 64, 64.5, None]

    A whole number that no real holds exactly stays one:

    >>> number_of("9007199254740993.0")
    9007199254740993
    """
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped) or len(stripped) > _MAX_NUMBER_DIGITS:
        return None
    if stripped.lstrip("+-").isdecimal():
        return int(stripped)
    value = float(stripped)
    if abs(value) >= 2**63:
        return value
    from decimal import Decimal

    exact = Decimal(stripped)
    return int(exact) if exact == exact.to_integral_value() else value


def few(names: Iterable[str], most: int = 8) -> str:
    """Names in a row; of many, the first and how many more.

    >>> few(["a", "b"]), few("abcdefghijkl", 3)
    ('a, b', 'a, b, c and 9 more')
    """
    every = list(names)
    more = f" and {count(len(every) - most)} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def few_gpus(counts: Sequence[str], most: int) -> str:
    """GPU counts in a row; of many, the first and how many others.

    >>> few_gpus(["3", "5"], 2), few_gpus(["3", "5", "6", "7"], 2)
    ('3, 5 GPUs', '3, 5 GPUs and 2 other counts')
    """
    rest = len(counts) - most
    others = f" and {counted(rest, 'other count')}" if rest > 0 else ""
    return f"{', '.join(counts[:most])} GPUs{others}"


def few_ranks(ranks: Sequence[int]) -> str:
    """Ranks by number, as `few` has them.

    >>> few_ranks([3]), few_ranks([1, 2])
    ('rank 3', 'ranks 1, 2')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {few(map(str, ranks))}"


# ---- unknown names: another tool's name for the same thing, or a slip of the finger ----

OURS = {
    name: own_name
    for own_name, names in {
        "accumulation": "gradient_accumulation gradient_accumulation_steps",
        "batch_per_gpu": "per_device_batch_size per_device_train_batch_size per_gpu_train_batch_size",
        "clip_norm": "clip_grad grad_clip gradient_clip_val max_grad_norm",
        "cluster": "allocation",
        "counts": "elastic sweep",
        "data_parallel": "dp dp_size num_replicas",
        "deadline_hours": "deadline",
        "dataset_size": "num_samples",
        "duration": "epochs max_duration max_epochs max_steps num_epochs num_tokens num_train_epochs "
        "step_size tokens train_iters train_samples train_tokens",
        "estimate": "laws",
        "explain": "rules",
        "effective_batch": "batch batch_size global_batch global_batch_size train_batch_size",
        "gpus": "gpu_count n_gpus num_gpus num_processes",
        "gpus_per_node": "gpus_per_host nproc_per_node",
        "job": "job_id job_name",
        "kubeflow": "k8s",
        "lightning": "pytorch_lightning",
        "lr": "base_lr learning_rate max_lr peak_lr",
        "micro_batch": "local_batch_size micro_batch_size train_micro_batch_size_per_gpu",
        "model_parallel": "tensor_model_parallel_size tensor_parallel tp tp_size",
        "nodes": "hosts nnodes num_nodes",
        "optimizer": "optim",
        "plan": "export",
        "probe": "fit_power fit_critical_batch",
        "ray-train": "ray",
        "rule": "scaling_rule",
        "schedule": "lr_scheduler lr_scheduler_type",
        "seq_len": "max_seq_length sequence_length",
        "sqrt": "square_root squareroot",
        "total_steps": "iterations",
        "transformers": "hf huggingface",
        "validate": "node",
        "weight": "priority",
        "warmup": "num_warmup_steps warmup_ratio warmup_steps",
        "weight_decay": "wd",
    }.items()
    for name in names.split()
}
"""Names that others, or earlier copies of isobatch, have for a thing, and ours."""


_UNIT = re.compile(r"\s*[(\[][^)\]]*[)\]]\s*$")
"""A unit in brackets at the end of a column's name."""


def nearest(name: str, known: Iterable[str], alike: float = 0.7) -> str | None:
    """Finds the known name meant by an unknown one, or None.

    Args:
        name: what was typed.
        known: the names that are known here.
        alike: how alike two names must be, from 0 to 1.

    >>> nearest("optimiser", ["optimizer", "lr"]), nearest("learning_rate", ["batch_per_gpu", "lr"])
    ('optimizer', 'lr')
    >>> nearest("--micro-batchs", ["--micro-batches"]), nearest("zebra", ["lr"])
    ('--micro-batches', None)

    A unit behind the name is none of it:

    >>> nearest("Deadline (h)", ["deadline_hours"])
    'deadline_hours'
    """
    import difflib

    every, name = list(dict.fromkeys(known)), _UNIT.sub("", name)
    plain = name.lower().strip().lstrip("-").replace("-", "_").replace(" ", "_")
    own_name = OURS.get(plain)
    for candidate in every:
        if candidate.lstrip("-").replace("-", "_").lower() in (own_name, plain):
            return candidate
    # The comparison takes the product of the lengths.
    close = difflib.get_close_matches(name[:100], every, 1, alike)
    if not close:  # another tool's name, misspelt
        meant = difflib.get_close_matches(plain[:100], OURS, 1, 0.85)
        close = [
            candidate
            for candidate in every
            if meant and candidate.lstrip("-").replace("-", "_") == OURS[meant[0]]
        ]
    return close[0] if close else None
