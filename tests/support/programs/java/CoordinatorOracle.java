import com.dynatrace.hash4j.hashing.HashStream64;
import com.dynatrace.hash4j.hashing.Hashing;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Parts of Kafka's group coordinator behind one line of JSON in, one line of JSON out: the server-side assignors
 * ("assignor"), the order of a hash set of topic ids ("order"), RE2/J ("regex") and XXH3 ("hash").
 */
public final class CoordinatorOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    private CoordinatorOracle() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer(JSON.readTree(line), answer);
            } catch (RuntimeException e) {
                answer.put("error", e.toString());
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
    }

    private static void answer(JsonNode question, ObjectNode answer) {
        if (question.has("assignor")) {
            assign(question, answer.putObject("plan"));
        } else if (question.has("order")) {
            Set<Uuid> ids = new HashSet<>();
            question.get("order").forEach(id -> ids.add(Uuid.fromString(id.asText())));
            ids.forEach(id -> answer.withArray("order").add(id.toString()));
        } else if (question.has("regex")) {
            ArrayNode matches = answer.putArray("matches");
            try {
                Pattern pattern = Pattern.compile(question.get("regex").asText());
                question.get("names").forEach(name -> {
                    if (pattern.matcher(name.asText()).matches()) matches.add(name.asText());
                });
            } catch (PatternSyntaxException e) {
                answer.put("invalid", e.getDescription());
            }
        } else {
            HashStream64 hasher = Hashing.xxh3_64().hashStream();
            answer.put("hash", hasher.putBytes(HexFormat.of().parseHex(question.get("hash").asText())).getAsLong());
        }
    }

    private static void assign(JsonNode question, ObjectNode plan) {
        Map<Uuid, Integer> partitions = new HashMap<>();
        question.get("topics").fields()
            .forEachRemaining(topic -> partitions.put(Uuid.fromString(topic.getKey()), topic.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        question.get("members").fields().forEachRemaining(entry -> {
            JsonNode member = entry.getValue();
            Set<Uuid> topics = new LinkedHashSet<>();
            member.get("topics").forEach(id -> topics.add(Uuid.fromString(id.asText())));
            Map<Uuid, Set<Integer>> target = new LinkedHashMap<>();
            member.get("target").fields().forEachRemaining(topic -> {
                Uuid id = Uuid.fromString(topic.getKey());
                Set<Integer> numbers = new HashSet<>();
                topic.getValue().forEach(number -> {
                    numbers.add(number.asInt());
                    inverted.computeIfAbsent(id, x -> new HashMap<>()).put(number.asInt(), entry.getKey());
                });
                target.put(id, numbers);
            });
            members.put(entry.getKey(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(),
                Optional.ofNullable(member.get("instance").textValue()),
                topics,
                new Assignment(Collections.unmodifiableMap(target))));
        });
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topicId) {
                return partitions.getOrDefault(topicId, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topicId, int partition) {
                return Set.of();
            }
        };
        ConsumerGroupPartitionAssignor assignor =
            "range".equals(question.get("assignor").asText()) ? new RangeAssignor() : new UniformAssignor();
        SubscriptionType type =
            question.get("homogeneous").asBoolean() ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        GroupAssignment made =
            assignor.assign(new GroupSpecImpl(members, type, inverted, Optional.empty()), describer);
        made.members().forEach((memberId, assignment) -> {
            ObjectNode topics = plan.putObject(memberId);
            assignment.partitions().forEach((id, numbers) ->
                new TreeSet<>(numbers).forEach(number -> topics.withArray(id.toString()).add(number)));
        });
    }
}
