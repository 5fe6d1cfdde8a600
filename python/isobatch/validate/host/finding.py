"""The result of a host's check, and the proof made of all hosts' results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from isobatch.diagnosis.causes import Cause
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.words import few

MAX_FINDINGS, MAX_CHARACTERS = 8, 160
"""Of a rank, which travel to the others, each cut to so many characters: 512 ranks may all have some."""

T = TypeVar("T")


class HostFault(msgspec.Struct, frozen=True):
    """A bad (`fails`) or suspicious state, in words without the host's name, and its cause."""

    text: str
    cause: Cause
    fails: bool = False


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """A check's answer on one rank: why it could not be asked, or what is bad, with what it saw in a few words."""

    why_not: str | None = None
    findings: tuple[HostFault, ...] = ()
    seen: str = ""

    def short(self) -> CheckResult:
        """Cuts it to as much as travels."""
        cut = tuple(
            msgspec.structs.replace(one, text=one.text[:MAX_CHARACTERS])
            for one in self.findings[:MAX_FINDINGS]
        )
        return msgspec.structs.replace(self, findings=cut, seen=self.seen[:MAX_CHARACTERS])


def judge(name: str, found: Mapping[str, CheckResult]) -> Proof:
    """Makes one proof of the results of ranks or hosts, by their names as in a sentence."""
    bad = [(who, one) for who, answer in found.items() for one in answer.findings]
    silent = _by_value({who: one.why_not for who, one in found.items() if one.why_not is not None})
    if sum(map(len, silent.values())) == len(found):
        return skip_claim(name, "; ".join(silent))
    why = "; ".join(f"{reason} ({few(who)})" for reason, who in silent.items())
    behind = f"; not asked: {why}" if why else ""
    if not bad:
        kinds = _by_value({who: one.seen for who, one in found.items() if one.why_not is None})
        several = "; ".join(f"{few(who)}: {seen}" for seen, who in list(kinds.items())[:3])
        return pass_claim(name, (next(iter(kinds)) if len(kinds) == 1 else several) + behind)
    fails = any(one.fails for _, one in bad)
    worst = [(who, one) for who, one in bad if one.fails == fails]
    text = few([f"{who}: {one.text}" for who, one in sorted(bad, key=lambda pair: not pair[1].fails)])
    named = few(list(dict.fromkeys(who for who, _ in worst)))
    verdict = Verdict.FAIL if fails else Verdict.CAUTION
    return judge_claim(name, verdict, text + behind, worst[0][1].cause.likely(named))


def _by_value(answers: Mapping[str, str]) -> dict[str, list[str]]:
    """Groups by answer who gave it."""
    found: dict[str, list[str]] = {}
    for who, answer in answers.items():
        found.setdefault(answer, []).append(who)
    return found


def most(values: Iterable[Any]) -> Any:
    """Returns the most frequent value; of several, the first.

    >>> most([12, 12, 9])
    12
    """
    row = list(values)
    return max(row, key=row.count)


def place(group: Group, rank: int) -> str:
    """Names a rank's GPU, as in a sentence."""
    one = group.roster[rank]
    return f"host {one.host} GPU {one.local_rank} (rank {rank})"


def by_host(group: Group, answers: Sequence[T | None]) -> dict[str, T]:
    """Returns the answers of the first rank of each host, by the host's name."""
    found: dict[str, T] = {}
    for rank, answer in zip(group.roster, answers, strict=True):
        if answer is not None:
            name = f"host {rank.host}"
            found[name if name not in found else f"{name} (node {rank.node})"] = answer
    return found
