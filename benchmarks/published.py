"""The figures of README and of the pages, taken from the files of results: ``python -m benchmarks.published [--check]``.

A table of ``docs/benchmarks.md`` stands between ``<!-- measured: NAME -->`` and ``<!-- end -->``, and is written anew, with a
line that says when and with what it was measured. A figure within a sentence is found by the words around it
(:data:`SENTENCES`). If such a sentence is reworded, its pattern must be changed with it; the error names the sentence. The
charts are drawn after the tables (``tools/draw_benchmarks.py``).
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from benchmarks.results import Figure, Results
from benchmarks.table import number
from tools import draw_benchmarks

ROOT = Path(__file__).parents[1]
PAGE = "docs/benchmarks.md"
CONFLUENT = "confluent-kafka"
_PACKAGES = {
    "confluent-kafka": "confluent-kafka",
    "aiokafka": "aiokafka",
    "kafka-python": "kafka-python",
    "pyspark": "PySpark",
    "kafka": "Kafka",
    "python": "Python",
}
_WORDS = {1: "one round", 2: "two rounds", 3: "three rounds", 8: "eight rounds"}
_FIRST = {
    "one topic": "start",
    "100 topics": "start-100-topics",
    "one topic, TLS": "start-tls",
    "100 topics, TLS": "start-100-topics-tls",
    "group with commits": "committed",
    "appears": "appears",
    "leave": "leave",
    "join": "join",
}
_FIFTY, _ACROSS = "50 members, one process", "50 members, one process per member"
_VARIANTS = {
    "consumer-coord, cooperative": "ours, cooperative",
    "consumer-coord, range": "ours, range",
    "consumer-coord, consumer protocol": "ours, consumer protocol",
    **{
        name: name
        for name in (
            "librdkafka, cooperative",
            "librdkafka, range",
            "librdkafka, consumer protocol",
            "Java, cooperative",
            "Java, consumer protocol",
            "aiokafka, range",
            "kafka-python, cooperative",
        )
    },
}
_TOPICS = {
    "2,000,000 records of 100 bytes, transactions": "100 bytes, transactions",
    "2,000,000 records of 100 bytes": "100 bytes",
    "2,000,000 records of 100 bytes, zstd": "100 bytes, zstd",
    "2,000,000 records of 100 bytes, lz4": "100 bytes, lz4",
    "2,000,000 records of 100 bytes, 2 headers": "100 bytes, 2 headers",
    "200,000 records of 2 KB": "2 KB",
    "20,000 records of 20 KB": "20 KB",
}
_LARGE = ("1 partitions, 1 brokers", "1 partitions, 3 brokers", "4 partitions, 1 brokers", "4 partitions, 3 brokers")


class Book:
    """All files of results; remembers which figures were asked for."""

    def __init__(self, directory: Path) -> None:
        self._files = {file.stem: Results(file) for file in sorted(directory.glob("*.jsonl"))}
        self.used: list[Figure] = []

    def figure(self, file: str, row: str, case: str, client: str, name: str) -> Figure:
        """Return a figure of a client."""
        return self._note(self._files[file].figure(row, case, client, name))

    def ratio(self, file: str, row: str, case: str, client: str, peer: str, name: str) -> Figure:
        """Return the figure of a client divided by its peer's."""
        return self._note(self._files[file].ratio(row, case, client, peer, name))

    def difference(self, file: str, row: str, case: str, client: str, peer: str, name: str) -> Figure:
        """Return the figure of a client minus its peer's."""
        return self._note(self._files[file].difference(row, case, client, peer, name))

    def _note(self, found: Figure) -> Figure:
        self.used.append(found)
        return found


def rate(found: Figure) -> str:
    """Write a number of records or commits per second, in three digits: ``7,580,000``."""
    digits = len(f"{found.median:.0f}")
    return f"{round(found.median, min(0, 3 - digits)):,.0f}"


def two(value: float) -> str:
    """Write a ratio or seconds with two decimals."""
    return f"{value:.2f}"


