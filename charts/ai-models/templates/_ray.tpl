{{- /* Pods of Ray, whoever keeps them: a head, in which the operator has the coordinator started, and workers that fetch. */}}

{{- /* What both have in common. */}}
{{- define "ai-models.rayEnv" -}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN_PATH, value: /etc/ai-models/ray/auth_token}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_ENABLE_UV_RUN_RUNTIME_ENV, value: "0"}
- {name: RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO, value: "0"}
- {name: RAY_task_oom_retries, value: "3"}
# A dead or frozen node is noticed in seconds; by default in minutes.
- {name: RAY_health_check_initial_delay_ms, value: "3000"}
- {name: RAY_health_check_period_ms, value: "2000"}
- {name: RAY_health_check_timeout_ms, value: "3000"}
- {name: RAY_health_check_failure_threshold, value: "5"}
- {name: RAY_grpc_client_keepalive_time_ms, value: "10000"}
- {name: RAY_grpc_client_keepalive_timeout_ms, value: "10000"}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "120"}
# A busy node takes its time to start Ray.
- {name: RAY_raylet_start_wait_time_s, value: "120"}
- {name: RAY_agent_register_timeout_ms, value: "120000"}
- {name: RAY_worker_register_timeout_seconds, value: "120"}
# A mover may be lost at any time, so nothing waits for it.
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: "0"}
# Logs of Ray, and the coordinator's as JSON lines, go to the container's standard error.
- {name: RAY_BACKEND_LOG_LEVEL, value: warning}
- {name: RAY_LOGGER_LEVEL, value: warning}
{{- end }}

{{- define "ai-models.rayMounts" -}}
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
{{ include "ai-models.secretMount" "ray" }}
{{- if not .Values.artifacts.bucket }}
- name: store
  mountPath: /var/lib/ai-models/store
{{- end }}
{{- if .Values.artifacts.caSecretName }}
{{ include "ai-models.secretMount" "s3-ca" }}
{{- end }}
{{- if .Values.sources.huggingFace.caSecretName }}
{{ include "ai-models.secretMount" "hub-ca" }}
{{- end }}
{{- end }}

{{- define "ai-models.rayVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 2Gi}
# Ray's object store wants more than the 64 MiB that a container has by itself.
- name: shm
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{ include "ai-models.secretVolume" (list "ray" "ai-models-ray") }}
{{- if not .Values.artifacts.bucket }}
- name: store
  persistentVolumeClaim:
    claimName: ai-models-store
{{- end }}
{{- if .Values.artifacts.caSecretName }}
{{ include "ai-models.secretVolume" (list "s3-ca" "ai-models-s3-ca") }}
{{- end }}
{{- if .Values.sources.huggingFace.caSecretName }}
{{ include "ai-models.secretVolume" (list "hub-ca" "ai-models-hub-ca") }}
{{- end }}
{{- end }}

{{- define "ai-models.rayHead" -}}
metadata:
  labels:
    app: ai-models-ray-head
    {{- include "ai-models.labels" . | nindent 4 }}
    {{- include "ai-models.storeLabel" . | nindent 4 }}
spec:
  {{- include "ai-models.besideStore" . | nindent 2 }}
  serviceAccountName: ai-models-ray
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- include "ai-models.admitted" (list . .Values.ray.head.priorityClassName) | nindent 2 }}
  terminationGracePeriodSeconds: 30
  {{- with .Values.ray.head.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.ray.head.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- include "ai-models.unprivileged" . | nindent 4 }}
  containers:
    - name: ray
      {{- include "ai-models.image" (list . "jobs") | nindent 6 }}
      command: [bash, -c]
      args:
        - |
          {{- .Files.Get "files/ray-head.sh" | nindent 10 }}
      env:
        {{- include "ai-models.rayEnv" . | nindent 8 }}
        - {name: RAY_JOB_START_TIMEOUT_SECONDS, value: "120"}
      ports:
        - {name: gcs, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: coordinator, containerPort: 18270}
      startupProbe:
        tcpSocket: {port: dashboard}
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        tcpSocket: {port: gcs}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      # Not of the coordinator: the operator starts it only when this Pod is Ready.
      readinessProbe:
        tcpSocket: {port: dashboard}
        periodSeconds: 5
        timeoutSeconds: 5
      resources: {{- toYaml .Values.ray.head.resources | nindent 8 }}
      securityContext: {{- include "ai-models.confined" . | nindent 8 }}
      volumeMounts:
        {{- include "ai-models.rayMounts" . | nindent 8 }}
        {{- include "ai-models.secretMount" "coordinator" | nindent 8 }}
        {{- include "ai-models.secretMount" "coordinator-tls" | nindent 8 }}
        {{- if .Values.artifacts.bucket }}
        {{- include "ai-models.secretMount" "s3" | nindent 8 }}
        {{- end }}
        {{- if .Values.sources.huggingFace.credentialsSecretName }}
        {{- include "ai-models.secretMount" "hub" | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "ai-models.rayVolumes" . | nindent 4 }}
    {{- include "ai-models.secretVolume" (list "coordinator" "ai-models-coordinator") | nindent 4 }}
    {{- include "ai-models.secretVolume" (list "coordinator-tls" "ai-models-coordinator-tls") | nindent 4 }}
    {{- if .Values.artifacts.bucket }}
    {{- include "ai-models.secretVolume" (list "s3" "ai-models-s3") | nindent 4 }}
    {{- end }}
    {{- if .Values.sources.huggingFace.credentialsSecretName }}
    {{- include "ai-models.secretVolume" (list "hub" "ai-models-hub") | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "ai-models.rayWorker" -}}
