{{- /* Deckhouse gives settings below aiModels and images by digest. Every template begins with this: afterwards both are where
Helm alone would have them, whoever installs. Nothing is rendered here. */}}
{{- define "ai-models.settings" -}}
{{- if .Values.aiModels }}
{{- include "ai-models.put" (list .Values (omit .Values.aiModels "internal" "registry")) }}
{{- $base := printf "%s/%s" (dig "registry" "base" "" .Values.aiModels | trimSuffix "/") .Chart.Name }}
{{- range $name, $digest := dig "modulesImages" "digests" "aiModels" dict (default dict .Values.global) }}
{{- $_ := set $.Values.images $name (printf "%s@%s" $base $digest) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Values of the second mapping into the first, false and empty ones too, which sprig's merge would leave out. */}}
{{- define "ai-models.put" -}}
{{- $into := index . 0 }}
{{- range $name, $value := index . 1 }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $into $name)) }}
{{- include "ai-models.put" (list (get $into $name) $value) }}
{{- else }}
{{- $_ := set $into $name $value }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ai-models.labels" -}}
heritage: deckhouse
module: ai-models
app.kubernetes.io/name: ai-models
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* An image by its name among the settings: (list . "operator"). */}}
{{- define "ai-models.image" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 -}}
image: {{ required (printf "images.%s: want an image, got nothing" $name) (index $root.Values.images $name) | quote }}
imagePullPolicy: {{ $root.Values.images.pullPolicy }}
{{- end }}

{{- /* How Pods are pulled and how important they are: (list . <priority class>). */}}
{{- define "ai-models.admitted" -}}
{{- with index . 1 }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with (index . 0).Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* With ai-models.confined: what PodSecurity asks for at its level "restricted", and a root file system that is not written. */}}
{{- define "ai-models.unprivileged" -}}
runAsNonRoot: true
runAsUser: 64535
runAsGroup: 64535
fsGroup: 64535
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ai-models.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Pods of one app on different nodes, as far as there are nodes. */}}
{{- define "ai-models.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app: {{ . }}}
  matchLabelKeys: [pod-template-hash]
{{- end }}

{{- /* Pods that use a claim which one node has are on one node, so that a class of a network disk may be used too: the label by
which they are found, and the rule. */}}
{{- define "ai-models.storeLabel" -}}
{{- if and (not .Values.artifacts.bucket) (eq .Values.embedded.accessMode "ReadWriteOnce") -}}
ai.deckhouse.io/store: embedded
{{- end }}
{{- end }}

{{- define "ai-models.besideStore" -}}
{{- with include "ai-models.storeLabel" . -}}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: { {{- . -}} }
{{- end }}
{{- end }}

{{- define "ai-models.coordinatorUrl" -}}
{{- if .Values.coordinator.url }}
{{- .Values.coordinator.url }}
{{- else if .Values.dataplane.enabled }}
{{- printf "https://ai-models-coordinator.%s.svc:18270" .Release.Namespace }}
{{- else }}
{{- fail "coordinator.url: want https://<host>:<port>, since dataplane.enabled is false, got nothing" }}
{{- end }}
{{- end }}

{{- /* Where the registry sends readers of blobs. */}}
{{- define "ai-models.redirectUrl" -}}
{{- .Values.artifacts.endpoint | default (printf "https://s3.%s.amazonaws.com" .Values.artifacts.region) }}
{{- end }}

{{- /* Arguments of `python3 -m aimodels_jobs.host`, as JSON: paths of Secrets that ray.yaml mounts, never what is in them. */}}
{{- define "ai-models.coordinatorCommand" -}}
{{- $artifacts := .Values.artifacts }}
{{- $hub := .Values.sources.huggingFace }}
{{- $workers := toString .Values.ray.workers.replicas }}
{{- $words := list "--on" "ai-models/role=head" "--bind" "0.0.0.0" "--port" "18270"
  "--token-file" "/etc/ai-models/coordinator/token"
  "--tls-cert" "/etc/ai-models/coordinator-tls/tls.crt" "--tls-key" "/etc/ai-models/coordinator-tls/tls.key"
  "--movers" $workers "--nodes" $workers "--ready-seconds" "60" "--log-level" .Values.logLevel }}
{{- if $artifacts.bucket }}
{{- $words = concat $words (list "--store" (printf "s3://%s" $artifacts.bucket) "--s3-region" $artifacts.region
  "--s3-credentials" "/etc/ai-models/s3") }}
{{- with $artifacts.endpoint }}{{ $words = concat $words (list "--s3-endpoint" .) }}{{ end }}
{{- if not $artifacts.usePathStyle }}{{ $words = append $words "--s3-virtual-host" }}{{ end }}
{{- if $artifacts.caSecretName }}{{ $words = concat $words (list "--s3-ca-file" "/etc/ai-models/s3-ca/ca.crt") }}{{ end }}
{{- else }}
{{- $words = concat $words (list "--store" "/var/lib/ai-models/store") }}
{{- end }}
{{- with $hub.endpoint }}{{ $words = concat $words (list "--hub-endpoint" .) }}{{ end }}
{{- if $hub.credentialsSecretName }}{{ $words = concat $words (list "--hub-token-file" "/etc/ai-models/hub/token") }}{{ end }}
{{- if $hub.caSecretName }}{{ $words = concat $words (list "--hub-ca-file" "/etc/ai-models/hub-ca/ca.crt") }}{{ end }}
{{- range .Values.sources.allowedPrivateCIDRs }}{{ $words = concat $words (list "--allow-private-cidr" .) }}{{ end }}
{{- with .Values.proxy.httpProxy }}{{ $words = concat $words (list "--http-proxy" .) }}{{ end }}
{{- with .Values.proxy.httpsProxy }}{{ $words = concat $words (list "--https-proxy" .) }}{{ end }}
{{- with .Values.proxy.noProxy }}{{ $words = concat $words (list "--no-proxy" (join "," .)) }}{{ end }}
{{- if and .Values.delivery.enabled (eq .Values.delivery.type "NodeCache") }}{{ $words = append $words "--agents" }}{{ end }}
{{- if eq .Values.sources.pickle "Refuse" }}{{ $words = append $words "--refuse-pickle" }}{{ end }}
{{- toJson $words }}
{{- end }}

{{- /* A Secret as files below /etc/ai-models: its volume, (list <name> <Secret>), and its mount, <name>. A Pod waits for it. */}}
{{- define "ai-models.secretVolume" -}}
- name: {{ index . 0 }}
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
    optional: false
{{- end }}

{{- define "ai-models.secretMount" -}}
- name: {{ . }}
  mountPath: /etc/ai-models/{{ . }}
  readOnly: true
{{- end }}
