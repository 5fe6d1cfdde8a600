"""Recipes in files: TOML, YAML or JSON."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.files.whole import read_whole
from isobatch.recipes.recipe import Recipe


def load_recipe(path: str | os.PathLike[str], changes: dict[str, Any] | None = None) -> Recipe:
    """Reads a recipe: a table of Recipe's fields, or `batch_per_gpu` and the arguments of `Recipe.from_gpus`.

    Args:
        path: a .toml, .yaml, .yml or .json file.
        changes: fields that replace those of the file.

    Raises:
        InputError: the file cannot be read, a key is unknown (the nearest right one is named), a value is not legal.
    """
    file = os.fspath(path)
    fields = _parse(Path(path), file)
    if not isinstance(fields, dict):
        raise InputError("holds no table of a recipe's fields", file=file)
    return make_recipe({**fields, **(changes or {})}, file=file)


def make_recipe(fields: dict[str, Any], *, file: str | None = None) -> Recipe:
    """The recipe of named fields, with errors that name the file."""
    legal = [*Recipe.__struct_fields__, "batch_per_gpu"]
    for name in fields:
        if name not in legal:
            raise unknown("field", name, legal, file=file, field=str(name))
    needed = ("gpus", "batch_per_gpu", "lr") if "batch_per_gpu" in fields else ("effective_batch", "lr")
    for name in needed:
        if name not in fields:
            raise InputError("missing", file=file, field=name)
    if isinstance(fields.get("betas"), list):
        fields["betas"] = tuple(fields["betas"])
    try:
        return Recipe.from_gpus(**fields) if "batch_per_gpu" in fields else Recipe(**fields)
    except InputError as error:
        raise error.at(file=file) from None


def _parse(path: Path, file: str) -> Any:
    text = read_whole(path)
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix in (".yaml", ".yml"):
            return _parse_yaml(text, file)
    except ValueError as error:
        raise InputError(f"cannot be read: {error}", file=file) from None
    raise InputError(
        f"{path.suffix or 'no suffix'} is not legal; legal: .toml, .yaml, .yml, .json", file=file
    )


def _parse_yaml(text: str, file: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise InputError("reading YAML needs PyYAML: pip install 'isobatch[fleet]'", file=file) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
