"""The command of docs/confluent-kafka.md that moves a program's imports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.docs.blocks import ROOT


def test_command_of_the_page_changes_every_form_of_import(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import confluent_kafka\nfrom confluent_kafka import Producer\n"
        "def consumer():\n    from confluent_kafka.admin import AdminClient\n"
        "import confluent_kafka_tools\n"
    )
    [command] = re.findall(r"^\$ (sed .*)$", (ROOT / "docs/confluent-kafka.md").read_text(), re.M)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert program.read_text() == (
        "import txnlog.compat.confluent_kafka as confluent_kafka\n"
        "from txnlog.compat.confluent_kafka import Producer\n"
        "def consumer():\n    from txnlog.compat.confluent_kafka.admin import AdminClient\n"
        "import confluent_kafka_tools\n"
    )
