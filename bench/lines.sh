# The lines of bench/run's table, in order; sourced by it.

RENEWALS=${RENEWALS:-1000000}	# of the line bloat

lines()
{
	# one row written under the fence, against no guard
	figure statement-1 'UPDATE fenced in the statement / plain, 1 client' '>= 0.95' / 'bench statement 1' 'bench plain 1'
	figure statement-8 'UPDATE fenced in the statement / plain, 8 clients' '>= 0.95' / 'bench statement 8' 'bench plain 8'
	figure row-1 "UPDATE with proof 'row' / plain, 1 client" '>= 0.95' / 'bench row 1' 'bench plain 1'
	figure row-8 "UPDATE with proof 'row' / plain, 8 clients" '>= 0.95' / 'bench row 8' 'bench plain 8'
	figure setting-1 'UPDATE fenced by the setting / plain, 1 client' '>= 0.93' / 'by_setting 1' 'bench plain 1'
	figure setting-8 'UPDATE fenced by the setting / plain, 8 clients' '>= 0.93' / 'by_setting 8' 'bench plain 8'
	figure trigger-8 'for comparison: a C trigger that does nothing / plain, 8 clients' - / 'bench empty 8' 'bench plain 8'

	# against what people write by hand
	figure hand-8 'UPDATE fenced in the statement / hand-made protocol, 8 clients' '>= 5' / 'bench statement 8' 'bench hand 8'
	figure plpgsql-8 'UPDATE fenced in the statement / guard in PL/pgSQL, 8 clients' '>= 3' / 'bench statement 8' 'bench plpgsql 8'
	figure lose-8 'losing lease_acquire / losing hand-made upsert, 8 clients' '>= 15' / 'bench lose 8' 'bench hand_lose 8'
	figure advisory-8 'for comparison: losing lease_acquire / losing advisory lock (fences nothing), 8 clients' - / \
		'bench lose 8' 'advisory 8'
	figure renew-1 'renewal / hand-made renewal, 1 client' '>= 1.0' / 'bench renew 1' 'bench hand_renew 1'
	figure renew-8 'for comparison: renewals of different leases / hand-made, 8 clients' - / 'bench renew 8' 'bench hand_renew 8'
	figure_redis renew-redis-8 'renewals of different leases / redis renewals (appendfsync always), 8 clients' '>= 1.0' / \
		'bench renew 8' 'redis_renew 8'
	figure_etcd renew-etcd-8 'renewals of different leases / etcd transactions that compare and put, 8 clients' '>= 3' / \
		'bench renew 8' 'etcd_run txn 8'
	figure_etcd alive-etcd-8 'for comparison: renewals of different leases / etcd keep-alives (not durable), 8 clients' - / \
		'bench renew 8' 'etcd_run keepalive 8'

	# rows of many leases in one table, one run a slot, tokens of a lease elsewhere
	figure key-1 'UPDATE fenced in the statement with a key column / under one lease, 1 client' '>= 0.95' / 'bench key 1' 'bench statement 1'
	figure key-8 'UPDATE fenced in the statement with a key column / under one lease, 8 clients' '>= 0.95' / 'bench key 8' 'bench statement 8'
	figure claim-1 'slot claimed and UPDATE / FOR UPDATE, INSERT ON CONFLICT and UPDATE by hand, 1 client' '>= 0.95' / \
		'bench claim 1' 'bench hand_claim 1'
	figure claim-8 'slot claimed and UPDATE / FOR UPDATE, INSERT ON CONFLICT and UPDATE by hand, 8 clients' '>= 2' / \
		'bench claim 8' 'bench hand_claim 8'
	figure observe-1 "UPDATE with proof 'highest' / plain, 1 client" '>= 0.95' / 'bench observe 1' 'bench plain 1'
	figure observe-8 "UPDATE with proof 'highest' / plain, 8 clients" '>= 0.95' / 'bench observe 8' 'bench plain 8'

	# inside the server
	figure bulk 'UPDATE of 100,000 rows that have the token / the same under a C trigger that does nothing, ms' '<= 1.05' / \
		'rows fence_rows 100000' 'rows empty_rows 100000'
	figure bulk-stamp 'the same with rows of an earlier term, which are stamped anew, ms' '<= 1.05' / \
		'old_rows fence_rows' 'old_rows empty_rows'
	figure bulk-key 'UPDATE of 100,000 rows that have the token, with a key column / under one lease, ms' '<= 1.05' / \
		'rows key_rows 100000' 'rows one_rows 100000'
	figure check-again 'lease_check_fence again in a transaction - an empty C function, µs' '<= 0.3' - \
		"again lease_check_fence" "again empty_function"
	figure check-first 'first lease_check_fence of a transaction - an empty C function, µs' '<= 3' - \
		"first lease_check_fence" "first empty_function"

	# many leases, many contenders, an old snapshot
	figure renew-all 'leases renewed a second, 1,000 in one call / one by one, 1 client' '>= 50' / \
		'many 1000 renew_all' 'bench renew_shard 1'
	figure acquire-any 'for comparison: leases taken and given back a second, 100 of 1,000 in one call / one by one, 1 client' - / \
		'many 100 acquire_any' 'bench acquire_one 1'
	figure leases-lose 'losing lease_acquire with 10 leases (A) / with 1,000,000 (B), 8 clients' '<= 1.3' / \
		'of_leases 10 lose_any' 'of_leases 1000000 lose_any'
	figure leases-lose-all 'for comparison: the same with any of the 1,000,000 asked for in turn, each seldom' - / \
		'of_leases 10 lose_any' 'of_leases 1000000 lose_any 1000000'
	figure leases-renew 'renewing lease_acquire with 10 leases (A) / with 1,000,000 (B), 1 client' '<= 1.3' / \
		'of_leases 10 renew_any' 'of_leases 1000000 renew_any'
	figure contenders 'fenced UPDATE with 100 contenders that try once a second / with none, 1 client' '>= 0.9' / \
		'with_contenders 100 1' 'bench statement 1'
	figure contenders-8 'the same, 8 clients' '>= 0.9' / 'with_contenders 100 8' 'bench statement 8'
	figure_campaign waiters-8 'fenced UPDATE with 100 contenders that wait in lease_campaign / with none, 8 clients' '>= 0.9' / \
		'with_waiters 100 8' 'bench statement 8'
	bloat
	plots
}

