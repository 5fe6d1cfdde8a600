"""`isobatch plan`: one recipe on one cluster; with `-` many, one JSON request a line."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from isobatch.cli import options, project
from isobatch.cli.source import (
    FROM,
    TO,
    fields,
    form,
    is_plan,
    job,
    publish,
    save_export,
    source,
    target,
)
from isobatch.cli.terminal import say, stdin
from isobatch.errors import InputError, missing, must_be, raise_all, unknown
from isobatch.planning.plan import Plan, plan
from isobatch.planning.settings import Settings, checked_settings
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.words import count, counted, exact, printable, ranged

DESCRIPTION = (
    "Plans one recipe on one cluster: how to train there, or why it cannot and what would work. With a saved "
    "plan and --to, writes it as another tool's file."
)
EXAMPLES = (
    "isobatch plan job.toml --gpus 64",
    "isobatch plan job.toml --gpus 7 --batch-tolerance 0.02",
    "isobatch plan --from training_args.json --gpus 32 --to transformers",
    "isobatch plan --set effective_batch=256 --set lr=0.1 --gpus 8 -o plan.json",
    "isobatch plan plan.json --to slurm",
    """echo '{"recipe":{"effective_batch":256,"lr":0.1},"gpus":8}' | isobatch plan -""",
)
EVERYDAY = (
    f"--from --set --to --gpus --nodes {options.EVERYDAY_HARDWARE} {options.EVERYDAY_SETTINGS} --json "
    "--output"
)


OPTIONS = {
    "[recipe]": "a .toml, .yaml or .json file with Recipe's fields; with --to, a saved plan; or -: JSON "
    "requests on stdin, one a line, each answered",
    "recipe": FROM,
    "another tool": TO,
    "--force": "with --to and -o: replace the tool's file where it is there",
    "target cluster": {**options.CLUSTER, **options.CURRENCY},
    "how to plan": {"settings": options.add_settings},
    "--memory-of MODULE:FACTORY": "cap the micro-batch by what fits --memory-gib, worked out with fake "
    "tensors from your own model and optimizer: a function that returns an isobatch.validate.Workload",
    "--show-config": "print each value that would be planned with, and where it came from, and plan nothing",
    "--json": "print the plan as JSON",
    "-o/--output FILE": "also save the plan, as JSON (-: to stdout); with --to, the tool's file in its place",
}


def run(args: argparse.Namespace) -> int:
    """Prints the plan; 1 where it is infeasible."""
    if args.recipe == "-":
        project.drop(args)  # an answer depends on its request and the typed options alone
        for option in ("source", "to", "memory_of", "output"):
            if getattr(args, option) is not None:
                does = "reads requests from stdin, one a line, and answers each"
                raise InputError(f"- {does}: give no other files")
        return serve(fields(args), options.cluster(args, optional=True), options.settings(args))
    tool = target(args)
    if tool is not None and args.recipe is not None and is_plan(args.recipe):
        project.drop(args)
        return _write_saved(args)
    suffix = None if tool is None else form(args)
    recipe_source, where = source(args), options.cluster(args)
    if args.show_config:
        from isobatch.cli.show_config import show as show_config

        show_config(args, recipe_source, where)
        return 0
    tuned, how = recipe_source.recipe, recipe_source.settings(options.settings(args))
    if args.memory_of is not None:
        how["max_micro_batch"] = _fitting(args.memory_of, tuned, where, how)
    planned = plan(tuned, where, **how)
    export = None
    if tool is not None and planned.status != "infeasible":
        own, elsewhere = recipe_source.own(tool), recipe_source.elsewhere(planned, tool)
        how_to_start = job(args, script=recipe_source.script, own=own, elsewhere=elsewhere)
        export = planned.to(tool, form=suffix, job=how_to_start)
    profiles = how.get("profile", ())
    sheet = options.sheet_memory(profiles, where.memory_gib, where.gpu)
    notes = (*_by_noise(planned, how), *recipe_source.recomputing(profiles), *sheet)
    return publish(planned, export, args, tool or recipe_source.tool, *notes)


def _by_noise(planned: Plan, how: Mapping[str, Any]) -> Iterator[str]:
    """Names the noise scale behind the batch of policy goodput, and the batches at the ends of its range."""
    if planned.settings.policy != "goodput" or planned.status == "infeasible":
        return
    is_single, gpus = len(how["profile"]) == 1, (None, planned.cluster.gpu)
    profiles = [profile for profile in how["profile"] if is_single or profile.gpu in gpus]
    known = profiles[0].noise_scale if planned.recipe.noise_scale is None and profiles else None
    if known is None or not known.error or profiles[0].noise_by_progress:
        yield "the batch is goodput's for a noise scale whose range is not known"
        return
    ends = [max(known.value - known.error, 1.0), known.value + known.error]
    batches = [
        plan(msgspec.structs.replace(planned.recipe, noise_scale=end), planned.cluster, **how).effective_batch
        for end in ends
    ]
    if None not in batches:
        yield (
            f"the batch is goodput's for {ranged(known.value, known.error)} as the noise scale; at the ends "
            f"of that range it would be {exact(batches[0])} and {exact(batches[1])}"
        )


def _write_saved(args: argparse.Namespace) -> int:
    """Writes a saved plan as another tool's file: alone on stdout, or into --output."""
    if args.source or args.set or options.settings(args) or options.cluster(args, optional=True) is not None:
        why = "is a saved plan, which has its recipe and cluster: isobatch replan moves its run to another"
        raise InputError(why, file=args.recipe)
    export = Plan.load(args.recipe).require().to(args.to, form=form(args), job=job(args))
    save_export(export, args.output, force=args.force)
    return 0


