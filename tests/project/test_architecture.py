"""The structure of the project, checked from its source: imports, names, lengths."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("txnlog", "checkpoint", "spark_source", "spark_sink")
FACADE = "pyspark_txnlog"
SPARK_VERSIONS = "txnlog.connector.spark_versions"
FILE_LINES_MAX = 460
# Longer files, each with the reason why splitting it would make it harder to read.
LONG_FILES = {
    "txnlog/admin/client.py": "one surface: every call of an operator",
    "txnlog/producer.py": "one surface: every call of a producer",
    "txnlog/consumer.py": "one surface: every call of a consumer",
    "txnlog/errors.py": "one table: every error, by what a handler should do",
    "txnlog/settings/table.py": "one table: every setting",
    "txnlog/protocol/transitions.py": "one state machine: every change of a transaction's row",
    "txnlog/storage/delta/delta_log.py": "one state machine: a log, and each change of it",
    "txnlog/storage/store/objects.py": "one interface: each call of a store, on both kinds of them",
    "tests/model/snapshots.py": "one model: a reader among writers, and what must hold",
    "txnlog/verifying/log_reading.py": "one reading: the state of a log, past each kind of damage",
}
FUNCTION_LINES_MAX = 60
# Longer functions, each with the reason.
LONG_FUNCTIONS = {
    "txnlog/cli/consume.py:consume": "its options, with their help",
    "txnlog/cli/groups.py:reset_offsets": "its options, with their help",
    "txnlog/cli/housekeeping.py:housekeeping": "its options, with their help",
    "txnlog/protocol/transitions.py:prepare_init": "one decision: each state an init can meet",
}
FACADE_LINES_MAX = 60
TEXT_SUFFIXES = ("", ".conf", ".ipynb", ".md", ".properties", ".py", ".toml", ".txt", ".yaml")
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py"}

# A folder imports itself and folders of the lines above it, none of its own line.
# The longest prefix of a module's name decides its folder.
LAYERS = (
    ("txnlog.text",),
    ("txnlog.errors",),
    ("txnlog.process", "txnlog.messages", "txnlog.protocol"),
    ("txnlog.settings",),
    ("txnlog.storage.store",),
    ("txnlog.storage.batches", "txnlog.storage.delta"),
    ("txnlog.storage.tables", "checkpoint"),
    ("txnlog.coordinator",),
    ("txnlog.cluster",),
    ("txnlog.housekeeping", "txnlog.connector", "txnlog.consuming"),
    ("txnlog.producing", "txnlog.verifying", "txnlog.consumer"),
    ("txnlog.producer", "txnlog.repairing"),
    ("txnlog.admin",),
    ("txnlog.monitoring", "txnlog.ui"),
    ("txnlog", "txnlog.cli", "txnlog.compat", "txnlog.testing", "spark_source", "spark_sink"),
    (FACADE,),
)
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
LOOSE_MODULES_MAX = 6

# Protocol code is given now_ms and its randomness; it never reads, logs, sleeps or opens.
IMPURE = {
    "asyncio", "deltalake", "logging", "obstore", "os", "pathlib", "random", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
STORES = {"obstore"}


def test_imports_between_layers_point_one_way() -> None:
    """A cycle or an upward import makes the pure protocol depend on I/O, or the core on Spark."""
    wrong = [
        f"{module}:{line} imports {imported}"
        for module, imported, line in project_imports()
        if room_of(imported) != room_of(module) and layer_of(imported) >= layer_of(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_cycles() -> None:
    """A cycle can only be read as a whole. Imports under TYPE_CHECKING count, too."""
    imports: dict[str, set[str]] = {}
    for module, imported, _ in project_imports():
        if not f"{module}.".startswith(f"{imported}."):
            imports.setdefault(module, set()).add(imported)
    while leaves := {m for m, found in imports.items() if not found & imports.keys()}:
        imports = {m: found for m, found in imports.items() if m not in leaves}
    assert not imports, sorted(imports)


def test_few_modules_are_outside_of_a_folder() -> None:
    """Newcomers see these modules first; every other module belongs to a folder by purpose."""
    loose = [path.name for path in (ROOT / "txnlog").glob("*.py") if path.name != "__init__.py"]
    assert len(loose) <= LOOSE_MODULES_MAX, sorted(loose)


def test_pyspark_stays_in_source_sink_and_facade() -> None:
    """txnlog and checkpoint must work without Spark: producers, admin clients, the auditor."""
    allowed = {"spark_source", "spark_sink", FACADE}
    assert not offenders(
        {"pyspark", "delta", "py4j"},
        lambda top, module: top not in allowed and module != SPARK_VERSIONS,
    )


def test_what_differs_between_sparks_is_imported_by_source_sink_and_facade_only() -> None:
    """It is in txnlog only because source and sink share it, and it imports pyspark."""
    wrong = [
        module
        for module, imported, _ in project_imports()
        if imported == SPARK_VERSIONS and not module.startswith(("spark_", FACADE))
    ]
    assert not wrong


def test_protocol_has_no_clock_no_randomness_no_io() -> None:
    """The state search and the fault histories rely on pure transitions."""
    assert not offenders(IMPURE, lambda _, module: room_of(module) == "txnlog.protocol")


def test_modules_log_to_the_one_logger() -> None:
    """Its filter makes ids and names printable, and sees no records of child loggers."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, path in python_modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("getLogger")
        and ast.unparse(node) != "logging.getLogger('txnlog')"
    ]
    assert not wrong