def spread(found: Figure) -> str:
    """Write the median, with the smallest and the largest value in brackets if they are known."""
    return two(found.median) + (f" ({two(found.least)}-{two(found.most)})" if found.least != found.most else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1, text_at_end: bool = False) -> str:
    marks = ["---"] * texts + ["---:"] * (len(head) - texts)
    if text_at_end:
        marks[-1] = "---"
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, marks, *rows))


def _throughput(book: Book) -> str:
    rows = []
    for way in ("consume", "poll"):
        ours, theirs = f"ours:{way}", f"{CONFLUENT}:{way}"
        cells = []
        for case in ("100 bytes", "1000 bytes"):
            place = "throughput", "throughput", case, ours
            per_s = f", {rate(book.figure(*place, 'per_s'))}/s" if case == "100 bytes" else ""
            cells += [
                spread(book.ratio(*place, theirs, "per_s")) + per_s,
                spread(book.ratio(*place, theirs, "cpu_s_per_million")),
            ]
        rows.append([f"`{way}`", *cells])
    return _table(["call", "rate, 100 bytes", "CPU time", "rate, 1,000 bytes", "CPU time"], rows)


_CLIENTS = {
    "consumer-coord, `consume`": "ours-librdkafka:consume",
    "confluent-kafka, `consume`": "confluent-kafka:consume",
    "consumer-coord, `poll`": "ours-librdkafka:poll",
    "confluent-kafka, `poll`": "confluent-kafka:poll",
    "aiokafka": "aiokafka",
    "kafka-python": "kafka-python",
}


def _clients(book: Book) -> str:
    found = {name: book.figure("throughput", "throughput", "1000 bytes", client, "per_s") for name, client in _CLIENTS.items()}
    return _table(["client", "messages/s"], [[name, rate(one)] for name, one in found.items()])


def _client_cpu(book: Book) -> str:
    place = "throughput", "throughput", "1000 bytes"
    rows = [[name, number(book.figure(*place, client, "cpu_s_per_million").median)] for name, client in _CLIENTS.items()]
    return _table(["client", "us per message"], rows)


def _first_message(book: Book) -> str:
    rows = [
        [name, *(spread(book.figure("first_message", "first message", case, client, "s")) for client in ("ours", CONFLUENT))]
        for name, case in _FIRST.items()
    ]
    return _table(["case", "consumer-coord, s", "confluent-kafka, s"], rows)


def _rebalances(book: Book) -> str:
    rows = []
    for name, variant in _VARIANTS.items():
        found = (book.figure("rebalances", "rebalances", _FIFTY, variant, one).median for one in ("join", "unowned"))
        rows.append([name, *map(number, found)])
    return _table(["client", "join, s", "unowned, partition-seconds"], rows)


def _idle(book: Book) -> str:
    clients = {
        "consumer-coord, `consume_arrow`": "ours, consume_arrow",
        "consumer-coord, `poll`": "ours, cooperative",
        "librdkafka": "librdkafka, cooperative",
    }
    rows = []
    for members in (50, 500):
        for name, client in clients.items():
            place = "idle", "idle", f"{members} members, 10 s", client
            cpu, *others = (book.figure(*place, one).median for one in ("cpu_s", "rss_mb", "sockets", "threads"))
            rows.append([name, str(members), two(cpu), *(f"{one:,.0f}" for one in others)])
    return _table(["client", "members", "CPU time, s", "memory, MB", "sockets", "threads"], rows)


def _spark(book: Book) -> str:
    rows = [
        [
            name,
            *(
                spread(book.ratio("spark", "drain", topic, "kafka_group", "kafka", f"{what}_per_s"))
                for what in ("batches", "query")
            ),
        ]
        for name, topic in _TOPICS.items()
    ]
    return _table(["topic", "batches", "query"], rows)


