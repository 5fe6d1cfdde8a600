"""The variables of a Slurm job, from the #SBATCH lines of its own script."""

import re

_OPTION = re.compile(
    r"(?<=\s)(--(?:nodes|ntasks|ntasks-per-node|gpus-per-node|cpus-per-task)(?==|\s)"
    r"|--gres(?=[=\s]gpu)|-[Nnc])"
    r"[=\s]?\s*(\S+)"
)
_VARIABLES = {
    "nodes": "SLURM_NNODES SLURM_JOB_NUM_NODES",
    "ntasks": "SLURM_NTASKS SLURM_NPROCS",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "gpus-per-node": "SLURM_GPUS_ON_NODE",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
}
"""Variables of a job by the option of sbatch that sets them."""
_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "gres": "gpus-per-node"}
_NEXT_COMPONENT = re.compile(r"#SBATCH\s+(hetjob|packjob)\b")
_GROUP = re.compile(r"--(?:het|pack)-group[=\s]+(\S+)")


def job_components(text: str) -> list[dict[str, str]]:
    """Lists the numbers asked for by each component of a job; a heterogeneous job has several.

    Only lines before the first command count, and a range of nodes is no number.

    >>> job_components("#SBATCH -N 2 --gres=gpu:a100:8\\n#SBATCH hetjob\\n#SBATCH -N 1-2\\nls\\n#SBATCH -n 3")
    [{'nodes': '2', 'gpus-per-node': '8'}, {}]
    """
    components: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if _NEXT_COMPONENT.match(line):
            components.append({})
        elif line.startswith("#SBATCH"):
            for option in _OPTION.finditer(line.partition(" #")[0]):
                name = option[1].strip("-")
                components[-1][_SHORT.get(name, name)] = option[2].rpartition(":")[2]
    return [
        {name: value for name, value in component.items() if value.isdecimal()} for component in components
    ]


def job_variables(components: list[dict[str, str]]) -> dict[str, str]:
    """Names the variables set by Slurm; those of the second component end in `_HET_GROUP_1`."""
    variables = {}
    for number, component in enumerate(components):
        if "ntasks" not in component and {"nodes", "ntasks-per-node"} <= component.keys():
            component["ntasks"] = str(int(component["nodes"]) * int(component["ntasks-per-node"]))
        for option, names in _VARIABLES.items():
            for name in names.split() if option in component else ():
                if number == 0:
                    variables[name] = component[option]
                if len(components) > 1:
                    variables[f"{name}_HET_GROUP_{number}"] = component[option]
    return variables


def group_of(text: str) -> int | None:
    """Returns the job component of a command of `srun`; None where several are possible.

    >>> group_of("srun --het-group=1 torchrun t.py"), group_of("srun t"), group_of("srun --het-group=0,1 t")
    (1, 0, None)
    """
    groups = set(_GROUP.findall(text)) or {"0"}
    only = groups.pop()
    return int(only) if not groups and only.isdecimal() else None
