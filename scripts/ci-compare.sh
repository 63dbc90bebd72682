#!/bin/sh
# Records two builds of an engine, alternately, compares them with `profinfer diff`, and writes the result as Markdown. A step
# of the action .github/actions/compare; docs/DIFF.md says how to use it.
#
# usage: ci-compare.sh BASE HEAD DIRECTORY
#   BASE, HEAD  commands for sh, each one run of an engine: the same model, prompt and number of tokens
#   DIRECTORY   gets base-N.pfi, head-N.pfi and comment.md
# In the environment: PROFINFER (the program, profinfer), RUNS (of each, 3), FAIL_ABOVE (3%), and further arguments, separated
# by spaces, of `profinfer record` (RECORD_ARGS) and `profinfer diff` (DIFF_ARGS).
# Exits as `profinfer diff --fail-above`: 0 not slower, 3 and 4 slower, 5 undecided; 1 if something failed.
set -eu

die() { echo "ci-compare.sh: $*" >&2; exit 1; }
[ $# = 3 ] || die "usage: ci-compare.sh BASE HEAD DIRECTORY"
base=$1 head=$2 runs=${RUNS:-3}
case $runs in '' | *[!0-9]* | 0) die "RUNS is '$runs': give a number of runs" ;; esac
profinfer=$(command -v "${PROFINFER:-profinfer}") || die "no program '${PROFINFER:-profinfer}': give its path in PROFINFER"
case $profinfer in /*) ;; *) profinfer=$PWD/$profinfer ;; esac
mkdir -p "$3"
to=$(cd "$3" && pwd)
# What an earlier comparison has left is no result of this one.
rm -f "$to"/base-*.pfi "$to"/head-*.pfi "$to/comment.md"

bases='' heads='' i=1
while [ "$i" -le "$runs" ]; do
    for side in base head; do
        echo "ci-compare.sh: recording $side, $i of $runs"
        if [ $side = base ]; then command=$base; else command=$head; fi
        # shellcheck disable=SC2086 # arguments separated by spaces
        "$profinfer" record --quiet ${RECORD_ARGS:-} -o "$to/$side-$i.pfi" -- sh -c "$command" ||
            die "recording $side failed: exit $? of '$command'"
    done
    bases="$bases${bases:+,}base-$i.pfi" heads="$heads${heads:+,}head-$i.pfi"
    i=$((i + 1))
done

cd "$to"
code=0
# shellcheck disable=SC2086
"$profinfer" diff "$bases" "$heads" --fail-above "${FAIL_ABOVE:-3%}" --markdown ${DIFF_ARGS:-} >result || code=$?
case $code in 0 | 3 | 4 | 5) ;; *) die "the runs cannot be compared" ;; esac
{
    # The action finds its comment by the first line.
    printf '<!-- profinfer compare -->\n### profinfer: from base (A) to head (B)\n\n'
    cat result
    printf '\nRuns of each, recorded alternately: %s.\n' "$runs"
} >comment.md
rm result
cat comment.md
exit "$code"
