# Tollgate's image: the one static binary, run by nobody in particular. No shell, no libc, no base image that would have to be
# pinned and kept up to date; no list of users, since nothing in it asks for one; the public authorities for TLS are in the binary.
#
#   make image                             builds the binaries and, with buildah or podman, both kinds of machine in one list
#   docker build --tag tollgate:0.1.0 .    in an unpacked release, where the binary is: needs no toolchain
#   docker run -p 8081:8081 -v "$PWD/config/rules:/rules:ro" tollgate:0.1.0 --rules /rules
#
# It has no rules. Without RULES or --rules (or RUNTIME_ROOT, as for envoyproxy/ratelimit) it says so and ends: a service that
# limits nothing because a mount was forgotten is worse than one that does not start.
FROM scratch
LABEL org.opencontainers.image.title="Tollgate" \
      org.opencontainers.image.description="A rate-limit service for Envoy: exact limits, decided in Redis or in memory" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY tollgate /bin/tollgate
# The names of the programs in the image of envoyproxy/ratelimit: a Deployment's command stays as it is.
COPY deploy/image/bin /bin
ENV PATH=/bin
# By number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
# HTTP: health and metrics; gRPC: Envoy's service. PORT and GRPC_PORT move them.
EXPOSE 8080 8081
HEALTHCHECK --interval=5s --timeout=2s --start-period=5s CMD ["/bin/tollgate", "health"]
ENTRYPOINT ["/bin/tollgate"]
