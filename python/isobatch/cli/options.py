"""Options of several commands: how their texts are read, the cluster, and the settings."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from isobatch import _core
from isobatch.cli.terminal import say
from isobatch.errors import InputError, missing, right_form
from isobatch.planning.settings import Settings
from isobatch.recipes.cluster import NODE_GPUS, Cluster
from isobatch.words import counted, few, figure, shown

_GROUPED = re.compile(r"\s*\+?\d{1,3}(,\d{3})+(?![\d,])")
"""Commas between thousands; anywhere else they stand between the items of a list."""


def count(text: str) -> int:
    """A whole number from 1, with separators of thousands or without."""
    try:
        number = int(_ungrouped(text))
    except ValueError:
        raise _must_be("a whole number, at least 1", text, "gpus") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def gpu_count(text: str) -> int:
    """Reads one number of GPUs; a list or a range is refused with the command for several."""
    if not _GROUPED.match(text) and re.fullmatch(r"\s*\d+\s*(,|\.\.)[\d\s,]+", text):
        raise argparse.ArgumentTypeError(
            f"must be one whole number, got {shown(text)} (isobatch counts lists several)"
        )
    return count(text)


def _ungrouped(text: str) -> str:
    """A number without its separators of thousands."""
    return (text.replace(",", "") if _GROUPED.match(text) else text).replace("_", "")


def size(text: str) -> int:
    """A large whole number, such as of parameters or tokens.

    >>> size("7e9") == size("7,000,000,000") == size("7B") == 7_000_000_000
    True
    """
    whole = _core.number("parameters", _ungrouped(text))
    if type(whole) is not int or not 1 <= whole <= 2**53:
        raise _must_be("a whole number from 1, such as 7e9", text, "parameters")
    return whole


def path(text: str) -> str:
    """A path: the empty text is none."""
    if not text:
        raise _must_be("a path", text)
    return text


def names(text: str) -> list[str]:
    """Names between commas."""
    parts = [name.strip() for name in text.split(",")]
    if not all(parts):
        raise _must_be("names between commas", text)
    return parts


_MAX_GPUS = 2**31
_MAX_GPU_COUNTS = 2**20
"""Each is a cluster of its own to plan on."""


def gpu_counts(text: str) -> range | list[int]:
    """`1..64` as a range (both ends are in it), `8,16,24` as a list.

    >>> gpu_counts("1..3"), gpu_counts("8,16")
    (range(1, 4), [8, 16])
    """
    first, dots, last = text.partition("..")
    ends: range | list[int]
    try:
        ends = range(int(first), int(last) + 1) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        raise _must_be("a range such as 1..64, or a list such as 2,4,6", text) from None
    if not dots and re.search(r"(^|,)\s*0\d", text):  # 1,024 with a comma of thousands
        raise _must_be("a list such as 2,4,6, without separators of thousands", text)
    if not ends:
        raise argparse.ArgumentTypeError(f"must be a range that rises, got {text}")
    # The ends of a range, which may be too long to walk.
    least, most = (ends[0], ends[-1]) if dots else (min(ends), max(ends))
    if least < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {shown(least)}")
    if most > _MAX_GPUS:
        raise argparse.ArgumentTypeError(f"must be at most {_MAX_GPUS:,}, got {shown(most)}")
    if len(ends) > _MAX_GPU_COUNTS:
        raise argparse.ArgumentTypeError(f"must be at most {_MAX_GPU_COUNTS:,} counts, got {len(ends):,}")
    return ends


def numbers(text: str) -> list[float]:
    """Numbers between commas; whole ones are whole."""
    try:
        return [int(part) if re.fullmatch(r"\s*\d+\s*", part) else float(part) for part in text.split(",")]
    except ValueError:
        raise _must_be("a list such as 2,4,6", text) from None


def _must_be(expected: str, text: str, field: str = "") -> argparse.ArgumentTypeError:
    form = right_form(field, text)
    message = f"must be {expected}, got {shown(text)}"
    return argparse.ArgumentTypeError(f"{message}: {form}" if form else message)


def number(field: str) -> Callable[[str], Any]:
    """Makes the reader of a number as its field in a table has it.

    >>> number("batch_tolerance")("2 %"), number("memory_gib")("80 GiB")
    (0.02, 80)
    """

    is_whole = any(name == field and legal.startswith("a whole number") for name, _, legal in _core.fields())

    def read(text: str) -> Any:
        value = _core.number(field, _ungrouped(text) if is_whole else text)
        if value is None or (is_whole and type(value) is not int):
            raise _must_be("a whole number" if is_whole else "a number", text, field)
        return value

    return read


# ---- how they are added ----

_READERS: dict[str, Callable[[str], Any]] = {
    "FILE": path,
    "PATH": path,
    "N": count,
    "A..B|N,N": gpu_counts,
    "N,N": numbers,
    "GB": float,
    "HOURS": float,
}
"""How a value is read, by its name in the help; others by their default, else they are texts."""


def add_options(where: Any, rows: Mapping[str, Any]) -> None:
    """Adds a table of options to a parser, or to a group of one.

    By usage, as the help shows it ("-o/--output FILE", a flag without a value, an argument without a dash, in
    brackets one that may be left out): its text, or a pair of that and its default or argparse's keywords. By
    title: the table of a group. By any name: a function that adds some.
    """
    for usage, row in rows.items():
        if callable(row):
            row(where)
        elif isinstance(row, Mapping):
            add_options(where.add_argument_group(usage), row)
        else:
            _add(where, usage, *(row if isinstance(row, tuple) else (row, {})))


def _add(where: Any, usage: str, help: str, more: Any) -> None:
    more = more if isinstance(more, dict) else {"default": more}
    names, _, value = usage.partition(" ")
    if value:
        reader = _READERS.get(value, float if isinstance(more.get("default"), float) else str)
        more = {"metavar": value, "type": reader} | more
    elif usage.startswith("["):
        names, more = usage[1:-1], {"nargs": "?"} | more
    elif usage.startswith("-"):
        more = more or {"action": "store_true"}
    where.add_argument(*names.split("/"), help=help, **more)


def _decimal(text: str) -> str:
    if text not in (".", ","):
        raise _must_be("a point or a comma", text)
    return text


DECIMAL: dict[str, Any] = {
    "--decimal SIGN": (
        "the sign before a fraction in the texts of the tables: , reads 1.281.167 and 0,1 as spreadsheets of "
        "many countries write them; . reads 256.000 as 256, which is refused without it",
        {"type": _decimal},
    )
}
"""The decimal sign of tables."""


# ---- the cluster ----

HARDWARE: dict[str, Any] = {
    "--model-parallel N": "GPUs per model replica (default: as the recipe)",
    "--expert-parallel N": "GPUs per full set of experts (default: as the recipe)",
    "--gpu NAME": "GPU type; selects one of several profiles",
    "--memory-gib GIB": ("memory of one GPU", {"type": number("memory_gib")}),
    "--price-per-gpu-hour PRICE": (
        "price of a GPU-hour, for the cost",
        {"type": number("price_per_gpu_hour")},
    ),
    "--inter-gb-s GB": "network of a node, 1e9 bytes a second, if the profile lacks it",
    "--intra-gb-s GB": "link between the GPUs of a node, likewise",
}
"""The options of a cluster beside its GPU count."""
GPUS: dict[str, Any] = {
    "--gpus N": (f"number of GPUs: above {NODE_GPUS}, whole nodes of --gpus-per-node", {"type": gpu_count}),
    "--nodes N": "number of nodes, instead of --gpus",
    "--gpus-per-node N": f"GPUs per node (default: {NODE_GPUS})",
}
"""The options of a cluster's GPU count."""
CLUSTER: dict[str, Any] = {**GPUS, **HARDWARE}
CURRENCY: dict[str, Any] = {"--currency SIGN": ("of the price (default: $)", "$")}


