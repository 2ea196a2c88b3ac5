import java.io.FileWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Connectors for Connect's workers: a source of numbered lines, whose offset is the number, and a sink that appends to a file. */
public final class LinesConnectors {
    private LinesConnectors() {}

    private static ConfigDef settings() {
        ConfigDef defined = new ConfigDef();
        for (String name : List.of("topic", "lines", "file")) {
            defined.define(name, ConfigDef.Type.STRING, "", ConfigDef.Importance.HIGH, "");
        }
        return defined;
    }

    /** Writes "line 0", "line 1", and so on. */
    public static final class Source extends SourceConnector {
        private Map<String, String> given = Map.of();

        @Override
        public void start(Map<String, String> config) {
            given = config;
        }

        @Override
        public Class<? extends Task> taskClass() {
            return SourceLines.class;
        }

        @Override
        public List<Map<String, String>> taskConfigs(int most) {
            return List.of(given);
        }

        @Override
        public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> config) {
            return ExactlyOnceSupport.SUPPORTED;
        }

        @Override
        public void stop() {}

        @Override
        public ConfigDef config() {
            return settings();
        }

        @Override
        public String version() {
            return "1";
        }
    }

    /** The task of Source. */
    public static final class SourceLines extends SourceTask {
        private static final Map<String, String> PARTITION = Map.of("lines", "all");
        private Map<String, String> given = Map.of();
        private long next;

        @Override
        public void start(Map<String, String> config) {
            given = config;
            Map<String, Object> offset = context.offsetStorageReader().offset(PARTITION);
            next = offset == null ? 0 : (Long) offset.get("next");
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            long end = Long.parseLong(given.get("lines"));
            if (next == end) {
                Thread.sleep(50);
                return Collections.emptyList();
            }
            List<SourceRecord> records = new ArrayList<>();
            for (; next < end; next++) {
                String line = "line " + next;
                records.add(new SourceRecord(PARTITION, Map.of("next", next + 1), given.get("topic"), Schema.STRING_SCHEMA, line));
            }
            return records;
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }

    /** Appends values to a file. */
    public static final class Sink extends SinkConnector {
        private Map<String, String> given = Map.of();

        @Override
        public void start(Map<String, String> config) {
            given = config;
        }

        @Override
        public Class<? extends Task> taskClass() {
            return SinkLines.class;
        }

        @Override
        public List<Map<String, String>> taskConfigs(int most) {
            return List.of(given);
        }

        @Override
        public void stop() {}

        @Override
        public ConfigDef config() {
            return settings();
        }

        @Override
        public String version() {
            return "1";
        }
    }

    /** The task of Sink. */
    public static final class SinkLines extends SinkTask {
        private Path file = Path.of(".");

        @Override
        public void start(Map<String, String> config) {
            file = Path.of(config.get("file"));
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            try (FileWriter writer = new FileWriter(file.toFile(), StandardCharsets.UTF_8, true)) {
                for (SinkRecord record : records) {
                    writer.write(record.value() + "\n");
                }
            } catch (IOException problem) {
                throw new ConnectException(problem);
            }
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
