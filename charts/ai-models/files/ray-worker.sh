# A Ray worker that joins the head, and leaves it for the next one when that was lost: by itself it would go on asking a
# head that does not know it, and kubelet would wait minutes between restarts of a container.
# Wants: POD_IP; RAY_AUTH_TOKEN_PATH; AI_MODELS_RAY_HEAD, the head's host; AI_MODELS_RAY_CPUS, how many movers may run here;
# AI_MODELS_RAY_LABELS, what the node says of itself.
set -u
stop=
ray=
trap 'stop=yes; [ -z "$ray" ] || kill -TERM "$ray"' TERM INT

# The name of the head's session, another one after each of its starts; nothing when the head does not answer.
session() {
  timeout 5 bash -c '
    exec 3<>"/dev/tcp/$AI_MODELS_RAY_HEAD/8265" || exit
    printf "GET /api/version HTTP/1.0\r\nHost: ray\r\nAuthorization: Bearer %s\r\n\r\n" "$(<"$RAY_AUTH_TOKEN_PATH")" >&3
    while read -r line <&3 || [ -n "$line" ]; do
      [[ $line =~ \"session_name\":\ *\"([^\"]+)\" ]] && echo "${BASH_REMATCH[1]}"
    done' 2>/dev/null
}

while [ -z "$stop" ]; do
  joined=$(session)
  if [ -n "$joined" ]; then
    ray start --address="$AI_MODELS_RAY_HEAD:6379" --block --disable-usage-stats --no-redirect-output \
      --labels="$AI_MODELS_RAY_LABELS" --node-ip-address="$POD_IP" \
      --num-cpus="$AI_MODELS_RAY_CPUS" --num-gpus=0 --object-store-memory=80000000 --include-log-monitor=false \
      --node-manager-port=6380 --object-manager-port=6381 --runtime-env-agent-port=6382 \
      --dashboard-agent-grpc-port=6383 --metrics-export-port=6384 --dashboard-agent-listen-port=52365 \
      --min-worker-port=10002 --max-worker-port=10999 &
    ray=$!
  fi
  while [ -n "$ray" ] && kill -0 "$ray" 2>/dev/null; do
    sleep 2 &
    wait -n "$ray" "$!"
    found=$(session)
    if [ -n "$found" ] && [ "$found" != "$joined" ]; then
      echo "ray-worker: the head was lost, there is another one" >&2
      kill -TERM "$ray"
      wait "$ray"
    fi
  done
  ray=
  sleep 1
done
