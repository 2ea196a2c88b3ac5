"""``EmbeddedKafka`` itself: its life, its faults, bad input, the command, and the pytest plugin."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.errors import ClosedError, ConfigurationError
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from consumer_coord.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from consumer_coord.wire.messages.log import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from consumer_coord.wire.schema import Struct

pytest_plugins = ["pytester"]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """An embedded broker with topic orders."""
    with EmbeddedKafka({"orders": 3}) as kafka:
        yield kafka


class Wire:
    """A plain connection to a broker."""

    def __init__(self, kafka: EmbeddedKafka, broker: int = 0) -> None:
        host, _, port = kafka.bootstrap_servers.split(",")[broker].partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def send(self, message: Struct, version: int, correlation_id: int) -> None:
        """Send a request."""
        frame = encode_request(message, version, correlation_id, "wire")
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, kind: type[Struct], version: int) -> tuple[int, Struct]:
        """The next answer: its correlation id and the message."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return decode_response(kind, version, self._exactly(length))

    def call(self, message: Struct, version: int) -> Struct:
        """A request and its answer."""
        self.send(message, version, 1)
        return self.receive(api_for(type(message)).response, version)[1]

    def ended(self) -> bool:
        """Wait for something; whether it is the end of the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            assert chunk, "the broker closed the connection"
            data += chunk
        return data


def join(group: str, member_id: str = "", rebalance_ms: int = 60_000) -> JoinGroupRequest:
    """A JoinGroup."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )


# -- life


def test_it_is_a_context_manager_and_ends_its_thread() -> None:
    before = set(threading.enumerate())
    with EmbeddedKafka({"a": 1}, brokers=2) as kafka:
        assert len(kafka.bootstrap_servers.split(",")) == 2
        assert kafka.topics() == {"a": 1}
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClosedError):
        kafka.topics()
    with pytest.raises(ClosedError):
        kafka.start()
    kafka.close()


