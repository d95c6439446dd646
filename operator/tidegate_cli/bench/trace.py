"""Published request traces: who asked when for how many tokens, read from the files as their authors publish them.

`tidegate bench --trace FILE` and the benchmarks that replay traffic call read_trace(). Two formats, told apart by their
first line, each plain or gzipped:

    Azure LLM inference   CSV    TIMESTAMP,ContextTokens,GeneratedTokens
    Mooncake              JSONL  {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tidegate_cli.bench.errors import BadTrace

GZIP_MAGIC = b"\x1f\x8b"
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `prefix_ids` name the prompt's blocks of 512 tokens: equal ids mean equal tokens up to there."""

    arrival_seconds: float  # since the trace's first request
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_ids: tuple[int, ...] = ()


class _Row(NamedTuple):
    seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_ids: tuple[int, ...]


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """All requests in order of arrival, the first at 0 seconds. Raises BadTrace."""
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), start=1) if line.strip()]
    if not lines:
        raise BadTrace(f"{path} is empty")
    rows = sorted(_rows(path, lines), key=lambda row: row.seconds)
    if not rows:
        raise BadTrace(f"{path} has a header and no requests")
    return tuple(TraceRequest(row.seconds - rows[0].seconds, *row[1:]) for row in rows)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data).decode("utf-8-sig")
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise BadTrace(f"{path} is not a whole gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path} is no text: {error}") from error


def _rows(path: Path, lines: list[tuple[int, str]]) -> Iterator[_Row]:
    number, first = lines[0]
    if first.lstrip().startswith("{"):
        parse = _mooncake_row
    elif tuple(first.strip().split(",")) == AZURE_COLUMNS:
        parse, lines = _azure_row, lines[1:]
    else:
        expected = f"the header {','.join(AZURE_COLUMNS)} or a JSON object with {', '.join(MOONCAKE_FIELDS)}"
        raise BadTrace(f"{path}, line {number}: a trace starts with {expected}, not with {first[:80]!r}")
    for number, line in lines:
        try:
            row = parse(line)
            _check(row)
        except (ValueError, TypeError) as error:
            raise BadTrace(f"{path}, line {number}: {error}") from error
        yield row


def _azure_row(line: str) -> _Row:
    cells = line.strip().split(",")
    if len(cells) != len(AZURE_COLUMNS):
        raise ValueError(f"{len(cells)} values instead of {len(AZURE_COLUMNS)} ({', '.join(AZURE_COLUMNS)})")
    when = datetime.fromisoformat(cells[0])
    if when.tzinfo is None:  # only differences matter, and no zone has a summer time in the middle of a trace
        when = when.replace(tzinfo=UTC)
    return _Row(when.timestamp(), int(cells[1]), int(cells[2]), ())


def _mooncake_row(line: str) -> _Row:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError(f"a JSON object is expected, not {line[:80]!r}")
    missing = [name for name in MOONCAKE_FIELDS if name not in fields]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    milliseconds, num_prompt, num_output = (fields[name] for name in MOONCAKE_FIELDS)
    ids = fields.get("hash_ids", [])
    is_list = isinstance(ids, list)
    if type(milliseconds) not in {int, float} or not is_list or not _are_ints([num_prompt, num_output, *ids]):
        raise TypeError("timestamp must be a number, lengths and hash_ids whole numbers")
    return _Row(milliseconds / 1000, num_prompt, num_output, tuple(ids))


def _are_ints(values: Iterable[object]) -> bool:
    return all(type(value) is int for value in values)


def _check(row: _Row) -> None:
    if row.num_prompt_tokens < 1 or row.num_output_tokens < 1:
        raise ValueError(
            f"{row.num_prompt_tokens} prompt and {row.num_output_tokens} output tokens: both must be at least 1"
        )
