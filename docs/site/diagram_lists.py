"""A sequence diagram as a list of its steps, which the site shows on a narrow window."""

from __future__ import annotations

import re
from html import escape

_NAMED = re.compile(r"^ *participant (?P<id>\w+) as (?P<name>.+)$", re.MULTILINE)
_STEP = re.compile(
    r"^ *(?:Note over (?P<over>[\w,]+)|(?P<source>\w+)-+(?:>>|x)(?P<target>\w+)): (?P<text>.+)$",
    re.MULTILINE,
)


def steps(fence: str) -> str:
    """HTML, or nothing for another block."""
    if not fence.lstrip("`").startswith("mermaid\nsequenceDiagram"):
        return ""
    names = {found["id"]: found["name"].replace("<br/>", "") for found in _NAMED.finditer(fence)}
    items = "".join(_item(found, names) for found in _STEP.finditer(fence))
    return f'\n\n<ul class="sequence">{items}</ul>\n'


def _item(found: re.Match[str], names: dict[str, str]) -> str:
    if found["over"]:
        who = ", ".join(names[name] for name in found["over"].split(","))
        return f"<li><b>{escape(who)}</b>: {escape(found['text'])}</li>"
    source, target = names[found["source"]], names[found["target"]]
    return f"<li><b>{escape(source)}</b> → {escape(target)}: {escape(found['text'])}</li>"
