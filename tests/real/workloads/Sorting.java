import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ForkJoinPool;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Sorts, streams and short-lived threads; what reaches malloc is compiled code, threads, direct buffers and zlib. */
public class Sorting {
    static long crc(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    static long sorts(int seed) {
        int[] numbers = new SplittableRandom(seed).ints(300_000).toArray();
        int[] serial = numbers.clone();
        Arrays.sort(serial);
        Arrays.parallelSort(numbers);
        if (!Arrays.equals(serial, numbers)) throw new AssertionError("the sorts differ");
        return Arrays.stream(numbers).asLongStream().reduce(1, (sum, n) -> sum * 31 + n);
    }

    static String streams(int seed) {
        Map<Integer, Long> groups = IntStream.range(0, 200_000).parallel().boxed()
            .collect(Collectors.groupingBy(n -> (n * 7919 + seed) % 97, TreeMap::new, Collectors.counting()));
        String joined = IntStream.range(0, 20_000).parallel().mapToObj(n -> "item" + (n ^ seed))
            .filter(s -> s.hashCode() % 3 == 0).sorted().collect(Collectors.joining(","));
        return groups.values().stream().mapToLong(Long::longValue).sum() + " " + crc(joined.getBytes());
    }

    /** Threads that each live for one task: the blocks they leave are freed by others. */
    static String threads(int seed) throws Exception {
        ConcurrentHashMap<Integer, Long> results = new ConcurrentHashMap<>();
        List<Thread> running = new ArrayList<>();
        for (int n = 0; n < 200; n++) {
            int number = n;
            Thread thread = new Thread(() -> results.put(number, buffers(seed * 1000 + number)));
            thread.start();
            running.add(thread);
            if (running.size() == 16) running.remove(0).join();
        }
        for (Thread thread : running) thread.join();
        return crc(new TreeMap<>(results).toString().getBytes()) + " from " + results.size();
    }

    static long buffers(int seed) {
        SplittableRandom random = new SplittableRandom(seed);
        long sum = 0;
        for (int i = 0; i < 20; i++) {
            byte[] input = new byte[1 + random.nextInt(60_000)];
            for (int at = 0; at < input.length; at++) input[at] = (byte) (at * i / 7);
            ByteBuffer packed = ByteBuffer.allocateDirect(input.length + 1000);
            Deflater deflater = new Deflater(1 + i % 9);
            deflater.setInput(input);
            deflater.finish();
            deflater.deflate(packed);
            deflater.end();
            packed.flip();
            Inflater inflater = new Inflater();
            inflater.setInput(packed);
            byte[] output = new byte[input.length];
            try {
                inflater.inflate(output);
            } catch (java.util.zip.DataFormatException error) {
                throw new AssertionError(error);
            }
            inflater.end();
            if (!Arrays.equals(input, output)) throw new AssertionError("deflate changed the bytes");
            sum += crc(output);
        }
        return sum;
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        for (int round = 1; round <= rounds; round++) {
            System.out.println(round + ": " + sorts(round) + " | " + streams(round) + " | " + threads(round));
        }
        ForkJoinPool.commonPool().shutdown();
    }
}
