"""tutti.torch: the backend of torch.distributed, ranks as processes on host memory."""
import sys
import unittest

try:
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: no PyTorch ({error})")
    sys.exit(77)
if not hasattr(dist, "Backend") or not dist.is_available():
    print("skipped: this PyTorch has no torch.distributed")
    sys.exit(77)

import torch_cases
import torch_ranks

ALONE = {"one_dies", "again"}  # what leaves no group to go on with


class Cases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ranks = torch_ranks.Ranks(3)

    @classmethod
    def tearDownClass(cls):
        left, codes = cls.ranks.end()
        assert left == ["left"] * 3 and codes == [0] * 3, (left, codes)


def case(name):
    def run(self):
        try:
            self.ranks.run("torch_cases", name)
        except AssertionError:
            self.ranks.kill()  # who knows what they are at
            type(self).ranks = torch_ranks.Ranks(3)
            raise

    return run


for _name, _function in vars(torch_cases).items():
    if getattr(_function, "__code__", None) and _function.__code__.co_varnames[:3] == ("dist", "rank", "size") \
            and _name not in ALONE:
        setattr(Cases, f"test_{_name}", case(_name))


class Ends(unittest.TestCase):
    def test_a_rank_that_dies(self):
        ranks = torch_ranks.Ranks(3)
        ranks.run("torch_cases", "one_dies", ranks=[0, 2])
        ranks.end()

    def test_again(self):
        ranks = torch_ranks.Ranks(2)
        ranks.run("torch_cases", "again")
        left, codes = ranks.end()
        self.assertEqual((left, codes), (["left"] * 2, [0] * 2))


if __name__ == "__main__":
    unittest.main()
