"""Commands are read, and started at another split."""

import json
import os
import shlex
import sys

import pytest
import yaml

from isobatch.equivalence.commands.command import cannot_split, read_command, start_line
from isobatch.equivalence.commands.forks import ForkedStart, read_start
from isobatch.equivalence.split import DEFAULT, Split
from isobatch.errors import InputError
from isobatch.launch import command_line

SPLIT = Split(2, 3, 4)
PLACE = "--nnodes 1 --nproc-per-node 2 --local-addr 127.0.0.1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0"
HF = "--per_device_train_batch_size {micro} --gradient_accumulation_steps {steps}"
TYPED, WRITTEN = HF.format(micro=8, steps=2), HF.format(micro=4, steps=3)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copies").mkdir()


def started(line, split=SPLIT, tool=None):
    """The command as a shell shows it, its own split, and the environment of this start alone."""
    command = read_command(shlex.split(line), tool=tool)
    words, environment = start_line(command, split, command_line.Path("copies"))
    assert command_line.CPU.items() <= environment.items()
    own = {name: value for name, value in environment.items() if name not in command_line.CPU}
    return shlex.join(words), command.own, own


@pytest.mark.parametrize(
    ("line", "own", "start"),
    [
        ("torchrun --nproc-per-node 4 t.py", (4, 2, 8), "torchrun {} t.py"),
        (
            "torchrun --nnodes=2 --nproc_per_node=4 --node-rank 1 --master_port 1 --rdzv_id x --tee 3 -m p.t",
            (8, 2, 8),
            "torchrun {} --tee 3 -m p.t",
        ),
        (
            "python3 -m torch.distributed.run --standalone --nproc-per-node gpu t.py",
            (2, 2, 8),
            "python3 -m torch.distributed.run {} t.py",
        ),
        (
            "python -u -X dev t.py",
            (1, 2, 8),
            "python -m torch.distributed.run {} --no-python python -u -X dev t.py",
        ),
        (
            "uv run --with x python -m p.t",
            (1, 2, 8),
            "uv run --with x python -m torch.distributed.run {} --no-python python -m p.t",
        ),
        (
            "accelerate launch --multi_gpu --num_processes 4 --mixed_precision bf16 t.py",
            (4, 2, 8),
            "torchrun {} t.py",
        ),
        ("/env/bin/accelerate launch --num_processes=2 -m p.t", (2, 2, 8), "/env/bin/torchrun {} -m p.t"),
        (
            "python -m accelerate.commands.launch --num_processes 2 t.py",
            (2, 2, 8),
            "python -m torch.distributed.run {} t.py",
        ),
        (
            "deepspeed --num_nodes 2 --num_gpus 4 --master_port 1 --module p.t",
            (8, 2, 8),
            "torchrun {} -m p.t",
        ),
        ("deepspeed --include localhost:0,1,2 t.py", (3, 2, 8), "torchrun {} t.py"),
        ("trl dpo --beta 0.1", (2, 2, 8), "torchrun {} -m trl.scripts.dpo --beta 0.1"),
        ("swift sft --model m", (2, 2, 8), "torchrun {} -m swift.cli.sft --model m"),
    ],
)
def test_any_launcher_starts_the_split_by_torchrun(line, own, start):
    assert started(f"{line} {TYPED}") == (f"{start.format(PLACE)} {WRITTEN}", Split(*own), {})


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("python -u t.py", "python -u t.py"),
        ("nohup python t.py", "nohup python t.py"),
        ("torchrun --nproc-per-node 4 t.py", f"torchrun {PLACE.replace('node 2', 'node 1')} t.py"),
    ],
)
def test_one_rank_starts_as_the_script_was_started(line, start):
    assert started(f"{line} {TYPED}", Split(1, 3, 4))[0] == f"{start} {WRITTEN}"


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (
            "--per-device-train-batch-size=8",
            "--per-device-train-batch-size=4 --gradient_accumulation_steps 3",
        ),
        (
            "--num_train_epochs 1 --learning_rate 1e-5",
            "--num_train_epochs 1 --learning_rate 1e-5 --per_device_train_batch_size 4 "
            "--gradient_accumulation_steps 3",
        ),
        (f"{TYPED} --bf16 --tf32 True --fp16 False", f"{WRITTEN} --tf32 False --fp16 False"),
        (f"--per_device_train_batch_size 1 {TYPED}", f"--per_device_train_batch_size 4 {WRITTEN}"),
    ],
)
def test_flags_of_the_trainer_are_replaced_in_every_spelling_and_added_where_they_are_left_out(
    words, written
):
    assert started(f"torchrun t.py {words}")[0] == f"torchrun {PLACE} t.py {written}"


