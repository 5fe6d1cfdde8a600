"""The pages of comparisons: of splits with each sample's weight, and of two runs in order."""

from typing import NamedTuple

from isobatch.equivalence.compare import SplitResult
from isobatch.equivalence.order.answer import OrderedSame, shown
from isobatch.equivalence.result import BY_UPDATE, Same
from isobatch.report.charts import sample_weights
from isobatch.report.page import Drawing, Headline, HtmlPage, HtmlTable, Section, versions
from isobatch.words import count, counted, figure

_STATES = {True: "pass", False: "fail", None: "unchecked"}


class _Words(NamedTuple):
    """The words of a page for the things compared."""

    singular: str
    plural: str
    lead: str
    beside: str


_SPLITS = _Words(
    "split", "splits", "Splits are ranks × accumulation × micro-batch", "one pass over the batch"
)
_MESHES = _Words(
    "mesh", "meshes", "Each mesh is compared tensor by tensor, at the first step", "the run without"
)


_WITHOUT_WEIGHTS = {
    True: "{}: the same; too few parameters, or too large a step, to tell each sample's weight.",
    False: "No weights explain the gradient of {}.",
}
"""Sentences of splits whose weights are not known, by whether they are the same."""


def _words(answer: Same) -> _Words:
    return _MESHES if answer.across else _SPLITS


def same_page(answer: Same, *, title: str | None = None) -> HtmlPage:
    """Makes the page of a comparison of splits, or of meshes."""
    words = _words(answer)
    differing = [] if answer.same is None else [result for result in answer.splits if not result.same]
    verdict = next(answer.lines()).removesuffix(".").replace(answer.reference, _times(answer.reference))
    count_text = f"{len(differing)} of {len(answer.splits)}"
    headlines = [
        Headline(f"{words.plural} that differ", "not measured" if answer.same is None else count_text)
    ]
    if answer.splits and answer.same is not None:
        largest = max(result.difference for result in answer.splits)
        headlines += [
            Headline("samples in a step", count(answer.splits[0].samples)),
            Headline("largest difference", figure(largest), "of the gradient, relative"),
        ]
    causes = [_causes(differing, words)] if differing else []
    weights = [] if answer.across and not answer.unasked else [_weights(answer)]
    sections = [*causes, *weights, _measured(answer), _figures(answer)]
    lead = f"{words.lead}. The command: {' '.join(answer.command)}"
    level = "fail" if differing else "pass" if answer.same else "unchecked"
    return HtmlPage(title or verdict, lead, headlines, sections, level)


def _causes(differing: list[SplitResult], words: _Words) -> Section:
    """Tables each cause once, with its splits, in the words of the split where the gradient differs most."""
    splits: dict[tuple[str, str], list[str]] = {}
    texts: dict[tuple[str, str], str] = {}
    for result in sorted(differing, key=lambda result: -result.difference):
        for cause in result.causes:
            splits.setdefault((cause.name, cause.remedy), []).append(_times(result.split))
            texts.setdefault((cause.name, cause.remedy), cause.text)
    rows = [
        (cause[0], ", ".join(names), f"{f'at {names[0]}, ' if names[1:] else ''}{texts[cause]}", cause[1])
        for cause, names in splits.items()
    ]
    columns = {"cause": "text", words.plural: "parts", "what differs": "text", "what to change": "text"}
    return Section("Causes", tables=[HtmlTable("Why it is not the same training", columns, rows)])


def _weights(answer: Same) -> Section:
    """Draws the weights of each split; splits with the same weights have one row of bars."""
    alike: dict[tuple[float, ...], list[str]] = {}
    for result in answer.splits:
        if result.weights:
            key = tuple(round(weight, 3) for weight in result.weights)
            alike.setdefault(key, []).append(_times(result.split))
    points = [
        {"split": ", ".join(splits), "sample": number, "weight": weight}
        for weights, splits in alike.items()
        for number, weight in enumerate(weights)
    ]
    described = "All bars at 1: each sample counts as in one pass. A bar at 4: this sample counts four times."
    drawing = Drawing(sample_weights(points), "Weight of each sample in the gradient", described)
    unknown = [result for result in answer.splits if not (result.weights or answer.across)]
    lines = [
        text.format(", ".join(_times(result.split) for result in unknown if result.same is same))
        for same, text in _WITHOUT_WEIGHTS.items()
        if any(result.same is same for result in unknown)
    ]
    lines += [f"{_times(name)} was not compared: {reason}." for name, reason in answer.unasked.items()]
    return Section(
        "Not compared" if answer.across else "Weights", lines, drawings=[drawing] if points else []
    )


