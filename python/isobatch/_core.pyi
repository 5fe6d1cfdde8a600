from typing import Any, final

__all__ = ["Job", "fields", "fleet_fault", "plan_fleet", "reasons", "results", "rules"]

__version__: str

@final
class Job:
    def __new__(cls, fields: dict[str, Any]) -> Job: ...
    def plan(self, cluster: tuple[Any, ...], settings: tuple[Any, ...]) -> tuple[Any, ...]: ...

def fields() -> list[tuple[str, str, str]]: ...
def reasons() -> list[tuple[str, str, str, str]]: ...
def rules() -> list[tuple[str, str, str, str]]: ...
def results() -> list[tuple[str, str]]: ...
def plan_fleet(
    jobs: tuple[int, list[tuple[str, Any]]],
    clusters: tuple[int, list[tuple[str, Any]]],
    shared: dict[str, Any],
    pairs: tuple[Any, Any] | None,
    results: list[str],
) -> list[Any]: ...
def fleet_fault(
    jobs: tuple[int, list[tuple[str, Any]]],
    clusters: tuple[int, list[tuple[str, Any]]],
    shared: dict[str, Any],
    pairs: tuple[Any, Any] | None,
    row: int,
) -> tuple[str, str] | None: ...
