"""Regular expressions over names of topics and ids, matched in linear time.

The syntax is RE2's, as of Kafka's own patterns (KIP-848, KIP-1152): an engine that backtracks may
take longer than anyone waits for a single name. RE2 has no lookahead; those at the beginning, as in
"(?!test-).*", are matched one by one. The engine is pyarrow's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from txnlog.errors import ConfigError
from txnlog.process import arrow_compute as pc
from txnlog.settings.arguments import shown
from txnlog.settings.values import text

_AHEAD = {"(?!": False, "(?=": True}


class Pattern:
    """A checked expression. `whole`: it must match the whole name, else its beginning."""

    def __init__(self, option: str, expression: str, *, whole: bool = True) -> None:
        """Raises ConfigError, which names the option, for what RE2 cannot match."""
        self._tests: list[tuple[str, bool]] = []
        rest = expression.strip().removeprefix("^")
        while rest[:3] in _AHEAD and (end := _end_of_group(rest)) < len(rest):
            self._tests.append((f"^(?:{rest[3:end]})", _AHEAD[rest[:3]]))
            rest = rest[end + 1 :]
        self._tests.append((f"^(?:{rest})$" if whole else f"^(?:{rest})", True))
        if len(self._tests) > 1 and _has_branches(rest):
            self._refuse(option, expression, "a lookahead before a top-level |; group the branches")
        self._known: dict[str, bool] = {}
        try:
            self.matches("")
        except ValueError as error:
            self._refuse(option, expression, str(error).partition(": ")[2] or str(error))

    @staticmethod
    def _refuse(option: str, expression: str, why: str) -> None:
        raise ConfigError(
            f"Option {option} is {shown(expression)}, which is not a regular expression of RE2: "
            f"{why}. There are no backreferences, no lookbehind, and lookahead only at the "
            "beginning.",
            option=option,
        )

    def matches(self, name: str) -> bool:
        """Whether a name matches; each name is looked at once."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = all(
                _is_found(expression, name) is is_wanted for expression, is_wanted in self._tests
            )
        return found


def topic_pattern(option: str, value: str) -> str:
    """The expression of an option. Raises ConfigError."""
    expression = text(option, value).strip()
    compiled(option, expression)
    return expression


@lru_cache(maxsize=100)
def compiled(option: str, expression: str, *, whole: bool = True) -> Pattern:
    """See Pattern; the same one for the same expression."""
    return Pattern(option, expression, whole=whole)


def _is_found(expression: str, name: str) -> bool:
    import pyarrow as pa

    try:
        value = pa.scalar(name, pa.string())
    except UnicodeEncodeError:
        # A folder's name that is no UTF-8 is nobody's topic.
        return False
    return bool(pc.match_substring_regex(value, pattern=expression).as_py())


def _end_of_group(expression: str) -> int:
    """Where the group at the beginning of an expression ends; its length if it does not."""
    return next((at for at, _, depth in _outside_classes(expression) if not depth), len(expression))


def _has_branches(expression: str) -> bool:
    return any(each == "|" and not depth for _, each, depth in _outside_classes(expression))


def _outside_classes(expression: str) -> Iterator[tuple[int, str, int]]:
    """(place, character, depth of groups after it) of what is neither escaped nor in [...]."""
    depth, at, class_at = 0, 0, -1
    while at < len(expression):
        each = expression[at]
        if each == "\\":
            at += 2
            continue
        if class_at >= 0:
            # In "[]a]" and "[^]a]" the first bracket is a character.
            is_first = expression[class_at + 1 : at] in ("", "^")
            if each == "]" and not is_first:
                class_at = -1
        elif each == "[":
            class_at = at
        else:
            depth += {"(": 1, ")": -1}.get(each, 0)
            yield at, each, depth
        at += 1
