import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;

/**
 * Reads records of __consumer_offsets with the classes of Kafka's own coordinator and tools. A line is a key and a value
 * in hex digits, - for no value; the answer has the key as JSON, the value as JSON or -, and both again as Kafka writes
 * them, separated by tabs. The answer to a record that Kafka cannot read is "refused" and the reason.
 */
public final class GroupRecords {
    private static final HexFormat HEX = HexFormat.of();

    private GroupRecords() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ");
            try {
                out.println(answer(parts[0], parts[1]));
            } catch (RuntimeException problem) {
                out.println("refused\t" + problem);
            }
        }
    }

    private static String answer(String key, String value) {
        GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
        ByteBuffer bytes = "-".equals(value) ? null : ByteBuffer.wrap(HEX.parseHex(value));
        CoordinatorRecord read = serde.deserialize(ByteBuffer.wrap(HEX.parseHex(key)), bytes);
        String valueAsJson = "-";
        if (read.value() != null) {
            valueAsJson = CoordinatorRecordJsonConverters
                .writeRecordValueAsJson(read.value().message(), read.value().version()).toString();
        }
        byte[] again = serde.serializeValue(read);
        return String.join(
            "\t",
            CoordinatorRecordJsonConverters.writeRecordKeyAsJson(read.key()).toString(),
            valueAsJson,
            HEX.formatHex(serde.serializeKey(read)),
            again == null ? "-" : HEX.formatHex(again));
    }
}
