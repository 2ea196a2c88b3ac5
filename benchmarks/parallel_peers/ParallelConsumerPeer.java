import com.sun.management.OperatingSystemMXBean;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Confluent's Parallel Consumer; see {@code calls.py} for the task, whose fields are the arguments, in this order. */
public final class ParallelConsumerPeer {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long records;
    private final double seconds;
    private final long workMs;
    private final OutputStream log;
    private final CountDownLatch over = new CountDownLatch(1);
    private long count;
    private long began;
    private long ended;
    private long cpu;

    private ParallelConsumerPeer(long records, double seconds, long workMs, OutputStream log) {
        this.records = records;
        this.seconds = seconds;
        this.workMs = workMs;
        this.log = log;
    }

    public static void main(String[] arguments) throws Exception {
        String log = arguments[7];
        ParallelConsumerPeer peer = new ParallelConsumerPeer(
            Long.parseLong(arguments[4]), Double.parseDouble(arguments[5]), Math.round(1000 * Double.parseDouble(arguments[6])),
            log.isEmpty() ? null : new FileOutputStream(log, true));
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[2]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("isolation.level", "read_committed");
        properties.put("session.timeout.ms", arguments[8]);
        properties.put("heartbeat.interval.ms", String.valueOf(Math.max(1, Integer.parseInt(arguments[8]) / 3)));
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        ParallelConsumerOptions<byte[], byte[]> options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .consumer(consumer)
            .ordering(ProcessingOrder.KEY)
            .maxConcurrency(Integer.parseInt(arguments[3]))
            .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
            .commitInterval(Duration.ofSeconds(1))
            .build();
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (!log.isEmpty()) {
                processor.closeDontDrainFirst();
            }
        }));
        processor.subscribe(List.of(arguments[1]));
        processor.poll(context -> peer.handle(context.getSingleConsumerRecord()));
        peer.over.await();
        System.out.printf(Locale.ROOT, "{\"rate\": %f, \"cpu\": %f, \"records\": %d}%n",
            peer.count / ((peer.ended - peer.began) / 1e9), peer.cpu / 1e3 / peer.count, peer.count);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void handle(ConsumerRecord<byte[], byte[]> record) {
        begin(record);
        try {
            Thread.sleep(workMs);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
        end(record);
    }

    private synchronized void begin(ConsumerRecord<byte[], byte[]> record) {
        if (log != null) {
            note('+', record);
        } else if (began == 0) {
            began = System.nanoTime();
            cpu = SYSTEM.getProcessCpuTime();
        }
    }

    private synchronized void end(ConsumerRecord<byte[], byte[]> record) {
        if (log != null) {
            String value = record.value() == null ? "null" : new String(record.value(), StandardCharsets.ISO_8859_1);
            if (value.equals("\"fails\"") || value.equals("\"cancels\"") || value.startsWith("\u00ff")) {
                note('x', record);
                throw new IllegalArgumentException("the handler fails at this record");
            }
            note('-', record);
        } else if (ended == 0) {
            count++;
            long now = System.nanoTime();
            if (count == records || now - began >= seconds * 1e9) {
                ended = now;
                cpu = SYSTEM.getProcessCpuTime() - cpu;
                over.countDown();
            }
        }
    }

    private void note(char sign, ConsumerRecord<byte[], byte[]> record) {
        String key = record.key() == null ? "~" : new String(record.key(), StandardCharsets.UTF_8);
        String line = sign + " " + key + " " + record.partition() + " " + record.offset() + "\n";
        try {
            log.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
