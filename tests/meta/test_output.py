"""Tables show what other programs said as it is."""

from __future__ import annotations

from typing import Any

import pytest

from ops.output import Format, show

SAID = {"message": "cannot read [/data/x]"}


@pytest.mark.parametrize("data", [SAID, [SAID]], ids=["one", "rows"])
def test_a_message_with_brackets_is_shown_whole(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    show(data, Format.TABLE)
    assert "[/data/x]" in capsys.readouterr().out
