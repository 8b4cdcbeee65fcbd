package org.apache.kafka.storage.internals.log;

import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.WindowStore;

/**
 * An instance of a Kafka Streams application: from topic lines, counts of words (a changelog that is compacted) to counts,
 * counts in windows of ten seconds (a changelog that is compacted and deleted) to windows, and each line with what the
 * global table names has for its key, to joined. Topics' names begin with the application's id. Settings come from the
 * properties file that is named. It prints its states, what it restored, and for each line of stdin all counts that this
 * instance holds; at the end of stdin it ends in order.
 */
public class OracleCounter {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (var file = new FileReader(args[0])) { settings.load(file); }
        String prefix = settings.getProperty("application.id") + "-";
        var text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(prefix + "lines", Consumed.with(text, text));
        KGroupedStream<String, String> words = lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", text, text));
        words.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("total").withKeySerde(text).withValueSerde(Serdes.Long()))
            .toStream().mapValues(String::valueOf).to(prefix + "counts", Produced.with(text, text));
        words.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofMinutes(1)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windowed").withKeySerde(text).withValueSerde(Serdes.Long()))
            .toStream((window, count) -> window.key() + "@" + window.window().start())
            .mapValues(String::valueOf).to(prefix + "windows", Produced.with(text, text));
        lines.join(builder.globalTable(prefix + "names", Consumed.with(text, text)), (key, line) -> key, (line, name) -> name + ": " + line)
            .to(prefix + "joined", Produced.with(text, text));
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(e -> {
            System.out.println("FAILED " + e + " " + e.getCause());
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> System.out.println("STATE " + now));
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            public void onRestoreStart(TopicPartition from, String store, long start, long end) { }
            public void onBatchRestored(TopicPartition from, String store, long end, long count) { }
            public void onRestoreEnd(TopicPartition from, String store, long count) {
                System.out.println("RESTORED " + store + " " + count);
            }
        });
        streams.start();
        var in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) {
            var store = streams.store(StoreQueryParameters.fromNameAndType("total", QueryableStoreTypes.<String, Long>keyValueStore()));
            StringBuilder told = new StringBuilder("COUNTS");
            try (var all = store.all()) { all.forEachRemaining(each -> told.append(' ').append(each.key).append('=').append(each.value)); }
            System.out.println(told);
        }
        streams.close();
        System.out.println("CLOSED");
    }
}
