// JavaClose PORT ROUNDS: sockets are closed while another thread sleeps in accept or read; each such call ends. PORT is an
// echo server's.
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

public class JavaClose {
    interface Call {
        void make() throws IOException;
    }

    static void ends(String what, AutoCloseable socket, Call call) throws Exception {
        Thread sleeper = new Thread(() -> {
            try {
                call.make();
                System.err.println("wrong: " + what + " came back with something");
                System.exit(1);
            } catch (IOException e) {
                // The call was ended by the close, as it should be.
            }
        });
        sleeper.setDaemon(true);
        sleeper.start();
        // Long enough for it to sleep, mostly; any order is right.
        Thread.sleep(20);
        socket.close();
        sleeper.join(30000);
        if (sleeper.isAlive()) {
            System.err.println("wrong: " + what + " sleeps on after the close");
            System.exit(1);
        }
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]), rounds = Integer.parseInt(args[1]);
        InetAddress here = InetAddress.getByName("127.0.0.1");
        for (int i = 0; i < rounds; i++) {
            ServerSocket listener = new ServerSocket(0, 5, here);
            ends("ServerSocket.accept", listener, listener::accept);
            ServerSocketChannel channel = ServerSocketChannel.open().bind(new InetSocketAddress(here, 0));
            ends("ServerSocketChannel.accept", channel, channel::accept);
            Socket socket = new Socket(here, port);
            byte[] byte1 = new byte[1];
            // The socket works before it is closed.
            socket.getOutputStream().write(7);
            if (socket.getInputStream().read() != 7) {
                System.err.println("wrong: no echo");
                System.exit(1);
            }
            ends("Socket.read", socket, () -> {
                if (socket.getInputStream().read(byte1) < 0)
                    throw new IOException("end");
            });
            SocketChannel stream = SocketChannel.open(new InetSocketAddress(here, port));
            ends("SocketChannel.read", stream, () -> {
                if (stream.read(ByteBuffer.allocate(1)) < 0)
                    throw new IOException("end");
            });
        }
        System.out.println("fine");
    }
}
