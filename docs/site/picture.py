"""The picture of docs/README.md, made by `python docs/site/picture.py`: a batch is a transaction.

It has a background of its own, so that it is legible on light and dark pages, and names no font.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "picture.svg"
WIDTH, HEIGHT = 800, 330
PAPER, INK, PALE, TEAL, WHITE = "#f6f8fa", "#1f2328", "#57606a", "#00695c", "#ffffff"
TITLE = "One micro-batch of Spark is one transaction over two topics and the offsets it read"
OUTPUT = (
    ("topic departures", "+240 records"),
    ("topic cancellations", "+60 records"),
    ("offsets of group router", "300 of flights are read"),
)


def text(
    x: int, y: int, words: str, *, color: str = INK, size: int = 15, bold: bool = False
) -> str:
    """A line of text around x."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}"{weight} '
        f'text-anchor="middle">{escape(words)}</text>'
    )


def box(x: int, y: int, width: int, lines: tuple[str, str], *, color: str = INK) -> str:
    """A box of two lines: its name, and what happens to it."""
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="54" rx="6" fill="{WHITE}" '
    middle = x + width // 2
    return "\n".join(
        (
            f'{frame}stroke="{color}" stroke-width="1.5"/>',
            text(middle, y + 23, lines[0], bold=True),
            text(middle, y + 43, lines[1], color=PALE, size=14),
        )
    )


def arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    """A line with a head at its end."""
    return (
        f'<path d="M{x} {y} L{to_x} {to_y}" stroke="{TEAL}" stroke-width="2" '
        'fill="none" marker-end="url(#head)"/>'
    )


def picture() -> str:
    """All of it, as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif">',
        f"<title>{TITLE}</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto">'
        f'<path d="M0 0 L10 5 L0 10 z" fill="{TEAL}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{PAPER}"/>',
        text(
            WIDTH // 2,
            30,
            "One root folder of Delta tables: a disk, S3, Azure or Google. No server.",
        ),
        box(20, 135, 160, ("topic flights", "300 new records")),
        arrow(180, 162, 228, 162),
        box(230, 135, 190, ("Spark micro-batch", "your DataFrame code"), color=TEAL),
        arrow(420, 162, 528, 88),
        arrow(420, 162, 528, 162),
        arrow(420, 162, 528, 236),
        f'<rect x="510" y="48" width="270" height="228" rx="8" fill="none" stroke="{TEAL}" '
        'stroke-width="2" stroke-dasharray="6 4"/>',
        *(box(530, 61 + 74 * number, 230, lines) for number, lines in enumerate(OUTPUT)),
        text(645, 297, "one transaction: all or none", color=TEAL, bold=True),
        text(255, 232, "1. One write to the transaction log decides.", size=14),
        text(255, 254, "2. Then the records become visible.", size=14),
        text(255, 284, "Killed before 1: nothing happened.", color=PALE, size=14),
        text(255, 306, "Killed after 1: any process finishes it.", color=PALE, size=14),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
