#!/bin/sh
# Adds one pod of Tollgate to those of Envoy Gateway's Deployment: docs/envoy-gateway.md, "A canary".
set -eu
kubectl -n envoy-gateway-system get deployment envoy-ratelimit -o json | jq '
  .metadata = {name: "envoy-ratelimit-canary", namespace: .metadata.namespace} | del(.status)
  | .spec.replicas = 1
  | .spec.selector.matchLabels.canary = "tollgate" | .spec.template.metadata.labels.canary = "tollgate"
  | .spec.template.spec.containers[0].image = "registry.example/tollgate:0.1.0"
  | .spec.template.spec.containers[0].env += [
      {name: "DEFAULT_ALGORITHM", value: "fixed_window"},
      {name: "COUNTER_KEYS", value: "reference"},
      {name: "WORKER_THREADS", value: "2"}]
' | kubectl apply -f -
