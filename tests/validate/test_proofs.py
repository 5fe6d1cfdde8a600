"""Validations of good and faulty workloads on two ranks, and rehearsals."""

import msgspec
import numpy as np
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

from ddp.validating import failed, refused, threads, validate
from isobatch.equivalence.laws import Cause
from isobatch.validate import Report, Verdict
from isobatch.validate.proofs.noise_scale import noise_scale
from plan_of import loop_of


def plan_of(ranks=2, **fields):
    return loop_of(ranks, schedule="linear", **fields).to_json()


@pytest.fixture
def check(two):
    """`check("good", plan, option=…)` validates a workload, the same on both ranks."""

    def run(workload="good", plan=None, **options):
        name = workload if workload == "mlp" else f"ddp.workloads:{workload}"
        first, second = two(validate, plan or plan_of(), workload=name, **{"noise_steps": 0, **options})
        assert first == second
        return msgspec.json.decode(first, type=Report)

    return run


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"effective_batch": 45, "split": "ragged", "micro_batch": None, "max_micro_batch": 8},
        {"effective_batch": 40, "split": "uneven"},
        {"convention": "transformers"},
        {"drop_last": True},
        {"drop_last": "sampler"},
        {"dataset_size": 12_345_678},
        {"clip_norm": 0.1, "bucket_cap_mb": 0.001},
    ],
)
def test_a_good_workload_passes(check, fields):
    if fields.get("convention") == "transformers":
        pytest.importorskip("accelerate", reason="the batches are dealt as Accelerate deals them")
    report = check("good", plan_of(**fields))
    assert failed(report) == {}
    names = "world effective_batch loss gradient weights equal_weights learning_rate all_reduce epoch"
    for name in names.split():
        assert report.proof(name).verdict is Verdict.PASS, name


@pytest.mark.parametrize("workload", ["declared_sum", "tokens", "unused_as_told", "sparse"])
def test_a_workloads_declarations_are_used(check, workload):
    assert failed(check(workload)) == {}


MISTAKES = {
    "summed": ("gradient", Cause.SUMMED_LOSS, "8×"),
    "summed_over_ranks": ("gradient", Cause.SUMMED_OVER_RANKS, "2×"),
    "never_averaged": ("equal_gradients", Cause.NEVER_AVERAGED, "not averaged"),
    "nan_on_rank_1": ("gradient", Cause.NAN_ON_A_RANK, "rank 1"),
    "scheduler_per_process": ("learning_rate", Cause.SCHEDULER_PER_PROCESS, "2× too fast"),
    "another_lr": ("learning_rate", Cause.ANOTHER_LR, "2× the plan's"),
    "another_lr_in_the_scheduler": ("learning_rate", Cause.ANOTHER_LR, "2× the plan's"),
    "out_of_memory": ("memory", Cause.OUT_OF_MEMORY, ""),
    "ranks_start_apart": ("gradient", Cause.OTHER_WEIGHTS, "before the step"),
    "slow_on_rank_1": ("rank_steps", Cause.SLOW_RANK, "rank 1"),
    "adam_for_sgd": ("optimizer", Cause.ANOTHER_SETTING, "another optimizer"),
}


@pytest.mark.parametrize("workload", MISTAKES)
def test_a_mistake_in_the_workload_is_named(check, workload):
    report = check(workload)
    name, cause, detail = MISTAKES[workload]
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, 1)
    diagnosis = failed(report)[name]
    assert diagnosis.cause is cause and detail in diagnosis.text
    if workload == "out_of_memory":
        # 4 where the search's time is over behind its first size, on a machine that is very busy.
        assert report.proof("memory").values["largest_micro_batch"] in (4, 5, 6), report.proof("memory")
    if workload == "slow_on_rank_1":
        assert report.proof("ranks").verdict is not Verdict.FAIL


@pytest.mark.parametrize(
    ("workload", "momentum", "text"),
    [
        ("another_momentum", 0.9, "momentum 0.5, 0.9 planned"),
        ("another_momentum", 0.5, "SGD with the planned momentum"),
    ],
)
def test_the_optimizers_settings_are_compared(check, workload, momentum, text):
    assert check(workload, plan_of(momentum=momentum)).proof("optimizer").text == text


