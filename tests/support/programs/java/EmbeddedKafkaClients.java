import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs Java's own clients with a broker: an admin creates topics and describes everything, an idempotent producer writes
 * with every compression, a consumer reads, seeks by time and commits, a transactional producer commits, aborts and is fenced. The argument is the bootstrap address; the output
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
            configure(admin);
            transact(config, admin);
        }
    }

    private static void administer(Admin admin) throws Exception {
        String id = admin.describeCluster().clusterId().get();
        check(!id.isEmpty() && admin.describeCluster().nodes().get().size() == 3, "describeCluster");
        admin.createTopics(List.of(new NewTopic("java", 2, (short) 3))).all().get();
        admin.createPartitions(Map.of("java", NewPartitions.increaseTo(4))).all().get();
        until(() -> admin.describeTopics(List.of("java")).allTopicNames().get().get("java").partitions().size() == 4, "topics");
        until(() -> admin.listTopics().names().get().contains("java"), "listTopics");
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
        until(() -> !admin.listTopics().names().get().contains("java"), "deleteTopics");
    }

    private static void configure(Admin admin) throws Exception {
        NewTopic compacted = new NewTopic("compacted", Optional.of(1), Optional.empty());
        Map<String, String> settings = Map.of("cleanup.policy", "compact", "segment.bytes", "52428800");
        admin.createTopics(List.of(compacted.configs(settings))).all().get();
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "compacted");
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "1000"), AlterConfigOp.OpType.SET);
        AlterConfigOp addition = new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.APPEND);
        admin.incrementalAlterConfigs(Map.of(topic, List.of(change, addition))).all().get();
        until(() -> setting(admin, topic, "retention.ms").equals("1000"), "incrementalAlterConfigs");
        until(() -> setting(admin, topic, "cleanup.policy").equals("compact,delete"), "append");
    }

    private static void transact(Properties common, Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("out", 2, (short) 3))).all().get();
        TopicPartition source = new TopicPartition("compacted", 0);
        KafkaProducer<byte[], byte[]> producer = transactional(common);
        try (KafkaProducer<byte[], byte[]> second = transactional(common)) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 2; partition++) {
                    producer.send(new ProducerRecord<>("out", partition, null, new byte[] {(byte) number}));
                }
                producer.sendOffsetsToTransaction(
                    Map.of(source, new OffsetAndMetadata(number)), new ConsumerGroupMetadata("exactly-once"));
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            check(readCommitted(common) == 6, "read committed");
            until(() -> {
                OffsetAndMetadata committed =
                    admin.listConsumerGroupOffsets("exactly-once").partitionsToOffsetAndMetadata().get().get(source);
                return committed.offset() == 4;
            }, "sendOffsetsToTransaction");
            check(admin.listTransactions().all().get().stream().anyMatch(listed -> listed.transactionalId().equals("java-txn")),
                "listTransactions");
            until(() -> described(admin).state() == TransactionState.COMPLETE_ABORT, "describeTransactions");
            TransactionDescription described = described(admin);
            check(described.producerEpoch() == 6, "an epoch for each transaction");
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("out", 0, null, new byte[1])).get();
            second.initTransactions();
            producer.commitTransaction();
            check(false, "fencing");
        } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
            check(true, "fenced");
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private static TransactionDescription described(Admin admin) throws Exception {
        return admin.describeTransactions(Set.of("java-txn")).all().get().get("java-txn");
    }

    private static String setting(Admin admin, ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(Set.of(resource)).all().get().get(resource).get(name).value();
    }

    /** What an administrator changes, the brokers of Apache Kafka know a little later. */
    private static void until(Callable<Boolean> good, String what) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (!good.call()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what);
            }
            Thread.sleep(50);
        }
        check(true, what);
    }

    private static KafkaProducer<byte[], byte[]> transactional(Properties common) {
        Properties config = new Properties();
        config.putAll(common);
        config.put("transactional.id", "java-txn");
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static int readCommitted(Properties common) {
        Properties config = new Properties();
        config.putAll(common);
        config.put("isolation.level", "read_committed");
        List<TopicPartition> partitions = List.of(new TopicPartition("out", 0), new TopicPartition("out", 1));
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            int seen = 0;
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (System.nanoTime() < end && ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
            return seen;
        }
    }

    private static void check(boolean good, String what) {
        if (!good) {
            throw new AssertionError(what);
        }
        System.out.println(what);
    }
}
