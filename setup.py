"""A wheel carries the C++ kernels compiled for the usual CPUs; all else is in pyproject.toml."""

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import SubprocessError

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = runpy.run_path(str(Path(__file__).parent / "transduce" / "kernels.py"))
find_compiler, compile_library = KERNELS["find_compiler"], KERNELS["compile_library"]


class Build(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a clone compiles them for its own CPU when it first needs them
            return
        if (compiler := find_compiler()) is None:
            self.warn("no C++ compiler: the kernels will be compiled where they are first needed")
            return
        folder = Path(self.build_lib) / "transduce"
        with ThreadPoolExecutor() as threads:
            compiling = {
                name: threads.submit(compile_library, compiler, flags, folder / f"kernels-{name}.so")
                for name, (flags, _) in KERNELS["SHIPPED"].items()
            }
        for name, future in compiling.items():
            try:
                future.result()
            except SubprocessError as error:  # a compiler that is too old for these flags
                self.warn(f"kernels-{name}.so left out: {getattr(error, 'stderr', None) or error}")


class WithLibraries(Distribution):
    def has_ext_modules(self) -> bool:
        return find_compiler() is not None


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        *_, system = super().get_tag()
        return "py3", "none", system  # the libraries do not know of Python


setup(distclass=WithLibraries, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
