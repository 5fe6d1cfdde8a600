"""A validation inside of ranks that are there already."""

from __future__ import annotations

import msgspec

from isobatch import Plan
from isobatch.validate import Options, Report, run


def validate(plan_json, **options):
    """The report, as JSON."""
    report = run(Plan.from_json(plan_json), Options(extent="quick", **options))
    assert isinstance(report, Report)
    return msgspec.json.encode(report)
