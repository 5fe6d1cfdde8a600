"""`isobatch plan -`: one JSON request a line, one JSON answer a line, so that any language can keep one process open."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from isobatch.cli.terminal.messages import say
from isobatch.errors import InputError, missing, must_be, unknown
from isobatch.words import count, counted, printable

OWN = ("id", "recipe", "cluster", "gpus", "settings", "explain")
"""Keys of a request; beside them any setting of `isobatch.plan`."""


def serve(fields: Mapping[str, Any], where: Any, how: Mapping[str, Any]) -> int:
    """Answers each line of stdin on stdout, and the next only then; a line that is wrong is answered with its error.

    Args:
        fields: fields of the recipe for requests that do not give them.
        where: the Cluster for requests that name none; None: each names its own.
        how: settings for requests that do not give them.

    Returns:
        0, 2 where a request could not be used, or 3 where isobatch failed at one.
    """
    refused = faults = asked = 0
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        asked += 1
        found: dict[str, Any] = {}
        try:
            found = _read(line)
            answer = _answer(found, fields, where, how)
        except InputError as error:
            refused += 1
            answer = _refusal(found, error)
        except Exception as error:  # one fault must not end the others
            faults += 1
            text = printable(f"a fault of isobatch itself ({type(error).__name__}: {error})", 300)
            answer = {"id": found.get("id"), "error": text, "fields": []}
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    if refused or faults:
        say(f"{count(refused + faults)} of {counted(asked, 'request')} could not be answered")
    return 3 if faults else 2 if refused else 0


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InputError(f"the line is no JSON: {printable(str(error), 200)}") from None
    if not isinstance(found, dict):
        raise must_be("an object with a recipe and a cluster", found, field="the line")
    return found


def _refusal(found: Mapping[str, Any], error: InputError) -> dict[str, Any]:
    return {"id": found.get("id"), "error": str(error), "fields": list(error.fields)}


def _answer(
    found: Mapping[str, Any], fields: Mapping[str, Any], where: Any, how: Mapping[str, Any]
) -> dict[str, Any]:
    from isobatch.planning.plan import plan
    from isobatch.planning.settings import Settings
    from isobatch.recipes.recipe import Recipe

    for name in found:
        if name not in (*OWN, *Settings._fields):
            raise unknown("key", name, (*OWN, *Settings._fields), field=name)
    asked = _table(found, "settings")
    for name in asked:
        if name not in Settings._fields:
            raise unknown("setting", name, Settings._fields, field=name)
    settings = {
        **how,
        **asked,
        **{name: found[name] for name in Settings._fields if name in found},
    }
    recipe = {**fields, **_table(found, "recipe")}
    if not recipe:
        raise missing("recipe", 'give its fields, such as "recipe": {"effective_batch": 256, "lr": 0.1}')
    if isinstance(recipe.get("betas"), list):
        recipe["betas"] = tuple(recipe["betas"])
    made = plan(Recipe.of(recipe), _cluster(found, where), **settings)
    answer = {
        "id": found.get("id"),
        "status": made.status,
        "plan": msgspec.Raw(msgspec.json.format(made.to_json().encode(), indent=-1)),
    }
    return answer | ({"explain": made.explain()} if found.get("explain") else {})


def _cluster(found: Mapping[str, Any], where: Any) -> Any:
    from isobatch.recipes.cluster import Cluster

    if "gpus" in found:
        if "cluster" in found:
            raise InputError("gpus goes without cluster: give one or the other", field="gpus")
        return found["gpus"]
    if "cluster" in found:
        return Cluster(**_table(found, "cluster"))
    if where is None:
        raise missing("cluster", 'give "gpus": N, or "cluster": {"nodes": N, "gpus_per_node": M}')
    return where


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A part of a request that has names of its own."""
    part = found.get(name, {})
    if not isinstance(part, dict):
        raise must_be("an object", part, field=name)
    return part