# by_setting CLIENTS: fenced by leader_lease.fence, set for the connection.
by_setting()
{
	OPTIONS='-c leader_lease.fence={"role":"job","holder":"leader","token":1}' bench setting "$1"
}

# advisory CLIENTS: somebody has the lock.
advisory()
{
	sql -c 'SELECT pg_advisory_lock(1)' -c "SELECT pg_sleep($SECONDS_A_RUN + 2)" >/dev/null &
	sleep 0.5
	bench advisory_lose "$1"
	wait
}

# ms ARG…: what psql says a statement took that stands between \timing on and off.
ms()
{
	sql "$@" >"$WORK/ms"
	sed -nE 's/^Time: ([0-9.]+) ms.*/\1/p' "$WORK/ms"
}

# rows TABLE N: ms of an UPDATE of N rows in one transaction, which holds the fence.
rows()
{
	sql -c "VACUUM $1"
	ms -c BEGIN -c "SELECT lease_require_fence('job', 'leader', 1)" -c '\timing on' \
		-c "UPDATE $1 SET n = n + 1 WHERE id <= $2" -c '\timing off' -c COMMIT
}

# old_rows TABLE: the same with 100,000 rows that an earlier term wrote.
old_rows()
{
	sql -c 'SET session_replication_role = replica' -c "UPDATE $1 SET completed_by_token = 0"
	rows "$1" 100000
}

# again FUNCTION: µs a call, a million calls in one transaction.
again()
{
	ms -c '\timing on' -c "SELECT count($1('job', 'leader', 1)) FROM generate_series(1, 1000000)" |
		awk '{ print $1 / 1000 }'
}

# first FUNCTION: µs a transaction that calls it, in a loop within the server.
first()
{
	ms -c '\timing on' -c "DO \$\$ BEGIN FOR i IN 1..100000 LOOP PERFORM $1('job', 'leader', 1); COMMIT; END LOOP; END \$\$" |
		awk '{ print $1 / 100 }'
}

# many N SCRIPT: leases a second, where each transaction of the script does N, 1 client.
many()
{
	bench "$2" 1 | awk -v n="$1" '{ print $1 * n }'
}

# leases_db NUMBER: a database with that many leases, made when it is first asked for.
leases_db()
{
	[ "$(sql -c "SELECT count(*) FROM pg_database WHERE datname = 'leases$1'")" = 1 ] && return
	client createdb "leases$1"
	DB=leases$1 sql -c 'CREATE EXTENSION leader_lease'
	DB=leases$1 sql -v leases="$1" -f "$WORK/src/bench/sql/leases.sql" >/dev/null
}

