"""`isobatch plan --show-config`: the values of a plan, each with the place that it came from."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.cli.source import Source, fields
from isobatch.cli.tables import show_table
from isobatch.cli.terminal import write_json
from isobatch.files.formats import read_fields
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.names import with_our_names
from isobatch.recipes.recipe import Recipe
from isobatch.schedules.schedule import Schedule
from isobatch.tools.beside import is_default

DEFAULT = "default"


def show(args: argparse.Namespace, source: Source, cluster: Cluster) -> None:
    """Prints each known value with its origin, such as an option, a file or a default."""
    rows = [*_of_recipe(args, source), *_of_options(args, source, cluster)]
    if args.json:
        plain = [
            (name, str(value) if isinstance(value, Schedule) else value, origin)
            for name, value, origin in rows
        ]
        write_json({name: {"value": value, "from": origin} for name, value, origin in plain})
    else:
        show_table(("name", "value", "from"), [(name, _text(value), origin) for name, value, origin in rows])


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _of_recipe(args: argparse.Namespace, source: Source) -> Iterator[tuple[str, Any, str]]:
    typed = {**dict.fromkeys(fields(args), "--set")}
    in_files: dict[str, str] = {}
    for page in reversed(source.pages):
        own = f"default of {page.title}"
        in_files |= {name: own if is_default(page, name) else page.file for name in page.fields}
    if args.recipe is not None:
        known = [*Recipe.__struct_fields__, "batch_per_gpu"]
        in_files |= dict.fromkeys(with_our_names(read_fields(args.recipe), known), args.recipe)
    for places in (in_files, typed):
        if "batch_per_gpu" in places:  # a recipe has the batch of all GPUs in its place
            derived = dict.fromkeys(("effective_batch", "micro_batch"), places["batch_per_gpu"])
            places |= {name: place for name, place in derived.items() if name not in places}
    project = {"gpus": args.project_file} if getattr(args, "tuned_gpus", None) is not None else {}
    origins = {**project, **in_files, **typed}
    names = (name for name in Recipe.__struct_fields__ if not name.startswith("_"))
    for name in names:
        value = getattr(source.recipe, name)
        if value is not None:
            yield ("tuned_gpus" if name == "gpus" else name), value, origins.get(name, DEFAULT)


def _of_options(args: argparse.Namespace, source: Source, cluster: Cluster) -> Iterator[tuple[str, Any, str]]:
    project = getattr(args, "project", {})
    demands = {name: page.file for page in reversed(source.pages) for name in page.demands}
    # A profile is named here, and not read: this is to say where a wrong one comes from.
    typed = {name: value for name in Settings._fields if (value := getattr(args, name)) is not None}
    values = source.settings(typed) | {"profile": args.profile}
    known: Mapping[str, Any] = dict(zip(Settings._fields, DEFAULTS, strict=True))
    for name in (*known, "profile"):
        value = values.get(name, known.get(name))
        if value is not None:
            yield name, value, _origin(args, name, project, demands)
    by_count = {"nodes": "--gpus", "gpus_per_node": "--gpus"} if args.gpus is not None else {}
    for name in Cluster.__struct_fields__:
        value = getattr(cluster, name)
        if value is not None:
            yield name, value, _origin(args, name, project, by_count)


def _origin(
    args: argparse.Namespace, name: str, project: Mapping[str, Any], places: Mapping[str, str]
) -> str:
    if name in project:
        return str(args.project_file)
    if getattr(args, name, None) is not None:
        return f"--{name.replace('_', '-')}"
    return places.get(name, DEFAULT)
