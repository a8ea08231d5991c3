"""Hooks of mkdocs.yml: pages made from other files, links to them, the menu, diagrams.

The pages in docs/ are written to be read in the repository, too, so they link to README.md,
notebooks or examples where these are. Here each such file becomes a page that these links lead to.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from textwrap import indent
from typing import Any

import diagram_lists
import notebook_pages
import trace_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.superfences import fence_code_format

ROOT = Path(__file__).resolve().parents[2]
# Installed by `make docs`; without it a diagram is shown as its text.
MERMAID = Path(sys.prefix) / ".docs" / "mermaid.min.js"
MERMAID_URI = "site/mermaid.min.js"

# Files outside docs/ that are pages of their own, by their path in the repository.
IMPORTED = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmark-results.md",
}
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}

_DIAGRAM = re.compile(r"<!-- diagram: (?P<path>\S+), (?P<heading>.+?) -->")
_TAB = re.compile(r"<!-- tab: (?P<title>.+?), (?P<path>\S+), (?P<heading>.+?) -->")
_LINK = re.compile(r"(?P<start>\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_CELL_CODE = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_FENCED = re.compile(r"^( *)(```+).*?^\1\2", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Diagrams are drawn by the copy of mermaid that `make docs` installs, or stay text."""
    draws = MERMAID.exists()
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "mermaid", "class": "mermaid" if draws else "text", "format": fence_code_format}
    ]
    if draws:
        config.extra_javascript += [MERMAID_URI, "site/diagrams.js"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from files elsewhere, and expand the menu."""
    contents = {page.src_uri: page.content_string for page in files.documentation_pages()}
    origins = {uri: f"docs/{uri}" for uri in contents}
    for path, uri in IMPORTED.items():
        _add(files, config, uri, (ROOT / path).read_text(), origin=path)
        contents[uri], origins[uri] = (ROOT / path).read_text(), path
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        page, pictures = notebook_pages.page(notebook)
        uri = f"notebooks/{notebook.stem}.md"
        _add(files, config, uri, page, origin=f"notebooks/{notebook.name}")
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for trace in sorted((ROOT / "tests/interaction/traces").glob("*.txt")):
        path = trace.relative_to(ROOT).as_posix()
        _add(files, config, f"traces/{trace.stem}.md", trace_pages.page(trace), origin=path)
    _add_linked(files, config, contents, origins)
    config.nav = _expanded(config.nav, sorted(page.src_uri for page in files.documentation_pages()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Blocks of other documents, and links to files of the repository as links to their pages."""
    origin = _origin(page.file)
    markdown = _TAB.sub(_tab, markdown)
    markdown = _DIAGRAM.sub(lambda found: _block(found["path"], found["heading"]), markdown)

    def replaced(found: re.Match[str]) -> str:
        path = _path(origin, found["target"])
        known = _by_origin(files).get(path)
        if known is None:
            return found[0]
        target = posixpath.relpath(known, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found['start']}{target}{found['anchor'] or ''}"

    parts, end = [], 0
    for fence in _FENCED.finditer(markdown):
        parts += [_LINK.sub(replaced, markdown[end : fence.start()]), fence[0]]
        parts += [diagram_lists.steps(fence[0])]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replaced, markdown[end:])])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In a table a bar is written as `\\|`, of which code shows both, but not on GitHub."""
    return _CELL_CODE.sub(lambda found: found[0].replace("\\|", "|"), html)


def on_post_build(config: MkDocsConfig) -> None:
    """The script that draws diagrams is too large for the repository."""
    if MERMAID.exists():
        shutil.copyfile(MERMAID, Path(config.site_dir) / MERMAID_URI)


def _add(
    files: Files, config: MkDocsConfig, uri: str, content: str, origin: str | None = None
) -> None:
    file = File.generated(config, uri, content=content, inclusion=InclusionLevel.INCLUDED)
    file.origin = origin  # type: ignore[attr-defined]
    files.append(file)


def _add_linked(
    files: Files, config: MkDocsConfig, contents: dict[str, str], origins: dict[str, str]
) -> None:
    """A page, or a copy, of every other file that a page links to."""
    for uri, content in contents.items():
        for found in _LINK.finditer(_FENCED.sub("", content)):
            path = _path(origins[uri], found["target"])
            source = ROOT / path
            if path.startswith("docs/") or path in _by_origin(files) or not source.is_file():
                continue
            if source.suffix in (".png", ".svg"):
                copy = File.generated(config, f"files/{path}", content=source.read_bytes())
                copy.origin = path  # type: ignore[attr-defined]
                files.append(copy)
            else:
                page = _source_page(path, source.read_text())
                _add(files, config, f"files/{path}.md", page, origin=path)


def _tab(found: re.Match[str]) -> str:
    """A tab with a block of another document, whose test runs it."""
    return f'=== "{found["title"]}"\n\n' + indent(_block(found["path"], found["heading"]), "    ")


def _block(path: str, heading: str) -> str:
    """The first block below a heading of another document, so that there is one version of it."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n.*?(^```\w+\n.*?^```$)",
        (ROOT / path).read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert found is not None, f"{path}, {heading}: no block"
    return found[1]


def _source_page(path: str, text: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"


def _path(origin: str, target: str) -> str:
    """A link's target as a path in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def _origin(file: File) -> str:
    """The path in the repository of what a page is made from."""
    return getattr(file, "origin", None) or f"docs/{file.src_uri}"


def _by_origin(files: Files) -> dict[str, str]:
    return {_origin(file): file.src_uri for file in files}


def _expanded(nav: Any, pages: list[str]) -> Any:
    """The menu with each pattern replaced by the pages that no line names; no empty section."""
    named = {name for name in _names(nav) if "*" not in name}
    free = [page for page in pages if page not in named]

    def expand(entry: Any) -> list[Any]:
        if isinstance(entry, str) and "*" in entry:
            found = [page for page in free if _matches(page, entry)]
            free[:] = [page for page in free if page not in found]
            return found
        if isinstance(entry, dict):
            [(title, value)] = entry.items()
            if isinstance(value, str) and "*" not in value:
                return [entry]
            children = value if isinstance(value, list) else [value]
            inner = [found for child in children for found in expand(child)]
            return [{title: inner}] if inner else []
        return [entry]

    return [found for entry in nav for found in expand(entry)]


def _matches(page: str, pattern: str) -> bool:
    """As a shell does, but that below files/ any depth matches."""
    is_deep = pattern.startswith("files/")
    return fnmatch(page, pattern) and (is_deep or page.count("/") == pattern.count("/"))


def _names(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [name for child in children for name in _names(child)]
