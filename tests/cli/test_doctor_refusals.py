"""`isobatch doctor` names each refusal of `isobatch plan` on the same file, with exit code 1."""

import copy
import json
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.doctor import examine as doctor
from isobatch.planning.plan import Plan
from isobatch.reason import reasons_in
from isobatch.tools.page import leaves
from isobatch.tools.read import missing_fields, read_file, read_recipe
from tools.test_doctor import CLEAN, HEALTHY
from tools.test_reading import PUBLISHED, written
from tools.test_rl import GRPO, SWIFT, VERL
from tools.test_scripts import LIGHTNING
from tools.test_torchtune import LORA

GPUS = 8
FILES = {source: (name, text, fields) for source, (name, text, fields, _) in PUBLISHED.items()}
for name, text in HEALTHY.items():
    FILES[name] = (name, text if isinstance(text, str) else json.dumps(text), {})
for path in sorted(Path(__file__).parents[2].glob("examples/configs/*")):
    FILES[path.name] = (path.name, path.read_text(encoding="utf-8"), {})
FILES |= {
    "grpo": ("grpo.json", json.dumps(GRPO | {"learning_rate": 1e-6, "max_steps": 90}), {"gpus": 4}),
    "swift": ("swift.sh", SWIFT, {"dataset_size": 5000}),
    "verl": ("verl.sh", VERL, {}),
    "lightning script": ("l.py", LIGHTNING, {"gpus": 8, "dataset_size": 5000}),
    "torchtune": ("t.yaml", LORA, {"gpus": 8, "dataset_size": 5000}),
}
WRONG = ("fast", -1, 0, [1, 2], {"a": 1}, 1e300, True)
"""Values of a wrong type, sign or size."""


def refusals(settings, values, tool):
    """Returns the messages of a refused plan, without those about missing fields."""
    try:
        reading = read_file(settings, tool)
    except ib.InputError:
        return None
    fields = {to: None for to, _ in reading.faults} | reading.fields | values
    needs = {name for name, *_ in missing_fields(fields, reading.keys)}
    try:
        recipe, _ = read_recipe(ib.Recipe, settings, values, tool=tool)
    except ib.InputError as error:
        return [cause.message for cause in error.causes or (error,) if cause.field not in needs]
    plan = ib.plan(recipe, GPUS, **reading.demands)
    return [reason.name for reason in plan.reasons if reason.severity == "infeasible"]


def broken(settings, path, value):
    """The settings with another value at a place."""
    changed = copy.deepcopy(settings)
    *tables, name = path.split(".")
    inner = changed
    for table in tables:
        inner = inner[table]
    inner[name] = value
    return changed


@pytest.mark.parametrize("source", FILES)
def test_every_setting_that_plan_refuses_is_a_finding(source, tmp_path):
    name, text, values = FILES[source]
    whole = read_file(written(tmp_path, name, text))
    plain = json.loads(json.dumps(whole.settings, default=str))
    own = {("tuned_gpus" if key == "gpus" else key): value for key, value in values.items()}
    samples = 0
    for path in leaves(plain):
        for value in WRONG:
            settings = broken(plain, path, value)
            refused = refusals(settings, values, whole.tool)
            if refused is None:  # cannot be read, by either
                with pytest.raises(ib.InputError):
                    doctor.examine(settings, GPUS, tool=whole.tool, **own)
                continue
            if not refused:
                continue
            samples += 1
            examination = doctor.examine(settings, GPUS, tool=whole.tool, **own)
            assert not examination.healthy, (path, value, refused)
            for message in refused:  # a reason may be said in the tool's own words
                assert message.isupper() or message in examination.text, (path, value)
    assert samples


REASONS = [reason for reason in ib.Reason if reason.severity == "infeasible"]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_planner_is_a_finding(reason, tmp_path, monkeypatch):
    """As `plan` would answer: whichever reason it gives, on the GPUs of the tuned run."""

    def refuse(recipe, cluster, **settings):
        plan = ib.plan(recipe, cluster, **settings)
        fields = {name: getattr(plan, name) for name in Plan.__struct_fields__}
        return Plan(**fields | {"status": "infeasible", "reasons": reasons_in(1 << reason.bit)})

    monkeypatch.setattr(doctor, "plan", refuse)
    file = written(tmp_path, "a.json", json.dumps(CLEAN))
    examination = doctor.examine(file, 8, tuned_gpus=8)
    (finding,) = [finding for finding in examination.findings if finding.weight.name == "REFUSED"]
    assert finding.what.startswith("isobatch plan refuses 8 GPUs: ") and finding.cause == reason.text
    assert finding.change == f"isobatch plan --from {file} --set gpus=8 --gpus 8 lists what would work"
    assert not examination.healthy
