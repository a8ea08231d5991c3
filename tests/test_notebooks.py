"""The notebooks run from top to bottom; their own asserts say whether they are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_all_cells_run(spark: SparkSession, notebook: Path) -> None:
    """A notebook that no longer runs is worse than none: users start there."""
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    assert any("assert " in cell for cell in cells)
    namespace: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{notebook.name}, code cell {number}", "exec"), namespace)
