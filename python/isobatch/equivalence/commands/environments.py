"""Environments of other releases: what pip would change in the present one, in a folder in front of it.

The folder has the named releases, and those that they need otherwise than they are installed; the rest of the
environment stays as it is. It is kept in a cache, so that a second question installs nothing.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from isobatch.errors import InputError, must_be
from isobatch.launch.command_line import CommandLine
from isobatch.words import few, nearest

INSTALL = 1800.0
"""Seconds for a download."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*?)\s*(\[[\w,\s-]+\])?\s*(==\s*([\w.+!-]+))?")
_RANGE = re.compile(r"(?:([A-Za-z0-9][\w.-]*?)\s*==)?\s*v?(\d+(?:\.\d+)*)\s*\.\.\s*v?(\d+(?:\.\d+)*)")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.post\d+)?")
KEPT = ("torch",)
"""Packages that keep their release unless they are named: another one is gigabytes, and another question."""


class Release(NamedTuple):
    """A package, and its release; none where only the package is named."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}".strip()


class Environment(msgspec.Struct, frozen=True):
    """An environment beside the present one.

    Attributes:
        label: in words.
        python: its interpreter; None where the command's own is used.
        folder: in front of the installed packages; None where the interpreter has its own.
        changes: releases that the folder has, as `name version`.
    """

    label: str
    python: str | None = None
    folder: Path | None = None
    changes: tuple[str, ...] = ()

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables of a start in this environment, beside those of the command."""
        own = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        variables = dict(environment)
        if self.folder is not None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.folder), own]))
        if self.python is not None:
            place = str(Path(self.python).absolute().parent)
            variables["PATH"] = os.pathsep.join([place, os.environ.get("PATH", os.defpath)])
        return variables

    def launch(self, launch: CommandLine) -> CommandLine:
        """Returns the command line with this environment's interpreter."""
        if self.python is None:
            return launch
        python, changes = self.python, {}
        if launch.name == "python":
            changes = {
                "alone": (python, *launch.alone[1:]),
                "head": (python, *launch.head[1:]),
                "options": (launch.options[0], python, *launch.options[2:]),
            }
        elif launch.head:
            module = "accelerate.commands.launch" if launch.hands_on else "torch.distributed.run"
            changes = {"head": (python, "-m", module)}
        return msgspec.structs.replace(launch, **changes)


PRESENT = Environment("the present environment")


def read_requirement(text: str) -> Release:
    """Reads `package==version`, or a package alone.

    >>> read_requirement("transformers==5.20.0"), read_requirement("trl")
    (Release(package='transformers', version='5.20.0'), Release(package='trl', version=''))
    """
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise must_be("PACKAGE==VERSION, such as transformers==5.20.0", text, field="--against")
    return Release(match[1], match[4] or "")


def read_range(text: str) -> tuple[str, str, str]:
    """Reads `A..B` or `package==A..B`: the package, which may be empty, and both ends.

    >>> read_range("5.0..5.24"), read_range("trl==1.0..1.4")
    (('', '5.0', '5.24'), ('trl', '1.0', '1.4'))
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise must_be("A..B, such as 5.0..5.24", text, field="--bisect")
    return match[1] or "", match[2], match[3]


def interpreter_of(launch: CommandLine) -> str:
    """Returns the interpreter of a command, by its launcher's first line."""
    word = launch.alone[0] if launch.name == "python" else launch.head[0] if launch.head else "python"
    path = shutil.which(word) or sys.executable
    with Path(path).open("rb") as file:
        line = file.readline(512)
    if not line.startswith(b"#!"):
        return path
    words = line[2:].decode(errors="replace").split()
    if Path(words[0]).name == "env":
        return shutil.which(words[-1]) or sys.executable
    return words[0] if Path(words[0]).exists() else sys.executable


