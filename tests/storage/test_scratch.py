"""Scratch folders lie in memory: what a killed process left there would never go by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

from txnlog.storage.scratch import LEFT_AFTER_S, remove_left, scratch_folder


def test_folders_of_killed_processes_go_and_all_others_stay(tmp_path: Path) -> None:
    old_s = time.time() - LEFT_AFTER_S - 60
    for name in ("txnlog-checkpoint-old", "txnlog-checkpoint-young", "somebody-elses"):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
        if name != "txnlog-checkpoint-young":
            os.utime(tmp_path / name, (old_s, old_s))
    remove_left(str(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"txnlog-checkpoint-young", "somebody-elses"}
    remove_left(str(tmp_path / "not there"))


def test_scratch_folder_is_there_for_its_time_only() -> None:
    with scratch_folder(100) as folder:
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
