"""The page of one job over GPU counts: every plan is in it, as `plan` has it, and a slider shows one."""

import json
import re

import msgspec
import pytest

import isobatch as ib
from hostile import HOSTILE
from isobatch.cli import main
from isobatch.report.page import html
from isobatch.report.pages import page_of_value, write
from isobatch.words import figure
from report.pages import Parsed, columns_of, timed_profile
from report.test_browser import CHROMIUM, RECIPE, over, run
from report.test_page import shown


def plans_in(text):
    """The data of the page's script, with texts in place of their numbers."""
    data = json.loads(re.search(r'id="plans">(.*?)</script>', text, re.DOTALL)[1])

    def read(value):
        return [read(each) for each in value] if isinstance(value, list) else data["texts"][value]

    for row in data["plans"]:
        for at, (level, headline, figures, points, ways, lines, folded) in enumerate(row):
            out = [[*read(way[:4]), way[4]] for way in ways]
            row[at] = (level, read(headline), read(figures), read(points), out, read(lines), read(folded))
    return data


def test_every_plan_is_in_the_page():
    gpus = [1, 7, 8, 12, 16]
    text, parsed = shown(over(gpus), beside=[over(gpus, policy="grow")], tool="transformers")
    data = plans_in(text)
    assert (data["counts"], data["policies"], data["counts"][data["first"]]) == (gpus, ["keep", "grow"], 1)
    for count, row in zip(gpus, data["plans"], strict=True):
        for policy, packed in zip(data["policies"], row, strict=True):
            level, headline, figures, points, ways, lines, folded = packed
            plan = ib.plan(RECIPE, ib.Cluster(gpus_per_node=count), policy=policy)
            output = plan.explain()
            assert level == plan.status or (level, plan.status) == ("note", "caution")
            assert headline in output.replace(":\n  - ", ": ")
            assert all(part in output for part in (*folded, *points))
            assert [way[4] for way in ways] == [option.world_size for option in plan.options]
            assert all(part in output for way in ways for part in way[:4])
            if level != "infeasible":
                assert "\n".join(lines) == str(plan.to("transformers")).rstrip("\n")
                now = {label: value for label, _, value in figures}
                assert now["batch, samples per step"] == f"{plan.effective_batch:,}"
                was = {label: value for label, value, _ in figures}
                assert was["batch, samples per step"] == "128"
    assert columns_of(parsed)["gpus"] == ["1", "8", "16"]
    assert "No plan on 7, 12 GPUs: the effective batch cannot be split evenly" in parsed.text("bdi")
    assert "No hours and cost" in parsed.text("bdi")


def test_the_tuned_run_has_the_time_of_its_count_on_these_gpus():
    listing = over([4, 8], profile=timed_profile())
    figures = {label: values for label, *values in plans_in(shown(listing)[0])["plans"][1][0][2]}
    assert figures["hours"] == [figure(hours) for hours in listing.columns["hours"].tolist()]


@pytest.fixture(scope="module")
def limited():
    """Makes a page of counts: few GPUs miss its deadline, and many are above its budget."""
    recipe = msgspec.structs.replace(RECIPE, effective_batch=96, duration="40ep", gpus=None)
    node = ib.Cluster(gpus_per_node=8192, price_per_gpu_hour=2.0)
    profile = msgspec.structs.replace(timed_profile(), scatter=0.1)
    gpus = [1, 2, 4, 5, 8, 12, 16, 48]
    listing = ib.counts(recipe, gpus, cluster=node, profile=profile, budget=3.3)
    grow = ib.counts(recipe, gpus, cluster=node, profile=profile, budget=3.3, policy="grow")
    return page_of_value(listing, beside=[grow], deadline=0.21)


