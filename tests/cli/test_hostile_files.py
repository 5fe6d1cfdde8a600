"""Files of strangers: their cost is bounded, no link is followed, and a fault is exit 2 with its line."""

import errno
import itertools
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from invariants.commands import run_command
from isobatch.errors import InputError
from isobatch.files import whole
from isobatch.files.formats import parse_yaml
from isobatch.files.limits import MAX_COLUMNS
from isobatch.files.whole import write_folder, write_whole
from isobatch.tools.pickles import attributes
from isobatch.words import redacted

MIB = 1 << 20


def test_a_tag_with_another_value_names_its_line(tmp_path, ran):
    tags = "bool int float null str seq map set omap pairs timestamp binary merge value x"
    texts = ("x", "", "[a]", "{a: b}", "[[a]]", "2001-99-99", "!!int y", "&a [*a]", "{[a]: b}", "{{a: b}: c}")
    refused = []
    for tag, text in itertools.product(tags.split(), texts):
        for document in (f"a: 1\nlr: !!{tag} {text}", f"!!{tag} {text}"):
            try:
                parse_yaml(document, "a.yaml")
            except ValueError as error:  # an InputError of the file, once it is read
                refused.append(str(error))
    assert len(refused) > 100 and all("line " in output for output in refused)
    for text in ("!!bool x", "!!timestamp foo", "!!map [a]", "!!python/name:os.system x", "2\nlr: 3"):
        (tmp_path / "a.yaml").write_text(f"effective_batch: 8\nlr: {text}\n")
        assert "line " in ran(["plan", str(tmp_path / "a.yaml"), "--gpus", "8"], 2).err


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 1_000_000,
        "- a\n" * MIB,
        "a: &a 1\nb: [" + "*a," * MIB + "]",
        "? " * MIB,
        "- !!str a\n" * 400_000,
        "".join(f"{(2**61 - 1) * n}: 1\n" for n in range(100_000)),
        "a: " + "9" * MIB,
    ],
    ids=["lists", "items", "aliases", "keys", "tags", "one hash", "digits"],
)
def test_yaml_of_megabytes_is_refused_soon(text):
    started = time.process_time()
    with pytest.raises(ValueError, match=r"200,000 values|10,000 names|levels|line"):
        parse_yaml(text, "a.yaml")
    assert time.process_time() - started < 10


def test_yaml_reads_the_same_without_libyaml():
    text = "a: 2e-5\nb: [1:30, 0x1f, no, ~]\nc: &c {d: .inf}\ne: {<<: *c, f: 'x'}\ng: |\n  two\n  lines\n"
    plain = "import yaml, sys; yaml.__with_libyaml__ = False; from isobatch.files.formats import parse_yaml; "
    plain += "print(parse_yaml(sys.argv[1], 'a.yaml'))"
    process = subprocess.run([sys.executable, "-c", plain, text], capture_output=True, text=True, check=True)
    assert process.stdout == f"{parse_yaml(text, 'a.yaml')}\n"


