"""Sources of a recipe: a file of ours, files of other tools, --set, stdin; and the target tool of a plan."""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from isobatch import _core
from isobatch.cli.terminal import say, show_lines, write_json
from isobatch.errors import InputError, missing, must_be
from isobatch.files.formats import read_fields
from isobatch.files.texts import shell_words
from isobatch.recipes.cluster import no_field
from isobatch.recipes.recipe import Recipe
from isobatch.tools import detect
from isobatch.tools.installed import plain
from isobatch.tools.tool import MAX_LINE_CHARACTERS
from isobatch.words import printable

TOOL: dict[str, Any] = {
    "--tool NAME": "whose it is, where its content leaves that open",
    "--set FIELD=VALUE": ("a field of the recipe; overrides the file", {"action": "append", "default": []}),
}
"""The options of another tool's file."""
FROM: dict[str, Any] = {
    "--from FILE": (
        "another tool's configuration, or a checkpoint folder of transformers' Trainer, in the place of a "
        "recipe; again for a second file of the same run",
        {"dest": "source", "action": "append"},
    ),
    **TOOL,
}
"""The options of a recipe beside its file."""
TO: dict[str, Any] = {
    "--to TOOL": "also print the plan as this tool's file or arguments",
    "--name NAME": ("the job's name, for launchers", "isobatch"),
    "--script WORDS": ("the training script and its arguments, for launchers", "train.py"),
    "--image IMAGE": "a container image, for launchers that run one",
    "--elastic": "the script trains with ElasticRun: launchers' files start on any number of GPUs",
}
"""The options of a target and its job."""


_Read = TypeVar("_Read")


def fields(args: argparse.Namespace) -> dict[str, Any]:
    """Reads the fields of --set."""
    changes: dict[str, Any] = {}
    for entry in args.set:
        name, equals, text = entry.partition("=")
        if not equals:
            raise must_be("FIELD=VALUE", entry, field="--set")
        also = _JOINED.search(text)
        if also is not None and also[1] in (*Recipe.__struct_fields__, "batch_per_gpu") and "(" not in text:
            own = f"--set {name}={text[: also.start()]} --set {text[also.start(1) :]}"
            why = f"--set {entry} holds two fields: give each field its own: {own}"
            raise InputError(why, field=f"--set {name}")
        changes[name] = _value(name, text)
    return changes


_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_JOINED = re.compile(r"[,;\s]\s*(\w+)=")


def _value(name: str, text: str) -> Any:
    """Reads a value as its field does in a table; an unreadable one stays a text, to be refused as typed."""
    value = _core.number("micro_batch" if name == "batch_per_gpu" else name, text)
    if value is not None:
        return value
    if name in ("betas", "device_batches") and (parts := _NUMBERS.findall(text)):
        return [json.loads(part) for part in parts] if not _NUMBERS.sub("", text).strip(" ,;()[]") else text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if type(value) in (int, float) else value


