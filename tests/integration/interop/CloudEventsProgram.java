import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A service in Java, with Kafka's own client and its default partitioner.
 *
 * Written without type inference and lambdas: the tests compile it with Janino, which needs no JDK.
 */
public class CloudEventsProgram {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("produce")) {
            produce(args[1], args[2], Integer.parseInt(args[3]), args[4].equals("structured"));
        } else {
            consume(args[1], args[2], Integer.parseInt(args[3]));
        }
        System.out.flush();
    }

    /** Sends CloudEvents, and prints the key and the partition of each. */
    private static void produce(String bootstrap, String topic, int count, boolean structured)
            throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer producer = new KafkaProducer(properties);
        for (int i = 0; i < count; i++) {
            String key = "Schlüssel-" + i;
            String data = "{\"number\": " + i + ", \"amount\": 12.50}";
            ProducerRecord record;
            if (structured) {
                String event = "{\"specversion\": \"1.0\", \"id\": \"J-" + i + "\", \"source\": \"/java\", "
                    + "\"type\": \"orders.placed\", \"data\": " + data + "}";
                record = new ProducerRecord(topic, key, event);
                add(record.headers(), "content-type", "application/cloudevents+json; charset=UTF-8");
            } else {
                record = new ProducerRecord(topic, key, data);
                add(record.headers(), "ce_specversion", "1.0");
                add(record.headers(), "ce_id", "J-" + i);
                add(record.headers(), "ce_source", "/java");
                add(record.headers(), "ce_type", "orders.placed");
                add(record.headers(), "content-type", "application/json");
            }
            RecordMetadata sent = (RecordMetadata) producer.send(record).get();
            System.out.println("sent\t" + i + "\t" + sent.partition());
        }
        producer.close();
    }

    private static void add(Headers headers, String name, String value) {
        headers.add(name, value.getBytes(StandardCharsets.UTF_8));
    }

    /** Prints the partition, the id, the type, the source and the value of each record. */
    private static void consume(String bootstrap, String topic, int count) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", "java-" + System.nanoTime());
        properties.put("auto.offset.reset", "earliest");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        KafkaConsumer consumer = new KafkaConsumer(properties);
        consumer.subscribe(Arrays.asList(new Object[] {topic}));
        long deadline = System.currentTimeMillis() + 60000;
        int seen = 0;
        while (seen < count && System.currentTimeMillis() < deadline) {
            Iterator records = consumer.poll(Duration.ofMillis(200)).iterator();
            while (records.hasNext()) {
                ConsumerRecord record = (ConsumerRecord) records.next();
                seen++;
                System.out.println("read\t" + record.partition()
                    + "\t" + text(record.headers(), "ce_id")
                    + "\t" + text(record.headers(), "ce_type")
                    + "\t" + text(record.headers(), "ce_source")
                    + "\t" + record.value());
            }
        }
        consumer.close();
    }

    private static String text(Headers headers, String name) {
        Header header = headers.lastHeader(name);
        return header == null ? "-" : new String(header.value(), StandardCharsets.UTF_8);
    }
}
