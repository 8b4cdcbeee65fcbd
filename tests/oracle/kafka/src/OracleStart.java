package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.metadata.ConfigRepository;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.MetaPropertiesVersion;
import org.apache.kafka.metadata.properties.PropertiesUtils;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * For measurements: a broker's start, as far as its logs go. Kafka's LogManager loads everything in the log dirs; then they are
 * let go as they are, without the marker of a clean stop.
 */
class OracleStart {
    private OracleStart() { }

    static void serve(JsonNode q, ObjectNode a) throws Exception {
        List<File> dirs = new ArrayList<>();
        for (JsonNode dir : q.get("dirs")) dirs.add(new File(dir.asText()));
        for (File dir : dirs) describe(dir);
        LogConfig config = new LogConfig(Oracle.properties(q.get("config")));
        ConfigRepository none = resource -> new Properties();
        ProducerStateManagerConfig producers = new ProducerStateManagerConfig(86_400_000, false);
        LogDirFailureChannel failures = new LogDirFailureChannel(dirs.size());
        Oracle.Clock clock = new Oracle.Clock();
        long began = System.nanoTime();
        LogManager manager = new LogManager(dirs, List.of(), none, config, new CleanerConfig(false), q.path("threads").asInt(2),
            10_000, 10_000, 60_000, 300_000, 300_000, producers, 600_000, new Oracle.Inline(), new BrokerTopicStats(), failures, clock,
            false, 30_000, (cleaner, found, logs, channel, time) -> null);
        manager.loadLogs(config, Map.of(), log -> false);
        double seconds = (System.nanoTime() - began) / 1e9;
        long size = 0;
        for (UnifiedLog log : manager.allLogs()) size += log.size();
        a.put("seconds", seconds).put("logs", manager.allLogs().size()).put("bytes", size).put("offline", manager.hasOfflineLogDirs());
        for (UnifiedLog log : manager.allLogs()) {
            log.close();
            log.removeLogMetrics();
        }
        for (FileLock lock : manager.dirLocks()) lock.destroy();
    }

    /** A log dir without meta.properties gets one: the manager wants an id of each. */
    private static void describe(File dir) throws Exception {
        File file = new File(dir, "meta.properties");
        if (file.exists()) return;
        MetaProperties meta = new MetaProperties.Builder().setVersion(MetaPropertiesVersion.V1).setClusterId("oracle").setNodeId(0)
            .setDirectoryId(Uuid.randomUuid()).build();
        PropertiesUtils.writePropertiesFile(meta.toProperties(), file.getAbsolutePath(), false);
    }
}
