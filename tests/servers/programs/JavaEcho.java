// JavaEcho server PORT blocking|nio|http, JavaEcho client PORT blocking|nio|http COUNT SEED
//
// The server echoes (http: answers a body with itself); the client compares what comes back.
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

public class JavaEcho {
    static final int[] SIZES = {1, 100, 5000, 70000, 400000};

    static byte[] data(long seed, int n) {
        byte[] b = new byte[SIZES[n % SIZES.length]];
        new Random(seed + n).nextBytes(b);
        return b;
    }

    static void wrong(String why) {
        System.err.println("wrong: " + why);
        System.exit(1);
    }

    static void same(byte[] got, byte[] wanted, int n) {
        if (!Arrays.equals(got, wanted))
            wrong("connection " + n + ": " + got.length + " of " + wanted.length + " bytes, or others");
    }

    // Servers

    static void serveBlocking(int port) throws IOException {
        ServerSocket listener = new ServerSocket(port, 256, InetAddress.getByName("127.0.0.1"));
        while (true) {
            Socket s = listener.accept();
            new Thread(() -> {
                try (s) {
                    s.getInputStream().transferTo(s.getOutputStream());
                } catch (IOException e) {
                    // The client is gone.
                }
            }).start();
        }
    }

    static void serveNio(int port) throws IOException {
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port), 256);
        listener.configureBlocking(false);
        Selector selector = Selector.open();
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (var i = selector.selectedKeys().iterator(); i.hasNext(); ) {
                SelectionKey key = i.next();
                i.remove();
                if (key.isAcceptable()) {
                    for (SocketChannel c; (c = listener.accept()) != null; ) {
                        c.configureBlocking(false);
                        c.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(60000));
                    }
                    continue;
                }
                SocketChannel c = (SocketChannel) key.channel();
                ByteBuffer b = (ByteBuffer) key.attachment();
                try {
                    if (key.isReadable() && c.read(b) < 0) {
                        c.close();
                        continue;
                    }
                    b.flip();
                    c.write(b);
                    key.interestOps(b.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
                    b.compact();
                } catch (IOException e) {
                    c.close();
                }
            }
        }
    }

    static void serveHttp(int port) throws IOException {
        var server = com.sun.net.httpserver.HttpServer.create(new InetSocketAddress("127.0.0.1", port), 256);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.start();
    }

    // Clients

    static void askBlocking(int port, int count, long seed) throws Exception {
        AtomicInteger next = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int n; (n = next.getAndIncrement()) < count; ) {
                        byte[] d = data(seed, n);
                        try (Socket s = new Socket("127.0.0.1", port)) {
                            if (n % 3 == 0)
                                s.setSoTimeout(60000);
                            Thread writer = new Thread(() -> {
                                try {
                                    s.getOutputStream().write(d);
                                    s.shutdownOutput();
                                } catch (IOException e) {
                                    wrong(e.toString());
                                }
                            });
                            writer.start();
                            same(s.getInputStream().readAllBytes(), d, n);
                            writer.join();
                        }
                    }
                } catch (Exception e) {
                    wrong(e.toString());
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads)
            thread.join();
        timesOut(port);
        closedWhileReading(port);
    }

    static void timesOut(int port) throws IOException {
        try (Socket s = new Socket("127.0.0.1", port)) {
            s.setSoTimeout(50);
            s.getInputStream().read();
            wrong("a read without data ends");
        } catch (SocketTimeoutException e) {
            // The read timed out, as it should.
        }
    }

    // Java puts another descriptor under the number of a socket whose reader it wants to wake.
    static void closedWhileReading(int port) throws Exception {
        for (int i = 0; i < 5; i++) {
            Socket s = new Socket("127.0.0.1", port);
            boolean[] woken = new boolean[1];
            Thread reader = new Thread(() -> {
                try {
                    s.getInputStream().read();
                } catch (IOException e) {
                    woken[0] = true;
                }
            });
            reader.start();
            while (reader.getState() != Thread.State.RUNNABLE)
                Thread.onSpinWait();
            s.close();
            reader.join(20000);
            if (!woken[0])
                wrong("a reader sleeps on after close");
        }
    }

    static class Talk {
        int n;
        ByteBuffer out;
        byte[] wanted, got;
        int size;
    }

    static void askNio(int port, int count, long seed) throws IOException {
        Selector selector = Selector.open();
        for (int n = 0; n < count; n++) {
            SocketChannel c = SocketChannel.open();
            c.configureBlocking(false);
            Talk t = new Talk();
            t.n = n;
            t.wanted = data(seed, n);
            t.got = new byte[t.wanted.length];
            t.out = ByteBuffer.wrap(t.wanted);
            boolean done = c.connect(new InetSocketAddress("127.0.0.1", port));
            c.register(selector, done ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_CONNECT, t);
        }
        ByteBuffer in = ByteBuffer.allocateDirect(50000);
        for (int left = count; left > 0; ) {
            if (selector.select(60000) == 0)
                wrong(left + " connections hang");
            for (var i = selector.selectedKeys().iterator(); i.hasNext(); ) {
                SelectionKey key = i.next();
                i.remove();
                SocketChannel c = (SocketChannel) key.channel();
                Talk t = (Talk) key.attachment();
                if (key.isConnectable()) {
                    c.finishConnect();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) {
                    c.write(t.out);
                    if (!t.out.hasRemaining()) {
                        c.shutdownOutput();
                        key.interestOps(SelectionKey.OP_READ);
                    }
                }
                if (key.isReadable()) {
                    in.clear();
                    int r = c.read(in);
                    if (r < 0) {
                        same(Arrays.copyOf(t.got, t.size), t.wanted, t.n);
                        c.close();
                        left--;
                    } else {
                        in.flip();
                        in.get(t.got, t.size, r);
                        t.size += r;
                    }
                }
            }
        }
    }

    static void askHttp(int port, int count, long seed) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        List<CompletableFuture<?>> all = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            byte[] d = data(seed, n);
            int number = n;
            HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/"))
                    .POST(HttpRequest.BodyPublishers.ofByteArray(d)).build();
            all.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray())
                    .thenAccept(r -> same(r.body(), d, number)));
            // At most eight requests are under way at a time.
            if (all.size() == 8) {
                CompletableFuture.allOf(all.toArray(new CompletableFuture[0])).get();
                all.clear();
            }
        }
        CompletableFuture.allOf(all.toArray(new CompletableFuture[0])).get();
    }

    public static void main(String[] a) throws Exception {
        int port = Integer.parseInt(a[1]);
        if (a[0].equals("server")) {
            switch (a[2]) {
                case "blocking" -> serveBlocking(port);
                case "nio" -> serveNio(port);
                default -> serveHttp(port);
            }
            return;
        }
        int count = Integer.parseInt(a[3]);
        long seed = Long.parseLong(a[4]);
        switch (a[2]) {
            case "blocking" -> askBlocking(port, count, seed);
            case "nio" -> askNio(port, count, seed);
            default -> askHttp(port, count, seed);
        }
        System.out.println("fine");
        System.exit(0);
    }
}
