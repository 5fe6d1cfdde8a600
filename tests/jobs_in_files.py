"""Files of jobs, and folders of plans."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq


def jobs_table(rows, seed=0, first=0):
    """Jobs with everything that a fleet may hold: unknown and illegal cells, carried columns, ids."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "job": [f"j{first + n}" for n in range(rows)],
            "effective_batch": pa.array(rng.choice([256, 1000, 4096, 0], rows), mask=rng.random(rows) < 0.05),
            "lr": rng.uniform(1e-4, 1, rows),
            "optimizer": pa.array(rng.choice(["sgd", "adamw", "sdg"], rows)),
            "duration": pa.array(rng.choice(["90ep", "1000st", "3q"], rows)),
            "dataset_size": rng.integers(10_000, 10_000_000, rows),
            "team": pa.array(rng.choice(["a", "b/c", None], rows).tolist(), pa.string()),
        }
    )


class Jobs:
    """A folder of files of jobs, and what their plans are."""

    def __init__(self, folder: Path, files: int, rows: int, row_group_size: int | None = None):
        self.folder, self.tables = folder, []
        folder.mkdir()
        for number in range(files):
            self.tables.append(jobs_table(rows, number, number * rows))
            path = folder / f"{number:02}.parquet"
            pq.write_table(self.tables[-1], path, row_group_size=row_group_size, write_page_checksum=True)

    @property
    def table(self):
        return pa.concat_tables(self.tables)


def plans_in(folder, **how):
    """All plans in a folder, as a reader of data sets finds them, in the order of the jobs."""
    table = ds.dataset(str(folder), format="parquet", **how).to_table()
    number = pa.array([int(job[1:]) for job in table["job"].to_pylist()])
    keys = [("number", "ascending"), *([("cluster", "ascending")] if "cluster" in table.column_names else [])]
    return (
        table.append_column("number", number).sort_by(keys).drop_columns(["number"]).replace_schema_metadata()
    )


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
