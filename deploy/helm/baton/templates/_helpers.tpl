{{/* Names and labels. */}}
{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "baton.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "baton.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ include "baton.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "baton.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.authSecret" -}}
{{- default (printf "%s-auth" (include "baton.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{/* The entries of the Secret with the keys: those that the values name, or that the chart makes. */}}
{{- define "baton.authEntries" -}}
{{- if .Values.auth.existingSecret -}}
{{- .Values.auth.entries | toJson -}}
{{- else -}}
{{- $entries := list -}}
{{- if .Values.auth.apiKey }}{{ $entries = append $entries "api-key" }}{{ end -}}
{{- if .Values.auth.adminKey }}{{ $entries = append $entries "admin-key" }}{{ end -}}
{{- $entries | toJson -}}
{{- end -}}
{{- end -}}

{{/* An address of a pod as a part of a URL. */}}
{{- define "baton.podAddress" -}}
{{- if eq .Values.ipFamily "IPv6" -}}[$(POD_IP)]{{- else -}}$(POD_IP){{- end -}}
{{- end -}}

{{/* Values that contradict each other. Each is a sentence, with the name of the value. */}}
{{- define "baton.check" -}}
{{- $auth := .Values.auth -}}
{{- $entries := include "baton.authEntries" . | fromJsonArray -}}
{{- if and $auth.existingSecret (or $auth.apiKey $auth.adminKey) -}}
{{- fail "auth.existingSecret has the keys already: leave auth.apiKey and auth.adminKey empty" -}}
{{- end -}}
{{- $keyed := or (has "api-key" $entries) (has "api-keys" $entries) -}}
{{- if and $auth.open $keyed -}}
{{- fail "auth.open says that clients need no key, but auth gives one: remove one of them" -}}
{{- end -}}
{{- if not (or $auth.open $keyed) -}}
{{- fail "auth: clients need a key. Give auth.existingSecret or auth.apiKey, or set auth.open=true to let everyone in who reaches the Service" -}}
{{- end -}}
{{- $monitor := .Values.metrics.podMonitor -}}
{{- if and $monitor.enabled (not (or $auth.open $monitor.keySecret (has "api-key" $entries))) -}}
{{- fail "metrics.podMonitor.keySecret is needed: /metrics needs an API key, and `auth` has none in plain text" -}}
{{- end -}}
{{- if and (eq (int .Values.gateway.workers) 0) (eq (int .Values.workers.replicas) 0) -}}
{{- fail "workers.replicas and gateway.workers are both 0: nothing would compute" -}}
{{- end -}}
{{- $reserved := dict "model" "model" "host" "service" "port" "service.port" "workers" "gateway.workers" "standby" "workers.replicas" "models" "model (one for each release)" "api_key" "auth" "admin_key" "auth" "api_keys_file" "auth" "allowed_hosts" "gateway.settings.allowed_hosts" "tls_cert" "tls" "tls_key" "tls" "listen_workers" "join" "keys_dir" "join" "join" "join" "server_key" "join" "key_file" "join" "health_file" "join" "cache_dir" "volumes.cache" "metrics_names" "metrics.names" "trusted_gateways" "trustedGateways" "shutdown_grace_s" "gateway.shutdownGraceSeconds" -}}
{{- range $where, $settings := dict "settings" .Values.settings "gateway.settings" .Values.gateway.settings "workers.settings" .Values.workers.settings -}}
{{- range $name, $value := $settings -}}
{{- if and (hasKey $reserved $name) (not (and (eq $where "gateway.settings") (eq $name "allowed_hosts"))) -}}
{{- fail (printf "%s.%s: the chart sets it; use %s" $where $name (get $reserved $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.workers.replicas) 0 -}}
{{- range $name := list "gatewaySecret" "serverKey" "workerSecret" -}}
{{- if not (get $.Values.join $name) -}}
{{- fail (printf "join.%s is needed for workers.replicas: `baton worker-keys` makes the keys, see docs/scaling.md" $name) -}}
{{- end -}}
{{- end -}}
{{- range $number := until (int .Values.workers.replicas) -}}
{{- if not (hasKey $.Values.join.publicKeys (printf "worker-%d" $number)) -}}
{{- fail (printf "join.publicKeys has no key of worker-%d, and workers.replicas is %d" $number (int $.Values.workers.replicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $volume := .Values.volumes -}}
{{- if and $volume.size $volume.existingClaim -}}
{{- fail (printf "volumes.%s has size and existingClaim: give one of them" $name) -}}
{{- end -}}
{{- if and $volume.size (eq (int $.Values.workers.replicas) 0) -}}
{{- fail (printf "volumes.%s.size is for the pods of workers.replicas, which is 0; use existingClaim for the gateway's" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings as lines of TOML: its strings, numbers, booleans and arrays are those of JSON. */}}
{{- define "baton.toml" -}}
{{- range $name, $value := . }}
{{ $name }} = {{ toJson $value }}
{{- end -}}
{{- end -}}

{{/* The image sets BATON_CPU and BATON_THREADS, which would take precedence over the file. */}}
{{- define "baton.imageVariables" -}}
{{- range $name := list "cpu" "threads" -}}
{{- if hasKey $ $name }}
- {name: BATON_{{ upper $name }}, value: {{ get $ $name | toString | quote }}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What all pods have in common. */}}
{{- define "baton.podSecurity" -}}
serviceAccountName: {{ include "baton.fullname" . }}
automountServiceAccountToken: false
# A Service named baton would set BATON_PORT, which is a setting.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "baton.container" -}}
image: {{ include "baton.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* A volume hides the graphs of the image: those that it lacks are copied into it. What is replaced may be mapped by another
pod, so that it is unlinked and not written over. */}}
{{- define "baton.seedCache" -}}
- name: seed-cache
  {{- include "baton.container" . | nindent 2 }}
  command: [cp, --recursive, --update, --remove-destination, "--preserve=mode,timestamps", /var/cache/baton, /cache]
  resources:
    requests: {cpu: 100m, memory: 64Mi}
    limits: {memory: 256Mi}
  volumeMounts:
    - {name: cache, mountPath: /cache}
{{- end -}}

{{/* Of pods with workers. */}}
{{- define "baton.computeVariables" -}}
# Below the volume, which everybody may write to: such a folder is refused.
- {name: BATON_CACHE_DIR, value: /cache/baton}
- {name: HF_HOME, value: /models/hub}
{{- with .Values.hub.tokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: token}
{{- end }}
{{- end -}}

{{- define "baton.mounts" -}}
- {name: config, mountPath: /etc/baton}
- {name: run, mountPath: /run/baton}
- {name: home, mountPath: /home/baton}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "baton.computeMounts" -}}
- {name: cache, mountPath: /cache}
- {name: models, mountPath: /models}
{{- end -}}

{{- define "baton.volumes" -}}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: home
  emptyDir: {sizeLimit: 64Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- end -}}

{{/* A volume of a pod: a shared claim, or a directory that ends with it. */}}
{{- define "baton.volume" -}}
- name: {{ .name }}
  {{- if .volume.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .volume.existingClaim }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end -}}

{{- define "baton.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
