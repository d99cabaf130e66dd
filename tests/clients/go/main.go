// A client of Tollgate by grpc-go. It makes calls of every kind at once, with streams beside them on the same
// connections, checks each answer, and prints its counts as a line of JSON, which tests/it/clients.rs reads.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	descriptor "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

const (
	domain = "clients"
	// service is what reflection is asked for.
	service = "envoy.service.ratelimit.v3.RateLimitService"
	// smallest is the smallest window that grpc-go allows.
	smallest = 64 * 1024
	// large is the number of descriptors of a large request.
	large = 200
	// unread is the number of reflection's answers that the server has to keep, beyond any window.
	unread = 40
	// longest is the time after which everything is given up.
	longest = 2 * time.Minute
)

// counts is the outcome of all calls.
type counts struct {
	Answered    atomic.Int64 // calls of any kind with an answer
	Cancelled   atomic.Int64
	Expired     atomic.Int64
	Large       atomic.Int64
	Watches     atomic.Int64 // streams of health that said SERVING, and nothing else until the end
	Reflections atomic.Int64 // streams of reflection that were answered to the end
	Connections atomic.Int64
	Unreachable atomic.Int64 // calls for which there was no server any more
	faults      sync.Map
	Faults      atomic.Int64
}

// fault notes what should not have happened.
func (c *counts) fault(format string, arguments ...any) {
	if c.Faults.Add(1) <= 10 {
		c.faults.Store(fmt.Sprintf(format, arguments...), true)
	}
}

// TagRPC and the methods below count connections, as a handler of grpc-go's statistics.
func (c *counts) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *counts) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *counts) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *counts) HandleConn(_ context.Context, event stats.ConnStats) {
	if _, begins := event.(*stats.ConnBegin); begins {
		c.Connections.Add(1)
	}
}

// budget is a limited key. Each allowed answer takes a unit: none is counted twice, and none after the last.
type budget struct {
	key     string
	limit   uint32
	mutex   sync.Mutex
	left    map[uint32]bool
	allowed int
	denied  int
}

func newBudget(key string, limit uint32) *budget {
	return &budget{key: key, limit: limit, left: map[uint32]bool{}}
}

func (b *budget) check(answer *ratelimit.RateLimitResponse) error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(answer.Statuses) != 1 || answer.Statuses[0].Code != answer.OverallCode {
		return fmt.Errorf("%s: %v", b.key, answer)
	}
	only := answer.Statuses[0]
	if only.CurrentLimit.GetRequestsPerUnit() != b.limit {
		return fmt.Errorf("%s: another limit: %v", b.key, answer)
	}
	switch only.Code {
	case ratelimit.RateLimitResponse_OK:
		b.allowed++
		if only.LimitRemaining >= b.limit || b.left[only.LimitRemaining] {
			return fmt.Errorf("%s: %d remained twice", b.key, only.LimitRemaining)
		}
		b.left[only.LimitRemaining] = true
	case ratelimit.RateLimitResponse_OVER_LIMIT:
		b.denied++
		if only.LimitRemaining != 0 {
			return fmt.Errorf("%s: denied with %d remaining", b.key, only.LimitRemaining)
		}
	default:
		return fmt.Errorf("%s: %v", b.key, answer)
	}
	return nil
}

// load is what all callers share.
type load struct {
	counts
	few   *budget // asked for by calls that are all answered
	hasty *budget // asked for by calls that are cancelled or too late
}

