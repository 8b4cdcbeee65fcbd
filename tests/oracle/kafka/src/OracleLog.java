package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.AbortedTxn;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.RecordVersion;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** One open partition and what can be asked of it. */
class OracleLog {
    private static final BrokerTopicStats STATS = new BrokerTopicStats();
    private static final Header[] NO_HEADERS = new Header[0];

    final UnifiedLog log;
    private final Oracle.Inline scheduler = new Oracle.Inline();
    /** False once a request set the high watermark: appends then leave it where it is. */
    private boolean highWatermarkFollows = true;

    OracleLog(JsonNode q) throws IOException {
        File dir = new File(q.get("dir").asText());
        dir.mkdirs();
        ProducerStateManagerConfig producers = new ProducerStateManagerConfig(q.path("producerExpirationMs").asInt(86_400_000), false);
        log = UnifiedLog.create(dir, new LogConfig(Oracle.properties(q.get("config"))), q.path("logStartOffset").asLong(0),
            q.path("recoveryPoint").asLong(0), scheduler, STATS, new Oracle.Clock(), 5 * 60 * 1000, producers, 600_000,
            new LogDirFailureChannel(4), q.path("cleanShutdown").asBoolean(true), Optional.empty());
        setHighWatermark(q.get("highWatermark"));
    }

    void serve(String op, JsonNode q, ObjectNode a) throws Exception {
        switch (op) {
            case "config" -> log.updateConfig(new LogConfig(Oracle.properties(q.get("config"))));
            case "append" -> append(q, a);
            case "appendRaw" -> { follow(MemoryRecords.readableRecords(ByteBuffer.wrap(Oracle.bytes(q.get("bytes"))))); state(a); }
            case "empty" -> empty(q);
            case "control" -> control(q, a);
            case "fill" -> OracleFill.fill(log, q, a);
            case "roll" -> { log.roll(); state(a); }
            case "highWatermark" -> { setHighWatermark(q.get("offset")); state(a); }
            case "startOffset" -> { log.maybeIncrementLogStartOffset(q.get("offset").asLong(), LogStartOffsetIncrementReason.ClientRecordDeletion); state(a); }
            case "truncate" -> { a.put("truncated", log.truncateTo(q.get("offset").asLong())); state(a); }
            case "expireProducers" -> log.removeExpiredProducers(Oracle.now);
            case "cleanable" -> cleanable(q, a);
            case "clean" -> clean(q, a);
            case "retain" -> { a.put("deleted", log.deleteOldSegments()); state(a); }
            case "runDelayed" -> a.put("ran", scheduler.runDelayed());
            case "state" -> state(a);
            case "producers" -> producers(a);
            case "dump" -> dump(q, a);
            default -> OracleLive.serve(this, op, q, a);
        }
    }

    /** As a broker does on an orderly shutdown: bring the active segment to its closed form, flush all, close. */
    void close() {
        log.prepareActiveSegmentForClose();
        log.flush(true);
        log.close();
        log.removeLogMetrics();
    }

    /** Lets go of the files as they are, as after a crash. */
    void abandon() {
        log.closeQuietly();
        log.removeLogMetrics();
    }

    private void setHighWatermark(JsonNode offset) throws IOException {
        highWatermarkFollows = offset == null || offset.isNull();
        log.updateHighWatermark(highWatermarkFollows ? log.logEndOffset() : offset.asLong());
    }

    void appended() throws IOException {
        if (highWatermarkFollows) log.updateHighWatermark(log.logEndOffset());
    }

    private void follow(MemoryRecords records) throws IOException {
        log.appendAsFollower(records, Integer.MAX_VALUE);
        appended();
    }

    static Compression codec(JsonNode q) {
        String name = q.path("codec").asText("none");
        return switch (name) {
            case "none" -> Compression.NONE;
            case "gzip" -> Compression.gzip().build();
            case "snappy" -> Compression.snappy().build();
            case "lz4" -> Compression.lz4().build();
            case "zstd" -> Compression.zstd().build();
            default -> throw new IllegalArgumentException("unknown codec " + name);
        };
    }

