{{- define "tollgate.name" -}}
{{- $name := contains "tollgate" .Release.Name | ternary .Release.Name (printf "%s-tollgate" .Release.Name) }}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: tollgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tollgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "tollgate.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "tollgate.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Not empty if the value switches something on. */}}
{{- define "tollgate.isOn" -}}
{{- if has (lower (toString .)) (list "true" "t" "1" "yes" "y" "on") }}on{{ end }}
{{- end }}

{{/* Rejects values that cannot work, and says what to change. */}}
{{- define "tollgate.check" -}}
{{- $rules := .Values.rules }}
{{- $sources := 0 }}
{{- range list $rules.files $rules.existingConfigMap $rules.managementServer }}
{{- if . }}{{ $sources = add1 $sources }}{{ end }}
{{- end }}
{{- if ne (int $sources) 1 }}
{{- fail "set exactly one source of rules: rules.files, rules.existingConfigMap or rules.managementServer" }}
{{- end }}
{{- /* The schema's errors about names of properties blame other values. */}}
{{- range $of, $files := dict "rules" .Values.rules.files "candidates" .Values.candidates.files }}
{{- range $name, $text := $files }}
{{- if not (kindIs "string" $text) }}
{{- fail (printf "%s.files.%s is no text: escape the dots of a file's name, such as --set-file '%s.files.shop\\.yaml=shop.yaml'" $of $name $of) }}
{{- end }}
{{- if not (regexMatch "^[-._a-zA-Z0-9]+\\.(yaml|yml|json)$" $name) }}
{{- fail (printf "%s.files has %q: the name of a file has letters, digits, '-', '_' and '.', and ends in .yaml, .yml or .json" $of $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.rules.tls.secret (not $rules.managementServer) }}
{{- fail "rules.tls is for a management server: set rules.managementServer, or remove it" }}
{{- end }}
{{- if and .Values.candidates.files .Values.candidates.existingConfigMap }}
{{- fail "set only one source of candidates: candidates.files or candidates.existingConfigMap" }}
{{- end }}
{{- /* What the service would refuse at its start. It also gets the variables of env. */}}
{{- $settings := include "tollgate.settings" . | fromYaml }}
{{- $given := keys $settings }}
{{- range .Values.env }}{{ $given = append $given .name }}{{ end }}
{{- $hashed := or (and (ne (default "off" $settings.DECISION_LOG) "off") (eq (lower (default "" $settings.DECISION_LOG_VALUES)) "hashed")) (eq (lower (default "" $settings.TOP_KEYS_VALUES)) "hashed") }}
{{- if and $hashed (not .Values.valuesKey.secret) (not (has "VALUES_KEY" $given)) (not (has "VALUES_KEY_FILE" $given)) }}
{{- fail "hashed values need a key: set valuesKey.secret" }}
{{- end }}
{{- $admin := include "tollgate.isOn" $settings.ADMIN_API }}
{{- $token := or .Values.admin.secret .Values.admin.reader.secret (has "ADMIN_TOKEN" $given) (has "ADMIN_READ_TOKEN" $given) (has "ADMIN_TOKENS_FILE" $given) }}
{{- if and $admin (not $token) }}
{{- fail "settings.ADMIN_API needs a token: set admin.secret, which switches it on" }}
{{- end }}
{{- if and (not $admin) (not (has "ADMIN_API" $given)) (include "tollgate.isOn" .Values.settings.CONSOLE) }}
{{- fail "settings.CONSOLE needs the admin API and a token: set admin.secret, which switches both on" }}
{{- end }}
{{- if and (not .Values.redis.url) (or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1)) }}
{{- fail "without redis.url each instance counts on its own: set it, or replicaCount: 1" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.fromNamespaces) (not .Values.networkPolicy.from) }}
{{- fail "the NetworkPolicy would keep every proxy out: set networkPolicy.fromNamespaces to the namespaces of your proxies, such as {istio-system} or {envoy-gateway-system}, or networkPolicy.enabled: false" }}
{{- end }}
{{- range $name, $instead := dict "GRPC_PORT" "the pod listens on 8081, and the Service maps it" "PORT" "the pod listens on 8080, and the Service maps it" "GRPC_HOST" "the pod listens on every address" "HOST" "the pod listens on every address" "GRPC_UDS" "clients connect over the Service" }}
{{- if hasKey $.Values.settings $name }}
{{- fail (printf "settings.%s would not change the ports of the pod, its probes and its Services: remove it; %s" $name $instead) }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not ((.Values.resources).requests).cpu) }}
{{- fail "the autoscaler needs resources.requests.cpu: set it" }}
{{- end }}
{{- end }}

