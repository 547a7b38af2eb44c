"""Install the top-level folders as subpackages of eagle_aot; all else is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = [
    folder
    for folder in ("export", "lab", "runtime_runner", "targets", "triton_kernels")
    if find_packages(".", include=[folder])
]
PARTS = [folder for name in FOLDERS for folder in find_packages(".", include=[name, f"{name}.*"])]

setup(
    packages=[*find_packages("src"), *(f"eagle_aot.{part}" for part in PARTS)],
    package_dir={"": "src"} | {f"eagle_aot.{folder}": folder for folder in FOLDERS},
)
