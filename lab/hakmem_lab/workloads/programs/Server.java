// The server of http_load.py in Java: pages packed by zlib, sessions packed, outside of the heap. Usage: Server PORT
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

public class Server {
    private record Kept(ByteBuffer packed, int length) {}

    private static final Map<String, Kept> SESSIONS = new ConcurrentHashMap<>();

    private static byte[] packed(byte[] data) {
        Deflater packer = new Deflater();
        packer.setInput(data);
        packer.finish();
        byte[] found = new byte[data.length + 64];
        int length = packer.deflate(found);
        packer.end();
        return Arrays.copyOf(found, length);
    }

    private static byte[] unpacked(Kept kept) throws IOException {
        Inflater unpacker = new Inflater();
        unpacker.setInput(kept.packed().duplicate().rewind());
        byte[] found = new byte[kept.length()];
        try {
            unpacker.inflate(found);
        } catch (java.util.zip.DataFormatException error) {
            throw new IOException(error);
        }
        unpacker.end();
        return found;
    }

    private static byte[] page(int count) {
        StringBuilder text = new StringBuilder("<html><body><table>\n");
        for (int i = 0; i < count; i++)
            text.append(String.format("<tr><td>%d</td><td class=\"name\">article %d</td><td>%d.00</td></tr>\n",
                                      i, i * 7919 % 1000, i * 31 % 97));
        return packed(text.append("</table></body></html>\n").toString().getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] blob(int size) {
        ByteBuffer data = ByteBuffer.allocateDirect(size);
        while (data.hasRemaining()) data.put((byte) ('a' + data.position() % 26));
        byte[] found = new byte[size];
        data.rewind().get(found);
        return found;
    }

    private static byte[] session(HttpExchange exchange, String name) throws IOException {
        byte[] data = exchange.getRequestBody().readAllBytes();
        if (!exchange.getRequestMethod().equals("PUT")) return unpacked(SESSIONS.get(name));
        byte[] small = packed(data);
        SESSIONS.put(name, new Kept(ByteBuffer.allocateDirect(small.length).put(small), data.length));
        return "kept\n".getBytes(StandardCharsets.UTF_8);
    }

    private static void handle(HttpExchange exchange) throws IOException {
        String[] parts = exchange.getRequestURI().getPath().split("/");
        byte[] body = switch (parts[1]) {
            case "page" -> page(Integer.parseInt(parts[2]));
            case "blob" -> blob(Integer.parseInt(parts[2]));
            default -> session(exchange, parts[2]);
        };
        exchange.sendResponseHeaders(200, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    public static void main(String[] words) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 100);
        server.createContext("/", Server::handle);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
    }
}