class Source(NamedTuple):
    """A recipe, and the readings of the files of --from in their order; none of a recipe of ours."""

    recipe: Any
    pages: tuple[Any, ...] = ()

    def settings(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Joins the typed settings with the demands of the files; the first file wins."""
        demands = {name: value for page in reversed(self.pages) for name, value in page.demands.items()}
        return {**demands, **typed}

    @property
    def tool(self) -> str | None:
        """The training tool: of the first file, or the one with its settings; None for a recipe."""
        if not self.pages:
            return None
        tool = detect.tool_of(self.pages[0].tool)
        return tool.name if tool.writer is not None else tool.written_as or None

    def recomputing(self, profiles: Iterable[Any]) -> Iterator[str]:
        """Yields a note for each file with recomputed activations, if a profile is estimated without."""
        if all(profile.recompute in (None, "full") for profile in profiles):
            return
        for page in self.pages:
            if name := next(_recomputing(page.settings), None):
                todo = "a step takes about a third longer, in less memory: isobatch estimate --recompute full"
                yield f"{page.file}: {name} recomputes activations; the profile is estimated without: {todo}"

    def own(self, tool: str | None) -> Mapping[str, Any]:
        """Returns the settings of the last file of this tool; empty if there is none."""
        own = [page.settings for page in self.pages if tool is not None and page.tool == plain(tool)]
        return own[-1] if own else {}

    @property
    def script(self) -> str | None:
        """The training script among its files or on a launch line; None without one."""
        from isobatch.tools.elsewhere import launched_script

        return launched_script(self.pages)

    def elsewhere(self, plan: Any, tool: str) -> tuple[str, ...]:
        """Returns the changed lines of the run's other files."""
        from isobatch.tools.elsewhere import changes_elsewhere

        return tuple(changes_elsewhere(plan, self.pages, plain(tool)))


_RECOMPUTING = (
    "gradient_checkpointing", "enable_gradient_checkpointing", "enable_activation_checkpointing",
    "activation_checkpoint.mode", "recompute_granularity",
)  # fmt: skip
"""Settings of tools that recompute the activations of layers."""
_ON = ("true", "1", "yes", "full", "offload", "unsloth")


def _recomputing(settings: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yields the settings for recomputing all activations, if they are on; nested ones are dotted."""
    for key, value in settings.items():
        name = f"{within}{key}"
        if isinstance(value, Mapping):
            yield from _recomputing(value, f"{name}.")
        elif str(value).lower() in _ON and f".{name}".endswith(tuple(f".{each}" for each in _RECOMPUTING)):
            yield name


@contextmanager
def naming_set(typed: Mapping[str, Any]) -> Iterator[None]:
    """Names `--set FIELD` in an error about a typed field; other errors keep their place in the file."""
    try:
        yield
    except InputError as error:
        is_given = error.field in typed and not error.causes
        if not is_given or (error.file is not None and not error.is_illegal_value):
            raise
        raise error.without_file().at(field=f"--set {str(error.field).removeprefix('tuned_')}") from None


def read(args: argparse.Namespace) -> Source:
    """Reads the Recipe in the files of --from; notes on each go to stderr."""
    from isobatch.tools.read import read_recipe

    typed = fields(args)
    legal = [*Recipe.__struct_fields__, "batch_per_gpu"]
    for name in typed:
        if name not in legal:
            raise no_field(name, legal).at(field=f"--set {name}")
    if isinstance(typed.get("betas"), list):
        typed["betas"] = tuple(typed["betas"])
    ends = getattr(args, "to", None) is not None
    with naming_set(typed):
        recipe, pages = _with_tuned_gpus(
            args, typed, lambda values: read_recipe(Recipe, args.source, values, tool=args.tool, ends=ends)
        )
    for page in pages:
        if page.guessed:
            say(f"{page.file}: read as {page.title}")
        say(*(printable(f"{page.file}: {note}", MAX_LINE_CHARACTERS) for note in page.notes))
    return Source(recipe, tuple(pages))


def source(args: argparse.Namespace) -> Source:
    """Reads the Recipe from a file of ours, another tool's, or --set alone."""
    if args.source:
        if args.recipe is not None:
            raise InputError("--from goes without a recipe file: give one or the other")
        return read(args)
    changes = fields(args)
    if args.recipe is None and not changes:
        raise missing("recipe", "pass a file, or fields with --set")

    def load(values: Mapping[str, Any]) -> Recipe:
        return Recipe.of(values) if args.recipe is None else Recipe.load(args.recipe, values)

    with naming_set(changes):
        return Source(_with_tuned_gpus(args, changes, load))


def _with_tuned_gpus(
    args: argparse.Namespace, typed: Mapping[str, Any], read: Callable[[Mapping[str, Any]], _Read]
) -> _Read:
    """Reads a recipe; with the project's `tuned_gpus` where it needs these and its files do not say them."""
    try:
        return read(typed)
    except InputError as error:
        tuned = getattr(args, "tuned_gpus", None)
        lacks = any(each.field == "gpus" and "missing" in each.message for each in (error, *error.causes))
        if tuned is None or not lacks:
            raise
    return read({**typed, "gpus": tuned})


def target(args: argparse.Namespace) -> str | None:
    """Checks the tool of --to before anything is planned."""
    if args.to is None:
        return None
    try:
        detect.writer(args.to)
    except InputError as error:
        raise error.at(field="--to") from None
    return str(args.to)


def form(args: argparse.Namespace) -> str | None:
    """Returns the format of the tool's file by the name of --output, before anything is planned."""
    from isobatch.tools.export import form_of

    return None if args.output is None else form_of(args.to, args.output)


def explained(plan: Any, tool: str | None, args: argparse.Namespace) -> str:
    """Explains a plan; the ways out leave out weighted splits if the training tool cannot run them.

    They leave out larger nodes than of --gpus-per-node, which the command refuses.
    """
    how = None if tool is None else detect.writer(tool).writer
    is_even = how is not None and not how.runs_ragged
    most = args.gpus_per_node or math.inf
    fitting = [option for option in plan.options if option.cluster.gpus_per_node <= most]
    ways = [option for option in fitting if not (is_even and option.layout.irregular)]
    if plan.status != "infeasible" or len(ways) == len(plan.options):
        return str(plan.explain(args.currency))
    text = plan.explanation(args.currency, ways).text()
    if len(ways) == len(fitting):
        return str(text)
    return f"{text}\nLeft out: weighted splits; {tool} gives every replica the same micro-batches."


def job(
    args: argparse.Namespace,
    resume: str | None = None,
    own: Mapping[str, Any] | None = None,
    elsewhere: tuple[str, ...] = (),
    script: str | None = None,
) -> Any:
    """Makes the Job of the launchers' options, and of the settings of a file of the same tool."""
    import shlex

    from isobatch.tools.sheet import Job

    try:
        words = shlex.split(args.script)
        is_typed = any(word.partition("=")[0] == "--script" for word in args.words)
        command = tuple(words if is_typed or script is None else [script])
    except ValueError as error:
        raise InputError(f"--script cannot be read: {error}", field="--script") from None
    how = {"image": args.image, "elastic": args.elastic, "resume": resume, "own": own or {}}
    how["elsewhere"] = elsewhere
    return Job(name=args.name, command=command, again=shell_words(_again(args)), **how)


_OF_ONE_SIZE = {"--gpus", "--nodes", "--gpus-per-node", "--to", "--at-step", "--output", "--json", "--force"}
"""Options of a plan on these GPUs, and of where it goes."""


def _again(args: argparse.Namespace) -> list[str]:
    """Returns the typed command without its GPUs, to plan the same on other GPUs."""
    if not hasattr(args, "recipe") and not hasattr(args, "plan"):
        return ["isobatch", "plan", "RECIPE"]
    if hasattr(args, "plan"):
        return [*retyped(args, "replan", "replan"), "--at-step", "STEP"]
    if args.recipe is not None and is_plan(args.recipe):
        return [*retyped(args, "plan", "replan"), "--at-step", "STEP"]
    return retyped(args, "plan", "plan")


def retyped(
    args: argparse.Namespace, command: str, another: str, *, without: Iterable[str] = _OF_ONE_SIZE
) -> list[str]:
    """Returns `another` command with the words of `command`, without some options and those unknown to it."""
    from isobatch.cli import parser_of

    known, accepted = (parser_of(name)._option_string_actions for name in (command, another))
    words, typed = ["isobatch", another], iter(args.words)
    for word in typed:
        name, equals, _ = word.partition("=")
        name = name if name in known else word[:2]
        if name not in known:
            words.append(word)
            continue
        has_value = known[name].nargs != 0 and not equals and word == name
        values = [next(typed, "")] if has_value else []
        if name in accepted and {*without}.isdisjoint(known[name].option_strings):
            words += [word, *values]
    return words


def show(export: Any) -> None:
    """Prints a tool's file under a plan; notes without a place in it go to stderr."""
    print(f"\n{export}", end="")
    if export.file.endswith(".json"):
        sys.stdout.flush()
        say(*(f"{export.tool}: {note}" for note in export.notes))


def publish(plan: Any, export: Any, args: argparse.Namespace, tool: str | None, *notes: str) -> int:
    """Prints a plan, with notes, and saves it, or its file for a tool in its place; 1 if it is infeasible."""
    to_stdout = args.output == "-"
    if args.output and not to_stdout and args.to is None:
        plan.save(args.output)
    if args.json or (to_stdout and args.to is None):
        write_json(plan.to_json())
    elif not to_stdout or export is None:
        show_lines(explained(plan, tool, args), plan.status)
    say(*notes)
    if export is not None and args.to is not None and args.output is not None:
        save_export(export, args.output, force=args.force)
    elif export is not None:
        show(export)
    return 1 if plan.status == "infeasible" else 0


def save_export(export: Any, output: str | None, *, force: bool) -> None:
    """Writes a tool's file, alone on stdout where there is no output; its notes go to stderr."""
    say(*(f"{export.tool}: {note}" for note in export.notes))
    if output is None or output == "-":
        print(export, end="")
        return
    if Path(output).exists() and not force:
        raise InputError("is there already: --force replaces it", file=output)
    export.save(output)


# ---- what a file is ----


def refuse_recipe(path: str) -> None:
    """Refuses a recipe where a plan is needed."""
    if detect.is_recipe(_fields(path)):
        todo = f"plan it first, by isobatch plan {path} --gpus N -o plan.json"
        raise InputError(f"is a recipe: {todo}", file=path)


def is_plan(path: str) -> bool:
    """Recognizes a saved plan by its fields."""
    return detect.is_plan(_fields(path))


def _fields(path: str) -> dict[str, Any]:
    """Reads the table in a file of a recipe or a plan; nothing of any other file."""
    if Path(path).suffix not in (".toml", ".yaml", ".yml", ".json") or not Path(path).is_file():
        return {}
    try:
        return read_fields(path)
    except InputError:
        return {}  # who reads it says why
