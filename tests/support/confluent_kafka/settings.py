"""All consumer and global settings of the installed librdkafka, and how this package uses each of them."""

from __future__ import annotations

import ctypes
import glob
import os

import attrs
import confluent_kafka

from consumer_coord.setting_names import KNOWN_BY

#: Whether the installed confluent-kafka is older than the one whose settings are listed.
OLDER = tuple(map(int, confluent_kafka.__version__.split(".")[:2])) < tuple(map(int, KNOWN_BY.split(".")))

USED = "used by the coordinator"
BOTH = "used by the coordinator and for reading"
READS = "used for reading"
ONLY = "librdkafka reads if this is set"
PASSED = "used only if librdkafka reads"
REFUSED = "refused"
NONE = "without effect"


@attrs.frozen
class Fate:
    """The use of a setting, and the reason if it is not obvious."""

    kind: str
    why: str = ""


def installed() -> dict[str, str]:
    """Return name -> default for all settings of consumers and of every client, as librdkafka prints them."""
    (library,) = glob.glob(os.path.dirname(confluent_kafka.__file__) + ".libs/librdkafka*")
    kafka, libc = ctypes.CDLL(library), ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    file = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    kafka.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    assert text.value is not None
    found: dict[str, str] = {}
    for line in text.value.decode().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and cells[1] in ("C", "*"):
            found.setdefault(cells[0], cells[3])
    return found


def _all(kind: str, names: str, why: str = "") -> dict[str, Fate]:
    return dict.fromkeys(names.split(), Fate(kind, why))


FATES: dict[str, Fate] = {
    **_all(
        USED,
        "group.instance.id partition.assignment.strategy session.timeout.ms heartbeat.interval.ms max.poll.interval.ms"
        " enable.auto.commit auto.commit.interval.ms enable.auto.offset.store",
    ),
    **_all(
        BOTH,
        "client.id metadata.broker.list bootstrap.servers topic.metadata.refresh.interval.ms metadata.max.age.ms"
        " metadata.recovery.rebootstrap.trigger.ms"
        " socket.timeout.ms socket.connection.setup.timeout.ms connections.max.idle.ms"
        " receive.message.max.bytes reconnect.backoff.max.ms allow.auto.create.topics security.protocol ssl.cipher.suites"
        " ssl.curves.list"
        " ssl.key.location ssl.key.password ssl.key.pem ssl.certificate.location ssl.certificate.pem ssl.ca.location ssl.ca.pem"
        " ssl.crl.location ssl.keystore.location ssl.keystore.password enable.ssl.certificate.verification"
        " ssl.endpoint.identification.algorithm sasl.mechanisms sasl.mechanism sasl.username sasl.password"
        " sasl.oauthbearer.config group.id client.rack isolation.level auto.offset.reset retry.backoff.ms"
        " retry.backoff.max.ms statistics.interval.ms group.protocol",
    ),
    "reconnect.backoff.ms": Fate(
        BOTH,
        "105 ms for librdkafka instead of 100 ms, so that both together connect as often as librdkafka alone",
    ),
    "group.protocol": Fate(USED, "`classic` or `consumer`"),
    "group.remote.assignor": Fate(USED, "with `group.protocol=consumer`"),
    **_all(
        BOTH,
        "error_cb throttle_cb stats_cb",
        "called inside poll and consume; statistics have the group's figures",
    ),
    "enable.metrics.push": Fate(
        BOTH, "the consumer pushes its own metrics; if librdkafka reads, librdkafka also pushes those of its connections"
    ),
    **_all(ONLY, "plugin.library.paths ssl.sigalgs.list ssl.providers", "refused with `librdkafka.enable=false`"),
    **_all(
        READS,
        "queued.min.messages queued.max.messages.kbytes fetch.wait.max.ms fetch.message.max.bytes max.partition.fetch.bytes"
        " fetch.max.bytes fetch.min.bytes enable.partition.eof check.crcs",
    ),
    **_all(
        PASSED,
        "message.max.bytes message.copy.max.bytes max.in.flight.requests.per.connection"
        " max.in.flight metadata.recovery.strategy"
        " topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.fast.cnt topic.metadata.refresh.sparse"
        " topic.metadata.propagation.max.ms topic.blacklist socket.blocking.max.ms socket.send.buffer.bytes"
        " socket.receive.buffer.bytes socket.keepalive.enable socket.nagle.disable socket.max.fails broker.address.ttl"
        " broker.address.family reconnect.backoff.jitter.ms log_level log.queue log.thread.name enable.random.seed"
        " log.connection.close internal.termination.signal api.version.request api.version.request.timeout.ms"
        " api.version.fallback.ms broker.version.fallback coordinator.query.interval.ms"
        " fetch.queue.backoff.ms fetch.error.backoff.ms client.dns.lookup"
        " builtin.features enabled_events",
    ),
    "debug": Fate(
        USED, "with `cgrp` or `all` the group's steps are logged in librdkafka's form; its own log, if librdkafka reads"
    ),
    **_all(
        NONE,
        "auto.commit.enable offset.store.method offset.store.path offset.store.sync.interval.ms consume.callback.max.messages"
        " group.protocol.type"
        " max.poll.records share.acknowledgement.mode",
        "this package does not use librdkafka's group, offset files and share consumers",
    ),
    **_all(
        REFUSED,
        "log_cb background_event_cb socket_cb connect_cb closesocket_cb open_cb resolve_cb opaque default_topic_conf"
        " ssl_key ssl_certificate ssl_ca ssl_engine_callback_data ssl.certificate.verify_cb oauthbearer_token_refresh_cb"
        " interceptors consume_cb rebalance_cb offset_commit_cb",
        "a C pointer, which confluent-kafka also refuses",
    ),
    **_all(REFUSED, "ssl.engine.location ssl.engine.id", "OpenSSL engines are not supported; give the key as a file or text"),
    **_all(REFUSED, "ssl.ca.certificate.stores", "Windows certificate stores are not supported; give `ssl.ca.location`"),
    **_all(
        REFUSED,
        "sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.kinit.cmd sasl.kerberos.keytab"
        " sasl.kerberos.min.time.before.relogin",
        "GSSAPI is not supported; use SCRAM, PLAIN over TLS, or OAUTHBEARER",
    ),
    "sasl.oauthbearer.metadata.authentication.type": Fate(
        BOTH, "only `none` and `azure_imds`; `aws_iam`, which confluent-kafka implements in Python, is refused"
    ),
    "ssl.curves.list": Fate(
        BOTH, "with a list of several curves librdkafka reads, and the coordinator warns that Python's TLS takes one"
    ),
    **_all(BOTH, "https.ca.location https.ca.pem", "for connections to the token endpoint"),
    **_all(
        BOTH,
        "enable.sasl.oauthbearer.unsecure.jwt sasl.oauthbearer.method sasl.oauthbearer.client.id"
        " sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret"
        " sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions"
        " sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.sub.claim.name sasl.oauthbearer.grant.type"
        " sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.private.key.file"
        " sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem"
        " sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.claim.aud"
        " sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss"
        " sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds"
        " sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.jwt.template.file",
        "one token for both, requested or created by this package",
    ),
}
