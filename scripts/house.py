"""Measures how wide the house is and how plainly it speaks: files, names, sentences, words.

    python scripts/house.py                  # this checkout, as a table
    python scripts/house.py --check          # fails where a figure is above its ceiling (scripts/house.json)
    python scripts/house.py --lower          # lowers the ceilings to today's figures, never raises one
    python scripts/house.py --room fleet     # what to mend in one folder, with file and line
    python scripts/house.py --beside OLD     # two checkouts, side by side

A file is "entered" if one of its functions or classes ran, at an import too; a module of names alone does not
count. Another checkout is measured with its own package and its own extension.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

MAX_SMALL_LINES = 49
RELATIVE = re.compile(r"\b(which|whose|that|what)\b", re.IGNORECASE)
# Pronouns and participles are no names: a reader cannot tell what they hold.
VAGUE = {
    "asked", "found", "it", "its", "kept", "made", "mine", "one", "other", "said", "them", "those", "told",
}  # fmt: skip
# Words that begin a relative clause in the place of a noun.
CLAUSES = "what|that|those|which|whose|who"
# Comments, characters and strings of Rust.
NO_CODE = re.compile(r"//.*|'\\?.'|\"(?:[^\"\\]|\\[\s\S])*\"")
CEILINGS = Path(__file__).with_name("house.json")

ENTERED = """
import json, sys
home, entered = sys.argv.pop(1), set()

def watch(frame, event, _):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(home) and frame.f_code.co_name != "<module>":
        entered.add(name[len(home):])

sys.setprofile(watch)
try:
    exec(sys.argv.pop(1))
except SystemExit:
    pass
sys.setprofile(None)
print("\\n" + json.dumps(sorted(entered)), file=sys.stderr)
"""
FIRST_PLAN = """
import isobatch as ib
batch = dict(gpus=8, batch_per_gpu=32, dataset_size=10**5)
recipe = ib.Recipe.from_gpus(**batch, lr=1e-3, optimizer="adamw", duration="10000st")
ib.plan(recipe, 64)
"""
CONVERT = """
from isobatch.cli import command
sys.argv[1:] = ["plan", "--from", "examples/training_args.json", "--set", "gpus=4",
    "--set", "dataset_size=52002", "--gpus", "32", "--to", "transformers"]
command()
"""


def python_files(root: Path) -> dict[str, Path]:
    """Returns the package's modules by name."""
    source = root / "python"
    names = {}
    for path in sorted((source / "isobatch").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def tree(path: Path) -> ast.Module:
    """Parses a file once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def numbered(text: str) -> Iterable[tuple[int, str]]:
    """Numbers the lines of a text."""
    return enumerate(text.splitlines(), 1)


def line_count(paths: list[Path]) -> int:
    """Counts lines."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def run_of(root: Path, code: str) -> list[str]:
    """Runs code in the checkout and returns the package's files that it entered."""
    home = str(root / "python" / "isobatch") + os.sep
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "python"),
        "ISOBATCH_TRACEBACK": "1",
        "NO_COLOR": "1",
    }
    process = subprocess.run(
        [sys.executable, "-c", ENTERED, home, code], cwd=root, env=environment, capture_output=True, text=True
    )
    return list(json.loads(process.stderr.strip().splitlines()[-1]))


def imports(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Returns the package's modules that a file imports when it is imported itself."""
    names: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    names.add(inner if inner in modules else node.module)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
                visit(node.body)
                visit(node.orelse)
            elif isinstance(node, ast.Try):
                visit(node.body)

    visit(tree(path).body)
    return {name for name in names if name in modules and name != module}


def longest_chain(modules: dict[str, Path]) -> list[str]:
    """Returns the longest chain of imports, each importing the next."""
    graph = {module: imports(module, path, modules) for module, path in modules.items()}

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max((chain(imported) for imported in graph[module]), key=len, default=()))

    return list(max((chain(module) for module in modules), key=len))


