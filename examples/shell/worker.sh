#!/bin/bash
# A worker in bash, with psql alone, that works only while it leads. Copy it.
#
#     examples/shell/run
#
# It competes for the lease LEASE_ROLE. While it leads, it completes one row of the table job after another (see
# ../schema.sql), each with the fencing token of its term. The PG* variables say where the database is. SIGTERM or
# SIGINT: it finishes the job in hand, or stops waiting, gives the lease back and exits 0. (Signal the shell alone, not
# its children: KillMode=mixed for systemd.)
#
# There is no heartbeat in the background. A process that renews beside the shell would go on after the shell was killed
# or stopped: nobody would work, and nobody else could lead. So the shell itself renews, between all that it does, and
# whatever stops the shell stops the renewals. It is the job that runs in the background, on a lifeline (see job).
#
# Two clocks guard the work. The shell's own stops it early: it begins nothing after the deadline of its term. That is
# no proof, since a pause can come right after the look at the clock. The proof is the fence: the database refuses a
# write that shows the token of a term that is over (SQLSTATE LF001).
#
# Each statement has a psql, and so a connection, of its own, and a time limit that leaves room for the next renewal.
# psql sends plain statements and prepares nothing: behind pgbouncer any pool mode will do. Values go in as psql
# variables, which :'name' quotes; they are never pasted into the SQL.
#
# Needs bash 5.1, psql, and of coreutils sleep and timeout; Linux for /proc/uptime.

set -u
export LC_ALL=C                                 # for decimal points
export PGAPPNAME=${PGAPPNAME:-${WORKER_NAME:-shell}}

role=${LEASE_ROLE:-mail}
ttl=${LEASE_TTL:-10}
printf -v work_s %.3f "${WORK_MS:-200}e-3"
printf -v ttl_ms %.0f "${ttl}e3"                # whatever is not in seconds is whole milliseconds
# A new holder id for every start. With a fixed one, a restarted process would carry on its predecessor's term.
printf -v holder '%s-%08x' "${WORKER_NAME:-shell}" "$SRANDOM"

token='' slot='' row='' sqlstate='' why='' nap='' leaving='' unsure='' status=''
now=0 asked=0 deadline=0 next_beat=0 failures=0 failed=0

trap 'leaving=1; [[ $nap ]] && kill "$nap" 2>/dev/null' TERM INT
trap '' PIPE                                    # a job that is gone must not take the shell with it

say() { echo "$holder $*"; }

