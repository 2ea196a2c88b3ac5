import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.StoreQueryParameters;

/**
 * A program of Kafka Streams. The arguments: the operation, the bootstrap servers, the application id, the topics to read and to
 * write, the directory of the state, then settings as name=value. It prints "running", and ends at the end of its standard input.
 * For each line of its standard input, it prints the count of this word in the store.
 */
public final class StreamsProgram {
    private StreamsProgram() {}

    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[1]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(arguments[5]).toString());
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100");
        config.put("auto.offset.reset", "earliest");
        for (int position = 6; position < arguments.length; position++) {
            String[] setting = arguments[position].split("=", 2);
            config.put(setting[0], setting[1]);
        }
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch running = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(topology(arguments[0], arguments[3], arguments[4]).build(), config)) {
            streams.setUncaughtExceptionHandler(problem -> {
                failure.compareAndSet(null, problem);
                running.countDown();
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) {
                    running.countDown();
                }
            });
            streams.start();
            if (!running.await(90, TimeUnit.SECONDS)) {
                throw new IllegalStateException("it is not running after 90 s, but " + streams.state());
            }
            report(failure.get());
            System.out.println("running");
            for (int next = System.in.read(); next >= 0; next = System.in.read()) {
                StringBuilder word = new StringBuilder();
                for (; next >= 0 && next != '\n'; next = System.in.read()) {
                    word.append((char) next);
                }
                report(failure.get());
                var store = StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.<String, Long>keyValueStore());
                System.out.println(streams.store(store).get(word.toString()));
            }
            streams.close(Duration.ofSeconds(30));
        }
        report(failure.get());
    }

    private static StreamsBuilder topology(String operation, String source, String sink) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream(source);
        if (operation.equals("stateless")) {
            words.filter((key, word) -> !word.isEmpty()).mapValues(word -> word.toUpperCase()).to(sink);
        } else if (operation.equals("windows")) {
            words.groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofDays(10_000)))
                .count()
                .toStream((window, count) -> window.key())
                .mapValues(count -> count.toString())
                .to(sink);
        } else {
            words.groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.as("counts"))
                .toStream()
                .to(sink, Produced.with(Serdes.String(), Serdes.Long()));
        }
        return builder;
    }

    private static void report(Throwable failure) {
        if (failure != null) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            throw new IllegalStateException(cause.toString(), failure);
        }
    }
}
