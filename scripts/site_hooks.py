"""What mkdocs needs to know beyond docs/: the measurements and examples that pages link to are outside of it, and come into the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
OUTSIDE = {"bench/results": "results", "examples/slurm": "examples/slurm"}
"""Folders of the repository, and where the site has them."""
MEASURED = "measured.md"


def on_config(config: Any) -> Any:
    """Adds to the navigation, under "More", the pages that have no place of their own in it."""
    docs = Path(config["docs_dir"])
    listed = set(_pages(config["nav"]))
    more = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    if left := [page for page in more if page not in listed]:
        config["nav"].append({"More": left})
    return config


def _pages(nav: Any) -> list[str]:
    """The pages of a navigation, which is a page, a list, or names with one of these."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _pages(part)]


def on_files(files: Any, config: Any) -> Any:
    """Adds the files of those folders, and the page that sums the measurements up."""
    for folder, place in OUTSIDE.items():
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file():
                files.append(File.generated(config, f"{place}/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, MEASURED, content=measured()))
    return files


def measured() -> str:
    """Writes the page of all measurements: of each file of bench/results its title and its finding, the quote below the title."""
    rows = []
    for path in sorted((ROOT / "bench/results").glob("*.md")):
        title, finding = re.findall(r"\A# (.*)\n\n> (.*)", path.read_text(encoding="utf-8"))[0]
        rows.append(f"| [{title}](results/{path.name}) | {finding} |")
    return (
        "# Measured\n\nWhat was measured, good and bad, on two shared CPU cores; no GPU has been at hand. Each page has the machine, the "
        "versions and the command.\n\n| what | seen |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points a page's links to them there."""
    if page.file.src_uri.startswith("results/"):
        # Their own links to stored measurements stay texts: those files are not pages.
        return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\.json\)", r"\1", markdown)
    folders = "|".join(map(re.escape, OUTSIDE))
    return re.sub(rf"\]\(((?:\.\./)+)({folders})/", _link, markdown)


def _link(found: re.Match[str]) -> str:
    # One step up less: docs/ is the site's root.
    return f"]({found[1].removesuffix('../')}{OUTSIDE[found[2]]}/"
