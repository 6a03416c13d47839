# Redis and etcd as peers of bench/run, each on this machine with its log flushed to disk before it answers; sourced by
# it.  They run in $WORK and stop with it.

ETCD_PORT=23790
PEERS=()

# stop_peers: end the servers that we started.
stop_peers()
{
	[ ${#PEERS[@]} = 0 ] || kill "${PEERS[@]}" 2>/dev/null || true
	PEERS=()
}

# peer CMD…: start a server in the background, known to stop_peers.
peer()
{
	mkdir -p "$WORK/peers"
	(cd "$WORK/peers" && exec "$@") >"$WORK/peers/$1.log" 2>&1 </dev/null &
	PEERS+=($!)
}

# until_ready CMD…: wait for a server to answer.
until_ready()
{
	local i

	for ((i = 0; i < 100; i++)); do
		! "$@" >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	die "$1: the server does not answer; $(tail -n 5 "$WORK"/peers/*.log)"
}

peer_versions()
{
	! type redis-server >/dev/null 2>&1 || redis-server --version | sed -E 's/.*v=([0-9.]+).*/, redis \1/' | tr -d '\n'
	! type etcd >/dev/null 2>&1 || etcd --version | sed -nE 's/^etcd Version: (.*)/, etcd \1/p' | tr -d '\n'
}

redis()
{
	redis-cli -s "$WORK/peers/redis" "$@"
}

# figure_redis …: as figure, with redis running, and eight keys in it that have their holder.
figure_redis()
{
	local i

	if asked "$1"; then
		! missing redis-server redis-server && ! missing redis-benchmark redis-tools || return 0
		peer redis-server --port 0 --unixsocket "$WORK/peers/redis" --dir "$WORK/peers" --save '' --appendonly yes \
			--appendfsync always
		until_ready redis ping
		for i in 0 1 2 3 4 5 6 7; do
			redis set "renew:$(printf %012d "$i")" leader PX 72000000 NX >/dev/null
		done
	fi
	figure "$@"
	stop_peers
}

# redis_renew CLIENTS: renewals a second, by the usual script.
redis_renew()
{
	redis-benchmark -s "$WORK/peers/redis" -q -c "$1" -n $((SECONDS_A_RUN * 8000)) -r 8 EVAL \
		"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return redis.error_reply('lost') end" \
		1 renew:__rand_int__ leader 30000000 2>&1 | tr '\r' '\n' |
		sed -nE 's/.*[^0-9.]([0-9.]+) requests per second.*/\1/p' | tail -n 1
}

etcd_client()
{
	ETCDCTL_API=3 etcdctl --endpoints "127.0.0.1:$ETCD_PORT" "$@"
}

# figure_etcd …: as figure, with one node of etcd running, and eight keys in it that hang on leases.
figure_etcd()
{
	local i id url=http://127.0.0.1

	if asked "$1"; then
		! missing etcd etcd-server && ! missing etcdctl etcd-client && ! missing wrk wrk || return 0
		peer etcd --name one --data-dir "$WORK/peers/etcd" --listen-client-urls "$url:$ETCD_PORT" \
			--advertise-client-urls "$url:$ETCD_PORT" --listen-peer-urls "$url:$((ETCD_PORT + 1))" \
			--initial-advertise-peer-urls "$url:$((ETCD_PORT + 1))" --initial-cluster "one=$url:$((ETCD_PORT + 1))"
		until_ready etcd_client endpoint health
		ETCD_LEASES=
		for i in 0 1 2 3 4 5 6 7; do
			id=$(etcd_client lease grant 72000 | grep -oE '[0-9a-f]{16}')
			etcd_client put --lease="$id" "renew$i" leader >/dev/null
			ETCD_LEASES+=" $id"
		done
	fi
	figure "$@"
	stop_peers
}

# etcd_run KIND CLIENTS: transactions or keep-alives a second, through the JSON gateway, since that is what wrk speaks.
etcd_run()
{
	local rate

	ETCD_KIND=$1 ETCD_LEASES=$ETCD_LEASES wrk -t1 -c "$2" -d "${SECONDS_A_RUN}s" -s "$HERE/etcd.lua" \
		"http://127.0.0.1:$ETCD_PORT" >"$WORK/wrk" 2>&1
	! grep -q 'Non-2xx' "$WORK/wrk" || die "$(cat "$WORK/wrk")"
	sed -nE 's/^Requests\/sec: +([0-9.]+)/\1/p' "$WORK/wrk"
}
