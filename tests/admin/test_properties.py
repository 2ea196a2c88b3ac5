"""``--command-config``: property files of users, in Java's spelling or librdkafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer_coord.admin.properties import from_java, load_properties, parse_properties, parse_setting
from consumer_coord.errors import ConfigurationError
from tests.support.secrets import found_in, made_up

PASSWORD = made_up("password in properties")


def test_the_format_of_java() -> None:
    text = r"""
# a comment
! another
security.protocol=SASL_SSL
  sasl.mechanism : PLAIN
spaced   value with blanks
continued=one,\
          two
escaped\ key=tab\there, \u00e9, C:\\dir
empty=
alone
"""
    assert dict(parse_properties(text)) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "spaced": "value with blanks",
        "continued": "one,two",
        "escaped key": "tab\there, é, C:\\dir",
        "empty": "",
        "alone": "",
    }


@pytest.mark.parametrize("module", ["plain.PlainLoginModule", "scram.ScramLoginModule"])
@pytest.mark.parametrize("quoted", ['username="al ice" password="{}"', "username='al ice' password='{}' tokenauth=false"])
def test_credentials_in_a_jaas_configuration(module: str, quoted: str) -> None:
    jaas = f"org.apache.kafka.common.security.{module} required {quoted.format(PASSWORD)};"
    assert from_java({"sasl.jaas.config": jaas}) == {"sasl.username": "al ice", "sasl.password": PASSWORD}


@pytest.mark.parametrize(
    ("jaas", "told"),
    [
        (f'com.sun.security.auth.module.Krb5LoginModule required password="{PASSWORD}";', "only PlainLoginModule"),
        (f'org.x.PlainLoginModule required password="{PASSWORD}"', "only PlainLoginModule"),
        (f'org.x.PlainLoginModule required password="{PASSWORD}";', "no username"),
    ],
    ids=["Kerberos", "no semicolon", "no username"],
)
def test_a_jaas_configuration_that_is_not_understood(jaas: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as raised:
        from_java({"sasl.jaas.config": jaas})
    assert not found_in(str(raised.value))


def test_stores_in_pem_format() -> None:
    assert from_java(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "client.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    ) == {
        "ssl.certificate.location": "client.pem",
        "ssl.key.location": "client.pem",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    texts = {"ssl.keystore.certificate.chain": "1", "ssl.keystore.key": "2", "ssl.truststore.certificates": "3"}
    assert from_java(texts) == {"ssl.certificate.pem": "1", "ssl.key.pem": "2", "ssl.ca.pem": "3"}


def test_stores_of_other_kinds() -> None:
    given = {"ssl.keystore.location": "client.p12", "ssl.keystore.password": PASSWORD}
    assert from_java(given) == given
    with pytest.raises(ConfigurationError, match="keytool -importkeystore"):
        from_java({"ssl.keystore.location": "client.jks"})
    with pytest.raises(ConfigurationError, match="keytool -exportcert"):
        from_java({"ssl.truststore.location": "trust.jks", "ssl.truststore.password": PASSWORD})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--command-config .*none.properties: No such file"):
        load_properties(str(tmp_path / "none.properties"))


def test_one_setting_of_the_command_line() -> None:
    assert parse_setting("sasl.password=a=b ") == ("sasl.password", "a=b")
    assert parse_setting("sasl.jaas.config=org.x.PlainLoginModule required;")[0] == "sasl.jaas.config"


def test_a_setting_that_is_refused_shows_no_value() -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_setting(f"pasword={PASSWORD}")
    assert not found_in(str(raised.value))
