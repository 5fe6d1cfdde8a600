"""Mutations of small launch scripts: where isobatch gives an answer, bash gives the same. Run by shells.py
--fuzz N.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from shells import BASH, NOBODY, agrees

from isobatch.errors import InputError
from isobatch.tools.shells.execution import Execution
from isobatch.tools.shells.launches import Launch
from isobatch.tools.shells.state import Shell, is_known

SEEDS = [
    'BS=4\n# BS=8 \\\nBS=16\ntorchrun t.py --bs $BS --lr 1e-4\n',
    'BS=4\ntorchrun t.py --bs $BS\nBS=64\ntorchrun e.py --bs $BS\n',
    'SIZE=7B\nif [ $SIZE = 7B ]; then BS=4; elif [ $SIZE = 13B ]; then BS=2; else BS=16; fi\ntorchrun t.py '
    '--bs $BS\n',
    'torchrun t.py --run exp#1 \\\n  --lr 1e-4 \\\n  --bs 8 # a comment\n',
    'N=2\nG=8\nWORLD=$((N * G))\nACC=$(( 256 / (WORLD * 4) ))\ntorchrun t.py --accum $ACC --world '
    '$((WORLD+1))\n',
    'ARGS=(--lr 1e-4 "a b" --bs 4)\nARGS+=(--wd 0.1)\ntorchrun t.py "${ARGS[@]}" ${ARGS[1]} ${#ARGS[@]}\n',
    'A=" \\\n --lr 1e-4 \\\n --bs 8 \\\n "\nB="$A --x \'y z\'"\ntorchrun t.py $A $B "$A"\n',
    "NAME='a b'\nX=\"$NAME-$NAME\"\ntorchrun t.py --n \"$X\" --m $X --k '$X' --j $'a\\tb' \"\" ''\n",
    'run() { torchrun t.py --lr $1 --bs "$2" "$@"; }\nrun 1e-4 8\n',
    'export CMD="t.py --lr 1e-4"\nL="torchrun --n 8"\n$L $CMD --x\n',
    'BS=${BS:-8}\nLR=${LR:=1e-4}\nX=${Y:+set}\ntorchrun t.py --bs $BS --lr ${LR} --x "$X" ${Z-none}\n',
    'M=llama-7b.v1\ntorchrun t.py ${M%.*} ${M%%-*} ${M#*-} ${M##*.} ${M/7b/13b} ${#M} ${M:0:5} ${M^^}\n',
    'cat <<EOF > out\n--lr 1 $X\nEOF\ntorchrun t.py --lr 2 <<\'E\'\n$Y \\\nE\necho done\n',
    'for lr in 1e-4 3e-4; do torchrun t.py --lr $lr; done\n',
    'i=0\nwhile [ $i -lt 3 ]; do i=$((i+1)); torchrun t.py --i $i; done\n',
    'case $1 in a) BS=1;; *) BS=2;; esac\nS=b\ncase $S in a|b) X=3;; esac\ntorchrun t.py --bs $BS --x $X\n',
    'cd x && torchrun t.py --lr 1 || exit 1\ntrue && BS=4 || BS=8\ntorchrun t.py --bs $BS; torchrun u.py | '
    'cat\n',
    '( BS=4; torchrun t.py --bs $BS )\nBS=2 torchrun t.py --bs "$BS"\n{ BS=8; torchrun t.py $BS; }\n',
    'if [[ $A == "" && 3 -gt 2 ]]; then B=1; fi\n[[ abc == a* ]] && C=2\n[ -n "$B" ] && D=3\ntorchrun t.py '
    '$B $C $D\n',
    'f() { local BS=4; X=$BS; return; X=9; }\nBS=2\nf\ntorchrun t.py $BS $X\n',
    'set -- 1 2 3\nshift\ntorchrun t.py $1 "$@" $#\n',
    'declare -a A=(x "y z")\nreadonly R=4\nexport E=5 F="a b"\ntorchrun t.py "${A[*]}" $R $E $F\n',
    'X=1\neval "torchrun t.py --x \\$X"\n((X++))\n((X > 1)) && torchrun t.py $X $((X > 1 ? 5 : 6))\n',
    'A=x; torchrun t.py "a$A"b\'c\'\\d ; torchrun t.py $A$A "$A $A" "${A}"\n',
    'torchrun t.py --a 1 && torchrun t.py --b 2; torchrun t.py --c 3 & wait\n',
    'i=1\n((i += 2, X = i * 3)) && torchrun t.py $i $X\nfor ((j = 0; j < 3; j++)); do ((j == 1)) && '
    'continue; torchrun t.py $j; done\n',
    'for i in a b c; do\n  if [ $i = b ]; then continue; fi\n  [ "$1" ] && break\n  torchrun t.py $i\n'
    'done\ntorchrun t.py $i\n',
    'f() { declare -i N=$1+1; local -x E=$N; N+=2; torchrun t.py $N $E; }\nf 4\ntypeset -r R=3\ntorchrun '
    't.py $R $N > log$R 2>&1\n',
    'n=0\nuntil [ $n = 3 ]; do let n++ && [ $n = 2 ] && continue; { torchrun t.py $n; } > "log $n"; done\n',
    'L=(1e-4 3e-4)\nfor i in 0 1; do\n  if [ $i = 1 ]; then continue; fi\n  torchrun t.py --lr ${L[$i]}\n'
    'done\n',
    'set -e\nX=2\n[ $X = 2 ] && torchrun t.py 1\nfor ((i = 0; i < 2; i++)); do torchrun t.py $i; done\nlet '
    'i-=1 "X += A[0] + 1"\n[[ $X == 3 ]]\ntorchrun t.py $X $i\n',
    'g() { unset X; }\nf() { local Y=4; g; torchrun t.py $X $Y; }\nX=1\nf || true\nset -e\nf | cat\n'
    '(torchrun t.py $X)\n',
]  # fmt: skip
TOKENS = [
    '"', "'", "\\", "\\\n", "\n", "#", " #", "$", "$X", "${X}", "$A", '"$A"', "${X:-3}", "${X%.*}", "$((",
    "))", "$((1+2))", ";", "&&", "||",
    " | ", " & ", "(", ")", "{", "}", "{ ", "; }", " ", "  ", "\t", "=", "+=", "if ", "fi", "then ", "else ",
    "do ", "done", "[ ", " ]", "[[ ",
    " ]]", "! ", "X=5", "X=5\n", " X=5 ", "A=(1 2)", '"${A[@]}"', "${A[@]}", "<<EOF\n", "EOF\n", "$'", "`",
    "export ", "# c \\\n", ":", "-", "%", "##",
    "1", "0", "8", "a", "x", "BS", "X", "A", "A[0]=", "true", "false", " && ", " || ", "torchrun t.py ",
    "echo ", "exit\n", "return\n", "break\n",
    "continue\n", "local ", "unset X\n", "$1", "$@", '"$@"', "$#", "$?", "f\n", "run ", "case ", "esac", ";;",
    "in ", "for i in 1 2; do ", "1e-4", "--lr ",
    "> out ", "> $X ", "((X++))", "((X > 1)) && ", "declare -i ", "2>&1", "<<< x ", "*", "?", "~", "!", "^",
    ",", ".", "@", "/", "''", '""', "$''", "eval ", "set -- a b\n", "shift\n", "a b", "()", "() { ",
]  # fmt: skip
DRIVER = r"""
ulimit -f 9000 -u 3000 -t 60
__define() {
  torchrun() { ((++__C > 200)) && exit; printf '%s\0' "$__N" torchrun "$@" $'\1' >&9; }
  cat() { :; }
  [() { ((++__C > 400)) && exit; builtin [ "$@"; }
}
__define
mapfile -d '' -t __S <&8
exec 8<&-
__total=${#__S[@]} __at=0
while ((__at < __total)); do
  __size=${__S[__at]}
  (
    ulimit -t 1
    for ((__I = __at + 1; __I <= __at + 3 * __size; __I += 3)); do
      __N=${__S[__I]}
      __C=0
      set --
      eval -- "${__S[__I + 1]}"
      unset -v ${__S[__I + 2]}
      unset -f ${__S[__I + 2]}
      __define
    done
    wait
  )
  ((__at += 3 * __size + 1))
done
"""
"""Reads groups of scripts: their number, and for each its own number, its text and the names in it. A group
shares a subshell, as a new
one for each script takes ten times as long: what a script leaves is unset, and one that differs is asked
again alone."""
APART = re.compile(
    r"\b(exit|exec|return|break|continue|readonly|declare|typeset|set (?!--)|local|wait)\b|&(?!&)|[:?]\?|__"
)
"""Scripts that may end a subshell, or leave in it what cannot be unset."""
GROUP = 25
CHUNK = 2_000
FULL = 8 << 20
"""Bytes of a log that an endless script has filled: the others' lines may be missing."""
MOST = 100
LONG = 1_000
"""Commands that isobatch follows; a script of more has a loop."""
READS = re.compile(r""">&?\s*["']*[*?~/]|\$\([^)]*torchrun|`[^`]*torchrun""")
"""A name of a file that bash refuses; a command in `$( … )`, which is no training."""


def mutated(rng: random.Random) -> str:
    """A seed with one to five changes."""
    text = rng.choice(SEEDS)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 5))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 0, 0, 1, 1, 2, 4, 9)))
        new = rng.choice((rng.choice(TOKENS), rng.choice(TOKENS), "", _piece(rng)))
        text = text[:at] + new + text[end:]
    return mutated(rng) if READS.search(text) else text


