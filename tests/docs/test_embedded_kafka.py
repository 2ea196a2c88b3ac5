"""``docs/embedded-kafka.md`` lists what the code serves, and the versions that clients use."""

from __future__ import annotations

import re

from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.broker.topic_settings import TOPIC_SETTINGS
from consumer_coord.wire.apis import APIS
from tests.support.broker.client_versions import PAGE, documented


def test_the_page_lists_what_is_served() -> None:
    text = PAGE.read_text()
    for key, served in SERVED.items():
        versions = f"{served.min_version} to {served.max_version}"
        if served.min_version == served.max_version:
            versions = f"{served.min_version}"
        assert f"| {APIS[key].name} | {key} | {versions} |" in text


def test_no_client_is_said_to_use_what_is_not_served() -> None:
    served = {APIS[key].name: range(api.min_version, api.max_version + 1) for key, api in SERVED.items()}
    rows = documented()
    assert {"confluent-kafka 2.16", "kafka-python 3.0", "aiokafka 0.14", "Java 4.4.0"} <= set(rows)
    for client, uses in rows.items():
        for api, version in uses:
            assert version in served[api] or api == "ApiVersions", f"{client}: {api} {version}"


def test_the_page_lists_the_topic_settings_that_have_an_effect() -> None:
    section = PAGE.read_text().partition("## Settings of topics\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([a-z.]+)` \|", section, re.MULTILINE))
    assert listed == {name for name, setting in TOPIC_SETTINGS.items() if setting.effective}
    stored = section.partition("The others are only stored:")[2].partition(" and so on")[0]
    assert not {name for name in re.findall(r"`([a-z.]+)`", stored) if TOPIC_SETTINGS[name].effective}
