"""The names of settings, for suggestions after a misspelling, and for the reference."""

from __future__ import annotations

from collections.abc import Collection

_NAMES = """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms auto.commit.enable
    auto.commit.interval.ms auto.offset.reset bootstrap.servers broker.address.family broker.address.ttl
    broker.version.fallback check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
    consume.callback.max.messages coordinator.query.interval.ms debug enable.auto.commit enable.auto.offset.store
    enable.metrics.push enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
    enable.sparse.connections enable.ssl.certificate.verification enabled_events error_cb fetch.error.backoff.ms
    fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
    group.instance.id group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms https.ca.location
    https.ca.pem internal.termination.signal isolation.level log.connection.close log.queue log.thread.name log_level logger
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    message.copy.max.bytes message.max.bytes metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy oauth_cb offset.store.method offset.store.path
    offset.store.sync.interval.ms on_commit partition.assignment.strategy plugin.library.paths queued.max.messages.kbytes
    queued.min.messages receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.principal sasl.kerberos.service.name
    sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
    socket.timeout.ms ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites
    ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem
    ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms stats_cb
    test.mock.broker.rtt test.mock.num.brokers throttle_cb topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse
"""
#: The version of confluent-kafka with the settings in :data:`LIBRDKAFKA`; older supported versions have fewer.
KNOWN_BY = "2.16"
#: Consumer settings of librdkafka 2.16, with the callbacks of confluent-kafka.
LIBRDKAFKA = frozenset(_NAMES.split())


#: Names of settings and assignors in kafka-python and Java -> the names here. kafka-python's settings that differ only in
#: underscores are omitted.
_OF_OTHER_CLIENTS = {
    "fetch_max_wait_ms": "fetch.wait.max.ms",
    "receive_buffer_bytes": "socket.receive.buffer.bytes",
    "send_buffer_bytes": "socket.send.buffer.bytes",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
    "ssl_crlfile": "ssl.crl.location",
    "ssl_ciphers": "ssl.cipher.suites",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "sasl_oauth_token_provider": "oauth_cb",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
    "RangePartitionAssignor": "range",
    "RoundRobinPartitionAssignor": "roundrobin",
    "StickyPartitionAssignor": "sticky",
}

#: Setting of another client that has no equivalent here -> the alternative.
INSTEAD = {
    "key_deserializer": "call it on message.key()",
    "value_deserializer": "call it on message.value()",
    "key.deserializer": "use DeserializingConsumer",
    "value.deserializer": "use DeserializingConsumer",
    "consumer_timeout_ms": "give poll and consume a timeout, in seconds",
    "max_poll_records": "give consume the number of records: consume(500, timeout=1.0)",
}


def of_other_clients(name: str, known: Collection[str]) -> str | None:
    """Return this library's name for a name of kafka-python or of Java's client, or None."""
    meant = _OF_OTHER_CLIENTS.get(name.rpartition(".")[2] if name.endswith("Assignor") else name, name.replace("_", "."))
    return meant if meant in known and meant != name else None


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return ``"; did you mean 'group.id'?"`` with the closest known name, or an empty text."""
    if meant := of_other_clients(name, known):
        return f"; did you mean {meant!r}?"
    import difflib

    close = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.7)
    return f"; did you mean {close[0]!r}?" if close else ""
