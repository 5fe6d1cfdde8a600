"""The error of every wrong use of isobatch, and its sentences; public names on their way out.

One template: what was expected, what was given, and where it helps what to do: `lr must be a number above 0,
got -1`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from isobatch.words import few, nearest, printable, readable, redacted, shown


class InputError(ValueError):
    """An unusable input. The message names the file, row and field where they are known.

    Attributes: `file`, `row` (1 is the first row after the header) and `field`, each None where it does not
    apply; where several fields are bad `field` is the first of them, `fields` are all, and `causes` has an
    error for each. `is_illegal_value`: the field's value by itself is none that it may have (`must_be`).

    >>> str(InputError("lr must be a number above 0, got -1", file="jobs.csv", row=3, field="lr"))
    'jobs.csv, row 3: lr must be a number above 0, got -1'
    >>> str(InputError("12 is longer than the run", field="warmup"))
    'warmup: 12 is longer than the run'
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        row: int | None = None,
        field: str | None = None,
        causes: Sequence[InputError] = (),
        is_illegal_value: bool = False,
    ) -> None:
        if field and not field.isprintable():  # its line ends are no lines of the message
            message = message.replace(field, printable(field))
        message, file = readable(message), None if file is None else redacted(file)
        self.message, self.file, self.row, self.field = message, file, row, field
        self.causes, self.is_illegal_value = tuple(causes), is_illegal_value
        where = [None if file is None else printable(file), None if row is None else f"row {row:,}"]
        where.append(printable(field, 100) if field is not None and not _says(message, field) else None)
        place = ", ".join(part for part in where if part)
        super().__init__(f"{place}: {message}" if place else message)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all wrong fields."""
        own = () if self.field is None else (self.field,)
        return tuple(dict.fromkeys((*own, *(name for cause in self.causes for name in cause.fields))))

    def at(self, *, file: str | None = None, row: int | None = None, field: str | None = None) -> InputError:
        """Places the error better; a `field` is given as the person typed it.

        >>> str(InputError("lr must be above 0, got -1", field="lr").at(file="a.toml", field="--set lr"))
        'a.toml: --set lr must be above 0, got -1'
        """
        message = self.message
        if field is not None and self.field is not None and message.startswith(self.field):
            message = field + message[len(self.field) :]
        return InputError(
            message,
            file=self.file if file is None else file,
            row=self.row if row is None else row,
            field=self.field if field is None else field,
            causes=self.causes,
            is_illegal_value=self.is_illegal_value,
        )

    def without_file(self) -> InputError:
        """Drops the file, for a value from elsewhere."""
        illegal = self.is_illegal_value
        return InputError(
            self.message, row=self.row, field=self.field, causes=self.causes, is_illegal_value=illegal
        )


_PER_GPU_OR_ALL = ("batch", "batch_size", "batchsize", "train_batch_size")
"""Names with two meanings, samples of one GPU or of all: no nearest name may decide between them."""

_MAX_TYPED = 100
"""Characters of a number that somebody typed."""
_MAX_BEGUN_NAMES = 4
"""Names that begin with an unknown one, and are offered for it."""

MAX_SHOWN_FAULTS = 20
"""Faults that one message has."""


def together(errors: Sequence[InputError]) -> InputError:
    """Joins errors into one; its message has the first 20, its `causes` all.

    >>> faults = must_be("a number above 0", -1, field="lr"), missing("duration", 'add it, such as "90ep"')
    >>> print(together(faults))
    2 faults:
      - lr must be a number above 0, got -1
      - duration is missing: add it, such as "90ep"
    """
    if len(errors) == 1:
        return errors[0]
    shared = errors[0].file if len({error.file for error in errors}) == 1 else None
    lines = [str(error if shared is None else error.without_file()) for error in errors[:MAX_SHOWN_FAULTS]]
    if len(errors) > MAX_SHOWN_FAULTS:
        lines.append(f"and {len(errors) - MAX_SHOWN_FAULTS:,} more")
    message = "\n  - ".join((f"{len(errors):,} faults:", *lines))
    return InputError(message, file=shared, field=errors[0].field, causes=errors)


def raise_all(errors: Iterable[InputError]) -> None:
    """Raises errors as one; nothing where there is none."""
    if listed := [*errors]:
        raise together(listed)


def must_be(
    expected: str, got: Any, *, field: str, todo: str = "", file: str | None = None, row: int | None = None
) -> InputError:
    """Describes an unusable value; `got` may be its type. A number in another form is shown in the right one.

    >>> str(must_be("a number above 0", -1, field="lr"))
    'lr must be a number above 0, got -1'
    >>> str(must_be("a number above 0; needed for the cost", "3", field="price", row=2))
    "row 2: price must be a number above 0, got the text '3' (needed for the cost)"
    >>> str(must_be("sgd, adam or adamw", "adma", field="optimizer"))
    "optimizer must be sgd, adam or adamw, got 'adma': did you mean 'adam'?"
    >>> str(must_be("0, 1, 2 or 3", "3", field="zero_stage"))
    "zero_stage must be 0, 1, 2 or 3, got the text '3'"
    >>> str(must_be("a whole number", "50.000", field="dataset_size"))
    "dataset_size must be a whole number, got the text '50.000': write 50000 or 50"
    """
    legal, _, note = expected.partition("; ")
    value = f"a {got.__name__}" if isinstance(got, type) else shown(got)
    if isinstance(got, str):
        names = legal.replace(" or ", ", ").split(", ")
        if "number" in legal or got in names:
            value = f"the text {value}"
        close = None if todo or got in names else nearest(got, names)
        todo = f"did you mean {close!r}?" if close else todo or right_form(field, got)
    message = f"{field} must be {legal}, got {value}" + (f" ({note})" if note else "")
    message = f"{message}: {todo}" if todo else message
    return InputError(message, file=file, row=row, field=field, is_illegal_value=True)


def right_form(field: str, got: str) -> str:
    """Suggests the right form of a text for a field of the core; empty if nothing is likely.

    >>> right_form("lr", "0,1"), right_form("memory_gib", "80 GB"), right_form("lr", "fast")
    ('write 0.1', 'write 74.5058 or 80 (a GiB is 2^30 bytes, a GB 10^9)', '')
    """
    from isobatch import _core

    is_text = len(got) < _MAX_TYPED and not any("\ud800" <= character <= "\udfff" for character in got)
    form = _core.right_form(field, got) if is_text else None
    if form is None:
        return ""
    is_of_bytes = field == "memory_gib" and " or " in form
    return f"write {form}{' (a GiB is 2^30 bytes, a GB 10^9)' if is_of_bytes else ''}"


def missing(field: str, todo: str, *, file: str | None = None, row: int | None = None) -> InputError:
    """Describes something needed and absent.

    >>> str(missing("cluster", "pass --gpus N, or --nodes N --gpus-per-node M"))
    'cluster is missing: pass --gpus N, or --nodes N --gpus-per-node M'
    """
    return InputError(f"{field} is missing: {todo}", file=file, row=row, field=field)


def unknown(
    kind: str, name: Any, known: Iterable[str], *, field: str | None = None, file: str | None = None
) -> InputError:
    """Describes an unknown name, with the nearest known one.

    >>> str(unknown("rule", "lineer", ["linear", "sqrt"], field="rule"))
    "unknown rule 'lineer': did you mean 'linear'?"
    >>> str(unknown("field", "zebra", ["lr", "betas"]))
    "unknown field 'zebra': there are lr, betas"
    >>> str(unknown("gpu", "h100", ["A100-80", "H100-80", "H100-PCIe-80"]))
    "unknown gpu 'h100': did you mean 'H100-80' or 'H100-PCIe-80'?"
    """
    every, typed = list(known), name if isinstance(name, str) else ""
    close = nearest(typed, every) if typed else None
    begun = [each for each in every if len(typed) > 1 and each.lower().startswith(typed.lower())]
    is_batch = typed.lower() in _PER_GPU_OR_ALL and {"effective_batch", "batch_per_gpu"} <= {*every}
    if kind == "field" and is_batch:
        hint = (
            "write effective_batch (samples in a step, over all GPUs), or batch_per_gpu and gpus (samples in "
        )
        hint += "a step of one GPU)"
    elif close is not None:
        hint = f"did you mean {close!r}?"
    elif 0 < len(begun) <= _MAX_BEGUN_NAMES:
        hint = f"did you mean {' or '.join(map(repr, begun))}?"
    else:
        hint = f"there are {few(every, 40)}" if every else "there are none"
    return InputError(f"unknown {kind} {shown(name)}: {hint}", file=file, field=field)


def not_utf8(file: str) -> InputError:
    """A file of text in another encoding, as spreadsheets write it.

    >>> str(not_utf8("jobs.csv"))
    'jobs.csv: cannot be read: it is not UTF-8; save it as UTF-8 (spreadsheets call it "CSV UTF-8")'
    """
    todo = 'save it as UTF-8 (spreadsheets call it "CSV UTF-8")'
    return InputError(f"cannot be read: it is not UTF-8; {todo}", file=file)


def unreadable(error: Exception, file: str) -> InputError:
    """Describes an unreadable file, with the reader's reason."""
    return InputError(f"cannot be read: {printable(_said(error))}", file=file)


