#!/bin/sh
# The table of TCP facts (facts.c) plain and under "$@" (for example: ../../build/netacc_run): must be the same.
# facts.expected is the table as recorded on Linux 6.18, for reading.
cd "$(dirname "$0")" && make -s || exit 2
d=../../build/tests/diff
[ $# -gt 0 ] || set -- ../../build/netacc_run
$d/facts > $d/facts.plain && "$@" $d/facts > $d/facts.netacc || { echo "FAIL facts: the program failed"; exit 1; }
if diff -U 30 $d/facts.plain $d/facts.netacc > $d/facts.diff; then
	echo "ok facts: $(grep -c '^\[' $d/facts.plain) states, no difference"
else
	grep -E '^[-+ ]\[|^[-+] ' $d/facts.diff
	echo "FAIL facts: $(grep -c '^+ ' $d/facts.diff) lines differ"
	exit 1
fi
