"""The rooms' imports, none of them in a circle, and one meaning for each class name.

Imports under TYPE_CHECKING and in functions count too.
"""

import ast
import importlib.util
import json
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "python" / "isobatch"

# Modules that all rooms may import, and their imports among themselves.
OPEN = {
    "_core": set(),
    "words": set(),
    "errors": {"words", "_core"},
    "limits": {"errors", "_core"},
    "reason": {"errors", "_core"},
    "system": {"errors"},
}
# A room, or a module of the package's root, and the rooms that it may import.
ROOMS = {
    "files": set(),
    "schedules": {"files"},
    "recipes": {"files", "schedules"},
    "forecast": {"files"},
    "planning": {"files", "schedules", "recipes", "forecast"},
    "tools": {"files", "schedules", "recipes", "planning"},
    "fleet": {"files", "schedules", "recipes", "forecast", "planning"},
    "allocation": {"recipes", "forecast", "planning", "fleet"},
    "launch": {"tools"},
    "training": {"recipes", "planning", "launch"},
    "elastic": {"files", "schedules", "recipes", "planning", "launch", "training"},
    "integrations": {"files", "recipes", "planning", "training", "elastic"},
    "equivalence": {"files", "schedules", "tools", "recipes", "planning", "launch"},
    "guard": {"schedules", "recipes", "planning", "tools", "training", "elastic", "equivalence"},
    "validate": {
        "files",
        "schedules",
        "recipes",
        "forecast",
        "planning",
        "launch",
        "training",
        "equivalence",
    },
    "probing": {"files", "recipes", "planning", "equivalence", "validate"},
    "report": {"files", "schedules", "recipes", "forecast", "planning", "fleet", "validate", "equivalence"},
    "doctor": {"files", "recipes", "planning", "tools"},
}
ROOMS["cli"] = ROOMS.keys() - {"guard"}
# `python -m`: what a command line starts, which nothing imports.
ROOMS["__main__"] = ROOMS.keys()
TORCH = {"training", "elastic", "integrations", "validate", "probing", "guard", "equivalence"}


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The recorder is no part of the package: it runs in the Python of the script that it watches, where isobatch
# may be missing.
RECORDER = PACKAGE / "equivalence" / "recorder"
MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if RECORDER not in path.parents}
NODES = {path: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for path in MODULES.values()}


def imported_names(module, nodes):
    """Every module that a file imports, anywhere in it, by a statement or by its name in a text."""
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from named_in_text(node, module, {text.replace("-", "_") for text in texts})
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative imports hide where a name lives"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES or inner == "isobatch._core" else node.module


def named_in_text(call, module, texts):
    """The modules that a call of `import_module` may import.

    Of a name with a gap, those in its folder that the file lists, else all.
    """
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called not in ("import_module", "__import__") or not call.args:
        return
    parts = call.args[0].values if isinstance(call.args[0], ast.JoinedStr) else call.args[:1]
    start = ""
    for part in parts:
        if not isinstance(part, ast.Constant) and ast.unparse(part) != "{__name__}":
            listed = [
                name for name in MODULES if start and name.startswith(start) and name[len(start) :] in texts
            ]
            yield from listed or [
                name for name in MODULES if start and name.rpartition(".")[0] == start.rstrip(".")
            ]
            return
        start += part.value if isinstance(part, ast.Constant) else module
    yield start


def room(module):
    """The folder or module of the root that a module is in; of the root itself its name."""
    parts = module.split(".")
    return parts[-1] if parts[-1] == "__main__" else parts[min(1, len(parts) - 1)]


IMPORTED = {module: {*imported_names(module, NODES[path])} for module, path in MODULES.items()}
GRAPH = {module: names & MODULES.keys() - {module} for module, names in IMPORTED.items()}


def breaches(module, imports):
    """The imports that a module's room may not have; the package's root hands on names of all rooms."""
    own = room(module)
    if own == "isobatch":
        return []
    allowed = {own, *(OPEN[own] if own in OPEN else {*ROOMS[own], *OPEN})}
    wrong = sorted(name for name in imports if room(name) not in allowed)
    return [f"{module} imports {name}" for name in wrong]


