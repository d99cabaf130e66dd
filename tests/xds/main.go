// A management server as Envoy Gateway runs one: go-control-plane's snapshot cache, not ordered for ADS. It does what
// its standard input says, line by line, and records what passes on its streams.
//
//	set VERSION RESOURCE...   the snapshot of every node from now on; a RESOURCE is a RateLimitConfig in hex
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
)

// everybody is the one name under which all nodes are kept.
const everybody = "everybody"

type sameForAll struct{}

func (sameForAll) ID(*core.Node) string { return everybody }

// record is a file of what has passed: `> request`, `< response`, each in hex, and what else has happened.
type record struct {
	mutex sync.Mutex
	file  *os.File
}

func (r *record) line(format string, arguments ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.file != nil {
		fmt.Fprintf(r.file, format+"\n", arguments...)
	}
}

func (r *record) message(direction string, message any) {
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(message.(proto.Message))
	if err != nil {
		log.Fatal(err)
	}
	r.line("%s %s", direction, hex.EncodeToString(bytes))
}

// recorded is a stream that is written down.
type recorded struct {
	grpc.ServerStream
	record *record
}

func (s recorded) SendMsg(message any) error {
	s.record.message("<", message)
	return s.ServerStream.SendMsg(message)
}

func (s recorded) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	if err == nil {
		s.record.message(">", message)
	}
	return err
}

func (r *record) stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	r.line("stream")
	return handle(service, recorded{stream, r})
}

func transport(certificate, key, clientCA string) (grpc.ServerOption, error) {
	if certificate == "" {
		return grpc.EmptyServerOption{}, nil
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clientCA != "" {
		pem, err := os.ReadFile(clientCA)
		if err != nil {
			return nil, err
		}
		config.ClientCAs = x509.NewCertPool()
		config.ClientCAs.AppendCertsFromPEM(pem)
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return grpc.Creds(credentials.NewTLS(config)), nil
}

// set reads a line and makes it the snapshot.
func set(snapshots cache.SnapshotCache, version string, encoded []string) error {
	resources := []types.Resource{}
	for _, text := range encoded {
		bytes, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		config := &ratelimit.RateLimitConfig{}
		// Fields that this version does not know stay as they are.
		if err := proto.Unmarshal(bytes, config); err != nil {
			return err
		}
		resources = append(resources, config)
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), everybody, snapshot)
}

func main() {
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	recordTo := flag.String("record", "", "the file to add to")
	certificate := flag.String("cert", "", "")
	key := flag.String("key", "", "")
	clientCA := flag.String("client-ca", "", "")
	flag.Parse()

	r := &record{}
	if *recordTo != "" {
		file, err := os.OpenFile(*recordTo, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			log.Fatal(err)
		}
		r.file = file
	}
	secure, err := transport(*certificate, *key, *clientCA)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	snapshots := cache.NewSnapshotCache(false, sameForAll{}, nil)
	serving := grpc.NewServer(secure, grpc.StreamInterceptor(r.stream))
	discovery.RegisterAggregatedDiscoveryServiceServer(serving, server.NewServer(context.Background(), snapshots, nil))
	go func() { log.Fatal(serving.Serve(listener)) }()
	fmt.Printf("listening %s\n", listener.Addr())

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "set" {
			log.Fatalf("not a command: %.80q", lines.Text())
		}
		r.line("set %s", words[1])
		if err := set(snapshots, words[1], words[2:]); err != nil {
			log.Fatal(err)
		}
	}
}
