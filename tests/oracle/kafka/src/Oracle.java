package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;

/**
 * Drives Apache Kafka's own log layer from JSON lines: a request a line on stdin, an answer a line on stdout (README.md).
 * It stands in Kafka's package because LogCleanerManager.cleanableOffsets and CleanerStats are package-private.
 */
public class Oracle {
    static final ObjectMapper JSON = new ObjectMapper();
    /** The clock of everything that runs here, in ms; requests set it. */
    static long now = System.currentTimeMillis();

    private static final Map<String, OracleLog> LOGS = new HashMap<>();
    private static final Map<String, OracleManager> MANAGERS = new HashMap<>();

    /** The clock that the requests set; sleeping takes no time. */
    static class Clock implements Time {
        public long milliseconds() { return now; }
        public long nanoseconds() { return System.nanoTime(); }
        public long hiResClockMs() { return System.nanoTime() / 1_000_000; }
        public void sleep(long ms) { }
        public void waitObject(Object o, Supplier<Boolean> done, long deadline) { throw new UnsupportedOperationException(); }
        public <X> X waitForFuture(CompletableFuture<X> future, long deadline) { throw new UnsupportedOperationException(); }
    }

    static class Done extends FutureTask<Object> implements ScheduledFuture<Object> {
        Done() { super(() -> null); }
        public long getDelay(TimeUnit unit) { return 0; }
        public int compareTo(Delayed other) { return 0; }
    }

    /** Runs tasks without a delay at once, holds those with one until "runDelayed", drops periodic ones. */
    static class Inline implements Scheduler {
        private final List<Runnable> delayed = new ArrayList<>();
        public void startup() { }
        public void shutdown() { }
        public void resizeThreadPool(int size) { }
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs < 0 && delayMs > 0) delayed.add(task);
            else if (periodMs < 0) task.run();
            return new Done();
        }
        int runDelayed() {
            List<Runnable> due = new ArrayList<>(delayed);
            delayed.clear();
            due.forEach(Runnable::run);
            return due.size();
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            if (line.isBlank()) continue;
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            out.flush();
        }
        OracleClient.closeAll();
    }

    static ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            serve(request, answer);
        } catch (Throwable t) {
            answer.removeAll();
            answer.put("error", t.getClass().getSimpleName()).put("message", String.valueOf(t.getMessage()));
            if (t.getCause() != null) answer.put("cause", t.getCause().toString());
        }
        return answer;
    }

    static void serve(JsonNode q, ObjectNode a) throws Exception {
        if (q.has("now")) now = q.get("now").asLong();
        String op = q.get("op").asText();
        String id = q.path("id").asText("0");
        switch (op) {
            case "now" -> { }
            case "many" -> {
                ArrayNode answers = a.putArray("answers");
                for (JsonNode request : q.get("requests")) answers.add(answer(request));
            }
            case "open" -> {
                OracleLog old = LOGS.remove(id);
                if (old != null) old.abandon();
                OracleLog log = new OracleLog(q);
                LOGS.put(id, log);
                log.state(a);
            }
            case "close" -> { log(id).close(); LOGS.remove(id); }
            case "abandon" -> { log(id).abandon(); LOGS.remove(id); }
            case "reset" -> {
                for (OracleLog log : LOGS.values()) log.abandon();
                LOGS.clear();
                for (OracleManager manager : MANAGERS.values()) manager.close();
                MANAGERS.clear();
                OracleClient.closeAll();
            }
            case "manager" -> {
                List<UnifiedLog> logs = new ArrayList<>();
                for (JsonNode name : q.get("logs")) logs.add(log(name.asText()).log);
                OracleManager old = MANAGERS.put(id, new OracleManager(q, logs));
                if (old != null) old.close();
            }
            case "grab", "doneCleaning", "doneDeleting", "deletable", "uncleanable", "checkpoints", "truncateCheckpoint", "updateCheckpoints" -> {
                if (!MANAGERS.containsKey(id)) throw new IllegalStateException("no manager " + id);
                MANAGERS.get(id).serve(op, q, a);
            }
            case "loadAll" -> OracleStart.serve(q, a);
            case "tool", "startTool", "awaitTool", "interruptTool" -> OracleTool.serve(op, q, a);
            case "createTopics", "produce", "consume", "commitOffsets", "groupOffsets", "readAsMember", "transform" -> OracleClient.serve(op, q, a);
            case "quotas" -> OracleQuota.serve(q, a);
            case "streamsTopics", "streamsAssign", "streamsStep" -> OracleStreams.serve(op, q, a);
            default -> log(id).serve(op, q, a);
        }
    }

    private static OracleLog log(String id) {
        OracleLog log = LOGS.get(id);
        if (log == null) throw new IllegalStateException("no open log " + id);
        return log;
    }

    static Properties properties(JsonNode config) {
        Properties p = new Properties();
        if (config != null) config.fields().forEachRemaining(e -> p.put(e.getKey(), e.getValue().asText()));
        return p;
    }

    /** Bytes travel as base64; null stays null. */
    static byte[] bytes(JsonNode n) {
        return n == null || n.isNull() ? null : Base64.getDecoder().decode(n.asText());
    }

    static String encode(byte[] b) {
        return b == null ? null : Base64.getEncoder().encodeToString(b);
    }

    static String encode(ByteBuffer b) {
        if (b == null) return null;
        byte[] x = new byte[b.remaining()];
        b.duplicate().get(x);
        return encode(x);
    }
}
