"""A task of a job step is killed: srun leaves the others alone, and they go on in the same step."""

import json
import shlex
import sys

import pytest

pytest.importorskip("torch", reason="the job trains with it")

from ddp import surviving
from ddp.crews import Ranks, faults, lines

pytestmark = pytest.mark.slow
OPTIONS = {"ranks": 3, "min_ranks": 1, "lease": 10.0, "timeout": 60.0, "steps": 40}
JOB = """\
#!/bin/bash
#SBATCH --ntasks=3
export store={store} folder={folder} options={options} killed={killed}
srun --no-kill --kill-on-bad-exit=0 bash -c '
  [ "$SLURM_PROCID" = 1 ] && options=$killed
  exec {python} {script} "$store" "$folder" "r$SLURM_PROCID" "$options"'
exit 0
"""


def test_the_other_tasks_of_a_job_step_go_on(cluster, tmp_path):
    file, folder = tmp_path / "job.sbatch", tmp_path / "run"
    with Ranks(folder, OPTIONS) as store:
        folder.chmod(0o777)
        words = {
            "store": f"127.0.0.1:{store.port}",
            "folder": str(folder),
            "options": json.dumps(OPTIONS),
            "killed": json.dumps({**OPTIONS, "kills": [[12, "between"]]}),
            "python": sys.executable,
            "script": surviving.__file__,
        }
        file.write_text(JOB.format(**{name: shlex.quote(word) for name, word in words.items()}))
        number = cluster.sbatch(file)
        assert cluster.wait(number) == "COMPLETED", cluster.output(number)
    assert faults(folder, surviving.undisturbed(OPTIONS))[0] == [], cluster.output(number)
    crews = {line["crew"]: (line["of"], line["at"]) for line in lines(folder) if "at" in line}
    assert crews == {0: (3, 0), 1: (2, 12)}
