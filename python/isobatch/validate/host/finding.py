"""What a check of a host found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from isobatch.diagnosis.causes import Cause
from isobatch.validate.report.verdict import Proof, Verdict, unchecked

MOST = 8
"""Findings of a rank that travel to the others, each cut to so many characters: 512 ranks may all have some."""
CHARACTERS = 160


class Finding(msgspec.Struct, frozen=True):
    """Something that is bad (`fails`) or suspicious, in words that name the part but not the host, and its cause."""

    text: str
    cause: Cause
    fails: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A check's answer on one rank: why it could not be asked, or what is bad, with what it saw in a few words."""

    why_not: str | None = None
    findings: tuple[Finding, ...] = ()
    seen: str = ""

    def short(self) -> Found:
        """As much of it as travels."""
        cut = tuple(msgspec.structs.replace(one, text=one.text[:CHARACTERS]) for one in self.findings[:MOST])
        return msgspec.structs.replace(self, findings=cut, seen=self.seen[:CHARACTERS])


def judge(name: str, found: Mapping[str, Found], few: Any, values: dict[str, Any] | None = None) -> Proof:
    """One proof of what the ranks or hosts found, by their names.

    Args:
        name: the proof's.
        found: by rank or host, as a sentence names it.
        few: joins names, the first ones where they are many.
    """
    bad = [(who, one) for who, answer in found.items() for one in answer.findings]
    unasked = {who: answer.why_not for who, answer in found.items() if answer.why_not is not None}
    why = "; ".join(f"{reason} ({few(who)})" for reason, who in _by_value(unasked).items())
    if len(unasked) == len(found):
        return unchecked(name, "; ".join(_by_value(unasked)), **(values or {}))
    if not bad:
        seen = {who: answer.seen for who, answer in found.items() if answer.why_not is None}
        kinds = _by_value(seen)
        said = (
            next(iter(kinds))
            if len(kinds) == 1
            else "; ".join(f"{few(w)}: {s}" for s, w in list(kinds.items())[:3])
        )
        text = said + (f"; not asked: {why}" if why else "")
        return Proof(name=name, verdict=Verdict.PASS, text=text, values=values or {})
    fails = any(one.fails for _, one in bad)
    worst = [one for _, one in bad if one.fails == fails]
    text = few([f"{who}: {one.text}" for who, one in sorted(bad, key=lambda pair: not pair[1].fails)])
    return Proof(
        name=name,
        verdict=Verdict.FAIL if fails else Verdict.CAUTION,
        text=text + (f"; not asked: {why}" if why else ""),
        diagnosis=worst[0].cause.likely(few(list(dict.fromkeys(who for who, one in bad if one in worst)))),
        values=values or {},
    )


def _by_value(answers: Mapping[str, str]) -> dict[str, list[str]]:
    """Who gave each answer."""
    found: dict[str, list[str]] = {}
    for who, answer in answers.items():
        found.setdefault(answer, []).append(who)
    return found


def most(values: Iterable[Any]) -> Any:
    """The value that most have; of several, the first.

    >>> most([12, 12, 9])
    12
    """
    row = list(values)
    return max(row, key=row.count)
