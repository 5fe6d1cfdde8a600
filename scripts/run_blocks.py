"""Runs the code blocks of documents, so that none of them can grow old.

A ```python block runs in one namespace a document; a ```console block's `$ ` lines run in bash, in the root of the
repository, and what they print must be what stands under them (a line `…` stands for any lines). A block under the comment
<!-- not run: reason --> is left out, and said so.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

BLOCK = re.compile(
    r"(?P<skip><!-- not run: (?P<why>[^>]+) -->\n)?```(?P<kind>python|console)\n(?P<code>.*?)```", re.DOTALL
)


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
                run_python(block["code"], namespace)
                if block["kind"] == "python"
                else run_console(block["code"])
            )
            if problem:
                failed += 1
                print(f"{path}:{line}: {problem}")
    print(f"{ran - failed} code blocks passed, {failed} failed")
    return 1 if failed or not ran else 0


def run_python(code: str, namespace: dict[str, object]) -> str | None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, "<block>", "exec"), namespace)
    except Exception:
        return traceback.format_exc()
    return None


def run_console(code: str) -> str | None:
    for command, expected in re.findall(r"^\$ (.*?)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
        done = subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "COLUMNS": "120"},
        )
        pattern = "".join(
            "(?:.*\n)*" if line == "…" else re.escape(line) + r"\s*\n" for line in expected.splitlines()
        )
        if not re.fullmatch(pattern, done.stdout):
            return f"$ {command} (exit {done.returncode}) printed\n{done.stdout}\nnot\n{expected}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
