"""Each printed command and way out works when typed in the same folder with the same flags."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import isobatch as ib
from isobatch.cli import COMMANDS, main, parser_of

ROOT = Path(__file__).parents[2]
PLACEHOLDERS = {"N": "8", "M": "8", "VALUE": "8", "STEP": "10", "LR": "1e-3", "TOOL": "torchrun"}
PLACEHOLDERS |= {"NAME": "cosine"}
"""Values for words in capitals."""
FIELDS = {
    "dataset_size": "50000",
    "seq_len": "512",
    "gpus": "4",
    "effective_batch": "256",
    "noise_scale": "5000",
}
PLAN = "plan --set effective_batch=256 --set lr=0.1 --set duration=100st"
ARGUMENTS = "--from examples/training_args.json --set gpus=4 --set dataset_size=52002"
TYPED = [
    # the menu of a plan
    "plan examples/job.toml --gpus 7",
    f"plan {ARGUMENTS} --gpus 7",
    f"plan {ARGUMENTS} --gpus 7 --to lightning",
    f"plan {ARGUMENTS} --gpus 7 --to torchrun",
    "plan --set effective_batch=48 --set lr=1e-3 --set gpus=2 --gpus 32",
    "plan --set effective_batch=48 --set lr=1e-3 --set duration=100st --set gpus=2 --gpus 32 --to lightning",
    f"{PLAN} --gpus 8 --max-batch 100",
    f"{PLAN} --gpus 504 --model-parallel 32",
    f"{PLAN} --nodes 3 --gpus-per-node 4",
    f"{PLAN} --gpus 8 --min-micro-batch 64",
    f"{PLAN} --gpus 512",
    f"{PLAN} --gpus 6 --split smaller --min-micro-batch 3 --max-micro-batch 3",
    f"{PLAN} --gpus 8 --accumulation-multiple 5",
    f"{PLAN} --gpus 8 --micro-batch-multiple 7",
    f"{PLAN} --gpus 8 --batch-multiple 3",
    f"{PLAN} --gpus 8 --policy 100",
    "plan --set effective_batch=256 --set lr=0.1 --set dataset_size=100 --set duration=3ep --gpus 8",
    f"{PLAN} --gpus 16 --profile profile.json --deadline-hours 0.0001",
    f"{PLAN} --gpus 16 --profile profile.json --price-per-gpu-hour 2 --budget 0.00001",
    f"{PLAN} --gpus 12 --profile profile.json",
    "plan --set effective_batch=100 --set lr=0.1 --gpus 8 --profile profile.json --inter-gb-s 50",
    "plan --set effective_batch=144 --set lr=0.1 --gpus 5 --profile profile.json --inter-gb-s 50",
    "plan --set effective_batch=48 --set lr=0.1 --gpus 10 --gpus-per-node 10",
    f"{PLAN} --gpus 4 --gpus-per-node 4 --max-batch 100 --profile profile.json --deadline-hours 0.01",
    f"{PLAN} --set ramp='128 64 900' --gpus 24",
    # what a plan lacks
    "plan --from examples/training_args.json --gpus 8",
    "plan --from examples/configs/lightning.yaml --gpus 8",
    "plan --from examples/configs/axolotl.yaml --gpus 8",
    "plan --from unknown.json",
    "plan examples/job.toml",
    "plan --set effective_batch=256 --set lr=0.1 --gpu 64",
    "plan examples/job.toml --gpus 8,7",
    "plan examples/job.toml --gpus 8 --to hyperpod",
    "plan --from examples/job.toml --gpus 8",
    "plan --from plan.json --gpus 8",
    "plan examples/job.toml --gpu-s 8",
    # counts
    "counts examples/job.toml --gpus 1..9",
    f"counts {ARGUMENTS} --gpus 1..9 --json",
    "counts examples/job.toml --gpus 3,8 --best-batch-up-to 1024 --micro-batches 8,12",
    "counts --set effective_batch=256 --set lr=0.1 --gpus 12,16 --gpus-per-node 4 --to hyperpod",
    "counts --set effective_batch=256 --set lr=0.1 --gpus 12,16 --gpus-per-node 4 -o page.svg",
    "counts examples/job.toml --gpus 8,16 --profile profile.json",
    "counts --set effective_batch=256 --set lr=0.1 --gpus 8,16 --profile profile.json",
    # fleets and pools
    "fleet examples/jobs.csv --gpus 7 -o plans.csv",
    "fleet examples/jobs.csv --gpus 8,12 --profile profile.json -o plans.csv",
    "fleet examples/jobs.csv --gpus 8,16 --profile profile.json -o plans.csv",
    "fleet examples/job.toml --gpus 8",
    "explain plans.csv --job resnet50-goyal-256",
    "explain examples/job.toml",
    "allocate examples/jobs.csv 64 -o rows.csv",
    "report plan.json --to slurm -o jobs/",
    # a run under way, a schedule, a configuration
    "replan plan.json --at-step 10 --gpus 7",
    "replan plan.json --at-step 10 --gpus 7 --to lightning",
    "replan plan.json --gpus 7",
    "replan plan.json --at-step 10 --gpus 12 --effective-batch 100",
    "schedule examples/job.toml",
    "doctor examples/training_args.json --set gpus=4 --gpus 7",
    "doctor examples/training_args.json --set gpus=4 --set dataset_size=5 --nodes 2",
    "doctor examples/training_args.json --gpus 32",
    "doctor examples/configs/megatron.sh --gpus 12",
    "doctor ramp.sh --gpus 24",
    "doctor ramp_of_steps.sh --gpus 8",
    "doctor ds_auto.json --gpus 8",
    "doctor grpo.json --gpus 7 --set gpus=7",
    "doctor plan.json --gpus 8",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes a folder with the examples, a plan, a profile, plans of a fleet, and more files to examine."""
    top = tmp_path_factory.mktemp("typed")
    shutil.copytree(ROOT / "examples", top / "examples", ignore=shutil.ignore_patterns("*.py"))
    recipe = ib.Recipe(effective_batch=256, lr=0.1, duration="1000st")
    ib.plan(recipe, 8).save(top / "plan.json")
    ib.Profile.estimate(parameters=10**9, flops_per_sample=6e12, gpu_tflops=989).save(top / "profile.json")
    unknown = {"batch_size": 16, "gradient_accumulation_steps": 4, "learning_rate": 3e-3}
    (top / "unknown.json").write_text(json.dumps(unknown))
    ramp = "x --micro-batch-size 2 --lr 1e-4 --train-samples 90000 --rampup-batch-size 32 32 900 "
    ramp += "--global-batch-size 992"
    (top / "ramp.sh").write_text(ramp)
    (top / "ramp_of_steps.sh").write_text(ramp.replace("samples 90000", "iters 900").replace("992", "960"))
    (top / "ds_auto.json").write_text('{"train_batch_size": "auto", "zero_optimization": {}}')
    grpo = {"per_device_train_batch_size": 4, "num_generations": 8, "learning_rate": 1e-6, "max_steps": 90}
    (top / "grpo.json").write_text(json.dumps(grpo | {"steps_per_generation": 1}))
    if pytest.importorskip("pyarrow"):
        main(["fleet", str(ROOT / "examples/jobs.csv"), "--gpus", "7", "-o", str(top / "plans.csv")])
    return top


