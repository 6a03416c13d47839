# Shell functions that test/run, test/majors, test/sanitize, demo/run and bench/run share.  Sourced by bash scripts
# that run under `set -euo pipefail`.  The usual order in such a script:
#
#	find_postgres                       # sets PG_CONFIG; installs PostgreSQL where there is none
#	make_workdir                        # sets WORK; emptied, with every server in it stopped, when the script ends
#	build_extension                     # sets PG_CONFIG and PGBIN anew: a private server with the extension in it
#	as_postgres "$PGBIN/initdb" -D "$WORK/data" …
#
# Nothing is installed into the system's PostgreSQL and no existing cluster is touched.

TREE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MAJORS='19 18 17 16 15'

die()
{
	echo "${0##*/}: $*" >&2
	exit 1
}

# as_root CMD…: run CMD as root, by sudo where we are not.
as_root()
{
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "root or sudo is needed for: $*"
	fi
}

# install_packages NAME…: install those Debian packages that are missing.  The package lists are fetched only when the
# ones at hand do not do.
install_packages()
{
	local p missing=() apt log

	for p; do
		dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "please install what Debian calls: ${missing[*]}"
	echo "installing ${missing[*]}" >&2
	apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
	log=$("${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null 2>&1) ||
		log=$("${apt[@]}" update </dev/null 2>&1 &&
			"${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null 2>&1) ||
		die "$log"
}

# install_pgbouncer: Debian's package starts a server: not what was asked for.
install_pgbouncer()
{
	[ ! -x /usr/sbin/pgbouncer ] || return 0
	install_packages pgbouncer
	as_root service pgbouncer stop >/dev/null 2>&1 || true
	as_root update-rc.d pgbouncer disable >/dev/null 2>&1 || true
}

# pg_major PG_CONFIG: its major version, or nothing.
pg_major()
{
	"$1" --version 2>/dev/null | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p'
}

# has_server PG_CONFIG: is there a server of a major that we support, with what it takes to build and test against it?
has_server()
{
	local major
	major=$(pg_major "$1")
	[[ " $MAJORS " = *" ${major:-none} "* ]] &&
		[ -x "$("$1" --bindir)/postgres" ] && [ -e "$("$1" --includedir-server)/postgres.h" ] && [ -e "$("$1" --pgxs)" ]
}

# find_postgres: set PG_CONFIG to the one given, else to that of the newest PostgreSQL installed, else install Debian's.
# Also installs the compiler and make.
find_postgres()
{
	local v

	type gcc make >/dev/null 2>&1 && [ -e /usr/include/stdlib.h ] || install_packages gcc libc6-dev make
	if [ -n "${PG_CONFIG:-}" ]; then
		has_server "$PG_CONFIG" ||
			die "PG_CONFIG=$PG_CONFIG is not of a PostgreSQL 15 to 19 with server headers and PGXS"
	else
		for v in $MAJORS; do
			PG_CONFIG=/usr/lib/postgresql/$v/bin/pg_config
			has_server $PG_CONFIG && break
			PG_CONFIG=
		done
		if [ -z "$PG_CONFIG" ]; then
			PG_CONFIG=$(command -v pg_config || true)
			[ -n "$PG_CONFIG" ] && has_server "$PG_CONFIG" || install_postgres
		fi
	fi
	PG_CONFIG=$("$PG_CONFIG" --bindir)/pg_config	# Debian's /usr/bin/pg_config is a script that chooses one
	export PG_CONFIG
}

# install_postgres: the newest that Debian has here, or the headers for the server that is installed, without letting
# the package make and start a cluster.
install_postgres()
{
	local v conf=/etc/postgresql-common/createcluster.d

	command -v apt-get >/dev/null || die "no PostgreSQL with server headers found: please set PG_CONFIG"
	apt-cache show postgresql-common >/dev/null 2>&1 || as_root apt-get -qq update </dev/null >&2
	for v in $MAJORS none; do
		[ -x /usr/lib/postgresql/$v/bin/postgres ] && break
	done
	[ $v != none ] || for v in $MAJORS none; do
		apt-cache show postgresql-server-dev-$v >/dev/null 2>&1 && break
	done
	[ $v != none ] || die "apt has no PostgreSQL 15 to 19: please set PG_CONFIG"
	as_root sh -c "mkdir -p $conf && echo 'create_main_cluster = false' >$conf/leader_lease.conf"
	(install_packages postgresql-$v postgresql-server-dev-$v) || v=
	as_root sh -c "rm $conf/leader_lease.conf && rmdir --ignore-fail-on-non-empty $conf"
	PG_CONFIG=/usr/lib/postgresql/${v:?}/bin/pg_config
}

# make_workdir: set WORK to a temporary folder, which the user postgres owns when we are root.  At exit, what isolated
# still runs is ended, the folder's servers are stopped and it is removed.  Its path is short, since sockets live in it.
make_workdir()
{
	WORK=$(mktemp -d /tmp/leader_lease.XXXXXX)
	CHILD=
	export WORK
	trap remove_workdir EXIT
	trap 'exit 130' HUP INT TERM
	chmod 755 "$WORK"
	[ "$(id -u)" != 0 ] || chown "$(pg_user)" "$WORK"
}

remove_workdir()
{
	stop_servers "$WORK"
	if [ -n "$CHILD" ]; then
		kill -KILL -- "-$CHILD" 2>/dev/null || true
		wait "$CHILD" 2>/dev/null || true
		stop_servers "$WORK"
	fi
	rm -rf "$WORK"
}

# stop_servers DIR: stop the servers whose data directories lie in DIR, and those alone.
stop_servers()
{
	local file pid

	find "$1" -name postmaster.pid 2>/dev/null | while read -r file; do
		pid=$(head -n 1 "$file")
		[ "$(readlink "/proc/$pid/cwd")" = "$(realpath "$(dirname "$file")")" ] || continue
		kill -QUIT "$pid"
		for _ in $(seq 50); do
			[ -d "/proc/$pid/cwd/" ] || break
			sleep 0.1
		done
	done
}

# pg_user: as whom servers run when we are root, as which they refuse to.
pg_user()
{
	id -un postgres 2>/dev/null || echo nobody
}

# as_postgres CMD…: run CMD as user postgres when we are root, else as ourselves; in an environment of its own, so that
# neither PGHOST nor a language nor another perl or python first in PATH changes the outcome.
as_postgres()
{
	local step=()

	[ "$(id -u)" != 0 ] || step=(runuser -u "$(pg_user)" --)
	"${step[@]}" env -i HOME="$WORK" TMPDIR="$WORK" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
		${PG_CONFIG:+PG_CONFIG="$PG_CONFIG"} ${COPT:+COPT="$COPT"} "$@" </dev/null
}

# isolated CMD…: run CMD, which may be as_postgres …, in a process, memory and mount namespace of its own.  What CMD
# leaves running dies with it, shared memory goes too, and the shell that is the namespace's first process reaps orphans
# at once: some machines take seconds for that or never do it, and meanwhile a killed postmaster looks alive.  Where the
# system allows no namespaces, a subreaper does that last part.  In the background, since bash heeds no signal while it
# waits in the foreground.
isolated()
{
	local ns=(unshare --pid --ipc --mount --fork --kill-child --mount-proc)
	local reaper='
		my $prctl = {x86_64 => 157, aarch64 => 167}->{(POSIX::uname())[4]};
		syscall($prctl, 36, 1, 0, 0, 0) if $prctl;	# PR_SET_CHILD_SUBREAPER
		my $pid = fork // die;
		exec {$ARGV[0]} @ARGV or die if !$pid;
		while (wait != $pid) {}
		exit($? >> 8 || $?);'

	export -f as_postgres pg_user
	[ "$(id -u)" = 0 ] || ns+=(--user --map-current-user)
	if "${ns[@]}" true 2>/dev/null; then
		ns+=(bash -c 'mount -t tmpfs -o mode=1777 shm /dev/shm 2>/dev/null; "$@"; exit $?' init)
	else
		ns=(/usr/bin/perl -MPOSIX= -e "$reaper" bash -c '"$@"' alone)
	fi
	setsid "${ns[@]}" "$@" </dev/null &
	CHILD=$!
	wait "$CHILD" && set -- 0 || set -- $?
	CHILD=
	return "$1"
}

# copy_server DIR: a private copy of the server of PG_CONFIG under DIR, mostly symbolic links, without our extension if
# that is installed.  PostgreSQL finds its files relative to its programs, so the copy uses its own.
copy_server()
{
	local what dir

	for what in bindir pkglibdir sharedir includedir-server; do
		dir=$("$PG_CONFIG" --$what)
		mkdir -p "$1$dir"
		if [ $what = bindir ]; then
			cp -a "$dir/." "$1$dir"
		else
			cp -as "$dir/." "$1$dir"
		fi
	done
	find "$1" -type l -name 'leader_lease*' -delete
	PG_CONFIG=$1$("$PG_CONFIG" --bindir)/pg_config
}

# build_extension: build a copy of this tree in $WORK/src and install it into a private copy of the server.  Sets
# PG_CONFIG to that copy's and PGBIN to its programs.  COPT adds compiler options.
build_extension()
{
	echo "building for $("$PG_CONFIG" --version)" >&2
	copy_server "$WORK/server"
	PGBIN=$("$PG_CONFIG" --bindir)
	mkdir "$WORK/src"
	tar -C "$TREE" --exclude=./.git -cf - . | tar -C "$WORK/src" -xf -
	[ "$(id -u)" != 0 ] || chown -R "$(pg_user)" "$WORK"
	as_postgres make -s -C "$WORK/src" clean >/dev/null
	as_postgres make -s -C "$WORK/src" with_llvm=no all install >&2
}

# count CMD…: run CMD, pass on what it prints except its closing line "N passed, N failed", and add that line's numbers to
# PASSED and FAILED.  A bad exit with nothing failed, and a good one with nothing counted, is one failure.
PASSED=0
FAILED=0
count()
{
	local rc passed=0 failed=0 closing='^[0-9]+ passed, [0-9]+ failed$' tally

	tally=$(mktemp "$WORK/tally.XXXXXX")
	set +e		# "|| rc=$?" would switch it off inside CMD too
	(set -e; "$@") </dev/null 2>&1 | sed -uE -e "/$closing/{w $tally" -e 'd' -e '}'
	rc=${PIPESTATUS[0]}
	set -e
	IFS=' ,' read -r passed _ failed _ < <(tail -n 1 "$tally") || rc=1
	[ $rc = 0 ] || [ ${failed:-0} -gt 0 ] || failed=1
	PASSED=$((PASSED + ${passed:-0}))
	FAILED=$((FAILED + ${failed:-0}))
}

# closing_line: print what count has summed up, and exit accordingly.
closing_line()
{
	echo "$PASSED passed, $FAILED failed"
	exit $((FAILED > 0 || PASSED == 0))
}

# cache_dir: where what takes long to make is kept, a folder of our own.
cache_dir()
{
	local dir=${LEADER_LEASE_CACHE:-/var/tmp/leader_lease.$(id -u)}

	mkdir -p "$dir"
	[ -O "$dir" ] || die "$dir belongs to somebody else"
	echo "$dir"
}

# debian_mirror: the address that apt here takes Debian's packages from.
debian_mirror()
{
	local targets=(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian')

	[ -n "$("${targets[@]}")" ] || as_root apt-get -qq update >&2
	"${targets[@]}" | head -n 1 | grep . || die "apt here has no source of Debian's packages"
}
