"""The command `txnlog show`: a process that serves and ends, a file, and what it refuses."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.runner import ENVIRONMENT, PROJECT, Command
from txnlog import Producer

LOCAL = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(PROJECT)}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """A root with a transaction of two topics."""
    found = Command(tmp_path)
    found.cluster()
    for topic in ("orders", "stock"):
        found.ok("topics", "create", "-t", topic, "--partitions", "1")
    producer = Producer({"txnlog.root": found.root, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", "secret-value", key="secret-key", headers=[("h", b"secret-header")])
    producer.produce("stock", "secret-value", key="secret-key")
    producer.commit_transaction()
    producer.close()
    return found


def content(folder: str) -> dict[str, tuple[int, bytes]]:
    """All files below it, with when they were written."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def page(url: str, cookie: str = "") -> tuple[int, str, str]:
    """Status, cookie and text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"cookie": cookie})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, (reply.getheader("set-cookie") or "").partition(";")[0], text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_ends_it_and_writes_nothing(
    command: Command, number: signal.Signals
) -> None:
    before = content(command.root)
    argv = [sys.executable, "-m", "txnlog.cli.main", "--root", command.root, "show"]
    process = subprocess.Popen(
        [*argv, "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=LOCAL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", url)
        status, cookie, _ = page(url)
        assert status == 303
        base = url.partition("?")[0]
        for path, shown in (
            ("", "No problems"),
            ("topic/orders", "secret-value"),
            ("transaction/0/0", "stock"),
            ("id/shop", "Its first owner is"),
            ("records?topic=stock&key=secret-key", "secret-value"),
        ):
            status, _, text = page(f"{base}{path}", cookie)
            assert (status, shown in text) == (200, True), path
    finally:
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    assert content(command.root) == before


def test_the_browser_is_started_with_a_file_of_this_user_and_not_with_the_token(
    command: Command, tmp_path: Path
) -> None:
    """Every user of the machine can list the arguments of a process."""
    seen = tmp_path / "seen"
    started = tmp_path / "browser"
    started.write_text(
        "#!/bin/sh\n"
        'file=$(printf %s "$1" | sed "s,^file://,,")\n'
        f'{{ echo "$@"; stat -c %a "$file" "$(dirname "$file")"; cat "$file"; }} > {seen}.part\n'
        f"mv {seen}.part {seen}\n"
    )
    started.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "txnlog.cli.main", "--root", command.root, "show"],
        stdout=subprocess.PIPE,
        env={**LOCAL, "BROWSER": str(started)},
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        while not seen.exists():
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    address, mode, folder_mode, text = seen.read_text().split("\n", 3)
    assert (mode, folder_mode) == ("600", "700")
    assert url.partition("=")[2] not in address
    assert url in text
    assert not Path(urlsplit(address).path).exists()


@pytest.mark.parametrize("with_values", [False, True])
def test_the_file_has_values_only_where_they_are_asked_for(
    command: Command, tmp_path: Path, with_values: bool
) -> None:
    """A file is passed on more easily than meant; keys and headers are values of users, too."""
    path = tmp_path / "root.html"
    more = ["--with-values"] if with_values else []
    result = command.run("show", "--html", str(path), "--from", "2s", *more)
    assert result.exit_code == 0, result.stderr
    assert re.fullmatch(rf"{re.escape(str(path))}: \d+ KiB\n", result.stdout)
    assert result.stderr == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir() if "root.html" in one.name] == ["root.html"]
    html = path.read_text()
    [packed] = re.findall(r'id="moments">(.*?)</script>', html)
    moments = json.loads(packed)
    assert 1 <= len(moments) <= 4
    pages = [gzip.decompress(base64.b64decode(one["pages"])).decode() for one in moments]
    for secret in ("secret-key", "secret-value", "secret-header"):
        assert (secret in html) == with_values
        assert (secret in pages[-1]) == with_values
    assert 'id="transaction/0/0"' in html
    assert "default-src 'none'; script-src 'sha256-" in unescape(html)
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(\s*['"]?(?!#)""", html)


def test_a_terminal_sees_how_far_it_is(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "root.html"
    code, text = command.on_terminal("show", "--html", str(path), "--from", "2s")
    assert code == 0
    assert re.search(r"(\d) of \1 moments\n.*root\.html: \d+ KiB\n", text)


def test_a_file_that_cannot_be_written_is_one_line(command: Command, tmp_path: Path) -> None:
    result = command.run("show", "--html", str(tmp_path / "none" / "root.html"))
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "args",
    [
        ["--with-values"],
        ["--from", "2h"],
        ["--html", "x.html", "--to", "noon"],
        ["--html", "x.html", "--from", "1h", "--to", "2h"],
    ],
)
def test_wrong_usage_is_refused(command: Command, args: list[str]) -> None:
    assert command.run("show", *args).exit_code == 2


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "jinja2"])
def test_without_the_extra_it_says_what_to_install(command: Command, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom txnlog.cli.app import app\napp()"
    run = subprocess.run(
        [sys.executable, "-c", code, "--root", command.root, "show", "--no-browser"],
        capture_output=True,
        text=True,
        env=LOCAL,
        check=False,
    )
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    assert f"needs {package}" in line
    assert "pip install 'txnlog[ui]'" in line
