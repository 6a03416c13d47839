# The plots of bench/run, drawn by gnuplot as SVG; sourced by it.  Each is a line that can be asked for by its name.  One
# run a point: they show a shape, the table has the figures.

PLOTS=(plot-clients plot-leases plot-rows plot-contenders)

plots()
{
	plot_clients
	plot_leases
	plot_rows
	plot_contenders
}

# begin_plot NAME: as begin, where there is gnuplot.
begin_plot()
{
	begin "$1" || return 1
	! missing gnuplot gnuplot-nox || return 1
	echo "$1"
}

# draw NAME XLABEL YLABEL TITLE…: plot $WORK/NAME.dat, whose first column is x, and draw each further one as a line.
draw()
{
	local name=$1 i=1 title plot=

	{
		cat <<-END
			set terminal svg size 760,440 font "sans-serif,13" background "white"
			set encoding utf8
			set output "$HERE/$name.svg"
			set xlabel "$2"
			set ylabel "$3"
			set logscale x
			set yrange [0:*]
			set key outside right
			set grid y
			${PLOT_OPTIONS:-}
		END
		for title in "${@:4}"; do
			i=$((i + 1))
			plot+="${plot:+, }\"$WORK/$name.dat\" using 1:$i title \"$title\" with linespoints linewidth 2"
		done
		echo "plot $plot"
	} | gnuplot
}

# point NAME X CMD…: run each CMD, which prints a number, and add a line to NAME's data.
point()
{
	local name=$1 values=$2 cmd

	for cmd in "${@:3}"; do
		values+=" $($cmd)"
	done
	echo "$values" | tee -a "$WORK/$name.dat"
}

plot_clients()
{
	local c

	begin_plot plot-clients || return 0
	for c in 1 2 4 8 16 32 64; do
		point plot-clients $c "bench plain $c" "bench statement $c" "bench row $c" "by_setting $c" "bench hand $c" \
			"bench plpgsql $c"
	done
	PLOT_OPTIONS='set logscale x 2' draw plot-clients 'clients' 'updates a second' 'no guard' 'fenced in the statement' \
		"proof 'row'" 'fenced by the setting' 'hand-made protocol' 'guard in PL/pgSQL'
}

# us_each SCRIPT ARG…: microseconds a transaction with one client.
us_each()
{
	bench "$1" 1 "${@:2}" | awk '{ print 1000000 / $1 }'
}

plot_leases()
{
	local n

	begin_plot plot-leases || return 0
	for n in 10 1000 100000 1000000; do
		leases_db $n
		DB=leases$n point plot-leases $n "us_each lose_any -D leases=$n -D asked=10" \
			"us_each renew_any -D leases=$n -D asked=10"
	done
	PLOT_OPTIONS='set logscale y; set yrange [10:*]' draw plot-leases 'leases' 'µs a call, round trip and commit included' \
		'lease_acquire, losing' 'lease_acquire, renewing'
}

# us_row TABLE N: µs a row of an UPDATE of N rows, the best of five.
us_row()
{
	local i

	for i in 1 2 3 4 5; do
		rows "$1" "$2"
	done | sort -g | head -n 1 | awk -v n="$2" '{ print $1 * 1000 / n }'
}

plot_rows()
{
	local n

	begin_plot plot-rows || return 0
	for n in 1 10 100 1000 10000 100000; do
		point plot-rows $n "us_row plain_rows $n" "us_row empty_rows $n" "us_row fence_rows $n"
	done
	PLOT_OPTIONS='set logscale y; set yrange [1:*]' draw plot-rows 'protected rows written in one transaction' 'µs a row' \
		'no guard' 'C trigger that does nothing' 'guard'
}

plot_contenders()
{
	local n

	begin_plot plot-contenders || return 0
	for n in 1 3 10 30 100 200; do
		point plot-contenders $n "with_contenders $n 8"
	done
	draw plot-contenders 'contenders that try once a second' 'updates a second, 8 clients of the leader' 'fenced in the statement'
}

plots_markdown()
{
	local name

	for name in "${PLOTS[@]}"; do
		[ ! -e "$HERE/$name.svg" ] || printf '![%s](%s.svg)\n\n' "$name" "$name"
	done
}
