"""`isobatch exec`: plan for the processes that there are, and become the training command."""

import argparse
import os
import signal
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from isobatch.cli import options, project
from isobatch.cli.braces import brace_notes, fill_braces, names_in, refuse_other_split, says_split
from isobatch.cli.terminal import say
from isobatch.errors import InputError, missing
from isobatch.files.formats import read_fields
from isobatch.files.whole import write_whole
from isobatch.launch.processes import count_gpus, read_counts
from isobatch.planning.handed import environment_with
from isobatch.planning.plan import Plan, plan
from isobatch.recipes.cluster import NODE_GPUS, Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.system import require_posix

DESCRIPTION = (
    "Plans FILE for the number of processes that there are now, puts the plan into the command's braces, and "
    "becomes the command. ISOBATCH_PLAN is the path of the plan there. Works behind torchrun --no-python, "
    "srun and mpirun, around a launcher, and as the entry point of a container."
)
EXAMPLES = (
    "torchrun --nnodes 1:4 --no-python isobatch exec job.toml -- python train.py --bs {micro_batch} --accum "
    "{accumulation} --lr {lr}",
    "srun isobatch exec job.toml --state run/state.json -- python train.py --bs {micro_batch} --steps "
    "{total_steps}",
    "isobatch exec job.toml --gpus 4 -- torchrun --nproc-per-node {gpus} train.py --bs {micro_batch} --accum "
    "{accumulation}",
)
EVERYDAY = f"--gpus --state --output {options.EVERYDAY_HARDWARE} {options.EVERYDAY_SETTINGS}"

OPTIONS = {
    "recipe": ("a recipe, a saved plan, or another tool's file", {"metavar": "FILE"}),
    "command": ("the training command, after --", {"nargs": "*", "metavar": "COMMAND"}),
    "--gpus N": ("number of GPUs, where no launcher says it", {"type": options.gpu_count}),
    "--gpus-per-process N": "GPUs that each process drives, as with one Slurm task per node (default: 1)",
    "--state PATH": "the run's checkpoint on a disk that all ranks share, with the step to go on from: a "
    "JSON file with step or global_step, such as ElasticRun's state, or the output folder of transformers' "
    "Trainer. Where there is none yet, the run starts",
    "-o/--output FILE": "where to save the plan: a file of this run alone, such as on a disk that all hosts "
    "share (default: a folder for temporary files)",
    "--tool NAME": "whose FILE is, where its content leaves that open",
    "--set FIELD=VALUE": ("a field of the recipe; overrides FILE", {"action": "append", "default": []}),
    "target cluster": {
        "--gpus-per-node N": f"GPUs per node (default: {NODE_GPUS})",
        **options.HARDWARE,
    },
    "how to plan": {"settings": options.add_settings},
}
_SECONDS_TO_READ = 3.0
"""Time that other ranks leave rank 0 to say why nothing starts, before their end ends it."""


def run(args: argparse.Namespace) -> int:
    """Becomes the command; returns only where it does not start."""
    require_posix("becoming a command")
    if not args.command or "--" not in args.words:
        raise missing("COMMAND", "write it behind --: isobatch exec FILE -- python train.py --lr {lr}")
    counts = read_counts(os.environ, command := args.command)
    gpus = count_gpus(counts, args.gpus, args.gpus_per_process)
    rank = next((count.rank for count in counts if count.rank is not None), 0)
    file = args.recipe
    planned = _planned(args, gpus)
    if args.state is not None:
        from isobatch.cli.resuming import go_on

        planned = go_on(planned, Path(args.state), rank)
    if rank:
        args.project = {}  # rank 0 names its defaults
    if planned.status == "infeasible":
        return _refused(planned, rank, is_even=bool(names_in(command)))
    path = _save(planned, args.output)
    command, notes = _with_values(command, planned, path, file)
    if defaults := project.note(args):
        notes.append(defaults)
    if rank == 0:
        say(*(f"isobatch exec: {note}" for note in notes))
    args.project = {}  # said
    return _become(command, environment_with(planned, path, os.environ))


def _with_values(command: list[str], planned: Plan, path: str, file: str) -> tuple[list[str], list[str]]:
    """Puts a plan into a command: into its braces, or a known tool's flags and file; returns notes too.

    Copies of a tool's file go beside the plan's `path`.
    """
    notes, filled = [*brace_notes(command, planned)], fill_braces(command, planned)
    if says_split(command):
        refuse_other_split(command, planned)
        return filled, [*notes, *_not_in_flags(planned)]
    from isobatch.cli.tool_command import set_values

    mark = zlib.crc32("\0".join((str(Path.cwd()), *filled)).encode(errors="surrogateescape"))
    folder = Path(f"{path}.files", f"{mark:08x}")  # runs of one plan have files of their own
    words, also = set_values(filled, planned.require(), folder)
    if words == filled:  # no tool is known by its flags or file
        refuse_other_split(command, planned)
        if Path(file).suffix in (".sh", ".bash") and file in map(os.path.normpath, command):
            raise InputError(
                "is FILE and the command: it would start as it was tuned. Give it braces that it passes on, "
                "or the line inside it as COMMAND",
                file=file,
            )
    return words, [*notes, *also]


