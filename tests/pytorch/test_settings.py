"""Settings at run time."""

from __future__ import annotations

import unittest

import torch

import cachalot_gpu.torch
from case import MIB, Case, block, fraction_of, only_cachalot, settings, stat


@only_cachalot
class Settings(Case):
    """Settings at run time."""

    def test_rounding(self) -> None:
        for text, request, size in [
            ("", 84 * MIB, 84 * MIB),
            ("roundup_power2_divisions:4", 84 * MIB, 96 * MIB),
            ("garbage_collection_threshold:0.6", 84 * MIB, 84 * MIB),
            ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 84 * MIB, 88 * MIB),
            ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 400 * MIB, 512 * MIB),
        ]:
            with self.subTest(text), settings(text):
                before = torch.cuda.memory_stats()
                tensor = block(request)
                self.assertEqual(stat("active_bytes.all.current") - before["active_bytes.all.current"], size)
                self.assertEqual(stat("requested_bytes.all.current") - before["requested_bytes.all.current"], request)
                del tensor

    def test_wrong_ones(self) -> None:
        for text in (
            "foo:1,bar:2",
            "garbage_collection_threshold:1.2",
            "max_split_size_mb:2",
            "release_lock_on_cudamalloc:none",
            "throw_on_cudamalloc_oom:maybe",
            "roundup_power2_divisions:3",
        ):
            with self.subTest(text), self.assertRaises(ValueError):
                cachalot_gpu.torch.configure(text)

    def test_expandable_memory_that_is_not_split(self) -> None:
        with fraction_of(120 * MIB + torch.cuda.memory_reserved()):
            with settings("expandable_segments:False,max_split_size_mb:40"):
                first = block(40 * MIB)
            with settings("expandable_segments:True,max_split_size_mb:40"):
                second = block(40 * MIB)
            with settings("expandable_segments:False,max_split_size_mb:40"):
                third = block(40 * MIB)
                with self.assertRaises(torch.OutOfMemoryError):
                    block(40 * MIB)
                del first, second, third
                self.assertEqual(block(120 * MIB).nbytes, 120 * MIB)

    def test_garbage_with_expandable_memory(self) -> None:
        with fraction_of(120 * MIB + torch.cuda.memory_reserved()):
            with settings("expandable_segments:False,garbage_collection_threshold:0.5"):
                first = block(40 * MIB)
            with settings("expandable_segments:True,garbage_collection_threshold:0.5"):
                second = block(40 * MIB)
            del first, second
            with settings("expandable_segments:True,garbage_collection_threshold:0.5"):
                self.assertEqual(block(80 * MIB).nbytes, 80 * MIB)

    def test_growing_tensors_in_expandable_memory(self) -> None:
        with settings("expandable_segments:True"):
            before = torch.cuda.memory_reserved()
            for size in range(20, 220, 20):
                tensor = block(size * MIB)
                del tensor
            self.assertLessEqual(torch.cuda.memory_reserved() - before, 220 * MIB)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    unittest.main(verbosity=2)
