"""Guards against drift: the core's tables, Python's records, the documents, and the modules of an import."""

import ast
import importlib
import inspect
import itertools
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import get_args

import pytest

import isobatch as ib
import isobatch.cli
from isobatch import _core
from isobatch.planning.course import EACH_STEP, OF_COURSE
from isobatch.planning.record import VALUES
from isobatch.planning.settings import Policy
from isobatch.schedules.form import Shape
from isobatch.schedules.text import KINDS
from reference import schedules as schedule_oracle

ROOT = Path(__file__).parent.parent


def agree(place, names, expected, *, ordered=True):
    """Fails with the place and the names that it lacks or has too many; `place` is the file to mend."""
    names, expected = list(names), list(expected)
    files = re.findall(r"[\w/]+\.(?:py|md)", place)
    assert expected and files and all((ROOT / file).exists() for file in files)
    lacks = [name for name in expected if name not in names]
    strays = [name for name in names if name not in expected]
    assert not lacks, f"{place} lacks {', '.join(map(str, lacks))}"
    assert not strays, f"{place} has {', '.join(map(str, strays))}, which nothing else has"
    assert not ordered or names == expected, f"{place} has another order: {names}, and not {expected}"


def fields_of(table):
    return [name for name, kind, _ in _core.fields() if kind == table]


def test_reasons_are_those_of_the_core():
    cards = _core.reasons()
    assert len(cards) > 30
    agree("python/isobatch/reason.py", [reason.value for reason in ib.Reason], [name for name, *_ in cards])
    assert [reason.bit for reason in ib.Reason] == list(range(len(cards)))
    assert all(reason.name == reason.value.upper() and reason.text for reason in ib.Reason)
    assert {reason.severity for reason in ib.Reason} == {"caution", "infeasible"}


def test_the_names_of_the_package_are_those_of_its_stub():
    stub = (ROOT / "python/isobatch/__init__.pyi").read_text(encoding="utf-8")
    lines = re.findall(r"^from (isobatch\S*) import (\w+) as (\w+)$", stub, re.MULTILINE)
    assert all(name == own for _, name, own in lines)
    agree("python/isobatch/__init__.py", ib._HOMES.items(), [(name, home) for home, name, _ in lines])


def test_records_have_the_fields_of_the_core():
    recipe = ib.Recipe.__struct_fields__
    agree("python/isobatch/recipes/recipe.py", recipe, fields_of("recipe"), ordered=False)
    agree("python/isobatch/recipes/cluster.py", ib.Cluster.__struct_fields__, fields_of("cluster"))
    agree("python/isobatch/planning/settings.py", ib.Settings._fields, fields_of("settings"))


def test_a_plan_holds_the_result_columns_in_their_order():
    results = [name for name, *_ in _core.results()]
    agree("python/isobatch/planning/record.py", ib.Plan.__struct_fields__[3 : 3 + len(results)], results)


def defaults_of(names):
    """A named tuple of settings at their defaults, as far as the names are settings."""
    known = ib.Settings()._asdict()
    return namedtuple("Some", names)(*(known.get(name) for name in names))


@pytest.mark.parametrize("record", ["cluster", "settings", "plan"])
def test_a_name_that_only_one_side_has_is_an_error_of_the_binding(record):
    names = {"cluster": ib.Cluster.__struct_fields__, "settings": ib.Settings._fields, "plan": VALUES[2:]}

    def bind(**changed):
        records = names | changed
        return _core.Planner(records["cluster"], defaults_of(records["settings"]), records["plan"])

    bind()
    for name in names[record]:
        with pytest.raises(ib.InputError, match=f"the core has {name}, "):
            bind(**{record: [field for field in names[record] if field != name]})
    with pytest.raises(ib.InputError, match="Python's record has color, the core has not"):
        bind(**{record: [*names[record], "color"]})


def test_names_may_come_in_any_order():
    turned = ib.Settings._fields[::-1], VALUES[:1:-1]
    planner = _core.Planner(ib.Cluster.__struct_fields__[::-1], defaults_of(turned[0]), turned[1])
    plan = ib.plan(recipe := ib.Recipe(effective_batch=256, lr=0.1), 8, policy="grow", max_micro_batch=16)
    where = [getattr(plan.cluster, name) for name in ib.Cluster.__struct_fields__[::-1]]
    values = planner.plan(recipe.core, tuple(where), plan.settings[::-1])[2]
    assert {name: getattr(plan, name) for name in VALUES[2:]} == dict(zip(turned[1], values, strict=True))


