"""The page in Chromium: nothing foreign runs, the table sorts and filters, nothing exceeds the window."""

import base64
import hashlib
import html as escapes
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.report.allocation_page import allocation_page
from isobatch.report.page import HtmlPage, html
from isobatch.report.pages import page_of_value
from report.pages import coinciding_fleet, comparison, hostile_fleet, timed_profile, validation, wide_fleet
from report.test_allocation_page import LOG

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

RECIPE = ib.Recipe(gpus=4, effective_batch=128, micro_batch=8, lr=2e-5, dataset_size=52_002, duration="3ep")


def over(gpus, **settings):
    """Counts of a recipe on one large node."""
    return ib.counts(RECIPE, gpus, cluster=ib.Cluster(gpus_per_node=8192), **settings)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]

WAIT = (
    "const wait = async () => { for (let n = 0; n < 6000 && document.querySelector('#rows, .choice') && "
    "(document.getElementById('rows') ?? document.body).dataset.ready !== 'yes'; n++) await new Promise((go) "
    "=> setTimeout(go, 10)); };"
)


def run(tmp_path, text, script, width=900, dark=False):
    """Runs a script in the page and returns its answer; its digest is added to the permitted ones."""
    code = (
        f"(async () => {{ {WAIT} await wait(); const answer = await (async () => {{ {script} }})();const "
        "place = document.createElement('pre'); place.id = 'answer'; place.textContent = "
        "JSON.stringify(answer);document.body.append(place); })();"
    )
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    text = text.replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    page = tmp_path / "page.html"
    page.write_text(text.replace("</body>", f"<script>{code}</script></body>"), encoding="utf-8")
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=120000"]
    words += ["--dump-dom", f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    words += ["--blink-settings=preferredColorScheme=0"] if dark else []
    process = subprocess.run([*words, page.as_uri()], capture_output=True, text=True, timeout=500, check=True)
    answer = re.search(r'<pre id="answer">(.*?)</pre>', process.stdout, re.DOTALL)[1]
    return json.loads(escapes.unescape(answer))


def test_nothing_foreign_runs(tmp_path):
    text = html(page_of_value(hostile_fleet(), title="a page"))
    script = (
        "return [document.title, document.querySelectorAll('tbody img, tbody svg, tbody script').length, "
        "document.querySelectorAll('#rows tbody tr').length]"
    )
    assert run(tmp_path, text, script) == ["a page", 0, 33]


def test_the_table_sorts_and_filters(tmp_path):
    table = wide_fleet(100, profile=timed_profile())
    text = html(page_of_value(table))
    script = """
    const cells = (row) => [...row.children].map((cell) => cell.textContent);
    const rows = () => [...document.querySelectorAll('#rows tbody tr')].map(cells);
    const shown = () => document.getElementById('rows-shown').textContent;
    const heads = [...document.querySelectorAll('#rows thead th')];
    const column = heads.findIndex((head) => head.textContent === 'effective_batch');
    const all = [shown(), rows().length];
    heads[column].querySelector('button').click();
    const least = rows()[0][column], last = rows().at(-1)[column];
    heads[column].querySelector('button').click();
    const most = rows()[0][column], sorted = heads[column].getAttribute('aria-sort');
    const find = document.getElementById('rows-find');
    find.value = 'JOB-00007';
    find.dispatchEvent(new Event('input'));
    const filtered = [shown(), rows().every((row) => row[0] === 'job-00007')];
    const status = document.getElementById('rows-status');
    status.value = 'infeasible';
    status.dispatchEvent(new Event('change'));
    return [all, least, last, most, sorted, filtered, shown()];
    """
    batches = [value for value in table["effective_batch"].tolist() if value > 0]
    bad = sum(1 for code in table["status"].tolist()[70:80] if code in (2, "infeasible"))
    # Unknown values come last.
    assert len(batches) < 1_000
    assert run(tmp_path, text, script) == [
        ["1,000 of 1,000 rows", 1_000],
        f"{min(batches):,}",
        "",
        f"{max(batches):,}",
        "descending",
        ["10 of 1,000 rows", True],
        f"{bad} of 1,000 rows" if bad else "no row has that",
    ]


PAGES = {
    "counts": lambda: over(range(1, 9), profile=timed_profile()),
    "plan": lambda: ib.plan(RECIPE, 16, policy="grow"),
    "menu": lambda: ib.plan(RECIPE, 7),
    "fleet": lambda: wide_fleet(5, profile=timed_profile()),
    "hostile": hostile_fleet,
    "validation": validation,
    "same": comparison,
    "bars": coinciding_fleet,
    "pool": lambda: allocation_page(LOG),
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(tmp_path, name, dark):
    package = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
    axe = Path(package.__path__[0], "axe.min.js").read_text(encoding="utf-8")
    opened = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
    script = f"{axe}; {opened}; const {{ violations }} = await axe.run(); "
    script += "return violations.map((fault) => [fault.id, fault.nodes[0].html]);"
    value = PAGES[name]()
    page = value if isinstance(value, HtmlPage) else page_of_value(value)
    assert run(tmp_path, html(page), script, 400, dark) == []


@pytest.mark.parametrize("width", [500, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(tmp_path, name, width):
    value = PAGES[name]()
    text = html(value if isinstance(value, HtmlPage) else page_of_value(value))
    script = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    whole = (
        "[...document.querySelectorAll('figure')].every((chart) => chart.scrollWidth <= chart.clientWidth)"
    )
    assert run(tmp_path, text, f"{script} && {whole}", width)