PLAIN, LONG = "#!{0}\n", "#!/bin/sh\n'''exec' \"{0}\" \"$0\" \"$@\"\n' '''\n"
"""The first lines of an entry point, by pip; a shell starts a Python whose path is too long for one."""


@pytest.mark.parametrize("head", [PLAIN, LONG])
def test_an_entry_point_is_started_by_its_python(head, tmp_path, monkeypatch):
    place = tmp_path / "bin" / "fit"
    place.parent.mkdir()
    place.write_text(head.format(sys.executable) + "import torch\n")
    place.chmod(0o755)
    monkeypatch.setenv("PATH", str(place.parent), prepend=os.pathsep)
    command = read_command(["fit", "run", "--epochs", "1"])
    assert command.in_code and command.own is None
    words, _ = start_line(command, Split(1, 2, 4), tmp_path)
    assert words == [sys.executable, str(place), "run", "--epochs", "1"]
    assert read_start(words) == ForkedStart(sys.executable, tuple(words[1:]), False, None)
    assert started(f"fit {TYPED}")[0] == (
        f"{sys.executable} -m torch.distributed.run {PLACE} --no-python {sys.executable} {place} {WRITTEN}"
    )


def test_braces_are_filled_everywhere_and_win():
    line = (
        "env LR=1 M={micro_batch} torchrun --nproc-per-node {gpus} --log-dir r{gpus} t.py "
        "--per_device_train_batch_size 7 data.train_batch_size={effective_batch} --a={accumulation} "
        "{rank_batch} {passes} {step}"
    )
    words, own, environment = started(line)
    assert words.replace("'", "") == (
        f"torchrun {PLACE} --log-dir r2 t.py --per_device_train_batch_size 7 data.train_batch_size=24 --a=3 "
        "12 6 {step}"
    )
    assert environment == {"LR": "1", "M": "4"}
    assert own is None


def test_a_program_that_is_handed_its_ranks_starts_them_itself():
    words, _, environment = started("NPROC={gpus} ./run.sh {micro_batch} {accumulation}")
    assert (words, environment) == ("./run.sh 4 3", {"NPROC": "2"})
    assert started("python spawn.py {gpus} {micro_batch} {accumulation}")[0] == "python spawn.py 2 4 3"
    with pytest.raises(InputError, match=r"\{gpus\} is missing"):
        started("./run.sh {micro_batch} {accumulation}")
    assert started("./run.sh {micro_batch} {accumulation}", Split(1, 3, 4))[0] == "./run.sh 4 3"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--b {microbatch} --a {accumulation}",
            r"unknown brace \{microbatch\}: did you mean \{micro_batch\}\?",
        ),
    ],
)
def test_misspelled_braces_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        read_command(shlex.split(f"torchrun --nproc-per-node {{gpus}} t.py {words}"))


@pytest.mark.parametrize("words", ["--b {micro_batch}", "--b {rank_batch}", "--a {accumulation}", "--b 2"])
def test_values_without_braces_are_read_from_the_code(words):
    command = read_command(shlex.split(f"torchrun --nproc-per-node {{gpus}} t.py {words}"))
    assert command.in_code and command.default.ranks == DEFAULT.ranks


def test_gpus_alone_leave_the_rest_to_the_tool():
    words, own, _ = started(f"torchrun --nproc-per-node {{gpus}} t.py {TYPED}")
    assert (words, own) == (f"torchrun {PLACE} t.py {WRITTEN}", Split(DEFAULT.ranks, 2, 8))


AXOLOTL = {
    "base_model": "m",
    "sample_packing": True,
    "learning_rate": "2e-5",
    "num_epochs": 1,
    "bf16": "auto",
}


def saved(name, settings):
    text = json.dumps(settings) if name.endswith("json") else yaml.safe_dump(settings, sort_keys=False)
    command_line.Path(name).write_text(text)
    return text