def test_a_missed_limit_is_said_first_and_is_no_way_out(limited):
    data = plans_in(html(limited))
    plans = dict(zip(data["counts"], (row[0] for row in data["plans"]), strict=True))
    assert [gpus for gpus, plan in plans.items() if plan[0] != "infeasible"] == [8, 12]
    assert data["meet"] == "meet the deadline of 12 min 36 s and the budget of $3.3"
    assert plans[4][1].startswith("4 GPUs. Deadline of 12 min 36 s: missed; the run takes 20 min 4 s")
    assert plans[16][1].startswith("16 GPUs. Budget of $3.3: missed; the run costs $3.47 ($3.13 to $3.82).")
    assert {label: now for label, _, now in plans[48][2]}["cost"] == "$8.34"
    assert [way[4] for way in plans[4][4]] == [8, 12] and [way[4] for way in plans[48][4]] == [12]
    assert {way[4] for way in plans[5][4]} <= {8, 12} and "divided" not in plans[5][1]
    assert "deadline_hours and budget: likely met, not surely" in " ".join(plans[8][3])


def test_a_page_has_the_counts_within_all_limits(limited):
    card = limited.headlines[0]
    assert (card.label, card.value) == ("deadline 12 min 36 s and budget $3.3", "12 GPUs")
    assert card.note.startswith("met: 7 min 12 s") and card.note.endswith("; fewest GPU-hours of 2 counts")
    notes = {each.label: each.note for each in limited.headlines}
    assert "; misses the deadline" in notes["cheapest"] and "; misses the budget" in notes["fastest"]
    (ends,) = limited.sections[0].tables[0].rows
    assert [cell.partition("; misses ")[2] for cell in ends[:2]] == ["the budget", "the deadline"]
    drawn = [json.dumps(drawing.chart.to_dict()) for drawing in limited.drawings]
    assert ['"deadline"' in each for each in drawn] == [True, False]
    assert ['"budget"' in each for each in drawn] == [False, True]
    every = columns_of(Parsed(html(limited)))
    assert every["status"].count("infeasible") == 5 and "± hours (95 %)" in every
    assert every["budget"] == ["met", "met", "met", "likely", "met", "missed", "missed"]
    assert every["cost, $"][-1] == "8.34"


def test_a_policy_without_the_tuned_gpus_is_left_out(limited):
    assert json.loads(limited.choices.data)["policies"] == ["keep"]
    assert "Policy grow is left out: it needs gpus" in limited.lead
    assert "job" not in limited.sections[0].tables[0].columns


def test_a_page_above_its_budget_says_by_how_much(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    timed_profile().save("profile.json")
    recipe = msgspec.structs.replace(RECIPE, effective_batch=96)
    recipe.save("run.toml")
    request = ["counts", "run.toml", "--gpus", "4,8", "--profile", "profile.json", "--budget", "0.1"]
    output = ran([*request, "--price-per-gpu-hour", "2"], 1)
    assert output.out == "" and "budget $0.1: without it the runs cost $0.2" in output.err
    assert ran([*request, "--price-per-gpu-hour", "2", "-o", "page.html"], 1)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No hours and cost" not in text
    missed = "0.1: missed, but no range is known; the run costs $0.2"
    assert all(missed in row[0][1] for row in plans_in(text)["plans"])


def test_counts_of_another_model_name_the_profiles(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    msgspec.structs.replace(timed_profile(), parameters=13 * 10**9).save("profile.json")
    msgspec.structs.replace(RECIPE, parameters=10**9).save("run.toml")
    output = ran(["counts", "run.toml", "--gpus", "4,8", "--profile", "profile.json"])
    assert "the profile is for 13,000,000,000 parameters, the recipe has 1,000,000,000" in output.err


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ({"duration": None}, "the recipe has no duration"),
        ({"parameters": 10**9}, "the profile is for 10,000,000,000 parameters, the recipe has 1,000,000,000"),
    ],
)
def test_unknown_hours_have_their_reason(recipe, why):
    profile = msgspec.structs.replace(timed_profile(), parameters=10**10)
    listing = ib.counts(msgspec.structs.replace(RECIPE, **recipe), [4, 8], profile=profile)
    assert f"No hours and cost: {why}" in page_of_value(listing).lead


