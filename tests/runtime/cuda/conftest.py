"""The fake driver, for every test here."""

from tests.runtime.cuda.fake_cuda import built_cuda, cuda

__all__ = ["built_cuda", "cuda"]
