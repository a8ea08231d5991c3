"""Untrusted text, made fit for people: ids, names, keys, values, and what stores reply.

Any client may choose an id with a line break, which forges a line of a table or a log, or with an
escape sequence, which a terminal obeys (D137). Whatever is shown passes `printable`; what a program
reads (JSON, files, attributes of errors) stays exact.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Final

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing: shows text reordered
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff]"  # halves of surrogate pairs, which no output can encode
)

_SPECIAL: Final = re.compile(r"[\\'!]")
"""What has a meaning inside of $'...'; a shell may expand ! even there."""


def printable(text: str) -> str:
    r"""The text on one line, as \xNN or \uNNNN what is no visible character.

    A backslash stays as it is: the result is for reading, not for parsing, and may pass again.
    """
    return _UNPRINTABLE.sub(_escape, text)


def printable_bytes(data: bytes) -> str:
    r"""The same of UTF-8; bytes that are none as \xNN."""
    return printable(data.decode(errors="backslashreplace"))


def json_text(value: object) -> str:
    """A value as one line of JSON, exact, that is printable: its escapes are JSON's."""
    return _UNPRINTABLE.sub(_json_escape, json.dumps(value, ensure_ascii=False))


def shell_option(name: str, value: str) -> str:
    """The one word name=value of a command to paste into bash or zsh, exact and printable.

    A value in a word of its own may be the name of another option. No argument of a command can
    have a NUL, and bash would end the word there: the word then names nothing that exists.
    """
    shown = printable(value)
    if "\0" in value or shown == value:
        return f"{name}={shlex.quote(shown)}"
    return f"{name}=$'{_UNPRINTABLE.sub(_shell_escape, _SPECIAL.sub(_shell_escape, value))}'"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _shell_escape(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode(errors="surrogatepass"))
