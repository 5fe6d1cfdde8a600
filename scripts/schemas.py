"""Writes the JSON Schemas of the files that others may read or write: docs/schemas/.

python scripts/schemas.py          writes them anew
python scripts/schemas.py --check  writes nothing, and fails where one is not as the code has it
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from isobatch import _core
from isobatch.doctor.record import SCHEMA as SCHEMA_OF_DOCTOR
from isobatch.doctor.record import FileRecord
from isobatch.fleet.good_counts import SCHEMA as SCHEMA_OF_COUNTS
from isobatch.fleet.good_counts import GoodCounts
from isobatch.forecast import profile
from isobatch.planning import saved
from isobatch.planning.plan import Plan
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.recipes.recipe import Recipe
from isobatch.validate import json_schema

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLANS = ("Plan", "FeasiblePlan")
Schema = dict[str, Any]


def recipe() -> Schema:
    """A recipe's file: its fields, or `batch_per_gpu` and `gpus` in place of the effective batch."""
    schema = msgspec.json.schema(Recipe)
    fields = _of_recipe(schema["$defs"]["Recipe"])
    count = {"type": "integer", "minimum": 1}
    fields["properties"]["batch_per_gpu"] = {
        "anyOf": [count, {"type": "array", "items": count}],
        "description": (
            "samples in a micro-batch of one replica, or one number a replica; with gpus, in place of "
            "effective_batch"
        ),
    }
    fields["required"] = ["lr"]
    fields["oneOf"] = [{"required": ["effective_batch"]}, {"required": ["batch_per_gpu", "gpus"]}]
    return {"title": "isobatch.recipe/1", **schema}


def plan() -> Schema:
    """A saved plan: every value by name, with the recipe, the cluster and the settings behind it."""
    schema = msgspec.json.schema(Plan)
    records = schema["$defs"]
    _of_recipe(records["Recipe"])
    _described(records["Cluster"], "cluster")
    records["Settings"] = _settings(records["Settings"])
    columns = {name: text for name, _, text, *_ in _core.results()}
    for record in (records[name] for name in PLANS if name in records):
        for name, field in record["properties"].items():
            if name in columns and "$ref" not in field:
                field["description"] = columns[name]
    # Only the outer plan says which form and version it has; the plan before a move is inside it.
    head = {
        "schema": {"const": saved.SCHEMA},
        "isobatch": {"type": "string", "description": "the version that wrote it"},
    }
    records["Plan"]["properties"] = head | records["Plan"]["properties"]
    records["Plan"]["required"] = ["schema", *records["Plan"]["required"]]
    return {"title": saved.SCHEMA, **schema}


def profiles() -> Schema:
    """A profile: its constants, each with its error."""
    schema = msgspec.json.schema(profile.Profile)
    schema["$defs"]["Profile"]["properties"]["schema"] = {"const": profile.SCHEMA}
    return {"title": f"isobatch.profile/{profile.SCHEMA}", **schema}


def counts() -> Schema:
    """GPU counts for a scheduler to choose from, and the best of them."""
    schema = msgspec.json.schema(GoodCounts)
    record = schema["$defs"]["GoodCounts"]
    _answered(record)
    record["properties"]["schema"] |= {"const": SCHEMA_OF_COUNTS}
    record["properties"]["gpus"]["items"] = {"type": "integer", "minimum": 1}
    return {"title": SCHEMA_OF_COUNTS, **schema}


def doctor() -> Schema:
    """The doctor's findings on a file."""
    schema = msgspec.json.schema(FileRecord)
    for record in schema["$defs"].values():
        _answered(record)
    schema["$defs"]["FileRecord"]["properties"]["schema"] |= {"const": SCHEMA_OF_DOCTOR}
    schema["$defs"]["FileRecord"]["properties"]["isobatch"].pop("default")
    return {"title": SCHEMA_OF_DOCTOR, **schema}


def _answered(record: Schema) -> None:
    """Gives each field of an answer the text of its docstring; an answer has all of them."""
    record["description"], _, attributes = record["description"].partition("Attributes:")
    texts = re.split(r"^ *(\w+): ", attributes.replace("None", "null"), flags=re.MULTILINE)[1:]
    for name, text in zip(texts[::2], texts[1::2], strict=True):
        record["properties"][name]["description"] = text
    record["required"] = [*record["properties"]]


def _of_recipe(record: Schema) -> Schema:
    _described(record, "recipe")
    # A schedule is a text, or the table that Schedule.to_json gives.
    schedule = record["properties"]["schedule"]
    schedule["anyOf"] = [{"type": "string"}, {"type": "object"}]
    return record


def _described(record: Schema, table: str) -> None:
    """Gives each field of a record what the core says is legal."""
    for name, kind, legal in _core.fields():
        if kind == table:
            record["properties"][name]["description"] = legal


def _settings(record: Schema) -> Schema:
    """Settings as files have them, by name; in memory they are a tuple."""
    legal = {name: text for name, kind, text in _core.fields() if kind == "settings"}
    fields = {
        name: {**item, "default": default, "description": legal[name]}
        for name, item, default in zip(Settings._fields, record["prefixItems"], DEFAULTS, strict=True)
    }
    return {"title": "Settings", "type": "object", "properties": fields, "additionalProperties": False}


def _tidy(value: Any) -> Any:
    """A docstring's text in one line, without its examples."""
    if isinstance(value, dict):
        return {
            key: re.sub(r"\s+", " ", item.partition(">>>")[0]).strip()
            if key == "description" and isinstance(item, str)
            else _tidy(item)
            for key, item in value.items()
        }
    return [_tidy(item) for item in value] if isinstance(value, list) else value


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "recipe": recipe,
    "plan": plan,
    "profile": profiles,
    "report": json_schema,
    "counts": counts,
    "doctor": doctor,
}


def made() -> dict[Path, str]:
    """Each file's path and text."""
    return {
        FOLDER / f"{name}.schema.json": json.dumps(
            {"$schema": DIALECT, **_tidy(build())}, indent=1, ensure_ascii=False
        )
        + "\n"
        for name, build in SCHEMAS.items()
    }


def main(arguments: list[str]) -> int:
    stale = [
        (path, text)
        for path, text in made().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if "--check" in arguments:
            print(
                f"docs/schemas/{path.name} is not as the code has it; run python scripts/schemas.py",
                file=sys.stderr,
            )
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