{{/* The settings by variable, as YAML; `settings` takes precedence. */}}
{{- define "tollgate.settings" -}}
{{- $redis := .Values.redis }}
{{- $all := dict }}
{{- if .Values.rules.managementServer }}
{{- $_ := set $all "CONFIG_TYPE" "GRPC_XDS_SOTW" }}
{{- $_ := set $all "CONFIG_GRPC_XDS_SERVER_URL" .Values.rules.managementServer }}
{{- with .Values.rules.nodeId }}{{ $_ := set $all "CONFIG_GRPC_XDS_NODE_ID" . }}{{ end }}
{{- if .Values.rules.tls.secret }}
{{- $_ := set $all "CONFIG_GRPC_XDS_SERVER_USE_TLS" true }}
{{- $_ := set $all "CONFIG_GRPC_XDS_SERVER_TLS_CACERT" "/etc/tollgate/rules-tls/ca.crt" }}
{{- $_ := set $all "CONFIG_GRPC_XDS_CLIENT_TLS_CERT" "/etc/tollgate/rules-tls/tls.crt" }}
{{- $_ := set $all "CONFIG_GRPC_XDS_CLIENT_TLS_KEY" "/etc/tollgate/rules-tls/tls.key" }}
{{- with .Values.rules.tls.serverName }}{{ $_ := set $all "CONFIG_GRPC_XDS_SERVER_TLS_SAN" . }}{{ end }}
{{- end }}
{{- else }}
{{- $_ := set $all "RULES" "/etc/tollgate/rules" }}
{{- end }}
{{- /* failure_mode: local divides a limit by this: by the most that there may be, lest more passes. */}}
{{- $most := ternary .Values.autoscaling.maxReplicas .Values.replicaCount .Values.autoscaling.enabled }}
{{- $_ := set $all "EXPECTED_REPLICAS" $most }}
{{- $_ := set $all "DRAIN_DELAY" (printf "%ds" (int .Values.drainSeconds)) }}
{{- $_ := set $all "SHUTDOWN_TIMEOUT" (printf "%ds" (int .Values.shutdownSeconds)) }}
{{- with $redis.url }}{{ $_ := set $all "REDIS_URL" . }}{{ end }}
{{- with $redis.type }}{{ $_ := set $all "REDIS_TYPE" . }}{{ end }}
{{- if $redis.auth.secret }}{{ $_ := set $all "REDIS_AUTH_FILE" (printf "/etc/tollgate/redis-auth/%s" $redis.auth.key) }}{{ end }}
{{- if $redis.tls.enabled }}
{{- $_ := set $all "REDIS_TLS" true }}
{{- if $redis.tls.ca.secret }}{{ $_ := set $all "REDIS_TLS_CACERT" (printf "/etc/tollgate/redis-ca/%s" $redis.tls.ca.key) }}{{ end }}
{{- if $redis.tls.client.secret }}
{{- $_ := set $all "REDIS_TLS_CLIENT_CERT" "/etc/tollgate/redis-client/tls.crt" }}
{{- $_ := set $all "REDIS_TLS_CLIENT_KEY" "/etc/tollgate/redis-client/tls.key" }}
{{- end }}
{{- with $redis.tls.serverName }}{{ $_ := set $all "REDIS_TLS_SERVER_NAME" . }}{{ end }}
{{- end }}
{{- if $redis.perSecond.url }}
{{- $_ := set $all "REDIS_PERSECOND" true }}
{{- $_ := set $all "REDIS_PERSECOND_URL" $redis.perSecond.url }}
{{- with $redis.perSecond.type }}{{ $_ := set $all "REDIS_PERSECOND_TYPE" . }}{{ end }}
{{- if $redis.perSecond.tls }}{{ $_ := set $all "REDIS_PERSECOND_TLS" true }}{{ end }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $_ := set $all "GRPC_SERVER_USE_TLS" true }}
{{- $_ := set $all "GRPC_SERVER_TLS_CERT" "/etc/tollgate/tls/tls.crt" }}
{{- $_ := set $all "GRPC_SERVER_TLS_KEY" "/etc/tollgate/tls/tls.key" }}
{{- with .Values.tls.clientCa }}
{{- if .secret }}{{ $_ := set $all "GRPC_CLIENT_TLS_CACERT" (printf "/etc/tollgate/client-ca/%s" .key) }}{{ end }}
{{- end }}
{{- end }}
{{- if or .Values.admin.secret .Values.admin.reader.secret .Values.admin.tokens.secret }}
{{- $_ := set $all "ADMIN_API" true }}
{{- $_ := set $all "CONSOLE" .Values.admin.console }}
{{- with .Values.admin.tokens }}
{{- if .secret }}{{ $_ := set $all "ADMIN_TOKENS_FILE" (printf "/etc/tollgate/admin-tokens/%s" .key) }}{{ end }}
{{- end }}
{{- with .Values.admin.hosts }}{{ $_ := set $all "ADMIN_HOSTS" (join "," .) }}{{ end }}
{{- end }}
{{- if or .Values.candidates.files .Values.candidates.existingConfigMap }}
{{- $_ := set $all "CANDIDATE_RULES" "/etc/tollgate/candidates" }}
{{- $_ := set $all "CANDIDATE_SAMPLE" .Values.candidates.sample }}
{{- end }}
{{- with .Values.decisionLog }}
{{- if ne .to "off" }}
{{- $_ := set $all "DECISION_LOG" .to }}
{{- $_ := set $all "DECISION_LOG_SAMPLE" .sample }}
{{- $_ := set $all "DECISION_LOG_VALUES" .values }}
{{- end }}
{{- end }}
{{- if not .Values.topKeys.enabled }}{{ $_ := set $all "TOP_KEYS" false }}{{ end }}
{{- if ne .Values.topKeys.values "plain" }}{{ $_ := set $all "TOP_KEYS_VALUES" .Values.topKeys.values }}{{ end }}
{{- /* `merge` would replace a value of false or 0. */}}
{{- range $name, $value := .Values.settings }}{{ $_ := set $all $name $value }}{{ end }}
{{- range $name, $value := $all }}
{{- /* Helm prints large numbers of a file as 1.048576e+08. */}}
{{- $is_whole := and (kindIs "float64" $value) (eq (toString $value) (toString (floor $value))) }}
{{- $_ := set $all $name (ternary (printf "%.0f" (float64 $value)) (toString $value) $is_whole) }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{/* Secrets that can only be passed as variables. */}}
{{- define "tollgate.secretEnv" -}}
{{- $redis := .Values.redis }}
{{- $all := dict "REDIS_SENTINEL_AUTH" $redis.sentinelAuth "REDIS_PERSECOND_AUTH" $redis.perSecond.auth }}
{{- $_ := set $all "ADMIN_TOKEN" .Values.admin }}
{{- $_ := set $all "ADMIN_READ_TOKEN" .Values.admin.reader }}
{{- $_ := set $all "VALUES_KEY" .Values.valuesKey }}
{{- range $name, $from := $all }}
{{- if $from.secret }}
- name: {{ $name }}
  valueFrom: { secretKeyRef: { name: {{ $from.secret | quote }}, key: {{ $from.key | quote }} } }
{{- end }}
{{- end }}
{{- end }}