def import_lines(path: Path) -> int:
    """Counts the lines of import statements, wherever they stand."""
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def definitions(path: Path) -> list[ast.AST]:
    """Returns a file's module, classes and functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]


def first_sentences(paths: list[Path]) -> list[str]:
    """Returns the first sentence of every docstring."""
    nodes = (node for path in paths for node in definitions(path))
    texts = map(ast.get_docstring, nodes)  # type: ignore[arg-type]
    return [re.split(r"(?<=[.:])\s", " ".join(text.split()))[0] for text in texts if text]


def vague_names(path: Path) -> Iterator[str]:
    """Yields line and name of each variable and argument with a vague name; in Rust, of each use too."""
    if path.suffix == ".rs":
        code = NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
        names = ((number, name) for number, line in numbered(code) for name in re.findall(r"\w+", line))
    else:
        nodes = (node for node in ast.walk(tree(path)) if isinstance(node, ast.arg | ast.Name))
        names = (
            (node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
            for node in nodes
            if isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)
        )
    yield from (f"{number} {name}" for number, name in names if name in VAGUE)


def matches(pattern: re.Pattern[str], path: Path) -> list[int]:
    """Returns the numbers of a file's lines with a match."""
    return [number for number, line in numbered(path.read_text(encoding="utf-8")) if pattern.search(line)]


MEASURES: dict[str, Callable[[Path], Iterable[object]]] = {
    "vague names": vague_names,
    "lines over 110 columns": partial(matches, re.compile(".{111}")),
    f"comments and tests that begin with {CLAUSES.replace('|', ', ')}": partial(
        matches,
        re.compile(rf'(?://[/!]?|#|""") *(?:{CLAUSES.title()})\b|(?:\bfn |def test_)(?:{CLAUSES})_'),
    ),
}


def repeated_classes(modules: dict[str, Path]) -> dict[str, list[str]]:
    """Returns the class names that are defined more than once, with their modules."""
    homes = defaultdict(list)
    for module, path in modules.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    return {name: where for name, where in sorted(homes.items()) if len(where) > 1}


def function_lengths(paths: list[Path]) -> list[int]:
    """Returns the lengths of all functions in lines, sorted."""
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in paths
        for node in definitions(path)
        if isinstance(node, ast.FunctionDef)
    )