    /** One batch: as a leader (the log assigns offsets), or with "gap" as a follower, that many offsets past the log's end. */
    private void append(JsonNode q, ObjectNode a) throws Exception {
        byte magic = (byte) q.path("magic").asInt(2);
        int leaderEpoch = q.path("leaderEpoch").asInt(0);
        boolean follower = q.has("gap");
        long base = follower ? log.logEndOffset() + q.get("gap").asLong() : 0L;
        TimestampType type = q.path("logAppendTime").asBoolean() ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        int size = 4096;
        for (JsonNode r : q.get("records")) size += r.path("key").asText().length() + r.path("value").asText().length() + 128 + 256 * r.path("headers").size();
        MemoryRecordsBuilder b = MemoryRecords.builder(ByteBuffer.allocate(size), magic, codec(q), type, base, Oracle.now,
            q.path("pid").asLong(-1), (short) q.path("epoch").asInt(-1), q.path("seq").asInt(-1), q.path("txn").asBoolean(), leaderEpoch);
        long offset = base;
        for (JsonNode r : q.get("records")) {
            offset += r.path("skip").asLong(0);
            b.appendWithOffset(offset++, magic == 0 ? -1L : r.path("ts").asLong(Oracle.now), Oracle.bytes(r.get("key")), Oracle.bytes(r.get("value")),
                magic < 2 ? NO_HEADERS : headers(r.get("headers")));
        }
        MemoryRecords m = b.build();
        if (follower) {
            follow(m);
            a.put("firstOffset", base).put("lastOffset", offset - 1);
            return;
        }
        LogAppendInfo info = magic == 2 ? log.appendAsLeader(m, leaderEpoch)
            : log.appendAsLeaderWithRecordVersion(m, leaderEpoch, RecordVersion.lookup(magic));
        appended();
        a.put("firstOffset", info.firstOffset()).put("lastOffset", info.lastOffset());
    }

    static Header[] headers(JsonNode n) {
        if (n == null || n.isEmpty()) return NO_HEADERS;
        List<Header> headers = new ArrayList<>();
        for (JsonNode h : n) headers.add(new RecordHeader(h.get(0).asText(), Oracle.bytes(h.get(1))));
        return headers.toArray(NO_HEADERS);
    }

    /** An empty batch over "count" offsets, as compaction leaves them. */
    private void empty(JsonNode q) throws IOException {
        long base = log.logEndOffset() + q.path("gap").asLong(0);
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        TimestampType type = q.path("logAppendTime").asBoolean() ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        DefaultRecordBatch.writeEmptyHeader(buffer, RecordBatch.CURRENT_MAGIC_VALUE, q.path("pid").asLong(-1), (short) q.path("epoch").asInt(-1),
            q.path("seq").asInt(-1), base, base + q.path("count").asLong(1) - 1, q.path("leaderEpoch").asInt(0), type,
            q.path("ts").asLong(Oracle.now), q.path("txn").asBoolean(), q.path("control").asBoolean());
        buffer.flip();
        follow(MemoryRecords.readableRecords(buffer));
    }

    private void control(JsonNode q, ObjectNode a) throws Exception {
        ControlRecordType type = q.get("type").asText().equals("commit") ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        MemoryRecords m = MemoryRecords.withEndTransactionMarker(q.path("ts").asLong(Oracle.now), q.get("pid").asLong(),
            (short) q.path("epoch").asInt(0), new EndTransactionMarker(type, q.path("coordinatorEpoch").asInt(0)));
        LogAppendInfo info = log.appendAsLeader(m, q.path("leaderEpoch").asInt(0), AppendOrigin.COORDINATOR, RequestLocal.noCaching(),
            VerificationGuard.SENTINEL, (short) 1);
        appended();
        a.put("firstOffset", info.firstOffset()).put("lastOffset", info.lastOffset());
    }

    /** What the cleaner manager would clean, and the ratio it would sort by. */
    private void cleanable(JsonNode q, ObjectNode a) throws Exception {
        Optional<Long> last = q.hasNonNull("checkpoint") ? Optional.of(q.get("checkpoint").asLong()) : Optional.empty();
        LogCleanerManager.OffsetsToClean o = LogCleanerManager.cleanableOffsets(log, last, Oracle.now);
        LogToClean c = new LogToClean(log, o.firstDirtyOffset(), o.firstUncleanableDirtyOffset(), false);
        a.put("firstDirtyOffset", o.firstDirtyOffset()).put("dirtyUncleanableOffset", o.firstUncleanableDirtyOffset())
            .put("firstUncleanableOffset", c.firstUncleanableOffset()).put("forceUpdateCheckpoint", o.forceUpdateCheckpoint())
            .put("cleanBytes", c.cleanBytes()).put("cleanableBytes", c.cleanableBytes()).put("totalBytes", c.totalBytes());
        // NaN where the log is empty: JSON has no such number.
        if (c.totalBytes() > 0) a.put("ratio", c.cleanableRatio());
        state(a);
    }

    private void clean(JsonNode q, ObjectNode a) throws Exception {
        long first = q.has("first") ? q.get("first").asLong() : log.logStartOffset();
        long uncleanable = q.has("uncleanable") ? q.get("uncleanable").asLong() : log.activeSegment().baseOffset();
        clean(new LogToClean(log, first, uncleanable, false), q, a);
    }

