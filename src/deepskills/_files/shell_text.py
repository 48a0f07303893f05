"""The text of the shell commands that run, start and stop scripts, with marks for what differs. Pure.

Everything is plain POSIX shell; what only Linux or only some systems have is used where it is there.
"""

import re

_MARK = re.compile("@([A-Z]+)@")


def filled(text: str, **values: str) -> str:
    """Return a text with values in place of its marks, in one pass: a value that holds a mark stays as it is."""
    return _MARK.sub(lambda mark: values[mark[1]], text)


START = r"""for _ds_job in @PLACES@; do [ -r "$_ds_job/job" ] && break; done
_ds_text=$(cat "$_ds_job/job" 2>/dev/null)
rm -f ./.deepskills-@TOKEN@/job "$_ds_job/job"
if [ -z "$_ds_text" ]; then
  rm -rf @PLACES@ @DIRECTORY@ 2>/dev/null
  printf '\ndeepskills-%s report failure no-job\n' @TOKEN@
else
  _ds_places='@PLACES@'
  eval "$_ds_text"
fi
"""
"""Reads the job file and removes it before anything else happens; without one, the job may have been stopped before."""

END = r"""_ds_marked() {
  grep -l -e 'DEEPSKILLS_RUN=@TOKEN@' -e ' locks  *@LIMIT@ ' /proc/[0-9]*/environ /proc/[0-9]*/limits 2>/dev/null
}
_ds_each() {
  kill -"$1" -- "-$_ds_pid" 2>/dev/null || kill -"$1" "$_ds_pid" 2>/dev/null
  for _ds_proc in $(_ds_marked); do
    _ds_proc=${_ds_proc#/proc/}
    kill -"$1" "${_ds_proc%%/*}" 2>/dev/null
  done
  for _ds_proc in /proc/[0-9]*; do
    { read -r _ds_line <"$_ds_proc/stat"; } 2>/dev/null || continue
    _ds_line=${_ds_line##*) }
    _ds_line=${_ds_line#* * * }
    [ "${_ds_line%% *}" = "$_ds_pid" ] && kill -"$1" "${_ds_proc#/proc/}" 2>/dev/null
  done
}
_ds_end() {
  _ds_each TERM
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do kill -0 -- "-$_ds_pid" 2>/dev/null || break; sleep 0.1 || sleep 1; done
  for _ds_try in 1 2 3 4 5; do _ds_each KILL; [ -n "$(_ds_marked)" ] || break; done
}
"""
"""Ends the script's process group, its session, and whatever carries one of its marks.

The marks are a variable, and a limit on file locks: Linux hands it on to every child and applies it nowhere, so a
process that left its session with an empty environment still has it.
"""

STOP = r"""_ds_dir=@DIRECTORY@
rm -rf @PLACES@ 2>/dev/null
if mkdir -m 700 "$_ds_dir" 2>/dev/null; then
  @MARK@
  [ -z "$(_ds_marked)" ] || _ds_end
else
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do [ -s "$_ds_dir/pid" ] && break; [ -d "$_ds_dir" ] || exit 0; sleep 0.1; done
  read -r _ds_pid <"$_ds_dir/pid" && _ds_end
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do [ -d "$_ds_dir" ] || exit 0; sleep 0.1; done
  rm -rf "$_ds_dir"
  [ -z "$(_ds_marked)" ] || _ds_end
fi 2>/dev/null
:
"""
"""A job that starts later finds its directory taken, and ends; one whose shell was killed is cleaned up after.

A script may have removed the directory itself, or have started after the wait for it; its marks are found all the same.
"""

