"""`tidegate api-key`: what it prints is what an engine's key file takes."""

import pytest

from tidegate_cli.__main__ import main
from tidegate_engine.server.keys import ApiKeys


def test_the_line_lets_the_printed_key_in_as_its_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["api-key", "team-a"]) == main(["api-key"]) == 0
    out, err = capsys.readouterr()
    named, nameless = [line.rsplit(" ", 1)[1] for line in err.splitlines()]
    keys = ApiKeys.parse(out)
    caller = keys.caller_of(named)
    assert caller is not None
    assert caller.tenant == "team-a"
    assert keys.caller_of(nameless) is not None
    assert named not in out, "only the digest is filed"
    assert len({named, nameless}) == 2


def test_a_tenants_name_that_no_line_can_hold_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["api-key", "two words"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "two words" in err
