"""Random power cuts: after a repair `verify --deep` is clean, and every client goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Some
from tests.repair.checking import check
from tests.repair.power_cuts import build

CUTS = 8


def test_root_after_a_power_cut_is_whole_again(tmp_path: Path, some: Some[int]) -> None:
    """Files are empty, torn, flipped or gone, in no order: what was synced is there, nothing comes
    twice, and no later commit is swallowed.
    """
    root = str(tmp_path / "root")
    history = build(root, 0)
    for cut in some(range(CUTS)):
        check(root, history, cut, tmp_path / f"damaged-{cut}")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 20))
def test_root_after_many_power_cuts_is_whole_again(seed: int, tmp_path: Path) -> None:
    """More histories and damage."""
    root = str(tmp_path / "root")
    history = build(root, seed)
    for cut in range(CUTS):
        check(root, history, 100 * seed + cut, tmp_path / f"damaged-{cut}")