func entry(key, value string) *descriptor.RateLimitDescriptor {
	return &descriptor.RateLimitDescriptor{Entries: []*descriptor.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
}

func request(descriptors ...*descriptor.RateLimitDescriptor) *ratelimit.RateLimitRequest {
	return &ratelimit.RateLimitRequest{Domain: domain, Descriptors: descriptors}
}

// call makes one call of a drawn kind.
func (l *load) call(ctx context.Context, client ratelimit.RateLimitServiceClient) {
	switch kind := rand.IntN(64); {
	case kind == 0:
		var many []*descriptor.RateLimitDescriptor
		for i := range large {
			many = append(many, entry("open", fmt.Sprintf("%d-%s", i, strings.Repeat("long", 20))))
		}
		l.open(ctx, client, request(many...))
		l.Large.Add(1)
	case kind < 16:
		l.open(ctx, client, request(entry("open", "all")))
	case kind < 32:
		trace := fmt.Sprintf("00-%016x%016x-%016x-01", rand.Uint64(), rand.Uint64(), rand.Uint64())
		id := fmt.Sprintf("%016x", rand.Uint64())
		fresh := metadata.AppendToOutgoingContext(ctx, "x-request-id", id, "traceparent", trace)
		l.open(fresh, client, request(entry("open", "all")))
	case kind < 40:
		answer, err := client.ShouldRateLimit(ctx, request(entry(l.few.key, "all")))
		l.budgeted(l.few, answer, err)
	case kind < 52:
		cancelled, cancel := context.WithCancel(ctx)
		defer cancel()
		time.AfterFunc(moment(), cancel)
		answer, err := client.ShouldRateLimit(cancelled, request(entry(l.hasty.key, "all")))
		if status.Code(err) == codes.Canceled {
			l.Cancelled.Add(1)
			return
		}
		l.budgeted(l.hasty, answer, err)
	default:
		late, cancel := context.WithTimeout(ctx, moment())
		defer cancel()
		answer, err := client.ShouldRateLimit(late, request(entry(l.hasty.key, "all")))
		if status.Code(err) == codes.DeadlineExceeded {
			l.Expired.Add(1)
			return
		}
		l.budgeted(l.hasty, answer, err)
	}
}

// moment draws a time after which a call is given up: often at once, at times when the answer is there.
func moment() time.Duration {
	return time.Duration(rand.Int64N(int64(time.Millisecond) << rand.IntN(8)))
}

// open asks for what has more than enough, and returns whether there is a server.
func (l *load) open(ctx context.Context, client ratelimit.RateLimitServiceClient, asked *ratelimit.RateLimitRequest) bool {
	answer, err := client.ShouldRateLimit(ctx, asked)
	if err != nil && strings.Contains(err.Error(), "connection error: desc = ") {
		// grpc-go says so of a connection that has never been one, over which it has sent no call.
		l.Unreachable.Add(1)
		return false
	}
	if err != nil {
		l.fault("open: %v", err)
		return true
	}
	l.Answered.Add(1)
	if answer.OverallCode != ratelimit.RateLimitResponse_OK || len(answer.Statuses) != len(asked.Descriptors) {
		l.fault("open: %v", answer)
	}
	for _, one := range answer.Statuses {
		isYear := one.CurrentLimit.GetUnit() == ratelimit.RateLimitResponse_RateLimit_YEAR
		if one.Code != ratelimit.RateLimitResponse_OK || !isYear {
			l.fault("open: %v", one)
		}
	}
	return true
}

func (l *load) budgeted(budget *budget, answer *ratelimit.RateLimitResponse, err error) {
	if err != nil {
		l.fault("%s: %v", budget.key, err)
		return
	}
	l.Answered.Add(1)
	if err := budget.check(answer); err != nil {
		l.fault("%v", err)
	}
}

// watch keeps a stream of health open until the end of the calls.
func (l *load) watch(ctx context.Context, connection *grpc.ClientConn) {
	stream, err := grpc_health_v1.NewHealthClient(connection).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		l.fault("watch: %v", err)
		return
	}
	first, err := stream.Recv()
	if err != nil || first.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		l.fault("watch: %v %v", first, err)
		return
	}
	if more, err := stream.Recv(); status.Code(err) != codes.Canceled {
		l.fault("watch: then %v %v", more, err)
		return
	}
	l.Watches.Add(1)
}

