"""The first blocks of docs/monitoring.md run; tests/docs/test_spark_pages.py runs the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, generate_latest

from tests.docs.blocks import ROOT, Shell, blocks, play

PAGE = blocks(ROOT / "docs/monitoring.md")


def test_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """Readers copy them, and compare."""
    with Shell(tmp_path) as shell:
        play(shell, tmp_path, [block for block in PAGE if block.language == "console"])


def test_clients_of_the_page_are_exposed(tmp_path: Path) -> None:
    """By the registry that Python programs have."""
    block = next(block for block in PAGE if block.language == "python")
    text = block.text.replace("/data/lake", str(tmp_path / "lake")).replace("9402", "0")
    names: dict[str, Any] = {}
    exec(compile(text, block.place, "exec"), names)
    names["producer"].produce("orders", "x")
    names["producer"].flush()
    line = b'txnlog_producer_record_send_total{client_id="orders-writer"} 1.0'
    assert line in generate_latest(REGISTRY).splitlines()
    names["producer"].close()