def unwritable(error: Exception, file: str) -> InputError:
    """Describes an unwritable file, with the writer's reason."""
    return InputError(f"cannot be written: {printable(_said(error))}", file=file)


def needs_extra(feature: str, extra: str, *, file: str | None = None) -> InputError:
    """Names the extra of isobatch to install.

    >>> str(needs_extra("tables in files", "fleet"))
    "tables in files need more than the core: pip install '.[fleet]'"
    """
    return InputError(f"{feature} need more than the core: pip install '.[{extra}]'", file=file)


def _says(message: str, field: str) -> bool:
    """Tells whether a sentence names the field itself."""
    return field in message and re.search(rf"(?<![\w-]){re.escape(field)}(?![\w-])", message) is not None


def first_line(error: BaseException) -> str:
    """Returns an error's kind and the first line of its text, if any.

    >>> first_line(ValueError("no such kind\\n  at line 3")), first_line(MemoryError())
    ('ValueError: no such kind', 'MemoryError')
    """
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Successor(NamedTuple):
    """The name to write instead of a deprecated one, and the version without the old name."""

    name: str
    removed_in: str


DEPRECATED: dict[str, Successor] = {}
"""By the old name as people write it: "isobatch.plan_all", "--max-gpus", "micro_batch_size".

A name of the package or an option needs only its row here; a field or a column asks `successor_of` where it
is read. A test fails from the version on in which a row goes.
"""

_REPORTED: set[str] = set()


def successor_of(name: str, report: Callable[[str], None] | None = None) -> str | None:
    """Returns the name to use in the place of a deprecated one, and warns the first time; None of others.

    The warning goes to `report`; without one it is a FutureWarning where the caller was called.
    """
    successor = DEPRECATED.get(name)
    if successor is None:
        return None
    if name not in _REPORTED:
        _REPORTED.add(name)
        text = f"{name} is deprecated and goes in isobatch {successor.removed_in}: use {successor.name}"
        if report is None:
            warnings.warn(text, FutureWarning, stacklevel=3)
        else:
            report(text)
    return successor.name