def test_every_folder_and_every_module_of_the_root_has_a_row():
    assert {room(module) for module in MODULES} - {"isobatch"} == {*ROOMS, *OPEN} - {"_core"}


@pytest.mark.parametrize("name", [*ROOMS, *OPEN])
def test_a_room_imports_only_those_before_it(name):
    assert not [
        breach
        for module, imports in GRAPH.items()
        if room(module) == name
        for breach in breaches(module, imports)
    ]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("isobatch.fleet.query", "import isobatch.doctor.examine"),
        ("isobatch.fleet.query", "def look():\n    from isobatch.doctor import checks"),
        ("isobatch.planning.plan", "from isobatch.report.pages import plot"),
        ("isobatch.recipes.recipe", "import isobatch"),
        ("isobatch.planning.plan", "from isobatch.tools.export import export"),
        ("isobatch.words", "from isobatch.errors import InputError"),
        ("isobatch.doctor.record", "import_module('isobatch.cli.doctor')"),
        ("isobatch.validate.report", "if TYPE_CHECKING:\n    from isobatch.guard import guard"),
        ("isobatch.cli.plan", "import isobatch.__main__"),
    ],
)
def test_a_planted_import_is_seen(module, code):
    planted = {*imported_names(module, [*ast.walk(ast.parse(code))])}
    assert breaches(module, GRAPH[module] | planted & MODULES.keys())


def test_nothing_imports_in_a_circle():
    # The package's face hands names on, and the command line its commands: what they list is imported when it
    # is used.
    faces = {"isobatch", "isobatch.cli"}
    graph = {module: imports - faces for module, imports in GRAPH.items() if module not in faces}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_only_the_proof_and_the_trainings_import_torch():
    heavy = {"torch", "lightning", "accelerate", "transformers"}
    users = {
        module for module, names in IMPORTED.items() if heavy & {name.partition(".")[0] for name in names}
    }
    assert users and {room(module) for module in users} <= TORCH


def test_no_class_name_has_two_meanings():
    homes = {}
    for module, path in MODULES.items():
        for node in NODES[path]:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


@pytest.fixture
def house(tmp_path, monkeypatch):
    """The script that measures the house, and a checkout with a fault of each kind in Python and Rust."""
    path = PACKAGE.parent.parent / "scripts" / "house.py"
    spec = importlib.util.spec_from_file_location("house", path)
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    package = tmp_path / "python" / "isobatch"
    package.mkdir(parents=True)
    text = f'"""Reads a file."""\nfound = 1\n"""{"What"} it found."""\nreading = ' + "1" * 120 + "\n"
    (package / "__init__.py").write_text(text, encoding="utf-8")
    (tmp_path / "rust").mkdir()
    text = "//! " + 'What is read.\nconst QUOTE: char = \'"\';\nfn count(found: u8) { say("it \\" it") }\n//'
    (tmp_path / "rust" / "lib.rs").write_text(text + "-" * 109, encoding="utf-8")
    (tmp_path / "README.md").write_text("three words here", encoding="utf-8")
    monkeypatch.setattr(house, "CEILINGS", tmp_path / "house.json")
    return house


def test_a_figure_that_rises_above_its_ceiling_fails_the_check(house, tmp_path, capsys):
    figures = dict(house.text_figures(tmp_path))
    for room in ("package", "Rust"):
        assert [figures[f"{name}, {room}"] for name in house.MEASURES] == [1, 1, 1]
    assert figures["words of documents"] == 3
    house.CEILINGS.write_text(json.dumps(figures), encoding="utf-8")
    assert house.check_ceilings(tmp_path, lower=False) == 0
    ceilings = {"vague names, package": 0, "lines over 110 columns, package": 9}
    house.CEILINGS.write_text(json.dumps(ceilings), encoding="utf-8")
    assert house.check_ceilings(tmp_path, lower=True) == 1
    assert "vague names, package: 1, its ceiling is 0" in capsys.readouterr().out
    lowered = json.loads(house.CEILINGS.read_text(encoding="utf-8"))
    assert lowered == {"vague names, package": 0, "lines over 110 columns, package": 1}