class Reply(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def typed_in(folder, monkeypatch, capsys):
    """Types a command in the folder."""
    monkeypatch.chdir(folder)

    def run(words):
        code = main(words)
        return Reply(code, *capsys.readouterr())

    return run


def command_after(text, command):
    """Returns the words of a command in a sentence: its options, their values, and existing files."""
    options, words = parser_of(command)._option_string_actions, []
    rest = text
    while word := re.match(r"\s+('[^']*'|[^\s,;:)`']+)", rest):
        name = word[1].partition("=")[0]
        plain = word[1].strip("'").rstrip(".")
        needs_value = words and words[-1] in options and options[words[-1]].nargs != 0
        if not (needs_value or name in options or Path(plain).exists() or plain in PLACEHOLDERS):
            break
        words.append(plain)
        rest = rest[word.end() :]
    return [filled(word) for word in words]


def filled(word):
    """A word of a command, its placeholder replaced."""
    field, equals, value = word.partition("=")
    if equals and value in (*PLACEHOLDERS, "..."):
        return f"{field}={FIELDS.get(field) or PLACEHOLDERS.get(value, 'cosine')}"
    return PLACEHOLDERS.get(word, word)


def printed_commands(text):
    """The commands with arguments in an answer."""
    for name, rest in re.findall(r"\bisobatch (\w+)((?: [^\n]*)?)", text):
        if " -- COMMAND" in rest:
            continue  # the command of the reader's own
        if name in COMMANDS and (words := command_after(rest, name)):
            yield [name, *words]


def applied(typed, flags):
    """Returns a typed command with the flags of a way out; a flag replaces its like, `without` drops it."""
    options, words = parser_of(typed[0])._option_string_actions, [*typed]

    def drop(name):
        while name in words:
            at = words.index(name)
            del words[at : at + (1 if options[name].nargs == 0 else 2)]

    parts = shlex.split(flags)
    while parts:
        part = parts.pop(0)
        if part == "without":
            drop(parts.pop(0))
            continue
        for name in ("--gpus", "--nodes") if part in ("--gpus", "--nodes") else (part,):
            if name != "--set":
                drop(name)
        words.append(part)
        if options[part].nargs != 0:
            words.append(filled(parts.pop(0)))
    return words


def ways_out(typed, text):
    """Each way out in an answer as (the command with it, whether it must be feasible)."""
    menu = text.partition("What would work:\n")[2]
    for line in menu.splitlines():
        if way := re.fullmatch(r"  \S.*?   +((?:without )?--\S.*)", line):
            yield applied(typed, way[1]), True
    request = re.findall(r"^  (--set \S+=\S+)", text, re.MULTILINE)
    if "no tool is recognized" in text:  # a recipe in the place of the file
        typed = [word for at, word in enumerate(typed) if "--from" not in (word, typed[at - 1])]
    if request and typed[0] in ("plan", "counts"):
        words = applied(typed, " ".join(request))
        yield (words if "--gpus" in words else [*words, "--gpus", "8"]), False
    for option in re.findall(r"did you mean '(--[\w-]+)'\?", text):
        wrong = re.search(r"unknown option '([^']+)'", text)[1]
        yield [option if word == wrong else word for word in typed], True
    for flags in re.findall(r"did you mean (--gpus \d+)\?|pass (--gpus N)|: add (--gpus-per-node \d+)", text):
        words = applied(typed, "".join(flags))
        yield [word for at, word in enumerate(words) if "--gpu" not in (word, words[at - 1])], True


@pytest.mark.parametrize("typed", TYPED)
def test_printed_commands_can_be_typed(typed, typed_in):
    words = shlex.split(typed)
    answer = typed_in(words)
    text = answer.out + answer.err
    assert answer.code != 3
    for command in printed_commands(text):
        reply = typed_in(command)
        assert reply.code in (0, 1), (command, reply.err)
        is_plan = command[0] != "doctor"  # which is to be typed after the change
        if is_plan and re.search(r"(says|lists) (what would|the micro-batches)", text):
            assert "What would work:" in reply.out or reply.code == 0, (command, reply.out)
    for command, is_feasible in ways_out(words, text):
        reply = typed_in(command)
        assert reply.code == 0 if is_feasible else reply.code in (0, 1), (command, reply.out, reply.err)


def test_the_net_has_no_hole(typed_in):
    """The test above finds the commands and ways out of known answers."""
    words = shlex.split(TYPED[0])
    assert len([*ways_out(words, typed_in(words).out)]) == 5
    counts = typed_in(shlex.split("counts examples/job.toml --gpus 1..9"))
    assert [*printed_commands(counts.err)] == [["plan", "examples/job.toml", "--gpus", "3"]]
    missing = ["plan", "--from", "examples/training_args.json", "--gpus", "8"]
    ((command, _),) = ways_out(missing, typed_in(missing).err)
    assert command[-4:] == ["--set", "gpus=4", "--set", "dataset_size=50000"]


def test_the_readmes_commands_make_their_point(typed_in):
    """As typed there: the batch that doctor warns of, a pool whose jobs run."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = {line.split()[1]: line for line in re.findall(r"`(isobatch [^`…]*)`", readme)}
    doctor = typed_in(shlex.split(commands["doctor"])[1:])
    assert doctor.code == 1 and "1,024 samples, 8 × the 128 that it was tuned with" in doctor.out
    allocate = typed_in(shlex.split(commands["allocate"])[1:])
    assert allocate.code == 0 and allocate.err.startswith("3 jobs on 64 GPUs, 0 idle")
    without = typed_in(["allocate", "examples/jobs.csv", "64"])
    assert "26 jobs without a profile cannot run: give --profile FILE" in without.err