def cluster(args: argparse.Namespace, *, optional: bool = False) -> Any:
    """Makes the Cluster of the options; None where it is optional and not given."""
    if args.gpus is not None and args.nodes is not None:
        raise InputError("--gpus goes without --nodes: give one or the other")
    if args.gpus is not None:
        return in_nodes(args.gpus, args)
    if args.nodes is not None:
        per_node = NODE_GPUS if args.gpus_per_node is None else args.gpus_per_node
        return Cluster(nodes=args.nodes, gpus_per_node=per_node, **hardware(args))
    if optional and not typed({"gpus_per_node": args.gpus_per_node, **hardware(args)}, args):
        return None
    gpu = hardware(args)["gpu"]
    if gpu is not None and gpu.isdecimal():
        raise missing("cluster", f"--gpu is the type of GPU: did you mean --gpus {gpu}?")
    raise missing("cluster", "pass --gpus N, or --nodes N --gpus-per-node M")


def in_nodes(gpus: int, args: argparse.Namespace) -> Any:
    """The Cluster of this many GPUs: whole nodes of --gpus-per-node, or a part of one."""
    nodes, per_node = nodes_of(gpus, args.gpus_per_node, is_timed=bool(getattr(args, "profile", None)))
    if per_node > (args.gpus_per_node or NODE_GPUS):
        many = f"{gpus:,} GPUs fill no whole nodes of {NODE_GPUS}"
        say(f"planned as one node: {many}; --gpus-per-node N makes nodes of N")
    return Cluster(nodes=nodes, gpus_per_node=per_node, **hardware(args))


