"""The diagrams of states in the documentation are drawn from the tables."""

from __future__ import annotations

import pytest

from tools.draw_states import DIAGRAMS, drawn


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_shows_its_table(name: str) -> None:
    text = DIAGRAMS[name][0].read_text()
    assert drawn(name, text) == text, "run: python -m tools.draw_states"


def test_a_page_without_its_diagram_is_an_error() -> None:
    with pytest.raises(LookupError, match="not 0 times"):
        drawn("member", "no diagram")