def documented(paths: list[Path]) -> float:
    """Returns the share of public names with a docstring, in percent."""
    public = [
        node
        for path in paths
        for node in definitions(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    texts = [*map(ast.get_docstring, public)]
    return 100 * sum(text is not None for text in texts) / len(public)


def help_options(root: Path) -> int:
    """Counts the options that `isobatch plan --help` shows."""
    environment = {**os.environ, "PYTHONPATH": str(root / "python"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "isobatch", "plan", "--help"]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=root).stdout
    return len(set(re.findall(r"^  (?:-\w(?: \w+)?, )?(--[a-z-]+)", text, re.MULTILINE)))


def setting_count(root: Path) -> int:
    """Counts the settings of `ib.plan`."""
    environment = {**os.environ, "PYTHONPATH": str(root / "python")}
    command = [sys.executable, "-c", "import isobatch as ib; print(len(ib.Settings._fields))"]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def words(root: Path) -> int:
    """Counts the words of the README and of the pages of docs/."""
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def text_figures(root: Path) -> list[tuple[str, float]]:
    """Measures what a checkout's files say, without running them: the figures with a ceiling."""
    paths, rust = list(python_files(root).values()), [*(root / "rust").rglob("*.rs")]
    tests = [path for path in (root / "tests").rglob("*.py") if "cases" not in path.parts]
    tools = [path for folder in ("bench", "scripts", "examples") for path in (root / folder).rglob("*.py")]
    rooms = {
        "package": paths,
        "tests": tests,
        "bench, scripts, examples": tools,
        "Rust": [*rust, *(root / "fuzz").rglob("*.rs")],
    }
    sentences = first_sentences(paths)
    return [
        *(
            (f"{name}, {room}", sum(len([*measure(path)]) for path in files))
            for name, measure in MEASURES.items()
            for room, files in rooms.items()
        ),
        (
            "first sentences with which/whose/that/what, %",
            100 * sum(map(bool, map(RELATIVE.search, sentences))) / len(sentences),
        ),
        ("Python lines", line_count(paths)),
        ("Rust lines", line_count(rust)),
        ("test lines", line_count(tests)),
        ("words of documents", words(root)),
    ]


def figures(root: Path) -> list[tuple[str, float]]:
    """Measures one checkout."""
    modules = python_files(root)
    paths = list(modules.values())
    lines = line_count(paths)
    lengths = function_lengths(paths)
    small = [path for path in paths if line_count([path]) <= MAX_SMALL_LINES]
    return [
        ("files entered by plan --from … --to transformers", len(run_of(root, CONVERT))),
        ("files entered by the first ib.plan", len(run_of(root, FIRST_PLAN))),
        ("longest import chain", len(longest_chain(modules))),
        ("files under 50 lines, %", 100 * len(small) / len(paths)),
        ("import lines, %", 100 * sum(map(import_lines, paths)) / lines),
        ("class names with two meanings", len(repeated_classes(modules))),
        ("options that plan --help shows", help_options(root)),
        ("settings", setting_count(root)),
        ("median function, lines", lengths[len(lengths) // 2]),
        ("functions over 40 lines, %", 100 * sum(length > 40 for length in lengths) / len(lengths)),
        ("public names with a docstring, %", documented(paths)),
        ("Python files", len(paths)),
        (
            "bench, scripts and fuzz lines",
            line_count([*(root / "bench").rglob("*.py"), *(root / "fuzz").rglob("*.rs")]),
        ),
        *text_figures(root),
    ]


def check_ceilings(root: Path, lower: bool) -> int:
    """Compares the figures with their ceilings and returns the exit code; `lower` writes lower ceilings down.

    A ceiling is raised by hand, in the commit that says why. Sizes have none: a feature needs lines.
    """
    ceilings = json.loads(CEILINGS.read_text(encoding="utf-8"))
    values = {name: round(value, 1) for name, value in text_figures(root) if name in ceilings}
    risen = [name for name, value in values.items() if value > ceilings[name]]
    for name in risen:
        print(f"{name}: {values[name]:,g}, its ceiling is {ceilings[name]:,g} (--room ROOM lists the places)")
    if lower:
        text = json.dumps({name: min(value, ceilings[name]) for name, value in values.items()}, indent=2)
        CEILINGS.write_text(text + "\n", encoding="utf-8")
    return int(bool(risen))


def show_room(root: Path, room: str) -> None:
    """Prints what is small, repeated, deep, vague or long in one folder of the package and in its tests."""
    modules = python_files(root)
    inside = {
        module: path for module, path in modules.items() if f"{module}.".startswith(f"isobatch.{room}.")
    }
    paths = list(inside.values())
    print(f"{room}: {len(paths)} files, {line_count(paths)} lines")
    for path in sorted(paths, key=lambda path: line_count([path])):
        if (count := line_count([path])) <= MAX_SMALL_LINES:
            print(f"  small {count:3} {path.relative_to(root)}")
    for name, homes in repeated_classes(modules).items():
        if any(home in inside for home in homes):
            print(f"  class {name}: {', '.join(homes)}")
    for path in [*paths, *sorted((root / "tests" / room).rglob("*.py"))]:
        for name, measure in MEASURES.items():
            for line in measure(path):
                print(f"  {name} {path.relative_to(root)}:{line}")
    for path in paths:
        for sentence in first_sentences([path]):
            if RELATIVE.search(sentence):
                print(f"  sentence {path.relative_to(root)}: {sentence}")
    print("  chain " + " > ".join(longest_chain(modules)))


def main() -> int:
    """Prints the table, or compares the figures with their ceilings; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--room", help="a folder of the package, such as fleet")
    parser.add_argument("--beside", type=Path, help="another checkout to measure, too")
    parser.add_argument("--check", action="store_true", help="fail where a figure is above its ceiling")
    parser.add_argument("--lower", action="store_true", help="write lower ceilings down")
    args = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    if args.room:
        show_room(root, args.room)
        return 0
    if args.check or args.lower:
        return check_ceilings(root, args.lower)
    now = figures(root)
    before = dict(figures(args.beside.resolve())) if args.beside else {}
    print(
        "| figure |" + (" before |" if before else "") + " now |\n|---|" + ("---|" if before else "") + "---|"
    )
    for name, value in now:
        cells = [before[name], value] if before else [value]
        print(
            f"| {name} | "
            + " | ".join(f"{cell:.3g}" if cell < 100 else f"{cell:,.0f}" for cell in cells)
            + " |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