def copied(name):
    return yaml.safe_load(command_line.Path("copies", name).read_text())


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("axolotl train c.yml --launcher torchrun -- --nproc_per_node=4", "-m axolotl.cli.train"),
        ("axolotl train c.yml --num-processes 4", "-m axolotl.cli.train"),
        ("accelerate launch --num_processes 4 -m axolotl.cli.train c.yml", "-m axolotl.cli.train"),
    ],
)
def test_axolotl_gets_a_copy_of_its_file(line, module):
    text = saved("c.yml", {**AXOLOTL, "micro_batch_size": 8, "gradient_accumulation_steps": 2})
    words, own, _ = started(line)
    assert (words, own) == (f"torchrun {PLACE} {module} copies/c.yml", Split(4, 2, 8))
    assert copied("c.yml") == {
        **AXOLOTL,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "bf16": False,
    }
    assert command_line.Path("c.yml").read_text() == text


def test_axolotls_batch_of_a_step_gives_way_to_an_accumulation():
    saved("c.yml", {**AXOLOTL, "micro_batch_size": 8, "batch_size": 16})
    assert started("axolotl train c.yml")[1] == Split(DEFAULT.ranks, 2, 8)
    assert copied("c.yml") == {
        **AXOLOTL,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "bf16": False,
    }


def test_words_win_over_the_file_and_are_replaced_where_they_are():
    settings = {"finetuning_type": "lora", "stage": "sft", "cutoff_len": 8, "per_device_train_batch_size": 8}
    saved("c.yaml", settings)
    words, own, _ = started("llamafactory-cli train c.yaml gradient_accumulation_steps=2")
    assert own == Split(2, 2, 8)
    assert words == f"torchrun {PLACE} -m llamafactory.launcher copies/c.yaml gradient_accumulation_steps=3"
    assert copied("c.yaml") == {**settings, "per_device_train_batch_size": 4}


def test_trl_and_plain_scripts_read_a_file_too():
    settings = {"per_device_train_batch_size": 8, "num_train_epochs": 1}
    saved("c.yaml", settings)
    saved("c.json", {**settings, "gradient_accumulation_steps": 2})
    words, own, _ = started("trl sft --config=c.yaml")
    assert (words, own) == (f"torchrun {PLACE} -m trl.scripts.sft --config=copies/c.yaml", Split(2, 1, 8))
    assert started("torchrun --nproc-per-node 4 t.py c.json")[:2] == (
        f"torchrun {PLACE} t.py copies/c.json",
        Split(4, 2, 8),
    )
    numbers = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    assert copied("c.json") == {**settings, **numbers}


def test_torchtune_trains_on_the_cpu_by_its_own_launcher():
    optimizer = {"_component_": "torch.optim.AdamW", "lr": 1e-3}
    settings = {"batch_size": 8, "device": "cuda", "dtype": "bf16", "optimizer": optimizer}
    saved("c.yaml", settings)
    words, own, _ = started(
        "tune run --nproc_per_node 4 full_finetune_distributed --config c.yaml batch_size=2"
    )
    assert own == Split(4, 1, 2)
    assert words == f"tune run {PLACE} full_finetune_distributed --config copies/c.yaml batch_size=4"
    assert copied("c.yaml") == {
        **settings,
        "device": "cpu",
        "dtype": "fp32",
        "gradient_accumulation_steps": 3,
    }
    single, *_ = started("tune run full_finetune_single_device --config c.yaml", Split(1, 3, 4))
    assert single == "tune run full_finetune_single_device --config copies/c.yaml"
    with pytest.raises(InputError, match=r"tune cp llama3/8B_full config\.yaml"):
        started("tune run full_finetune_single_device --config llama3/8B_full")


def test_on_gpus_nothing_is_written_for_a_cpu():
    optimizer = {"_component_": "torch.optim.AdamW", "lr": 1e-3}
    saved("c.yaml", {"batch_size": 8, "device": "cuda", "dtype": "bf16", "optimizer": optimizer})
    command = read_command(shlex.split("tune run full_finetune_single_device --config c.yaml"))
    _, environment = start_line(command, Split(1, 3, 4), command_line.Path("copies"), "cuda")
    assert not environment.keys() & command_line.CPU.keys()
    assert (copied("c.yaml")["device"], copied("c.yaml")["dtype"]) == ("cuda", "bf16")


