"""From a value, or a file of it, to its page, and to the file of a page or of its charts."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from isobatch import _core, limits
from isobatch.equivalence.order.answer import OrderedSame
from isobatch.equivalence.result import Same
from isobatch.errors import InputError, must_be, needs_extra
from isobatch.files.whole import read_whole, write_whole
from isobatch.fleet.counts import Counts
from isobatch.planning.plan import Plan, plan
from isobatch.planning.settings import Rule, Rules
from isobatch.recipes.recipe import Recipe
from isobatch.report import charts
from isobatch.report.allocation_page import allocation_page, is_division, log_in, read_division
from isobatch.report.counts_page import counts_page
from isobatch.report.fleet_page import fleet_page
from isobatch.report.page import HtmlPage, html, picture
from isobatch.report.plan_page import curve, plan_page, rate_points, refused
from isobatch.report.same_page import ordered_page, same_page
from isobatch.report.validation_page import validation_page
from isobatch.schedules import Schedule, Units, extent, resolve
from isobatch.validate.report import Report
from isobatch.words import count, counted, printable, real

_FORMATS = (".html", ".htm", *charts.PICTURES)


def require_extra(output: str | None = None) -> None:
    """Refuses an output of no format, and where the drawing packages or altair's docstrings are missing."""
    if output not in (None, "-") and PurePath(str(output)).suffix.lower() not in _FORMATS:
        raise InputError("cannot tell the format: use .html, .svg or .png", file=output)
    if sys.flags.optimize > 1:
        raise InputError("pages need docstrings, which -OO leaves out: run without it (PYTHONOPTIMIZE=2)")
    try:
        import altair  # noqa: F401
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ModuleNotFoundError:
        raise needs_extra("reports and charts", "report") from None


