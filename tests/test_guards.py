"""What must not drift apart: the core's tables, Python's records, the documents, and what an import loads."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import isobatch as ib
import isobatch.cli
from isobatch import _core
from isobatch.planning.settings import Policy
from isobatch.schedules.form import Shape
from isobatch.schedules.kind import KINDS
from isobatch.validate import json_schema
from isobatch.validate.report.schema import make_json_schema
from reference import schedules as schedule_oracle

ROOT = Path(__file__).parent.parent


def fields_of(table):
    found = [name for name, kind, _ in _core.fields() if kind == table]
    assert found
    return found


def test_reasons_are_those_of_the_core():
    cards = _core.reasons()
    assert len(cards) > 30
    assert [reason.value for reason in ib.Reason] == [name for name, *_ in cards]
    assert [reason.bit for reason in ib.Reason] == list(range(len(cards)))
    assert all(reason.name == reason.value.upper() and reason.text for reason in ib.Reason)
    assert {reason.severity for reason in ib.Reason} == {"caution", "infeasible"}


def test_records_have_the_fields_of_the_core():
    assert set(ib.Recipe.__struct_fields__) == set(fields_of("job"))
    assert list(ib.Cluster.__struct_fields__) == fields_of("cluster")
    assert list(ib.Settings._fields) == fields_of("settings")


def test_a_plan_has_every_result_column():
    assert {name for name, _ in _core.results()} <= set(_core.plan_fields())


def test_a_plan_holds_the_cores_values_in_their_order():
    fields = list(ib.Plan.__struct_fields__)
    assert fields == ["recipe", "cluster", "settings", *_core.plan_fields(), "consumed", "moves"]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/fleet.md", [name for name, _ in _core.results()]),
        ("docs/planning.md", [name for name, *_ in _core.rules()]),
        ("docs/planning.md", [name for name, _, _ in _core.fields()]),
        ("docs/reasons.md", [reason.value for reason in ib.Reason]),
    ],
)
def test_documents_name_everything(page, names):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def rows_of(page, pattern):
    """What the first column of a document's tables names."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found = [
        name for line in lines if line.startswith("| `") for name in re.findall(pattern, line.split("|")[1])
    ]
    assert found
    return found


def test_every_command_has_its_row_and_every_row_its_command():
    commands = isobatch.cli.commands()
    assert len(commands) > 5
    assert sorted(rows_of("docs/commands.md", r"`isobatch (\w+)`")) == sorted(commands)


def test_every_command_can_be_added_and_run():
    for name in isobatch.cli.commands():
        command = importlib.import_module(f"isobatch.cli.{name}")
        missing = [part for part in ("add", "run") if not callable(getattr(command, part, None))]
        assert not missing, f"python/isobatch/cli/{name}.py has no {' and no '.join(missing)}"


def test_commands_are_listed_in_the_order_of_the_documents():
    assert rows_of("docs/commands.md", r"`isobatch (\w+)`") == isobatch.cli.commands(), (
        "docs/commands.md and _ORDER in python/isobatch/cli/__init__.py differ"
    )


def test_every_public_name_has_its_row_and_every_row_its_name():
    public = set(ib.__all__) - {"__version__"}
    assert set(rows_of("docs/names.md", r"`ib\.(\w+)`")) == public


def test_every_policy_is_documented():
    policies = get_args(Policy)
    assert len(policies) > 2
    legal = next(legal for name, _, legal in _core.fields() if name == "policy")
    text = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md"))
    assert [name for name in policies if f"`{name}`" not in text and f'"{name}"' not in text] == []
    assert [name for name in policies if name not in legal.replace(",", "").split()] == []