// reflect asks many times before it reads an answer, and then reads slowly; over and over until the end of the calls.
func (l *load) reflect(ctx context.Context, connection *grpc.ClientConn) {
	for ctx.Err() == nil {
		// Without the end of the calls: each stream is read to its own end.
		if err := reflectOnce(context.WithoutCancel(ctx), connection); err != nil {
			l.fault("reflection: %v", err)
			return
		}
		l.Reflections.Add(1)
	}
}

func reflectOnce(ctx context.Context, connection *grpc.ClientConn) error {
	stream, err := grpc_reflection_v1.NewServerReflectionClient(connection).ServerReflectionInfo(ctx)
	if err != nil {
		return err
	}
	symbol := &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}
	for range unread {
		if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: symbol}); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for range unread {
		time.Sleep(2 * time.Millisecond)
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			return fmt.Errorf("%v", answer)
		}
	}
	if more, err := stream.Recv(); err != io.EOF {
		return fmt.Errorf("then %v %v", more, err)
	}
	return nil
}

func main() {
	target := flag.String("target", "", "host:port or unix:path")
	ca := flag.String("ca", "", "the authority of the server, whose certificate is for localhost; without it there is no TLS")
	calls := flag.Int64("calls", 100_000, "how many calls")
	gone := flag.Bool("until-gone", false, "make only plain calls, until there is no server")
	connections := flag.Int("connections", 4, "half of them with small windows")
	callers := flag.Int("callers", 32, "for each connection")
	few := flag.Uint("few", 0, "the limit of the key `few`")
	hasty := flag.Uint("hasty", 0, "the limit of the key `hasty`")
	flag.Parse()

	l := &load{few: newBudget("few", uint32(*few)), hasty: newBudget("hasty", uint32(*hasty))}
	secure := insecure.NewCredentials()
	if *ca != "" {
		var err error
		if secure, err = credentials.NewClientTLSFromFile(*ca, "localhost"); err != nil {
			log.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	calling, called := context.WithCancel(ctx)
	var made atomic.Int64
	var callersDone, streamsDone sync.WaitGroup
	for i := range *connections {
		options := []grpc.DialOption{grpc.WithTransportCredentials(secure), grpc.WithStatsHandler(&l.counts)}
		if i%2 == 1 {
			options = append(options, grpc.WithStaticStreamWindowSize(smallest), grpc.WithStaticConnWindowSize(smallest))
		}
		connection, err := grpc.NewClient(*target, options...)
		if err != nil {
			log.Fatal(err)
		}
		defer connection.Close()
		client := ratelimit.NewRateLimitServiceClient(connection)
		if !*gone {
			streamsDone.Go(func() { l.watch(calling, connection) })
			streamsDone.Go(func() { l.reflect(calling, connection) })
		}
		for range *callers {
			callersDone.Go(func() {
				for made.Add(1) <= *calls && ctx.Err() == nil {
					if !*gone {
						l.call(ctx, client)
					} else if !l.open(ctx, client, request(entry("open", "all"))) {
						return
					}
				}
			})
		}
	}
	if *gone {
		for l.Answered.Load() < int64(*connections**callers) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("calling")
	}
	callersDone.Wait()
	called()
	streamsDone.Wait()
	l.print()
}

func (l *load) print() {
	faults := []any{}
	l.faults.Range(func(fault, _ any) bool {
		faults = append(faults, fault)
		return true
	})
	err := json.NewEncoder(os.Stdout).Encode(map[string]any{
		"answered": l.Answered.Load(), "cancelled": l.Cancelled.Load(), "expired": l.Expired.Load(),
		"large": l.Large.Load(), "watches": l.Watches.Load(), "reflections": l.Reflections.Load(),
		"connections": l.Connections.Load(), "unreachable": l.Unreachable.Load(),
		"few_allowed": l.few.allowed, "few_denied": l.few.denied,
		"hasty_allowed": l.hasty.allowed, "hasty_denied": l.hasty.denied,
		"fault_count": l.Faults.Load(), "faults": faults,
	})
	if err != nil {
		log.Fatal(err)
	}
}