RUN = (
    r"""unset _ds_pid
_ds_dir=@DIRECTORY@
_ds_fail() {
  [ "$1" = no-room ] || rm -rf "$_ds_dir"
  [ -z "$_ds_places" ] || rm -rf $_ds_places 2>/dev/null
  printf '\ndeepskills-%s report failure %s\n' @TOKEN@ "$1"
  exit 0
}
"""
    + END
    + r"""_ds_mask=$(umask)
umask 077
if ! mkdir "$_ds_dir" 2>/dev/null; then
  [ -e "$_ds_dir/stop" ] && _ds_fail stopped
  _ds_fail no-room
fi
trap '[ -z "$_ds_pid" ] || _ds_end; rm -rf "$_ds_dir" $_ds_places; exit 143' HUP INT TERM
mkfifo "$_ds_dir/pipe" "$_ds_dir/a" "$_ds_dir/b" "$_ds_dir/c" || _ds_fail no-room
umask "$_ds_mask"
export PATH
_ds_script=@SCRIPT@
{ @PRESENT@; } 2>/dev/null || _ds_fail no-script
set -- "$_ds_script" @ARGUMENTS@
@INTERPRETERS@_ds_group=$(command -v setsid)
_ds_perl=$(command -v perl)
head -c @KEEP@ <"$_ds_dir/a" >"$_ds_dir/head" 2>/dev/null & _ds_r1=$!
tail -c @KEEP@ <"$_ds_dir/b" >"$_ds_dir/tail" 2>/dev/null & _ds_r2=$!
wc -c <"$_ds_dir/c" >"$_ds_dir/total" & _ds_r3=$!
(trap '' PIPE; exec tee "$_ds_dir/a" "$_ds_dir/b" <"$_ds_dir/pipe" >"$_ds_dir/c" 2>/dev/null) & _ds_tee=$!
(
trap - HUP INT TERM
ulimit -S -x @LIMIT@ 2>/dev/null || ulimit -S -w @LIMIT@ 2>/dev/null
@EXPORTS@export DEEPSKILLS_RUN=@TOKEN@
if [ -n "$_ds_group" ]; then exec "$_ds_group" "$@"
elif [ -n "$_ds_perl" ]; then exec "$_ds_perl" -e 'setpgrp(0,0); exec @ARGV; exit 127' "$@"
else exec "$@"; fi
) >"$_ds_dir/pipe" 2>&1 </dev/null & _ds_pid=$!
echo "$_ds_pid" >"$_ds_dir/pid"
(
trap 'kill "$_ds_nap" 2>/dev/null; exit 0' TERM
_ds_n=0
while [ "$_ds_n" -lt @SECONDS@ ]; do
  [ -e "$_ds_dir/done" ] && exit 0
  sleep 1 & _ds_nap=$!
  wait "$_ds_nap"
  [ -d "$_ds_dir" ] || kill -0 "$$" 2>/dev/null || kill -0 "$_ds_pid" 2>/dev/null || exit 0
  _ds_n=$((_ds_n + 1))
done
trap '' TERM
_ds_end
for _ds_reader in "$_ds_tee" "$_ds_r1" "$_ds_r2" "$_ds_r3"; do
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$_ds_reader" 2>/dev/null || break; sleep 0.1 || sleep 1; done
  kill -KILL "$_ds_reader" 2>/dev/null
done
exit 9
) >/dev/null 2>&1 </dev/null & _ds_watch=$!
wait "$_ds_pid" 2>/dev/null; _ds_code=$?
wait "$_ds_tee" "$_ds_r1" "$_ds_r2" "$_ds_r3" 2>/dev/null
echo 2>/dev/null >"$_ds_dir/done"
kill "$_ds_watch" 2>/dev/null
wait "$_ds_watch" 2>/dev/null; _ds_late=$?
[ "$_ds_late" -eq 9 ] || _ds_late=0
printf '\ndeepskills-%s report %d %d %d\n' @TOKEN@ "$_ds_code" "$_ds_late" "$(cat "$_ds_dir/total")"
base64 <"$_ds_dir/head"
printf 'deepskills-%s tail\n' @TOKEN@
base64 <"$_ds_dir/tail"
printf 'deepskills-%s end\n' @TOKEN@
rm -rf "$_ds_dir" $_ds_places
"""
)
"""Runs the script, keeps both ends of its output, and reports.

On a busy machine the script may end before the process that watches the time has begun. A shell loses a signal that
comes so early, so there is a file as well that says that the script is done.
"""
