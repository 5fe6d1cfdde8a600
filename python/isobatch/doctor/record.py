"""The doctor's answer as JSON: an object for each file, and one for a file that cannot be read."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, cast

import msgspec

from isobatch import _core
from isobatch.errors import InputError
from isobatch.files.whole import read_whole
from isobatch.tools.page import Reading, leaves
from isobatch.tools.tool import Issue

SCHEMA: Literal["isobatch.doctor/1"] = "isobatch.doctor/1"
Level = Literal["stops", "changes", "refused", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A surprise in a configuration for its author.

    Attributes:
        level: `stops` the run, `changes` the training, is `refused` by isobatch plan, or only a `note`.
        setting: the setting of the file that it is about; None if it is not known.
        file: the examined file; None of a command that ran.
        line: the one line of the file that names the setting, from 1; None unless there is exactly one.
        text: what happens.
        cause: of it.
        source: a document, an issue, or the place in the tool's own code.
        mend: the lines to write instead.
    """

    level: Level
    setting: str | None
    file: str | None
    line: int | None
    text: str
    cause: str
    source: str
    mend: str


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The real training of a configuration on a number of GPUs.

    Attributes:
        schema: name and version of this form.
        isobatch: the version that examined it.
        file: the examined file; None of a command that ran.
        error: why the file cannot be read; None if it can.
        tool: whose file it is; None of one that cannot be read.
        gpus: of the run to come; None where every row of a file was examined.
        batch: samples in a step on those GPUs, as the file is; None where it does not say.
        tuned_batch: samples in a step of the tuned run; None where it is not known.
        findings: the most expensive first.
        notes: what is not known, and what was assumed.
    """

    schema: Literal["isobatch.doctor/1"] = SCHEMA
    isobatch: str = _core.__version__
    file: str | None
    error: str | None = None
    tool: str | None = None
    gpus: int | None = None
    batch: int | None = None
    tuned_batch: int | None = None
    findings: list[Finding] = []
    notes: list[str] = []


def findings_of(issues: Iterable[Issue], reading: Reading) -> list[Finding]:
    """Returns the issues of a file as JSON has them."""
    lines = _text_lines(reading.file)
    settings = [(issue, _setting(issue, reading)) for issue in issues]
    return [
        Finding(
            level=cast(Level, issue.weight.name.lower()),
            setting=setting,
            file=reading.file or None,
            line=_line_number(setting, lines),
            text=issue.what,
            cause=issue.cause,
            source=issue.source,
            mend=issue.change,
        )
        for issue, setting in settings
    ]


def _setting(finding: Issue, reading: Reading) -> str | None:
    """Returns the setting of a finding: that of its field, else the first one in its text."""
    field = finding.field
    if field:
        return reading.keys.get(field) or reading.absent.get(field) or field
    paths = {path.rpartition(".")[2].replace("-", "_"): path for path in leaves(reading.settings)}
    for text in (finding.change, finding.what, finding.cause):
        for word in re.findall(r"[A-Za-z][\w-]+", text):
            if (path := paths.get(word.replace("-", "_"))) is not None:
                return path
    return None


def _text_lines(file: str) -> list[str]:
    """Reads the lines of a file of text; none of a folder, of settings in memory, or of a pickle."""
    try:
        return read_whole(file).splitlines() if Path(file).is_file() else []
    except InputError:
        return []


def _line_number(setting: str | None, lines: Sequence[str]) -> int | None:
    """Finds the line of a setting; None unless exactly one line names it."""
    if setting is None:
        return None
    name = re.sub(r"[-_]", "[-_]", re.escape(setting.rpartition(".")[2].lstrip("-")).replace(r"\-", "-"))
    numbers = [
        number for number, line in enumerate(lines, 1) if re.search(rf"(?<![\w-]){name}(?![\w-])", line)
    ]
    return numbers[0] if len(numbers) == 1 else None