def _columns(book: Book) -> str:
    cases = ("consume_arrow", "consume", "consume + pa.array", "aiokafka + pa.array")
    rows = []
    for codec in ("none", "lz4", "zstd"):
        topic = "100 B" if codec == "none" else f"100 B, {codec}"
        found = (book.figure("columns", "columns", topic, case, "cpu_ns").median for case in cases)
        rows.append([codec, *(f"{one:,.0f}" for one in found)])
    head = [
        "codec",
        "`consume_arrow`",
        "confluent-kafka, `consume`",
        "`consume` and `pyarrow.array`",
        "aiokafka and `pyarrow.array`",
    ]
    return _table(head, rows)


def _parallel(book: Book) -> str:
    peers = {"pyrallel": "pyrallel", "prosody": "prosody", "pool": "pool", "java": "JVM"}
    rows = []
    for driver, word in (("asyncio", "task"), ("threads", "thread")):
        for count in (1, 10, 100, 1_000):

            def one(client: str, driver: str = driver, count: int = count) -> tuple[Figure, str]:
                place = "parallel", driver, str(count)
                ratio = book.ratio(*place, client, "bare", "rate")
                return ratio, f"{book.difference(*place, client, 'bare', 'cpu').median:,.0f} µs"

            ours, overhead = one("ours")
            others = []
            for client in ("pyrallel", "prosody") if driver == "asyncio" else ("pool", "java"):
                ratio, cpu = one(client)
                told = f"{peers[client]} {two(ratio.median)}, {cpu}"
                others.append(f"**{told}**" if ratio.median - ours.median > 0.05 else told)
            bare = rate(book.figure("parallel", driver, str(count), "bare", "rate"))
            cells = f"{two(ours.median)} ({two(ours.least)} to {two(ours.most)})", overhead, "; ".join(others)
            rows.append([f"{count:,} {word}{'s' if count > 1 else ''}", bare, *cells])
    return _table(["handlers at a time", "bare loop, records/s", "`process`", "overhead", "others"], rows, text_at_end=True)


def _commits(book: Book) -> str:
    rows = []
    for name, case, figure in (
        ("asynchronous, accepted", "asynchronous", "per_s"),
        ("asynchronous, answered by the broker", "asynchronous", "reported_per_s"),
        ("synchronous", "synchronous", "per_s"),
        ("`store_offsets(message)` after each message, one commit at the end", "stored", "per_s"),
    ):
        rows.append([name, *(rate(book.figure("commits", "commits", case, client, figure)) for client in ("ours", CONFLUENT))])
    return _table(["commit", "consumer-coord, per second", "confluent-kafka, per second"], rows)


#: The tables of the page.
TABLES: Mapping[str, Callable[[Book], str]] = {
    "throughput": _throughput,
    "clients": _clients,
    "CPU time of clients": _client_cpu,
    "first message": _first_message,
    "rebalances": _rebalances,
    "idle members": _idle,
    "spark": _spark,
    "columns": _columns,
    "parallel": _parallel,
    "commits": _commits,
}


@attrs.frozen
class Sentence:
    """Figures within a sentence: ``pattern`` has a group for each of ``texts``, and occurs once in the file."""

    file: str
    pattern: str
    texts: Sequence[Callable[[Book], str]]


def _consume(book: Book, case: str) -> Figure:
    return book.ratio("throughput", "throughput", case, "ours:consume", f"{CONFLUENT}:consume", "per_s")


def _commit_ratio(case: str) -> Callable[[Book], Figure]:
    return lambda book: book.ratio("commits", "commits", case, "ours", CONFLUENT, "per_s")


def _least(found: Callable[[Book], Figure]) -> Callable[[Book], str]:
    return lambda book: two(found(book).least)


def _most(found: Callable[[Book], Figure]) -> Callable[[Book], str]:
    return lambda book: two(found(book).most)


def _middle(found: Callable[[Book], Figure]) -> Callable[[Book], str]:
    return lambda book: two(found(book).median)


