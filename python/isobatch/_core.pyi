from typing import Any, final

__all__ = ["Job", "fields", "fleet_fault", "plan_fleet", "reasons", "results", "rules"]

__version__: str

@final
class Job:
    def __new__(cls, fields: dict[str, Any]) -> Job: ...
    def plan(self, cluster: tuple[Any, ...], settings: tuple[Any, ...]) -> tuple[Any, ...]: ...