metadata:
  labels:
    app: ai-models-ray-worker
    {{- include "ai-models.labels" . | nindent 4 }}
    {{- include "ai-models.storeLabel" . | nindent 4 }}
spec:
  {{- include "ai-models.besideStore" . | nindent 2 }}
  serviceAccountName: ai-models-ray
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- include "ai-models.admitted" (list . .Values.ray.workers.priorityClassName) | nindent 2 }}
  terminationGracePeriodSeconds: 30
  topologySpreadConstraints: {{- include "ai-models.spread" "ai-models-ray-worker" | nindent 4 }}
  {{- with .Values.ray.workers.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.ray.workers.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- include "ai-models.unprivileged" . | nindent 4 }}
  containers:
    - name: ray
      {{- include "ai-models.image" (list . "jobs") | nindent 6 }}
      command: [bash, -c]
      args:
        - |
          {{- .Files.Get "files/ray-worker.sh" | nindent 10 }}
      env:
        {{- include "ai-models.rayEnv" . | nindent 8 }}
        - {name: AI_MODELS_RAY_HEAD, value: ai-models-ray-head}
        - {name: AI_MODELS_RAY_LABELS, value: ai-models/role=fetch}
        # Those of a lost node may run here too.
        - {name: AI_MODELS_RAY_CPUS, value: "4"}
        # On a node with GPUs, none is taken.
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}
      ports:
        - {name: agent, containerPort: 52365}
      readinessProbe:
        tcpSocket: {port: agent}
        periodSeconds: 5
        timeoutSeconds: 5
      resources: {{- toYaml .Values.ray.workers.resources | nindent 8 }}
      securityContext: {{- include "ai-models.confined" . | nindent 8 }}
      volumeMounts:
        {{- include "ai-models.rayMounts" . | nindent 8 }}
  volumes:
    {{- include "ai-models.rayVolumes" . | nindent 4 }}
{{- end }}

{{- define "ai-models.rayVersion" -}}
2.60.0
{{- end }}

{{- /* KubeRay does not make Pods anew when their template changes, so another image or Ray is another cluster. */}}
{{- define "ai-models.rayCluster" -}}
{{- printf "ai-models-%s" (printf "%s %s" .Values.images.jobs (include "ai-models.rayVersion" .) | sha256sum | trunc 8) }}
{{- end }}
