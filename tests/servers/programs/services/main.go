// Services and clients by the libraries that Go programs use, for test_go_services.py. Each client compares what comes back.
//
//	services nats-server ADDRESS FOLDER | nats ADDRESS COUNT
//	services grpc-server ADDRESS        | grpc ADDRESS COUNT
//	services redis ADDRESS COUNT
//	services postgres URL COUNT
//	services etcd ADDRESS PEER FOLDER   | keys ADDRESS COUNT
//	services images ADDRESS COUNT, of a registry
//	services origin ADDRESS             | web ADDRESS FOLDER COUNT, of a Caddy before the origin
//	services exporter ADDRESS           | metrics ADDRESS COUNT, of a Prometheus that fetches from the exporter
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const clients = 12

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func same(what string, got, want []byte) {
	if !bytes.Equal(got, want) {
		log.Fatalf("%s: %d bytes came back for %d, or others", what, len(got), len(want))
	}
}

// Some bytes, another number of them for each `turn`.
func content(client, turn int) []byte {
	b := make([]byte, 1+turn*7919%60000)
	rand.New(rand.NewSource(int64(client)<<32 | int64(turn))).Read(b)
	return b
}

func each(count int, do func(client, turn int)) {
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for turn := range count {
				do(client, turn)
			}
		})
	}
	all.Wait()
}

func natsServer(address, folder string) {
	host, port, err := net.SplitHostPort(address)
	must(err)
	number, err := strconv.Atoi(port)
	must(err)
	s, err := server.NewServer(&server.Options{Host: host, Port: number, JetStream: true, StoreDir: folder, NoSigs: true})
	must(err)
	s.Start()
	s.WaitForShutdown()
}

func natsClients(address string, count int) {
	connect := func() *nats.Conn {
		c, err := nats.Connect("nats://" + address)
		must(err)
		return c
	}
	echo := connect()
	_, err := echo.Subscribe("echo", func(m *nats.Msg) { must(m.Respond(m.Data)) })
	must(err)
	must(echo.Flush())
	var connections [clients]*nats.Conn
	for i := range connections {
		connections[i] = connect()
	}
	each(count, func(client, turn int) {
		want := content(client, turn)
		m, err := connections[client].Request("echo", want, time.Minute)
		must(err)
		same("nats", m.Data, want)
	})
	// What is stored by the server, and acknowledged.
	stream, err := echo.JetStream()
	must(err)
	subject := fmt.Sprint("stored-", os.Getpid())
	_, err = stream.AddStream(&nats.StreamConfig{Name: subject, Subjects: []string{subject}})
	must(err)
	stored, err := stream.SubscribeSync(subject)
	must(err)
	for turn := range count {
		_, err := stream.Publish(subject, content(0, turn))
		must(err)
	}
	for turn := range count {
		m, err := stored.NextMsg(time.Minute)
		must(err)
		must(m.Ack())
		same("jetstream", m.Data, content(0, turn))
	}
}

// Messages are bytes as they are.
type plain struct{}

func (plain) Name() string { return "plain" }

func (plain) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (plain) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func grpcServer(address string) {
	l, err := net.Listen("tcp", address)
	must(err)
	s := grpc.NewServer(grpc.ForceServerCodec(plain{}))
	unary := func(_ any, _ context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var message []byte
		err := read(&message)
		return &message, err
	}
	stream := func(_ any, s grpc.ServerStream) error {
		for {
			var message []byte
			if err := s.RecvMsg(&message); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			if err := s.SendMsg(&message); err != nil {
				return err
			}
		}
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Once", Handler: unary}},
		Streams:     []grpc.StreamDesc{{StreamName: "Again", Handler: stream, ServerStreams: true, ClientStreams: true}},
	}, struct{}{})
	must(s.Serve(l))
}

func grpcClients(address string, count int) {
	var connections [clients]*grpc.ClientConn
	for i := range connections {
		c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(plain{})))
		must(err)
		connections[i] = c
	}
	again := &grpc.StreamDesc{StreamName: "Again", ServerStreams: true, ClientStreams: true}
	each(count, func(client, turn int) {
		want, c := content(client, turn), connections[client]
		var got []byte
		must(c.Invoke(context.Background(), "/echo/Once", &want, &got))
		same("grpc", got, want)
		// A stream, which every other time is cancelled while the server has something to send.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s, err := c.NewStream(ctx, again, "/echo/Again")
		must(err)
		for range 5 {
			must(s.SendMsg(&want))
			must(s.RecvMsg(&got))
			same("grpc stream", got, want)
		}
		must(s.SendMsg(&want))
		if turn%2 == 0 {
			must(s.CloseSend())
			must(s.RecvMsg(&got))
			same("the last of a grpc stream", got, want)
			if err := s.RecvMsg(&got); !errors.Is(err, io.EOF) {
				log.Fatal("the grpc stream did not end: ", err)
			}
			return
		}
		cancel()
		for err == nil {
			err = s.RecvMsg(&got)
		}
		if status.Code(err) != codes.Canceled {
			log.Fatal("the grpc stream was not cancelled: ", err)
		}
	})
}

func redisClients(address string, count int) {
	ctx := context.Background()
	c := redis.NewClient(&redis.Options{Addr: address, PoolSize: clients})
	each(count, func(client, turn int) {
		key, want := fmt.Sprint("key-", client), content(client, turn)
		must(c.Set(ctx, key, want, 0).Err())
		got, err := c.Get(ctx, key).Bytes()
		must(err)
		same("redis", got, want)
	})
	published := c.Subscribe(ctx, "channel")
	_, err := published.Receive(ctx)
	must(err)
	for turn := range count {
		must(c.Publish(ctx, "channel", content(0, turn)).Err())
		m, err := published.ReceiveMessage(ctx)
		must(err)
		same("what redis published", []byte(m.Payload), content(0, turn))
	}
}

func postgresClients(url string, count int) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	must(err)
	each(count, func(client, turn int) {
		var got []byte
		want := content(client, turn)
		must(pool.QueryRow(ctx, "select $1::bytea", want).Scan(&got))
		same("postgres", got, want)
		if turn%16 == 15 {
			// This is cancelled, and its connection closed.
			short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
			defer stop()
			if _, err := pool.Exec(short, "select pg_sleep(60)"); !errors.Is(err, context.DeadlineExceeded) {
				log.Fatal("postgres: the statement was not cancelled: ", err)
			}
		}
	})
	pool.Close()
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("see the beginning of main.go")
	}
	last := os.Args[len(os.Args)-1]
	count, _ := strconv.Atoi(last)
	switch where := os.Args[2]; os.Args[1] {
	case "nats-server":
		natsServer(where, os.Args[3])
	case "grpc-server":
		grpcServer(where)
	case "nats":
		natsClients(where, count)
	case "grpc":
		grpcClients(where, count)
	case "redis":
		redisClients(where, count)
	case "postgres":
		postgresClients(where, count)
	case "etcd":
		etcdServer(where, os.Args[3], last)
	case "keys":
		etcdClients(where, count)
	case "images":
		registryClients(where, count)
	case "origin":
		origin(where)
	case "web":
		webClients(where, os.Args[3], count)
	case "exporter":
		exporter(where)
	case "metrics":
		metricsClients(where, count)
	default:
		log.Fatalf("%q is no service", os.Args[1])
	}
	fmt.Println("fine")
}
