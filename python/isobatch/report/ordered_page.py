"""The page of two runs compared in order: another release beside the present one, or a restart."""

from isobatch.equivalence.order.answer import OrderedSame, shown
from isobatch.report.page import Headline, HtmlPage, HtmlTable, Section
from isobatch.words import counted

_STATES = {True: "pass", False: "fail", None: "unchecked"}


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
    columns = {
        "what": "text",
        "how": "text",
        "state": "status",
        " → ".join(answer.sides): "text",
        "where": "text",
    }
    sections = [Section("In order", tables=[HtmlTable("What both runs do", columns, rows)])]
    if answer.causes:
        causes = [(cause.name, cause.text, cause.remedy) for cause in answer.causes]
        kinds = {"cause": "text", "what differs": "text", "what to change": "text"}
        sections.insert(
            0, Section("Causes", tables=[HtmlTable("Why it is not the same training", kinds, causes)])
        )
    if answer.starts:
        starts = [(start.name, _STATES[start.same], start.text) for start in answer.starts]
        kinds = {"start": "text", "state": "status", "how it compares": "text"}
        sections.append(Section("Starts", tables=[HtmlTable("Each start", kinds, starts)]))
    if answer.settings:
        settings = [(name, shown(ours), shown(theirs)) for name, (ours, theirs) in answer.settings.items()]
        kinds = {"setting": "text", answer.sides[0]: "text", answer.sides[1]: "text"}
        sections.append(Section("Settings that differ", tables=[HtmlTable("Both sides", kinds, settings)]))
    versions = HtmlTable("Versions", {"software": "text", "version": "text"}, list(answer.versions.items()))
    notes = [f"Changed for the comparison: {', '.join(answer.changes)}."] if answer.changes else []
    sections.append(Section("All figures", notes, tables=[versions], folded=True))
    level = "fail" if answer.same is False else "pass" if answer.same else "unchecked"
    return HtmlPage(title or verdict, f"The command: {' '.join(answer.command)}", headlines, sections, level)
