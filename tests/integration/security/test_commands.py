"""Operators' commands on secured listeners, with the files that operators have."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from consumer_coord.admin.commands import ExitCode
from consumer_coord.cli import main
from tests.support.secrets import made_up
from tests.support.secured import SecuredKafka

pytestmark = pytest.mark.kafka


def properties(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "client.properties"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_file_in_java_s_spelling(secured: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secured.allow("bob", ResourceType.GROUP, "bobs", AclOperation.READ)
    secured.allow("bob", ResourceType.TOPIC, "bobs", AclOperation.READ)
    secured.kafka.create_topic("bobs", 1)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file = properties(
        tmp_path,
        "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        f'sasl.jaas.config={module} required username="bob" \\\n  password="{secured.passwords["bob"]}";',
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={secured.authority.ca}",
    )
    server = ["--bootstrap-server", secured.kafka.bootstrap("SASLTLS"), "--command-config", file]
    assert main(["reset", "bobs", "--to-latest", "--topic", "bobs", "--execute", *server]) == ExitCode.DONE
    assert main(["describe", "bobs", *server]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("bobs")] == [["bobs", "bobs", "0"]] * 2
    assert "has no active members" in err

    assert main(["describe", "not-bobs", *server]) == ExitCode.NOT_ALLOWED
    assert "the principal needs DESCRIBE on the group" in capsys.readouterr().err
    assert main(["delete", "bobs", *server]) == ExitCode.NOT_ALLOWED
    assert "to delete a group or offsets, DELETE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "told", "code"),
    [
        (
            ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=bob", "sasl.password={wrong}"],
            "check sasl.username and sasl.password",
            ExitCode.NOT_ALLOWED,
        ),
        ([], "expects SASL; set security.protocol", ExitCode.NOT_ALLOWED),
        (["security.protocol=SASL_PLAINTEXT"], "sasl.mechanism is missing", ExitCode.USAGE),
        (
            ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"],
            "sasl.mechanism=OAUTHBEARER needs oauth_cb, which is not set",
            ExitCode.USAGE,
        ),
    ],
)
def test_wrong_files(
    secured: SecuredKafka,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[str],
    told: str,
    code: ExitCode,
) -> None:
    file = properties(tmp_path, *(line.format(wrong=made_up("wrong password")) for line in lines))
    assert main(["list", "--bootstrap-server", secured.kafka.bootstrap("SASL"), "--command-config", file]) == code
    assert told in capsys.readouterr().err
