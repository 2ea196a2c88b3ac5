"""The exchanges of SASL without a network: tokens kept and renewed, and brokers that do not authenticate themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import scramp

from consumer_coord.environment import Connector, Environment
from consumer_coord.errors import AuthenticationError, ConfigurationError, RetriableError
from consumer_coord.net.connection import Connection
from consumer_coord.net.sasl import OAuthBearer, Plain, SaslAuthenticator, Scram, TokenSource, require_no_sasl
from consumer_coord.net.scram import ScramClient, ScramError
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.secrets import found_in, made_up

PASSWORD = made_up("password of SASL")


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def environment(self) -> Environment:
        """Return an environment in which slow work runs at once."""

        async def inline(function: Callable[[], Any], /) -> Any:
            return function()

        return Environment(cast(Connector, None), random.Random(1), lambda: int(self.ms), inline)


class Broker:
    """The broker's side of a connection: scripted responses, and the received requests."""

    address = "broker:9092"

    def __init__(self, answers: Sequence[Any] = (), *, handshake: int = 0, knows_sasl: bool = True) -> None:
        self.versions = {api_for(SaslHandshakeRequest).key: (0, 1)} if knows_sasl else {}
        self.sent: list[bytes] = []
        self._answers = list(answers)
        self._handshake = handshake

    async def exchange(self, message: Any) -> Any:
        """Record a request, and return the next response, as :meth:`Connection.exchange` does."""
        if isinstance(message, SaslHandshakeRequest):
            return SaslHandshakeResponse(error_code=self._handshake, mechanisms=["SCRAM-SHA-512", "PLAIN"])
        assert isinstance(message, SaslAuthenticateRequest)
        assert not found_in(repr(message))
        self.sent.append(message.auth_bytes)
        answer = self._answers.pop(0)
        return answer(message.auth_bytes) if callable(answer) else answer


def authenticate(mechanism: Any, broker: Broker) -> int:
    return asyncio.run(SaslAuthenticator(mechanism).authenticate(cast(Connection, broker)))


def test_plain_sends_name_and_password_and_takes_the_lifetime() -> None:
    broker = Broker([SaslAuthenticateResponse(session_lifetime_ms=5000)])
    assert authenticate(Plain("alice", PASSWORD), broker) == 5000
    assert broker.sent == [b"\0alice\0" + PASSWORD.encode()]


