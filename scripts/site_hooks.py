"""Pages of the site beyond docs/.

The measurements and examples that pages link to are outside of it, and come into the site,
with pages that isobatch writes of published recipes."""

import contextlib
import csv
import html
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from isobatch.cli import main

ROOT = Path(__file__).parent.parent
EXAMPLES = [f"examples/{scheduler}" for scheduler in ("kubeflow", "kubernetes", "ray", "skypilot", "slurm")]
OUTSIDE = {
    "bench/results": "results",
    **{folder: folder for folder in EXAMPLES},
}
"""Folders of the repository, and where the site has them."""
MEASURED = "measured.md"
BLOCK = re.compile(r'<div class="(?P<classes>[^"]*\bhighlight)">(?P<code><pre>.*?</pre>)</div>', re.DOTALL)
PROMPTED = re.compile(r"^\$ ((?:.*\\\n)*.*\n?)", re.MULTILINE)
"""A command at a prompt, with the lines that it goes on in."""
WHAT_IF = {
    "resnet50-goyal-8k": "lightning",
    "deit-b": "torchrun",
    "stable-diffusion-v1-2": "accelerate",
    "gpt2-124m-nanogpt": "transformers",
    "pythia-12b": "megatron",
    "llama-2-70b": "torchtitan",
}
"""Jobs of examples/jobs.csv with a page of every GPU count, and the tool whose lines it has."""


def on_config(config: Any) -> Any:
    """Adds to the navigation, under "More", the pages that have no place of their own in it."""
    docs = Path(config["docs_dir"])
    listed = set(_pages(config["nav"]))
    more = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    if unlisted := [page for page in more if page not in listed]:
        config["nav"].append({"More": unlisted})
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
    with (ROOT / "examples/jobs.csv").open(encoding="utf-8", newline="") as file:
        jobs = {job.pop("job"): job for job in csv.DictReader(file)}
    for name, tool in WHAT_IF.items():
        files.append(File.generated(config, f"what-if/{name}.html", content=what_if(name, jobs[name], tool)))
    return files


def what_if(name: str, job: dict[str, str], tool: str) -> str:
    """Writes the page of a job over GPU counts, by the command that anybody would type."""
    cluster = ["--model-parallel", job["model_parallel"]] if job["model_parallel"] else []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as output:
        recipe, page = Path(folder, f"{name}.json"), Path(folder, "page.html")
        recipe.write_text(
            json.dumps(
                {
                    field: _typed(field, job[field])
                    for field in job
                    if job[field] and field not in ("source", "notes")
                }
            ),
            encoding="utf-8",
        )
        if main(["counts", str(recipe), "--gpus", "1..1024", *cluster, "--to", tool, "-o", str(page)]):
            raise RuntimeError(f"{name}: {output.getvalue()}")
        return page.read_text(encoding="utf-8").replace(
            f"{name}.json:", f"{name}, {job['source'].split(',')[0]}:"
        )


def _typed(field: str, text: str) -> Any:
    """Reads a cell of a table as a recipe's file has it."""
    if field == "betas":
        return [float(beta) for beta in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text


def measured() -> str:
    """Writes the page of all measurements.

    Of each file of bench/results its title and its finding, the quote below the title.
    """
    rows = []
    for path in sorted((ROOT / "bench/results").glob("*.md")):
        title, finding = re.findall(r"\A# (.*)\n\n> (.*)", path.read_text(encoding="utf-8"))[0]
        rows.append(f"| [{title}](results/{path.name}) | {finding} |")
    return (
        "# Measured\n\nWhat was measured, good and bad, on two shared CPU cores; no GPU has been at hand. "
        "Each page has the machine, the "
        "versions and the command.\n\n| what | seen |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points a page's links to them there."""
    if page.file.src_uri.startswith("results/"):
        # Their own links to stored measurements stay texts: those files are not pages.
        return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\.json\)", r"\1", markdown)
    folders = "|".join(map(re.escape, OUTSIDE))
    return re.sub(rf"\]\(((?:\.\./)+)({folders})/", _link, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Keeps short code in one line, empty corners of tables unread, prompts and output uncopied."""
    content = re.sub(
        r"(?<!<pre><span></span>)<code>([^<]{1,24})</code>", r'<code class="short">\1</code>', content
    )
    content = content.replace("<th></th>", "<td></td>")
    return BLOCK.sub(_copied, content)


def on_post_page(output: str, **_: Any) -> str:
    """Names the theme's search for those who hear the page."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


on_post_template = on_post_page  # 404.html is no page


def _copied(block: re.Match[str]) -> str:
    # Of a terminal its commands alone, without the prompt; of what a program prints nothing.
    text = html.unescape(re.sub(r"<[^>]+>", "", block["code"]))
    classes, copy = block["classes"], ""
    if commands := PROMPTED.findall(text):
        copy = f' data-copy="{html.escape("".join(commands).rstrip())}"'
    elif "language-text" in classes:
        classes += " no-copy"
    return f'<div class="{classes}"{copy}>{block["code"]}</div>'


def _link(match: re.Match[str]) -> str:
    # One step up less: docs/ is the site's root.
    return f"]({match[1].removesuffix('../')}{OUTSIDE[match[2]]}/"