def _piece(rng: random.Random) -> str:
    second = rng.choice(SEEDS)
    at = rng.randrange(len(second))
    return second[at : at + rng.choice((1, 3, 8, 20))]


def groups(scripts: list[str], alone: bool) -> bytes:
    """The scripts as the driver reads them."""
    together = [number for number, text in enumerate(scripts) if not alone and not APART.search(text)]
    batches = [together[first : first + GROUP] for first in range(0, len(together), GROUP)]
    batches += [[number] for number in sorted({*range(len(scripts))} - {*together})]
    fields = list[str]()
    for batch in batches:
        fields.append(str(len(batch)))
        for number in batch:
            names = sorted(set(re.findall(r"[A-Za-z_]\w*", scripts[number])) | {"torchrun", "cat", "IFS"})
            fields += [str(number + 1), scripts[number], " ".join(names)]
    return b"".join(field.encode() + b"\0" for field in fields)


def by_bash(scripts: list[str], folder: Path, alone: bool = False) -> dict[int, list[list[str]]]:
    """Returns bash's commands for `torchrun` in each script, by its number from 1; many scripts in one bash.
    Empty where an endless script spoils them.
    """
    subprocess.run(["rm", "-rf", folder / "work"], check=True)
    (folder / "work").mkdir()
    os.chown(folder / "work", NOBODY, NOBODY)
    (folder / "driver").write_text(DRIVER)
    (folder / "scripts").write_bytes(groups(scripts, alone))
    (folder / "log").write_bytes(b"")
    os.chown(folder / "log", NOBODY, NOBODY)
    run = f'exec 8< "{folder}/scripts" 9>> "{folder}/log"; . "{folder}/driver"'
    try:
        subprocess.run(
            [BASH, "-c", run], env={"PATH": "", "HOME": str(folder / "work")}, cwd=folder / "work",
            user=NOBODY, group=NOBODY,
            timeout=300, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}
    if (folder / "log").stat().st_size > FULL:
        return {}
    records: dict[int, list[list[str]]] = {number: [] for number in range(1, len(scripts) + 1)}
    for record in (folder / "log").read_bytes().decode(errors="surrogateescape").split("\1\0")[:-1]:
        number, *words = record.split("\0")[:-1] or [""]
        if not number.isdecimal():
            return {}  # a script that closed or filled the log
        records[int(number)].append(words)
    return records