def test_a_password_that_a_broker_repeats_is_not_in_the_message() -> None:
    told = f"wrong password {PASSWORD}"
    broker = Broker([SaslAuthenticateResponse(error_code=error_codes.SASL_AUTHENTICATION_FAILED, error_message=told)])
    with pytest.raises(AuthenticationError, match=r"wrong password \*\*\*; check sasl.username and sasl.password") as raised:
        authenticate(Plain("alice", PASSWORD), broker)
    assert raised.value.code == error_codes.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (error_codes.UNSUPPORTED_SASL_MECHANISM, "one that this listener has enabled: PLAIN, SCRAM-SHA-512"),
        (error_codes.ILLEGAL_SASL_STATE, "a listener without SASL"),
        (error_codes.UNKNOWN_SERVER_ERROR, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_refused_handshake(code: int, told: str) -> None:
    with pytest.raises(AuthenticationError, match=told):
        authenticate(Plain("alice", PASSWORD), Broker(handshake=code))


def test_a_listener_with_sasl_is_known_by_its_answer_to_no_mechanism() -> None:
    with pytest.raises(AuthenticationError, match=r"expects SASL.*one of PLAIN, SCRAM-SHA-512"):
        asyncio.run(require_no_sasl(cast(Connection, Broker(handshake=error_codes.UNSUPPORTED_SASL_MECHANISM))))
    asyncio.run(require_no_sasl(cast(Connection, Broker(handshake=error_codes.ILLEGAL_SASL_STATE))))
    # A broker without SaslHandshake has no SASL either, so it gets no request.
    asyncio.run(require_no_sasl(cast(Connection, Broker(handshake=error_codes.UNKNOWN_SERVER_ERROR, knows_sasl=False))))


# -- SCRAM ----------------------------------------------------------------------------------------------------------


class ScramBroker(Broker):
    """A broker that knows a password, and may send a wrong proof at the end."""

    def __init__(self, password: str, *, lie: str | None = None) -> None:
        super().__init__([self._first, self._final])
        mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
        credentials = mechanism.make_auth_info(password)
        self._server = mechanism.make_server(lambda _name: credentials)
        self._lie = lie

    def _first(self, token: bytes) -> SaslAuthenticateResponse:
        self._server.set_client_first(token.decode())
        return SaslAuthenticateResponse(auth_bytes=self._server.get_server_first().encode())

    def _final(self, token: bytes) -> SaslAuthenticateResponse:
        self._server.set_client_final(token.decode())
        told = self._lie if self._lie is not None else self._server.get_server_final()
        return SaslAuthenticateResponse(auth_bytes=told.encode(), session_lifetime_ms=7000)


def scram(password: str = PASSWORD, username: str = "alice") -> Scram:
    return Scram(username, password, "SCRAM-SHA-256", Clock().environment())


def test_scram_never_sends_the_password() -> None:
    broker = ScramBroker(PASSWORD)
    assert authenticate(scram(), broker) == 7000
    assert PASSWORD.encode() not in b"".join(broker.sent)


@pytest.mark.parametrize("lie", ["v=AAAA", "", "e=other-error", "nonsense"])
def test_scram_refuses_a_broker_that_does_not_know_the_password(lie: str) -> None:
    with pytest.raises(AuthenticationError, match="the broker's part of the SCRAM exchange is wrong"):
        authenticate(scram(), ScramBroker(PASSWORD, lie=lie))


@pytest.mark.parametrize("first", [b"", b"\xff", b"r=abc,s=QUJD,i=1", b"r=other,s=QUJDREVGR0hJSktMTU5P,i=999999999"])
def test_scram_refuses_a_malformed_first_message(first: bytes) -> None:
    with pytest.raises(AuthenticationError, match="SCRAM exchange is wrong"):
        authenticate(scram(), Broker([SaslAuthenticateResponse(auth_bytes=first)]))


def test_scram_is_that_of_the_rfc() -> None:
    """The test uses the example of RFC 7677, section 3."""
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first() == "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    final = client.final(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    client.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("salt_and_iterations", ["s=QUJD,i=4095", "s=QUJD,i=1000001", "s=QUJD,i=-1", "s=,i=4096", "s=!,i=4096"])
def test_scram_refuses_what_kafka_and_librdkafka_refuse(salt_and_iterations: str) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, nonce="ours")
    with pytest.raises(ScramError):
        client.final(f"r=ours-theirs,{salt_and_iterations}")


def test_scram_refuses_a_broker_that_adds_nothing_to_the_nonce() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, nonce="ours")
    with pytest.raises(ScramError, match="not a response to this exchange"):
        client.final("r=ours,s=QUJD,i=4096")


def test_scram_escapes_names_and_sends_them_as_kafka_does() -> None:
    assert ScramClient("SCRAM-SHA-512", "a=b,ﬁ", PASSWORD, nonce="n").first() == "n,,n=a=3Db=2Cﬁ,r=n"


def test_scram_uses_a_password_as_it_is() -> None:
    """SASLprep would replace "ﬁ" by two letters. Neither Kafka nor librdkafka does that, so the key would differ."""

    def proof(password: str) -> str:
        return ScramClient("SCRAM-SHA-256", "alice", password, nonce="n").final("r=n-n,s=QUJD,i=4096")

    assert proof("ﬁ") != proof("fi")


# -- OAUTHBEARER ----------------------------------------------------------------------------------------------------


