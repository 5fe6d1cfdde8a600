"""Runs the code blocks of documents, so that none of them can grow old.

A ```python block runs in one namespace a document, and prints what a ```text block right below it shows, if
there is one; a ```console block's `$ ` lines run in bash, in the root of the repository, and what they print
must be what stands under them (a line `…` stands for any lines). In a table with a column "you type" each
`isobatch` command without a placeholder (a word in capitals, or …) must succeed. A block under the comment
<!-- not run: reason --> is left out, and said so.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

BLOCK = re.compile(
    r"(?P<skip><!-- not run: (?P<why>[^>]+) -->\n)?```(?P<kind>python|console)\n(?P<code>.*?)```"
    r"(?:\n+```text\n(?P<prints>.*?)```)?",
    re.DOTALL,
)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
TABLE = re.compile(r"^\|.*\| you type \|.*\n(?:\|.*\n)+", re.MULTILINE)
TYPED = re.compile(r"`(isobatch [^`…]*)`")
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")


def main(paths: list[str]) -> int:
    failed = ran = 0
    for path in paths:
        text = Path(path).read_text(encoding="utf-8")
        namespace: dict[str, object] = {"__name__": "__main__"}
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("code")) + 1
            if block["skip"]:
                print(f"{path}:{line}: not run: {block['why']}")
                continue
            ran += 1
            problem = (
                run_python(block["code"], namespace, block["prints"])
                if block["kind"] == "python"
                else run_console(block["code"])
            )
            if problem:
                failed += 1
                print(f"{path}:{line}: {problem}")
        for command in typed(text):
            ran += 1
            if problem := run_console(f"$ {command}\n…\n", must_succeed=True):
                failed += 1
                print(f"{path}: {problem}")
    print(f"{ran - failed} code blocks passed, {failed} failed")
    return 1 if failed or not ran else 0


def typed(text: str) -> list[str]:
    """Finds the commands of the tables that say what to type."""
    commands = [command for table in TABLE.findall(text) for command in TYPED.findall(table)]
    return [command for command in commands if not PLACEHOLDER.search(command)]


def run_python(code: str, namespace: dict[str, object], prints: str | None) -> str | None:
    """Runs a block, and compares what it prints where that is shown."""
    heard = io.StringIO()
    try:
        with contextlib.redirect_stdout(heard):
            exec(compile(code, "<block>", "exec"), namespace)
    except Exception:
        return traceback.format_exc()
    if prints is None or _expected(prints).fullmatch(heard.getvalue()):
        return None
    return f"printed\n{heard.getvalue()}\nnot\n{prints}"


def run_console(code: str, *, must_succeed: bool = False) -> str | None:
    commands = COMMAND.findall(code)
    if not commands:
        return "no line begins with '$ ': nothing was run"
    for command, expected in commands:
        process = subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "COLUMNS": "120"},
        )
        # doctor ends with 1 where it finds something, as the documents' example is meant to show.
        failed = process.returncode > (1 if command.startswith("isobatch doctor ") else 0)
        if not _expected(expected).fullmatch(process.stdout) or (must_succeed and failed):
            return f"$ {command} (exit {process.returncode}) printed\n{process.stdout}\nnot\n{expected}"
    return None


def _expected(shown: str) -> re.Pattern[str]:
    lines = ("(?:.*\n)*" if line == "…" else re.escape(line) + r"\s*\n" for line in shown.splitlines())
    return re.compile("".join(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
