import jakarta.enterprise.context.ApplicationScoped;
import java.util.Map;
import org.eclipse.microprofile.reactive.messaging.Incoming;
import org.jboss.weld.environment.se.Weld;

/** A dead letter as SmallRye Reactive Messaging writes it: a method that fails. Runs until it is killed. */
public class SmallRyeLetters {
    @ApplicationScoped
    public static class Shop {
        @Incoming("orders")
        public void sell(byte[] body) {
            String order = new String(body);
            if (!order.startsWith("order")) {
                return;
            }
            throw new NoStockException("no stock for " + order, new IllegalStateException("the shelf is empty"));
        }
    }

    public static class NoStockException extends RuntimeException {
        NoStockException(String message, Throwable cause) {
            super(message, cause);
        }
    }

    public static void main(String[] args) throws Exception {
        String channel = "mp.messaging.incoming.orders.";
        Map.of("connector", "smallrye-kafka",
                "bootstrap.servers", args[0],
                "topic", "smallrye-in",
                "auto.offset.reset", "earliest",
                "value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer",
                "failure-strategy", "dead-letter-queue",
                "dead-letter-queue.topic", "smallrye-dlq",
                "dead-letter-queue.value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer")
                .forEach((name, value) -> System.setProperty(channel + name, value));
        new Weld().addBeanClass(Shop.class).initialize();
        Thread.currentThread().join();
    }
}