def test_coupled_samples_are_a_caution_unless_the_micro_batch_is_the_tuned_one(check):
    plan = plan_of(max_micro_batch=4)
    report = check("experts", plan)
    proof = report.proof("coupling")
    assert (proof.verdict, proof.cause) == (Verdict.CAUTION, Cause.COUPLED_SAMPLES)
    assert proof.values["relative_l2"] > 1e-3
    # Passed micro-batch by micro-batch, the gradient cannot see them.
    assert report.proof("gradient").verdict is Verdict.PASS
    assert check("good", plan).proof("coupling").values["relative_l2"] < 1e-5
    tuned = check("experts").proof("coupling")
    assert tuned.verdict is Verdict.PASS and "coupled" in tuned.text


@pytest.mark.parametrize("workload", ["summed", "summed_over_ranks"])
def test_a_mistake_is_named_where_one_process_cannot_do_all_ranks(check, workload):
    name, cause, detail = MISTAKES[workload]
    diagnosis = failed(check(workload, alone_ranks=1))[name]
    assert diagnosis.cause is cause and detail in diagnosis.text


@pytest.mark.parametrize(
    ("fields", "workload"),
    [({"effective_batch": 40, "split": "uneven"}, "good"), ({"precision": "fp16"}, "good"), ({}, "tokens")],
)
def test_a_gradient_is_that_of_the_sum_over_ranks_and_that_of_one_process(check, fields, workload):
    report = check(workload, plan_of(**fields), alone_ranks=1)
    assert failed(report) == {}
    assert "to the plain sum over 2 ranks" in report.proof("gradient").text
    values = report.proof("gradient").values
    assert max(values["relative_l2_to_sum"], values["relative_l2_of_sum"]) == values["relative_l2"] < 1e-5


def test_a_rehearsal_lists_its_gaps(check):
    report = check("good", plan_of(effective_batch=1024, dataset_size=50_000, ranks=64))
    assert report.rehearsal == "2/64"
    assert failed(report) == {}
    assert report.proof("world").verdict is report.proof("step_time").verdict is Verdict.UNCHECKED
    assert report.proof("effective_batch").values == {"samples": 1024, "unique_samples": 1024}
    assert report.proof("epoch").verdict is Verdict.PASS


def test_more_ranks_than_planned_are_another_world_size(check):
    assert failed(check("good", plan_of(1))) == {"world": Cause.ANOTHER_WORLD_SIZE.likely()}


def test_only_the_data_parallel_part_of_a_model_parallel_plan_is_proven(check):
    report = check("good", plan_of(ib.Cluster(nodes=1, gpus_per_node=8, model_parallel=4)))
    assert "only the data-parallel part" in report.proof("world").text
    assert failed(report) == {}


def test_the_noise_scale_of_a_known_gradient(check):
    noise = check("known_noise", noise_steps=64).noise
    assert noise.gradient_norm_sq == pytest.approx(256, rel=0.1)
    assert noise.variance_trace == pytest.approx(256 * 9, rel=0.1)
    assert noise.noise_scale == pytest.approx(9, rel=0.1)
    assert abs(noise.noise_scale - 9) < 3 * noise.standard_error < 0.9


def test_a_noise_scale_without_an_error_bar_is_none():
    """One step of four carries the whole mean gradient."""
    local, averaged = np.full(4, 10.0), np.array([5.0, 5.0, 5.0, 9.0])
    assert noise_scale(local, averaged, small=1, large=2) == (None, None, 2.0, 8.0)


@pytest.mark.parametrize(
    ("workload", "precision", "name"),
    [
        ("mlp", "bf16", "gradient_bfloat16"),
        ("images", None, "gradient"),
        ("mlp", "fp16", "gradient_float16"),
        ("mlp", "tf32", "gradient"),
    ],
)
def test_workloads_in_mixed_precision(check, workload, precision, name):
    plan = plan_of(precision=precision, effective_batch=8, micro_batch=2, dataset_size=None)
    report = check(workload, plan, parameters=20_000)
    assert failed(report) == {}
    assert report.proof(name).verdict is Verdict.PASS
    assert workload != "mlp" or report.step.parameters == pytest.approx(20_000, rel=0.35)


@pytest.mark.parametrize("workload", ["fp16_hook", "bf16_hook"])
def test_a_workloads_own_compressing_hook_is_healthy(check, workload):
    report = check(workload)
    assert failed(report) == {}
    assert report.proof("gradient").gate == {"fp16_hook": 5e-3, "bf16_hook": 1e-2}[workload]


def test_a_hook_that_changes_a_parameters_gradient_is_found(check):
    proof = check("halved").proof("gradient")
    assert proof.verdict is Verdict.FAIL and proof.diagnosis.cause is Cause.GRADIENT_FACTOR
    assert "0.5×, by a hook on 0.weight" in proof.diagnosis.text
    assert check("masked").proof("gradient").verdict is Verdict.CAUTION


