"""The report's JSON Schema. To make the file in the package anew:

python -m isobatch.validate.report.schema > python/isobatch/validate/report/report.schema.json
"""

from __future__ import annotations

import importlib.resources
from typing import Any

import msgspec

from isobatch.validate.report.document import SCHEMA, Report


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a report, as the package has it.

    >>> json_schema()["title"]
    'isobatch.validation/1'
    """
    text = importlib.resources.files("isobatch.validate.report").joinpath("report.schema.json").read_bytes()
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


def make_json_schema() -> str:
    """The file's text that follows from the structure."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **msgspec.json.schema(Report),
    }
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"


if __name__ == "__main__":
    print(make_json_schema(), end="")
