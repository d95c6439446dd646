"""I/O: the price list that is mounted from a ConfigMap, read again when it changed. observe.py asks once a reconcile.

No file is no price list. A file that cannot be used is said in the log once, and the prices before stay in force.
"""

import logging
from pathlib import Path

from tidegate_operator.errors import BadPrices
from tidegate_operator.world.prices import PriceList, read_prices

_log = logging.getLogger(__name__)


class PriceFile:
    """Prices of an hour, as of the file's last readable content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text: str | None = None
        self._prices: PriceList | None = None

    def prices(self) -> PriceList | None:
        """A few hundred bytes that the kubelet replaces: reading them is as cheap as asking whether they changed."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError:
            self._text = self._prices = None
            return None
        except UnicodeDecodeError as error:
            text = f"not UTF-8: {error}"
        if text != self._text:
            self._text = text
            self._read(text)
        return self._prices

    def _read(self, text: str) -> None:
        try:
            self._prices = read_prices(text)
        except BadPrices as error:
            _log.warning("%s: %s; the prices known before stay in force", self._path, error)