def _fitting(factory: str, tuned: Recipe, where: Cluster, how: dict[str, Any]) -> int:
    """Computes the largest micro-batch for the memory; the computation goes to stderr."""
    from isobatch.validate.memory import memory_of

    if "max_micro_batch" in how:
        raise InputError("--memory-of and --max-micro-batch are both caps: give one of the two")
    if where.memory_gib is None:
        raise missing("--memory-gib", "the memory of one GPU, for --memory-of")
    memory = memory_of(
        factory, memory_gib=where.memory_gib, precision=tuned.precision or "fp32", clip_norm=tuned.clip_norm
    )
    say(memory.explain())
    if not memory.micro_batch:
        raise InputError(f"not even one sample fits {where.memory_gib:g} GiB", field="--memory-of")
    return memory.micro_batch


# ---- requests on stdin: one JSON request a line, one JSON answer a line, so that any language can keep one
# process open ----

OWN = ("id", "recipe", "cluster", "gpus", "settings", "explain", "allocate")
"""Keys of a request; beside them any setting of `isobatch.plan`."""


MAX_REQUEST_BYTES = 1 << 26
"""Bytes of a line."""
_JSONS = {"None": "null", "True": "true", "False": "false"}
_PYTHONS = re.compile(r"\bgot (None|True|False)\b")
"""Python's spelling of JSON's values, which errors quote; a request in JSON has its own."""


def serve(fields: Mapping[str, Any], where: Any, how: Mapping[str, Any]) -> int:
    """Answers each line of stdin on stdout before the next is read; a wrong line is answered with its error.

    `fields`, `where` and `how` are for requests without their own. Returns 0, 2 where a request could not be
    used, or 3 where isobatch failed at one.
    """
    refused = faults = count_read = 0
    requests = stdin()
    while line := requests.readline(MAX_REQUEST_BYTES):
        if not line.strip():
            continue
        count_read += 1
        request: dict[str, Any] = {}
        try:
            if len(line) == MAX_REQUEST_BYTES:
                while line and not line.endswith(b"\n"):
                    line = requests.readline(1 << 20)
                raise InputError(f"the line has {MAX_REQUEST_BYTES:,} bytes or more")
            request = _request(line)
            answer = _answer(request, fields, where, how)
        except InputError as error:
            refused += 1
            text = _PYTHONS.sub(lambda match: f"got {_JSONS[match[1]]}", str(error))
            answer = {"id": request.get("id"), "error": text, "fields": list(error.fields)}
        except Exception as error:  # one fault must not end the others
            faults += 1
            text = printable(f"a fault of isobatch itself ({type(error).__name__}: {error})", 300)
            answer = {"id": request.get("id"), "error": text, "fields": []}
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    if refused or faults:
        say(f"{count(refused + faults)} of {counted(count_read, 'request')} could not be answered")
    return 3 if faults else 2 if refused else 0


def _request(line: bytes) -> dict[str, Any]:
    try:
        request = msgspec.json.decode(line)
        if isinstance(request, dict):
            from isobatch.files.limits import refuse_duplicate_keys

            refuse_duplicate_keys(line, request)
    except InputError:
        raise
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        why = printable(str(error).removeprefix("JSON is malformed: "), 200)
        raise InputError(f"the line is not JSON: {why}") from None
    if not isinstance(request, dict):
        typed = printable(msgspec.json.encode(request).decode(), 80)
        raise InputError(f"the line must be an object with a recipe and a cluster, got {typed}")
    return request


