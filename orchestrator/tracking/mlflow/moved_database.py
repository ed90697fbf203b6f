"""Mends a MLflow database that was moved or copied with its runs.

MLflow stores where artifacts are as absolute addresses. In a copy they would lead to the files of
the place where it came from.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from orchestrator.tracking.mlflow.tracking_uri import ARTIFACTS

LIMIT_S = 60.0
COLUMNS = {"experiments": "artifact_location", "runs": "artifact_uri"}


def mend(database: Path, artifacts: str) -> None:
    """Let all artifacts that lay beside the runs elsewhere lie in `artifacts`, a file URI."""
    with closing(sqlite3.connect(database, timeout=LIMIT_S)) as connection, connection:
        for earlier in earlier_folders(connection, artifacts):
            for table, column in COLUMNS.items():
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                    f" WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (artifacts, len(earlier) + 1, earlier, len(earlier) + 1, f"{earlier}/"),
                )


def earlier_folders(connection: sqlite3.Connection, artifacts: str) -> list[str]:
    """Return the folders of artifacts beside runs that are not this one."""
    query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location IS NOT NULL"
    found = (str(row[0]) for row in connection.execute(query))
    return [
        one
        for one in found
        if one.startswith("file:") and one.endswith(f"/{ARTIFACTS}") and one != artifacts
    ]
