import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs Java's own clients with a broker: an admin creates topics and describes everything, an idempotent producer writes
 * with every compression, a consumer reads, seeks by time and commits. The argument is the bootstrap address; the output
 * has a line for each successful step.
 */
public final class EmbeddedKafkaClients {
    private static final int EACH = 500;

    private EmbeddedKafkaClients() {}

    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("default.api.timeout.ms", "20000");
        config.put("request.timeout.ms", "10000");
        config.put("max.block.ms", "20000");
        try (Admin admin = Admin.create(config)) {
            administer(admin);
            produce(config);
            consume(config, admin);
            refuse(config, admin);
        }
    }

    private static void administer(Admin admin) throws Exception {
        String id = admin.describeCluster().clusterId().get();
        check(!id.isEmpty() && admin.describeCluster().nodes().get().size() == 3, "describeCluster");
        admin.createTopics(List.of(new NewTopic("java", 2, (short) 3))).all().get();
        admin.createPartitions(Map.of("java", NewPartitions.increaseTo(4))).all().get();
        check(admin.describeTopics(List.of("java")).allTopicNames().get().get("java").partitions().size() == 4, "topics");
        check(admin.listTopics().names().get().contains("java"), "listTopics");
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "java");
        check(admin.describeConfigs(Set.of(topic)).all().get().get(topic).get("cleanup.policy").value().equals("delete"), "configs");
    }

    private static void produce(Properties common) throws Exception {
        for (String compression : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            Properties config = new Properties();
            config.putAll(common);
            config.put("compression.type", compression);
            config.put("linger.ms", "5");
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int number = 0; number < EACH; number++) {
                    producer.send(new ProducerRecord<>("java", number % 4, 1_000L + number, null, new byte[100]));
                }
                producer.flush();
            }
        }
        check(true, "produce");
    }

    private static void consume(Properties common, Admin admin) throws Exception {
        Properties config = new Properties();
        config.putAll(common);
        config.put("group.id", "java-group");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        TopicPartition first = new TopicPartition("java", 0);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of("java"));
            int seen = 0;
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (seen < 5 * EACH && System.nanoTime() < end) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
            check(seen == 5 * EACH, "consume " + seen);
            consumer.commitSync();
            check(consumer.committed(Set.of(first)).get(first).offset() == 5 * EACH / 4, "committed");
            check(consumer.offsetsForTimes(Map.of(first, 1_100L)).get(first).offset() == 25, "offsetsForTimes");
            check(admin.describeConsumerGroups(List.of("java-group")).all().get().get("java-group").members().size() == 1, "group");
            check(admin.listConsumerGroupOffsets("java-group").partitionsToOffsetAndMetadata().get().size() == 4, "offsets");
        }
        Set<String> groups = new TreeSet<>();
        admin.listConsumerGroups().all().get().forEach(listing -> groups.add(listing.groupId()));
        check(groups.contains("java-group"), "listConsumerGroups");
        admin.alterConsumerGroupOffsets("java-group", Map.of(first, new OffsetAndMetadata(1))).all().get();
        admin.deleteConsumerGroupOffsets("java-group", Set.of(first)).all().get();
        admin.deleteConsumerGroups(List.of("java-group")).all().get();
        admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(100))).all().get();
        long start = admin.listOffsets(Map.of(first, OffsetSpec.earliest())).all().get().get(first).offset();
        check(start == 100, "deleteRecords");
        admin.deleteTopics(List.of("java")).all().get();
        check(!admin.listTopics().names().get().contains("java"), "deleteTopics");
    }

    private static void refuse(Properties common, Admin admin) throws Exception {
        Properties config = new Properties();
        config.putAll(common);
        config.put("transactional.id", "none");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            check(false, "transactions");
        } catch (org.apache.kafka.common.KafkaException refused) {
            check(!(refused instanceof org.apache.kafka.common.errors.TimeoutException), "no transactions");
        }
        NewTopic compacted = new NewTopic("compacted", Optional.of(1), Optional.empty());
        try {
            admin.createTopics(List.of(compacted.configs(Map.of("cleanup.policy", "compact")))).all().get();
            check(false, "compaction");
        } catch (ExecutionException refused) {
            check(refused.getCause() instanceof org.apache.kafka.common.errors.InvalidConfigurationException, "no compaction");
        }
    }

    private static void check(boolean good, String what) {
        if (!good) {
            throw new AssertionError(what);
        }
        System.out.println(what);
    }
}
