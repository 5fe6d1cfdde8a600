"""Rooms of the core use only those before them, and no files use each other in a circle."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CORE = Path(__file__).parent.parent / "rust" / "core" / "src"

# A room and the rooms that it may use.
ROOMS = {
    "reason": set(),
    "numbers": set(),
    "batch": {"numbers"},
    "rules": set(),
    "lengths": {"batch"},
    "input": {"reason", "batch", "rules", "lengths"},
    "forecast": {"reason", "batch", "input"},
    "plan": {"numbers", "reason", "batch", "rules", "lengths", "input", "forecast"},
    "bulk": {"numbers", "reason", "batch", "rules", "lengths", "input", "forecast", "plan"},
    "allocate": set(),
    "schedule": set(),
}


def module_of(path):
    parts = path.relative_to(CORE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "mod" else parts


FILES = {module_of(path): path for path in sorted(CORE.rglob("*.rs")) if "tests" not in module_of(path)}


def leaves(tree):
    """The paths of a use: those of `a::{b, c::d}` are `a::b` and `a::c::d`."""
    prefix, brace, inner = tree.partition("{")
    if not brace:
        return [tuple(tree.split(" as ")[0].strip().split("::"))]
    branches, depth = [""], 0
    for letter in inner[: inner.rindex("}")]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            branches.append("")
        else:
            branches[-1] += letter
    return [leaf for branch in branches if branch.strip() for leaf in leaves(prefix + branch.strip())]


def uses(module):
    """The `use` paths of a file without its tests', from the crate's root: (path, whether it is public)."""
    path = FILES[module]
    text = re.sub(r"//.*", "", path.read_text(encoding="utf-8")).partition("#[cfg(test)]\nmod tests {")[0]
    own = module if path.name == "mod.rs" else module[:-1]
    for public, tree in re.findall(r"^ *(pub\S* )?use ([^;]+);", text, re.MULTILINE):
        for root, *rest in leaves(re.sub(r"\s+", " ", tree)):
            at = {"crate": (), "super": module[:-1]}.get(root, (*own, root))
            while rest and rest[0] == "super":
                at, rest = at[:-1], rest[1:]
            yield (*at, *rest), bool(public)


def home(path):
    """The file that an item lives in: a face hands it on from there."""
    while path and path not in HANDED_ON and path not in FILES:
        path = path[:-1]
    return home(HANDED_ON[path][:-1]) if path in HANDED_ON else path


FACES = {module for module, path in FILES.items() if path.name == "mod.rs"}
HANDED_ON = {
    (*face, path[-1]): path for face in FACES for path, public in uses(face) if public and path != face
}
GRAPH = {module: {home(path) for path, _ in uses(module)} - {module, ()} for module in FILES}


def test_every_file_lies_in_a_room():
    assert len(FILES) > 50
    assert {module[0] for module in FILES} == {*ROOMS, "lib"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_only_those_before_it(room):
    wrong = [
        f"{'::'.join(module)} uses {'::'.join(used)}"
        for module, uses in GRAPH.items()
        if module[0] == room
        for used in uses
        if used[0] not in {room, *ROOMS[room]}
    ]
    assert not wrong


def test_no_files_use_each_other_in_a_circle():
    # A face hands on what its own files have.
    graph = {module: uses - FACES for module, uses in GRAPH.items() if module not in FACES}
    assert sum(map(len, graph.values())) > 100
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a circle: " + " <- ".join("::".join(module) for module in error.args[1]))