def test_stores_are_opened_only_by_storage() -> None:
    """Every write to a txnlog table goes through one committer; a second way would bypass it."""
    allowed = ("txnlog.storage.", "txnlog.testing.")
    assert not offenders(STORES, lambda _, module: not module.startswith(allowed))


def test_delta_rs_is_no_dependency() -> None:
    """It is for users who read our tables with it; here it would be a second reader of each log."""
    assert not offenders({"deltalake"}, lambda _, module: True)


def test_facade_is_short_and_its_top_level_imports_only_the_data_source_api() -> None:
    """Spark imports every pyspark_* module to look up sources: one that fails hides all."""
    path = ROOT / f"{FACADE}.py"
    text = path.read_text()
    assert len(text.splitlines()) <= FACADE_LINES_MAX
    # Where pyspark has no data sources, SPARK_VERSIONS raises what says so.
    allowed = ("__future__.", "typing.", "pyspark.sql.datasource.", f"{SPARK_VERSIONS}.")
    wrong = [
        name
        for node in top_level(ast.parse(text))
        for name in imported_names(node)
        if not f"{name}.".startswith(allowed)
    ]
    assert not wrong


def test_init_files_only_re_export() -> None:
    """Code in an __init__ runs at every import below it."""
    wrong = [
        f"{module}:{node.lineno} {ast.unparse(node)[:60]}"
        for module, path in python_modules()
        if path.name == "__init__.py"
        for node in ast.parse(path.read_text()).body
        if not belongs_in_init(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_short_or_listed_with_a_reason() -> None:
    """A file of a thousand lines is not reviewed as a whole."""
    long = {
        str(path.relative_to(ROOT))
        for path in text_files(".py")
        if len(path.read_text().splitlines()) > FILE_LINES_MAX
    }
    assert long == set(LONG_FILES)


def test_functions_fit_on_a_screen_or_are_listed_with_a_reason() -> None:
    """The list of exceptions must be exact."""
    long = {
        f"{path.relative_to(ROOT)}:{node.name}"
        for _, path in python_modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == set(LONG_FUNCTIONS)


def test_no_module_has_a_meaningless_name() -> None:
    """The name utils.py does not describe its content, so it collects everything."""
    assert not [str(path) for path in text_files(".py") if path.name in FORBIDDEN_NAMES]


@pytest.mark.parametrize(
    "word", ["../" + "shared", "/work/" + "shared", "/tmp/" + "w/", "INTERFACES" + ".md"]
)
def test_no_file_points_outside_the_project(word: str) -> None:
    """A path that exists on one machine only is useless to readers elsewhere."""
    assert not [str(path.relative_to(ROOT)) for path in text_files() if word in path.read_text()]


@pytest.mark.parametrize("name", ["DESIGN", "SURFACE", "STYLE", "RULES"])
def test_referenced_documents_exist(name: str) -> None:
    """A comment must not refer to a missing page."""
    if (ROOT / f"{name}.md").exists():
        return
    naming = re.compile(rf"\b{name}\.md\b")
    assert not [str(p.relative_to(ROOT)) for p in text_files() if naming.search(p.read_text())]


def test_delta_jar_coordinates_are_in_one_place() -> None:
    """A second copy would be forgotten at the next upgrade.

    spark-s3a.conf repeats the line, because its own replaces that one, and each Spark has a jar of
    its own; tests compare them. docs/versions.md is made from what was run.
    """
    coordinates = re.compile(r"io\.delta:delta-spark_[\d.]+_[\d.]+:[\d.]+")
    holders = [str(p.relative_to(ROOT)) for p in text_files() if coordinates.search(p.read_text())]
    files = ("spark-defaults.conf", "spark-s3a.conf", "spark4.0.conf", "spark4.1.conf")
    assert {*holders} - {"docs/versions.md"} == {f"conf/{file}" for file in files}


# --- Reading the source ---------------------------------------------------------------------------


def belongs_in_init(node: ast.stmt) -> bool:
    """Docstring, imports, names like __all__, and PEP 562's functions for lazy imports."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.If() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name.startswith("_")
        case ast.FunctionDef(name=name):
            return name in ("__getattr__", "__dir__")
    return False


def room_of(module: str) -> str:
    """The folder of a project module, by the longest prefix in LAYERS."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(name for name in names if name in LAYER_OF)


def layer_of(module: str) -> int:
    return LAYER_OF[room_of(module)]


def python_modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module in the wheel."""
    yield FACADE, ROOT / f"{FACADE}.py"
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


def project_imports() -> Iterator[tuple[str, str, int]]:
    """(importing module, imported project module, line); imports in functions count, too."""
    known = {module for module, _ in python_modules()}
    for module, path in python_modules():
        for node in import_statements(path):
            for name in imported_names(node):
                if name.partition(".")[0] in (*PACKAGES, FACADE):
                    # `from package import name`: the name may be a module, or be defined in one.
                    found = name if name in known else name.rpartition(".")[0]
                    yield module, found, getattr(node, "lineno", 0)


@cache
def import_statements(path: Path) -> list[ast.AST]:
    """Every import statement of a file, also those in functions."""
    found = ast.walk(ast.parse(path.read_text()))
    return [node for node in found if isinstance(node, (ast.Import, ast.ImportFrom))]


def imported_names(node: ast.AST) -> list[str]:
    """Full dotted names of an import statement; ruff bans relative ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement that runs at import: none in functions or under TYPE_CHECKING."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def offenders(banned: set[str], applies: Callable[[str, str], bool]) -> list[str]:
    """Imports of `banned` top-level names in modules with applies(package, module)."""
    return [
        f"{module}:{getattr(node, 'lineno', 0)} imports {name}"
        for module, path in python_modules()
        if applies(module.partition(".")[0], module)
        for node in import_statements(path)
        for name in imported_names(node)
        if name.partition(".")[0] in banned
    ]


def text_files(*suffixes: str) -> list[Path]:
    """The project's own text files: no hidden ones, and none created by tools and jobs."""
    made = {"build", "dist", "artifacts", "spark-warehouse", "metastore_db", "demo-data"}
    kinds = suffixes or TEXT_SUFFIXES
    found = []
    for top in sorted(ROOT.iterdir()):
        hidden = top.name.startswith(".") and top.name not in (".ci", ".pre-commit-config.yaml")
        if hidden or top.name in made:
            continue
        paths = [top] if top.is_file() else sorted(top.rglob("*"))
        found += [
            path
            for path in paths
            if path.is_file()
            and path.suffix in kinds
            and not {"__pycache__", ".hypothesis"} & set(path.parts)
            and b"\0" not in path.read_bytes()[:1024]
        ]
    return found
