from typing import Any, TypeAlias, final

__all__ = ["Job", "Schedule", "fields", "fleet_fault", "plan_fleet", "reasons", "results", "rules"]

__version__: str

_Table: TypeAlias = tuple[int, list[tuple[str, Any]]]
_Pairs: TypeAlias = tuple[Any, Any] | None

@final
class Job:
    def __new__(cls, fields: dict[str, Any]) -> Job: ...
    def plan(self, cluster: tuple[Any, ...], settings: tuple[Any, ...]) -> tuple[Any, ...]: ...
    def stages(self, batch: int) -> list[tuple[int, int | None]]: ...
    def epoch(
        self,
        samples: int,
        effective_batch: int,
        data_parallel: int,
        micro_batch: int,
        accumulation: int,
        ragged: bool,
    ) -> tuple[int, int, int, int]: ...

def fields() -> list[tuple[str, str, str]]: ...
def reasons() -> list[tuple[str, str, str, str]]: ...
def rules() -> list[tuple[str, str, str, str]]: ...
def results() -> list[tuple[str, str]]: ...
def plan_fleet(
    jobs: _Table, clusters: _Table, shared: dict[str, Any], pairs: _Pairs, results: list[str]
) -> list[Any]: ...
def fleet_fault(
    jobs: _Table, clusters: _Table, shared: dict[str, Any], pairs: _Pairs, row: int
) -> tuple[str, str] | None: ...
