"""Predictions of memory from fake tensors: requests and peaks of a small program.

Needs PyTorch 2.6 or later, of any build. Without it, the test says so in one line and ends.
"""

import importlib.util
import json
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
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(1024, 1536, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""

# What loops of training ask of a GPU, a loader that shuffles into pinned memory, and a checkpoint at the end.
LOOP = """
import sys
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.cuda.manual_seed_all(1)
capability = torch.cuda.get_device_capability(), torch.cuda.get_device_properties(0).total_memory
print(torch.cuda.get_device_name(), *capability)
data = torch.utils.data.TensorDataset(torch.randn(64, 1536), torch.randint(0, 10, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
model = torch.nn.Linear(1536, 10).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
assert not stream.is_capturing()


def main():
    for x, y in loader:
        x = x.pin_memory().to(device, non_blocking=True)
        event.record()
        with torch.cuda.stream(stream):
            x.record_stream(torch.cuda.current_stream())
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y.to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        print(loss.item(), torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info(), event.elapsed_time(event))
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() > 1536 * 10 * 4 * 3, "weights, and two states of the optimizer"
    print(torch.cuda.memory_summary(), loss.detach().cpu().numpy(), f"{loss:.1f}")
    # The host's small tensors have values.
    assert sorted(set(y.tolist())) != [1], y
    torch.save({"model": model.state_dict(), "epoch": 3}, "/nonexistent/checkpoint.pt")
    kept = torch.load("/nonexistent/checkpoint.pt", map_location=device)
    model.load_state_dict(kept["model"])
    assert kept["epoch"] == 3 and kept["model"]["weight"].device.type == "cuda"
    return 0


sys.exit(main())
"""

# What else scripts begin with: arguments, workers, a compiled model, generators, counters as tensors.
COMMON = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1)
args = parser.parse_args()


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        return torch.rand(3, 8, 8), at % 10


def main():
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    torch.cuda.set_device(0)
    device = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else "cuda"
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    noise = torch.randn(8, device="cuda", generator=generator)
    # A counter of a batch norm is moved, and a tensor is made on the device from a number.
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    net(torch.zeros(2, 3, 8, 8))
    net = torch.nn.DataParallel(net.to(device))
    total = torch.tensor(0.0, device=device)
    net = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Images(), args.batch_size, num_workers=3, pin_memory=True, persistent_workers=True)
    for epoch in range(1000):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            assert torch.isfinite(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item():.2f} of {labels.max().item()}")
    raise AssertionError("a prediction ends before")


