"""Writes the documents' tables and lists that come from the code, each between its two marks in docs/.

python scripts/tables.py          writes them anew
python scripts/tables.py --check  writes nothing, and fails where one is not as the code has it
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from isobatch import _core
from isobatch.equivalence.evidence import REQUIRED
from isobatch.equivalence.laws import Cause, Remedy
from isobatch.equivalence.order.comparison import ORDER
from isobatch.equivalence.restarts.comparison import ROWS
from isobatch.schedules.text import KINDS, Kind
from isobatch.tools.detect import TOOLS, tool_of

DOCS = Path(__file__).parent.parent / "docs"
SHORT = 45
"""Letters of a remedy that is said again where another law has it, too."""
MARKED = re.compile(
    r"(<!-- table (\w+): made by scripts/tables.py -->\n).*?(<!-- end of table -->)", re.DOTALL
)


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A table, its `head` given as a line of names."""
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines]) + "\n"


def listing(rows: Iterable[tuple[str, str]]) -> str:
    """A list: shorter to read than a table of names and their texts."""
    return "".join(f"- {name}: {text}\n" for name, text in rows)


def results() -> str:
    """The result columns; those of 32 bits are marked, and the page says the type of all others."""
    kinds = {"status": " (text)", "reasons": " (a list of text; uint64 in NumPy)"}
    rows = [
        (f"`{name}`", text + kinds.get(name, " (int32)" if kind == "int32" else ""))
        for name, kind, text, *_ in _core.results()
    ]
    alike = groupby(rows, key=lambda row: row[1])  # neighbours with one text have one row
    return listing((", ".join(name for name, _ in group), text) for text, group in alike)


def rules() -> str:
    """The scaling rules."""
    return table(
        "| rule | formula | holds when | source |", [(f"`{name}`", *rest) for name, *rest in _core.rules()]
    )


def cautions() -> str:
    """The cautions; their sources are in `Reason.source`."""
    return listing((f"`{name}`", text) for name, kind, text, _ in _core.reasons() if kind == "caution")


def infeasible() -> str:
    """The names of the infeasibilities: whoever meets one sees its text too."""
    return ", ".join(f"`{name}`" for name, kind, *_ in _core.reasons() if kind == "infeasible") + "\n"


def kinds() -> str:
    """The kinds of schedule: each with its signature, and the first line of its docstring."""
    return table("| function | in a recipe | value |", [_kind(kind) for kind in KINDS.values()])


def _kind(kind: Kind) -> tuple[str, str, str]:
    def shown(name: str, default: Any) -> str:
        if default is inspect.Parameter.empty:
            return name
        return f"{name}={default:g}" if isinstance(default, float) else f"{name}={default}"

    parameters = [
        shown(name, p.default) for name, p in inspect.signature(kind.constructor).parameters.items()
    ]
    text = ", ".join(f"{name} …" if argument.many else name for name, argument in kind.arguments.items())
    in_recipe = "" if kind.build is None else f"`{kind.name}({text})`" if text else f"`{kind.name}`"
    first = (inspect.getdoc(kind.constructor) or "").partition("\n")[0]
    return f"`{kind.name}({', '.join(parameters)})`", in_recipe, first


def required() -> str:
    """The measurements without which no training is called the same."""
    return table("| what | how |", [(row.measures, row.how) for row in REQUIRED])


def order() -> str:
    """The comparisons with another release, in order."""
    return table("| compared in this order | how |", [(row.measures, row.how) for row in ORDER])


def resumed() -> str:
    """The comparisons after a restart."""
    return table("| compared in this order | how |", [(row.measures, row.how) for row in ROWS])


def laws() -> str:
    """The laws of a training: each with its remedy for a loop, below it those for trainers and a restart."""
    sources: dict[str, str] = {}
    for law in Cause:
        for remedy in (law.remedy, *law.trainers.values()):
            sources.setdefault(remedy.text, law.text)

    def shown(law: Cause, remedy: Remedy) -> str:
        """A remedy; in the place of one that another law has, that law."""
        text = remedy.text
        for shared, source in sources.items():
            if source != law.text and len(shared) > SHORT:
                text = text.replace(shared, f'as for "{source}"')
        return text

    lines = []
    for law in Cause:
        more = f" ([more]({law.remedy.page}))" if law.remedy.page else ""
        lines.append(f"- **{law.text}** (`{law.value}`): {shown(law, law.remedy)}{more}")
        for name, remedy in law.trainers.items():
            link = f"[{name}]({remedy.page})" if remedy.page else name
            lines.append(f"    - {link}: {shown(law, remedy)}")
    return "\n".join(lines) + "\n"


def maps() -> str:
    """The settings of the tools' maps, by the field that they stand for."""
    records = [tool_of(name) for name in TOOLS if not TOOLS[name].extends]
    fields = dict.fromkeys(
        row.field for tool in records for row in tool.settings if row.field != "micro_batch"
    )
    rows = []
    for field in fields:
        names = (field, "micro_batch") if field == "batch_per_gpu" else (field,)
        titles: dict[str, list[str]] = {}
        for tool in records:
            keys = [key for row in tool.settings if row.field in names for key in row.key.split()]
            if keys:
                text = " ".join(f"`{key}`" for key in keys)
                titles.setdefault(text, []).append(tool.title.removesuffix(" TrainingArguments"))
        rows.append((f"`{field}`", "; ".join(f"{', '.join(of)} {keys}" for keys, of in titles.items())))
    return table("| field | settings |", rows)


TABLES: dict[str, Callable[[], str]] = {
    "results": results,
    "rules": rules,
    "infeasible": infeasible,
    "cautions": cautions,
    "kinds": kinds,
    "required": required,
    "laws": laws,
    "order": order,
    "resumed": resumed,
    "maps": maps,
}


def made(text: str) -> str:
    """A document with its tables as the code has them."""
    return MARKED.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


def main(arguments: list[str]) -> int:
    stale, marked = [], []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        marked += [name for _, name, _ in MARKED.findall(text)]
        if made(text) != text:
            stale.append(f"docs/{page.name}")
            if "--check" not in arguments:
                page.write_text(made(text), encoding="utf-8")
    if sorted(marked) != sorted(TABLES):
        print(
            f"docs/ has marks for the tables {sorted(marked)}, and not for {sorted(TABLES)}", file=sys.stderr
        )
        return 1
    if "--check" in arguments and stale:
        print(f"{', '.join(stale)}: not as the code has it; run python scripts/tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