def test_functions_are_short():
    long = []
    for path in sorted((ROOT / "python" / "isobatch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                if lines > 60:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert not long


def test_the_page_of_reasons_says_what_the_core_says():
    text = (ROOT / "docs/reasons.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {says} | {source} |" for name, _, says, source in _core.reasons()]
    assert [row for row in rows if row not in text] == []


def test_every_optimizer_and_precision_has_an_estimate():
    known = {"parameters": 10**9, "flops_per_sample": 6e9, "gpu_tflops": 100.0}
    memory = {
        (optimizer, precision): ib.Profile.estimate(
            **known, optimizer=optimizer, precision=precision
        ).memory_fixed_gib.value
        for optimizer in _core.optimizers()
        for precision in _core.precisions()
    }
    assert len(memory) >= 36
    # Weights and gradients alone, and two float32 averages beside them.
    assert all(8 * 0.93 <= gib < 16 * 0.94 for gib in memory.values())
    assert memory["adafactor", "bf16"] < 0.51 * memory["adamw", "bf16"]


def test_settings_are_checked_each_and_together():
    assert _core.check_settings({}) == []
    assert _core.check_settings({"policy": "grow", "ragged": True}) == []
    found = _core.check_settings({"rule": "lineer", "ragged": True, "uneven": True, "budget": -1.0})
    assert [(name, got) for name, got, _ in found] == [("rule", "lineer"), ("budget", -1.0), ("ragged", True)]
    legal = {name: says for name, record, says in _core.fields() if record == "settings"}
    assert all(says == legal[name] for name, _, says in found)
    with pytest.raises(ib.InputError, match="nonsense"):
        _core.check_settings({"nonsense": 1})


def loaded_by(code):
    program = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_loads_nothing_heavy():
    modules = loaded_by("import isobatch; isobatch.plan; isobatch.plan_fleet; isobatch.schedules")
    assert {"numpy", "msgspec"} <= modules
    assert not {"torch", "pyarrow", "ray", "altair", "scipy", "yaml", "rich", "pandas"} & modules


def test_help_loads_no_numpy():
    modules = loaded_by(
        "import contextlib, io\n"
        "from isobatch.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "import sys"
    )
    assert "argparse" in modules
    assert not {"numpy", "msgspec"} & modules


def test_the_files_that_documents_name_are_there():
    """In code spans, with a folder in front; `<name>` stands for any."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    named = {
        path
        for text in texts
        for path in re.findall(
            r"`((?:rust|python|tests|bench|docs|examples|scripts)/[^`<> *]*)`", text.read_text()
        )
    }
    assert len(named) > 10
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def proofs():
    """The registry of the validator's claims, and the folder of their files."""
    pytest.importorskip("torch", reason="the proofs are torch's")
    from isobatch.validate.proofs import registry

    return registry, Path(registry.__file__).parent


def test_every_proof_is_in_the_registry():
    registry, folder = proofs()
    declared = {
        f"{file.stem}.{name}"
        for file in folder.glob("*.py")
        for name in re.findall(r"^(\w+) = Claim\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    listed = re.findall(
        r"^    (\w+\.[A-Z]+),$", Path(registry.__file__).read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(listed) == len(registry.CLAIMS) > 10
    assert sorted(declared) == sorted(listed)


def test_a_proof_is_declared_by_its_name():
    """By the claim of its own file, or of the one that uses it."""
    registry, folder = proofs()
    given = {
        name
        for file in folder.glob("*.py")
        for name in re.findall(r'(?:name=|unchecked\()"(\w+)"', file.read_text(encoding="utf-8"))
    }
    assert len(given) > 10
    assert given - {name for claim in registry.CLAIMS for name in claim.names} == set()


def test_every_proof_has_its_row_in_the_order_of_the_table():
    registry, _ = proofs()
    names = dict.fromkeys(name for claim in registry.CLAIMS for name in claim.names)
    page = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    rows = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert [name for name in names if name not in rows] == []
    assert [name for name in rows if name in names] == list(names)
    assert "ranks_alive" in rows


def test_the_validator_knows_the_recipes_precisions():
    pytest.importorskip("torch", reason="the formats are torch's")
    from isobatch.diagnosis.precision import AUTOCAST

    assert {name for name in AUTOCAST if name} == set(_core.precisions())


# ---- kinds of schedule: file, oracle, text, document ----


def test_every_file_of_a_kind_is_listed():
    files = {path.stem for path in (ROOT / "python/isobatch/schedules/kinds").glob("*.py")} - {"__init__"}
    assert files
    assert files == set(KINDS), "python/isobatch/schedules/kinds/__init__.py has a line for each file"


def test_every_kind_has_an_oracle():
    assert sorted(schedule_oracle.ARGUMENTS) == sorted(KINDS), "tests/reference/schedules.py: ARGUMENTS"
    assert [name for name in KINDS if not hasattr(schedule_oracle, name)] == []


def test_every_kind_that_builds_has_a_text():
    texts = {name: text for name, (_, text) in schedule_oracle.ARGUMENTS.items()}
    assert {name for name, kind in KINDS.items() if kind.build} == {
        name for name, text in texts.items() if text
    }
    assert [name for name, text in texts.items() if text and ib.schedules.check_spec(text).kind != name] == []


def schedule_row(kind):
    """The row of a kind in docs/schedules.md, from its signature and the first line of its docstring."""
    given = [
        name
        if p.default is p.empty
        else f"{name}={p.default:g}"
        if type(p.default) is float
        else f"{name}={p.default}"
        for name, p in inspect.signature(kind.constructor).parameters.items()
    ]
    text = ", ".join(f"{name} …" if argument.many else name for name, argument in kind.arguments.items())
    in_recipe = "" if kind.build is None else f"`{kind.name}({text})`" if text else f"`{kind.name}`"
    first = inspect.getdoc(kind.constructor).partition("\n")[0]
    return f"| `{kind.name}({', '.join(given)})` | {in_recipe} | {first} |"


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_its_row(name):
    page = (ROOT / "docs/schedules.md").read_text(encoding="utf-8")
    assert schedule_row(KINDS[name]) in page.splitlines(), (
        f"docs/schedules.md lacks: {schedule_row(KINDS[name])}"
    )


def test_every_shape_of_the_form_is_one_of_the_core():
    shapes = {shape.kind for shape in Shape.__args__}
    assert shapes == {*_core.schedule_shapes(), "inner"}


def test_tools_documents_and_files_agree():
    """Each reader and writer is a file, a row of docs/tools.md with its versions, and drawn by a test of its own."""
    from isobatch.tools.reading.read import READERS, reader
    from isobatch.tools.writing.export import WRITERS, writer

    rows = re.findall(
        r"^\| `([\w-]+)` \|(.*)$", (ROOT / "docs/tools.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    listed = {name.replace("-", "_"): row for name, row in rows}
    assert set(listed) == {*READERS, *WRITERS}
    for folder, names in (("reading", READERS), ("writing", WRITERS)):
        files = {path.stem for path in (ROOT / f"python/isobatch/tools/{folder}").glob("*.py")}
        modules = {
            name
            for name in files
            if "\nVERSIONS = " in (ROOT / f"python/isobatch/tools/{folder}/{name}.py").read_text()
        }
        assert modules == set(names)
    for name in {*READERS, *WRITERS}:
        first = (reader(name) if name in READERS else writer(name)).VERSIONS.split(" to ")[0]
        assert first.split()[-1] in listed[name], name


def test_the_schema_of_reports_is_that_of_their_structure():
    assert json_schema() == json.loads(make_json_schema()), (
        "make it anew: python -m isobatch.validate.report.schema > python/isobatch/validate/report/report.schema.json"
    )