def _large(size: str, chosen: Callable[[Sequence[float]], float]) -> Callable[[Book], str]:
    """Return the smallest or the largest of the medians of a row of the goals, whose cases differ in partitions and brokers."""
    return lambda book: two(chosen([book.ratio("goals", size, case, "ours", CONFLUENT, "rate").median for case in _LARGE]))


def _goal(row: str, case: str, name: str) -> Callable[[Book], Figure]:
    return lambda book: book.ratio("goals", row, case, "ours", CONFLUENT, name)


def _ends(found: Callable[[Book], Figure]) -> Sequence[Callable[[Book], str]]:
    return _least(found), _most(found)


def _committed(client: str) -> Callable[[Book], str]:
    return lambda book: rate(book.figure("commits", "commits", "asynchronous", client, "reported_per_s"))


def _threads(client: str) -> Callable[[Book], Figure]:
    return lambda book: book.ratio("parallel", "threads", "1000", client, "bare", "rate")


def _process(client: str) -> Callable[[Book], Figure]:
    return lambda book: book.ratio("parallel", "processes", "1", client, "bare", "rate")


def _join(case: str, client: str) -> Callable[[Book], Figure]:
    return lambda book: book.figure("rebalances", "rebalances", case, client, "join")


def _rounds(found: Callable[[Book], Figure]) -> Callable[[Book], str]:
    return lambda book: _WORDS.get(found(book).rounds, f"{found(book).rounds} rounds")


def _spark_rate(source: str) -> Callable[[Book], str]:
    return lambda book: rate(book.figure("spark", "drain", "100 bytes", source, "batches_per_s"))


def _ranges(book: Book) -> Figure:
    return book.ratio("spark", "ranges", "100 bytes", "kafka_group", "kafka", "per_s")


def _columns_cpu(book: Book) -> str:
    ours, theirs = (book.figure("columns", "columns", "100 B", case, "cpu_ns").median for case in ("consume_arrow", "consume"))
    return two(ours / theirs)


def _memory(book: Book, members: int) -> float:
    """Return the megabytes of a process with idle members, whichever way they read."""
    clients = ("ours, consume_arrow", "ours, cooperative")
    return max(book.figure("idle", "idle", f"{members} members, 10 s", client, "rss_mb").median for client in clients)


def _hundred(book: Book) -> Figure:
    return _consume(book, "100 bytes")


def _thousand(book: Book) -> Figure:
    return _consume(book, "1000 bytes")


_SYNCHRONOUS, _ASYNCHRONOUS, _STORED = map(_commit_ratio, ("synchronous", "asynchronous", "stored"))
_OURS_FIFTY, _PEER_FIFTY, _OURS_ACROSS, _PEER_ACROSS = (
    _join(case, f"{client}, cooperative") for case in (_FIFTY, _ACROSS) for client in ("ours", "librdkafka")
)
_SINGLE = _goal("CPU per record at 200/s", "200/s", "cpu")
_EMPTY = _goal("empty calls", "poll(0) in us, consume(100, 0.01)", "consume")
_LARGE_ONES = [_large(size, chosen) for size in ("5 KB", "1 MB", "8 MB") for chosen in (min, max)]
_SIZES = r"(\S+) to (\S+) times with 5,000 bytes,\s+(\S+) to (\S+) with 1 MB,\s+(\S+) to (\S+) with 8 MB"

