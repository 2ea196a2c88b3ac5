import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Encodes messages with Kafka's own classes. A line is a JSON object:
 * {"message": "JoinGroupRequest", "version": 9, "value": {...}} is answered with the body as hex digits,
 * {"subscription": {...}, "version": 3} and {"assignment": {...}, "version": 3} with what ConsumerProtocol writes,
 * {"defaults": "JoinGroupRequest", "version": 9} with a new message as JSON.
 * The answer to a message that Kafka refuses is "unsupported" (a version) or "refused".
 */
public final class WireOracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    private WireOracle() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(MAPPER.readTree(line)));
        }
    }

    private static String answer(JsonNode question) throws Exception {
        short version = (short) question.get("version").asInt();
        try {
            if (question.has("subscription")) {
                return hex(ConsumerProtocol.serializeSubscription(subscription(question.get("subscription")), version));
            }
            if (question.has("assignment")) {
                return hex(ConsumerProtocol.serializeAssignment(assignment(question.get("assignment")), version));
            }
            if (question.has("defaults")) {
                return defaults(question.get("defaults").asText(), version);
            }
            Method read = converter(question.get("message").asText()).getMethod("read", JsonNode.class, short.class);
            Message message = (Message) read.invoke(null, question.get("value"), version);
            return hex(MessageUtil.toByteBufferAccessor(message, version).buffer());
        } catch (InvocationTargetException problem) {
            return refusal(problem.getCause());
        } catch (RuntimeException problem) {
            return refusal(problem);
        }
    }

    private static String refusal(Throwable problem) {
        return problem instanceof UnsupportedVersionException ? "unsupported" : "refused";
    }

    private static String defaults(String name, short version) throws Exception {
        Class<?> data = Class.forName("org.apache.kafka.common.message." + name + "Data");
        Method write = converter(name).getMethod("write", data, short.class);
        return write.invoke(null, data.getDeclaredConstructor().newInstance(), version).toString();
    }

    private static Class<?> converter(String name) throws ClassNotFoundException {
        return Class.forName("org.apache.kafka.common.message." + name + "DataJsonConverter");
    }

    private static Subscription subscription(JsonNode value) throws Exception {
        List<String> topics = new ArrayList<>();
        value.get("topics").forEach(topic -> topics.add(topic.asText()));
        JsonNode rack = value.get("rack");
        return new Subscription(topics, userData(value), partitions(value.get("owned")), value.get("generation").asInt(),
            rack.isNull() ? Optional.empty() : Optional.of(rack.asText()));
    }

    private static Assignment assignment(JsonNode value) throws Exception {
        return new Assignment(partitions(value.get("partitions")), userData(value));
    }

    private static ByteBuffer userData(JsonNode value) throws Exception {
        JsonNode data = value.get("user_data");
        return data.isNull() ? null : ByteBuffer.wrap(data.binaryValue());
    }

    private static List<TopicPartition> partitions(JsonNode pairs) {
        List<TopicPartition> partitions = new ArrayList<>();
        pairs.forEach(pair -> partitions.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt())));
        return partitions;
    }

    private static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }
}
