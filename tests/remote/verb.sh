# Sourced by the stand-ins: `log WORDS...` writes a call to $STAND_IN/log, one line each, with the session's name as ID and
# each script replaced by what it is for; `here TEXT` is a script or a path with the device's directory in place of
# /data/local/tmp.

log() {
    line=
    for word; do
        case $word in
        *setsid*guard* | *'while read'*) word=HOLD ;;
        *'kill -USR1 "$(cat'*) word=BEAT ;;
        *'kill -TERM "$(cat'*) word=END ;;
        *' record --while-exists=x '*) word=CHECK ;;
        *' record --while-exists='*) word=RECORD ;;
        *'sha256sum <"$run/new"'*) word=ADOPT ;;
        *'echo size'*) word=RECORDED ;;
        *'[ ! -e "$run" ]'*) word=GONE ;;
        *'rm -f "$run/alive"'*) word=STOP ;;
        esac
        line="$line${line:+ }$word"
    done
    printf '%s\n' "$line" | sed 's/run\.[0-9a-f]\{16\}/run.ID/g' >>"$STAND_IN/log"
}

here() { printf '%s' "$1" | sed "s|/data/local/tmp|$STAND_IN/device|g"; }