BOMBS = {
    "a hash of 2^60 tuples": b"\x80\x02})" + b"2\x86" * 60 + b"Ns.",
    "a memo of 2^32 places": b"\x80\x02Nr" + struct.pack("<I", 2**32 - 1) + b".",
    "bytes of 2^62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "a number of 2^31 bytes": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "a number of many digits": b"L" + b"9" * (MIB - 9) + b"L\n.",
    "a large tuple shared": b"(" + b"N" * (MIB // 3) + b"tq\x000c__a\nb\n" + b"h\x00R" * (MIB // 6) + b".",
    "a large table copied": b"}(" + b"".join(b"\x8c\x05%05dN" % n for n in range(60_000))
    + b"uq\x000c__a\nb\n)R" + b"h\x00b" * (MIB // 6) + b".",
    "a memo of one hash": b"N" + b"".join(b"p%d\n" % ((2**61 - 1) * n) for n in range(45_000)) + b".",
    "a list in itself": b"c__a\nb\n)R}\x8c\x01a]q\x00h\x00asb.",
    "tuples of tuples": b"c__a\nb\n)R}\x8c\x01a)" + b"2\x86" * 200_000 + b"sb.",
    "deep": b"c__a\nb\n)R}\x8c\x01a)" + b"\x85" * 900_000 + b"sb.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_costs_no_more_than_its_bytes(name, tmp_path):
    (tmp_path / "training_args.bin").write_bytes(BOMBS[name])
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(InputError):
        assert attributes(tmp_path / "training_args.bin") == {}
    assert time.process_time() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_an_archive_is_as_large_as_it_says(tmp_path):
    path = tmp_path / "training_args.bin"
    for how, data, message in (
        (zipfile.ZIP_DEFLATED, bytes(1 << 28), "compressed"),
        (zipfile.ZIP_STORED, bytes(MIB + 1), "more than 1,048,576"),
        (zipfile.ZIP_STORED, bytes(5 * MIB), "more than the 4,194,304"),
    ):
        with zipfile.ZipFile(path, "w", how) as archive:
            archive.writestr("x/data.pkl", data)
        with pytest.raises(InputError, match=message):
            attributes(path)


class Arguments:
    """Stands for TrainingArguments."""


def test_a_pickle_of_every_protocol_is_read(tmp_path):
    path, saved = tmp_path / "training_args.bin", Arguments()
    saved.__dict__ = {
        "lr": 2e-5,
        "steps": 10,
        "names": ["a", ("b",)],
        "on": True,
        "none": None,
        "in": {"x": 1},
    }
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(saved, protocol))
        assert attributes(path) == saved.__dict__


def test_no_link_is_written_through(tmp_path):
    precious, out = tmp_path / "precious.txt", tmp_path / "out"
    precious.write_text("precious")
    out.mkdir()
    (out / "link").symlink_to(precious)
    (out / "dangling").symlink_to(tmp_path / "new.txt")
    (out / "folder").symlink_to(tmp_path)
    for name in ("link", "dangling", "folder/new.txt", "folder/precious.txt"):
        with pytest.raises(InputError, match="is a symbolic link"):
            write_folder(out, {Path(name): b"x"})
    assert precious.read_text() == "precious" and not (tmp_path / "new.txt").exists()


def test_a_folder_that_becomes_a_link_after_it_was_checked_is_not_entered(tmp_path, monkeypatch):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    check = whole.refuse_special

    def check_then_swap(path):
        check(path)
        if Path(path).name == "job" and not Path(path).is_symlink():
            Path(path).rename(tmp_path / "moved")
            Path(path).symlink_to(elsewhere)

    monkeypatch.setattr(whole, "refuse_special", check_then_swap)
    with pytest.raises(InputError, match="cannot be written"):
        write_folder(out, {Path("job/plan.txt"): b"x"})
    assert not [*elsewhere.iterdir()]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    old = tmp_path / "out" / "old.txt"
    old.parent.mkdir()
    old.write_text("old")
    synced, fsync = [], os.fsync

    def full(handle):
        synced.append(handle)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    files = {Path(name): b"new" for name in ("old.txt", "a/one.txt", "a/b/two.txt")}
    with pytest.raises(InputError, match="two.txt: cannot be written: No space left"):
        write_folder(tmp_path / "out", files)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old.txt"] and old.read_text() == "old"
    write_folder(tmp_path / "out", files)
    assert old.read_text() == "new" and (tmp_path / "out/a/b/two.txt").read_text() == "new"
    assert len([*tmp_path.rglob("*")]) == 6


def test_a_file_keeps_its_mode_and_its_name(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text("old")
    path.chmod(0o750)
    write_whole(path, b"new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o750
    with pytest.raises(InputError, match="cannot be written"):
        write_whole(tmp_path / ("x" * 255), b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["a.sh"]


def test_a_hard_link_beside_the_output_is_not_written_over(tmp_path, ran):
    """A stranger who knows the name of the file beside the output links it to one of worth."""
    from isobatch.files.whole import partial_of

    with partial_of(str(tmp_path / "plans.csv")) as beside:
        pass
    Path(beside).unlink()
    (tmp_path / "precious.txt").write_text("precious")
    os.link(tmp_path / "precious.txt", beside)
    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    ran(["fleet", str(tmp_path / "jobs.csv"), "--gpus", "8", "-o", str(tmp_path / "plans.csv")])
    assert (tmp_path / "precious.txt").read_text() == "precious" and (tmp_path / "plans.csv").exists()


def limited(words, *, closed=False, **environment):
    """Runs a command in 1.5 GB of addresses: its exit code and stderr."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1500 * MIB, 1500 * MIB))
        if closed:
            os.close(0)

    process = subprocess.run(
        [sys.executable, "-m", "isobatch", *words],
        capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit,
        env={**os.environ, **environment},
    )  # fmt: skip
    return process.returncode, process.stderr


GIVEN = ("--set", "effective_batch=8", "--set", "lr=1", "--gpus", "8")
READERS = {
    "json": (
        ["replan", "FILE", "--at-step", "1", "--gpus", "8"], ["plan", *GIVEN, "--profile", "FILE"],
        ["calibrate", "FILE", "-o", "x.json"],
        ["schedule", "FILE"], ["explain", "FILE"], ["fleet", "FILE", "--gpus", "8"],
        ["estimate", "FILE", "--gpu", "A100-80", "--seq-len", "9"],
        ["doctor", "FILE", "--gpus", "8"], ["validate", "FILE"],
    ),
    "csv": (["fleet", "FILE", "--gpus", "8"], ["explain", "FILE"], ["allocate", "FILE", "8"]),
    "jsonl": (["fleet", "FILE", "--gpus", "8"],),
    "parquet": (["fleet", "FILE", "--gpus", "8"],),
    "yaml": (["plan", "FILE", "--gpus", "8"], ["doctor", "FILE", "--gpus", "8"],
        ["plan", "--from", "FILE", "--gpus", "8"]),
    "bin": (["doctor", "FOLDER", "--gpus", "8"],),
}  # fmt: skip


@pytest.mark.parametrize("suffix", READERS)
def test_a_file_of_gigabytes_is_not_read_whole(suffix, tmp_path):
    path = tmp_path / f"training_args.{suffix}"
    with path.open("wb") as file:
        file.truncate(6 << 30)
    (tmp_path / "trainer_state.json").write_text('{"global_step": 1, "max_steps": 9, "train_batch_size": 8}')
    for words in READERS[suffix]:
        typed = [word.replace("FILE", str(path)).replace("FOLDER", str(tmp_path)) for word in words]
        code, output = limited(typed)
        assert code == 2 and "training_args" in output, (words, code, output)


def test_stdin_may_be_closed_and_docstrings_left_out(tmp_path):
    for words in (["plan", "-"], ["fleet", "-", "--gpus", "8"]):
        code, output = limited(words, closed=True)
        assert (code, output) == (2, f"isobatch {words[0]}: stdin is closed: name a file in the place of -\n")
    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    pytest.importorskip("altair")
    words = ["report", str(tmp_path / "jobs.csv"), "-o", str(tmp_path / "a.html")]
    code, output = limited(words, PYTHONOPTIMIZE="2")
    assert code == 2 and "-OO" in output


def test_a_column_is_there_once_and_there_are_not_too_many(tmp_path, ran):
    def put(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    jobs = put("jobs.csv", "job,effective_batch,lr\na,256,0.1\n")
    twice = put("twice.csv", "job,job,cluster,cluster\na,b,c,d\n")
    wide = put("wide.csv", ",".join(f"c{n}" for n in range(MAX_COLUMNS + 1)) + "\n")
    sparse = put("sparse.jsonl", "".join(f'{{"c{n}": 1}}\n' for n in range(MAX_COLUMNS)) + "{}\n" * 100_000)
    messages = {twice: "in the header twice", wide: "10,001 columns", sparse: "columns, and most rows"}
    for words in (["explain"], ["fleet", jobs, "--gpus", "8", "--pairs"], ["allocate", jobs]):
        for path, message in messages.items():
            assert message in ran([*words, path], 2).err


def test_a_table_of_settings_is_no_text(tmp_path, ran):
    tables = (
        "lightning:trainer torchtitan:training verl:data verl:actor_rollout_ref.actor deepspeed:optimizer"
    )
    for table in f"{tables} deepspeed:scheduler.params torchtune:optimizer".split():
        tool, _, name = table.partition(":")
        top, _, inner = name.partition(".")
        (tmp_path / "a.json").write_text(json.dumps({top: {inner: "x"} if inner else "x"}))
        words = [str(tmp_path / "a.json"), "--gpus", "8", "--tool", tool]
        for command in (["plan", "--from"], ["doctor"], ["doctor", "--json"]):
            assert f"{name} must be a table of settings, got 'x'" in ran([*command, *words], 2).err


def test_a_request_of_megabytes_is_answered_and_the_next_too(tmp_path):
    from isobatch.cli.plan import MAX_REQUEST_BYTES

    requests = b'{"id": "' + b"x" * MAX_REQUEST_BYTES + b'"}\n{"id": 2}\n'
    code, out, _ = run_command(["plan", "-", *GIVEN], requests)
    refused, answer = (json.loads(line) for line in out.splitlines())
    assert (code, answer["id"]) == (2, 2) and "bytes or more" in refused["error"] and "error" not in answer


@pytest.mark.parametrize("text", ["ab:/" * 20_000, "?key" * 20_000, "ab://" + ":" * 80_000, "&a=" * 20_000])
def test_secrets_are_found_in_a_time_that_grows_with_the_text(text):
    started = time.process_time()
    redacted(f"{text}@")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".json", '{"train_batch_size": 8, "a": "' + '\\"' * 200_000),
        ("", "\n" * 200_000 + "x = 1"),
        (".cfg", "a\n" * 100_000),
        (".json", json.dumps({f"k{n}": 1 for n in range(190_000)})),
        *((suffix, "".join(f"k{n} = 1\n" for n in range(190_000))) for suffix in (".toml", ".py")),
        (".yaml", "".join(f"k{n}: 1\n" for n in range(190_000))),
        (".sh", "".join(f"k{n}=1\n" for n in range(190_000)) + "torchrun t.py --lr 1"),
        (".sh", "torchrun t.py --lr 1" + "".join(f" --k{n} 1" for n in range(190_000))),
        *((suffix, f"{'a.' * 20_000}a = 1") for suffix in (".toml", ".py")),
        (".sh", f"torchrun t.py --{'a.' * 20_000}a 1"),
        *((suffix, "(" * 100_000) for suffix in (".json", ".yaml", ".toml", ".py", ".sh")),
        (".sh", "A=" + "$(" * 20_000 + "echo 1" + ")" * 20_000 + "\ntorchrun t.py --lr 1"),
        *((suffix, "k" * 2_000_000 + sign) for suffix, sign in ((".toml", " = 1"), (".yaml", ": 1"))),
        (".json", "9" * 1_000_000),
        *((suffix, "a\0b = 1") for suffix in (".json", ".yaml", ".toml", ".py", ".sh")),
    ],
)
def test_a_configuration_is_refused_in_a_time_that_grows_with_it(suffix, text, tmp_path, ran):
    path = tmp_path / f"a{suffix}"
    path.write_text(text)
    started = time.process_time()
    error = ran(["doctor", str(path), "--gpus", "8"], 2).err
    assert time.process_time() - started < 5 and len(error) < 2_000 and "Traceback" not in error


@pytest.mark.parametrize("command", ["doctor", "plan --from", "plan", "fleet", "allocate", "estimate"])
def test_pipes_and_loops_of_links_end_no_command_in_a_wait(command, tmp_path, ran):
    for name in ("pipe.json", "pipe.csv"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    table = command in ("fleet", "allocate")
    name = "pipe.csv" if table else "pipe.json"
    more = ["8"] if command == "allocate" else [] if command == "estimate" else ["--gpus", "8"]
    more += ["--gpu", "H100-80", "--seq-len", "9"] if command == "estimate" else []
    assert "pipe" in ran([*command.split(), str(tmp_path / name), *more], 2).err.replace(name, "")
    if not table:
        assert "loop.json" in ran([*command.split(), str(tmp_path / "loop.json"), *more], 2).err


def test_faults_of_the_search_stay_errors_of_the_input(tmp_path):
    """Each ended with 3, or with pyarrow's own traceback."""
    cycle = {"period": 1e308, "multiplier": 2, "peak_decay": 1}
    segment = {"length": 100, "a": 1, "b": 0, "shape": {"kind": "cosine"}}
    schedule = {"schema": 1, "form": {"tracks": [{"segments": [segment], "cycle": cycle}]}}
    step = {"gpus_per_node": 8, "accumulation": 1, "model_parallel": 1, "memory_gib": 2.0}
    step |= {"step_seconds": [0.01] * 3}
    steps = [{**step, "gpus": n, "micro_batch": m} for n in (1, 2) for m in (8, 16, 32)]
    all_reduce = {"gpus": 2, "gpus_per_node": 8}
    reduced = [{**all_reduce, "bytes": size, "seconds": [size / 1e10]} for size in (1e6, 1e8)]
    measured = {"gradient_bytes": 1e308, "steps": steps, "all_reduce": reduced}
    path = tmp_path / "a.json"
    for document, words in (
        (schedule, ["schedule", str(path)]),
        (schedule, ["schedule", str(path), "--plot"]),
        (measured, ["calibrate", str(path), "-o", str(tmp_path / "b.json")]),
    ):
        path.write_text(json.dumps(document))
        code, _, output = run_command(words)
        assert code == 2 and "Traceback" not in output, output
    table = tmp_path / "plans.csv"
    texts = {b"job,status,effective_batch\na,ok,\n": "effective_batch", b"job,status\na\xff\n": "UTF-8"}
    for text, message in texts.items():
        table.write_bytes(text)
        code, _, output = run_command(["report", str(table), "--to", "slurm", "-o", str(tmp_path / "out")])
        assert code == 2 and message in output and "Traceback" not in output, output