SENTENCES: Sequence[Sentence] = (
    Sentence(
        "README.md",
        r"\| (\S+) records/s, (\S+) times the peer's rate \((\S+) to (\S+)\) \|",
        [
            lambda book: rate(book.figure("throughput", "throughput", "100 bytes", "ours:consume", "per_s")),
            _middle(_hundred),
            _least(_hundred),
            _most(_hundred),
        ],
    ),
    Sentence(
        "README.md",
        r"records of 1,000 bytes: (\S+) times \((\S+) to (\S+)\)",
        [_middle(_thousand), _least(_thousand), _most(_thousand)],
    ),
    Sentence(
        "README.md",
        r"group of fifty \| (\S+) s \| librdkafka: (\S+) s \|",
        [_middle(_OURS_FIFTY), _middle(_PEER_FIFTY)],
    ),
    Sentence(
        "README.md",
        r"one process for each member: (\S+) s, librdkafka (\S+) s",
        [_middle(_OURS_ACROSS), _middle(_PEER_ACROSS)],
    ),
    Sentence(
        "README.md",
        r"reads 100-byte records \| (\S+) records/s \| Spark's connector: (\S+) records/s",
        [_spark_rate("kafka_group"), _spark_rate("kafka")],
    ),
    Sentence("README.md", _SIZES, _LARGE_ONES),
    Sentence(
        "README.md",
        r"synchronous commit after each message runs at (\S+) to (\S+) times its rate, an asynchronous\s+one at (\S+) to "
        r"(\S+), and `store_offsets\(message\)` after each message at ([\d.]*\d)",
        [*_ends(_SYNCHRONOUS), *_ends(_ASYNCHRONOUS), _middle(_STORED)],
    ),
    Sentence("README.md", r"as Arrow columns, for (\S+) of the \[CPU time\]", [_columns_cpu]),
    Sentence(
        "docs/operating.md",
        r"A process takes about (\S+) MB, and each further member in it about (\S+) MB",
        [lambda book: f"{_memory(book, 50):.0f}", lambda book: f"{(_memory(book, 500) - _memory(book, 50)) / 450:.1f}"],
    ),
    Sentence(PAGE, _SIZES, _LARGE_ONES),
    Sentence(
        PAGE,
        r"process per member, a join takes (\S+) s \((\S+)-(\S+), (\w+ rounds)\); librdkafka took (\S+) s \((\w+ rounds)\)",
        [
            *(told(_OURS_ACROSS) for told in (_middle, _least, _most, _rounds)),
            *(told(_PEER_ACROSS) for told in (_middle, _rounds)),
        ],
    ),
    Sentence(
        PAGE,
        r"`kafka_group` reads (\S+) records of 100 bytes per second, the connector (\S+)\. Two",
        [_spark_rate("kafka_group"), _spark_rate("kafka")],
    ),
    Sentence(PAGE, r"to the end: (\S+) times as fast \((\S+)-(\S+), ", [told(_ranges) for told in (_middle, _least, _most)]),
    Sentence(
        PAGE,
        r"\| single records, 200 a second \| (\S+) to (\S+) times confluent-kafka's CPU time",
        [_least(_SINGLE), _most(_SINGLE)],
    ),
    Sentence(
        PAGE,
        r"\| `consume\(100, 0\.01\)` of an idle member \| (\S+) to (\S+) times confluent-kafka's CPU time",
        [_least(_EMPTY), _most(_EMPTY)],
    ),
    Sentence(
        PAGE,
        r"\| synchronous commit after each message \| (\S+) to (\S+) times confluent-kafka's rate \|",
        _ends(_SYNCHRONOUS),
    ),
    Sentence(
        PAGE,
        r"\| asynchronous commit after each message, until it is accepted \| (\S+) to (\S+) times .*? "
        r"the broker answers (\S+) of these commits per second, but (\S+) of confluent-kafka's",
        [
            *_ends(_ASYNCHRONOUS),
            *(_committed(client) for client in ("ours", CONFLUENT)),
        ],
    ),
    Sentence(
        PAGE, r"\| `store_offsets\(message\)` after each message \| (\S+) times confluent-kafka's rate", [_middle(_STORED)]
    ),
    Sentence(
        PAGE,
        r"\| `process` with 1,000 threads \| (\S+) of a bare loop; Confluent's Parallel Consumer on the JVM (\S+) \|",
        [_middle(_threads(client)) for client in ("ours", "java")],
    ),
    Sentence(
        PAGE,
        r"handlers compute 1 ms: (\S+) records/s bare, `process` (\S+), pyrallel (\S+) \(",
        [
            lambda book: rate(book.figure("parallel", "processes", "1", "bare", "rate")),
            *(_middle(_process(client)) for client in ("ours", "pyrallel")),
        ],
    ),
    Sentence(
        "docs/confluent-kafka.md",
        r"records of 100\s+bytes arrive (\S+) times as fast, for (\S+) of the CPU time; "
        r"records of 1,000\s+bytes (\S+) times as fast",
        [
            _middle(_hundred),
            lambda book: two(
                book.ratio(
                    "throughput", "throughput", "100 bytes", "ours:consume", f"{CONFLUENT}:consume", "cpu_s_per_million"
                ).median
            ),
            _middle(_thousand),
        ],
    ),
)


