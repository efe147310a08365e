#!/bin/sh
# make bench: nginx, a naive aiohttp proxy and lanewise in one run, on one core each; writes runs/bench/latest.json.
#   ROWS="nginx lanewise" STAGES=sat,p200 make bench      measures a part
#   ROWS="nginx lanewise lanewise_workers2" STAGES=sat REPEAT=5 make bench      what a second worker costs per request
#   RT=1 make bench                                       real-time class, as root: quiet percentiles
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=$(cd "$(dirname "${PYTHON:-$root/.venv/bin/python}")" && pwd)/python
export OUT="$root/runs/bench" RESDIR="$root/runs/bench/results"
mkdir -p "$OUT/bin" "$RESDIR"

need=
command -v cc >/dev/null 2>&1 || need="$need gcc libc6-dev"
command -v ss >/dev/null 2>&1 || need="$need iproute2"
command -v taskset >/dev/null 2>&1 || need="$need util-linux"
PATH="$PATH:/usr/sbin:/sbin"
command -v nginx >/dev/null 2>&1 || need="$need nginx-light"
if [ -n "$need" ]; then
    if [ "$(id -u)" != 0 ]; then echo "missing:$need. Install it first: apt-get install$need" >&2; exit 1; fi
    # Debian starts a freshly installed nginx on port 80; the bench starts its own.
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $need >/dev/null
    rm -f /usr/sbin/policy-rc.d
fi
for x in mock load; do
    [ "$OUT/bin/$x" -nt "$here/src/$x.c" ] || cc -O2 -Wall -Wextra -o "$OUT/bin/$x" "$here/src/$x.c"
done

mock=${MOCKP:-23001}
row() { # name port command [options]
    name=$1 port=$2 command=$3; shift 3
    case " ${ROWS:-direct nginx aiohttp_naive lanewise} " in *" $name "*) ;; *) return 0 ;; esac
    echo "bench: $name" >&2
    # shellcheck disable=SC2086
    "$python" "$here/measure.py" --name "$name" --port "$port" --cmd "$command" --mock-port "$mock" \
        --repeat "${REPEAT:-1}" ${STAGES:+--stages $STAGES} ${RT:+--rt} "$@" 2>"$RESDIR/$name.err" || { tail -3 "$RESDIR/$name.err" >&2; exit 1; }
}
lanewise=$(dirname "$python")/lanewise
row direct "$mock" ""
row nginx 23010 "nginx -e stderr -c {conf}" --conf "$here/conf/nginx.conf"
row aiohttp_naive 23020 "$python {here}/proxies/aiohttp_naive.py"
row lanewise 23040 "$lanewise serve --config {conf} --backend http://127.0.0.1:{mock} --listen 127.0.0.1:{port} --admin 127.0.0.1:23140" --conf "$here/conf/lanewise.yaml"
case " ${ROWS:-} " in *" lanewise_workers2 "*)
    row lanewise_workers2 23050 "$lanewise serve --config {conf} --backend http://127.0.0.1:{mock} --listen 127.0.0.1:{port} --admin 127.0.0.1:23150 --workers 2" --conf "$here/conf/lanewise.yaml" ;;
esac
"$python" "$here/table.py" "$RESDIR"
"$python" "$here/table.py" --json "$RESDIR" > "$OUT/rows.json"
"$python" "$here/metrics_cost.py" "$OUT/rows.json" > "$OUT/latest.json"
echo "wrote runs/bench/latest.json" >&2
