"""Files on this host that options name: credentials, keys, certificates."""

from __future__ import annotations

import os
from typing import Final

from txnlog.storage.store.local_disk import IrregularFileError, LocalDisk, TooLargeError

FILE_BYTES_MAX: Final = 1 << 20


class UnusableFileError(Exception):
    """Why a file cannot be used, in words that show nothing of its content."""


def read_text(path: str) -> str:
    """The text of a file. A FIFO or a device is refused: reading one may never end.

    Raises UnusableFileError.
    """
    folder, name = os.path.split(path)
    try:
        return LocalDisk(folder).get(name, FILE_BYTES_MAX).decode()
    except OSError as error:
        raise UnusableFileError(error.strerror or "it cannot be read") from None
    except IrregularFileError as error:
        raise UnusableFileError(str(error)) from None
    except TooLargeError as error:
        raise UnusableFileError(f"it has {error} bytes") from None
    except ValueError:
        raise UnusableFileError("it is not text") from None


def check_regular(path: str) -> None:
    """Refuse what the store library would wait for. One that is missing, the library reports.

    Raises UnusableFileError.
    """
    folder, name = os.path.split(os.path.abspath(path))
    try:
        LocalDisk(folder).check_regular(name)
    except (OSError, ValueError):
        return
    except IrregularFileError as error:
        raise UnusableFileError(str(error)) from None