# The time since boot (CLOCK_BOOTTIME): nobody can set it, and it goes on while the machine is suspended.
clock() { local up; read -r up _ </proc/uptime; now=$((10#${up/./} * 10)); }

seconds() { printf '%d.%03d\n' $(($1 / 1000)) $(($1 % 1000)); }

# pause MS, or until a signal comes. bash runs a trap during wait, but not during a command in the foreground.
pause() {
    local s
    s=$(seconds "$1")
    sleep "$s" <&- >&- 2>&- &
    nap=$!
    [[ $leaving ]] || wait "$nap"
    { kill "$nap"; wait "$nap"; } 2>/dev/null
    nap=''
}

# ask MS SQL: run one statement with a time limit; its result is in row. When it fails, why says so, and sqlstate is the
# server's or 08006 (no connection, or no answer in time: then SIGINT has made psql send a cancel request).
ask() {
    local reply
    row='' sqlstate=08006 why='no connection, or no answer in time'
    (($1 > 0)) || return
    reply=$(timeout -s INT -k 1 "$(seconds "$1")" psql -XqAt -v role="$role" -v holder="$holder" -v ttl="$ttl" \
        -v token="$token" -v slot="$slot" <<<"$2;"$'\n\\echo :SQLSTATE') || return
    sqlstate=${reply##*$'\n'}
    row=${reply%"$sqlstate"} row=${row%$'\n'}
    why="SQLSTATE $sqlstate"
    [[ $sqlstate == 00000 ]]
}

# Try until the lease is ours. The deadline counts from before the request: the server's ttl began later than that.
compete() {
    local granted retry_after
    token=''
    until [[ $leaving ]]; do
        clock; asked=$now
        unsure=1                                # until there is an answer, we may lead without knowing it
        if ask "$ttl_ms" "
            SELECT token, floor(extract(epoch FROM ttl) * 1000)::bigint,
                   ceil(extract(epoch FROM retry_after) * 1000)::bigint
              FROM lease_attempt(:'role', :'holder', make_interval(secs => :'ttl'))"
        then
            unsure=''
            IFS='|' read -r token granted retry_after <<<"$row"
            if [[ $token ]]; then
                deadline=$((asked + granted)) next_beat=$((asked + ttl_ms / 3))
                return
            fi
            ((retry_after < 1000)) || retry_after=1000
            ((retry_after < ttl_ms / 2)) || retry_after=$((ttl_ms / 2))
            pause $((retry_after + RANDOM % 100))
        else
            back_off
        fi
    done
}

# Half of the pause is random, so that workers that lost the same server do not come back as one.
back_off() {
    local ms
    clock
    ((now - failed < 10000)) || failures=0      # a term is no success: what fails may be the work
    failed=$now ms=$((failures < 5 ? 100 << failures : 2000))
    say "reconnecting: $why"
    ((failures += 1))
    pause $((ms / 2 + RANDOM % (ms / 2)))
}

# Does the term live? The uptime is cut to 10 ms.
live() {
    clock
    why='the deadline has passed'
    ((deadline)) || why='the database says that the term is over'
    ((now + 10 < deadline))
}

# Renew the term if that is due. False when it is over. When there is no answer, the old deadline stands.
beat() {
    live || return
    ((now >= next_beat)) || return 0
    asked=$now
    if ask $((ttl_ms / 3)) "
        SELECT floor(extract(epoch FROM granted) * 1000)::bigint
          FROM lease_renew(:'role', :'holder', :'token', make_interval(secs => :'ttl')) granted"
    then
        # NULL: the term is over
        deadline=$((row ? asked + row : 0)) next_beat=$((asked + ttl_ms / 3))
    else
        next_beat=$((now + ttl_ms / 10))
    fi
    live
}

# What a statement of the leader may take: the next renewal must still come in time after it.
limit() { clock; echo $((deadline - now - ttl_ms / 3)); }

# The job itself, in a process of its own; prints its exit status. Standard input is the lifeline: each line says for
# how many seconds the job may go on. If none comes in time, because the shell is stopped or has lost its term, or at
# its end, because the shell is gone, the job is killed: nothing of ours is left to work past the deadline.
job() {
    local work guard left
    read -r left || return                      # by then the shell has its ends of the pipes
    sleep "$work_s" <&- >&- &                   # the work. One process: if it has children, kill its process group
    work=$!
    { while read -r -t "$left" left; do :; done; kill "$work"; } <&0 >&- 2>/dev/null &
    guard=$!
    wait "$work"
    echo $?
    kill "$guard"
} 2>/dev/null

# Run the job, and renew meanwhile. False when the term is over. status is the job's, or empty if it was killed.
work() {
    local from lifeline pid
    coproc JOB { job; }
    pid=$JOB_PID
    exec {from}<&"${JOB[0]}"- {lifeline}>&"${JOB[1]}"-     # moved, since bash closes its own when the job is done
    while beat; do
        seconds $((deadline - now)) 1>&"$lifeline" 2>/dev/null
        # a line: done; a timeout, which is more than 128: time to renew; end of file: it was killed
        read -r -t "$(seconds $((next_beat > now ? next_beat - now : 1)))" -u "$from" status
        (($? > 128)) || break
    done
    exec {from}<&- {lifeline}>&-                # the end of the lifeline ends the job
    wait "$pid"
    live
}

# Complete jobs. 0: asked to leave; 1: the term is over; 2: the connection is lost.
lead() {
    say "leads token=$token"
    until [[ $leaving ]]; do
        beat || return 1
        ask "$(limit)" "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1" || return 2
        slot=$row
        if [[ ! $slot ]]; then
            pause $((ttl_ms / 3 < 1000 ? ttl_ms / 3 : 1000))
            continue
        fi
        work || return 1
        if [[ $status != 0 ]]; then
            echo "$holder failed slot=$slot: status $status" >&2
            pause 1000
            continue
        fi
        beat || return 1
        # The same statement takes the fence and stamps the row with the token, or fails with LF001.
        if ask "$(limit)" "
            UPDATE job
               SET worker = :'holder', completed_at = clock_timestamp(),
                   completed_by_token = lease_require_fence(:'role', :'holder', :'token')
             WHERE slot = :'slot' AND completed_at IS NULL RETURNING slot"
        then
            [[ ! $row ]] || say "completed slot=$row token=$token"
        else
            [[ $sqlstate == LF001 ]] && return 1
            return 2
        fi
    done
}

until [[ $leaving ]]; do
    compete
    [[ $token ]] || continue
    unsure=1
    lead
    result=$?
    if ((result > 0)); then
        say "lost token=$token: $why"
    fi
    if ((result == 2)) && [[ ! $leaving ]]; then
        back_off
    fi
done

# Give back whatever term is ours. Asks the database, which knows better after an attempt without an answer.
if [[ $unsure ]] && ask $((ttl_ms / 3)) "
    SELECT CASE WHEN lease_release(role, holder_id, fencing_token) THEN fencing_token END
      FROM lease_status WHERE role = :'role' AND holder_id = :'holder' AND live" && [[ $row ]]
then
    say "released token=$row"
fi
say exits