def test_the_defaults_of_the_settings_are_those_of_the_core():
    for name, value in (("batch_tolerance", 0.5), ("policy", "grow"), ("max_batch", 8)):
        with pytest.raises(ib.InputError, match="the defaults of the settings must be the core's"):
            _core.Planner(ib.Cluster.__struct_fields__, ib.Settings(**{name: value}), VALUES[2:])


@pytest.mark.parametrize(("sum_", "table"), [("sum", EACH_STEP), ("course", OF_COURSE)])
def test_a_moved_run_knows_how_each_column_adds_up(sum_, table):
    columns = {name: over for name, *_, over, _ in _core.results()}
    names = [name for name, over in columns.items() if over == sum_]
    agree(f"python/isobatch/planning/course.py ({sum_})", table, names, ordered=False)
    assert set(columns.values()) == {"last", "sum", "course"}


def test_every_result_column_has_a_text_and_a_role():
    assert {role for *_, role in _core.results()} == {"decision", "figure"}
    assert [name for name, _, text, *_ in _core.results() if not text] == [], "rust/core/src/plan/results.rs"


@pytest.mark.parametrize("script", ["tables", "picture", "schemas"])
def test_generated_parts_of_documents_are_current(script):
    """Tables of pages, the picture of a terminal, the schemas of files."""
    words = [sys.executable, ROOT / f"scripts/{script}.py", "--check"]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_the_page_of_compatibility_links_every_schema():
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in (ROOT / "docs/schemas").iterdir())
    assert len(files) > 3
    agree("docs/compatibility.md", re.findall(r"\]\(schemas/([\w.]+)\)", page), files, ordered=False)


