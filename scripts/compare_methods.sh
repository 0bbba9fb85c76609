#!/bin/sh
# Makes a table of the paper's shape with the shipped model: compare_methods.sh TABLE MCSA DIRECTORY [OPTION...]
#   1  all methods                      4  granularity of keys x grouping of queries, the density executed matched
#   3  the components, one by one       5  what the cached residual adds to other selections
# In all of them mc-sparse is the method of the paper; mc-sparse+tail has means of what is not kept besides.
# Table 7 is `mcsa bench group`.  OPTIONs go to `mcsa compare`: --frames 24 --height 96 --width 96 --steps 20,
# --seeds 0,1, --backend cuda.  The table is printed and kept as DIRECTORY/tableTABLE.md.  What is measured is kept in
# DIRECTORY/methods.json clip by clip, for all tables: an interrupted call goes on from there, and clips that two tables
# share are made once.  One directory is one length, model and machine; `mcsa compare` refuses to mix them.
# To be called at the top of the tree.
set -eu
[ $# -ge 3 ] || { sed -n '2,10s/^# //p' "$0" >&2; exit 2; }
table=$1 mcsa=$2 directory=$3
shift 3

published=bsa,svg,svg2,svg-ear,pisa,sol,sparge,xattn,adaspa,wa-rs,chipmunk
case $table in
1) set -- --methods $published,mc-sparse --runs bench/ours.txt "$@" ;;
3) set -- --methods bsa,bsa+reuse,bsa+token,bsa+group,mc-sparse,mc-sparse+tail "$@" ;;
4) set -- --methods bsa+reuse,kmeans+block,pddp+block,bsa+token,kmeans+token,bsa+group "$@" ;;
5) set -- --methods bsa,bsa+residual,bsa+reuse,bsa+reuse+residual,pisa,pisa+residual,bsa+group,mc-sparse "$@" ;;
*) echo "compare_methods: there is no table $table; there are 1, 3, 4 and 5" >&2; exit 2 ;;
esac
mkdir -p "$directory"
exec "$mcsa" compare --model models/tiny-t2v --prompts bench/captions.txt --density 0.10,0.15,0.25 --schedule paper \
    --report "$directory/methods.json" --markdown "$directory/table$table.md" --verbose "$@"