# of_leases NUMBER SCRIPT [ASKED]: lease_acquire of one of ASKED (10) of so many.  Losing with 8 clients, renewing with 1,
# since a renewal is mostly the disk's affair, and the more so with 8.
of_leases()
{
	local clients=8

	[ "$2" = lose_any ] || clients=1
	leases_db "$1"
	DB=leases$1 bench "$2" $clients -D leases="$1" -D asked="${3:-10}"
}

# with_contenders N CLIENTS: fenced writes while N sessions try to get the lease, each once a second.
with_contenders()
{
	client pgbench -n -M prepared -f "$WORK/src/bench/sql/lose.sql" -c "$1" -R "$1" -T $((SECONDS_A_RUN + 3)) >/dev/null 2>&1 &
	sleep 2
	bench statement "$2"
	wait
}

# with_waiters N CLIENTS: fenced writes while N sessions wait in lease_campaign.
with_waiters()
{
	client pgbench -n -M simple -f "$WORK/src/bench/sql/campaign.sql" -c "$1" -t 1 -D "wait=$((SECONDS_A_RUN + 3))" \
		>/dev/null 2>&1 &
	sleep 2
	bench statement "$2"
	wait
}

# figure_campaign …: as figure, where the extension has lease_campaign.
figure_campaign()
{
	if asked "$1" && [ -z "$(sql -c "SELECT proname FROM pg_proc WHERE proname = 'lease_campaign'")" ]; then
		echo "left out, since there is no lease_campaign: $1" >&2
		return
	fi
	figure "$@"
}

# renewals N: N renewals of 8 leases by 8 clients; then the share of them that were HOT updates.
renewals()
{
	sql -c 'SELECT pg_stat_reset()' >/dev/null
	client pgbench -n -M prepared -f "$WORK/src/bench/sql/renew.sql" -c 8 -j 2 -t $(($1 / 8)) >"$WORK/pgbench" 2>&1
	sleep 1			# for the statistics of the last backends
	sql -c "SELECT round(n_tup_hot_upd::numeric / n_tup_upd, 4) FROM pg_stat_user_tables WHERE relname = 'leader_lease'"
}

# megabytes: the lease table with its indexes.
megabytes()
{
	sql -c "SELECT round(pg_total_relation_size('leader_lease') / 1048576.0, 3)"
}

# bloat: a hundred thousand renewals; a million under an old snapshot; a few without it; VACUUM; VACUUM FULL.  fsync is
# off, since no time is compared.
bloat()
{
	local before under tps size after full

	begin bloat || return 0
	client createdb bloat
	sql -c 'ALTER SYSTEM SET fsync = off' -c 'SELECT pg_reload_conf()' >/dev/null
	export DB=bloat
	sql -c 'CREATE EXTENSION leader_lease' \
		-c "SELECT count(lease_acquire('renew' || i, 'leader', '20 hours')) FROM generate_series(0, 7) i" >/dev/null
	before=$(renewals 100000)
	(client psql -Xq -c "SET application_name = 'old snapshot'" -c 'BEGIN ISOLATION LEVEL REPEATABLE READ' \
		-c 'SELECT count(*) FROM leader_lease' -c 'SELECT pg_sleep(86400)' >/dev/null 2>&1 || true) &
	sleep 1
	under=$(renewals "$RENEWALS")
	tps=$(sed -nE 's/^tps = ([0-9]+).*/\1/p' "$WORK/pgbench")
	size=$(megabytes)
	sql -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'old snapshot'" >/dev/null
	wait
	renewals 8000 >/dev/null
	sql -c 'VACUUM leader_lease'
	after=$(megabytes)
	sql -c 'VACUUM FULL leader_lease'
	full=$(megabytes)
	unset DB
	sql -c 'ALTER SYSTEM RESET fsync' -c 'SELECT pg_reload_conf()' >/dev/null
	row bloat "HOT share of renewals. Then $RENEWALS under an old snapshot: HOT share $under, $tps a second; MB (A), after VACUUM (B, to be ≤ 1), after VACUUM FULL $full" \
		'>= 0.99' "$before" - - "$(awk -v h="$before" -v m="$after" 'BEGIN { print (h >= 0.99 && m <= 1 ? "yes" : "no") }')" \
		"$size" "$after"
}
