"""An S3 server refuses requests whose date is wrong, so that dates prove slots (D129)."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.stores.servers import BUCKET, S3_KEY, S3_SECRET, NotInstalledError, Server, running

pytestmark = pytest.mark.stores
BOUND_MIN = 15
AROUND_MIN = 1
"""Far from the bound, so that a slow machine sees the same."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with running("versitygw") as found:
            yield found
    except NotInstalledError as error:
        pytest.skip(str(error))


def put_if_absent(
    server: Server, name: str, minutes: float, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The reply to a conditional put by a process whose clock is wrong by so many minutes."""

    def wrong_now(remove_tzinfo: bool = True) -> datetime:
        found = datetime.now(timezone.utc) + timedelta(minutes=minutes)
        return found.replace(tzinfo=None) if remove_tzinfo else found

    endpoint = server.place().options["aws_endpoint"]
    asked = AWSRequest(
        "PUT", f"{endpoint}/{BUCKET}/{name}", data=b"commit", headers={"If-None-Match": "*"}
    )
    with monkeypatch.context() as patched:
        patched.setattr(botocore.auth, "get_current_datetime", wrong_now)
        keys = Credentials(S3_KEY, S3_SECRET)
        botocore.auth.S3SigV4Auth(keys, "s3", "us-east-1").add_auth(asked)
    headers = {key: str(value) for key, value in asked.headers.items()}
    request = urllib.request.Request(asked.url, data=b"commit", method="PUT", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    return "created"


@pytest.mark.parametrize("sign", [-1, 1])
def test_put_of_a_process_that_slept_has_no_effect(
    server: Server, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit sent with the clock of long ago would be acknowledged in a freed slot (R70)."""
    late, soon = sign * (BOUND_MIN + AROUND_MIN), sign * (BOUND_MIN - AROUND_MIN)
    name = f"slot{sign}"
    for minutes in (late, late * 40):
        assert "RequestTimeTooSkewed" in put_if_absent(server, name, minutes, monkeypatch)
    assert put_if_absent(server, name, soon, monkeypatch) == "created"
    assert "PreconditionFailed" in put_if_absent(server, name, 0, monkeypatch)