def _answer(
    request: Mapping[str, Any], fields: Mapping[str, Any], where: Any, how: Mapping[str, Any]
) -> dict[str, Any]:
    for name in request:
        if name not in (*OWN, *Settings._fields):
            raise unknown("key", name, (*OWN, *Settings._fields), field=name)
    if "allocate" in request:
        return {"id": request.get("id"), "allocation": _division(request, how)}
    tuned, cluster, settings = _each(
        lambda: _recipe(request, fields),
        lambda: _cluster(request, where, is_timed="profile" in how),
        lambda: _settings(request, how),
    )
    planned = plan(tuned, cluster, **settings)
    answer = {
        "id": request.get("id"),
        "status": planned.status,
        "plan": msgspec.Raw(msgspec.json.format(planned.to_json().encode(), indent=-1)),
    }
    return answer | ({"explain": planned.explain()} if request.get("explain") else {})


def _division(request: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """Divides the pool of a request over its jobs."""
    from isobatch.allocation.allocate import allocate

    question, known = _table(request, "allocate"), ("jobs", "nodes", "held", "objective", "p")
    for name in question:
        if name not in known:
            raise unknown("key", name, known, field=name)
    raise_all(missing(name, "allocate needs it") for name in known[:2] if name not in question)
    for name in ("jobs", "nodes", "held"):
        rows = question.get(name, [])
        is_table = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        is_placement = isinstance(rows, dict) and name == "held"
        if not (is_table or is_placement or (name == "nodes" and type(rows) is int)):
            raise must_be("a list of objects, one a row", rows, field=name)
    settings = _settings(request, how)
    options = {name: question[name] for name in known[2:] if question.get(name) is not None}
    pool = question["nodes"]
    if type(pool) is int and pool > 0:
        pool = _nodes(pool, is_timed=True, name="nodes")
    return allocate(question["jobs"], pool, **options, **settings).to_json()


def _each(*parts: Callable[[], Any]) -> list[Any]:
    """Evaluates all parts; where several cannot be used, one error names all faults."""
    values: list[Any] = []
    faults: list[InputError] = []
    for part in parts:
        try:
            values.append(part())
        except InputError as error:
            faults += error.causes or [error]
    raise_all(faults)
    return values


def _recipe(request: Mapping[str, Any], fields: Mapping[str, Any]) -> Any:
    values = {**fields, **_table(request, "recipe")}
    if not values:
        raise missing("recipe", 'give its fields, such as "recipe": {"effective_batch": 256, "lr": 0.1}')
    if isinstance(values.get("betas"), list):
        values["betas"] = tuple(values["betas"])
    # null is unknown, as in a fleet's cells.
    return Recipe.of({name: value for name, value in values.items() if value is not None})


def _settings(request: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    inner = _table(request, "settings")
    own = {name: request[name] for name in Settings._fields if name in request}
    for name in inner:
        if name not in Settings._fields:
            raise unknown("setting", name, Settings._fields, field=name)
    if twice := [name for name in own if name in inner and own[name] != inner[name]]:
        raise InputError(
            f"{twice[0]} is in the request and in its settings: give one or the other", field=twice[0]
        )
    values = {**how, **inner, **own}
    checked_settings({name: value for name, value in values.items() if name != "profile"})
    return values


def _cluster(request: Mapping[str, Any], where: Any, *, is_timed: bool) -> Any:
    if "gpus" in request:
        if "cluster" in request:
            raise InputError("gpus goes without cluster: give one or the other", field="gpus")
        gpus = request["gpus"]
        if type(gpus) is not int or not 1 <= gpus <= 2**31:
            raise must_be("a whole number from 1 to 2,147,483,648", gpus, field="gpus")
        return _nodes(gpus, is_timed=is_timed)
    if "cluster" in request:
        return Cluster(**_table(request, "cluster"))
    if where is None:
        raise missing("cluster", 'give "gpus": N, or "cluster": {"nodes": N, "gpus_per_node": M}')
    return where


def _nodes(gpus: int, *, is_timed: bool, name: str = "gpus") -> Cluster:
    nodes, per_node = options.nodes_of(gpus, is_timed=is_timed, name=name)
    return Cluster(nodes=nodes, gpus_per_node=per_node)


def _table(request: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Reads a part of a request with names of its own."""
    part = request.get(name, {})
    if not isinstance(part, dict):
        raise must_be("an object", part, field=name)
    return part
