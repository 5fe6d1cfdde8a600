"""Changes of a plan in a run's other files, and the script of the run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from isobatch.tools.launchers import layout
from isobatch.tools.page import Reading
from isobatch.tools.parse import SHELLS
from isobatch.tools.sheet import SettingsSheet
from isobatch.words import number_of


def changes_elsewhere(plan: Any, pages: Sequence[Reading], tool: str) -> Iterator[str]:
    """Yields the settings changed by a plan in each file of a run, without those written for `tool`."""
    for page in pages:
        is_written = page.tool == tool and "Accelerator" not in page.settings
        lines = [] if is_written else [*_changed_settings(plan, page)]
        if not (is_written and tool == "accelerate"):
            lines += _changed_processes(plan, page)
        if lines:
            auto = ' (or "auto")' if page.tool == "deepspeed" else ""
            yield f"{page.file} changes too: {', '.join(lines)}{auto}"


def _changed_settings(plan: Any, page: Reading) -> Iterator[str]:
    now = dict.fromkeys(("batch_per_gpu", "micro_batch"), plan.micro_batch)
    now |= {"accumulation": plan.accumulation, "effective_batch": plan.effective_batch, "lr": plan.lr}
    now |= {"duration": plan.total_steps, "warmup": plan.warmup_steps}
    for field, value in now.items():
        key = page.keys.get(field, "")
        written = number_of(str(page.value_of(key)))
        number = number_of(str(page.fields.get(field)).removesuffix("st"))
        if None not in (written, value) and written == number and number != value:
            yield f"{key} {page.value_of(key)} → {value}"


def _changed_processes(plan: Any, page: Reading) -> Iterator[str]:
    """Yields the lines of a launcher, of its configuration or of Slurm for the plan's nodes and GPUs."""
    nodes, each = layout(plan, SettingsSheet())
    now = dict.fromkeys(("nnodes", "num_nodes", "num_machines"), nodes)
    now |= {"num_processes": plan.world_size, "nproc_per_node": each, "num_gpus": each}
    for key, value in now.items():
        words = page.settings.get(key)
        word = words[0] if isinstance(words, list) and words else words  # the script may follow
        is_slurms = key in ("nnodes", "num_nodes") and word == page.job.get("nodes")
        if number_of(str(word)) not in (None, value) and not is_slurms:
            yield f"{'--' if Path(page.file).suffix in SHELLS else ''}{key} {word} → {value}"
    for key, value in (("nodes", nodes), ("gpus-per-node", each)):
        if int(page.job.get(key, value)) != value:
            yield f"#SBATCH --{key}={page.job[key]} → {value}"


def launched_script(pages: Sequence[Reading]) -> str | None:
    """Returns the Python script of a run: one of its files, or the word behind a launch line's flags."""
    files = [page.file.partition(":")[0] for page in pages]
    words = [
        word
        for page in pages
        for value in page.settings.values()
        if isinstance(value, list)
        for word in value
    ]
    return next((word for word in (*files, *words) if isinstance(word, str) and word.endswith(".py")), None)