def page_of_file(
    path: str, *, title: str | None = None, currency: str = "$", deadline: float | None = None
) -> HtmlPage:
    """Makes the page of a file: a plan or validation (.json), a log of divisions (.jsonl), a fleet's table.

    A fleet's may also be a folder, a glob or a URL, and has the deadline of its settings where none is given.
    """
    if PurePath(path).suffix.lower() == ".jsonl" and (divisions := log_in(path)) is not None:
        return allocation_page(divisions, title=title, currency=currency)
    if PurePath(path).suffix.lower() != ".json":
        from isobatch.files.read import read_table

        return fleet_page(read_table(path), title=title, file=path, currency=currency, deadline=deadline)
    text = read_whole(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {str(error)[:200]}", file=path) from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if is_division(content):
        return allocation_page([read_division(text, path)], title=title, currency=currency)
    if str(schema).startswith("isobatch.plan/"):
        return plan_page(Plan.load(path), title=title, currency=currency)
    if str(schema).startswith("isobatch.validation/"):
        return validation_page(Report.load(path), title=title)
    if str(schema).startswith("isobatch.equivalence/"):
        return same_page(Same.load(path), title=title)
    if str(schema).startswith("isobatch.order/"):
        return ordered_page(OrderedSame.load(path), title=title)
    kinds = "a plan, a validation or a comparison of splits (or an answer of isobatch allocate --json)"
    raise must_be(f"that of {kinds}", schema, field="schema", file=path)


_PAGES: dict[type, Callable[..., HtmlPage]] = {
    Plan: plan_page,
    Report: validation_page,
    OrderedSame: ordered_page,  # before Same, which it is too
    Same: same_page,
    Counts: counts_page,
    dict: fleet_page,
}


def page_of_value(value: Any, **keywords: Any) -> HtmlPage:
    """Makes the page of a Plan, a Counts, a validation's Report, or a fleet's table."""
    for kind, page_of in _PAGES.items():
        if isinstance(value, kind):
            return page_of(value, **keywords)
    if hasattr(value, "__arrow_c_stream__"):
        return fleet_page(value, **keywords)
    raise must_be("a Plan, Counts, a Report, a Same or a table of plans", type(value), field="value")


def content(page: HtmlPage, output: str) -> bytes:
    """Returns the bytes of a file by its name: the page as .html, or its charts as .svg or .png."""
    require_extra(output)
    suffix = PurePath(output).suffix.lower()
    if output == "-" or suffix not in charts.PICTURES:
        return html(page).encode("utf-8", "backslashreplace")
    return charts.picture(output, charts.svg(picture(page)))


def write(value: Any, output: str | os.PathLike[str], **keywords: Any) -> None:
    """Writes the page of a value or of a file (.html), or its charts (.svg, .png), whole or not at all."""
    require_extra(os.fspath(output))
    is_path = isinstance(value, (str, os.PathLike))
    page = page_of_file(os.fspath(value), **keywords) if is_path else page_of_value(value, **keywords)
    write_whole(output, content(page, os.fspath(output)))


class Plot(NamedTuple):
    """A chart: notebooks draw it as SVG, `save` writes it, `chart` is the `altair.Chart`."""

    chart: Any

    def _repr_svg_(self) -> str:
        return charts.svg(self.chart)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, whole or not at all.

        Args:
            path: a file: .svg or .png.

        Raises:
            InputError: the name says neither, or it cannot be written.
        """
        name = os.fspath(path)
        write_whole(name, charts.picture(name, self._repr_svg_()))


_KINDS = (
    "a Plan, a Recipe, a Schedule or its name, a list of up to 6 of these, Counts, rules, a Report, a Same, "
    "a table of plans, or the path of one"
)


def plot(value: Any, *, steps: float | None = None) -> Plot:
    """Draws plans, recipes, schedules, counts, rules, a validation's report or a fleet's table, as SVG.

    Args:
        value: what to draw: of a plan, counts, a report or a table the charts of its page; of a list of plans
            or schedules their learning rates beside each other; a recipe as its plan on the tuned GPUs; a
            text names a file of one of these, or a schedule, which is drawn with a peak of 1.
        steps: where the curve of a schedule ends (default: with its run, or past what is interesting; of a
            text 1,000).

    Raises:
        InputError: the extra `report` is not installed, or there is nothing to draw.

    >>> import isobatch as ib
    >>> ib.plot("wsd(decay=20%)").chart.to_dict()["title"]
    'Learning rate 1 at most, 1,000 steps'
    """
    require_extra()
    if steps is not None:
        steps = limits.real(
            steps, "steps", "a number above 0 and below 2^53", lambda x: (x > 0) & (x < 2**53)
        )
    if isinstance(value, Rules):
        title = f"Learning rate by rule, at a noise scale of {_NOISE} times the tuned batch"
        return Plot(charts.themed(charts.rates(_rates()), title))
    value = _drawable(value, steps)
    if isinstance(value, Schedule):
        points = _schedule_points("schedule", value, steps)
        title = f"Learning rate {real(max(point['lr'] for point in points))} at most"
        title += f", {count(round(points[-1]['step']))} steps"
        return Plot(charts.themed(charts.over_run(points, "step", "optimizer steps"), title))
    if isinstance(value, HtmlPage):
        return Plot(picture(value, "the plan of this file is infeasible or has no duration"))
    if isinstance(value, (list, tuple, Iterator)):
        return _plot_list(list(value), steps)
    if isinstance(value, Plan):
        _require_length(value)
    elif not isinstance(value, tuple(_PAGES)) and not hasattr(value, "__arrow_c_stream__"):
        raise must_be(_KINDS, type(value), field="value")
    why = "pass counts with a profile=, for hours, or several GPU counts that work"
    return Plot(picture(page_of_value(value), why))


def _drawable(value: Any, steps: float | None) -> Any:
    """Makes a plan of a recipe, a schedule of its name, and of a path the page of its file."""
    if isinstance(value, (str, os.PathLike)):
        suffix = PurePath(value).suffix.lower()
        if suffix in (".toml", ".yaml", ".yml"):
            value = Recipe.load(value)
        elif isinstance(value, os.PathLike) or suffix in _FILES or Path(value).exists():
            return page_of_file(os.fspath(value))
        else:
            units = Units(tuned_batch=1, batch=1)
            return resolve(value, peak=1.0, total_steps=1000 if steps is None else steps, units=units)
    return plan(value, value.gpus or value.model_parallel) if isinstance(value, Recipe) else value


_FILES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".pq")


def _require_length(planned: Plan) -> None:
    """Refuses a plan without a learning rate over its run."""
    if planned.status == "infeasible":
        why = f"{refused(planned.explanation())}. plan.options has what would work"
        raise InputError(f"there is nothing to draw: {why}")
    if planned.total_steps is None:
        why = 'the run has no length: set duration of the recipe, such as "90ep"'
        raise InputError(f"there is nothing to draw: {why}")


def _schedule_points(name: str, schedule: Schedule, steps: float | None) -> list[dict[str, Any]]:
    sampled = curve(schedule, extent.span(schedule.form) if steps is None else steps)
    return [{"run": name, "at": at, "step": step, "lr": lr} for at, (step, lr) in enumerate(sampled)]


def _plot_list(values: Sequence[Any], steps: float | None) -> Plot:
    """Draws the learning rates of several plans over their samples, or of schedules over their steps."""
    most = len(charts.SERIES)
    drawn = [_drawable(value, steps) for value in values[: most + 1]]
    kind = next((kind for kind in (Plan, Schedule) if all(isinstance(each, kind) for each in drawn)), None)
    if kind is None or not 0 < len(values) <= most:
        kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in values)) or "none"
        legal = f"a list of 1 to {most} plans, or of as many schedules"
        raise InputError(f"value must be {legal}, got {count(len(values))} ({kinds})", field="value")
    points: list[dict[str, Any]] = []
    for number, (value, each) in enumerate(zip(values, drawn, strict=True), start=1):
        if isinstance(each, Schedule):
            name = printable(value, 60) if isinstance(value, str) else "schedule"
            points += _schedule_points(f"{number}: {name}", each, steps)
        else:
            _require_length(each)
            points += rate_points(f"{number}: {counted(each.world_size, 'GPU')}", each)
    axis = ("samples", "samples") if kind is Plan else ("step", "optimizer steps")
    title = f"Learning rates of {counted(len(values), kind.__name__.lower())}"
    return Plot(charts.themed(charts.over_run(points, *axis), title))


_NOISE = 8


def _rates() -> list[dict[str, Any]]:
    """Plans a learning rate of 1 at 1/64 to 64 times a batch, by the rules for a known noise scale.

    Of rules with the same curve the first stands for all.
    """
    tuned = Recipe(effective_batch=4096, lr=1.0, optimizer="adamw", noise_scale=4096.0 * _NOISE)
    powers = [2.0**power for power in range(-6, 7)]
    curves: dict[tuple[float | None, ...], Rule] = {}
    for name, *_ in _core.rules():
        rule = cast("Rule", name)
        curve = tuple(plan(tuned, 1, policy=int(4096 * power), rule=rule).lr for power in powers)
        curves.setdefault(curve, rule)
    return [
        {"rule": rule, "k": power, "factor": factor}
        for curve, rule in curves.items()
        for power, factor in zip(powers, curve, strict=True)
        if None not in curve
    ]
