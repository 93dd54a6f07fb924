import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.*;
import io.netty.channel.epoll.*;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.*;
import io.netty.channel.uring.*;
import java.util.Random;
import java.util.concurrent.*;

/** An echo server and its clients by Netty: NettyEcho nio|epoll|io_uring server PORT, or client PORT ROUNDS. */
public class NettyEcho {
    static final int CLIENTS = 20;
    static final int LARGEST = 200_000;

    final IoHandlerFactory factory;
    final Class<? extends ServerChannel> listening;
    final Class<? extends Channel> connected;

    NettyEcho(String transport) {
        switch (transport) {
            case "nio" -> {
                factory = NioIoHandler.newFactory();
                listening = NioServerSocketChannel.class;
                connected = NioSocketChannel.class;
            }
            case "epoll" -> {
                factory = EpollIoHandler.newFactory();
                listening = EpollServerSocketChannel.class;
                connected = EpollSocketChannel.class;
            }
            case "io_uring" -> {
                factory = IoUringIoHandler.newFactory();
                listening = IoUringServerSocketChannel.class;
                connected = IoUringSocketChannel.class;
            }
            default -> throw new IllegalArgumentException(transport);
        }
    }

    /** Sends back what comes, and reads no more while that waits. */
    static class Echo extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext ctx, Object message) {
            ctx.write(message);
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext ctx) {
            ctx.flush();
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext ctx) {
            ctx.channel().config().setAutoRead(ctx.channel().isWritable());
        }
    }

    /** Sends messages of random lengths one after the other, and compares each with what comes back. */
    static class Client extends ChannelInboundHandlerAdapter {
        final Random random;
        final CountDownLatch done;
        int left;
        byte[] sent;
        int compared;

        Client(int seed, int rounds, CountDownLatch done) {
            random = new Random(seed);
            left = rounds;
            this.done = done;
        }

        void send(ChannelHandlerContext ctx) {
            sent = new byte[1 + random.nextInt(LARGEST)];
            random.nextBytes(sent);
            compared = 0;
            ctx.writeAndFlush(Unpooled.wrappedBuffer(sent));
        }

        @Override
        public void channelActive(ChannelHandlerContext ctx) {
            send(ctx);
        }

        @Override
        public void channelRead(ChannelHandlerContext ctx, Object message) {
            ByteBuf bytes = (ByteBuf) message;
            while (bytes.isReadable()) {
                if (bytes.readByte() != sent[compared++]) {
                    fail(ctx, new IllegalStateException("byte " + compared + " of " + sent.length + " differs"));
                    return;
                }
            }
            bytes.release();
            if (compared == sent.length) {
                if (--left == 0) {
                    ctx.close();
                    done.countDown();
                } else {
                    send(ctx);
                }
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext ctx, Throwable cause) {
            fail(ctx, cause);
        }

        static void fail(ChannelHandlerContext ctx, Throwable cause) {
            cause.printStackTrace();
            System.exit(1);
        }
    }

    public static void main(String[] args) throws Exception {
        NettyEcho how = new NettyEcho(args[0]);
        int port = Integer.parseInt(args[2]);
        EventLoopGroup group = new MultiThreadIoEventLoopGroup(2, how.factory);
        if (args[1].equals("server")) {
            new ServerBootstrap().group(group).channel(how.listening).childHandler(new ChannelInitializer<>() {
                @Override
                protected void initChannel(Channel channel) {
                    channel.pipeline().addLast(new Echo());
                }
            }).bind("127.0.0.1", port).sync().channel().closeFuture().sync();
            return;
        }
        CountDownLatch done = new CountDownLatch(CLIENTS);
        for (int i = 0; i < CLIENTS; i++) {
            int seed = i;
            new Bootstrap().group(group).channel(how.connected).handler(new ChannelInitializer<>() {
                @Override
                protected void initChannel(Channel channel) {
                    channel.pipeline().addLast(new Client(seed, Integer.parseInt(args[3]), done));
                }
            }).connect("127.0.0.1", port).sync();
        }
        if (!done.await(100, TimeUnit.SECONDS)) {
            System.err.println(done.getCount() + " clients are not done");
            System.exit(1);
        }
        System.out.println("fine");
        System.exit(0);
    }
}
