import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import java.util.zip.Deflater;

/** Threads whose work reaches malloc: direct buffers and zlib, beside the JVM's own use. */
public class Churn {
    static long work(int seed) {
        CRC32 crc = new CRC32();
        TreeMap<Integer, String> table = new TreeMap<>();
        for (int i = 0; i < 300; i++) {
            byte[] input = new byte[1 + (i * seed * 131) % 30000];
            java.util.Arrays.fill(input, (byte) i);
            Deflater deflater = new Deflater(6);
            deflater.setInput(input);
            deflater.finish();
            ByteBuffer output = ByteBuffer.allocateDirect(40000);
            deflater.deflate(output);
            deflater.end();
            output.flip();
            crc.update(output);
            table.put(i * 31 % 101, "row " + i);
        }
        crc.update(table.toString().getBytes());
        return crc.getValue();
    }

    public static void main(String[] args) throws Exception {
        var pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> results = new ArrayList<>();
        for (int seed = 1; seed <= 8; seed++) {
            final int s = seed;
            results.add(pool.submit(() -> work(s)));
        }
        for (Future<Long> result : results) {
            System.out.println(result.get());
        }
        pool.shutdown();
    }
}
