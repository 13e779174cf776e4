# SPDX-License-Identifier: Apache-2.0
# plots.gnuplot - draws docs/bench-*.svg from the tables in the directory `figures` (scripts/bench --plots), except from
# missing tables.
has(table) = system(sprintf("test -e %s/%s.tsv && echo 1 || echo 0", figures, table)) + 0
table(name) = sprintf("%s/%s.tsv", figures, name)

set datafile separator "\t"
set style data histograms
set style histogram clustered gap 2
set style fill solid noborder
set grid ytics lc rgb "#dddddd"
set border 3 lc rgb "#666666"
set tics nomirror textcolor rgb "#333333"
set key outside top center horizontal font ",12" samplen 2
set linetype 1 lc rgb "#1f6feb"
set linetype 2 lc rgb "#d29922"
set linetype 3 lc rgb "#2da44e"
set linetype 4 lc rgb "#a371f7"
set terminal svg size 900,360 font "sans-serif,13" background "#ffffff"

if (has("rails")) {
	set output "docs/bench-rails.svg"
	set title "A pod's rails: rdma-cni, and macvlan + host-local + sbr once for each rail"
	set xlabel "rails"
	set ylabel "ms (logarithmic)"
	set logscale y
	set yrange [1:*]
	plot for [column=2:5] table("rails") using column:xtic(1) title columnheader(column)
	unset logscale y
}
if (has("moves")) {
	set output "docs/bench-moves.svg"
	set title "A pod's rails that move: rdma-cni, and host-device + static + sbr once for each rail"
	set xlabel "rails"
	set ylabel "ms (logarithmic)"
	set logscale y
	set yrange [1:*]
	plot for [column=2:5] table("moves") using column:xtic(1) title columnheader(column)
	unset logscale y
}
if (has("leases")) {
	set output "docs/bench-leases.svg"
	set title "An address from a range, when none and 50,000 are held"
	unset xlabel
	set ylabel "ms (logarithmic)"
	set logscale y
	set yrange [0.1:*]
	set xtics rotate by -20 font ",10"
	plot for [column=2:3] table("leases") using column:xtic(1) title columnheader(column)
	set xtics norotate font ",13"
	unset logscale y
}
set yrange [0:*]
if (has("passing")) {
	set output "docs/bench-passing.svg"
	set title "What a pod without RDMA pays"
	unset xlabel
	set ylabel "ms"
	set xtics rotate by -20 font ",10"
	plot for [column=2:3] table("passing") using column:xtic(1) title columnheader(column)
	set xtics norotate font ",13"
}
if (has("crowd")) {
	set output "docs/bench-crowd.svg"
	set title "Pods that start, and end, at the same moment"
	unset xlabel
	set ylabel "pods a second"
	plot for [column in "2 5"] table("crowd") using int(column):xtic(1) title columnheader(int(column))
	set output "docs/bench-crowd-wait.svg"
	set title "How long one of them waits"
	set ylabel "ms"
	plot for [column in "3 4 6 7"] table("crowd") using int(column):xtic(1) title columnheader(int(column))
}
if (has("present")) {
	set output "docs/bench-present.svg"
	set title "Attachments that the node has already: ADD and DEL of 8 rails"
	set xlabel "attachments"
	set ylabel "ms"
	plot for [column=2:5] table("present") using column:xtic(1) title columnheader(column)
}
