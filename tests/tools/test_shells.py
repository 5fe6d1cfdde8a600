"""Shell scripts are read as bash reads them: each case is asked of bash too."""

import subprocess
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.errors import InputError
from isobatch.tools.page import Unknown
from isobatch.tools.shells.execution import Execution
from isobatch.tools.shells.state import Shell
from isobatch.tools.shells.training import arguments

SAME = {
    "a comment that ends in a backslash": "BS=4\n# BS=8 \\\nBS=16\ntorchrun t.py --bs $BS",
    "the value at the point of the command": "BS=4\ntorchrun t.py --bs $BS\nBS=64",
    "a hash inside a word": "torchrun t.py --run_name exp#1 --lr 1e-4 # and no more",
    "a comment between continued lines": "A=' \\\n  --lr 1 \\\n'\ntorchrun t.py $A \\\n  --bs 4 \\\n",
    "conditions": "SIZE=7B\nif [ $SIZE = 7B ]; then BS=4; elif [ $SIZE = 13B ]; then BS=2; else BS=16; fi\n"
    "torchrun t.py $BS",
    "double brackets": 'M=hybrid_8b\nif [[ "$M" == hybrid_* && -n $M ]]; then A=1; fi\n[[ 3 -gt 10 ]] || '
    "B=2\ntorchrun t.py $A $B",
    "case": "M=7B\ncase $M in\n  7B|8B) BS=4 ;;\n  *) BS=1 ;;\nesac\ntorchrun t.py $BS",
    "sums": "N=4\nG=8\nA=$((256 / (N * G * 2)))\ntorchrun t.py $A $((A > 4)) $((-7 % 3)) $(( -7 / $N * (A + "
    "1) )) $((N == 4 ))",
    "expr": 'N=4\nA=$(expr 16 / $N)\nB=$(expr 7 - 2 \\* 3)\ntorchrun t.py $A $B $(expr 16 % "$N") "$(expr '
    '5)"',
    "defaults": 'X=${X:-8}\nY=${Y:-a b}\nZ=set\ntorchrun t.py $X "$Y" $Y ${Z:+yes} ${W-} "${W:-"c d"}"',
    "arrays": 'A=(--lr 1e-4 "a b")\nA+=(--wd 0.1)\ntorchrun t.py "${A[@]}" ${A[2]} "${A[*]}" $A ${A[-1]}',
    "a text for an array": 'A=(--lr 1)\nA="${A[@]} --wd 0"\nA+=.1\nB=()\nB=x\nB+=(y)\nfor A in q; do '
    'torchrun t.py $A "${A[@]}" "${B[@]}"; done',
    "quotes": "N='a b'\ntorchrun t.py \"$N\" $N '$N' a\"b\"'c'\\ d \"\\$N \\a\" \"\" ''",
    "a here-document": "cat <<EOF > /dev/null\n--lr 9 $X\nEOF\ntorchrun t.py --lr 1 <<'E'\n\t--bs 8 \\\nE\n"
    "echo",
    "a here-document in a variable": "read -r -d '' A <<EOF\nt.py \\\n  --lr $LR\nEOF\ntorchrun $A",
    "local and exported values": "A=1\ng() { local A=$A-2 B=$A; torchrun t.py $A $B; }\ng\nexport A=3 "
    "B=$A\ntorchrun t.py $A $B",
    "a local value of a subshell": "BS=2\ng() { (local BS; BS=3); BS=4; }\ng\ntorchrun t.py $BS",
    "a function": 'run() {\n  local BS=$1\n  torchrun t.py --bs $BS "$@"\n}\nBS=2\nrun 8 "a b"\ntorchrun '
    "u.py $BS",
    "exported to a shell inside": "export L='torchrun --n 8' C='t.py --lr 1'\nbash -c \"$L --rank \\$R $C\"",
    "a shell inside with arguments": "bash -c 'torchrun t.py \"$1\" $#' name 'a b'",
    "a loop": "for lr in 1e-4 3e-4; do\n  if [ $lr = 3e-4 ]; then torchrun t.py --lr $lr; fi\ndone",
    "a subshell": "BS=4\n(BS=8; torchrun t.py $BS)\nBS=2 torchrun t.py $BS\n{ BS=9; }\ntorchrun t.py $BS",
    "and, or": "true && A=1 || A=2\nfalse && B=1 || B=2\ntorchrun t.py $A $B; torchrun u.py | tee log",
    "eval": "A='--name \"x y\"'\neval torchrun t.py $A\ntorchrun t.py $A",
    "arguments": 'g() { shift; torchrun t.py "$@" $# $1; }\ng 1 "2 3"',
    "an empty variable": 'E=""\ntorchrun t.py $E "$E" a$E $E$E',
    "a counter": "i=0\n((i++))\n((i += 2, j = i * 2)) && torchrun t.py $i $j\n((i - 3)) || torchrun u.py\n"
    "((i--)); torchrun t.py $i $((2 ** 3 > 7))",
    "a computation in another": "A=(1 2 3)\nB='A[1] + 010'\ntorchrun t.py $((B * 2)) $((0 && 1 / 0)) "
    "$((0xff & ~A[2]))",
    "a local value that is local already": "g() { local A=1 B; local C=2; local A C; torchrun t.py "
    "$A $C; }\nB=3\ng",
    "ways out of a loop": "for i in 1 2 3 4; do\n  if [ $i = 2 ]; then continue; fi\n  for j in 1 2; do "
    "break; done\n  [ $i = 4 ] && break\n  torchrun t.py $i $j\ndone\ntorchrun t.py $i",
    "a counting loop": "for ((i = 0; i < 3; i++)); do\n  ((i == 1)) && continue\n  torchrun t.py "
    "$i\ndone\ni=0\nwhile [ $i -lt 2 ]; do ((i++)); torchrun u.py $i; done\nuntil ((i == "
    "0)); do ((i--)); done\ntorchrun t.py $i",
    "a loop without an end of its own": "n=0\nwhile true; do\n  ((n++))\n  ((n > 2)) && break\n  torchrun "
    "t.py $n\ndone\ntorchrun t.py $n",
    "files": 'L=log\ntorchrun t.py 1 > $L 2>&1\n{ torchrun t.py 2; } > "a b"\ntorchrun t.py 3 >> x$((1 + '
    '1)) <<< "$L"',
    "an end": "torchrun t.py 1\nexit 0\ntorchrun t.py 2",
    "a counting loop that may not fail": "set -e\nfor ((i = 0; i < 2; i++)); do torchrun t.py $i; done\nfor "
    "((i = -1; i < 0; i++)); do echo; done\ntorchrun t.py $i",
    "failures that end nothing": "set -eo pipefail\nf() { false && true; }\nf || A=1\nfalse && A=2\n! "
    "true\n{ [ 1 = 2 ] && A=3; }\nif [[ a == b && c == c ]]; then A=4; fi\nfor "
    "i in 1 2; do [ $i = 2 ] && A=5; done\nwhile false; do A=6; done\nset +e\n"
    "false; (( 0 ))\nbash -c 'set +e; false; torchrun u.py'\ntorchrun t.py $A",
    "an index and a wrap": "A=(1 2)\n((B = A[1] * 3))\ntorchrun t.py $B $((01777777777777777777777))",
    "a local value that is unset": "X=1\ng() { local X=2; unset X; X=3; torchrun t.py $X; }\ng\ntorchrun "
    "t.py $X",
}
STUB = (
    '__say() { { printf "%s\\0" "$@"; printf "\\1\\0"; } >&9; }; torchrun() { __say torchrun "$@"; }; '
    "export -f __say torchrun; exec 9>&1 >/dev/null\n"
)