def by_isobatch(text: str) -> tuple[list[Launch] | None, str]:
    """The launches to be compared; and the verdict where there is nothing to compare: refused, or open, as
    something was taken for granted, and said. A loop without an end is not asked of bash.
    """
    execution = Execution()
    try:
        execution.run(text, Shell(arguments=()))
    except InputError:
        return None, "refused"
    is_missing = any(launch.words[0] not in ("torchrun", "cat") for launch in execution.launches)
    ends = is_missing and "set" in text  # under set -e a command that is not there ends the script
    if ends or execution.unread or execution.paths.goes_on or execution.expansion.may_fail:
        return None, "open"
    if execution.count > LONG:
        return None, "not compared"
    return [
        launch
        for launch in execution.launches
        if launch.words[0] == "torchrun" or not is_known(launch.words[0])
    ], ""


def verdict(read: list[Launch], ran: list[list[str]]) -> str:
    """Equal, open (a part of it depends on the run), or wrong."""
    if all(not launch.when and all(map(is_known, launch.words)) for launch in read):
        return "equal" if sorted(list(launch.words) for launch in read) == sorted(ran) else "wrong"
    return "open" if all(any(agrees(launch.words, words) for launch in read) for words in ran) else "wrong"


def judged(scripts: list[str], folder: Path) -> list[tuple[str, str]]:
    """Returns the verdict on each script, and the difference; bash runs only scripts with an answer of
    isobatch.
    """
    read = [by_isobatch(text) for text in scripts]
    out = [(result, "") for _, result in read]
    questions = [place for place, (launches, _) in enumerate(read) if launches is not None]
    for alone in (False, True):
        bash = by_bash([scripts[place] for place in questions], folder, alone)
        differ = list[int]()
        for number, place in enumerate(questions, 1):
            launches, ran = read[place][0] or [], bash.get(number)
            if ran is None or len(ran) > MOST:
                out[place] = ("not compared", "")
            else:
                result = verdict(launches, ran)
                commands = [(launch.words, launch.when) for launch in launches]
                out[place] = (result, f"read {commands}\n  bash {ran}")
            if out[place][0] not in ("equal", "open"):
                differ.append(place)
        questions = differ
    return out


def fuzz(number: int, rng: random.Random) -> None:
    """Prints the counts, and each wrong script."""
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        folder.chmod(0o755)
        for first in range(0, number, CHUNK):
            scripts = [mutated(rng) for _ in range(min(CHUNK, number - first))]
            for text, (result, why) in zip(scripts, judged(scripts, folder), strict=True):
                counts[result] += 1
                if result == "wrong":
                    print(f"-----\n{text}\n  {why}", flush=True)
            if first % (CHUNK * 10) == 0:
                print(dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    print(dict(counts), f"{time.monotonic() - began:.0f} s")
