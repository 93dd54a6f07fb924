#!/bin/sh
# Runs difftest against each deliberate fault; every one must be found (number 9 is no fault: it must not be).
cd "$(dirname "$0")" && make -s && d=../../build/tests/diff && gcc -O1 -shared -fPIC -o $d/mutants.so mutants.c || exit 2
missed=0
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	out=$(MUTANT=$i LD_PRELOAD=$d/mutants.so $d/difftest --sequences 600 2>&1)
	if [ $? -eq 0 ]; then found=no; else found=yes; fi
	want=yes; [ $i -eq 9 ] && want=no
	[ $found = $want ] || { missed=$((missed + 1)); echo "WRONG:"; }
	echo "mutant $i: found $found: $(echo "$out" | head -n 2 | tr '\n' ' ')"
done
echo "$missed wrong"
[ $missed -eq 0 ]