def test_the_readme_for_a_package_index_has_no_relative_link():
    words = [sys.executable, ROOT / "scripts/readme_links.py", "https://example.org/a/b/blob/v1"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    assert "![" in text and "https://example.org/a/b/raw/v1/docs/terminal.svg" in text
    assert "https://example.org/a/b/blob/v1/docs/planning.md" in text
    assert "pip install 'isobatch[fleet,report]'" in text and "scripts/test" not in text


def test_the_sites_navigation_names_pages_that_are_there_in_few_groups():
    """Once each; scripts/site_hooks.py adds those that it does not name."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    text = text[text.index("nav:\n  - ") :]
    named = re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE)
    assert len(named) > 30 and len(set(named)) == len(named)
    assert {page for page in named if not (ROOT / "docs" / page).exists()} == {"measured.md"}  # by the hook
    assert len(re.findall(r"^  - ", text, re.MULTILINE)) <= 10


def test_every_measurement_begins_with_its_finding():
    """The site's page Measured is made of these lines; who measures anew looks at it again."""
    for path in (ROOT / "bench/results").glob("*.md"):
        assert re.match(r"# .*\n\n> \S", path.read_text(encoding="utf-8")), f"{path}: no '> finding' on top"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 110


def test_every_page_with_code_is_run():
    """scripts/test names the folders whose blocks it runs."""
    run = re.search(r"run_blocks\.py (.*)", (ROOT / "scripts/test").read_text(encoding="utf-8"))[1].split()
    covered = {path for pattern in run for path in ROOT.glob(pattern)}
    pages = [str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md") if path not in covered]
    assert not pages, f"scripts/test runs no blocks of {pages}"


def test_planning_documents_every_field():
    text = (ROOT / "docs/planning.md").read_text(encoding="utf-8")
    missing = [name for name, *_ in _core.fields() if f"`{name}`" not in text]
    assert not missing, f"docs/planning.md lacks {missing}"


def rows_of(page, pattern):
    """Names in the first column of a document's tables."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(pattern, cell)]


def test_every_command_has_its_row_in_the_order_of_the_help():
    commands = [*isobatch.cli.COMMANDS]
    assert len(commands) > 5
    agree("docs/commands.md", rows_of("docs/commands.md", r"`isobatch (\w+)`"), commands)


def test_every_command_can_be_added_and_run():
    for name in isobatch.cli.COMMANDS:
        command = importlib.import_module(f"isobatch.cli.{name}")
        for part in ("DESCRIPTION", "EXAMPLES", "OPTIONS", "run"):
            assert hasattr(command, part), f"python/isobatch/cli/{name}.py has no {part}"


def test_every_public_name_has_its_row_and_every_row_its_name():
    public = set(ib.__all__) - {"__version__"}
    agree("docs/names.md", rows_of("docs/names.md", r"`ib\.(\w+)`"), sorted(public), ordered=False)


def test_every_policy_is_documented():
    policies = get_args(Policy)
    assert len(policies) > 2
    legal = next(legal for name, _, legal in _core.fields() if name == "policy")
    text = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md"))
    missing = [name for name in policies if f"`{name}`" not in text and f'"{name}"' not in text]
    assert not missing, f"docs/planning.md lacks {missing}"
    missing = [name for name in policies if name not in legal.replace(",", "").split()]
    assert not missing, f"what policy must be, in rust/core/src/input/fields.rs, lacks {missing}"


def test_functions_are_short():
    long = []
    for path in sorted((ROOT / "python" / "isobatch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                if lines > 60:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert not long, "; ".join(long)


def test_every_optimizer_and_precision_has_an_estimate():
    known = {"parameters": 10**9, "flops_per_sample": 6e9, "gpu_tflops": 100.0}
    memory = {}
    for optimizer, precision in itertools.product(_core.optimizers(), _core.precisions()):
        profile = ib.Profile.estimate(**known, optimizer=optimizer, precision=precision)
        memory[optimizer, precision] = profile.memory_fixed_gib.value
    assert len(memory) >= 36
    # Weights and gradients alone, and two float32 averages beside them.
    assert all(8 * 0.93 <= gib < 16 * 0.94 for gib in memory.values())
    assert memory["adafactor", "bf16"] < 0.51 * memory["adamw", "bf16"]


def test_settings_are_checked_each_and_together():
    assert _core.check_settings({}) == []
    assert _core.check_settings({"policy": "grow", "split": "ragged"}) == []
    wrong = {"rule": "lineer", "budget": -1.0, "split": "smaller"}
    faults = _core.check_settings({**wrong, "batch_tolerance": 0.1})
    legal = {name: says for name, record, says in _core.fields() if record == "settings"}
    assert faults == [(name, value, legal[name]) for name, value in wrong.items()]
    with pytest.raises(ib.InputError, match="nonsense"):
        _core.check_settings({"nonsense": 1})


def loaded_by(code):
    program = f"import sys; {code}; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(process.stdout.splitlines()[-1].split())


def test_importing_loads_nothing_heavy():
    modules = loaded_by("import isobatch as ib; ib.plan; ib.plan_fleet; ib.schedules; ib.integrations")
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
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    path = re.compile(r"`((?:rust|python|tests|bench|docs|examples|scripts)/[^`<> *]*)`")
    named = {name for page in pages for name in path.findall(page.read_text())}
    assert len(named) > 10
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def proofs():
    """The validator's claims, and the files that may declare one."""
    pytest.importorskip("torch", reason="the proofs are torch's")
    from isobatch.validate import worker

    folder = Path(worker.__file__).parent
    return worker.CLAIMS, [*folder.glob("proofs/*.py")]


def test_every_proof_is_in_the_list():
    claims, files = proofs()
    declared = {
        f"{file.stem}.{name}"
        for file in files
        for name in re.findall(r"^(\w+) = Claim\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    home = "python/isobatch/validate/worker.py"
    text = (ROOT / home).read_text(encoding="utf-8")
    listed = re.findall(r"^    (\w+\.[A-Z_]+),$", text, re.MULTILINE)
    assert len(listed) == len(claims) > 10
    agree(home, listed, sorted(declared), ordered=False)


def test_a_proof_is_declared_by_its_name():
    """By the claim of its own file, or of the one that uses it."""
    claims, files = proofs()
    call = re.compile(r'(?:judge|judge_claim|pass_claim|skip_claim)\(\s*"(\w+)"')
    names = {name for file in files for name in call.findall(file.read_text(encoding="utf-8"))}
    declared = {name for claim in claims for name in claim.names}
    assert len(names) > 10
    assert names <= declared, f"no Claim in python/isobatch/validate/proofs has {names - declared}"


def test_every_failed_proof_has_a_diagnosis():
    """Every proof in python/isobatch/validate that is not simply a pass, or not looked at.

    Is made by `judge_claim`, which demands one.
    """
    pytest.importorskip("torch", reason="the proofs are torch's")
    direct, seen = [], 0
    for file in sorted((ROOT / "python/isobatch/validate").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and file.name != "report.py":
                seen += ast.unparse(node.func) == "judge_claim"
                if ast.unparse(node.func) == "Proof":
                    direct.append(f"{file.relative_to(ROOT)}, line {node.lineno}")
    assert seen > 20
    assert not direct, (
        f"a proof that is not made by judge_claim, pass_claim or skip_claim: {'; '.join(direct)}"
    )


def test_every_proof_has_its_row_in_the_order_of_the_table():
    claims, _ = proofs()
    names = dict.fromkeys(name for claim in claims for name in claim.names)
    page = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    rows = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    agree("docs/validate.md", [name for name in rows if name in names], names)
    assert "ranks_alive" in rows


def test_the_validator_knows_the_recipes_precisions():
    pytest.importorskip("torch", reason="the formats are torch's")
    from isobatch.equivalence.tensors import AUTOCAST

    agree("python/isobatch/equivalence/tensors.py", filter(None, AUTOCAST), _core.precisions(), ordered=False)


# ---- kinds of schedule: oracle, text, document ----


def test_every_kind_has_an_oracle():
    oracle = "tests/reference/schedules.py"
    agree(f"ARGUMENTS in {oracle}", schedule_oracle.ARGUMENTS, KINDS, ordered=False)
    agree(oracle, [name for name in KINDS if hasattr(schedule_oracle, name)], KINDS)


def test_every_kind_that_builds_has_a_text():
    texts = {name: text for name, (_, text) in schedule_oracle.ARGUMENTS.items() if text}
    built = [name for name, kind in KINDS.items() if kind.build]
    agree("the texts in ARGUMENTS in tests/reference/schedules.py", texts, built, ordered=False)
    for name, text in texts.items():
        assert ib.schedules.check_spec(text).kind == name, "tests/reference/schedules.py: of another kind"


def test_every_shape_of_the_form_is_one_of_the_core():
    shapes = {shape.__struct_config__.tag for shape in Shape.__args__}
    assert shapes == {*_core.schedule_shapes(), "inner"}


@pytest.mark.parametrize("reason", [(), ("",), (7,), ("one", "two")])
def test_a_race_with_the_machine_gives_its_reason(request, reason):
    """The mark of a second try: a test without a reason stops the run, one with it is tried once more."""

    def collected(*arguments):
        item = pytest.Function.from_parent(request.node.parent, name="it", callobj=lambda: None)
        item.add_marker(pytest.mark.race(*arguments))
        request.config.hook.pytest_collection_modifyitems(
            session=request.session, config=request.config, items=[item]
        )
        return item.get_closest_marker("flaky")

    with pytest.raises(pytest.UsageError, match="it: race needs its reason, a text"):
        collected(*reason)
    assert collected("judges the clock").kwargs == {"reruns": 1}


INTEGRATIONS = ("torch", "transformers", "lightning", "optax", "elastic_ray")
PUBLIC = ["schedules", "guard", "validate", *(f"integrations.{name}" for name in INTEGRATIONS)]


@pytest.mark.parametrize("name", ["isobatch", *(f"isobatch.{name}" for name in PUBLIC)])
def test_every_public_function_says_its_arguments(name):
    module = pytest.importorskip(name)
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    functions = [
        function
        for function in (getattr(module, own) for own in names)
        if inspect.isfunction(function) and (name == "isobatch" or function.__module__.startswith(name))
    ]
    silent = []
    for function in functions:
        block = re.search(r"\nArgs:\n((?: .*\n?)+)", inspect.getdoc(function) or "")
        documented = re.findall(r"^ {4}([\w, *]+):", block[1] if block else "", re.MULTILINE)
        arguments = {own.strip(" *") for line in documented for own in line.split(",")}
        parameters = inspect.signature(function).parameters.values()
        # Further keywords (`**settings`) are listed by their own names.
        own = {
            parameter.name
            for parameter in parameters
            if parameter.kind != parameter.VAR_KEYWORD and parameter.name[0] != "_"
        }
        if not own <= arguments:
            silent.append((function.__name__, sorted(own - arguments)))
    assert silent == []
    assert functions or name == "isobatch.integrations.torch"  # classes alone