class Provider:
    """An identity provider whose tokens live for ten minutes, and which may be unavailable."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[str | None] = []
        self.away = False
        self.extensions: dict[str, str] = {}

    def __call__(self, config: str | None) -> tuple[Any, ...]:
        """Return a token, as ``oauth_cb``."""
        if self.away:
            raise ConnectionError("the provider is away")
        self.asked.append(config)
        return made_up("bearer-token"), self.clock.ms / 1000 + 600, "alice", self.extensions


def test_a_token_is_fetched_once_and_renewed_at_four_fifths_of_its_life() -> None:
    clock = Clock()
    provider = Provider(clock)
    source = TokenSource(provider, "scope=kafka", clock.environment())

    async def run() -> None:
        first, second = await asyncio.gather(source.token(), source.token())
        assert first is second
        assert provider.asked == ["scope=kafka"]
        clock.ms += 479_000
        assert await source.token() is first
        clock.ms += 2_000
        renewed = await source.token()
        assert renewed.value != first.value
        assert len(provider.asked) == 2
        assert not found_in(repr(renewed))

    asyncio.run(run())


def test_a_provider_that_is_away_ends_nothing_that_runs() -> None:
    clock = Clock()
    provider = Provider(clock)
    source = TokenSource(provider, None, clock.environment())

    async def run() -> None:
        held = await source.token()
        provider.away = True
        clock.ms += 590_000
        assert await source.token() is held
        clock.ms += 20_000
        with pytest.raises(RetriableError, match=r"expired and could not be renewed.*the provider is away"):
            await source.token()
        provider.away = False
        assert (await source.token()).value != held.value

    asyncio.run(run())


def test_a_provider_that_is_unavailable_at_the_start_is_reported_at_once() -> None:
    provider = Provider(Clock())
    provider.away = True
    with pytest.raises(AuthenticationError, match="oauth_cb raised ConnectionError: the provider is away") as raised:
        authenticate(OAuthBearer(TokenSource(provider, None, provider.clock.environment())), Broker())
    assert isinstance(raised.value.__cause__, ConnectionError)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("token", "must return"),
        (("token",), "must return"),
        (("token", "soon"), "must return"),
        (("token", True), "must return"),
        (("to\x01ken", 2_000), "characters"),
        (("", 2_000), "characters"),
        (("token", 2_000, "alice", ["x"]), "dictionary"),
        (("token", 2_000, "alice", {"auth": "x"}), "'auth'"),
        (("token", 2_000, "alice", {"a b": "x"}), "'a b'"),
        (("token", 2_000, "alice", {"key": "x\x01y"}), "printable"),
        (("token", 999), "expired 1 s ago"),
    ],
)
def test_what_oauth_cb_must_not_return(returned: Any, told: str) -> None:
    source = TokenSource(lambda _config: returned, None, Clock().environment())
    with pytest.raises((ConfigurationError, AuthenticationError), match=told):
        asyncio.run(source.token())


def test_the_first_message_carries_token_and_extensions() -> None:
    clock = Clock()
    provider = Provider(clock)
    provider.extensions = {"logicalCluster": "lkc-1"}
    source = TokenSource(provider, None, clock.environment())
    broker = Broker([SaslAuthenticateResponse(session_lifetime_ms=60_000)])
    assert authenticate(OAuthBearer(source), broker) == 60_000
    token = asyncio.run(source.token()).value
    assert broker.sent == [f"n,,\x01auth=Bearer {token}\x01logicalCluster=lkc-1\x01\x01".encode()]


@pytest.mark.parametrize(
    ("challenge", "told"),
    [
        (b'{"status":"invalid_token","scope":"kafka"}', "status=invalid_token, scope=kafka"),
        (b"?", "without a reason"),
        (b"[]", "without a reason"),
    ],
)
def test_a_refused_token_is_reported_with_the_brokers_reason_and_renewed(challenge: bytes, told: str) -> None:
    clock = Clock()
    provider = Provider(clock)
    bearer = OAuthBearer(TokenSource(provider, None, clock.environment()))
    with pytest.raises(AuthenticationError, match=rf"refused the token \({told}\); check what oauth_cb returns"):
        authenticate(bearer, Broker([SaslAuthenticateResponse(auth_bytes=challenge)]))
    authenticate(bearer, Broker([SaslAuthenticateResponse()]))
    assert len(provider.asked) == 2
