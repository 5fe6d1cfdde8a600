"""What mkdocs needs to know beyond docs/: the measurements and examples that pages link to are outside of it, and come into the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
OUTSIDE = {"bench/results": "results", "examples/slurm": "examples/slurm"}
"""Folders of the repository, and where the site has them."""


def on_files(files: Any, config: Any) -> Any:
    """Adds the files of those folders."""
    for folder, place in OUTSIDE.items():
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file():
                files.append(File.generated(config, f"{place}/{path.name}", abs_src_path=str(path)))
    return files


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
