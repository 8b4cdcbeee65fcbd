package org.apache.kafka.storage.internals.log;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * Connectors of Kafka Connect: the lines of a file to a topic (keys are their numbers; what offsets say is how many lines
 * were sent), and values of a topic to lines of a file. Settings: file, and topic of the source.
 */
public class OracleConnectors {
    private static final ConfigDef SETTINGS = new ConfigDef()
        .define("file", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "")
        .define("topic", ConfigDef.Type.STRING, "", ConfigDef.Importance.HIGH, "");

    public static class Source extends SourceConnector {
        private Map<String, String> settings;
        @Override public String version() { return "1"; }
        @Override public void start(Map<String, String> given) { settings = given; }
        @Override public Class<? extends Task> taskClass() { return Reading.class; }
        @Override public List<Map<String, String>> taskConfigs(int most) { return List.of(settings); }
        @Override public void stop() { }
        @Override public ConfigDef config() { return SETTINGS; }
        @Override public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) { return ExactlyOnceSupport.SUPPORTED; }
    }

    public static class Reading extends SourceTask {
        private String file, topic;
        private int sent;
        @Override public String version() { return "1"; }
        @Override public void start(Map<String, String> settings) {
            file = settings.get("file");
            topic = settings.get("topic");
            Map<String, Object> offset = context.offsetStorageReader().offset(Map.of("file", file));
            sent = offset == null ? 0 : ((Number) offset.get("sent")).intValue();
        }
        @Override public List<SourceRecord> poll() throws InterruptedException {
            List<String> lines;
            try {
                lines = Files.readAllLines(Path.of(file));
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
            List<SourceRecord> made = new ArrayList<>();
            // A few at a time: many transactions.
            for (; sent < lines.size() && made.size() < 20; sent++) {
                made.add(new SourceRecord(Map.of("file", file), Map.of("sent", sent + 1), topic, null,
                    Schema.STRING_SCHEMA, String.valueOf(sent), Schema.STRING_SCHEMA, lines.get(sent)));
            }
            if (!made.isEmpty()) return made;
            Thread.sleep(50);
            return null;
        }
        @Override public void stop() { }
    }

    public static class Sink extends SinkConnector {
        private Map<String, String> settings;
        @Override public String version() { return "1"; }
        @Override public void start(Map<String, String> given) { settings = given; }
        @Override public Class<? extends Task> taskClass() { return Writing.class; }
        @Override public List<Map<String, String>> taskConfigs(int most) { return Collections.nCopies(most, settings); }
        @Override public void stop() { }
        @Override public ConfigDef config() { return SETTINGS; }
    }

    public static class Writing extends SinkTask {
        private Path file;
        @Override public String version() { return "1"; }
        @Override public void start(Map<String, String> settings) { file = Path.of(settings.get("file")); }
        @Override public void put(Collection<SinkRecord> records) {
            StringBuilder lines = new StringBuilder();
            records.forEach(record -> lines.append(record.value()).append('\n'));
            try {
                Files.writeString(file, lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }
        @Override public void stop() { }
    }
}