def test_deepspeeds_file_has_the_split_or_leaves_it_to_the_trainer():
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}
    saved("ds.json", {**sizes, "zero_optimization": {"stage": 2}})
    words, own, _ = started("deepspeed t.py --deepspeed_config ds.json")
    assert (words, own) == (f"torchrun {PLACE} t.py --deepspeed_config copies/ds.json", Split(4, 2, 8))
    expected = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
    assert copied("ds.json") == {**expected, "zero_optimization": {"stage": 2}}
    started(f"deepspeed --num_gpus 4 t.py --deepspeed ds.json {TYPED}")
    assert copied("ds.json") == {**dict.fromkeys(sizes, "auto"), "zero_optimization": {"stage": 2}}
    with pytest.raises(InputError, match=r"ds\.json: .*effective_batch is 64, but"):
        started("deepspeed --num_gpus 3 t.py --deepspeed_config ds.json")


def test_lightning_starts_its_ranks_itself():
    line = "python t.py fit --trainer.devices 4 --trainer.accumulate_grad_batches 2 --data.batch_size 8"
    words, own, _ = started(line, tool="lightning")
    assert own == Split(4, 2, 8)
    assert words == (
        "python t.py fit --trainer.devices 2 --trainer.accumulate_grad_batches 3 --data.batch_size 4 "
        "--trainer.accelerator cpu --trainer.precision 32-true"
    )


NANOGPT = """
batch_size = 12
gradient_accumulation_steps = 5 * 8
exec(open('configurator.py').read())
gradient_accumulation_steps //= ddp_world_size
"""


def test_nanogpt_counts_the_passes_of_all_ranks():
    command_line.Path("train.py").write_text(NANOGPT)
    command_line.Path("small.py").write_text("batch_size = 8\n")
    words, own, _ = started(
        "torchrun --nproc_per_node=4 train.py small.py --compile=True --gradient_accumulation_steps=8"
    )
    assert own == Split(4, 2, 8)
    assert words == (
        f"torchrun {PLACE} train.py small.py --batch_size=4 --gradient_accumulation_steps=6 --device=cpu "
        "--backend=gloo --compile=False --dtype=float32 --eval_iters=1"
    )
    assert read_command(["python", "train.py"]).own == Split(1, 40, 12)
    with pytest.raises(InputError, match="40 is not a multiple of 3 ranks"):
        read_command(["torchrun", "--nproc-per-node", "3", "train.py"])


def test_sharding_of_accelerate_is_named():
    saved("a.yaml", {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 4})
    command = read_command(shlex.split(f"accelerate launch --config_file a.yaml t.py {TYPED}"))
    assert command.own == Split(4, 2, 8)
    assert "FSDP: left out, since Accelerate shards on GPUs alone" in command.launch.notes[0]
    assert not read_command(shlex.split(f"accelerate launch --num_processes 2 t.py {TYPED}")).launch.notes


def test_accelerates_launcher_hands_deepspeeds_settings_on():
    options = "--use_deepspeed --zero_stage 2 --num_processes 4"
    own = "--num_processes 2 --num_machines 1 --main_process_port 0 --mixed_precision no t.py"
    words = shlex.join(start_line(read_command(["/env/bin/accelerate", "launch", *options.split(), "t.py"]),
                                  Split(2, 2, 8), command_line.Path("copies"))[0])  # fmt: skip
    assert words == f"/env/bin/accelerate launch {options} {own}"
    saved("d.yaml", {"distributed_type": "DEEPSPEED", "num_processes": 2})
    launch = read_command(
        shlex.split("python -m accelerate.commands.launch --config_file d.yaml t.py")
    ).launch
    assert (launch.ranks, launch.notes) == (2, ())
    assert launch.start(1, launch.program, itself=False)[:4] == [
        *("python", "-m", "accelerate.commands.launch", "--config_file")
    ]


@pytest.mark.parametrize(
    ("line", "own"),
    [
        (f"accelerate launch t.py {TYPED}", Split(2, 2, 8)),  # it leaves them to the machine
        (f"NPROC_PER_NODE=4 swift sft --model m {TYPED}", Split(4, 2, 8)),
        ("python t.py --num_train_epochs 1", Split(1, 1, 8)),  # the Trainer's defaults
    ],
)
def test_defaults_of_launchers_are_known(line, own):
    assert read_command(shlex.split(line)).own == own


