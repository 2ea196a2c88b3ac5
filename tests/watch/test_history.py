"""The stored history is bounded, and always complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.errors import ConfigurationError
from consumer_coord.watch.changes import Message, Tracker
from consumer_coord.watch.history import History, State
from consumer_coord.watch.recording import Meta, Recorder, Recording, Table, read_recording
from tests.support.watch.looks import group, member, offsets
from tests.support.watch.recordings import write_recording

NAMES = ("a", "b", "c")


def messages(shares: list[dict[str, str]]) -> list[Message]:
    """Return one message per second, from 100 on."""
    tracker = Tracker()
    return [
        tracker.take([group(*(member(*one) for one in share.items()))], offsets(6, {0: at}, {0: 9 * at}), 100.0 + at)
        for at, share in enumerate(shares)
    ]


def after(found: list[Message]) -> Message:
    """Return the state after these messages."""
    state = State()
    for message in found:
        state.apply(message)
    return state.as_message()


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "0-2", "3-5", "1 4"])), min_size=1, max_size=10),
    st.integers(0, 12),
)
def test_folding_the_past_loses_nothing_of_the_present(shares: list[dict[str, str]], keep_s: int) -> None:
    told = messages(shares)
    history = History(keep_s)
    for message in told:
        history.add(message)
    assert after(history.messages()) == after(told)
    assert [json.loads(text) for text in history.texts()] == json.loads(json.dumps(history.messages()))
    assert len(history.messages()) <= keep_s + 2


def test_the_history_is_bounded_in_size() -> None:
    history = History(keep_s=3600, most_bytes=2_000)
    for message in messages([{"a": "0-2", "b": "3-5"}, {"a": "3-5", "b": "0-2"}] * 100):
        history.add(message)
    assert sum(map(len, list(history.texts())[1:])) <= 2_000
    assert history.messages()[-1]["at"] == 299.0


def test_trouble_outlives_its_message() -> None:
    history = History(keep_s=1)
    history.add({"at": 1.0, "trouble": "no answer"})
    history.add({"at": 9.0})
    assert history.messages() == [{"at": 1.0, "groups": {}, "trouble": "no answer"}, {"at": 9.0}]


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    meta = Meta("kafka:9092", "sub", "run", 60.0, Table(("a", "b"), (("1", "2"),)), ((1.5, "deploy"),))
    recording = Recording(meta, tuple(json.loads(json.dumps(messages([{"a": "0-5"}, {"é\u2028</script>": "0-5"}])))))
    write_recording(tmp_path / "file", recording)
    assert read_recording(tmp_path / "file") == recording


def test_a_recording_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with Recorder(path, Meta("kafka:9092")) as recorder:
        recorder.write('{"at": 1}')
        # Messages are in the file while the recorder still runs.
        assert len(read_recording(path).messages) == 1
        recorder.write('{"at": 2}')
    path.write_text(path.read_text()[:-4])
    assert read_recording(path).messages == ({"at": 1},)


HEADER = '{"format": "consumer-coord watch", "version": 1, "meta": {"title": "t"}}\n'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not a recording"),
        ("[]\n", "not a recording"),
        ('{"format": "other"}\n', "not a recording"),
        ("[" * 200_000, "not a recording"),
        (HEADER.replace("1", "2"), "version 2"),
        (HEADER.replace("title", "titel"), "header"),
        (HEADER + "nonsense\n", "line 2"),
        (HEADER + '{"at": 1}\n[1]\n', "line 3"),
        (HEADER + '{"at": "soon"}\n', "line 2"),
    ],
)
def test_an_invalid_recording_is_reported(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=complaint):
        read_recording(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_recording(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="No such file"):
        Recorder(tmp_path / "nothing" / "file", Meta("t"))
