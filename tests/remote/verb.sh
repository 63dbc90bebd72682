# Sourced by the stand-ins: `log WORDS...` writes a call to $STAND_IN/log, one line each, with the session's name as ID and
# each script replaced by what it is for; if the file $STAND_IN/kill names that, the caller is killed, and the call goes on.
# `here TEXT` is a script or a path with the device's directory in place of /data/local/tmp.

log() {
    line= kill=$(cat "$STAND_IN/kill" 2>/dev/null)
    for word; do
        case $word in
        *setsid*guard* | *'while read'*) word=HOLD ;;
        *'kill -USR1 "$g"'*) word=BEAT ;;
        *'kill -TERM "$g"'*) word=END ;;
        *' record --while-exists=x '*) word=CHECK ;;
        *' record --while-exists='*) word=RECORD ;;
        *'sha256sum <"$run/new"'*) word=ADOPT ;;
        *'echo size'*) word=RECORDED ;;
        *'cat >"$run/new"'*) word=RECEIVE ;;
        *'cat "$run/run.pfi"'*) word=TRACE ;;
        *'[ ! -e "$run" ]'*) word=GONE ;;
        *'rm -f "$run/alive"'*) word=STOP ;;
        esac
        [ "$word" != "$kill" ] || kill -KILL $PPID
        line="$line${line:+ }$word"
    done
    printf '%s\n' "$line" | sed 's/run\.[0-9a-f]\{16\}/run.ID/g' >>"$STAND_IN/log"
}

here() { printf '%s' "$1" | sed "s|/data/local/tmp|$STAND_IN/device|g"; }
