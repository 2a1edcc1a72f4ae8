import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.DltHandler;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.annotation.RetryableTopic;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.retrytopic.RetryTopicConfigurationSupport;
import org.springframework.retry.annotation.Backoff;
import org.springframework.scheduling.TaskScheduler;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.util.backoff.FixedBackOff;

/** Dead letters and retries as Spring Kafka writes them: its error handler's, and its retry topics'. */
public class SpringLetters {
    static String bootstrap;
    static final CountDownLatch DEAD = new CountDownLatch(2);

    static class NoStockException extends RuntimeException {
        NoStockException(String text, Throwable cause) {
            super(text, cause);
        }
    }

    static void fail(String body) {
        if (body.startsWith("fine")) {
            return;
        }
        throw new NoStockException("no stock for " + body, new IllegalStateException("warehouse 7 is closed"));
    }

    @Configuration(proxyBeanMethods = false)
    @EnableKafka
    public static class Config extends RetryTopicConfigurationSupport {
        @Bean
        KafkaAdmin admin() {
            return new KafkaAdmin(Map.of("bootstrap.servers", bootstrap));
        }

        @Bean
        TaskScheduler scheduler() {
            return new ThreadPoolTaskScheduler();
        }

        @Bean
        KafkaTemplate<String, String> defaultRetryTopicKafkaTemplate() {
            return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(
                    Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer()));
        }

        DefaultKafkaConsumerFactory<String, String> consumers() {
            return new DefaultKafkaConsumerFactory<>(
                    Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest"),
                    new StringDeserializer(), new StringDeserializer());
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory() {
            ConcurrentKafkaListenerContainerFactory<String, String> made = new ConcurrentKafkaListenerContainerFactory<>();
            made.setConsumerFactory(consumers());
            return made;
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<String, String> plainFactory(KafkaTemplate<String, String> template) {
            ConcurrentKafkaListenerContainerFactory<String, String> made = new ConcurrentKafkaListenerContainerFactory<>();
            made.setConsumerFactory(consumers());
            made.setCommonErrorHandler(
                    new DefaultErrorHandler(new DeadLetterPublishingRecoverer(template), new FixedBackOff(0, 1)));
            return made;
        }

        @Bean
        Listeners listeners() {
            return new Listeners();
        }
    }

    public static class Listeners {
        @KafkaListener(topics = "plain", groupId = "spring-plain", containerFactory = "plainFactory")
        public void plain(String body) {
            fail(body);
        }

        @KafkaListener(topics = "plain-dlt", groupId = "watch")
        public void plainDead(String body) {
            DEAD.countDown();
        }

        @RetryableTopic(attempts = "3", backoff = @Backoff(delay = 50, multiplier = 2), autoCreateTopics = "false")
        @KafkaListener(topics = "steps", groupId = "spring-steps")
        public void steps(String body) {
            fail(body);
        }

        @DltHandler
        public void stepsDead(String body) {
            DEAD.countDown();
        }
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        try (AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(Config.class)) {
            KafkaTemplate<String, String> template = context.getBean(KafkaTemplate.class);
            for (String topic : List.of("plain", "steps")) {
                for (String body : List.of("fine 1", "fine 2", "order 7")) {
                    ProducerRecord<String, String> record = new ProducerRecord<>(topic, 1, "o-7", body);
                    record.headers().add("traceparent", "00-1-2-01".getBytes());
                    template.send(record).get();
                }
            }
            if (!DEAD.await(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no dead letter within a minute");
            }
        }
    }
}
