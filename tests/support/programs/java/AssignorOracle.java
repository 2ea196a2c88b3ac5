import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** Apache Kafka's own assignors behind one line of JSON in, one line of JSON out. */
public final class AssignorOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode question = JSON.readTree(line);
                if (question.has("remember"))
                    remember(question, answer);
                else
                    assign(question, answer);
            } catch (RuntimeException e) {
                answer.put("error", e.toString());
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException(name);
        }
    }

    /** Returns the user data of a member's subscription after the member received an assignment. */
    private static void remember(JsonNode question, ObjectNode answer) {
        ConsumerPartitionAssignor assignor = assignor(question.get("assignor").asText());
        List<TopicPartition> partitions = new ArrayList<>();
        for (JsonNode pair : question.get("remember"))
            partitions.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt()));
        assignor.onAssignment(new Assignment(partitions), new ConsumerGroupMetadata(
            "group", question.get("generation").asInt(), "member", Optional.empty()));
        ByteBuffer data = assignor.subscriptionUserData(Set.of());
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        answer.put("user_data", Base64.getEncoder().encodeToString(bytes));
    }

    private static Cluster cluster;
    private static GroupSubscription group;
    private static String name;

    /** Returns one plan. With "again", the group is that of the previous line; with "quiet", only the times are returned. */
    private static void assign(JsonNode question, ObjectNode answer) {
        if (!question.path("again").asBoolean()) {
            cluster = cluster(question);
            group = group(question);
            name = question.get("assignor").asText();
        }
        group.groupSubscription().values().forEach(subscription -> {
            if (subscription.userData() != null)
                subscription.userData().rewind();
        });
        ConsumerPartitionAssignor assignor = assignor(name);
        long start = System.nanoTime();
        long startCpu = THREADS.getCurrentThreadCpuTime();
        Map<String, Assignment> plan = assignor.assign(cluster, group).groupAssignment();
        long assigned = System.nanoTime();
        long assignedCpu = THREADS.getCurrentThreadCpuTime();
        if (question.path("quiet").asBoolean()) {
            for (Assignment assignment : plan.values())
                ConsumerProtocol.serializeAssignment(assignment);
            answer.put("assign_ns", assigned - start);
            answer.put("encode_ns", System.nanoTime() - assigned);
            answer.put("assign_cpu_ns", assignedCpu - startCpu);
            answer.put("encode_cpu_ns", THREADS.getCurrentThreadCpuTime() - assignedCpu);
            return;
        }
        ObjectNode members = answer.putObject("plan");
        plan.forEach((member, assignment) -> {
            ObjectNode topics = members.putObject(member);
            for (TopicPartition tp : assignment.partitions()) {
                if (!topics.has(tp.topic()))
                    topics.putArray(tp.topic());
                ((ArrayNode) topics.get(tp.topic())).add(tp.partition());
            }
        });
    }

    private static Cluster cluster(JsonNode question) {
        Map<String, Node> nodes = new HashMap<>();
        Node bare = new Node(0, "broker", 9092);
        List<PartitionInfo> infos = new ArrayList<>();
        question.get("partitions").fields().forEachRemaining(topic -> {
            JsonNode racks = question.path("racks").path(topic.getKey());
            for (int p = 0; p < topic.getValue().asInt(); p++) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks.path(p))
                    replicas.add(nodes.computeIfAbsent(rack.asText(),
                        r -> new Node(nodes.size() + 1, "broker", 9092, r)));
                if (replicas.isEmpty())
                    replicas.add(bare);
                Node[] array = replicas.toArray(new Node[0]);
                infos.add(new PartitionInfo(topic.getKey(), p, array[0], array, array));
            }
        });
        List<Node> all = new ArrayList<>(nodes.values());
        all.add(bare);
        return new Cluster("cluster", all, infos, Collections.emptySet(), Collections.emptySet());
    }

    private static GroupSubscription group(JsonNode question) {
        Map<String, Subscription> subscriptions = new HashMap<>();
        question.get("members").fields().forEachRemaining(entry -> {
            JsonNode member = entry.getValue();
            List<String> topics = new ArrayList<>();
            member.get("topics").forEach(topic -> topics.add(topic.asText()));
            List<TopicPartition> owned = new ArrayList<>();
            member.path("owned").fields().forEachRemaining(topic -> topic.getValue().forEach(
                partition -> owned.add(new TopicPartition(topic.getKey(), partition.asInt()))));
            ByteBuffer userData = member.hasNonNull("user_data")
                ? ByteBuffer.wrap(Base64.getDecoder().decode(member.get("user_data").asText())) : null;
            Optional<String> rack = member.hasNonNull("rack") ? Optional.of(member.get("rack").asText()) : Optional.empty();
            Subscription subscription = new Subscription(
                topics, userData, owned, member.path("generation").asInt(-1), rack);
            if (member.hasNonNull("instance_id"))
                subscription.setGroupInstanceId(Optional.of(member.get("instance_id").asText()));
            subscriptions.put(entry.getKey(), subscription);
        });
        return new GroupSubscription(subscriptions);
    }
}
