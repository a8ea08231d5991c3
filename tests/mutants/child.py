"""One run of pytest on a copy of the checkout, in a process forked for it.

What tests import from elsewhere is there already: it takes longer than most of these tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PRELOAD = [
    "pytest",
    "hypothesis.stateful",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "msgspec",
    "obstore.store",
    "deltalake",
    "pyspark.sql.datasource",
]
# The same examples and seeds in every run, and all cases, so that a mutant is killed by what the
# test says.
FIXED = {"CI": "1", "TXNLOG_SEED": "1", "TXNLOG_CASES": "all"}
WRONG_COPY = 70


def run_tests(checkout: str, copy: str, tests: tuple[str, ...], output: str) -> None:
    """Exit with pytest's code; what it prints goes to the file `output`."""
    os.setsid()
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    os.environ.update(FIXED, PYTHONPATH=copy)
    outside = [place for place in sys.path if Path(place).resolve() != Path(checkout)]
    sys.path[:] = [copy, *outside]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "txnlog")]:
        del sys.modules[name]
    import txnlog

    # What is installed would pass whatever the mutant.
    if not Path(txnlog.__file__).resolve().is_relative_to(Path(copy).resolve()):
        print(f"Python imports {txnlog.__file__}, not the copy in {copy}")
        sys.exit(WRONG_COPY)
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
    sys.exit(int(pytest.main([*options, *tests])))
