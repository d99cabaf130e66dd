import io.envoyproxy.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitRequest;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse.Code;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A client of Tollgate by grpc-java: calls of every kind at once over two connections, one of them with a small window.
 * It checks each answer, and prints its counts as a line of JSON, which tests/it/clients.rs reads.
 */
class Clients {
    static final int CALLERS = 32;
    static final int LARGE = 100;
    /** Bytes, which is less than the answer to a large request has. */
    static final int SMALL_WINDOW = 512;

    static final AtomicInteger made = new AtomicInteger();
    static final AtomicInteger answered = new AtomicInteger();
    static final AtomicInteger cancelled = new AtomicInteger();
    static final AtomicInteger expired = new AtomicInteger();
    static final AtomicInteger large = new AtomicInteger();
    static final AtomicInteger healthy = new AtomicInteger();
    static final AtomicInteger denied = new AtomicInteger();
    static final AtomicInteger faults = new AtomicInteger();
    /** What remained after each call that was allowed: no number comes twice. */
    static final Set<Integer> remained = ConcurrentHashMap.newKeySet();

    static final ScheduledExecutorService later = Executors.newScheduledThreadPool(1);

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        int calls = Integer.parseInt(arguments[1]);
        ManagedChannel[] channels = {
            NettyChannelBuilder.forAddress("127.0.0.1", port).usePlaintext().build(),
            NettyChannelBuilder.forAddress("127.0.0.1", port).usePlaintext().flowControlWindow(SMALL_WINDOW).build(),
        };
        var callers = Executors.newFixedThreadPool(CALLERS * channels.length);
        for (ManagedChannel channel : channels) {
            for (int i = 0; i < CALLERS; i++) {
                callers.execute(() -> {
                    while (made.incrementAndGet() <= calls) {
                        try {
                            call(channel);
                        } catch (Exception | AssertionError fault) {
                            if (faults.incrementAndGet() <= 10) {
                                System.err.println(fault);
                            }
                        }
                    }
                });
            }
        }
        callers.shutdown();
        check(callers.awaitTermination(2, TimeUnit.MINUTES), "calls without an answer");
        later.shutdownNow();
        for (ManagedChannel channel : channels) {
            channel.shutdown();
        }
        System.out.printf(
            "{\"answered\":%s,\"cancelled\":%s,\"expired\":%s,\"large\":%s,\"healthy\":%s,"
                + "\"few_allowed\":%d,\"few_denied\":%s,\"fault_count\":%s}%n",
            answered, cancelled, expired, large, healthy, remained.size(), denied, faults);
        System.exit(0);
    }

    /** Makes one call of a drawn kind. */
    static void call(ManagedChannel channel) throws Exception {
        var draw = ThreadLocalRandom.current();
        var stub = RateLimitServiceGrpc.newFutureStub(channel);
        switch (draw.nextInt(16)) {
            case 0 -> {
                var asked = RateLimitRequest.newBuilder().setDomain("clients");
                for (int i = 0; i < LARGE; i++) {
                    asked.addDescriptors(descriptor("open", i + "long".repeat(20)));
                }
                check(answer(stub.shouldRateLimit(asked.build())).getStatusesCount() == LARGE, "a status is missing");
                large.incrementAndGet();
            }
            case 1 -> {
                var health = HealthGrpc.newFutureStub(channel).check(HealthCheckRequest.getDefaultInstance()).get();
                check(health.getStatus() == ServingStatus.SERVING, health.toString());
                healthy.incrementAndGet();
            }
            case 2, 3, 4 -> {
                var call = stub.shouldRateLimit(one("hasty"));
                later.schedule(() -> call.cancel(true), moment(draw), TimeUnit.MICROSECONDS);
                try {
                    answer(call);
                } catch (CancellationException expected) {
                    cancelled.incrementAndGet();
                }
            }
            case 5, 6, 7 -> {
                try {
                    var hurried = stub.withDeadlineAfter(moment(draw), TimeUnit.MICROSECONDS);
                    answer(hurried.shouldRateLimit(one("hasty")));
                } catch (ExecutionException late) {
                    check(Status.fromThrowable(late).getCode() == Status.Code.DEADLINE_EXCEEDED, late.toString());
                    expired.incrementAndGet();
                }
            }
            case 8, 9, 10 -> {
                var status = answer(stub.shouldRateLimit(one("few"))).getStatuses(0);
                if (status.getCode() == Code.OK) {
                    check(remained.add(status.getLimitRemaining()), "the same remained twice");
                } else {
                    check(status.getLimitRemaining() == 0, "denied with some remaining");
                    denied.incrementAndGet();
                }
            }
            default -> check(answer(stub.shouldRateLimit(one("open"))).getOverallCode() == Code.OK, "denied");
        }
    }

    /** Microseconds: often at once, at times when the answer is there. */
    static long moment(ThreadLocalRandom draw) {
        return draw.nextLong(500L << draw.nextInt(8));
    }

    static RateLimitResponse answer(Future<RateLimitResponse> call) throws Exception {
        RateLimitResponse answer = call.get();
        answered.incrementAndGet();
        check(answer.getStatuses(0).getCode() != Code.UNKNOWN, answer.toString());
        return answer;
    }

    static RateLimitRequest one(String key) {
        return RateLimitRequest.newBuilder().setDomain("clients").addDescriptors(descriptor(key, "all")).build();
    }

    static RateLimitDescriptor descriptor(String key, String value) {
        var entry = RateLimitDescriptor.Entry.newBuilder().setKey(key).setValue(value);
        return RateLimitDescriptor.newBuilder().addEntries(entry).build();
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
