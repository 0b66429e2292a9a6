"""Predictions of memory from fake tensors: requests and peaks of a small program.

Needs PyTorch 2.6 or later, of any build. Without it, the test says so in one line and ends.
"""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1536, 2048, bias=False), torch.nn.Linear(2048, 3072, bias=False)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(1024, 1536, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""

MIB = 1 << 20


def trains():
    """Trains the layers of a recorded program, mlp_seed, for three steps."""
    import torch

    sizes = (1536, 2048, 3072, 4096)
    layers = [torch.nn.Linear(one, other, bias=False) for one, other in zip(sizes, sizes[1:])]
    model = torch.nn.Sequential(*layers).cuda()
    data = torch.randn(1024, sizes[0]).cuda()
    labels = torch.empty(1024, dtype=torch.long, device="cuda").random_(sizes[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for _ in range(3):
        optimizer.zero_grad()
        # The outcome and the loss are kept until the next step, as in the recorded program.
        outcome = model(data)
        loss = torch.nn.CrossEntropyLoss()(outcome, labels)
        loss.backward()
        optimizer.step()


class Predictions(unittest.TestCase):
    """Predictions beside what an H200 with PyTorch 2.11 did."""

    def test_peaks_are_the_recorded_ones(self):
        """The program of tests/traces/mlp_seed, whose peaks stand in its README."""
        from cachalot_gpu import predict

        recorder = predict.record(trains)
        sizes = [size for kind, _, size in recorder.events if kind == "a"]
        self.assertEqual(sizes[:7], [12582912, 25165824, 50331648, 6291456, 8192, 8388608, predict.HOPPER_WORKSPACE])
        self.assertEqual(sizes.count(predict.HOPPER_WORKSPACE), 2)
        [caching] = predict.replay(recorder, policies=("caching",))
        self.assertEqual((caching.peak_allocated_bytes, caching.peak_reserved_bytes), (530588160, 559939584))
        self.assertEqual((caching.ooms, caching.first_failed_request), (0, None))

    def test_sums_of_columns_have_the_recorded_buffers(self):
        """Gradients of biases in the recorded programs gpt2_varlen and llama1b_ckpt."""
        import torch
        from cachalot_gpu.torch._predict import _column_sum

        recorded = [((3664, 3072), [91226112, 96]), ((3664, 768), [22806528, 24]), ((2, 2048, 2048), [67108864, 64])]
        for shape, sizes in recorded:
            tensor = torch.empty(shape, device="meta")
            self.assertEqual(_column_sum((tensor, list(range(len(shape) - 1)))), sizes)
        self.assertEqual(_column_sum((torch.empty(64, 3072, device="meta"), [1])), [])

    def test_a_limit_makes_requests_fail(self):
        """What does not fit is told with the number of the first request."""
        from cachalot_gpu.torch import predict

        every = predict(trains, limit_bytes=300 * MIB)
        self.assertEqual([one.policy for one in every][:2], ["caching", "bfc"])
        self.assertGreater(every[0].ooms, 0)
        self.assertGreater(every[0].first_failed_request, 7)
        self.assertLessEqual(every[0].peak_reserved_bytes, 300 * MIB)

    def test_nothing_is_left_patched(self):
        """PyTorch is as before, also behind a step that fails."""
        import torch
        from cachalot_gpu import predict

        before = (torch.nn.Module._apply, torch.nn.functional.scaled_dot_product_attention)

        def fails():
            raise KeyError("a step")

        with self.assertRaises(KeyError):
            predict.record(fails)
        self.assertEqual(before, (torch.nn.Module._apply, torch.nn.functional.scaled_dot_product_attention))

    def test_shared_parameters_stay_shared(self):
        """A model that ties two weights has one storage for both."""
        import torch
        from cachalot_gpu import predict

        def tied():
            one, other = torch.nn.Linear(256, 256, bias=False), torch.nn.Linear(256, 256, bias=False)
            other.weight = one.weight
            torch.nn.Sequential(one, other).cuda()

        self.assertEqual(predict.record(tied).events[0], ("a", 1, 256 * 256 * 4))
        self.assertEqual(sum(kind == "a" for kind, *_ in predict.record(tied).events), 1)

    def test_a_script_is_predicted(self):
        """The module runs a script, and prints the table with what it leaves out."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(SCRIPT)
            command = [sys.executable, "-m", "cachalot_gpu.predict", "--policy=caching,stitched", str(script)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("train: ", done.stdout)
        self.assertIn("stitched", done.stdout)
        self.assertIn("Left out:\n* the CUDA context", done.stdout)


if __name__ == "__main__":
    found = importlib.util.find_spec("torch")
    # The stand-in of the other tests has no fake tensors.
    if found is None or not (Path(found.origin).parent / "_subclasses").is_dir():
        print("skipped: predictions (PyTorch is not installed)")
        sys.exit(0)
    import cachalot_gpu.predict  # before the first import of PyTorch

    unittest.main()
