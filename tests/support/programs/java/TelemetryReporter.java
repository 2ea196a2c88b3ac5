import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;
import org.apache.kafka.shaded.com.google.protobuf.InvalidProtocolBufferException;
import org.apache.kafka.shaded.io.opentelemetry.proto.common.v1.KeyValue;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.Metric;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.MetricsData;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.NumberDataPoint;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.ResourceMetrics;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.ScopeMetrics;

/** A broker's plug-in that appends what clients push (KIP-714), one line of JSON for each push, to the file test.telemetry.file. */
@SuppressWarnings("deprecation")
public final class TelemetryReporter implements MetricsReporter, ClientTelemetry, ClientTelemetryReceiver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private Path file;

    @Override
    public void configure(Map<String, ?> configs) {
        file = Path.of((String) configs.get("test.telemetry.file"));
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return this;
    }

    @Override
    public synchronized void exportMetrics(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        ObjectNode line = JSON.createObjectNode()
            .put("client_id", context.clientId())
            .put("instance", payload.clientInstanceId().toString())
            .put("terminating", payload.isTerminating());
        ArrayNode points = line.putArray("points");
        try {
            for (ResourceMetrics resource : MetricsData.parseFrom(payload.data()).getResourceMetricsList()) {
                line.set("labels", attributes(resource.getResource().getAttributesList()));
                for (ScopeMetrics scope : resource.getScopeMetricsList()) {
                    scope.getMetricsList().forEach(metric -> add(points, metric));
                }
            }
            Files.writeString(file, JSON.writeValueAsString(line) + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (InvalidProtocolBufferException invalid) {
            throw new IllegalArgumentException(invalid);
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    private static void add(ArrayNode points, Metric metric) {
        List<NumberDataPoint> found = metric.hasSum() ? metric.getSum().getDataPointsList() : metric.getGauge().getDataPointsList();
        for (NumberDataPoint point : found) {
            ObjectNode row = points.addObject()
                .put("name", metric.getName())
                .put("value", point.hasAsInt() ? (double) point.getAsInt() : point.getAsDouble())
                .put("temporality", metric.hasSum() ? metric.getSum().getAggregationTemporality().name() : null)
                .put("monotonic", metric.hasSum() && metric.getSum().getIsMonotonic());
            row.set("attributes", attributes(point.getAttributesList()));
        }
    }

    private static ObjectNode attributes(List<KeyValue> pairs) {
        ObjectNode found = JSON.createObjectNode();
        pairs.forEach(pair -> found.put(pair.getKey(), pair.getValue().getStringValue()));
        return found;
    }

    @Override
    public void init(List<KafkaMetric> metrics) {}

    @Override
    public void metricChange(KafkaMetric metric) {}

    @Override
    public void metricRemoval(KafkaMetric metric) {}

    @Override
    public void close() {}
}
