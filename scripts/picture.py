"""Draws the README's picture of a terminal.

`python scripts/picture.py` writes docs/terminal.svg, `--check` says whether it is current.

The text is what the command prints with colours; nothing of it is set by hand, and no font of this machine is
asked.
"""

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "terminal.svg"
COMMAND = "isobatch plan examples/job.toml --gpus 7"
COLOURS = {
    "32": "#3fb950",
    "33": "#d29922",
    "1;31": "#ff7b72",
    "1": "#ffffff",
    "2": "#7d8590",
    "36": "#56d4dd",
}
LINE, LETTER, MARGIN = 19, 8.0, 14


def printed() -> list[str]:
    """The command's lines with their colours."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.run(
        [sys.executable, "-m", *COMMAND.split()],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={**environment, "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    return process.stdout.splitlines()


def drawn(lines: list[str]) -> str:
    """The lines as an SVG text."""
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    width = MARGIN * 2 + LETTER * max(len(f"$ {COMMAND}"), *map(len, plain))
    height = MARGIN * 2 + LINE * (len(lines) + 1)
    rows = [f'<tspan fill="#7d8590">$</tspan> {escape(COMMAND)}']
    for line in lines:
        row, style = "", ""
        for part in re.split(r"(\x1b\[[\d;]*m)", line):
            if part.startswith("\x1b"):
                style = COLOURS.get(part[2:-1], "")
            elif part:
                row += f'<tspan fill="{style}">{escape(part)}</tspan>' if style else escape(part)
        rows.append(row)
    texts = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + LINE * number + 14}" xml:space="preserve">{row}</text>'
        for number, row in enumerate(rows)
    )
    title = escape(f"{COMMAND}: {' '.join(plain)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" '
        'role="img">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{width:g}" height="{height}" rx="8" fill="#0d1117"/>\n'
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" '
        f'fill="#e6edf3">\n{texts}\n</g>\n</svg>\n'
    )


def main() -> int:
    text = drawn(printed())
    if "--check" not in sys.argv:
        PICTURE.write_text(text, encoding="utf-8")
        return 0
    if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != text:
        print(
            "docs/terminal.svg is not what the command prints: run python scripts/picture.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
