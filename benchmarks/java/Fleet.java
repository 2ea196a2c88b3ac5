import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of one group in one JVM, a thread each, with the protocol of tests/support/driver.py. */
public final class Fleet {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);

    private Fleet() {}

    /** One member. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final int number;
        private final String topic;
        private final long workMs;
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final CountDownLatch subscribed = new CountDownLatch(1);
        private volatile boolean closing = false;
        private volatile int generation = -1;

        Member(int number, JsonNode setup) {
            super("member " + number);
            this.number = number;
            topic = setup.get("topic").asText();
            workMs = setup.get("work_ms").asLong();
            Properties config = new Properties();
            for (Map.Entry<String, JsonNode> setting : setup.get("config").properties()) {
                config.put(setting.getKey(), setting.getValue().asText());
            }
            consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public void run() {
            try {
                subscribed.await();
                consumer.subscribe(List.of(topic), this);
                while (!closing) {
                    boolean empty = consumer.poll(POLL).isEmpty();
                    generation = consumer.groupMetadata().generationId();
                    if (!empty && workMs > 0) {
                        Thread.sleep(workMs);
                    }
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            consumer.close();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell("lost", partitions);
        }

        private void tell(String what, Collection<TopicPartition> partitions) {
            ObjectNode event = event(what).put("member", number);
            partitions.forEach(one -> event.withArray("/partitions").add(one.partition()));
            event.withArray("/partitions");
            emit(event);
        }
    }

    private static ObjectNode event(String name) {
        return JSON.createObjectNode().put("event", name).put("at_ns", System.nanoTime());
    }

    private static synchronized void emit(ObjectNode event) {
        System.out.println(event);
    }

    private static void usage(ObjectNode answer) throws IOException {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long pages = Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]);
        answer.put("cpu_s", system.getProcessCpuTime() / 1e9);
        answer.put("ours_s", 0.0);
        answer.put("rss_mb", pages * 4096 / 1048576.0);
        answer.put("threads", ManagementFactory.getThreadMXBean().getThreadCount());
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode setup = JSON.readTree(arguments[0]);
        List<Member> members = new ArrayList<>();
        for (int number = 0; number < setup.get("members").asInt(); number++) {
            Member member = new Member(number, setup);
            members.add(member);
            member.start();
        }
        emit(event("ready"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode command = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode().put("event", "answer").put("started_ns", System.nanoTime());
            switch (command.get("command").asText()) {
                case "begin" -> members.forEach(one -> one.subscribed.countDown());
                case "close" -> end(List.of(members.get(command.get("member").asInt())));
                case "usage" -> {
                    usage(answer);
                    answer.put("generation", members.get(0).generation);
                }
                default -> line = null;
            }
            if (line == null) {
                break;
            }
            emit(answer.put("at_ns", System.nanoTime()));
        }
        end(members);
    }

    private static void end(List<Member> members) throws InterruptedException {
        members.forEach(one -> one.closing = true);
        for (Member member : members) {
            member.subscribed.countDown();
            member.join();
        }
    }
}
