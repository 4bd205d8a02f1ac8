# Ray's head. Wants: POD_IP.
# A shell stays above it: Ray does not start as the first process of a container, and somebody must reap what its
# children leave. SIGTERM is passed on.
set -u
ray start --head --block --disable-usage-stats --no-redirect-output --labels=ai-models/role=head \
  --node-ip-address="$POD_IP" --port=6379 --dashboard-host=0.0.0.0 --dashboard-port=8265 \
  --num-cpus=0 --num-gpus=0 --object-store-memory=80000000 --include-log-monitor=false \
  --node-manager-port=6380 --object-manager-port=6381 --runtime-env-agent-port=6382 --dashboard-agent-grpc-port=6383 \
  --metrics-export-port=6384 --ray-client-server-port=6385 --dashboard-agent-listen-port=52365 \
  --min-worker-port=10002 --max-worker-port=10999 &
pid=$!
code=1
trap 'kill -TERM "$pid"' TERM INT
while kill -0 "$pid" 2>/dev/null; do
  wait "$pid"
  code=$?
done
exit "$code"
