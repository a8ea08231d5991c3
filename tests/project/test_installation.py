"""What `pip install txnlog` brings: the clients, by themselves, in at most 300 MB."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SIZE_BYTES_MAX = 300_000_000
EXTRAS = {
    "all", "azure", "cli", "confluent", "deltalake", "gcs", "openlineage", "prometheus", "s3",
    "spark", "ui",
}  # fmt: skip
FOR_DEVELOPERS = {"demo", "dev", "docs", "peers", "test"}
DOCKERFILE = (ROOT / "Dockerfile").read_text()

# Without site-packages: only what was put into the folder can be imported.
CLIENT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from txnlog import AdminClient, Consumer, NewTopic, Producer
root = {"txnlog.root": sys.argv[2]}
AdminClient(root).create_topics([NewTopic("t", 1)])["t"].result()
with Producer({**root, "transactional.id": "x"}) as producer:
    producer.init_transactions()
    with producer.transaction():
        producer.produce("t", key="k", value="v")
with Consumer({**root, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
    consumer.subscribe(["t"])
    value = consumer.poll(30).value().decode()
extras = {"pyspark", "pandas", "delta", "typer", "confluent_kafka"}
found = sorted(extras & {*sys.modules})
print(json.dumps([value, found]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What a package index reads of it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def built(source: Path, folder: Path) -> Path:
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_python(*arguments: str, cwd: Path) -> str:
    run = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def required(metadata: Message, extra: str = "") -> dict[str, Requirement]:
    """The direct requirements, or those of an extra alone."""
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist") or ()]
    return {
        one.name: one
        for one in found
        if (one.marker is None) == (not extra)
        and (one.marker is None or one.marker.evaluate({"extra": extra}))
    }


def closure(names: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """The installed packages that these need, and they themselves."""
    found: dict[str, importlib.metadata.Distribution] = {}
    while names:
        name = names.pop()
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            wanted = [Requirement(text) for text in found[name].requires or ()]
            names += [
                one.name
                for one in wanted
                if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return found


def test_clients_are_installed_without_spark_in_300_mb(wheel: Path, metadata: Message) -> None:
    """A Python service does not want a JVM's jars, nor a gigabyte in its image."""
    packages = closure([*required(metadata)])
    assert set(required(metadata)) == {"pyarrow", "numpy", "obstore", "msgspec"}
    assert not {"pyspark", "pandas", "delta-spark", "deltalake"} & {*packages}
    sizes = {
        name: sum(
            path.stat().st_size
            for file in package.files or ()
            if (path := Path(str(package.locate_file(file)))).is_file()
        )
        for name, package in packages.items()
    }
    assert min(sizes.values()) > 0
    with zipfile.ZipFile(wheel) as archive:
        own = sum(entry.file_size for entry in archive.infolist())
    assert sum(sizes.values()) + own <= SIZE_BYTES_MAX, sizes


def test_clients_run_with_only_what_is_declared(
    wheel: Path, metadata: Message, tmp_path: Path
) -> None:
    """An undeclared package is there in every environment but the user's."""
    folder = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for package in closure([*required(metadata)]).values():
        tops = {Path(file).parts[0] for file in package.files or ()} - {"..", "__pycache__"}
        for top in tops:
            target = folder / top
            if not target.exists():
                target.symlink_to(Path(str(package.locate_file(top))).resolve())
    arguments = ("-I", "-S", "-c", CLIENT, str(folder), str(tmp_path / "lake"))
    assert json.loads(run_python(*arguments, cwd=tmp_path)) == ["v", []]


def test_extras_are_those_of_the_docs_and_all_is_all_of_them(metadata: Message) -> None:
    """`txnlog[all]` forgets nothing; the docs name no extra that does not exist."""
    declared = set(metadata.get_all("Provides-Extra") or ())
    assert declared >= EXTRAS
    assert declared <= EXTRAS | FOR_DEVELOPERS
    each = {name for extra in EXTRAS - {"all"} for name in required(metadata, extra)}
    assert set(required(metadata, "all")) == each
    assert {"pyspark", "pandas"} == set(required(metadata, "spark"))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        extra.strip()
        for page in pages
        for extras in re.findall(r"txnlog\[([\w, ]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert named <= EXTRAS
    assert {"spark", "cli"} <= named


def test_compiled_packages_have_upper_bounds_that_admit_what_is_tested(metadata: Message) -> None:
    """A new major version of a compiled package must not break an old release of txnlog."""
    for name, requirement in required(metadata).items():
        assert any(part.operator == "<" for part in requirement.specifier), name
        assert importlib.metadata.version(name) in requirement.specifier, name


def test_readme_of_a_package_index_has_absolute_links_to_files_that_exist(
    metadata: Message,
) -> None:
    """A package index has no docs/ beside the README."""
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL") or ())
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= set(urls)
    assert metadata["Author-email"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))
    within = re.findall(r"\]\((?!https?:|#)([^)]+)\)", (ROOT / "README.md").read_text())
    base = urls["Repository"] + "/blob/main/"
    assert within
    pages = {link for link in within if not link.endswith(".png")}
    raw = {base.replace("/blob/", "/raw/") + link for link in within if link not in pages}
    assert raw
    assert {base + link for link in pages} | raw <= set(links)
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    files = [link.removeprefix(base).partition("#")[0] for link in links if link.startswith(base)]
    assert not [file for file in files if not (ROOT / file).exists()]


# --- The image of clients and housekeeping --------------------------------------------------------


def test_dockerfile_copies_all_that_the_wheel_needs(wheel: Path, tmp_path: Path) -> None:
    """The wheel built from the copied files alone is the same as that of the checkout."""
    build = DOCKERFILE[: DOCKERFILE.index("\nFROM", 1 + DOCKERFILE.index("\nFROM"))]
    copied = re.findall(r"^COPY (.+)$", build, re.MULTILINE)
    for line in copied:
        *sources, target = line.split()
        for source in sources:
            name = "" if target.endswith("/") else target
            place = tmp_path / "src" / (name or source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(ROOT / source)
            assert place.exists(), line
    there = built(tmp_path / "src", tmp_path / "dist")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(there) as other:
        assert {*one.namelist()} == {*other.namelist()}


def test_dockerfile_installs_extras_that_exist_and_runs_a_command_that_exists(
    metadata: Message,
) -> None:
    """It cannot be built where the tests run: what it names is checked."""
    (extras,) = re.findall(r'pip install --no-cache-dir "\.\[([\w,]+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= EXTRAS - {"all", "spark"}
    assert "cli" in extras
    pythons = re.findall(r"^FROM python:(\d+\.\d+)-slim", DOCKERFILE, re.MULTILINE)
    assert len(pythons) == 2
    assert len(set(pythons)) == 1
    classifiers = metadata.get_all("Classifier") or []
    assert f"Programming Language :: Python :: {pythons[0]}" in classifiers
    (entry,), (command,) = (
        [json.loads(text) for text in re.findall(rf"^{word} (.+)$", DOCKERFILE, re.MULTILINE)]
        for word in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["txnlog"]
    shown = run_python("-m", "txnlog.cli.main", *command, "--help", cwd=ROOT)
    assert "It runs until SIGTERM" in shown
    assert re.search(r"^USER \d+$", DOCKERFILE, re.MULTILINE)