    /** One round of Kafka's cleaner over a partition. */
    static void clean(LogToClean range, JsonNode q, ObjectNode a) throws Exception {
        UnifiedLog log = range.log();
        // LogCleaner gives each thread half of its io buffer size for reading and the same for writing.
        int io = q.path("ioBuffer").asInt(512 << 10);
        SkimpyOffsetMap map = new SkimpyOffsetMap(q.path("dedupe").asInt(4 << 20), "MD5");
        Oracle.Clock clock = new Oracle.Clock();
        Cleaner cleaner = new Cleaner(0, map, io / 2, q.path("maxMessage").asInt(64 << 20), q.path("loadFactor").asDouble(0.9),
            new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", clock), clock, tp -> { });
        long before = log.size();
        long started = System.nanoTime();
        Map.Entry<Long, CleanerStats> done = cleaner.clean(range);
        CleanerStats s = done.getValue();
        a.put("seconds", (System.nanoTime() - started) / 1e9).put("nextDirtyOffset", done.getKey())
            .put("bytesBefore", before).put("bytesAfter", log.size())
            .put("mapEntries", map.size()).put("mapSlots", map.slots()).put("mapLatestOffset", map.latestOffset())
            .put("mapBytesRead", s.mapBytesRead).put("mapMessagesRead", s.mapMessagesRead()).put("bufferUtilization", s.bufferUtilization)
            .put("bytesRead", s.bytesRead).put("bytesWritten", s.bytesWritten).put("messagesRead", s.messagesRead)
            .put("messagesWritten", s.messagesWritten).put("invalidMessagesRead", s.invalidMessagesRead);
        // The clock of the round stands still; only its share of real time is meaningful.
        a.put("indexSeconds", s.elapsedIndexSecs());
    }

    void state(ObjectNode a) throws IOException {
        a.put("logStartOffset", log.logStartOffset()).put("logEndOffset", log.logEndOffset()).put("highWatermark", log.highWatermark())
            .put("lastStableOffset", log.lastStableOffset()).put("size", log.size()).put("activeSegment", log.activeSegment().baseOffset());
        ArrayNode segments = a.putArray("segments");
        for (LogSegment s : log.logSegments())
            segments.addObject().put("baseOffset", s.baseOffset()).put("size", s.size()).put("largestTimestamp", s.largestTimestamp());
    }

    /** Producers that have not expired, as the cleaner sees them, and the aborted transactions of the whole log. */
    private void producers(ObjectNode a) {
        ArrayNode producers = a.putArray("producers");
        Map<Long, Integer> sequences = log.activeProducersWithLastSequence();
        log.lastRecordsOfActiveProducers().forEach((pid, last) -> {
            ObjectNode p = producers.addObject().put("pid", pid).put("epoch", last.producerEpoch()).put("lastSequence", sequences.get(pid));
            if (last.lastDataOffset().isPresent()) p.put("lastDataOffset", last.lastDataOffset().getAsLong());
            else p.putNull("lastDataOffset");
        });
        ArrayNode aborted = a.putArray("aborted");
        for (AbortedTxn t : log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset()))
            aborted.addObject().put("pid", t.producerId()).put("firstOffset", t.firstOffset()).put("lastOffset", t.lastOffset()).put("lastStableOffset", t.lastStableOffset());
    }

    /** Every batch that is left; with "records" false only their headers. */
    private void dump(JsonNode q, ObjectNode a) throws IOException {
        boolean withRecords = q.path("records").asBoolean(true);
        ArrayNode batches = a.putArray("batches");
        for (LogSegment s : log.logSegments()) {
            for (RecordBatch b : s.log().batches()) {
                b.ensureValid();
                ObjectNode n = batches.addObject().put("segment", s.baseOffset()).put("baseOffset", b.baseOffset()).put("lastOffset", b.lastOffset())
                    .put("magic", b.magic()).put("codec", b.compressionType().name).put("bytes", b.sizeInBytes()).put("maxTimestamp", b.maxTimestamp())
                    .put("timestampType", b.timestampType().name)
                    .put("pid", b.producerId()).put("epoch", b.producerEpoch()).put("baseSequence", b.baseSequence())
                    .put("txn", b.isTransactional()).put("control", b.isControlBatch()).put("leaderEpoch", b.partitionLeaderEpoch());
                if (b.deleteHorizonMs().isPresent()) n.put("deleteHorizonMs", b.deleteHorizonMs().getAsLong());
                if (withRecords) dumpRecords(b, n.putArray("records"));
            }
        }
    }

    private static void dumpRecords(RecordBatch batch, ArrayNode records) {
        for (org.apache.kafka.common.record.internal.Record r : batch) {
            ObjectNode o = records.addObject().put("offset", r.offset()).put("ts", r.timestamp());
            o.put("key", Oracle.encode(r.hasKey() ? r.key() : null)).put("value", Oracle.encode(r.hasValue() ? r.value() : null));
            if (r.headers().length > 0) {
                ArrayNode headers = o.putArray("headers");
                for (Header h : r.headers()) headers.addArray().add(h.key()).add(Oracle.encode(h.value()));
            }
        }
    }
}
