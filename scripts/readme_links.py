"""Prints the README as a package index needs it.

Links into the repository are absolute there, and it is installed from the index.

python scripts/readme_links.py https://HOST/OWNER/NAME/blob/v0.1.0 > README.index.md

The wheels' workflow writes it over README.md before it builds; a relative link leads nowhere on an index.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>[^)\s]+)\)")
FENCE = re.compile(r"(```.*?```)", re.DOTALL)


def absolute(text: str, base: str) -> str:
    """The text with its relative links behind `base`; code blocks stay as they are.

    Args:
        text: Markdown.
        base: the address of the repository's files at one tag, with /blob/; images get the raw file.

    Raises:
        ValueError: a link leads to no file of the repository.
    """

    def moved(link: re.Match[str]) -> str:
        to = link["to"]
        if re.match(r"[a-z]+:|#", to):
            return link[0]
        if not (ROOT / to.partition("#")[0]).exists():
            raise ValueError(f"README.md links to {to}, which is not there")
        place = base.replace("/blob/", "/raw/") if link["image"] else base
        return f"{link['image']}[{link['text']}]({place.rstrip('/')}/{to})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


INSTALL = re.compile(r"(?<=## Install and test\n\n)With Python .*?```sh\n.*?```\n", re.DOTALL)


def installed(text: str) -> str:
    """The text with the install line of an index, in the place of a checkout's.

    Raises:
        ValueError: there is no such line.
    """
    moved, count = INSTALL.subn(
        "```sh\npip install 'isobatch[fleet,report]'   # only planning: isobatch\n```\n", text
    )
    if not count:
        raise ValueError("README.md has no lines on how to install it")
    return moved


if __name__ == "__main__":
    print(installed(absolute((ROOT / "README.md").read_text(encoding="utf-8"), sys.argv[1])), end="")
