package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

func etcdServer(address, peer, folder string) {
	at := func(address string) []url.URL { return []url.URL{{Scheme: "http", Host: address}} }
	c := embed.NewConfig()
	c.Dir, c.LogLevel = folder, "error"
	c.ListenClientUrls, c.AdvertiseClientUrls = at(address), at(address)
	c.ListenPeerUrls, c.AdvertisePeerUrls = at(peer), at(peer)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.UnsafeNoFsync = true
	server, err := embed.StartEtcd(c)
	must(err)
	must(<-server.Err())
}

// Keys that are put, read, changed by transactions and deleted, while another client watches all of it.
func etcdClients(address string, count int) {
	connect := func() *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: time.Minute})
		must(err)
		return c
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	watcher := connect()
	defer watcher.Close()
	first, err := watcher.Get(ctx, "none")
	must(err)
	watched := watcher.Watch(clientv3.WithRequireLeader(ctx), "key-", clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision+1))
	var connections [clients]*clientv3.Client
	for i := range connections {
		connections[i] = connect()
		defer connections[i].Close()
	}
	each(count, func(client, turn int) {
		c, key, want := connections[client], fmt.Sprint("key-", client), content(client, turn)
		_, err := c.Put(ctx, key, string(want))
		must(err)
		got, err := c.Get(ctx, key)
		must(err)
		check(len(got.Kvs) == 1, "etcd has %d values of %s", len(got.Kvs), key)
		same("etcd", got.Kvs[0].Value, want)
		if turn%4 == 3 {
			is := clientv3.Compare(clientv3.ModRevision(key), "=", got.Kvs[0].ModRevision)
			done, err := c.Txn(ctx).If(is).Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
			must(err)
			check(done.Succeeded, "the transaction found another revision of %s", key)
		}
	})
	// What was watched has each change, those of a key in their order.
	var turns [clients]int
	for left := clients * (count + count/4); left > 0; {
		some, open := <-watched
		check(open && some.Err() == nil, "the watch has ended: %v", some.Err())
		for _, event := range some.Events {
			var client int
			_, err := fmt.Sscanf(string(event.Kv.Key), "key-%d", &client)
			must(err)
			if event.Type == clientv3.EventTypePut {
				same("what was watched", event.Kv.Value, content(client, turns[client]))
				turns[client]++
			}
			left--
		}
	}
}
