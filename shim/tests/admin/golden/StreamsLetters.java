import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler;

/** A dead letter as Kafka Streams writes it (KIP-1034). */
public class StreamsLetters {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.ERRORS_DEAD_LETTER_QUEUE_TOPIC_NAME_CONFIG, "streams-dlq");
        settings.put(
                StreamsConfig.PROCESSING_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueProcessingExceptionHandler.class);
        settings.put("auto.offset.reset", "earliest");
        CountDownLatch failed = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("streams-in", org.apache.kafka.streams.kstream.Consumed.with(Serdes.String(), Serdes.String()))
                .mapValues(body -> {
                    if (body.startsWith("order")) {
                        failed.countDown();
                        throw new IllegalArgumentException("no stock for " + body);
                    }
                    return body;
                });
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        boolean done = failed.await(60, TimeUnit.SECONDS);
        Thread.sleep(3000);
        streams.close();
        if (!done) {
            throw new IllegalStateException("nothing failed within a minute");
        }
    }
}
