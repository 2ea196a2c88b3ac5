"""A built-in assignor is registered once, in ``assignors.BUILT_IN``: everything else finds it there."""

from __future__ import annotations

import pytest

from assignors import BUILT_IN
from consumer_coord.assignor_loading import load_assignors
from consumer_coord.broker.consumer_group.assignors.python import load_server_assignors
from tests.test_structure import imports_of, modules_below


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_registered_name_is_a_strategy(name: str) -> None:
    [assignor] = load_assignors([name])
    assert type(assignor) is BUILT_IN[name]
    assert assignor.name == name


@pytest.mark.parametrize("name", [name for name, assignor in BUILT_IN.items() if not assignor().needs])
def test_a_broker_offers_those_that_need_no_figures(name: str) -> None:
    assert list(load_server_assignors([name])) == [name]


@pytest.mark.thorough
def test_no_module_beside_the_registry_names_them() -> None:
    classes = {assignor.__name__ for assignor in BUILT_IN.values()}
    for name, file in modules_below("consumer_coord"):
        named = {one for one in imports_of(file) if one.startswith("assignors.") and one.rpartition(".")[2] in classes}
        assert not named, f"{name} imports {named}"