def test_parameters_that_do_not_train_are_listed(check):
    report = check("frozen")
    assert failed(report) == {}
    assert "2 of 4 parameters" in report.proof("frozen").text and "0.weight" in report.proof("frozen").text


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_compressed_gradients_pass_within_their_format(check, hook):
    proof = check(hook=hook).proof("gradient")
    assert proof.verdict is Verdict.PASS and proof.values["relative_l2"] > 1e-5


def test_figures_far_from_their_forecast_fail(check):
    assert failed(check(step_seconds=10.0, memory_gib=0.001, bus_gb_s=1e6)) == {
        "step_time": Cause.FASTER_STEP.likely(),
        "memory": Cause.MORE_MEMORY.likely(),
        "bandwidth": Cause.SLOW_LINK.likely(),
    }


def test_a_calibration_reads_the_report(check):
    report = check()
    step, table = report.step, report.allreduce.table
    assert (step.ranks, step.nodes, step.micro_batch, step.accumulation) == (2, 1, 8, 3)
    assert step.gradient_bytes == 4 * step.parameters == sum(step.bucket_bytes)
    assert [row.micro_batch for row in step.micro_batches] == [4, 8]
    assert {row.bytes for row in table if row.bucket} == set(step.bucket_bytes)
    steps = [(s.gpus, s.micro_batch, s.accumulation) for s in report.measurements.steps]
    assert steps == [(1, 4, 1), (1, 8, 1), (2, 8, 3)]
    assert len(report.measurements.all_reduce) == len(table)
    assert all(row.time_us > 0 and row.wrong_elements == 0 for row in table)


def test_the_largest_micro_batch_is_searched_for(check):
    report = check("fits_37", find_micro_batch=True, memory_limit_gib=64)
    search = report.micro_batch_search
    assert (search.largest_micro_batch, search.complete, report.max_micro_batch) == (37, True, 37)
    fits = {size.micro_batch: size.fits for size in search.tries}
    assert fits[37] and not fits[38] and [*fits] == sorted(fits) and len(fits) == len(search.tries)
    assert all("rank 1" in size.fault for size in search.tries if not size.fits)
    # It goes into the next plan, and into what a calibration reads.
    plan = ib.plan(ib.Recipe(effective_batch=3072, lr=0.1), 2, max_micro_batch=report.max_micro_batch)
    assert plan.micro_batch <= 37
    assert 37 in [step.micro_batch for step in report.measurements.steps]


def test_a_memory_limit_ends_the_search(check):
    """On a CPU by the process's memory: 8 MiB a sample, of 256."""
    search = check("eight_mib_a_sample", find_micro_batch=True, memory_above_gib=0.25).micro_batch_search
    assert 16 <= search.largest_micro_batch <= 48  # a host short of memory takes libraries' pages back
    assert search.complete
    assert all("above the limit" in size.fault for size in search.tries if not size.fits)
    assert all(size.fragmentation_bytes is None for size in search.tries)


def test_the_planned_micro_batch_is_held_to_a_memory_limit(check):
    """It takes 192 MiB: a host that is short of memory may take back some of what the rank has."""
    report = check("eight_mib_a_sample", plan_of(micro_batch=24), memory_above_gib=0.03)
    assert failed(report) == {"memory": Cause.OUT_OF_MEMORY.likely()}


def test_a_search_on_a_cpu_needs_a_limit(check, two):
    with pytest.raises(AssertionError, match="memory_limit_gib"):
        check(find_micro_batch=True)
    assert two(threads) == [[], []]