def test_charts_have_the_range_and_the_chosen_count():
    guess = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e12, gpu_tflops=312, intra_gb_s=240)
    guess = msgspec.structs.replace(guess, scatter=0.25)
    page = page_of_value(over([1, 2, 4, 8], profile=guess))
    band = page.drawings[0].chart.to_dict()["layer"][0]
    assert band["mark"]["type"] == "area"
    for point in band["data"]["values"]:
        assert (point["low"], point["high"]) == pytest.approx((0.75 * point["hours"], 1.25 * point["hours"]))
    _, parsed = shown(over([1, 2, 4, 8], profile=guess))
    assert [(item["data-low"], item["data-high"]) for item in parsed.of("figure")] == [("1.0", "8.0")]
    assert "4 GPUs" in parsed.texts["text"]  # the tuned count


def test_a_caution_of_the_tuned_run_is_a_note():
    recipe = ib.Recipe(effective_batch=128, lr=0.1, gpus=4, micro_batch=16, dataset_size=1000, duration="9ep")
    gpus = [2, 4, 7, 64]
    text, parsed = shown(ib.counts(recipe, gpus), beside=[ib.counts(recipe, gpus, policy="grow")])
    keep, grow = zip(*((row[0][0], row[1][0]) for row in plans_in(text)["plans"]), strict=True)
    assert [ib.plan(recipe, count).status for count in (2, 4, 64)] == ["caution"] * 3
    assert keep == ("note", "note", "infeasible", "caution") and grow[-1] in ("caution", "infeasible")
    assert columns_of(parsed)["status"] == ["note", "note", "caution"]
    assert parsed.texts["option"] == ["all", "caution", "note"]


def test_the_answer_stands_below_the_cards_and_above_what_stays():
    text, _ = shown(over([4, 8, 16], profile=timed_profile()))
    assert text.index('class="headlines"') < text.index('id="headline"') < text.index("All counts")
    unknown = ib.counts(ib.Recipe(effective_batch=128, lr=0.1, duration="90st"), [8], profile=timed_profile())
    assert plans_in(shown(unknown)[0])["answers"][0] == "learning rate, peak"


@pytest.mark.parametrize(
    ("gpus", "note"), [([4, 8, 16, 24], " Above 8 GPUs: whole nodes of 8."), ([2, 4, 8], "")]
)
def test_a_page_says_where_only_whole_nodes_are_counted(gpus, note):
    result = ib.counts(RECIPE, gpus, cluster=ib.Cluster(gpus_per_node=8))
    assert plans_in(shown(result)[0])["note"] == note


def test_a_count_that_the_tool_cannot_run_is_marked():
    text, _ = shown(over([8, 12], split="ragged"), tool="transformers")
    even, ragged = (row[0][5] for row in plans_in(text)["plans"])
    assert "per_device_train_batch_size: 8" in even and ragged[0].startswith("# not for transformers: ")


def test_with_a_profile_it_has_what_more_gpus_buy():
    result = over([1, 2, 4, 8, 16, 32], profile=timed_profile())
    _, parsed = shown(result)
    assert f"{result.knee} GPU" in parsed.text("bdi")
    assert [item["aria-label"].split(".")[0] for item in parsed.of("svg")] == ["Hours over GPUs"]


def test_it_is_small_for_512_counts():
    profile = ib.Profile.estimate(parameters=7 * 10**9, flops_per_sample=1e13, gpu_tflops=312, intra_gb_s=240)
    keep, grow = (over(range(1, 513), policy=policy, profile=profile) for policy in ("keep", "grow"))
    text = html(page_of_value(keep, beside=[grow], tool="transformers"))
    assert len(text.encode()) < 1_000_000


def test_no_text_ends_the_data_or_runs():
    recipe = ib.Recipe(effective_batch=128, lr=0.1)
    _, parsed = shown(ib.counts(recipe, [8]), title=HOSTILE[0] + "</script><script>alert(1)</script>")
    assert len(parsed.of("script")) == 2 and "alert(1)" not in parsed.text("script")
    data = html(page_of_value(ib.counts(recipe, [8]))._replace(choices=_Hostile))
    assert "</script><img" not in data and "\\u003c/script>\\u003cimg" in data


class _Hostile:
    counts, start, policies, tool, data = [8], 8, [("keep", "k")], None, '{"texts": ["</script><img>"]}'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: page_of_value(over(range(1, 4098))), "gpus must be at most 4,096 counts"),
        (lambda: page_of_value(over([8]), beside=[over([16])]), "beside must have the same counts"),
    ],
)
def test_wrong_choices(wrong, message):
    with pytest.raises(ib.InputError, match=message):
        wrong()


