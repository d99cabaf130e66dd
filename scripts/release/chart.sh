#!/usr/bin/env bash
# Packages the Helm chart into target/dist-chart. With IMAGE=host/owner/tollgate, the chart runs that image unless values name another.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly dist=$PWD/target/dist-chart
chart=$(mktemp --directory --tmpdir tollgate-chart.XXXXXX)
trap 'rm -rf "$chart"' EXIT

cp -r deploy/helm/tollgate "$chart"
# Values for tests of the chart.
rm -r "$chart/tollgate/ci"
if [[ -n ${IMAGE:-} ]]; then
    sed -i "s|^  repository: tollgate$|  repository: $IMAGE|" "$chart/tollgate/values.yaml"
    grep --quiet "^  repository: $IMAGE$" "$chart/tollgate/values.yaml" || {
        echo "chart: values.yaml has no line \"  repository: tollgate\" to replace" >&2
        exit 1
    }
fi
rm -rf "$dist"
target/tools/bin/helm package "$chart/tollgate" --destination "$dist"