def releases_between(python: str, package: str, first: str, last: str) -> list[str]:
    """Lists the releases of a package from `first` to `last`, patches of the last included, oldest first.

    Pre-releases are left out.
    """
    listed = _pip(python, ["index", "versions", package], f"the releases of {package}")
    line = next((line for line in listed.splitlines() if line.startswith("Available versions:")), "")
    versions = [version.strip() for version in line.partition(":")[2].split(",")]
    ends = number_of(first), number_of(last)
    if ends[0] > ends[1]:
        raise InputError(
            f"--bisect {first}..{last}: the first release is after the last one", field="--bisect"
        )
    inside = [
        version
        for version in versions
        if _RELEASE.fullmatch(version)
        and (_padded(number_of(version), ends[0]) >= ends[0])
        and (number_of(version) <= ends[1] or number_of(version)[: len(ends[1])] == ends[1])
    ]
    if len(inside) < 2:
        close = nearest(first, versions)
        hint = f"; near {first} is {close}" if close else ""
        raise InputError(
            f"--bisect {first}..{last}: the index has {few(inside, 1) or 'no release'} of {package} "
            f"there{hint}",
            field="--bisect",
        )
    return sorted(inside, key=number_of)


def number_of(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release, to order it.

    >>> sorted(["5.10.0", "5.9.1", "5.9"], key=number_of)
    ['5.9', '5.9.1', '5.10.0']
    """
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def _padded(number: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    return number + (0,) * (len(like) - len(number))


def make_environment(python: str, releases: Sequence[Release], cache: Path | None = None) -> Environment:
    """Makes the environment of `pip install` of some releases over the present one.

    Raises:
        InputError: a release does not exist, or cannot be installed; the message is pip's.
    """
    names = [f"{release.package}=={release.version}" for release in releases]
    label = ", ".join(map(str, releases))
    held = [name for name in KEPT if name not in {release.package.lower() for release in releases}]
    folder = (cache or _cache()) / hashlib.sha256("\n".join([python, *names]).encode()).hexdigest()[:16]
    record = folder / "isobatch.json"
    if not record.exists():
        changes = _resolve(python, names, held, label)
        part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            if changes:
                _install(python, [f"{name}=={version}" for name, version in changes], part, label)
            (part / record.name).write_text(json.dumps(changes))
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    changes = json.loads(record.read_text())
    return Environment(label, folder=folder, changes=tuple(" ".join(change) for change in changes))


def _resolve(python: str, names: Sequence[str], held: Sequence[str], label: str) -> list[list[str]]:
    """Asks pip for its choice of releases beside the present packages."""
    constraints = []
    for package in held:
        version = installed_version(python, package)
        constraints += [f"{package}=={version}"] if version else []
    words = ["install", "--dry-run", "--quiet", "--report", "-", *names, *constraints]
    report = json.loads(_pip(python, words, label) or "{}")
    metadata = [entry["metadata"] for entry in report.get("install", [])]
    return [[entry["name"], entry["version"]] for entry in metadata]


def _install(python: str, names: Sequence[str], folder: Path, label: str) -> None:
    """Installs releases into a folder, without dependencies: those are among them, or present."""
    if (uv := shutil.which("uv")) is not None:
        _call([uv, "pip", "install", "--python", python, "--no-deps", "--target", str(folder), *names], label)
    else:
        _pip(python, ["install", "--quiet", "--no-deps", "--target", str(folder), *names], label)


def installed_version(python: str, package: str) -> str:
    """Returns the version of a package in the present environment; empty where there is none."""
    program = (
        "import importlib.metadata as m, sys\n"
        "try: print(m.version(sys.argv[1]))\n"
        "except m.PackageNotFoundError: pass"
    )
    return _call([python, "-c", program, package], package).strip()


def _pip(python: str, words: Sequence[str], label: str) -> str:
    """Runs pip: the interpreter's own, else ours for it."""
    try:
        return _call([python, "-m", "pip", *words], label)
    except InputError as error:
        if "No module named pip" not in str(error):
            raise
    return _call([sys.executable, "-m", "pip", "--python", python, *words], label)


def _call(words: Sequence[str], label: str) -> str:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environment.pop("ISOBATCH_SAME", None)
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{label}: not installed within {INSTALL / 60:.0f} minutes") from None
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("[notice]")]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise InputError(f"{label} cannot be installed: {' '.join(errors[-2:])[:600]}", field="--against")
    return done.stdout


def _cache() -> Path:
    """Returns the folder of the environments: below ISOBATCH_CACHE, or the user's cache."""
    base = os.environ.get("ISOBATCH_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "isobatch" / "environments"