@pytest.mark.parametrize(
    ("line", "default"),
    [
        (f"torchrun --nproc-per-node 2 t.py {TYPED}", "2x2x3"),
        ("torchrun --nproc-per-node {gpus} t.py {micro_batch} {accumulation}", str(DEFAULT)),
        ("python t.py {micro_batch} {accumulation}", "1x3x2"),
        ("torchrun --nproc-per-node 4 t.py {micro_batch} {accumulation}", "4x2x2"),
    ],
)
def test_the_split_to_compare_has_the_ranks_as_typed(line, default):
    assert str(read_command(shlex.split(line)).default) == default


def test_a_script_that_cannot_be_split_is_offered_braces_with_its_command_to_copy():
    line = "torchrun --nproc-per-node 2 t.py --batch-size 4 --accum=8 --lr 1e-3"
    example = (
        "torchrun --nproc-per-node {gpus} t.py --batch-size {micro_batch} --accum={accumulation} --lr 1e-3"
    )
    command = read_command(shlex.split(line))
    assert command.in_code
    error = cannot_split(command.words, command.launch, "its loop takes 8 passes a step")
    assert "its loop takes 8 passes a step, and --batch-size, --accum look like a batch" in str(error)
    assert f"isobatch same -- {example}\n" in str(error)
    assert read_command(shlex.split(example)).own is None  # what is offered is taken


@pytest.mark.parametrize(
    "line", ["accelerate launch t.py --train_batch_size 4 --num_train_epochs 1", "python t.py"]
)
def test_a_script_that_is_of_no_tool_has_its_numbers_in_the_code(line):
    # num_train_epochs is the Trainer's; train_batch_size is not, and the Trainer's default of 8 would be
    # wrong.
    assert read_command(shlex.split(line)).in_code


def test_flags_that_a_script_may_not_have_are_left_to_its_code():
    command = read_command(shlex.split("python t.py --num_train_epochs 1"))
    assert command.adds_flags and command.as_typed().in_code
    assert not read_command(shlex.split(f"python t.py {TYPED}")).adds_flags


@pytest.mark.parametrize(
    ("line", "tool", "message"),
    [
        ("", None, "the command is missing"),
        ("torchrun --nproc-per-node 2", None, "the script is missing"),
        ("python -u", None, "the script is missing"),
        ("./run.sh", None, "no flag looks like a batch"),
        ("axolotl preprocess c.yml", None, "does not train: write axolotl train"),
        ("python t.py", "axolotel", "did you mean 'axolotl'"),
        (f"torchrun t.py {TYPED} --tp_size 2", None, "puts a model on 2 GPUs"),
        (
            "python t.py --train_iters 9 --micro_batch_size 2 --global_batch_size 8",
            None,
            "settings of Megatron",
        ),
        ("python t.py --per_device_train_batch_size two", "transformers", "must be a number"),
    ],
)
def test_commands_without_a_split_are_refused_by_name(line, tool, message):
    with pytest.raises(InputError, match=message):
        read_command(shlex.split(line), tool=tool)


def test_two_files_that_may_be_the_one_are_named():
    saved("a.yaml", {"per_device_train_batch_size": 8, "num_train_epochs": 1})
    saved("b.yml", {**AXOLOTL, "micro_batch_size": 8})
    with pytest.raises(InputError, match=r"a\.yaml .*and b\.yml .*both have settings"):
        read_command(["python", "t.py", "a.yaml", "b.yml"])
    with pytest.raises(InputError, match=r"a\.yaml and b\.yml may each have the settings of axolotl"):
        read_command(["python", "t.py", "a.yaml", "b.yml"], tool="axolotl")


def test_switches_of_the_launchers_are_those_of_the_installed_ones():
    run = pytest.importorskip("torch.distributed.run")
    launch = pytest.importorskip("accelerate.commands.launch")
    for name, parser in (("torchrun", run.get_args_parser()), ("accelerate", launch.launch_command_parser())):
        switches, valued = set(), set()
        for action in parser._actions:
            options = {option.lstrip("-").replace("-", "_") for option in action.option_strings}
            (switches if action.nargs == 0 else valued).update(options)
        known = {*command_line._SWITCHES[name].split()}
        assert switches <= known and not valued & known