def nodes_of(
    gpus: int, per_node: int | None = None, *, is_timed: bool = False, name: str = "--gpus"
) -> tuple[int, int]:
    """Returns the nodes of this many GPUs, and the GPUs of each: `per_node` or, where that is not given, 8.

    A count that fills no whole nodes of 8 is one node, unless times depend on it (`is_timed`).

    >>> nodes_of(4), nodes_of(512), nodes_of(12), nodes_of(12, 4)
    ((1, 4), (64, 8), (1, 12), (3, 4))
    """
    each = min(gpus, per_node or NODE_GPUS)
    if gpus % each == 0:
        return gpus // each, each
    if per_node is None and not is_timed:
        return 1, gpus
    below = gpus // each * each
    todo = f"use {below:,} or {below + each:,} GPUs, or another --gpus-per-node ({gpus:,}: one node)"
    raise InputError(f"{name} {gpus:,} fills no whole nodes of {each:,} GPUs: {todo}")


def counts_in_nodes(args: argparse.Namespace) -> tuple[Any, str]:
    """Returns the planned ones of the typed GPU counts, by the rule of `nodes_of`, and a note.

    They are an array, each once; the note, on counts beside whole nodes, is empty without any.
    """
    import numpy as np

    from isobatch.fleet.counts import fills_nodes

    typed, each = args.gpus, args.gpus_per_node or NODE_GPUS
    gpus = np.array(typed if isinstance(typed, range) else list(dict.fromkeys(typed)))
    is_whole = fills_nodes(gpus, each)
    if is_whole.all():
        return gpus, ""
    broken = gpus[~is_whole]
    listed = "" if isinstance(typed, range) else f": {few(map(str, broken.tolist()), 6)}"
    many = f"{counted(len(broken), 'GPU count')} not of whole nodes of {each:,} GPUs{listed}"
    if args.profile or args.gpus_per_node:
        return gpus[is_whole], f"left out {many}; another --gpus-per-node plans them"
    return gpus, f"planned as one node each: {many}; --gpus-per-node {each} leaves them out"


def hardware(args: argparse.Namespace) -> dict[str, Any]:
    """Collects the hardware's options beside the GPU count."""
    parallel = ("model_parallel", "expert_parallel")
    names = (*parallel, "gpu", "memory_gib", "price_per_gpu_hour", "inter_gb_s", "intra_gb_s")
    return {name: getattr(args, name, None) for name in names}


def typed(values: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Keeps the typed values: neither absent nor a project's default."""
    project = getattr(args, "project", {})
    return {name: value for name, value in values.items() if value is not None and name not in project}


def sheet_memory(
    profiles: Iterable[Any], memory_gib: float | None = None, gpu: str | None = None
) -> Iterator[str]:
    """Yields a note for each profile (of `gpu`, where known) with memory limited by a data sheet."""
    from isobatch.forecast.data_sheets import memory_gib_of

    capping = (
        profile
        for profile in profiles
        if None not in (profile.memory_fixed_gib, profile.memory_per_sample_gib)
    )
    known_types = (profile.gpu for profile in capping if memory_gib is None)
    for gpu in (each for each in known_types if gpu in (None, each)):
        if (known := memory_gib_of(gpu)) is not None:
            yield f"memory of {gpu}: {figure(known)} GiB by its data sheet; --memory-gib N replaces it"


# ---- the settings ----

EVERYDAY_SETTINGS = "--policy --rule --max-micro-batch --batch-tolerance --split --profile --deadline-hours"
"""Options that `--help` shows; `--help all` shows every one."""
EVERYDAY_HARDWARE = "--gpus-per-node --model-parallel --memory-gib --price-per-gpu-hour"


def _policy(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _micro_batch(text: str) -> int:
    """Reads a number, or the finding in a report of the validator."""
    if text[:1].isdecimal() and not Path(text).exists():
        return int(number("max_micro_batch")(text))
    from isobatch.validate import Report

    try:
        return Report.load(text).max_micro_batch
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_READ: dict[str, Callable[[str], Any]] = {
    "policy": _policy,
    "max_micro_batch": _micro_batch,
    "duration_scale": str,
}
"""How a text is read where it is not simply of the setting's type."""


def add_settings(where: Any) -> None:
    """Adds an option for each setting, and --profile."""
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        kind, called, text = get_args(hint)
        usage = f"--{name.replace('_', '-')}"
        if kind is bool:
            _add(where, usage, text, {"action": "store_true", "default": None})
            continue
        if name == "max_micro_batch":
            alternative = "or what `isobatch validate --find-micro-batch -o REPORT` found"
            called, text = "N|REPORT", f"{text}; {alternative}"
        # The core refuses a fraction where it must be whole.
        is_number = {int, float} & {kind, *get_args(kind)}
        reader = _READ.get(name, number(name) if is_number else str)
        _add(where, f"{usage} {called}", text, {"type": reader})
    profile = "what `isobatch calibrate` wrote, for time, memory and cost; repeat it for several GPU types"
    _add(where, "--profile FILE", profile, {"action": "append"})


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Collects the given settings by name."""
    values = {name: value for name in Settings._fields if (value := getattr(args, name)) is not None}
    if args.profile:
        from isobatch.forecast.profile import Profile

        values["profile"] = [Profile.load(path) for path in args.profile]
    return values
