"""Reading a recipe's schedule text: "cosine", "wsd(decay=20%)", "multistep(30ep, 60ep, gamma=0.1)".

A text is the name of a kind, and in parentheses its arguments, each a name and a value, or a value alone, which goes to
the first argument that has none yet (or to the one that takes any number). Nothing nests, and no value holds a comma, so
that a split at commas is the whole grammar; Python's own parser was not taken, since 30ep is no expression of its. What a
value may be is what the kind's file says of the argument. A text is read when a recipe is made, long before a plan
knows what an epoch is worth: lengths stay exact fractions with their unit until `resolve`. Texts repeat down the columns
of a fleet, so that the last 1,024 of them are kept. All faults of a text are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from isobatch.errors import InputError, missing, must_be, together, unknown
from isobatch.schedules.arguments import choice, number, rate
from isobatch.schedules.kind import KINDS, LENGTH, SIGNED, WORD, Argument, Kind, Spec, builder, tails
from isobatch.schedules.lengths import Length

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\)\s*)?", re.DOTALL)


def check_spec(text: str) -> Spec:
    """Reads a schedule text such as "cosine", "wsd(decay=20%)" or "multistep(30ep, 60ep, gamma=0.1)".

    Raises:
        InputError: naming the nearest kind, or every argument that is wrong and what the kind takes.

    >>> from isobatch.schedules import check_spec
    >>> check_spec("wsd(decay=20%)").kind
    'wsd'
    >>> check_spec("cosin")
    Traceback (most recent call last):
    isobatch.errors.InputError: unknown schedule 'cosin': did you mean 'cosine'?
    """
    if not isinstance(text, str):
        raise must_be('a text such as "cosine" or "wsd(decay=20%)"', text, field="schedule")
    return _read(text)


@lru_cache(maxsize=1024)
def _read(text: str) -> Spec:
    match = _CALL.fullmatch(text)
    if match is None:
        raise must_be('a name and its arguments, such as "wsd(decay=20%)"', text, field="schedule")
    builder(match[1])
    kind = KINDS[match[1]]
    values: dict[str, Any] = {}
    faults = []
    for part in (match[2] or "").split(",") if (match[2] or "").strip() else []:
        try:
            name, value = _argument(kind, part, values)
            if kind.arguments[name].many:
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        except InputError as error:
            faults.append(InputError(error.message, field="schedule"))
    faults += _missing(kind, values) if not faults else []
    if faults:
        raise together(faults)
    return Spec(
        kind.name, {name: tuple(value) if type(value) is list else value for name, value in values.items()}
    )


def _argument(kind: Kind, part: str, given: dict[str, Any]) -> tuple[str, Any]:
    """The name and the value of one argument."""
    name, equals, value = (piece.strip() for piece in part.rpartition("="))
    takes = kind.arguments
    if not takes:
        raise must_be(f"{kind.name} alone, which takes no arguments", part.strip(), field="schedule")
    if not equals:
        many = [other for other, argument in takes.items() if argument.many]
        name = next(iter([*many, *(other for other in takes if other not in given)]), "")
        if not name:
            raise must_be(f"{kind.name} with at most {len(takes)} arguments", part.strip(), field="schedule")
    if name not in takes:
        raise unknown(f"argument of {kind.name}", name, takes, field="schedule")
    if name in given and not takes[name].many:
        raise InputError(f"{name} is given twice to {kind.name}", field="schedule")
    return name, _value(f"{name} of {kind.name}", takes[name], value)


def _value(field: str, argument: Argument, text: str) -> Length | float | str:
    """A value of an argument."""
    if argument.reads == WORD:
        return choice(field, text, tails())
    if argument.reads == LENGTH:
        length = Length.read(text)
        if length is None or length.value == 0:
            raise must_be(argument.reads, text, field=field)
        return length
    try:
        value = float(text)
    except ValueError:
        raise must_be(argument.reads, text, field=field) from None
    return (number if argument.reads == SIGNED else rate)(field, value)


def _missing(kind: Kind, given: dict[str, Any]) -> Iterator[InputError]:
    for name, argument in kind.arguments.items():
        if argument.required and name not in given:
            error = missing(f"{name} of {kind.name}", f"give it {argument.reads}")
            yield InputError(error.message, field="schedule")
