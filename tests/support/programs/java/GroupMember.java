import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group that reads commands and writes events, in lines of JSON; the protocol is described in
 * tests/support/members.py. The only argument is a JSON object: config, topics or pattern, report.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);
    private static final String END_OF_INPUT = "";

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final LinkedBlockingQueue<String> commands = new LinkedBlockingQueue<>();
    private final boolean reportRecords;
    private long total = 0;
    private boolean polling = true;

    private GroupMember(JsonNode setup) {
        Properties config = new Properties();
        for (Map.Entry<String, JsonNode> setting : setup.get("config").properties()) {
            config.put(setting.getKey(), setting.getValue().asText());
        }
        consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        reportRecords = setup.path("report").asBoolean(true);
        subscribe(setup);
    }

    public static void main(String[] arguments) throws Exception {
        GroupMember member = new GroupMember(JSON.readTree(arguments[0]));
        Thread reader = new Thread(member::readCommands, "commands");
        reader.setDaemon(true);
        reader.start();
        member.emit(member.event("ready"));
        member.run();
    }

    private void run() throws Exception {
        while (true) {
            String line = polling ? commands.poll() : commands.poll(50, TimeUnit.MILLISECONDS);
            if (line != null) {
                if (line.equals(END_OF_INPUT) || !execute(JSON.readTree(line))) {
                    consumer.close();
                    return;
                }
            } else if (polling) {
                poll();
            }
        }
    }

    private void poll() {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
        if (records.isEmpty()) {
            return;
        }
        total += records.count();
        if (!reportRecords) {
            return;
        }
        ObjectNode event = event("records").put("total", total);
        event.put("generation", consumer.groupMetadata().generationId());
        ObjectNode ranges = event.putObject("ranges");
        for (TopicPartition partition : records.partitions()) {
            List<ConsumerRecord<byte[], byte[]>> batch = records.records(partition);
            ranges.withObjectProperty(partition.topic())
                    .putArray(Integer.toString(partition.partition()))
                    .add(batch.get(0).offset())
                    .add(batch.get(batch.size() - 1).offset())
                    .add(batch.size());
        }
        emit(event);
    }

    /** Executes one command and answers it; returns false if the member is to end. */
    private boolean execute(JsonNode command) {
        String name = command.get("command").asText();
        ObjectNode answer = event("answer").put("id", command.get("id").asLong());
        try {
            switch (name) {
                case "close" -> {
                    consumer.close();
                    emit(answer);
                    System.exit(0);
                }
                case "commit" -> {
                    consumer.commitSync();
                    ObjectNode offsets = answer.putObject("offsets");
                    Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
                    committed.forEach((partition, offset) -> {
                        if (offset != null) {
                            offsets.withObjectProperty(partition.topic())
                                    .put(Integer.toString(partition.partition()), offset.offset());
                        }
                    });
                }
                case "enforce_rebalance" -> consumer.enforceRebalance(command.path("reason").asText(null));
                case "start_polling" -> polling = true;
                case "stop_polling" -> polling = false;
                case "state" -> {
                    answer.put("total", total).put("generation", consumer.groupMetadata().generationId());
                    answer.put("member_id", consumer.groupMetadata().memberId());
                    answer.set("owned", partitions(consumer.assignment()));
                }
                case "subscribe" -> subscribe(command);
                default -> answer.put("error", "unknown command " + name);
            }
        } catch (RuntimeException error) {
            answer.put("error", error.toString());
        }
        emit(answer);
        return true;
    }

    private void subscribe(JsonNode request) {
        if (request.hasNonNull("pattern")) {
            consumer.subscribe(Pattern.compile(request.get("pattern").asText()), this);
            return;
        }
        List<String> topics = new ArrayList<>();
        request.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics, this);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        rebalanced("assigned", assigned);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        rebalanced("revoked", revoked);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
        rebalanced("lost", lost);
    }

    private void rebalanced(String what, Collection<TopicPartition> changed) {
        ObjectNode event = event(what).put("generation", consumer.groupMetadata().generationId());
        event.set("partitions", partitions(changed));
        emit(event);
    }

    private static ObjectNode partitions(Collection<TopicPartition> partitions) {
        ObjectNode topics = JSON.createObjectNode();
        partitions.stream()
                .sorted((one, other) -> Integer.compare(one.partition(), other.partition()))
                .forEach(one -> topics.withArrayProperty(one.topic()).add(one.partition()));
        return topics;
    }

    private ObjectNode event(String name) {
        return JSON.createObjectNode().put("event", name).put("at_ns", System.nanoTime());
    }

    private void emit(ObjectNode event) {
        System.out.println(event);
        System.out.flush();
    }

    private void readCommands() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                commands.put(line);
            }
            commands.put(END_OF_INPUT);
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(2); // nobody could end this process otherwise
        }
    }
}