def test_a_batch_that_one_process_cannot_do_in_time_is_smaller(check):
    """5 ms a micro-batch in the one process, 4000 of them: 20 s, of which it takes 2."""
    plan = plan_of(effective_batch=8 * 4000, dataset_size=None, duration=None)
    report = check("slow_to_repeat", plan, phase_seconds=12.0)
    proof = report.proof("gradient")
    assert proof.verdict is Verdict.PASS
    assert "a smaller step than the plan's 32000" in proof.text
    assert 16 <= proof.values["samples"] < 16_000
    assert (report.step.accumulation, report.step.planned_accumulation) < (500, 2000)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("ddp.workloads:raises", "the workload's factory raised ValueError: no data at /data (workloads.py:"),
        ("ddp.workloads:tuple_loss", "must return a scalar tensor, got tuple: return the loss"),
        ("ddp.workloads:vector_loss", "got one of shape (8,): return its mean over the samples"),
        ("ddp.workloads:float_loss", "got float: return the loss, without .item()"),
        ("ddp.workloads:loss_without_gradient", "must return a tensor with a gradient"),
        (
            "ddp.workloads:same_samples",
            "Workload.batch gives the same samples for every state of its generator",
        ),
        ("ddp.workloads:failing_loss", "Workload.loss raised KeyError: 'pixels' (workloads.py:"),
        ("ddp.workloads:nan_everywhere", "the loss is not finite on any rank"),
        ("ddp.workloads:unused_parameters", "the loss does not use spare, and DDP waits"),
        ("os:system", "system must be a function without arguments, got one that needs command"),
        ("no.such:thing", "no.such:thing"),
        ("os:name", "workload must be a function without arguments, got 'os:name'"),
        ("ddp.workloads:short", "asked for 8 samples and gave 7"),
    ],
)
def test_a_workload_that_cannot_work_is_refused_in_one_line(two, workload, message):
    for text in two(refused, plan_of(), workload=workload):
        assert message in text and "\n" not in text
    assert two(threads) == [[], []]


@pytest.mark.slow
def test_memory_of_a_size_is_not_that_of_a_larger_one_before(check):
    """After a search up to hundreds of samples: 1 MiB a sample in small pieces, and 8 MiB in a large one."""
    plan = plan_of(micro_batch=32, effective_batch=64)
    for workload, mib in ("many_small", 1), ("eight_mib_a_sample", 8):
        report = check(workload, plan, find_micro_batch=True, memory_above_gib=0.4)
        assert report.micro_batch_search.largest_micro_batch > 32
        peaks = {row.micro_batch: row.peak_memory_bytes / 2**20 for row in report.step.micro_batches}
        # Pages that the allocator keeps differ by some MiB; what a larger size left would be hundreds.
        assert peaks[32] - peaks[16] == pytest.approx(16 * mib, abs=max(8 * mib, 14)), peaks


def test_a_rank_without_room_is_named_where_ddp_shares_buffers(check):
    proof = check("fits_6_with_batch_norm", phase_seconds=20.0).proof("memory")
    assert proof.cause is Cause.OUT_OF_MEMORY
    assert "rank 1" in proof.text and "rank 0" not in proof.text and proof.text.endswith("; 6 fit")


def test_full_precision_has_its_own_time(check):
    """Of the 3.2 s of one process in float32 there are 2, and in bfloat16 it takes 0.02."""
    plan = plan_of(precision="bf16", effective_batch=128)
    report = check("slow_in_float32", plan, phase_seconds=12.0)
    assert failed(report) == {}
    assert "a smaller step than the plan's 128" in report.proof("gradient").text
    assert report.proof("gradient_bfloat16").values["samples"] == 128


def test_a_workload_that_refuses_float32_is_proven_in_its_own_format(check):
    report = check("refuses_float32", plan_of(precision="bf16"))
    assert failed(report) == {}
    assert report.proof("gradient").verdict is Verdict.UNCHECKED
    assert "takes half precision only" in report.proof("gradient").text
    assert report.proof("gradient_bfloat16").verdict is Verdict.PASS


def test_a_validation_needs_no_more_memory_than_the_training(check):
    report = check("fills_the_device", plan_of(precision="bf16"))
    assert failed(report) == {}
    for name in "gradient", "gradient_bfloat16":
        proof = report.proof(name)
        assert (proof.verdict, proof.values["samples"]) == (Verdict.PASS, 24)
        assert "micro-batches of at most 4 samples" in proof.text
    assert report.step.micro_batch == 8


def test_a_validation_takes_no_more_than_the_job(check):
    options = {"noise_steps": 2, "find_micro_batch": True, "memory_limit_gib": 64}
    report = check("as_much_as_the_job", plan_of(precision="bf16"), **options)
    assert failed(report) == {}
    assert report.proof("gradient_bfloat16").verdict is Verdict.PASS
    assert report.noise is not None
    assert report.micro_batch_search.largest_micro_batch == 64


def test_a_size_that_fits_no_more_is_left_out_of_the_table(check):
    report = check("no_room_beside_the_validation", find_micro_batch=True, memory_limit_gib=64)
    assert report.micro_batch_search.largest_micro_batch == 20
    assert [row.micro_batch for row in report.step.micro_batches] == [4, 8]