def test_the_command_writes_it(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    arguments = {"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 900}
    (tmp_path / "args.json").write_text(json.dumps(arguments))
    request = ["counts", "--from", "args.json", "--set", "gpus=4", "--gpus", "1..16", "-o", "page.html"]
    output = ran(request)
    assert output.out == "" and "page.html: 16 GPU counts, 0." in output.err
    data = plans_in((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["policies"] == ["keep", "grow"]
    assert "per_device_train_batch_size: 8" in data["plans"][-1][1][5]
    # One policy, another tool's lines, and charts alone.
    assert main([*request, "--policy", "grow", "--to", "deepspeed"]) == 0
    data = plans_in((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["policies"] == ["grow"] and "train_micro_batch" in " ".join(data["plans"][-1][0][5])
    timed_profile().save(tmp_path / "profile.json")
    assert main([*request[:-1], "page.svg", "--profile", "profile.json"]) == 0
    assert (tmp_path / "page.svg").read_bytes().startswith(b"<svg")
    for words, message in (
        (["--to", "hyperpod"], "which isobatch counts prints (--to hyperpod, without -o)"),
        (["-o", "page.pdf"], "cannot tell the format"),
        (["-o", "page.svg", "--gpus", "8"], "there is nothing to draw"),
    ):
        assert message in ran([*request, *words], 2).err


def test_in_python(tmp_path):
    write(over([8, 16]), tmp_path / "counts.html", title="Mine")
    assert Parsed((tmp_path / "counts.html").read_text(encoding="utf-8")).texts["title"] == ["Mine"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_slider_the_number_and_the_address_choose(tmp_path):
    gpus = [1, 2, 4, 7, 8, 16]
    listing = over(gpus, profile=timed_profile())
    page = page_of_value(listing, beside=[over(gpus, policy="grow")], tool="transformers")
    script = """
    const by = (id) => document.getElementById(id);
    const headline = () => by('headline').textContent.split(' GPU')[0];
    const mark = () => document.querySelector('.chosen_text_marks text').textContent;
    const seen = () => [location.hash, headline(), by('menu').hidden, by('lines').hidden, mark()];
    const states = [seen()];
    by('slider').value = 3;
    by('slider').dispatchEvent(new Event('input'));
    states.push(seen());
    by('menu').querySelector('a').click();
    await new Promise((go) => setTimeout(go, 200));
    states.push(seen());
    by('number').value = 12;
    by('number').dispatchEvent(new Event('change'));
    states.push(seen(), by('strip-words').textContent);
    document.querySelector('[name=policy][value=grow]').click();
    states.push(seen(), by('figures').textContent.includes('learning rate'));
    location.hash = '#gpus=2&policy=keep';
    await new Promise((go) => setTimeout(go, 200));
    states.push(seen(), by('slider').getAttribute('aria-valuetext'));
    return states;
    """
    assert run(tmp_path, html(page), script) == [
        ["", "4", True, False, "4 GPUs"],
        ["#gpus=7&policy=keep", "Cannot train on 7", False, True, "7 GPUs"],
        ["#gpus=4&policy=keep", "4", True, False, "4 GPUs"],
        ["#gpus=8&policy=keep", "8", True, False, "8 GPUs"],
        "12 is not among the counts: 8 is shown. 5 of 6 counts work as asked.",
        ["#gpus=8&policy=grow", "8", True, False, "8 GPUs"],
        True,
        ["#gpus=2&policy=keep", "2", True, False, "2 GPUs"],
        "2 GPUs",
    ]


def test_a_tuned_run_that_the_settings_forbid_is_shown_without_times():
    recipe = msgspec.structs.replace(RECIPE, gpus=8)
    listing = ib.counts(recipe, [1, 2, 4], policy="grow", max_batch=RECIPE.effective_batch // 2)
    assert listing.plan_at(8).status == "infeasible"
    answers = plans_in(shown(listing)[0])["plans"]
    assert any(was for *_, was in answers[-1][0][2])
