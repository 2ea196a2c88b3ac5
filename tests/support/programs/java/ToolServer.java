import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs one of Kafka's command line tools, any number of times, in one JVM. The argument is the tool's class. A line is the list of
 * its arguments as JSON; the answer has its exit code, and the text of both of its outputs.
 */
public final class ToolServer {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Thrown when the tool tries to end its JVM. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    private ToolServer() {}

    public static void main(String[] arguments) throws Exception {
        Method tool = Class.forName(arguments[0]).getMethod("main", String[].class);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            answers.println(JSON.writeValueAsString(run(tool, JSON.readValue(line, String[].class))));
            answers.flush();
        }
    }

    private static ObjectNode run(Method tool, String[] arguments) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        int[] code = {0};
        Exit.Procedure end = (status, message) -> {
            code[0] = status;
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try {
            tool.invoke(null, (Object) arguments);
        } catch (InvocationTargetException failed) {
            if (!(failed.getCause() instanceof Ended)) {
                failed.getCause().printStackTrace();
                code[0] = 1;
            }
        }
        return JSON.createObjectNode()
            .put("code", code[0])
            .put("out", out.toString(StandardCharsets.UTF_8))
            .put("err", err.toString(StandardCharsets.UTF_8));
    }
}
