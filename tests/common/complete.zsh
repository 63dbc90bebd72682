# Prints what zsh completes at the end of a line, one match a line: zsh -f complete.zsh SCRIPT LINE
#
# Completion needs an interactive zsh: one on a pseudo-terminal sources this file too, and writes its matches to a file.
if [[ -n $COMPLETED ]]; then
    unsetopt prompt_cr prompt_sp
    PROMPT= RPROMPT=
    autoload -Uz compinit
    compinit -D -u
    compadd() {
        # With -O, -A and -D, the matches are for the caller only.
        if [[ ${@[1,(i)(-|--)]} != *-[OAD]\ * ]]; then
            local -a matches
            builtin compadd -A matches "$@"
            (( $#matches )) && print -rl -- "${(@Q)matches}" >>$COMPLETED
        fi
        builtin compadd "$@"
    }
    finish() { print -r -- $'\x02DONE' }
    zle -N finish
    bindkey '^I' complete-word
    bindkey '^X' finish
    source $SCRIPT
    print -r -- $'\x02READY'
    return
fi

zmodload zsh/zpty
export SCRIPT=$1 COMPLETED=$(mktemp)
until_mark() {
    local chunk output= i
    for (( i = 0; i < 600; i++ )); do
        while zpty -r -t inner chunk; do output+=$chunk; done
        [[ $output == *$'\x02'$1* ]] && return
        sleep 0.05
    done
    print -u2 -r -- "no $1 in ${(qqqq)output}"
}
zpty inner zsh -f -i
zpty -w inner "source ${(q)ZSH_ARGZERO:-$0}"
until_mark READY
zpty -n -w inner "$2"$'\t\x18'
until_mark DONE
zpty -d inner
sort -u $COMPLETED
rm -f $COMPLETED