def _measured(answer: Same) -> Section:
    """Tables the measurements behind "the same", each with its state."""
    rows = [(row.measures, row.how, _STATES[row.holds], row.text) for row in answer.measured]
    columns = {"what": "text", "how": "text", "state": "status", "why": "text"}
    table = HtmlTable("What “the same training” is made of", columns, rows)
    return Section("What was measured", tables=[table])


def _figures(answer: Same) -> Section:
    """Tables all figures, folded."""
    rows = [
        (
            _times(result.split),
            "pass" if result.same else "fail",
            figure(result.difference),
            "" if result.residual is None else figure(result.residual),
            " ".join(f"{rate:.4g}" for rate in result.lrs),
            " ".join(f"{norm:.4g}" for norm in result.norms),
            "" if result.update is None else figure(result.update),
        )
        for result in answer.splits
    ]
    words = _words(answer)
    columns = {
        words.singular: "text",
        "verdict": "status",
        "gradient differs by": "number",
        "residual": "number",
    }
    columns |= dict.fromkeys(("learning rate by step", "norm that clipping sees"), "text")
    columns |= {"the weights' change differs by": "number"}
    steps = f"{counted(answer.steps, 'step')} were compared"
    notes = [f"Differences up to {figure(answer.tolerance)} count as rounding; {steps}."]
    if answer.changes:
        notes.append(f"Changed for the comparison: {', '.join(answer.changes)}.")
    if answer.measured_by == "update":
        notes.append(BY_UPDATE)
    groups = [
        (_times(result.split), group.name, figure(group.difference), f"{group.factor:.4g}")
        for result in answer.splits
        for group in result.groups[:5]
    ]
    tables = [HtmlTable(f"Each {words.singular} beside {words.beside}", columns, rows, notes)]
    if groups:
        kinds = {words.singular: "text", "tensors": "text", "differ by": "number", "factor": "number"}
        tables.append(HtmlTable("Tensors that differ most", kinds, groups))
    return Section("All figures", tables=[*tables, versions(answer.versions)], folded=True)


def _times(split: str) -> str:
    """Writes a split with no place to break it."""
    return split.replace("x", "×")


# ---- another release beside the present one, or a restart ----


def ordered_page(answer: OrderedSame, *, title: str | None = None) -> HtmlPage:
    """Makes the page: the first difference, the rows in order, the starts, and settings that differ."""
    verdict = next(answer.lines()).removesuffix(".")
    first = next((row for row in answer.measured if row.holds is False), None)
    place = "none" if answer.same else "not measured" if first is None else first.measures
    headlines = [
        Headline("first difference", place),
        Headline("compared", counted(answer.steps, "step")),
    ]
    rows = [
        (row.measures, row.how, _STATES[row.holds], " → ".join(row.values), row.text)
        for row in answer.measured
    ]
    columns = {"what": "text", "how": "text", "state": "status", " → ".join(answer.sides): "text"}
    columns |= {"where": "text"}
    sections = [Section("In order", tables=[HtmlTable("What both runs do", columns, rows)])]
    if answer.causes:
        causes = [(cause.name, cause.text, cause.remedy) for cause in answer.causes]
        kinds = {"cause": "text", "what differs": "text", "what to change": "text"}
        table = HtmlTable("Why it is not the same training", kinds, causes)
        sections.insert(0, Section("Causes", tables=[table]))
    if answer.starts:
        starts = [(start.name, _STATES[start.same], start.text) for start in answer.starts]
        kinds = {"start": "text", "state": "status", "how it compares": "text"}
        sections.append(Section("Starts", tables=[HtmlTable("Each start", kinds, starts)]))
    if answer.settings:
        settings = [(name, shown(ours), shown(theirs)) for name, (ours, theirs) in answer.settings.items()]
        kinds = {"setting": "text", answer.sides[0]: "text", answer.sides[1]: "text"}
        sections.append(Section("Settings that differ", tables=[HtmlTable("Both sides", kinds, settings)]))
    notes = [f"Changed for the comparison: {', '.join(answer.changes)}."] if answer.changes else []
    sections.append(Section("All figures", notes, tables=[versions(answer.versions)], folded=True))
    lead = f"The command: {' '.join(answer.command)}"
    return HtmlPage(title or verdict, lead, headlines, sections, _STATES[answer.same])