class OutdatedTextError(Exception):
    """A text cannot be renewed; the message says which, and what to do."""


def renewed(file: str, text: str, book: Book) -> str:
    """Return a text with the figures of the files of results.

    :raises OutdatedTextError: if a table or a sentence of :data:`TABLES` or :data:`SENTENCES` is not in the text.
    """
    for name, table in TABLES.items() if file == PAGE else ():
        places = list(re.finditer(rf"<!-- measured: {re.escape(name)} -->\n(.*?)<!-- end -->", text, re.DOTALL))
        if len(places) != 1:
            raise OutdatedTextError(f"{file} must have '<!-- measured: {name} -->' once, and '<!-- end -->' after it")
        book.used.clear()
        begin, end = places[0].span(1)
        text = f"{text[:begin]}{table(book)}\n\n{origin(book.used)}\n{text[end:]}"
    for sentence in SENTENCES:
        if sentence.file != file:
            continue
        matches = list(re.finditer(sentence.pattern, text))
        if len(matches) != 1:
            raise OutdatedTextError(
                f"{file} has {len(matches)} places like {sentence.pattern!r}; it must have one. If you reworded the sentence, "
                "change its pattern in benchmarks/published.py"
            )
        for group, told in reversed([*enumerate(sentence.texts, 1)]):
            begin, end = matches[0].span(group)
            text = text[:begin] + told(book) + text[end:]
    return text


def origin(used: Sequence[Figure]) -> str:
    """Return the sentence that says when and with what figures were measured."""
    dates = sorted({one.run["date"] for one in used})
    days = [f"{day.day} {day:%B %Y}" for day in map(datetime.date.fromisoformat, dates)]
    rounds = sorted({one.rounds for one in used})
    count = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    versions = [
        f"{name} {' and '.join(found)}"
        for key, name in _PACKAGES.items()
        if (found := sorted({one.run[key] for one in used if key in one.run}))
    ]
    machines = " and ".join(sorted({one.run["machine"] for one in used}))
    loads = sorted({one.run["load"] for one in used if "load" in one.run})
    load = f" (load before: {', '.join(loads)})" if loads else ""
    of = "one round" if rounds == [1] else f"medians of {count} rounds"
    return f"Measured on {' and '.join(days)}, {of}: {machines}{load}; {', '.join(versions)}."


def texts_of(root: Path) -> Mapping[str, tuple[str, str]]:
    """Return each file's text, and the same with renewed figures."""
    book = Book(root / "benchmarks" / "measured")
    files = sorted({PAGE, *(one.file for one in SENTENCES)})
    return {file: (text, renewed(file, text, book)) for file in files for text in [(root / file).read_text()]}


def outdated() -> Sequence[str]:
    """Return a message for each file whose figures are not those of the files of results."""
    return [
        f"{file}: the figures differ from those of benchmarks/measured; run python -m benchmarks.published"
        for file, (old, new) in texts_of(ROOT).items()
        if old != new
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.published", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a text is not up to date")
    options = parser.parse_args(arguments)
    if options.check:
        sys.exit("\n".join(outdated()) or None)
    texts = {file: new for file, (old, new) in texts_of(ROOT).items() if new != old}
    for file, text in texts.items():
        (ROOT / file).write_text(text)
    draw_benchmarks.main()
    print(f"renewed: {', '.join(texts) or 'nothing; the figures are those of benchmarks/measured'}")


if __name__ == "__main__":
    main()
