"""Every damage that is planted."""

from __future__ import annotations

from tests.verify.log_damage import (
    checkpoint_damages,
    commit_damages,
    file_damages,
    hint_damages,
    late_commits,
    replaced_commits,
)
from tests.verify.lost_damage import lost_commits, lost_folders
from tests.verify.state_damage import (
    batch_damages,
    cluster_warnings,
    group_damages,
    row_damages,
    table_damages,
)

DAMAGES = [
    *commit_damages(),
    *replaced_commits(),
    *late_commits(),
    *checkpoint_damages(),
    *hint_damages(),
    *file_damages(),
    *batch_damages(),
    *row_damages(),
    *group_damages(),
    *table_damages(),
    *lost_commits(),
    *lost_folders(),
    *cluster_warnings(),
]
