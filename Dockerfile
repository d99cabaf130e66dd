# syntax=docker/dockerfile:1
#
# Tollgate's image: one binary on a slim Debian, run by nobody in particular.
#
#   docker build -t tollgate .
#   docker run -p 8081:8081 -v "$PWD/config/rules:/rules:ro" tollgate --rules /rules
#
# There are no rules in it. Without RULES or --rules, or the reference's RUNTIME_ROOT, it says so and ends: a service that
# limits nothing because a mount was forgotten is worse than one that does not start.

# Both of one Debian, so that what is built against its libc runs on it. Override them to build from a mirror of your own.
ARG BUILD_IMAGE=rust:1-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# .dockerignore lets through what the build reads and nothing else: a change of a test or a page rebuilds nothing.
COPY . .
# The caches keep downloaded and compiled dependencies from one build to the next. What is in a cache is not in the image,
# hence the copy.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin tollgate \
    && cp target/release/tollgate /usr/local/bin/

FROM ${RUNTIME_IMAGE}
COPY --from=build /usr/local/bin/tollgate /usr/local/bin/tollgate
# By number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
# HTTP: health and metrics; gRPC: Envoy's service. PORT and GRPC_PORT move them.
EXPOSE 8080 8081
HEALTHCHECK --interval=5s --timeout=2s --start-period=5s CMD ["tollgate", "health"]
ENTRYPOINT ["tollgate"]
