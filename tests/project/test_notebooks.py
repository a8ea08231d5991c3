"""The notebooks run from top to bottom, and both files of each pair agree.

Each is a pair: the .ipynb to open, with outputs, and the .py (percent format) to review. After a
change to either file:

    jupytext --sync notebooks/*.ipynb
    python tests/project/test_notebooks.py [quickstart]

The second command runs the notebooks, or those that are named, and stores their outputs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jupytext
import nbformat
import pytest
from nbmake.nb_run import NotebookRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
CELL_S_MAX = 1_200

# Of the code whose outputs are stored, in the metadata of the .ipynb.
DIGEST = "outputs_of"
# stderr has only Spark's log; an address of memory differs in each run.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

# Set by the test run or `make` for its own Spark; a notebook works without them.
OURS = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR", "SPARK_HOME",
        "TXNLOG_FAILPOINT", "TXNLOG_FAILPOINT_STATE", "MPLBACKEND")  # fmt: skip


def needs_spark(name: str) -> bool:
    """Whether a notebook starts Spark."""
    return "build_session(" in (FOLDER / f"{name}.py").read_text()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> Path:
    """The environment of a kernel with this Python; the folder its notebook may write to.

    Not a kernel named python3 that a user has registered, nor that user's IPython start-up files.
    """
    folder = scratch / "notebook"
    shutil.rmtree(folder, ignore_errors=True)
    kernel_environment(monkeypatch, folder)
    return folder


def kernel_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The variables of such a kernel. Spark's sockets are in the folder, in a path of 100 bytes."""
    spec = folder / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    launcher = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": launcher, "display_name": "this", "language": "python"}))
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    # The environment may have another checkout's txnlog.
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
    # A short-lived JVM does not need the optimising compiler.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.mark.soak
@pytest.mark.spark
def test_quickstart_runs_in_a_session_that_is_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kernel, which would start Spark anew."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for cell in code_cells(nbformat.read(FOLDER / "quickstart.ipynb", 4)):
        exec(re.sub("^(%.*|spark.stop\\(\\))$", "", cell.source, flags=re.MULTILINE), names)
    names["views"].drop()
    spark.catalog.dropTempView("us")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.spark] if needs_spark(name) else []) for name in NAMES],
)
@pytest.mark.soak
def test_notebook_all_cells_run(kernel: Path, name: str) -> None:
    """Users start with the notebooks."""
    before = set(FOLDER.iterdir())
    result = NotebookRun(FOLDER / f"{name}.ipynb", CELL_S_MAX, kernel="python3").execute()
    assert result.error is None, result.error.trace
    cells = code_cells(result.nb)
    assert "assert " in cells[-1].source, "the last cell says whether it went well"
    drawn = [out for cell in cells for out in cell.outputs if "image/png" in out.get("data", {})]
    assert bool(drawn) == any("matplotlib" in cell.source for cell in cells)
    assert list(kernel.glob("txnlog-*")), "the data lies in the temporary folder"
    assert set(FOLDER.iterdir()) == before, "and nothing beside the notebook"


@pytest.mark.parametrize("directory", ["notebooks", "."])
@pytest.mark.parametrize("name", NAMES)
def test_notebook_first_cell_finds_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, directory: str
) -> None:
    """Jupyter starts a kernel in the notebook's folder, editors and scripts often at the root."""
    kernel_environment(monkeypatch, tmp_path / "kernel")
    cells = code_cells(nbformat.read(FOLDER / f"{name}.ipynb", 4))
    # Without the session: that takes a JVM.
    code = re.split("^spark = ", cells[0].source, flags=re.MULTILINE)[0]
    shown = "import os\nprint(os.environ['PYSPARK_PYTHON'])"
    if needs_spark(name):
        shown += "\nimport spark_session\nprint(spark_session.PROJECT)"
    run = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", f"{code}\n{shown}"],
        cwd=PROJECT / directory,
        capture_output=True,
        text=True,
    )
    wanted = [sys.executable, str(PROJECT)] if needs_spark(name) else [sys.executable]
    assert run.stdout.split() == wanted, run.stderr


def test_notebooks_are_pairs() -> None:
    """A .py without its .ipynb is neither tested nor opened."""
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES
    assert len(NAMES) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_notebook_pairs_have_the_same_cells(name: str) -> None:
    """Reviewers read the .py, users run the .ipynb: a change to only one is lost or unseen."""
    notebook = jupytext.read(FOLDER / f"{name}.ipynb")
    script = jupytext.read(FOLDER / f"{name}.py")
    assert contents(notebook) == contents(script), "run jupytext --sync notebooks/*.ipynb"
    for half in (notebook, script):
        assert half.metadata.jupytext.formats == "ipynb,py:percent"
        assert half.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_in_git_has_the_outputs_of_its_code(name: str) -> None:
    """Readers of the site see them without running anything, and old ones would be lies."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    advice = "run python tests/project/test_notebooks.py"
    assert notebook.metadata.get(DIGEST) == digest(notebook), advice
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), advice
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs, advice
    assert not [output for output in outputs if output.output_type == "error"]
    assert str(PROJECT) not in json.dumps(outputs), "a path that exists on one machine only"


def store_outputs(names: list[str]) -> None:
    """Run notebooks in a kernel of this Python, and write their outputs into them."""
    for name in names:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as scratch:
            kernel_environment(patch, Path(scratch) / "notebook")
            result = NotebookRun(FOLDER / f"{name}.ipynb", CELL_S_MAX, kernel="python3").execute()
        assert result.error is None, result.error.trace
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
        for number, (cell, run) in enumerate(
            zip(code_cells(notebook), code_cells(result.nb), strict=True), 1
        ):
            kept = [output for output in run.outputs if output.get("name") != "stderr"]
            shown = _ADDRESS.sub("", json.dumps(kept).replace(str(PROJECT), "txnlog"))
            cell.outputs = [nbformat.from_dict(output) for output in json.loads(shown)]
            cell.execution_count = number
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = number
        notebook.metadata[DIGEST] = digest(notebook)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")


def digest(notebook: Any) -> str:
    """Of the code of all cells."""
    code = json.dumps([cell.source for cell in code_cells(notebook)])
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def contents(notebook: Any) -> list[tuple[str, str]]:
    """Kind and text of each cell."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def code_cells(notebook: Any) -> list[Any]:
    """The code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


if __name__ == "__main__":
    store_outputs(sys.argv[1:] or NAMES)
