package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.storage.log.FetchIsolation;

/** What a running broker asks of an open partition: produce, fetch, offsets by time, truncation. */
class OracleLive {
    private OracleLive() { }

    static void serve(OracleLog owner, String op, JsonNode q, ObjectNode a) throws Exception {
        UnifiedLog log = owner.log;
        switch (op) {
            case "lead" -> lead(owner, q, a);
            case "flush" -> log.flush(false);
            case "truncateFully" -> { log.truncateFullyAndStartAt(q.get("offset").asLong(), Optional.empty()); owner.state(a); }
            case "read" -> read(log, q, a);
            case "offsetForTimestamp" -> offsetForTimestamp(log, q.get("timestamp").asLong(), a);
            case "live" -> live(owner, a);
            case "appendMany" -> appendMany(owner, q, a);
            case "readMany" -> readMany(log, q, a);
            default -> throw new IllegalArgumentException("unknown op " + op);
        }
    }

    /** Batches as a producer (or the transaction coordinator) sends them; "tv": version of the transaction protocol. */
    private static void lead(OracleLog owner, JsonNode q, ObjectNode a) throws IOException {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Oracle.bytes(q.get("bytes"))));
        AppendOrigin origin = q.path("origin").asText("client").equals("client") ? AppendOrigin.CLIENT : AppendOrigin.COORDINATOR;
        LogAppendInfo info = owner.log.appendAsLeader(records, q.path("leaderEpoch").asInt(0), origin, RequestLocal.noCaching(),
            VerificationGuard.SENTINEL, (short) q.path("tv").asInt(origin == AppendOrigin.CLIENT ? -1 : 1));
        owner.appended();
        a.put("firstOffset", info.firstOffset()).put("lastOffset", info.lastOffset()).put("maxTimestamp", info.maxTimestamp())
            .put("logAppendTime", info.logAppendTime()).put("logStartOffset", info.logStartOffset());
    }

    private static void read(UnifiedLog log, JsonNode q, ObjectNode a) throws IOException {
        FetchIsolation isolation = switch (q.path("isolation").asText("high_watermark")) {
            case "log_end" -> FetchIsolation.LOG_END;
            case "committed" -> FetchIsolation.TXN_COMMITTED;
            default -> FetchIsolation.HIGH_WATERMARK;
        };
        FetchDataInfo info = log.read(q.get("offset").asLong(), q.get("maxBytes").asInt(), isolation, q.path("minOne").asBoolean(true));
        ByteBuffer buffer = ByteBuffer.allocate(info.records.sizeInBytes());
        // readInto leaves the buffer ready to be read.
        if (info.records instanceof FileRecords f) f.readInto(buffer, 0);
        a.put("bytes", Oracle.encode(buffer)).put("firstOffset", info.fetchOffsetMetadata.messageOffset);
        if (info.abortedTransactions.isPresent()) {
            ArrayNode aborted = a.putArray("aborted");
            for (FetchResponseData.AbortedTransaction t : info.abortedTransactions.get())
                aborted.addArray().add(t.producerId()).add(t.firstOffset());
        }
    }

    private static void offsetForTimestamp(UnifiedLog log, long timestamp, ObjectNode a) {
        Optional<FileRecords.TimestampAndOffset> found = log.fetchOffsetByTimestamp(timestamp, Optional.empty()).timestampAndOffsetOpt();
        found.ifPresent(f -> a.put("timestamp", f.timestamp).put("offset", f.offset).put("leaderEpoch", f.leaderEpoch.orElse(-1)));
    }

    /** All that a live log knows: beside its state the recovery point, epochs, and each producer. */
    private static void live(OracleLog owner, ObjectNode a) throws IOException {
        UnifiedLog log = owner.log;
        owner.state(a);
        a.put("recoveryPoint", log.recoveryPoint());
        ArrayNode epochs = a.putArray("epochs");
        log.leaderEpochCache().epochEntries().forEach(e -> epochs.addArray().add(e.epoch()).add(e.startOffset()));
        ArrayNode producers = a.putArray("producers");
        log.producerStateManager().activeProducers().forEach((pid, p) -> {
            OptionalLong first = p.currentTxnFirstOffset();
            producers.addArray().add(pid).add(p.producerEpoch()).add(p.lastSeq()).add(p.lastDataOffset()).add(p.coordinatorEpoch())
                .add(p.lastTimestamp()).add(first.isPresent() ? first.getAsLong() : -1L);
        });
    }

    /**
     * For measurements: the batches in "bytes" (each of "size" bytes), appended one by one, "rounds" times over. With "flushEvery"
     * the log is flushed after so many appends.
     */
    private static void appendMany(OracleLog owner, JsonNode q, ObjectNode a) throws IOException {
        byte[] batches = Oracle.bytes(q.get("bytes"));
        int size = q.get("size").asInt();
        int rounds = q.get("rounds").asInt();
        int flushEvery = q.path("flushEvery").asInt(0);
        ByteBuffer buffer = ByteBuffer.allocate(size);
        long done = 0;
        long began = System.nanoTime();
        for (int round = 0; round < rounds; round++) {
            for (int at = 0; at < batches.length; at += size) {
                buffer.clear();
                buffer.put(batches, at, size).flip();
                owner.log.appendAsLeader(MemoryRecords.readableRecords(buffer), 0);
                owner.appended();
                if (flushEvery > 0 && ++done % flushEvery == 0) owner.log.flush(false);
            }
        }
        a.put("seconds", (System.nanoTime() - began) / 1e9);
    }

    /** For measurements: a fetch of "maxBytes" from each of "offsets", read into memory. */
    private static void readMany(UnifiedLog log, JsonNode q, ObjectNode a) throws IOException {
        int most = q.get("maxBytes").asInt();
        long[] offsets = new long[q.get("offsets").size()];
        for (int i = 0; i < offsets.length; i++) offsets[i] = q.get("offsets").get(i).asLong();
        ByteBuffer buffer = ByteBuffer.allocate(Math.max(most, q.path("largest").asInt(0)));
        long bytes = 0;
        long began = System.nanoTime();
        for (long offset : offsets) {
            FileRecords records = (FileRecords) log.read(offset, most, FetchIsolation.HIGH_WATERMARK, true).records;
            buffer.clear();
            records.readInto(buffer, 0);
            bytes += buffer.remaining();
        }
        a.put("seconds", (System.nanoTime() - began) / 1e9).put("bytes", bytes);
    }
}