if __name__ == "__main__":
    main()
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

    def test_convolutions_have_the_recorded_workspaces(self):
        """Workspaces of cuDNN 9.19 on an H100 with PyTorch 2.11: forward, gradients of input and filter."""
        import torch
        from cachalot_gpu import _cudnn, predict

        library = _cudnn.installed()
        if library is None or library.version != 91900:
            self.skipTest("cuDNN 9.19 is not installed")
        single, half = torch.float32, torch.bfloat16
        recorded = [
            ((32, 3, 224, 224), (64, 3, 7, 7), 2, 3, single, [122065680, 0, 134522000]),
            ((8, 192, 128, 128), (64, 192, 3, 3), 1, 1, single, [101105680, 134660243, 138789543]),
            ((8, 192, 128, 128), (64, 192, 3, 3), 1, 1, half, [67330195, 67330195, 70279775]),
            # Products of matrices, and one of few pixels, whose rows are not aligned.
            ((32, 256, 56, 56), (64, 256, 1, 1), 1, 0, half, [0, 0, 2097152]),
            ((64, 512, 7, 7), (2048, 512, 1, 1), 1, 0, half, [16056467, 16056336, 16056336]),
        ]
        for shape, filters, stride, padding, kind, sizes in recorded:

            def step():
                data = torch.empty(shape, dtype=kind, device="cuda", requires_grad=True)
                weight = torch.empty(filters, dtype=kind, device="cuda", requires_grad=True)
                torch.nn.functional.conv2d(data, weight, stride=stride, padding=padding).sum().backward()

            events = predict.record(step).events
            freed_next = [
                one[2] for one, other in zip(events, events[1:]) if one[0] == "a" and other[:2] == ("f", one[1])
            ]
            found = [size for size in freed_next if size > MIB]
            for size, expected in zip(found, [size for size in sizes if size], strict=True):
                self.assertLess(abs(size - expected), MIB, (shape, filters, kind, found))

    def test_attention_that_is_written_out_has_its_probabilities(self):
        """`sdpa_kernel(SDPBackend.MATH)` is obeyed."""
        import torch
        from cachalot_gpu import predict

        def step():
            query = torch.empty(2, 4, 128, 64, device="cuda", requires_grad=True)
            torch.nn.functional.scaled_dot_product_attention(query, query, query)

        def written_out():
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                step()

        probabilities = 2 * 4 * 128 * 128 * 4
        counts = [sum(size == probabilities for _, _, size in predict.record(of).events) for of in (step, written_out)]
        self.assertEqual(counts[0], 0)
        self.assertGreaterEqual(counts[1], 2)

    def test_parts_of_a_gradient_are_copied(self):
        """A gradient that is a part of the gradient of `cat` is copied before it is scaled down."""
        import torch
        from cachalot_gpu import predict

        def step():
            part, other = (torch.empty(8, 16, 32, 32, device="cuda", requires_grad=True) for _ in range(2))
            large = torch.nn.functional.interpolate(part, scale_factor=2)
            torch.cat([large, torch.nn.functional.interpolate(other, scale_factor=2)], 1).square().sum().backward()

        sizes = [size for kind, _, size in predict.record(step).events if kind == "a"]
        # The two large pictures, and the copies of the two parts of the gradient.
        self.assertEqual(sizes.count(8 * 16 * 64 * 64 * 4), 4, sizes)

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
        self.assertIn("\n* the CUDA context", done.stdout)
        self.assertRegex(done.stdout, r"Left out:\n\* .*workspaces of convolutions")

    def predicted(self, text, *options, arguments=()):
        """Predicts a script, and returns the finished command."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(text)
            command = [sys.executable, "-m", "cachalot_gpu.predict", *options, str(script), *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_a_loop_finds_a_gpu_and_its_prints_are_no_results(self):
        """`torch.cuda` answers as on an H100, and `sys.exit` at the end loses nothing."""
        done = self.predicted(LOOP, "--json", "--policy=caching", "--limit=16G")
        self.assertEqual(done.returncode, 0, done.stderr)
        [line] = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertGreater(line["peak_allocated_bytes"], 1536 * 10 * 4 * 4)
        self.assertIn(f"NVIDIA H100 80GB HBM3 (9, 0) {16 << 30}\n", done.stderr)

    def test_common_scripts_run(self):
        """Arguments, workers, compiled models; loaders and epochs end when more need no more memory."""
        done = self.predicted(COMMON, "--policy=caching", "--steps=4", arguments=("--batch-size", "32"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for note in [
            "note at train.py:30: torch.compile is left out",
            "note at train.py:34: a loader ends after 4 batches",
            "the value of a tensor is asked for, and a prediction has none: it is taken to be 1",
            "train.py was ended after 12 steps of its optimizer, of which the last 4 needed no more memory",
        ]:
            self.assertEqual(done.stderr.count(note), 1, (note, done.stderr))
        self.assertRegex(done.stdout, r"^Fits into NVIDIA H100 80GB HBM3 \(79.10 GiB\) with caching: [0-9.]+ MiB reserved at the peak")

    def test_another_gpu_answers(self):
        """The name, the memory and the capability are those of `--gpu`."""
        script = "import torch\nx = torch.ones(1 << 22, device='cuda')\nprint(torch.cuda.get_device_properties(0))\n"
        script += "assert torch.cuda.get_device_capability() == (7, 5) and not torch.cuda.is_bf16_supported()\n"
        done = self.predicted(script, "--gpu=T4", "--json", "--policy=caching")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("name='Tesla T4', major=7, minor=5", done.stderr)
        self.assertEqual(json.loads(done.stdout)["limit_bytes"], 14848 * MIB)

    def test_all_engines_are_tried_for_a_convolution(self):
        """`torch.backends.cudnn.benchmark` needs the largest workspace of any engine, once."""
        import torch
        from cachalot_gpu import _cudnn, predict

        if _cudnn.installed() is None:
            self.skipTest("cuDNN is not installed")

        def step():
            data = torch.empty(32, 3, 224, 224, device="cuda")
            for _ in range(2):
                torch.nn.functional.conv2d(data, torch.empty(64, 3, 7, 7, device="cuda"))

        sizes = [size for kind, _, size in predict.record(step).events if kind == "a"]
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            tried = [size for kind, _, size in predict.record(step).events if kind == "a"]
        self.assertEqual(len(tried), len(sizes) + 1)
        self.assertGreaterEqual(max(set(tried) - set(sizes), default=0) or max(sizes), max(sizes))

    def test_a_limit_is_answered_in_words(self):
        """The first sentence tells whether the script fits, and no peak is told of what fails."""
        known = self.predicted(SCRIPT, "--policy=caching", "--limit=2G", "--batch=1024")
        self.assertRegex(known.stdout, r"reserved at the peak; the largest batch is [1-9][0-9]*,[0-9]+\.\n")
        fits = self.predicted(SCRIPT, "--policy=caching", "--limit=8G")
        self.assertEqual(fits.returncode, 0)
        self.assertRegex(fits.stdout, r"^Fits into 8.00 GiB with caching: [0-9.]+ MiB reserved at the peak; the largest batch is")
        fails = self.predicted(SCRIPT, "--policy=caching", "--limit=100M")
        self.assertEqual(fails.returncode, 1)
        self.assertRegex(fails.stdout, r"^Does not fit into 100.00 MiB with caching: needs [0-9.]+ MiB")
        self.assertRegex(fails.stdout, r"\ncaching +– +– ")

    def test_a_script_that_stops_is_predicted_up_to_there(self):
        """The line of the script, the reason, and the figures until then."""
        begin = "import torch\nx = torch.randn(1 << 22, device='cuda')\n"
        for end, why in [
            ("y = x[x > 0]\n", r"train.py stopped at .*train.py:3 with DynamicOutputShapeException: .* without values"),
            ("raise ValueError('no')\n", r"train.py stopped at .*train.py:3 with ValueError\n"),
            ("import sys; sys.exit(3)\n", r"train.py ended with sys.exit\(3\)\n"),
        ]:
            done = self.predicted(begin + end, "--policy=caching")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertRegex(done.stderr, why)
            self.assertRegex(done.stdout, r"\ncaching +\d")
        # What does not fit before the end does not fit at all.
        self.assertEqual(self.predicted(begin + end, "--policy=caching", "--limit=2M").returncode, 1)

    def test_a_script_without_the_device_is_an_error(self):
        """0 B would be no answer."""
        done = self.predicted("import torch\ntorch.randn(3).sum()\n")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("requested no memory of the device `cuda`", done.stderr)

    def test_mistakes_are_told_before_the_script_runs(self):
        """Options, and scripts that are not there."""
        never = "raise SystemExit('the script ran')\n"
        for option, why in [("--limit=6X", "`6X` is not"), ("--policy=none", "none"), ("--config=a:b", "a"), ("--gpu=X1", "invalid choice: 'X1'")]:
            done = self.predicted(never, option)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(why, done.stderr)
            self.assertNotIn("the script ran", done.stderr)
        missing = [sys.executable, "-m", "cachalot_gpu.predict", "/nonexistent/train.py"]
        done = subprocess.run(missing, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (2, "/nonexistent/train.py: no such script\n"))


if __name__ == "__main__":
    found = importlib.util.find_spec("torch")
    # The stand-in of the other tests has no fake tensors.
    if found is None or not (Path(found.origin).parent / "_subclasses").is_dir():
        print("skipped: predictions (PyTorch is not installed)")
        sys.exit(0)
    import cachalot_gpu.predict  # before the first import of PyTorch

    unittest.main()
