"""What `%load_ext txnlog` does in IPython, hence in Jupyter, VS Code and others."""

from __future__ import annotations

import os
import sys
from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Clusters, topics and moments show themselves, and Spark runs this kernel's Python.

    The driver's Python is that of the kernel, whatever started it; workers may have their own.
    Raises UsageError without the extra `ui`.
    """
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from txnlog.ui.notebook import register
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        from IPython.core.error import UsageError

        raise UsageError(
            f"%load_ext txnlog needs {error.name}, which is not installed. "
            "Run: pip install 'txnlog[ui]'."
        ) from None
    register(shell.display_formatter.formatters)
