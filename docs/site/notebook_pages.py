"""A notebook as a page: its texts, its code, and the outputs that are stored in it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown, and its pictures by name."""
    cells = json.loads(notebook.read_text())["cells"]
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(cells):
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(text)
        elif cell["cell_type"] == "code" and text:
            parts.append(f"```python\n{text}\n```")
            for index, output in enumerate(cell["outputs"]):
                name = f"{notebook.stem}-{number}-{index}.png"
                shown, picture = _output(output, name)
                parts += shown
                pictures.update({name: picture} if picture else {})
    return "\n\n".join(parts) + "\n", pictures


def _output(output: dict[str, Any], name: str) -> tuple[list[str], bytes | None]:
    data = output.get("data", {})
    if "image/png" in data:
        return [f"![picture drawn by the cell above]({name})"], base64.b64decode(data["image/png"])
    html = "".join(data.get("text/html", ""))
    if html.startswith('<div class="txnlog">'):
        # Panels of a root, with their style. Markdown ends HTML at a line that is empty.
        return ["\n".join(line for line in html.split("\n") if line.strip())], None
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return [f"```text\n{_COLOUR.sub('', text)}\n```"] if text else [], None