def _planned(args: argparse.Namespace, gpus: int) -> Plan:
    """Plans FILE for a number of GPUs."""
    is_table = Path(args.recipe).suffix in (".toml", ".json", ".yaml", ".yml")
    fields = read_fields(args.recipe) if is_table else {}
    is_saved = str(fields.get("schema")).startswith("isobatch.plan/")
    if is_saved:
        project.drop(args)  # the plan has its kind of GPU
    cluster, how = options.in_nodes(gpus, args), options.settings(args)
    if is_saved:
        return _planned_again(Plan.load(args.recipe), cluster, how, args)
    own = fields.keys() & {*Recipe.__struct_fields__, "batch_per_gpu"}
    is_recipe = args.tool is None and ("effective_batch" in own or 2 * len(own) > len(fields))
    if is_recipe and not args.set and getattr(args, "tuned_gpus", None) is None:
        recipe = Recipe.load(args.recipe)
    else:
        from isobatch.cli import source

        args.source = None if is_recipe else [args.recipe]
        args.recipe = args.recipe if is_recipe else None
        read = source.source(args)
        recipe, how = read.recipe, read.settings(how)
    planned: Plan = plan(recipe, cluster, **how)
    return planned


def _planned_again(saved: Plan, cluster: Cluster, how: dict[str, Any], args: argparse.Namespace) -> Plan:
    """Plans the recipe of a saved plan anew, by its settings and on its kind of GPU."""
    typed = {name: value for name, value in msgspec.structs.asdict(cluster).items() if value is not None}
    where = msgspec.structs.replace(saved.cluster, **typed)
    if args.set:
        raise InputError("is a saved plan, which has its recipe: --set goes with a recipe", file=args.recipe)
    if saved.moves and (where != saved.cluster or how):
        raise InputError("is the plan of a run that moved: go on by its recipe and --state", file=args.recipe)
    return saved if saved.moves else plan(saved.recipe, where, **{**saved.settings._asdict(), **how})


def _refused(planned: Plan, rank: int, *, is_even: bool) -> int:
    """Prints the reasons on rank 0, and the ways out, weighted splits but where all ranks are even."""
    if rank:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))  # of torchrun, once rank 0 has ended
        time.sleep(_SECONDS_TO_READ)
        return 1
    ways = [option for option in planned.options if not (is_even and option.layout.irregular)]
    say(f"isobatch exec: {planned.explanation(options=ways).text()}")
    return 1


def _not_in_flags(planned: Plan) -> Iterator[str]:
    """Yields the parts of a plan without a number for a flag."""
    if planned.moves and any(
        move.before.effective_batch != planned.effective_batch for move in planned.moves
    ):
        yield "the run moved to another batch: its learning rate is PlanLR's, and no curve of flags alone"
    if planned.recipe.ramp is not None:
        yield "flags have no batch ramp: the command trains with the full batch from its start"


def _save(planned: Plan, output: str | None) -> str:
    """Saves the plan whole, and returns its absolute path.

    Without `output` the file is named by its content, in a folder for temporary files that only this user can
    write: ranks and runs of the same plan share it, and no other process overwrites it.
    """
    data = (planned.to_json() + "\n").encode()
    if output == "-":
        raise InputError("stdout is the command's: name a file", field="--output")
    if output is not None:
        planned.save(output)
        return os.path.abspath(output)  # noqa: PTH100 - a link stays one
    name = f"plan-{zlib.crc32(data):08x}{zlib.adler32(data):08x}.json"
    places = filter(None, (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", "."))
    reasons = []
    for place in places:
        folder = Path(place, f"isobatch-{os.getuid()}").absolute()
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
                raise InputError("is not this user's alone", file=str(folder))
            path = folder / name
            if not path.exists() or path.read_bytes() != data:
                write_whole(path, data)
            return str(path)
        except (OSError, InputError) as error:
            reasons.append(str(error))
    raise InputError(f"the plan cannot be saved ({'; '.join(reasons)}): pass -o FILE")


def _become(command: list[str], environment: dict[str, str]) -> int:
    """Becomes the command; 127 where there is no such program, 126 where it cannot be started, as a shell."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and so would the command
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        is_here = Path(command[0]).exists()
        todo = "; its interpreter is missing" if is_here and "/" in command[0] else ""
        todo = f": write ./{command[0]} or python {command[0]}" if is_here and not todo else todo
        say(f"isobatch exec: {command[0]}: command not found{todo}", error=True)
        return 127
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", error)
        say(f"isobatch exec: {command[0]}: cannot be started: {why}", error=True)
        return 126
