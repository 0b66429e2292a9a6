"""Predictions of `cachalot predict` beside the peaks that a GPU measured: of training scripts, and
of records at another batch.

    predict_scripts.py SCRIPTS RECORDINGS OUT

SCRIPTS are the scripts of `tests/answers/scripts`, and RECORDINGS is what `tests/answers/record.sh`
left on a GPU: the peaks of the scripts, and records and peaks of twelve models at three batches.
Needs no GPU. `cachalot_gpu` must be importable by this interpreter, with PyTorch and the libraries
of the scripts; `cachalot` is taken from PATH.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import tables

BATCHES = [(8, 16), (8, 32), (16, 32)]


def first_line(command, **environment):
    """Runs a command that prints JSON lines. Returns the first, or the end of its complaint."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.stdout:
        return json.loads(done.stdout.splitlines()[0])
    return {"refused": (done.stderr.strip().splitlines() or ["no message"])[-1]}


COLUMNS = ["allocated, MiB", "measured, MiB", "error, %"]
COLUMNS += ["reserved, MiB", "measured reserved, MiB", "error of reserved, %"]


def cells(predicted, measured, errors):
    """Returns predicted, measured and the error, of allocated and of reserved memory."""
    if "refused" in predicted:
        return [predicted["refused"], "", "", "", "", ""]
    row = []
    for name in ("allocated", "reserved"):
        found, right = predicted[f"peak_{name}_bytes"], measured[name]
        errors[name].append(abs(found / right - 1))
        row += [f"{found / 2**20:.0f}", f"{right / 2**20:.0f}", f"{(found / right - 1) * 100:+.2f}"]
    return row


def summary(errors):
    """Returns the errors in a sentence."""
    told = [
        f"of {name} memory median {statistics.median(of) * 100:.2f} %, worst {max(of) * 100:.2f} %"
        for name, of in errors.items()
    ]
    return f"Errors over {len(errors['reserved'])}: {'; '.join(told)}."


def scripts(folder, recordings):
    """Predicts every script."""
    rows, errors = [], {"allocated": [], "reserved": []}
    for script in sorted(folder.glob("*.py")):
        measured = json.loads((recordings / "scripts" / f"{script.stem}.json").read_text())
        command = [sys.executable, "-m", "cachalot_gpu.predict", "--policy=caching", "--json", str(script)]
        start = time.monotonic()
        predicted = first_line(command, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        seconds = f"{time.monotonic() - start:.0f}"
        rows.append([script.stem, seconds, *cells(predicted, measured, errors)])
    print("Scripts.", summary(errors))
    return [["script", "seconds", *COLUMNS], *rows]


def records(recordings):
    """Predicts every model at another batch than the recorded one."""
    rows, errors = [], {"allocated": [], "reserved": []}
    for model in sorted({file.name.split(".")[0] for file in recordings.glob("models/*.pickle")}):
        for recorded, batch in BATCHES:
            measured = json.loads((recordings / "models" / f"{model}.{batch}.json").read_text())
            record = recordings / "models" / f"{model}.{recorded}.pickle"
            command = ["cachalot", "predict", "--json", "--policy=caching", f"--batch-scale={batch / recorded:g}"]
            command.append(str(record))
            predicted = first_line(command)
            grows = f"{predicted.get('growing_percent') or 0:.0f}"
            rows.append([model, str(recorded), str(batch), grows, *cells(predicted, measured, errors)])
    print("Records.", summary(errors))
    return [["model", "recorded batch", "predicted batch", "grows, %", *COLUMNS], *rows]


def main(folder, recordings, out):
    """Writes the tables."""
    tables.write(out / "scripts.csv", scripts(folder, recordings))
    tables.write(out / "records.csv", records(recordings))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
