"""The page of a comparison of splits: the answer, the weight of each sample as bars, and the mends."""

from isobatch.equivalence.compare import SplitResult
from isobatch.equivalence.result import Same
from isobatch.report.charts import sample_weights
from isobatch.report.page import Drawing, Headline, HtmlPage, HtmlTable, Section
from isobatch.words import count, counted, figure


def same_page(answer: Same, *, title: str | None = None) -> HtmlPage:
    """Makes the page of a comparison."""
    differing = [result for result in answer.splits if not result.same]
    verdict = "Not the same training" if differing else "The same training at every split"
    lead = f"{' '.join(answer.command)}. Compared with one pass over the batch, {_times(answer.reference)}."
    headlines = [
        Headline(
            "splits that differ",
            f"{len(differing)} of {len(answer.splits)}",
            "ranks × accumulation × micro-batch",
        ),
        Headline("samples in a step", count(answer.splits[0].samples)),
        Headline(
            "largest difference",
            figure(max(result.difference for result in answer.splits)),
            "of the gradient, relative",
        ),
    ]
    sections = [_weights(answer), *([_causes(differing)] if differing else []), _figures(answer)]
    return HtmlPage(title or verdict, lead, headlines, sections, "fail" if differing else "pass")


def _weights(answer: Same) -> Section:
    points = [
        {"split": _times(result.split), "sample": number, "weight": weight}
        for result in answer.splits
        for number, weight in enumerate(result.weights)
    ]
    described = "All bars at 1: the same training. A bar at 4: this sample counts four times."
    drawings = (
        [Drawing(sample_weights(points), "Weight of each sample in the gradient", described)]
        if points
        else []
    )
    return Section("Weights", drawings=drawings)


def _causes(differing: list[SplitResult]) -> Section:
    rows = [
        (_times(result.split), cause.name, cause.text, cause.mend)
        for result in differing
        for cause in result.causes
    ]
    columns = dict.fromkeys(("split", "cause", "what differs", "what mends it"), "text")
    return Section("Causes", tables=[HtmlTable("Why it is not the same training", columns, rows)])


def _figures(answer: Same) -> Section:
    rows = [
        (
            _times(result.split),
            "pass" if result.same else "fail",
            figure(result.difference),
            "" if result.residual is None else figure(result.residual),
            " ".join(f"{rate:.4g}" for rate in result.lrs),
            " ".join(f"{norm:.4g}" for norm in result.norms),
            figure(result.weights_after),
        )
        for result in answer.splits
    ]
    columns = {
        "split": "text",
        "verdict": "status",
        "gradient differs by": "number",
        "residual": "number",
        "learning rate by step": "text",
        "norm that clipping sees": "text",
        "weights after differ by": "number",
    }
    notes = [f"{_times(name)} was not compared: {reason}." for name, reason in answer.unasked.items()]
    notes.append(
        f"Differences up to {figure(answer.tolerance)} count as rounding; {counted(answer.steps, 'step')} "
        "were compared."
    )
    if answer.changes:
        notes.append(f"Changed for the comparison: {', '.join(answer.changes)}.")
    groups = [
        (_times(result.split), group.name, figure(group.difference), f"{group.factor:.4g}")
        for result in answer.splits
        for group in result.groups[:5]
    ]
    tables = [HtmlTable("Each split beside one pass over the batch", columns, rows, notes)]
    if groups:
        kinds = {"split": "text", "tensors": "text", "differ by": "number", "factor": "number"}
        tables.append(HtmlTable("Tensors that differ most", kinds, groups))
    versions = HtmlTable("Versions", {"software": "text", "version": "text"}, list(answer.versions.items()))
    return Section("Figures", tables=[*tables, versions])


def _times(split: str) -> str:
    return split.replace("x", " × ")
