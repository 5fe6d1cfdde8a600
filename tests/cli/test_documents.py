"""Commands in the documents and in messages have only known options."""

import re
from pathlib import Path

import pytest

from isobatch.cli import COMMANDS, parser_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
SOURCES = [*(ROOT / "python" / "isobatch").rglob("*.py")]
TYPED = re.compile(r"""\bisobatch ([a-z]+)\b((?:'[^'\n]*'|"[^"\n]*"|[^`|\n;&>)"'])*)""")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_is_written_down_exists(command):
    known, unknown, values = parser_of(command)._option_string_actions, [], 0
    for file in PAGES + SOURCES:
        for name, rest in TYPED.findall(file.read_text(encoding="utf-8").replace("\\\n", " ")):
            if name == command:
                rest = rest.partition(" -- ")[0]  # the rest is another command's
                plain = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "", rest)
                options = re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", plain)
                values += 1
                unknown += [f"{file.name}: {name}{rest}" for option in options if option not in known]
    assert values and not unknown


def test_the_examples_page_names_each_file_and_folder():
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    entries = [
        path for path in (ROOT / "examples").iterdir() if path.name not in ("README.md", "__pycache__")
    ]
    names = [f"`{path.name}/`" if path.is_dir() else f"`{path.name}`" for path in entries]
    assert len(names) > 8 and not [name for name in names if name not in page]
