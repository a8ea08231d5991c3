"""Random power cuts: after a repair `verify --deep` is clean, and every client goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair.checking import check
from tests.repair.power_cuts import History, build

HISTORIES = 1
CUTS = 8


@pytest.fixture(scope="module", params=range(HISTORIES))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = str(tmp_path_factory.mktemp("repair") / "root")
    return root, build(root, request.param), request.param


Built = tuple[str, History, int]


@pytest.mark.parametrize("cut", range(CUTS))
def test_root_after_a_power_cut_is_whole_again(built: Built, cut: int, tmp_path: Path) -> None:
    """Files are empty, torn, flipped or gone, in no order: what was synced is there, nothing comes
    twice, and no later commit is swallowed.
    """
    root, history, seed = built
    check(root, history, 100 * seed + cut, tmp_path / "damaged")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_root_after_many_power_cuts_is_whole_again(seed: int, tmp_path: Path) -> None:
    """More histories and damage."""
    root = str(tmp_path / "root")
    history = build(root, seed)
    for cut in range(CUTS):
        check(root, history, 100 * seed + cut, tmp_path / f"damaged-{cut}")
