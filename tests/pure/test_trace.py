"""Traces as published become requests; whatever is no trace is refused with its file, its line and what is wrong."""

import gzip

import pytest

from tidegate_cli.bench.errors import BadTrace
from tidegate_cli.bench.trace import TraceRequest, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:47.9305900,396,109
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 6500, "input_length": 12, "output_length": 26, "hash_ids": [46]}
"""


def trace_of(tmp_path, content: str | bytes):
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_trace(path)


def test_an_azure_trace_starts_at_zero_seconds(tmp_path):
    assert trace_of(tmp_path, AZURE) == (TraceRequest(0.0, 374, 44), TraceRequest(1.25, 396, 109))


def test_a_mooncake_trace_keeps_which_prompts_share_a_prefix(tmp_path):
    assert trace_of(tmp_path, MOONCAKE) == (TraceRequest(0.0, 600, 52, (46, 47)), TraceRequest(3.5, 12, 26, (46,)))


@pytest.mark.parametrize("content", [AZURE, MOONCAKE])
def test_a_gzipped_trace_reads_the_same(tmp_path, content):
    assert trace_of(tmp_path, gzip.compress(content.encode())) == trace_of(tmp_path, content)


def test_line_ends_of_windows_and_empty_lines_change_nothing(tmp_path):
    assert trace_of(tmp_path, "\n" + AZURE.replace("\n", "\r\n") + "\n\n") == trace_of(tmp_path, AZURE)


def test_requests_come_in_order_of_arrival_whatever_the_order_of_lines(tmp_path):
    header, first, second = AZURE.splitlines()
    assert trace_of(tmp_path, f"{header}\n{second}\n{first}\n") == trace_of(tmp_path, AZURE)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        (AZURE.splitlines()[0], "no requests"),
        ("time,tokens\n1,2\n", r"line 1: a trace starts with .*TIMESTAMP,ContextTokens,GeneratedTokens"),
        (AZURE + "2023-11-16 18:15:48,12\n", "line 4: 2 values instead of 3"),
        (AZURE + "yesterday,12,13\n", "line 4: .*yesterday"),
        (AZURE + "2023-11-16 18:15:48,12,many\n", "line 4: .*many"),
        (AZURE + "2023-11-16 18:15:48,0,5\n", "line 4: 0 prompt and 5 output tokens: both must be at least 1"),
        (MOONCAKE + "{}", "line 3: timestamp, input_length, output_length is missing"),
        (MOONCAKE + "[1]", "line 3: a JSON object is expected"),
        (MOONCAKE + "{", "line 3: .*Expecting"),
        (MOONCAKE.replace("[46]", '["46"]'), "line 2: .*whole numbers"),
        (MOONCAKE.replace("6500", '"6500"'), "line 2: timestamp must be a number"),
        (b"\x1f\x8bnot gzip", "is not a whole gzip file|cannot be read"),
        (gzip.compress(AZURE.encode(), mtime=0)[:-9], "is not a whole gzip file"),
        (b"\xff\xfe\x00", "is no text"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_place_and_the_reason(tmp_path, content, complaint):
    with pytest.raises(BadTrace, match=complaint) as refusal:
        trace_of(tmp_path, content)
    assert str(tmp_path / "trace") in str(refusal.value)


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path):
    with pytest.raises(BadTrace, match="nowhere cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")
