package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.kafka.common.TopicPartition;

/** Kafka's LogCleanerManager over several open logs: which one is cleaned next, and the checkpoint files it keeps. */
class OracleManager {
    private final ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>();
    private final LogCleanerManager manager;
    private LogToClean grabbed;

    OracleManager(JsonNode q, List<UnifiedLog> opened) {
        List<File> dirs = new ArrayList<>();
        for (JsonNode dir : q.get("dirs")) dirs.add(new File(dir.asText()));
        for (UnifiedLog log : opened) logs.put(log.topicPartition(), log);
        manager = new LogCleanerManager(dirs, logs, new LogDirFailureChannel(4));
    }

    void close() { manager.removeMetrics(); }

    private static TopicPartition partition(JsonNode q) {
        return new TopicPartition(q.get("topic").asText(), q.path("partition").asInt(0));
    }

    void serve(String op, JsonNode q, ObjectNode a) throws Exception {
        switch (op) {
            case "grab" -> grab(q, a);
            case "doneCleaning" -> { manager.doneCleaning(partition(q), logs.get(partition(q)).parentDirFile(), q.get("offset").asLong()); grabbed = null; }
            case "deletable" -> names(a.putArray("partitions"), manager.deletableLogs());
            case "doneDeleting" -> manager.doneDeleting(List.of(partition(q)));
            case "uncleanable" -> manager.markPartitionUncleanable(logs.get(partition(q)).parentDir(), partition(q));
            case "truncateCheckpoint" -> manager.maybeTruncateCheckpoint(logs.get(partition(q)).parentDirFile(), partition(q), q.get("offset").asLong());
            case "updateCheckpoints" -> manager.updateCheckpoints(logs.get(partition(q)).parentDirFile(),
                q.has("offset") ? Optional.of(Map.entry(partition(q), q.get("offset").asLong())) : Optional.empty(),
                q.has("offset") ? Optional.empty() : Optional.of(partition(q)));
            case "checkpoints" -> {
                ObjectNode entries = a.putObject("entries");
                manager.allCleanerCheckpoints().forEach((tp, offset) -> entries.put(tp.toString(), offset));
            }
            default -> throw new IllegalArgumentException("unknown op " + op);
        }
    }

    /** The filthiest log, marked as in progress; with "clean" it is cleaned and its checkpoint written, as a cleaner thread does. */
    private void grab(JsonNode q, ObjectNode a) throws Exception {
        PreCleanStats stats = new PreCleanStats();
        Optional<LogToClean> choice = manager.grabFilthiestCompactedLog(new Oracle.Clock(), stats);
        a.put("maxCompactionDelayMs", stats.maxCompactionDelayMs()).put("delayedPartitions", stats.delayedPartitions()).put("cleanablePartitions", stats.cleanablePartitions());
        if (choice.isEmpty()) return;
        grabbed = choice.get();
        a.put("partition", grabbed.topicPartition().toString()).put("firstDirtyOffset", grabbed.firstDirtyOffset())
            .put("firstUncleanableOffset", grabbed.firstUncleanableOffset()).put("needCompactionNow", grabbed.needCompactionNow())
            .put("ratio", grabbed.cleanableRatio()).put("cleanableBytes", grabbed.cleanableBytes()).put("totalBytes", grabbed.totalBytes());
        if (!q.path("clean").asBoolean()) return;
        long end = grabbed.firstDirtyOffset();
        try {
            OracleLog.clean(grabbed, q, a);
            end = a.get("nextDirtyOffset").asLong();
        } finally {
            manager.doneCleaning(grabbed.topicPartition(), grabbed.log().parentDirFile(), end);
        }
    }

    private static void names(ArrayNode out, Map<TopicPartition, UnifiedLog> found) {
        found.keySet().stream().map(TopicPartition::toString).sorted().forEach(out::add);
    }
}
