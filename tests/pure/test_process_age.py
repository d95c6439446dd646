"""How old a process is, by the kernel's own word."""

import os

import pytest

from tidegate_engine.process.age import process_age_seconds


def test_the_age_is_counted_from_the_kernels_start_time_whatever_the_process_is_called() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = ["S", *(["0"] * 18), str(40 * ticks), "0"]
    assert process_age_seconds(f"17 (a (b) c) {' '.join(fields)}", uptime_seconds=100.0) == 60.0


def test_this_process_is_older_now_than_before() -> None:
    first = process_age_seconds()
    assert first >= 0
    assert process_age_seconds() >= first
    assert process_age_seconds() == pytest.approx(first, abs=60)
