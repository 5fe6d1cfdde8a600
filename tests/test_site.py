"""The site's frame and the runner of the documents' blocks."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def hooks(monkeypatch):
    pytest.importorskip("mkdocs", reason="pip install --group docs")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import site_hooks

    return site_hooks


def block(language, code):
    return f'<div class="language-{language} highlight"><pre><span></span><code>{code}</code></pre></div>'


@pytest.mark.parametrize(
    ("code", "copied"),
    [
        (
            '<span class="gp">$ </span>ls<span class="w"> </span>-l\n<span class="go">total 0</span>\n',
            "ls -l",
        ),
        ("$ plan \\\n    --gpus 8\nout\n$ cd &quot;a&quot;\n", "plan \\\n    --gpus 8\ncd &quot;a&quot;"),
    ],
)
def test_a_terminals_commands_are_copied_alone(hooks, code, copied):
    assert f' data-copy="{copied}">' in hooks.on_page_content(block("console", code))


def test_output_has_no_copy_button_and_code_is_copied_whole(hooks):
    assert 'class="language-text highlight no-copy"' in hooks.on_page_content(block("text", "256\n"))
    python = block("python", "import isobatch as ib\n")
    assert hooks.on_page_content(python) == python


def test_a_corner_of_a_table_is_no_heading_and_the_search_has_a_name(hooks):
    assert hooks.on_page_content("<th></th><th>a</th>") == "<td></td><th>a</th>"
    assert 'aria-label="Search"' in hooks.on_post_template('<div role="dialog">')


def test_a_console_block_without_a_command_is_a_failure(tmp_path):
    """An indented block would pass unseen."""
    page = tmp_path / "page.md"
    page.write_text("- item\n\n  ```console\n  $ false\n  ```\n")
    words = [sys.executable, ROOT / "scripts/run_blocks.py", page]
    process = subprocess.run(words, capture_output=True, text=True)
    assert process.returncode == 1 and "nothing was run" in process.stdout
