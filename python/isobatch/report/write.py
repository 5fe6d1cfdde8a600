"""From a file of plans, a plan, a sweep or a validation to its page, or to the picture of its charts."""

from __future__ import annotations

import json
import os
from pathlib import PurePath
from typing import Any

from isobatch.errors import InputError, must_be, needs_extra
from isobatch.files.whole import read_whole, write_whole
from isobatch.report.page import Page, html, picture

PAGES = (".html", ".htm")


def needed() -> None:
    """Refuses where what draws pages is not there.

    Raises:
        InputError: the extra `report` is not installed.
    """
    try:
        import altair  # noqa: F401
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ModuleNotFoundError:
        raise needs_extra("reports and charts", "report") from None


def page_of_file(
    path: str,
    *,
    title: str | None = None,
    deadline: float | None = None,
    currency: str = "$",
    jobs: str | None = None,
    clusters: str | None = None,
    profile: Any = None,
) -> Page:
    """The page of what a file holds: a plan or a validation (.json), the lines of `isobatch sweep --json`, or the table of a fleet.

    Args:
        path: a file; of a fleet's table also a folder, a glob or a URL.
        title: the page's heading; None: the file's name.
        deadline: hours that a run may take.
        currency: the sign of the prices.
        jobs: where a fleet's jobs are, to plan it again for what would fix most rows.
        clusters: likewise.
        profile: the profiles that it was planned with.

    Raises:
        InputError: it cannot be read, or holds none of these.
    """
    title = title or PurePath(path).name
    if PurePath(path).suffix.lower() == ".json":
        return _of_document(path, title, currency)
    from isobatch.files.read import read_table

    table = read_table(path)
    if "gpus" in table.column_names and "world_size" not in table.column_names:
        from isobatch.report import sweep

        return sweep.page_of(table, title=title, file=path, deadline=deadline, currency=currency)
    from isobatch.report import fleet

    return fleet.page_of(
        table,
        title=title,
        file=path,
        deadline=deadline,
        currency=currency,
        jobs=jobs,
        clusters=clusters,
        profile=profile,
    )


def _of_document(path: str, title: str, currency: str) -> Page:
    """The page of a JSON file, by the schema that it names."""
    try:
        found = json.loads(read_whole(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {str(error)[:200]}", file=path) from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if isinstance(schema, str) and schema.startswith("isobatch.plan/"):
        from isobatch.planning.plan import Plan
        from isobatch.report import plan

        return plan.page_of(
            Plan.load(path), title=None if title == PurePath(path).name else title, currency=currency
        )
    if isinstance(schema, str) and schema.startswith("isobatch.validation/"):
        from isobatch.report import validation
        from isobatch.validate.report import Report

        return validation.page_of(Report.load(path), title=title)
    raise must_be("that of a plan or of a validation", schema, field="schema", file=path)


def page_of_value(value: Any, *, title: str | None = None, **keywords: Any) -> Page:
    """The page of a Plan, a Sweep, a validation's Report, or the table of a fleet.

    Raises:
        InputError: it is none of these.
    """
    from isobatch.fleet.sweep import Sweep
    from isobatch.planning.plan import Plan
    from isobatch.report import fleet, plan, sweep, validation
    from isobatch.validate.report import Report

    named: dict[str, Any] = {} if title is None else {"title": title}
    if isinstance(value, Plan):
        return plan.page_of(value, **named, **keywords)
    if isinstance(value, Report):
        return validation.page_of(value, **named, **keywords)
    if isinstance(value, Sweep):
        return sweep.page_of(value, **named, **keywords)
    if isinstance(value, dict) or hasattr(value, "__arrow_c_stream__"):
        return fleet.page_of(value, **named, **keywords)
    raise must_be("a Plan, a Sweep, a Report or a table of plans", type(value), field="value")


def content(page: Page, output: str) -> bytes:
    """What a file of that name holds: the page as .html, or its charts as .svg or .png.

    Raises:
        InputError: the name says none of these, or the page has no chart.
    """
    from isobatch.charts import theme

    suffix = PurePath(output).suffix.lower()
    if output == "-" or suffix in PAGES:
        return html(page).encode("utf-8", "backslashreplace")
    if suffix not in theme.PICTURES:
        raise InputError("cannot tell the format: use .html, .svg or .png", file=output)
    return theme.picture(output, picture(page))


def write(value: Any, output: str | os.PathLike[str], **keywords: Any) -> None:
    """Writes the page of a value, or the picture of its charts, whole or not at all.

    Args:
        value: a Plan, a Sweep, a validation's Report, the table of a fleet, or the path of a file of one.
        output: a file: .html, .svg or .png.
        keywords: those of `page_of_file`.

    Raises:
        InputError: the value has no page, the name says no format, or the extra `report` is not installed.
    """
    needed()
    is_path = isinstance(value, (str, os.PathLike))
    page = page_of_file(os.fspath(value), **keywords) if is_path else page_of_value(value, **keywords)
    write_whole(output, content(page, os.fspath(output)))