def test_it_is_an_async_context_manager() -> None:
    async def main() -> None:
        async with EmbeddedKafka({"a": 1}) as kafka:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(kafka.bootstrap_servers.split(":")[1]))
            frame = encode_request(ApiVersionsRequest(), 0, 5, None)
            writer.write(struct.pack(">i", len(frame)) + frame)
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            assert decode_response(ApiVersionsResponse, 0, await reader.readexactly(length))[0] == 5
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_settings_have_kafkas_names_and_a_wrong_one_is_named() -> None:
    with EmbeddedKafka(config={"num.partitions": "7", "auto.create.topics.enable": "true"}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "allow.auto.create.topics": True})
        wire = Wire(kafka)
        wire.call(MetadataRequest(topics=(MetadataRequestTopic(name="made"),)), 12)
        assert len(admin.list_topics("made", timeout=60).topics["made"].partitions) == 7
        wire.close()
    for settings in ({"no.such.setting": 1}, {"num.partitions": "many"}, {"num.partitions": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            EmbeddedKafka(config=settings)
    with pytest.raises(ConfigurationError, match="spaces"):
        EmbeddedKafka({"with spaces": 1}).start()
    with pytest.raises(ValueError, match="at least one broker"):
        EmbeddedKafka(brokers=0)


def test_an_address_that_is_taken_is_an_error_of_start(kafka: EmbeddedKafka) -> None:
    port = int(kafka.bootstrap_servers.split(":")[1])
    with pytest.raises(OSError, match="address"):
        EmbeddedKafka(port=port).start()


def test_racks_and_the_controller_are_in_the_metadata() -> None:
    with EmbeddedKafka({"a": 3}, brokers=3, racks=["x", "y", None]) as kafka:
        wire = Wire(kafka)
        metadata = wire.call(MetadataRequest(topics=None), 12)
        assert isinstance(metadata, MetadataResponse)
        assert [broker.rack for broker in metadata.brokers] == ["x", "y", None]
        assert metadata.controller_id == 0
        (topic,) = (topic for topic in metadata.topics if topic.name == "a")
        assert topic.topic_id.int != 0
        assert {partition.leader_id for partition in topic.partitions} == {0, 1, 2}
        wire.close()


def waiting_fetch(max_wait_ms: int, max_bytes: int) -> FetchRequest:
    """A fetch that waits for the first record of orders-0."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=(FetchTopic(topic="orders", partitions=(partition,)),))


def test_answers_come_in_the_order_of_the_requests_and_one_waits_for_the_other(kafka: EmbeddedKafka) -> None:
    wire = Wire(kafka)
    begun_s = time.monotonic()
    wire.send(waiting_fetch(300, 1), 11, 1)
    wire.send(ApiVersionsRequest(), 0, 2)
    assert wire.receive(FetchResponse, 11)[0] == 1
    assert time.monotonic() - begun_s >= 0.29, "the fetch waited for records"
    assert wire.receive(ApiVersionsResponse, 0)[0] == 2
    wire.close()


def test_a_fetch_that_waits_is_answered_when_records_come(kafka: EmbeddedKafka) -> None:
    wire = Wire(kafka)
    wire.send(waiting_fetch(60_000, 1_000_000), 11, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", b"x", partition=0)
    assert producer.flush(60) == 0
    _, response = wire.receive(FetchResponse, 11)
    assert isinstance(response, FetchResponse)
    assert response.responses[0].partitions[0].high_watermark == 1
    wire.close()


# -- faults


def test_the_nth_request_can_be_failed_delayed_or_dropped(kafka: EmbeddedKafka) -> None:
    wire = Wire(kafka)
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    kafka.add_fault("Heartbeat", Fault(error_code=error_codes.COORDINATOR_NOT_AVAILABLE), nth=2, times=2)
    codes = [getattr(wire.call(heartbeat, 4), "error_code", None) for _ in range(4)]
    assert codes == [25, 15, 15, 25]
    kafka.add_fault("Heartbeat", Fault(delay_ms=200))
    begun_s = time.monotonic()
    wire.call(heartbeat, 4)
    assert time.monotonic() - begun_s >= 0.19
    kafka.add_fault("Heartbeat", Fault(drop="request"))
    wire.send(heartbeat, 4, 1)
    assert wire.ended()
    wire.close()
    with pytest.raises(ValueError, match="drops"):
        Fault(drop="everything")


def test_a_dropped_response_comes_after_the_deed(kafka: EmbeddedKafka) -> None:
    wire = Wire(kafka)
    kafka.add_fault("CreateTopics", Fault(drop="response"))
    topic = CreatableTopic(name="made", num_partitions=1, replication_factor=1, assignments=(), configs=())
    wire.send(CreateTopicsRequest(topics=(topic,)), 5, 1)
    assert wire.ended()
    assert "made" in kafka.topics()
    wire.close()


def test_a_full_disk_refuses_writes_until_there_is_room(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 1_000})
    errors: list[KafkaError | None] = []
    kafka.set_disk_full()
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors[0] is not None
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "socket.timeout.ms": 2_000})
    with pytest.raises(KafkaException):
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    kafka.set_disk_full(False)
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors[1] is None
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()


def test_a_stopped_broker_answers_nobody_and_comes_back_at_its_address() -> None:
    with EmbeddedKafka({"orders": 3}, brokers=3) as kafka:
        servers = kafka.bootstrap_servers
        wire = Wire(kafka, 1)
        other = Wire(kafka, 0)
        kafka.stop_broker(1)
        assert wire.ended()
        wire.close()
        with pytest.raises(OSError, match="refused"):
            Wire(kafka, 1)
        metadata = other.call(MetadataRequest(topics=(MetadataRequestTopic(name="orders"),)), 12)
        assert isinstance(metadata, MetadataResponse)
        assert [broker.node_id for broker in metadata.brokers] == [0, 2]
        assert all(partition.leader_id in (0, 2) for partition in metadata.topics[0].partitions)
        assert all(partition.offline_replicas == (1,) for partition in metadata.topics[0].partitions)
        kafka.start_broker(1)
        assert kafka.bootstrap_servers == servers
        back = Wire(kafka, 1)
        assert isinstance(back.call(ApiVersionsRequest(), 0), ApiVersionsResponse)
        back.close()
        other.close()


# -- bad input


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2_000_000_000),
        struct.pack(">i", 4) + b"\0\0\0\0",
        struct.pack(">i", 10) + b"\x03\xe7\0\0\0\0\0\1\xff\xff",
        struct.pack(">i", 30) + b"\0\x0b\0\x09\0\0\0\1\xff\xff\0" + b"\xff" * 19,
    ],
)
def test_garbage_ends_its_own_connection_with_a_log_line(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, bytes_sent: bytes
) -> None:
    bystander, offender = Wire(kafka), Wire(kafka)
    with caplog.at_level(logging.WARNING):
        offender.socket.sendall(bytes_sent)
        assert offender.ended()
    assert any("closes the connection" in record.getMessage() for record in caplog.records)
    assert isinstance(bystander.call(ApiVersionsRequest(), 0), ApiVersionsResponse)
    bystander.close()
    offender.close()


def test_a_request_may_come_byte_by_byte(kafka: EmbeddedKafka) -> None:
    wire = Wire(kafka)
    frame = encode_request(MetadataRequest(topics=None), 12, 9, "slow")
    for byte in struct.pack(">i", len(frame)) + frame:
        wire.socket.sendall(bytes([byte]))
    assert wire.receive(MetadataResponse, 12)[0] == 9
    wire.close()


def test_large_and_small_requests_in_one_stream(kafka: EmbeddedKafka) -> None:
    wire = Wire(kafka)
    frames = b""
    for number in range(60):
        message = join("g" * (number * 997 % 30_000 + 1), "nobody")
        frame = encode_request(message, 9, number, "stream")
        frames += struct.pack(">i", len(frame)) + frame
    sender = threading.Thread(target=wire.socket.sendall, args=(frames,))
    sender.start()
    for number in range(60):
        correlation_id, response = wire.receive(JoinGroupResponse, 9)
        assert correlation_id == number
        assert getattr(response, "error_code", None) == error_codes.UNKNOWN_MEMBER_ID
    sender.join()
    wire.close()


def test_many_connections_are_bounded_and_half_open_ones_do_no_harm() -> None:
    with EmbeddedKafka({"orders": 1}, config={"max.connections": 300}) as kafka:
        wires = [Wire(kafka) for _ in range(300)]
        for wire in wires[:100]:
            wire.socket.sendall(b"\0\0\0\x30half a request")
        for wire in wires[100:120]:
            assert isinstance(wire.call(ApiVersionsRequest(), 0), ApiVersionsResponse)
        one_too_many = Wire(kafka)
        assert one_too_many.ended()
        one_too_many.close()
        wires.pop().close()
        deadline_s = time.monotonic() + 20
        while True:
            wire = Wire(kafka)
            try:
                wire.call(ApiVersionsRequest(), 0)
                break
            except (AssertionError, OSError):
                assert time.monotonic() < deadline_s, "the place that became free was not given to a waiting client"
            finally:
                wire.close()
        for wire in wires:
            wire.close()


def test_members_that_hang_up_do_not_keep_the_broker_from_ending(kafka: EmbeddedKafka) -> None:
    wires = [Wire(kafka) for _ in range(3)]
    for wire in wires:
        first = wire.call(join("group"), 9)
        assert isinstance(first, JoinGroupResponse)
        wire.send(join("group", first.member_id), 9, 2)
    wires[0].close()
    for wire in wires[1:]:
        wire.close()


# -- the command and the plugin


def test_the_command_runs_until_it_is_told_to_end() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "consumer_coord", "embedded-kafka", "--brokers", "2", "--topics", "orders:3,events"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    name, _, servers = child.stdout.readline().strip().partition("=")
    assert name == "bootstrap.servers"
    topics = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=60).topics
    assert (len(topics["orders"].partitions), len(topics["events"].partitions)) == (3, 1)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 0
    child.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topics", "orders:none"], "name:partitions"),
        (["--config", "no.such.setting=1"], "no.such.setting"),
        (["--config", "novalue"], "name=value"),
        (["--brokers", "0"], "at least one broker, not 0"),
        (["--port", "99999"], "a number from 0 to 65535, not 99999"),
        (["--port", "-1"], "a number from 0 to 65535, not -1"),
        (["--data-dir", "/dev/null/x"], "cannot be used"),
        (["--config", "queued.max.request.bytes=1000"], "must be at least twice socket.request.max.bytes"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], message: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "consumer_coord", "embedded-kafka", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode != 0
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


OPTIONS = """
import pytest

@pytest.fixture(scope="session")
def embedded_kafka_options():
    return {"brokers": 2}
"""
USES_THE_FIXTURES = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_topics(embedded_kafka, kafka_topic, n):
    first, second = kafka_topic(3), kafka_topic()
    assert embedded_kafka.topics() == {first: 3, second: 1}
    assert len(embedded_kafka.brokers) == 2
"""
NAMES_THE_PLUGIN = 'pytest_plugins = ["consumer_coord.pytest_plugin"]\n'


@pytest.mark.slow
@pytest.mark.parametrize("where", ["nowhere", "the conftest", "the test module", "both"])
def test_the_fixtures_are_there_and_a_conftest_configures_them(pytester: pytest.Pytester, where: str) -> None:
    """The plugin loads with pytest; a line in pytest_plugins changes nothing, whichever file has the line."""
    pytester.makeconftest((NAMES_THE_PLUGIN if where in ("the conftest", "both") else "") + OPTIONS)
    pytester.makepyfile((NAMES_THE_PLUGIN if where in ("the test module", "both") else "") + USES_THE_FIXTURES)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error").assert_outcomes(passed=2)


@pytest.mark.slow
def test_the_line_works_where_plugins_are_not_loaded_automatically(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(NAMES_THE_PLUGIN + OPTIONS)
    pytester.makepyfile(USES_THE_FIXTURES)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


@pytest.mark.slow
def test_a_suite_without_the_fixtures_imports_neither_the_broker_nor_librdkafka(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_imports(request):
            assert request.config.pluginmanager.has_plugin("consumer_coord.pytest_plugin")
            assert not {"consumer_coord.broker", "assignors", "confluent_kafka"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
