package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.SplittableRandom;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;

/** Writes big logs quickly, for benchmarks: the same request gives the same records on every machine. */
class OracleFill {
    private static final byte[] HEX = "0123456789abcdef".getBytes();

    /**
     * Fields: records, keys (distinct keys, default = records), keyOrder "random" (each record draws a key) or "cycle" (every key
     * once, in an order of its own, then again), keySize, valueSize, value "hex" (compresses to about half), "random" or "zero",
     * codec, batch (records a batch), tombstones (share 0..1), seed, ts (of the first record; one ms more a batch).
     */
    static void fill(UnifiedLog log, JsonNode q, ObjectNode a) throws IOException {
        long records = q.get("records").asLong();
        long keys = q.path("keys").asLong(records);
        boolean cycle = q.path("keyOrder").asText("random").equals("cycle");
        int keySize = q.path("keySize").asInt(16);
        int valueSize = q.path("valueSize").asInt(80);
        int perBatch = q.path("batch").asInt(100);
        double tombstones = q.path("tombstones").asDouble(0);
        String kind = q.path("value").asText("hex");
        long ts = q.path("ts").asLong(Oracle.now);
        Compression codec = OracleLog.codec(q);
        SplittableRandom random = new SplittableRandom(q.path("seed").asLong(1));
        // Coprime with any number of keys below it, so that a cycle visits every key once.
        long stride = 2_147_483_647L;
        ByteBuffer buffer = ByteBuffer.allocate(perBatch * (keySize + valueSize + 96) + 4096);
        byte[] value = new byte[valueSize];
        for (long done = 0; done < records; ) {
            buffer.clear();
            MemoryRecordsBuilder b = MemoryRecords.builder(buffer, RecordBatch.CURRENT_MAGIC_VALUE, codec, TimestampType.CREATE_TIME, 0L);
            for (int i = 0; i < perBatch && done < records; i++, done++) {
                long key = cycle ? Math.floorMod((done % keys) * (stride % keys), keys) : random.nextLong(keys);
                boolean tombstone = tombstones > 0 && random.nextDouble() < tombstones;
                if (!tombstone) fillValue(value, kind, random);
                b.append(ts, key(key, keySize), tombstone ? null : value);
            }
            ts++;
            log.appendAsLeader(b.build(), 0);
        }
        log.updateHighWatermark(log.logEndOffset());
        a.put("logEndOffset", log.logEndOffset()).put("size", log.size()).put("segments", log.numberOfSegments());
    }

    /** The key's number in decimal, padded on the left to keySize. */
    private static byte[] key(long n, int keySize) {
        byte[] key = new byte[keySize];
        for (int i = keySize - 1; i >= 0; i--) {
            key[i] = (byte) ('0' + n % 10);
            n /= 10;
        }
        return key;
    }

    private static void fillValue(byte[] value, String kind, SplittableRandom random) {
        switch (kind) {
            case "zero" -> { }
            case "random" -> random.nextBytes(value);
            case "hex" -> {
                for (int i = 0; i < value.length; ) {
                    long bits = random.nextLong();
                    for (int j = 0; j < 16 && i < value.length; j++, bits >>>= 4) value[i++] = HEX[(int) (bits & 15)];
                }
            }
            default -> throw new IllegalArgumentException("unknown kind of value " + kind);
        }
    }
}
