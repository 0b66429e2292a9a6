"""``CACHALOT=1`` where PyTorch runs: workers, launchers, packages in other folders. No compiler is on the path.

The programs use blocks and copies, and no kernel, so they run without a GPU as well (emulated.sh).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
import venv
import zipapp
from importlib.util import find_spec
from pathlib import Path

BLOCK = """
import os, torch, cachalot_gpu.torch
def ask(name):
    block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    # One write, so that processes do not mix their lines.
    os.write(1, f"{name} {cachalot_gpu.torch.enabled()} {cachalot_gpu.torch.memory_allocated()}\\n".encode())
"""
SERVED = "True 1048576"


class Surroundings(unittest.TestCase):
    """Each program is a process, which may make others."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def lines(self, program: str, *, launcher: tuple[str, ...] = (), python: str = sys.executable, **variables: str) -> list[str]:
        """What a program prints, in the order of its lines. It says nothing of cachalot on the standard error."""
        file = self.folder / "program.py"
        file.write_text(program)
        path = {"PATH": f"{self.folder}", "CACHALOT": "1", "OMP_NUM_THREADS": "1"}
        command = [python, *launcher, str(file)]
        done = subprocess.run(
            command, env=os.environ | path | variables, capture_output=True, text=True, timeout=300, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("cachalot:", done.stderr)
        return sorted(done.stdout.splitlines())

    def test_a_program(self) -> None:
        self.assertEqual(self.lines(BLOCK + 'ask("it")'), [f"it {SERVED}"])

    def test_the_rest_of_the_shell_counts(self) -> None:
        program = BLOCK + 'ask("it"); print(torch.cuda.memory_snapshot()[0]["is_expandable"])'
        wanted = sorted([f"it {SERVED}", "True"])
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CACHALOT_CONF"):
            with self.subTest(name):
                self.assertEqual(self.lines(program, **{name: "expandable_segments:True"}), wanted)

    def test_workers_of_a_data_loader(self) -> None:
        program = BLOCK + """
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        loader = DataLoader(TensorDataset(torch.arange(64)), 8, num_workers=2, multiprocessing_context=way)
        print(way, sum(int(batch.to("cuda").cpu().sum()) for (batch,) in loader))
    ask("it")
"""
        wanted = ["fork 2016", "forkserver 2016", f"it {SERVED}", "spawn 2016"]
        self.assertEqual(self.lines(program), wanted)

    def test_spawned_processes(self) -> None:
        program = BLOCK + """
if __name__ == "__main__":
    torch.multiprocessing.spawn(ask, nprocs=2)
"""
        self.assertEqual(self.lines(program), [f"0 {SERVED}", f"1 {SERVED}"])

    def test_forked_children_have_the_first_use_of_cuda(self) -> None:
        program = BLOCK + """
import multiprocessing
children = [multiprocessing.get_context("fork").Process(target=ask, args=(name,)) for name in "ab"]
[child.start() for child in children]
[child.join() for child in children]
ask("parent")
"""
        self.assertEqual(self.lines(program), [f"a {SERVED}", f"b {SERVED}", f"parent {SERVED}"])

    def test_torchrun(self) -> None:
        program = BLOCK + """
import torch.distributed as group
group.init_process_group("gloo")
sum_of_ones = torch.ones(1)
group.all_reduce(sum_of_ones)
ask(f"{group.get_rank()} of {sum_of_ones.item():.0f}:")
group.destroy_process_group()
"""
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        self.assertEqual(self.lines(program, launcher=launcher), [f"0 of 2: {SERVED}", f"1 of 2: {SERVED}"])

    def test_workers_of_the_compiler(self) -> None:
        """They import PyTorch, and use no GPU."""
        program = BLOCK + """
from torch._inductor.compile_worker.subproc_pool import SubprocPool
if __name__ == "__main__":
    pool = SubprocPool(1)
    questions = cachalot_gpu.torch.enabled, torch.cuda.is_initialized
    print("worker", *(pool.submit(question).result() for question in questions))
    pool.shutdown()
    ask("it")
"""
        self.assertEqual(self.lines(program), [f"it {SERVED}", "worker True False"])

    def test_an_application_in_a_file(self) -> None:
        application = self.folder / "application"
        application.mkdir()
        (application / "__main__.py").write_text(BLOCK + 'ask("it")')
        zipapp.create_archive(application)
        program = f"import runpy; runpy.run_path({str(self.folder / 'application.pyz')!r})"
        self.assertEqual(self.lines(program), [f"it {SERVED}"])

    def test_an_interactive_program(self) -> None:
        program = f"import code\nconsole = code.InteractiveConsole()\nfor line in {BLOCK!r}.splitlines() + ['', 'ask(1)']:\n"
        self.assertEqual(self.lines(program + "    console.push(line)"), [f"1 {SERVED}"])

    @unittest.skipUnless(find_spec("nbclient") and find_spec("ipykernel"), "needs nbclient and ipykernel")
    def test_a_notebook(self) -> None:
        """Its cells run in a process that Jupyter starts."""
        question = "print(cachalot_gpu.torch.enabled(), cachalot_gpu.torch.memory_allocated())"
        cells = [BLOCK, 'block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")', question]
        program = f"""
import nbclient, nbformat
cells = [nbformat.v4.new_code_cell(text) for text in {cells!r}]
notebook = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3").execute()
print(notebook.cells[-1].outputs[0].text.strip())
"""
        folder = str(self.folder)
        self.assertEqual(self.lines(program, JUPYTER_RUNTIME_DIR=folder, IPYTHONDIR=folder), [SERVED])

    def test_no_file_can_be_written(self) -> None:
        """As on a full disk, or for a user without a home."""
        nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "CACHALOT_CACHE", "TMPDIR"), "/dev/full/nowhere")
        self.assertEqual(self.lines(BLOCK + 'ask("it")', **nowhere), [f"it {SERVED}"])

    def test_a_package_in_another_folder(self) -> None:
        """As by ``pip install --target``: not in a folder whose ``.pth`` files Python reads."""
        import torch

        import cachalot_gpu

        target, others = self.folder / "target", self.folder / "others"
        target.mkdir()
        others.mkdir()
        for entry in Path(cachalot_gpu.__file__).parents[1].glob("cachalot_gpu*"):
            (target / entry.name).symlink_to(entry)
        for entry in Path(torch.__file__).parents[1].iterdir():
            if not entry.name.startswith("cachalot_gpu"):
                (others / entry.name).symlink_to(entry)
        venv.create(self.folder / "python", with_pip=False)
        python = str(self.folder / "python/bin/python")
        found = {"PYTHONPATH": f"{target}:{others}"}
        self.assertEqual(self.lines(BLOCK + 'ask("it")', python=python, **found), [f"it {SERVED}"])
        program = "import torch; print(torch.empty(5, device='cuda').numel())"
        self.assertEqual(self.lines(program, python=python, PYTHONPATH=str(others)), ["5"])


if __name__ == "__main__":
    unittest.main()
