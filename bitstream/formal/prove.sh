#!/bin/sh
# Bounded proofs by yosys' own SAT solver: prove.sh MODULE DEPTH [SED]. With SED, the module's source is changed by
# that expression first: a mutant, which the proof must refuse. Prints a line and gives the seconds. DEPTH is a number of steps, or two:
# the gate's and, after a slash, that of RNIC_FULL=1.
set -u
module=$1 depth=${2%/*} mutant=${3-}
[ "${RNIC_FULL-}" = 1 ] && depth=${2#*/}
cd "$(dirname "$0")" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cp ../rtl/*.sv "$work"
if [ -n "$mutant" ]; then
	sed -i "$mutant" "$work/$module.sv"
	if cmp -s "../rtl/$module.sv" "$work/$module.sv"; then
		echo "FAIL  $module: the mutant $mutant no longer fits the source"
		exit 1
	fi
fi
files="card_pkg engine_pkg fifo"
case $module in fifo) ;; *) files="$files $module" ;; esac
list=""
for f in $files; do list="$list $work/$f.sv"; done
start=$(date +%s)
yosys -q -l "$work/log" -p "read_verilog -formal -sv $list ${module}_proof.sv; prep -top ${module}_proof; flatten;
	opt_clean -purge; memory_map; opt -full -purge; async2sync; dffunmap; opt_clean -purge;
	tee -o $work/sat sat -prove-asserts -set-assumes -set-def-inputs -seq $depth -ignore_unknown_cells" >"$work/out" 2>&1
seconds=$(($(date +%s) - start))
if grep -q "SAT proof finished - no model found: SUCCESS" "$work/sat" 2>/dev/null; then result=holds
elif grep -q "SAT proof finished - model found: FAIL" "$work/sat" 2>/dev/null; then result=refused
else
	cat "$work/out"
	result=unclear
fi
case "$result/${mutant:+mutant}" in
holds/) echo "ok    $module, $depth steps, $seconds s" ;;
refused/mutant) echo "ok    $module, mutant found, $seconds s: $mutant" ;;
*)
	echo "FAIL  $module, $depth steps: $result, $seconds s ${mutant:+mutant $mutant}"
	[ -f "$work/sat" ] && tail -n 60 "$work/sat"
	exit 1
	;;
esac
