"""`isobatch plan -`: one JSON request a line, one JSON answer a line, so that any language can keep one process open."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from isobatch import _core
from isobatch.cli.terminal.messages import say
from isobatch.errors import InputError, missing, must_be, together, unknown
from isobatch.files.formats import refuse_duplicate_keys
from isobatch.words import count, counted, printable

OWN = ("id", "recipe", "cluster", "gpus", "settings", "explain")
"""Keys of a request; beside them any setting of `isobatch.plan`."""


_JSONS = {"None": "null", "True": "true", "False": "false"}
_PYTHONS = re.compile(r"\bgot (None|True|False)\b")
"""What the sentences of errors write as Python does, and who asked in JSON did not."""


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
        if isinstance(found, dict):
            refuse_duplicate_keys(line, found)
    except InputError:
        raise
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        why = printable(str(error).removeprefix("JSON is malformed: "), 200)
        raise InputError(f"the line is not JSON: {why}") from None
    if not isinstance(found, dict):
        raise InputError(f"the line must be an object with a recipe and a cluster, got {_as_json(found)}")
    return found


def _as_json(value: Any) -> str:
    """A value of a request as its writer has it."""
    return printable(msgspec.json.encode(value).decode(), 80)


def _refusal(found: Mapping[str, Any], error: InputError) -> dict[str, Any]:
    text = _PYTHONS.sub(lambda it: f"got {_JSONS[it[1]]}", str(error))
    return {"id": found.get("id"), "error": text, "fields": list(error.fields)}


def _answer(
    found: Mapping[str, Any], fields: Mapping[str, Any], where: Any, how: Mapping[str, Any]
) -> dict[str, Any]:
    from isobatch.planning.plan import plan
    from isobatch.planning.settings import Settings

    for name in found:
        if name not in (*OWN, *Settings._fields):
            raise unknown("key", name, (*OWN, *Settings._fields), field=name)
    tuned, cluster, settings = _each(
        lambda: _recipe(found, fields), lambda: _cluster(found, where), lambda: _settings(found, how)
    )
    made = plan(tuned, cluster, **settings)
    answer = {
        "id": found.get("id"),
        "status": made.status,
        "plan": msgspec.Raw(msgspec.json.format(made.to_json().encode(), indent=-1)),
    }
    return answer | ({"explain": made.explain()} if found.get("explain") else {})


def _each(*parts: Callable[[], Any]) -> list[Any]:
    """What each part gives; where several cannot be used, one error says all that is wrong."""
    values: list[Any] = []
    faults: list[InputError] = []
    for part in parts:
        try:
            values.append(part())
        except InputError as error:
            faults += error.causes or [error]
    if faults:
        raise together(faults)
    return values


def _recipe(found: Mapping[str, Any], fields: Mapping[str, Any]) -> Any:
    from isobatch.recipes.recipe import Recipe

    given = {**fields, **_table(found, "recipe")}
    if not given:
        raise missing("recipe", 'give its fields, such as "recipe": {"effective_batch": 256, "lr": 0.1}')
    if isinstance(given.get("betas"), list):
        given["betas"] = tuple(given["betas"])
    # null is unknown, as in a fleet's cells.
    return Recipe.of({name: value for name, value in given.items() if value is not None})


def _settings(found: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    from isobatch.planning.settings import Settings, settings_of

    inner, own = _table(found, "settings"), {name: found[name] for name in Settings._fields if name in found}
    for name in inner:
        if name not in Settings._fields:
            raise unknown("setting", name, Settings._fields, field=name)
    if twice := [name for name in own if name in inner and own[name] != inner[name]]:
        raise InputError(
            f"{twice[0]} is in the request and in its settings: give one or the other", field=twice[0]
        )
    given = {**how, **inner, **own}
    values = settings_of({name: value for name, value in given.items() if name != "profile"})._asdict()
    faults = [must_be(legal, got, field=name) for name, got, legal in _core.check_settings(values)]
    if faults:
        raise together(faults)
    return given


def _cluster(found: Mapping[str, Any], where: Any) -> Any:
    from isobatch.recipes.cluster import Cluster

    if "gpus" in found:
        if "cluster" in found:
            raise InputError("gpus goes without cluster: give one or the other", field="gpus")
        gpus = found["gpus"]
        if type(gpus) is not int or not 1 <= gpus <= 2**31:
            raise must_be("a whole number from 1 to 2,147,483,648", gpus, field="gpus")
        return gpus
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
