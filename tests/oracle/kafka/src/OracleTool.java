package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Kafka's command-line tools inside this JVM, each in threads of its own with its own standard streams: what a tool's
 * threads print is the tool's, and a tool that exits ends its thread alone. Several may run at once.
 */
class OracleTool {
    /** A tool's way out: it would end the JVM. */
    private static class Exited extends Error {
        Exited(int code) { super("exit " + code, null, false, false); }
    }

    /** Inherited by the threads that a tool starts. */
    private static final InheritableThreadLocal<OracleTool> CURRENT = new InheritableThreadLocal<>();
    private static final Map<String, OracleTool> RUNNING = new HashMap<>();
    private static int started = 0;
    private static boolean prepared = false;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
    private final InputStream in;
    private final List<Runnable> hooks = new ArrayList<>();
    private final Thread thread;
    /** Set once: what comes after the first exit would not have run. */
    private Integer code;

    private OracleTool(String name, String[] arguments, String input) throws Exception {
        in = new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8));
        var main = Class.forName(name).getMethod("main", String[].class);
        thread = new Thread(() -> {
            CURRENT.set(this);
            try {
                main.invoke(null, (Object) arguments);
                exited(0);
            } catch (InvocationTargetException e) {
                if (!(e.getCause() instanceof Exited)) {
                    e.getCause().printStackTrace();
                    exited(1);
                }
            } catch (Throwable t) {
                t.printStackTrace();
                exited(1);
            } finally {
                runHooks();
            }
        }, name);
        thread.setDaemon(true);
    }

    private synchronized void exited(int status) {
        if (code == null) code = status;
    }

    private void runHooks() {
        List<Runnable> due;
        synchronized (this) {
            due = new ArrayList<>(hooks);
            hooks.clear();
        }
        due.forEach(Runnable::run);
    }

    static void serve(String op, JsonNode q, ObjectNode a) throws Exception {
        prepare();
        switch (op) {
            case "tool" -> start(q).answer(q, a);
            case "startTool" -> {
                String handle = String.valueOf(++started);
                RUNNING.put(handle, start(q));
                a.put("handle", handle);
            }
            case "awaitTool" -> {
                OracleTool tool = running(q);
                tool.answer(q, a);
                if (a.get("ended").asBoolean()) RUNNING.remove(q.get("handle").asText());
            }
            // As Ctrl-C does: the tool's shutdown hooks run, and it has to end by that.
            case "interruptTool" -> running(q).runHooks();
            default -> throw new IllegalArgumentException("unknown op " + op);
        }
    }

    private static OracleTool running(JsonNode q) {
        OracleTool tool = RUNNING.get(q.get("handle").asText());
        if (tool == null) throw new IllegalStateException("no tool " + q.get("handle"));
        return tool;
    }

    private static OracleTool start(JsonNode q) throws Exception {
        List<String> arguments = new ArrayList<>();
        q.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        OracleTool tool = new OracleTool(q.get("name").asText(), arguments.toArray(new String[0]), q.path("input").asText(""));
        tool.thread.start();
        return tool;
    }

    private void answer(JsonNode q, ObjectNode a) throws InterruptedException {
        thread.join(Math.max(1, q.path("timeoutMs").asLong(60_000)));
        synchronized (this) {
            a.put("ended", !thread.isAlive()).put("code", code);
        }
        a.put("out", out.toString(StandardCharsets.UTF_8)).put("err", err.toString(StandardCharsets.UTF_8));
    }

    private static void prepare() {
        if (prepared) return;
        prepared = true;
        // A console producer tells of what was refused with a line of its log.
        System.setProperty("org.slf4j.simpleLogger.log.org.apache.kafka.clients.producer.internals.ErrorLoggingCallback", "error");
        PrintStream plain = System.err;
        InputStream input = System.in;
        System.setOut(printer(tool -> tool.out, plain));
        System.setErr(printer(tool -> tool.err, plain));
        System.setIn(new InputStream() {
            private InputStream current() { return CURRENT.get() == null ? input : CURRENT.get().in; }
            public int read() throws java.io.IOException { return current().read(); }
            public int read(byte[] b, int from, int count) throws java.io.IOException { return current().read(b, from, count); }
            public int available() throws java.io.IOException { return current().available(); }
        });
        Exit.Procedure exit = (status, message) -> {
            OracleTool tool = CURRENT.get();
            if (tool == null) Runtime.getRuntime().halt(status);
            if (message != null) System.err.println(message);
            tool.exited(status);
            throw new Exited(status);
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> {
            OracleTool tool = CURRENT.get();
            if (tool == null) return;
            synchronized (tool) {
                tool.hooks.add(hook);
            }
        });
    }

    private static PrintStream printer(Function<OracleTool, ByteArrayOutputStream> stream, PrintStream other) {
        return new PrintStream(new OutputStream() {
            private OutputStream current() { return CURRENT.get() == null ? other : stream.apply(CURRENT.get()); }
            public void write(int b) throws java.io.IOException { current().write(b); }
            public void write(byte[] b, int from, int count) throws java.io.IOException { current().write(b, from, count); }
            public void flush() throws java.io.IOException { current().flush(); }
        }, true, StandardCharsets.UTF_8);
    }
}
