"""Rows of the files of published runs, for tests of the score."""

import csv
from pathlib import Path

from orchestrator.evidence.score.published_runs import PUBLISHED, read
from tests.conftest import ROOT

UNSEEN = ROOT / "tests" / "unseen_runs.csv"
ROWS = {row["id"]: row for row in read(PUBLISHED)}
LLAMA = ROWS["tr_v6e_llama3.1-8b_1x_8_20250715"]


def write_rows(folder: Path, rows: list[dict[str, str]]) -> Path:
    path = folder / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*rows[0]])
        table.writeheader()
        table.writerows(rows)
    return path
