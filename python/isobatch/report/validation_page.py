"""The page of a validation: verdicts, the all-reduce with its fit, the step's time, forecast and measured."""

from isobatch.report.charts import all_reduce
from isobatch.report.page import Drawing, Headline, HtmlPage, HtmlTable, Section, versions
from isobatch.validate.figures import AllReduce, Machine, StepTimes
from isobatch.validate.report import Report
from isobatch.words import count, counted, duration, figure, percent


def validation_page(report: Report, *, title: str | None = None) -> HtmlPage:
    """Makes the page of a validation."""
    verdicts = [str(proof.verdict) for proof in report.proofs]
    passed, unchecked = verdicts.count("pass"), verdicts.count("unchecked")
    rehearsal = f" A rehearsal: {report.rehearsal} ranks of the plan." if report.rehearsal else ""
    lead = f"{count(unchecked)} not checked."
    sections = [_verdicts(report)]
    if report.allreduce is not None and report.allreduce.table:
        sections.append(_all_reduce(report.allreduce))
    if report.step is not None:
        sections.append(_step(report, report.step))
    if report.machine is not None:
        sections.append(_machine(report.machine))
    title = title or f"Validation: {count(passed)} of {counted(len(verdicts), 'proof')} passed"
    return HtmlPage(title, lead + rehearsal, _headlines(report), sections, str(report.verdict))


def _headlines(report: Report) -> list[Headline]:
    headlines = []
    if (machine := report.machine) is not None:
        devices = ", ".join(dict.fromkeys(rank.device for rank in machine.ranks))
        where = f"{counted(machine.nodes, 'node')}, {machine.backend}, {devices}"
        headlines.append(Headline("ranks", count(len(machine.ranks)), where))
    if (step := report.step) is not None:
        took, speed = duration(step.planned_step_seconds), figure(step.samples_per_second)
        headlines.append(Headline("step", took, f"{step.workload}, measured"))
        headlines.append(Headline("samples per second", speed, "over all ranks"))
    if (plan := report.plan) is not None and plan.effective_batch is not None:
        planned = f"{count(plan.world_size)} GPUs planned"
        headlines.append(Headline("samples per step", count(plan.effective_batch), planned))
    return headlines


def _verdicts(report: Report) -> Section:
    columns = {"proof": "text", "verdict": "status", "what was found": "text"}
    rows = [[proof.name, str(proof.verdict), proof.text] for proof in report.proofs]
    if any(proof.diagnosis for proof in report.proofs):
        columns["what to do"] = "text"
        for row, proof in zip(rows, report.proofs, strict=True):
            diagnosis = proof.diagnosis
            row.append("" if diagnosis is None else f"{diagnosis.text}: {diagnosis.advice}")
    table = HtmlTable("Each claim of the plan, and how it came out", columns, rows)
    return Section("Verdicts", tables=[table])


def _all_reduce(measured: AllReduce) -> Section:
    points = [
        {"kind": row.dtype, "bytes": row.bytes, "time_us": row.time_us}
        for row in measured.table
        if row.time_us > 0 and row.bytes > 0
    ]
    described = "Medians of the slowest rank."
    drawings = [Drawing(all_reduce(points), "All-reduce by size", described)] if points else []
    return Section("All-reduce", drawings=drawings)


def _step(report: Report, step: StepTimes) -> Section:
    forecast = report.options.step_seconds or (report.plan.step_seconds if report.plan is not None else None)
    took, expected = step.planned_step_seconds, "not known"
    if forecast is not None:
        expected = duration(forecast)
        expected += f" (measured: {percent(took / forecast - 1, signed=True)})" if forecast else ""
    rows = [
        ("whole step, measured", duration(took)),
        ("whole step, forecast", expected),
        ("computing, median", duration(step.compute_median_seconds)),
        ("with its all-reduce, median", duration(step.sync_median_seconds)),
        ("with its all-reduce, 95 %", duration(step.sync_p95_seconds)),
        ("added by communication", duration(max(0.0, step.exposed_seconds))),
        ("overlap of communication", "not known" if step.overlap is None else percent(step.overlap)),
    ]
    size = f"{counted(step.parameters, 'parameter')}, micro-batch {count(step.micro_batch)}"
    caption = f"{step.workload}, {size}"
    table = HtmlTable(caption, {"figure": "text", "value": "number"}, rows)
    return Section("The step", tables=[table])


def _machine(machine: Machine) -> Section:
    rows = [(count(rank.rank), rank.host, rank.device) for rank in machine.ranks[:512]]
    columns = dict.fromkeys(("rank", "host", "device"), "text")
    return Section("The machine", tables=[HtmlTable("Ranks", columns, rows), versions(machine.versions)])
