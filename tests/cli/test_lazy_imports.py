"""A command imports what it needs: where it does not, users wait for it at each start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runner import Command

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "pyarrow", "obstore", "pandas", "pyspark", "delta", "deltalake")
CLIENTS = ("txnlog.producer", "txnlog.consumer", "txnlog.admin")


def imported(code: str, *args: str) -> set[str]:
    """The modules that a new Python has imported after the code."""
    script = f"{code}\nimport sys; print(*sys.modules, sep='\\n', file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", script, *args],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return set(run.stderr.split())


def after(command: Command, *args: str) -> set[str]:
    run = "import sys\nfrom txnlog.cli.app import app\n"
    code = f"{run}try: app(sys.argv[1:])\nexcept SystemExit: pass"
    return imported(code, "--root", command.root, *args)


def test_the_command_itself_imports_no_client() -> None:
    """Options, --version and most completions need none."""
    found = imported("import txnlog.cli.app")
    assert not found & {*HEAVY, *CLIENTS, "rich.table"}
    assert not [name for name in found if name.startswith("txnlog.cli.") and "transactions" in name]


@pytest.mark.parametrize(
    ("args", "left_out"),
    [
        (("topics", "list"), ("txnlog.producer", "txnlog.housekeeping", "txnlog.cli.verify")),
        (("produce", "-t", "t"), ("txnlog.admin", "txnlog.housekeeping", "rich.table")),
        (("spark-conf",), ("txnlog.producer", "txnlog.housekeeping")),
    ],
)
def test_a_command_imports_its_own_module_only(
    command: Command, args: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    """Neither the modules of other commands, nor Spark, pandas or delta-rs."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    found = after(command, *args)
    assert "txnlog.cli.session" in found
    assert not found & {"pandas", "pyspark", "delta", "deltalake", *left_out}


@pytest.mark.parametrize("module", [*CLIENTS, "txnlog"])
def test_the_clients_import_neither_spark_nor_pandas_nor_the_command(module: str) -> None:
    """`pip install txnlog` has none of these, and the import takes a fraction of a second."""
    found = imported(f"import {module}")
    extras = {"pandas", "pyspark", "delta", "deltalake", "typer", "rich", "boto3", "py4j"}
    assert not found & {*extras, "confluent_kafka", "prometheus_client", "unittest"}
    assert "pyarrow.dataset" not in found
