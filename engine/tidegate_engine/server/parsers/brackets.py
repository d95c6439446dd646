"""Where a bracketed text such as a JSON object ends, found in one pass however it is cut."""

OPENING, CLOSING = "{[(", "}])"


class BracketScanner:
    """Counts brackets outside of quoted texts; it does not check that they match, which a parser does."""

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def scan(self, text: str) -> int | None:
        """Index after the bracket that closes the first one, None if that is yet to come."""
        for index, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._quote:
                self._in_quotes(character)
            elif character in self._quotes:
                self._quote = character
            elif character in OPENING:
                self._depth += 1
            elif character in CLOSING:
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None

    def _in_quotes(self, character: str) -> None:
        if character == "\\":
            self._is_escaped = True
        elif character == self._quote:
            self._quote = ""
