"""A built-in assignor is registered only in ``assignors.BUILT_IN``: all other code finds it there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_looking_up_one_assignor_imports_no_other() -> None:
    program = "import sys; from assignors import BUILT_IN; BUILT_IN['range']; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "assignors.range" in loaded
    assert not {"assignors.sticky", "assignors.balancing", "assignors.load_aware"} & set(loaded)


PRINT_PLANS = """
import random

import attrs

from assignors import BUILT_IN
from assignors.balancing import sticky_user_data
from tests.support.assignors.cases import cluster_and_members, with_doubtful_claims

for seed in range(100):
    rng = random.Random(seed)
    cluster, members = cluster_and_members(rng, racks=seed % 4 == 0)
    members = with_doubtful_claims(rng, cluster, members)
    data = {name: sticky_user_data.encode(member.owned, member.generation) for name, member in members.items()}
    eager = {name: attrs.evolve(member, owned={}, user_data=data[name]) for name, member in members.items()}
    for assignor in BUILT_IN.values():
        for group in (members, eager):
            print(seed, assignor.name, assignor().assign(cluster, group))
"""


def _plans(hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_PLANS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        timeout=360,
    )
    return done.stdout.decode().splitlines()


def test_a_plan_depends_on_the_group_alone_and_not_on_the_hash_seed() -> None:
    plans = _plans("0")
    assert len(plans) == 200 * len(BUILT_IN)
    for one, other in zip(plans, _plans("4711"), strict=True):
        assert one == other


@pytest.mark.thorough
def test_only_the_registry_names_them() -> None:
    classes = {assignor.__name__ for assignor in BUILT_IN.values()}
    for name, file in modules_below("consumer_coord"):
        named = {one for one in imports_of(file) if one.startswith("assignors.") and one.rpartition(".")[2] in classes}
        assert not named, f"{name} imports {named}"
