"""`isobatch node`: what makes a node unfit, what to do about it, and that a check that hangs holds nothing up."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import msgspec

import fakecuda
from composed.nvml import Nvml
from isobatch.cli import main
from isobatch.diagnosis.causes import Cause
from isobatch.errors import InputError
from isobatch.validate import Verdict, launching, node
from isobatch.validate.figures import AllReduceRow
from isobatch.validate.host.node_report import Gates, NodeReport, list_unfit
from isobatch.validate.report import judge_claim, pass_claim

NODE = [sys.executable, "-m", "isobatch", "node"]
MODEL = "NVIDIA H100 80GB HBM3"


def nvml(monkeypatch, **given):
    module = Nvml(**given)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def asked(name, **gates):
    (proof,) = node.CHECKS[name](Gates(**gates))
    return proof


# ---- what is found, and what to do about it ----


def test_a_host_without_a_gpu_is_fit_and_says_what_is_unchecked(tmp_path, capsys):
    assert main(["node", "-o", str(tmp_path / "node.json")]) == 0
    report = json.loads((tmp_path / "node.json").read_text())
    found = {proof["name"]: (proof["verdict"], proof["text"]) for proof in report["proofs"]}
    assert [*found] == [*node.CHECKS]
    assert found["matmul"] == found["all_reduce"] == ("unchecked", "torch finds no CUDA device")
    assert (report["schema"], report["actions"], report["action"]) == ("isobatch.node/1", {}, None)
    assert "unchecked" in capsys.readouterr().out


def test_a_node_that_ought_to_have_gpus_and_has_none_is_unfit(ran):
    report = json.loads(ran(["node", "--device", "cuda", "--only", "matmul", "--json"], 1).out)
    assert (report["verdict"], report["action"]) == ("fail", "reboot")


@pytest.mark.parametrize(
    ("given", "action", "verdict"),
    [
        ({"recovery": 1}, "reset", "fail"),
        ({"recovery": 7}, "reboot", "fail"),
        ({"RemappedRows": (0, 1, 1, 0)}, "reset", "caution"),
        ({"RemappedRows": (0, 1, 0, 1)}, "drain", "fail"),
        ({"recovery": 1, "RemappedRows": (0, 1, 0, 1)}, "drain", "fail"),
        ({"links": [1] * 17 + [0]}, "drain", "fail"),
        ({"ComputeRunningProcesses": [SimpleNamespace(pid=1)]}, "look", "fail"),
    ],
)
def test_each_fault_of_a_gpu_has_its_action(monkeypatch, given, action, verdict):
    nvml(monkeypatch, **({"ComputeRunningProcesses": []} | given))
    proof = asked("gpu")
    assert (proof.values["action"], proof.verdict) == (action, verdict)
    assert "GPU 0 (1650123456789)" in proof.text


def test_the_gpus_that_a_job_sees_are_asked_without_a_context(monkeypatch):
    module = nvml(monkeypatch, count=8, ComputeRunningProcesses=[])
    proof = asked("gpu", gpus=8)
    assert (proof.verdict, module.asked) == (Verdict.PASS, [*range(8)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1f")
    module.asked.clear()
    proof = asked("gpu", gpus=8)
    assert module.asked == [3, b"GPU-1f"]
    assert (proof.verdict, proof.values["action"]) == (Verdict.FAIL, "reboot")
    assert "2 GPUs, 8 are asked for" in proof.text


def test_an_error_of_a_gpu_in_the_log_asks_for_a_reset_and_a_lost_gpu_for_a_reboot(monkeypatch):
    lines = "NVRM: Xid (PCI:0000:5e:00): {}, pid=900, name=python3, text\n"
    for number, action in ((94, "reset"), (79, "reboot")):
        monkeypatch.setattr(node.system, "kernel_log", lambda number=number: lines.format(number))
        proof = asked("gpu_errors")
        assert (proof.verdict, proof.values["action"]) == (Verdict.CAUTION, action)


def baseline(**values):
    proof = pass_claim("matmul", "good", model=MODEL, **values)
    return NodeReport(
        started="", wall_seconds=1.0, verdict=Verdict.PASS, proofs=[proof], node="n1", action=None, actions={}
    )


@pytest.mark.parametrize(
    ("speeds", "gates", "verdict", "says"),
    [
        ([600, 610], {}, "unchecked", "no threshold and no baseline"),
        ([600, 610], {"thresholds": {MODEL: {"matmul_tflops": 550}}}, "pass", "at least 550 asked for"),
        ([600, 540], {"thresholds": {MODEL: {"matmul_tflops": 550}}}, "fail", "the slowest, GPU 1"),
        ([600, 590], {"baseline": baseline(matmul_tflops=640)}, "pass", "640 in the baseline"),
        ([600, 540], {"baseline": baseline(matmul_tflops=640)}, "caution", "640 in the baseline"),
        ([600, 440], {"baseline": baseline(matmul_tflops=640)}, "fail", "640 in the baseline"),
        ([600, 600, 500], {}, "caution", "the node's median is 600"),
    ],
)
def test_a_product_is_judged_by_threshold_baseline_and_the_other_gpus(speeds, gates, verdict, says):
    proof = node.judge_matmul(Gates(**gates), [MODEL] * len(speeds), speeds)
    assert proof.verdict == verdict
    assert says in proof.text


def test_a_gpu_that_thresholds_or_baseline_do_not_have_ends_the_check():
    gates = Gates(thresholds={MODEL: {}}, file="gpus.toml")
    with pytest.raises(InputError, match=r"gpus.toml: unknown GPU model 'NVIDIA H200'.*H100 80GB HBM3"):
        node.judge_matmul(gates, ["NVIDIA H200"], [600.0])
    with pytest.raises(
        InputError, match="baseline is of NVIDIA H100 80GB HBM3, and this node has NVIDIA H200"
    ):
        node.judge_matmul(Gates(baseline=baseline(matmul_tflops=640)), ["NVIDIA H200"], [600.0])


def test_what_to_do_about_a_slow_product_wrong_sums_and_any_other_proof(monkeypatch):
    gates = Gates(thresholds={MODEL: {"matmul_tflops": 550, "bus_gb_s": 400}})
    row = dict.fromkeys(AllReduceRow.__struct_fields__, 1) | {"bucket": False, "samples_us": []}
    row |= {"dtype": "float32", "wrong_elements": 3}

    def reduce(_, given, *more, **options):
        (Path(given[0]) / "row.json").write_bytes(msgspec.json.encode(row))

    def others(_):
        return [judge_claim("heat", Verdict.CAUTION, "warm", Cause.GPU_THROTTLED.likely())]

    monkeypatch.setattr(launching, "start_ranks", reduce)
    monkeypatch.setattr(node, "_models", lambda: [MODEL] * 2)
    monkeypatch.setitem(node.CHECKS, "matmul", lambda _: [node.judge_matmul(gates, [MODEL] * 2, [600, 540])])
    monkeypatch.setitem(node.CHECKS, "gpu_errors", others)
    report = node.run(gates, ("matmul", "all_reduce", "gpu_errors"))
    assert report.actions == {"matmul": "drain", "all_reduce": "drain", "bandwidth": "look", "heat": "look"}
    assert (report.action, report.verdict) == ("drain", "fail")
    assert "3 wrong elements" in report.proofs[1].text


# ---- time ----


def _hang(_):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "isobatch-left-behind"])
    time.sleep(600)


@pytest.mark.alone
def test_a_check_that_hangs_is_named_within_the_budget_and_the_others_are_made(monkeypatch):
    monkeypatch.setitem(node.CHECKS, "gpu", _hang)
    begun = time.monotonic()
    monkeypatch.setattr(node.system, "kernel_log", lambda: "")
    report = node.run(Gates(seconds=6.0), ("gpu", "gpu_errors"))
    assert time.monotonic() - begun < 6.5
    hung, log = report.proofs
    assert (hung.verdict, hung.diagnosis.cause) == (Verdict.FAIL, Cause.HOST_HANGS)
    assert "not done within 2.75 s" in hung.text
    assert (log.verdict, report.actions) == (Verdict.PASS, {"gpu": "reboot"})
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"left-behind" in _read(path)]
    assert not left


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_check_that_dies_or_raises_is_a_failed_one(monkeypatch):
    def raises(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setitem(node.CHECKS, "matmul", raises)
    monkeypatch.setitem(node.CHECKS, "gpu", lambda _: os._exit(3))
    report = node.run(Gates(seconds=20), ("gpu", "matmul"))
    assert [proof.text for proof in report.proofs] == [
        "the check's process died",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ]
    assert report.actions == {"gpu": "reboot", "matmul": "reset"}
    assert report.exit_code == 1


@pytest.mark.parametrize(("size", "kind"), [(100, "OSError"), (4, "UnpicklingError")])
def test_a_check_that_dies_in_its_answer_is_a_failed_one_and_is_ended(monkeypatch, tmp_path, size, kind):
    def answers(sending, *_):
        (tmp_path / "pid").write_text(str(os.getpid()))
        os.write(sending.fileno(), struct.pack("!i", size) + b"half")
        sending.close()
        time.sleep(60)

    monkeypatch.setattr(node, "_answer", answers)
    report = node.run(Gates(seconds=20), ("gpu",))
    assert report.proofs[0].text.startswith(f"the check's process died in its answer: {kind}: ")
    assert report.actions == {"gpu": "reboot"}
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_an_interrupted_command_leaves_no_check_behind(monkeypatch, tmp_path):
    def interrupts(_):
        (tmp_path / "pid").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setitem(node.CHECKS, "gpu", interrupts)
    with pytest.raises(KeyboardInterrupt):
        node.run(Gates(seconds=20), ("gpu",))
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1.0])
def test_seconds_that_are_none_are_refused_from_python_too(seconds):
    with pytest.raises(InputError, match="seconds must be a number of seconds, at least 2"):
        Gates(seconds=seconds)


def test_wrong_input_found_by_a_check_ends_the_command(monkeypatch):
    def refuses(_):
        raise InputError("of another GPU", field="baseline", file="a.json")

    monkeypatch.setitem(node.CHECKS, "matmul", refuses)
    with pytest.raises(InputError, match=r"a.json, baseline: of another GPU"):
        node.run(Gates(), ("matmul",))


# ---- what is typed ----


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        (["--only", "gpu,gpu_error"], None, "unknown check 'gpu_error': did you mean 'gpu_errors'?"),
        (["--seconds", "1"], None, "--seconds must be a number of seconds, at least 2, got 1.0"),
        (["--thresholds", "IN.toml"], "[host", "IN.toml"),
        (["--thresholds", "IN.toml"], "host = 3", "IN.toml: host must be a table of thresholds, got 3"),
        (["--thresholds", "IN.toml"], "[host]\ndisk_gib = 3", "IN.toml: unknown threshold 'disk_gib'"),
        (["--thresholds", "IN.toml"], "[H]\nbus_gb_s = 0", "IN.toml: H.bus_gb_s must be a number above 0, got 0"),
        (["--thresholds", "IN.toml"], "[H]\nbus_gb_s = true", "H.bus_gb_s must be a number above 0, got True"),
        (["--thresholds", "IN.toml"], "[H]\ngpus = 8", "IN.toml: unknown threshold 'gpus'"),
        (["--baseline", "IN.toml"], "{}", "IN.toml: schema must be 'isobatch.node/1', got None"),
        (["--baseline", "IN.toml"], "no JSON", "IN.toml: not a report"),
        (["--baseline", "gone.json"], None, "gone.json"),
        (["-o", "gone/report.json"], None, "gone: there is no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_before_anything_runs(tmp_path, monkeypatch, ran, words, text, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(node, "run", lambda *_: pytest.fail("it ran"))
    if text is not None:
        Path("IN.toml").write_text(text)
    assert says in ran(["node", *words], 2).err


def test_only_one_task_of_a_node_checks_it(monkeypatch, ran):
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert "--ntasks-per-node=1" in ran(["node"], 2).err


# ---- many nodes ----


def test_many_nodes_at_once_list_who_is_unfit(tmp_path):
    place = tmp_path / "failing_nodes.txt"
    code = (
        "import sys; from pathlib import Path; from isobatch.validate.host.node_report import list_unfit\n"
        "for n in range(int(sys.argv[2]), 40, 4):\n"
        "    list_unfit(Path(sys.argv[1]), f'n{n}', fit=False); list_unfit(Path(sys.argv[1]), f'n{n}', fit=n % 2 == 0)"
    )
    words = [sys.executable, "-c", code, str(place)]
    started = [subprocess.Popen([*words, str(first)]) for first in range(4)]
    assert [one.wait(60) for one in started] == [0] * 4
    assert sorted(place.read_text().split()) == sorted(f"n{n}" for n in range(1, 40, 2))


def test_a_node_is_listed_by_its_schedulers_name_until_it_is_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-07")
    place = tmp_path / "failing_nodes.txt"
    verdict = Verdict.FAIL
    monkeypatch.setattr(
        node, "CHECKS", {"bandwidth": lambda _: [judge_claim("bandwidth", verdict, "", Cause.SLOW_LINK.likely())]}
    )  # fmt: skip
    assert main(["node", "--failing-nodes", str(place)]) == 1
    assert place.read_text() == "gpu-07\n"
    verdict = Verdict.PASS
    assert main(["node", "--failing-nodes", str(place)]) == 0
    assert place.read_text() == ""
    list_unfit(place, "gpu-08", fit=True)
    assert place.read_text() == ""


# ---- on GPUs that are made up ----


def test_products_and_the_all_reduce_of_a_nodes_gpus(tmp_path):
    command = [*NODE, "--only", "gpu,matmul,all_reduce", "--seconds", "150"]
    command += ["--thresholds", str(tmp_path / "gpus.toml")]
    (tmp_path / "gpus.toml").write_text(f'["{MODEL}"]\nbus_gb_s = 1e6\n')
    env = fakecuda.environment(tmp_path, gpus=2, mib=2000)
    done = subprocess.run([*command, "--json"], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {proof["name"]: proof for proof in json.loads(done.stdout)["proofs"]}
    # Products that look slow are this machine's.
    assert found["matmul"]["verdict"] in ("unchecked", "caution")
    assert {name: proof["verdict"] for name, proof in found.items() if name != "matmul"} == {
        "gpu": "pass",  # the check's own contexts are no other processes
        "all_reduce": "pass",
        "bandwidth": "caution",  # whatever was asked for, until a GPU has been measured
    }
    assert len(found["gpu"]["values"]["gpus"]) == len(found["matmul"]["values"]["tflops"]) == 2
    assert found["bandwidth"]["values"]["bus_gb_s"] > 0


@pytest.mark.alone
def test_a_gpu_that_hangs_in_its_driver_ends_with_the_budget(tmp_path):
    (tmp_path / "pynvml.py").write_text(
        "import time\nclass NVMLError(Exception): pass\ndef nvmlInit(): time.sleep(600)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*NODE, "--only", "gpu,gpu_errors", "--seconds", "4", "--json"]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["wall_seconds"] < 4.5
    assert report["actions"] == {"gpu": "reboot"}
    assert [proof["name"] for proof in report["proofs"]] == ["gpu", "gpu_errors"]