{{/* Volumes, mounted as whole folders: a single file (subPath) would never be updated. */}}
{{- define "tollgate.volumes" -}}
{{- $redis := .Values.redis }}
{{- $secrets := dict "redis-auth" $redis.auth.secret "tls" .Values.tls.secret }}
{{- $_ := set $secrets "admin-tokens" .Values.admin.tokens.secret }}
{{- if .Values.tls.secret }}{{ $_ := set $secrets "client-ca" .Values.tls.clientCa.secret }}{{ end }}
{{- if .Values.rules.managementServer }}{{ $_ := set $secrets "rules-tls" .Values.rules.tls.secret }}{{ end }}
{{- if $redis.tls.enabled }}
{{- $_ := set $secrets "redis-ca" $redis.tls.ca.secret }}
{{- $_ := set $secrets "redis-client" $redis.tls.client.secret }}
{{- end }}
{{- if not .Values.rules.managementServer }}
- name: rules
  configMap: { name: {{ .Values.rules.existingConfigMap | default (printf "%s-rules" (include "tollgate.name" .)) | quote }} }
{{- end }}
{{- with .Values.candidates }}
{{- if or .files .existingConfigMap }}
- name: candidates
  configMap: { name: {{ .existingConfigMap | default (printf "%s-candidates" (include "tollgate.name" $)) | quote }} }
{{- end }}
{{- end }}
{{- range $name, $secret := $secrets }}
{{- if $secret }}
- name: {{ $name }}
  secret: { secretName: {{ $secret | quote }} }
{{- end }}
{{- end }}
{{- end }}