def bash(text, folder):
    """Returns bash's commands for torchrun."""
    if not Path("/bin/bash").exists():
        pytest.skip("there is no bash")
    ran = subprocess.run(
        ["/bin/bash", "-c", STUB + text],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        check=False,
        timeout=60,
    )
    return [record.split("\0")[:-1] for record in ran.stdout.split("\1\0")[:-1]]


@pytest.mark.parametrize("name", SAME)
def test_the_words_are_those_of_bash(name, tmp_path):
    text = SAME[name]
    execution = Execution()
    outside = dict.fromkeys(("R", "E", "W", "A", "B", "LR", "X", "Y"))
    execution.run(text, Shell(arguments=(), variables=outside, exported=set(outside)))
    ran = bash(text, tmp_path)
    assert ran
    assert [list(launch.words) for launch in execution.launches if launch.words[0] == "torchrun"] == ran


REFUSED = {
    "a shift too many": ("g() { shift 2; torchrun t.py $#; }\ng 1", "line 1: shift of more arguments than "
                                                                    "there are"),
    "a quote": ("torchrun t.py --lr '1", "line 1: a quote ' is not closed"),
    "fi": ("if true; then\n  torchrun t.py --lr 1\n", "line 3: fi is missing"),
    "an operator": ("A=1\n&& torchrun t.py --lr 1", "line 2: a command is missing"),
    "a sum": ("A=1\nB=$((A / 0))\ntorchrun t.py --lr 1", r"line 2: \$\(\(A / 0\)\) cannot be computed"),
    "recursion": ("f() { f; }\nf", "more than 40 deep"),
    "a sum that sets": ("A=$((B = 4))", "line 1: a variable that is set in a computation is not read"),
    "an end without a value": ("A=''\necho ${A:?no}", r"line 2: \$\{A:\?no\} ends the script"),
    "a value at an index": ("A=(1 2)\nA[1]=3", r"line 2: A\[1\]=3 is not read"),
    "indices": ("A=([3]=4)", "line 1: an array with indices of its own"),
    "an array beside others": ("A=(1)\nexport B=$A A=(9) C=$A", "line 2: export with a name twice, or an "
                                                                "array beside others"),
    "a counter that ends the script": ("set -e\ni=0\n((i++))", r"line 3: \(\(i\+\+\)\) fails .*: under set "
                                                               r"-e that ends"),
    "a condition that ends the script": ("set -e\n[ 1 = 2 ]", r"line 2: \[ 1 = 2 \] fails .*: under set -e "
                                                              r"that ends"),
    "a bracket without its end that ends it": ("set -e\n[ 1 = 1", r"line 2: \[ 1 = 1 fails"),
    "an option of the first line": ("#!/bin/bash -xe\nfalse", "line 2: false fails"),
    "a shell inside that ends": ("bash -c 'set -e; false; torchrun t.py' || true", "line 1: false fails"),
    "a condition of two that ends it": ("set -e\n[[ a == b && c == c ]]", r"line 2: \[\[ a == b .* fails"),
    "a function that ends it": ("set -e\nf() { false && true; }\nf", "line [23]: f fails"),
    "a subshell that ends it": ("set -e\n(false && true) > log", r"line 2: \(false && true\) > log fails"),
    "a last command that ends it": ("set -e\ntrue | false", r"line 2: true \| false fails"),
    "an early command that ends it": ("set -eo pipefail\nfalse | true", r"line 2: false \| true fails"),
    "an index that counts": ("A=(1 2)\n((B = A[0]++ + 3))", r"line 2: .* cannot be computed: has '\+\+'"),
    "an index that counts down": ("A=(1 2)\n((B = A[1]-- - 1))", "line 2: .* cannot be computed: has '--'"),
    "a blank before an index": ("A=(1 2)\n((B = A [1]))", r"line 2: .* cannot be computed: has 'A \['"),
    "a caller's local value that is unset": ("X=1\ng() { unset X; }\nf() { local X=2; g; torchrun t.py $X; "
                                             "}\nf",
     "line 2: unset X is not read where X is local in a function that called this one"),
    "a local value of no function": ("local A=1", "line 1: local outside of a function is an error of bash"),
    "an assignment before export": ("B=1 export A=1", "line 1: export with an assignment before it"),
    "a function of some runs": ("f() { A=1; }\nif [ $X ]; then f() { A=2; }; fi\nf",
     "line 3: f is a function that is not the same in all runs"),
    "a function with an assignment": ("f() { A=1; }\nB=1 f", "line 2: f is a function called with a "
                                                             "redirection"),
    "quotes with escapes": ("A=$'x\\ty'", r"line 1: a bare \$"),
    "arguments that are set": ("set -- 1 2", "line 1: set -- 1 2 is not read"),
    "a declaration": ("declare -A A", "line 1: declare is not read: write NAME=value"),
    "a let": ("let A=1", "line 1: let is not read"),
    "a name that sets": ("N='i=5'\n((X && N))", r"line 2: .* cannot be computed: has '='"),
    "a choice": ("A=$((1 ? 2 : 3))", r"line 1: .* cannot be computed: has '\?'"),
    "an option": ("shopt -s extglob", "line 1: shopt is not read"),
    "a way out of no loop": ("for i in 1 2; do\n  (break)\ndone", "line 2: break outside of a loop is not "
                                                                  "read"),
    "a way out of two loops": ("while true; do break 2; done", "line 1: break 2 is not read"),
    "two ways out": ("for i in 1 2; do\n  if [ $X ]; then break; else continue; fi\ndone",
     "line 2: break or continue, by what is not known"),
    "a local value of some runs": ("f() { [ $X ] && local A=4; A=5; }\nf",
                                   "line 1: a local variable of some runs"),
    "a condition of two lines": ("[[ a\n&& b ]]", "line 1: "),
    "two redirections": ("echo >2>&1 out", "line 1: a number between two redirections"),
    "a bracket in an array": ("A=(1 [ 2)", "line 1: an array with indices of its own"),
    "several files": ("L='a b'\ntorchrun t.py > 1$L",
                      "line 2: a redirection needs one file, and has 2 words: 1a b"),
    "files of several": ("L=\n{ torchrun t.py; } > $L",
                         "line 2: a redirection needs one file, and has 0 words"),
    "a file that is not there": ("torchrun t.py --lr 1 < nofile", "line 1: a redirection from a file is not"),
    "a file of several": ("{ torchrun t.py; } < nofile", "line 1: a redirection from a file is not"),
    "a quote in a default": ('torchrun "${A-\'}"', r"line 1: \$\{A-'"),
    "a name that the run ends": ('X=1\neval "torchrun $1 \\$X$?"',
                                 "line 2: a name that goes on in what only the run knows"),
    "a bracket behind two dollars": ('torchrun t.py "$${NAME" x\necho "}"',
                                     r"line 1: \$\$ before a bracket is not read"),
    "a redirection's number in two lines": ("torchrun t.py 2\\\n> out\ntorchrun u.py 1\\\n2> out",
     "line 2: a redirection after a bracket, or"),
    "a fall through": ("case a in a) A=1 ;& b) A=2 ;; esac", "line 1: ;& in a case is not read"),
    "a regular expression": ("[[ a =~ ^a ]] && A=1", r"line 1: \[\[ … \]\] has a condition that is not read"),
    "separators": ("IFS=,\ntorchrun t.py $A", "line 1: IFS is no name of a variable"),
    "tabs before a here-document": ("cat <<-E\n\tE\n", "line 1: "),
    "two lines in a sign": ("true &\\\n& A=1", "line 1: "),
    "lines of Windows": ("A=4\r\n", "line 1: '.r' is not read"),
    "values that grow": ('f() { f "$@" "$@"; }\nf 1 2', "line 1: a value is longer than 262,144 characters"),
    "no end": ("i=0\n" + "for i in 1 2 3 4 5 6 7 8 9; do\n" * 6 + "echo\n" + "done\n" * 6, "without an end"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_shell_is_refused_with_its_line(name):
    text, says = REFUSED[name]
    with pytest.raises(InputError, match=says):
        arguments(text)


ENDED = [name for name in REFUSED if name.endswith(("ends it", "ends the script"))]


@pytest.mark.parametrize(
    "name",
    [
        *ENDED, "several files", "files of several", "a bracket behind two dollars",
        "a file that is not there", "a file of several",
    ],
)  # fmt: skip
def test_bash_does_not_run_it_either(name, tmp_path):
    expected = [] if name in ENDED else [["torchrun", "2"]]
    assert bash(f"torchrun 1\n{REFUSED[name][0]}\ntorchrun 2", tmp_path) == [["torchrun", "1"], *expected]


@pytest.mark.parametrize("branch", ["${A[@]}", "$Ae6"])
def test_an_operand_that_may_be_empty_counts_also_where_it_is_not_taken(branch, tmp_path):
    text = f"X=2\ntorchrun --lr 1 --bs $((X > 1 || {branch}))"
    assert "is not known" in why(arguments(text)["bs"])
    assert bash(text, tmp_path) == []
    assert bash(f"A=1 Ae6=1\n{text}", tmp_path) == [["torchrun", "--lr", "1", "--bs", "1"]]


def test_a_way_out_of_some_runs_leaves_what_follows_to_the_others():
    notes = []
    text = (
        "for i in 1 2; do\n  [ -f out/$i ] && continue\n  A=$i\n  torchrun t.py --lr 1 --bs $i\ndone\n"
        "torchrun u.py --lr 1 --bs 4 --n $A"
    )
    execution = Execution()
    execution.run(text, Shell())
    assert [(launch.words[-1], launch.when) for launch in execution.launches[:2]] == [
        ("1", ("if not [ -f out/$i ] && continue (line 2)",)),
        ("2", ("if not [ -f out/$i ] && continue (line 2)",)),
    ]  # fmt: skip
    assert (
        why(arguments(text, line=6, notes=notes)["n"])
        == "is $A, which depends on [ -f out/$i ] && continue (line 2)"
    )
    settings = arguments("f() { [ $X ] && return; A=1; }\nA=2\nf\ntorchrun t.py --lr 1 --bs $A")
    assert "which depends on [ $X ] && return (line 1)" in why(settings["bs"])
    retries = "while true; do\n  torchrun t.py --lr 1 --bs 4 && break\n  sleep 60\ndone\n"
    assert arguments(retries) == {"lr": "1", "bs": "4"}
    assert arguments(f"N=$(wc -l < nofile)\n{retries}") == {"lr": "1", "bs": "4"}


def why(value):
    assert isinstance(value, Unknown)
    return value.why


def test_values_known_only_to_the_run_are_named():
    notes = []
    settings = arguments(
        "source env.sh\nif [ $SIZE = 7B ]; then BS=4; else BS=2; fi\nLR=${LR:-1e-4}\n"
        "torchrun t.py --nnodes $SLURM_NNODES --lr $LR --bs $BS --port $((MASTER + 1)) --name x-$(date) "
        "--wd $1 $EXTRA",
        notes=notes,
    )
    assert settings["lr"] == "1e-4"
    assert why(settings["nnodes"]) == "is $SLURM_NNODES, which is not set in this file"
    assert why(settings["bs"]) == "is $BS, which depends on [ $SIZE = 7B ] (line 2)"
    assert "$MASTER is not known" in why(settings["port"])
    assert why(settings["name"]) == "is x-$(date), $(date), which is known only in the run"
    assert why(settings["wd"]) == "is $1, which is an argument of the script"
    text = " | ".join(notes)
    assert "source env.sh is another file, which is not read" in text and "line 1" in text
    assert "$EXTRA, which is not set in this file: flags in it are not read" in text
    assert "LR=1e-4" in text


def test_a_value_that_is_not_worked_out_is_said():
    settings = arguments(
        'M=a/b-7b\nwhile [ -f x$N ]; do N=$((N + 1)); S="$S x"; done\n'
        "torchrun t.py --lr 1e-4 --bs 8 --m ${M##*/} --l ${#M} --n $N --s $S --p $((2 ** Q))"
    )
    assert (settings["lr"], settings["bs"]) == ("1e-4", "8")
    assert why(settings["m"]) == "is ${M##*/}, which is not worked out"
    assert why(settings["l"]) == "is ${#M}, which is not worked out"
    assert "which depends on while [ -f x$N ] (line 2)" in why(settings["n"])
    assert why(settings["p"]).endswith("in which $Q is not known")
    settings = arguments("((i = X && 2))\ntorchrun t.py --lr 1e-4 --bs 8 --i $i")
    assert why(settings["i"]) == "is ((i = X && 2)), in which $X is not known"


def test_an_unknown_word_may_be_none_or_several():
    settings = arguments("f() { N=$#; L=$2; shift; torchrun t.py --lr $L --n $N --bs $1; }\nf $X 8")
    assert all(why(settings[name]) for name in ("lr", "n", "bs"))
    settings = arguments('f() { A="$*"; torchrun t.py --lr 1 --bs 2 --n "$@l" --m "$A" --k "$*"; }\nf s $X')
    assert all(why(settings[name]) for name in ("n", "m", "k"))
    settings = arguments("A='1 --bs 2'\ntorchrun t.py --wd 0 --bs 4 --lr $A$!")
    assert settings["bs"] == "4" and "only where $! is set" in why(settings["lr"])


def test_slurms_variables_are_those_of_its_own_lines(tmp_path):
    file = tmp_path / "train.slurm"
    flags = "--per_device_train_batch_size 4 --learning_rate 1e-4 --max_steps 9"
    command = f"srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE t.py {flags}\n"
    file.write_text(f"#!/bin/bash\n#SBATCH --nodes=4 # four\n#SBATCH --gres=gpu:a100:8\n{command}")
    assert ib.Recipe.read(file).effective_batch == 128
    file.write_text(f"#SBATCH -N 1-2\n#SBATCH --gpus-per-node 8\n{command}")
    with pytest.raises(InputError, match=r"SLURM_NNODES, which is not set in this file: give gpus a value"):
        ib.Recipe.read(file)


HET = """#!/bin/bash
#SBATCH --nodes=3 --gpus-per-node=8
#SBATCH hetjob
#SBATCH --nodes=1 --gres=gpu:2
srun --het-group=1 python serve.py &
"""
HET_TRAINING = "srun --het-group={} torchrun --nnodes $SLURM_NNODES{} --nproc_per_node {} t.py {}\n"
SMALL = "--per_device_train_batch_size 4 --learning_rate 1e-4 --max_steps 9"


@pytest.mark.parametrize(
    ("group", "suffix", "processes", "batch"),
    [
        (0, "", "$SLURM_GPUS_ON_NODE", 96),
        (0, "", "gpu", 96),
        (1, "_HET_GROUP_1", "auto", 8),
        (1, "_HET_GROUP_1", "$SLURM_GPUS_ON_NODE_HET_GROUP_1", 8),
    ],
)  # fmt: skip
def test_a_component_of_a_job_has_its_own_nodes(tmp_path, group, suffix, processes, batch):
    file = tmp_path / "train.sbatch"
    file.write_text(HET + HET_TRAINING.format(group, suffix, processes, SMALL))
    assert ib.Recipe.read(file).effective_batch == batch
    file.write_text(HET.replace("hetjob", "packjob") + HET_TRAINING.format(group, suffix, processes, SMALL))
    assert ib.Recipe.read(file).effective_batch == batch


def test_a_shell_inside_of_a_component_has_variables_that_are_asked_for(tmp_path):
    file = tmp_path / "train.sbatch"
    inside = f"srun --het-group=1 bash -c 'torchrun --nnodes $SLURM_NNODES --nproc_per_node 2 t.py {SMALL}'\n"
    file.write_text(HET + inside)
    with pytest.raises(InputError, match=r"SLURM_NNODES, which is not set in this file: give gpus a value"):
        ib.Recipe.read(file)


@pytest.mark.parametrize(
    ("before", "gpus"),
    [("export CUDA_VISIBLE_DEVICES=0,1,2\n", 3), ("CUDA_VISIBLE_DEVICES=4,5 ", 2),
     ("#SBATCH --gres=gpu:8\n", 8)],
)  # fmt: skip
def test_as_many_processes_as_gpus(tmp_path, before, gpus):
    file = tmp_path / "train.sh"
    file.write_text(f"{before}torchrun --nproc_per_node=gpu t.py {SMALL}\n")
    assert ib.Recipe.read(file).gpus == gpus
    file.write_text(f"torchrun --nproc_per_node auto t.py {SMALL}\n")
    with pytest.raises(InputError, match="is auto, one for each GPU of a node: give gpus a value"):
        ib.Recipe.read(file)


@pytest.mark.parametrize("end", ["", " \\", "\\", " \\\\\\"])
def test_a_backslash_at_the_end_of_a_file_is_dropped(tmp_path, end):
    text = f"torchrun t.py --lr 1 --bs 4{end}"
    file = tmp_path / "t.sh"
    file.write_text(STUB + text)
    ran = subprocess.run(["/bin/bash", file], capture_output=True, text=True, check=True)
    words = ran.stdout.split("\0")[:-2]
    assert arguments(text) == {"lr": "1", "bs": words[5] if len(words) == 6 else words[5:]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("axolotl train cfg.yaml", "line 1 runs `axolotl train` with the settings of cfg.yaml: name that "
                                   "file instead, and the processes"),
        ("set -e\nFORCE_TORCHRUN=1 llamafactory-cli train cfg.yaml learning_rate=1e-5",
         r"line 2 runs `llamafactory-cli train` .* add lr \(learning_rate\) from the command"),
        ("accelerate launch --num_processes 8 -m axolotl.cli.train a/b.yml",
         "`axolotl train` with the settings of a/b.yml.*gpus=8"),
        ("trl sft --config x.yaml --learning_rate 1e-5 --per_device_train_batch_size 4",
         r"`trl sft` .*x.yaml.*learning_rate\), batch_per_gpu \(per_device"),
        ("accelerate launch --config_file z.yaml run.py cfg.yaml",
         "`run.py` with the settings of cfg.yaml.* and --from z.yaml for"),
        ("torchrun --nnodes 2 --nproc_per_node 8 src/train.py a.yaml",
         "`train.py` with the settings of a.yaml.*gpus=16"),
        ("tune run --nproc_per_node 4 lora --config llama3/8B",
         "`tune run` with the settings of llama3/8B.*gpus=4"),
        ("axolotl train $1", r"with the settings of \$1"),
        ('log_error "Usage: $0 <job.sbatch>"\nsbatch "$1"', "no command with settings of a training"),
    ],
)  # fmt: skip
def test_settings_in_a_file_are_asked_for_by_its_name(tmp_path, text, says):
    file = tmp_path / "run.sh"
    file.write_text(f"{text}\n")
    with pytest.raises(InputError, match=says):
        ib.Recipe.read(file)


def test_words_that_a_condition_adds_leave_the_others():
    notes = []
    text = (
        'A=(--lr 1 --bs 4)\nB="--wd 0.1"\nif [ -n "$KEY" ]; then A+=(--wandb x); B="$B --x y"; fi\n'
        'torchrun t.py "${A[@]}" $B'
    )
    assert arguments(text, notes=notes) == {"lr": "1", "bs": "4", "wd": "0.1"}
    assert sum("depends on" in note and "flags in it are not read" in note for note in notes) == 2


def test_a_branch_that_ends_the_script_was_not_taken():
    ends = 'if [ -z "$KEY" ]; then BS=9; exit 1; fi\ncd data || exit 1'
    assert arguments(f"BS=4\n{ends}\ntorchrun t.py --bs $BS --lr 1")["bs"] == "4"


def test_two_trainings_are_listed_and_one_is_chosen(tmp_path, ran):
    file = tmp_path / "train.sh"
    same = (
        "torchrun --nproc_per_node 2 {} --per_device_train_batch_size {} --learning_rate 1e-4 --max_steps 9\n"
    )
    file.write_text(same.format("sft.py", 4) + "python eval.py --batch_size 64\n" + same.format("dpo.py", 8))
    with pytest.raises(
        InputError, match=r"2 trainings: line 1 \(sft.py\), line 3 \(dpo.py\).*Name one by its line"
    ):
        ib.Recipe.read(file)
    assert ib.Recipe.read(f"{file}:3").effective_batch == 16
    assert "= 8 samples" in ran(["plan", "--from", f"{file}:1", "--gpus", "4"]).out
    with pytest.raises(InputError, match="has no training command in line 2"):
        ib.Recipe.read(f"{file}:2")


def test_a_training_that_runs_with_several_values(tmp_path):
    file = tmp_path / "sweep.sh"
    file.write_text(
        "for lr in 1e-4 3e-4; do\n  torchrun --nproc_per_node 2 t.py --per_device_train_batch_size 4 "
        "--learning_rate $lr --max_steps 9\ndone\n"
    )
    with pytest.raises(
        InputError, match=r"--learning-rate is 1e-4 in one run of line 2, 3e-4 in others: give lr a value"
    ):
        ib.Recipe.read(file)
    assert ib.Recipe.read(file, lr=3e-4).lr == 3e-4


def test_unknown_values_are_asked_for_in_one_message(tmp_path):
    file = tmp_path / "train.slurm"
    file.write_text(
        "torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 t.py --micro-batch-size $MBS --global-batch-size "
        "64 --lr $LR --train-iters 9\n"
    )
    with pytest.raises(InputError) as caught:
        ib.Recipe.read(file)
    assert all(name in str(caught.value) for name in ("$SLURM_NNODES", "$MBS", "$LR", "give lr a value"))


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (f"{SMALL} --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{{\"min_lr\": 1e-5}}'",
         "min_lr", 1e-5),
        ("--micro-batch-size 4 --global-batch-size 8 --lr 1e-4 --train-iters 9 --bf16 $MORE",
         "precision", "bf16"),
    ],
)  # fmt: skip
def test_a_table_and_a_switch_before_an_unknown_word_are_read(tmp_path, flags, field, value):
    file = tmp_path / "train.sh"
    file.write_text(f"torchrun --nproc_per_node 1 t.py {flags}\n")
    assert getattr(ib.Recipe.read(file), field) == value


@pytest.mark.parametrize(
    ("launcher", "fallback", "says"),
    [
        ("torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES", "torchrun --nproc_per_node 8", "nnodes is"),
        ("torchrun --nproc_per_node 8 --nnodes 2", "torchrun --nproc_per_node 8 --nnodes 2", None),
    ],
)
def test_flags_of_a_launcher_that_are_not_read_may_name_the_nodes(tmp_path, launcher, fallback, says):
    file = tmp_path / "run.sh"
    file.write_text(
        f'if [ -n "$MASTER_ADDR" ]; then L="{launcher}"; else L="{fallback}"; fi\n'
        "$L train.py --per_device_train_batch_size 1 --learning_rate 1e-4 --max_steps 100 $MORE\n"
    )
    if says is None:
        assert ib.Recipe.read(file).gpus == 16
        return
    with pytest.raises(InputError, match=f"{says}.*give gpus a value"):
        ib.Recipe.read(file)
    assert ib.Recipe.read(file, gpus=32).effective_batch == 32
