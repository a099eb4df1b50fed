"""libsmelt as a library: its size, what it needs and shows, threads, C++, and files that were mutated."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.test_entry_points import box_artifact
from tests.native.deploy.building import HERE, compiled, compiler, mutator, sanitized
from tests.native.deploy.c_library import INCLUDE, LIBRARY, STATIC_LIBRARY, build_flags
from tests.native.deploy.campaign import mutated

LARGEST = 180_000  # bytes


def output(*command: object, **settings: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_it_is_small_and_needs_the_c_library_alone(tmp_path: Path) -> None:
    stripped = tmp_path / "libsmelt.so"
    shutil.copy(LIBRARY, stripped)
    if shutil.which("strip"):
        output("strip", stripped)
    assert stripped.stat().st_size <= LARGEST
    if shutil.which("ldd") is None:
        pytest.skip("there is no ldd here")
    needed = {line.split()[0].split("/")[-1].split(".")[0] for line in output("ldd", LIBRARY).splitlines()}
    assert {name for name in needed if not name.startswith(("linux-vdso", "ld-"))} <= {"libc", "libm", "libpthread"}


def test_it_shows_what_the_header_declares_and_nothing_else() -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm here")
    declared = set(re.findall(r"\b(smelt_\w+)\(", (INCLUDE / "smelt.h").read_text())) - {"smelt_task"}
    shown = {line.split()[-1] for line in output("nm", "-D", "--defined-only", LIBRARY).splitlines()}
    assert shown == {name for name in declared if name != "smelt_parallel_for_function"}
    inside = output("nm", "--defined-only", "-g", STATIC_LIBRARY).splitlines()
    names = {line.split()[-1] for line in inside if len(line.split()) == 3}
    assert {name for name in names if not name.startswith("smelt_")} == set()  # no name that a program may have too


def test_it_is_not_linked_with_anything_that_prints_or_exits() -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm here")
    used = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only", LIBRARY).splitlines()}
    assert used & {"printf", "puts", "fprintf", "perror", "exit", "abort", "system"} == set()


def test_programs_ask_for_its_version_by_name(tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf here")
    source = tmp_path / "plain.c"
    source.write_text("#include <smelt.h>\nint main(void) { return smelt_dtype_size(SMELT_FLOAT32) != 4; }\n")
    needed = output("readelf", "-d", compiled(source, tmp_path / "plain"))
    assert re.findall(r"NEEDED.*\[(libsmelt[^]]*)\]", needed) == ["libsmelt.so.1"]
    assert LIBRARY.with_name("libsmelt.so.1").exists()


def test_options_may_have_fewer_or_more_fields(models: dict[str, Path], tmp_path: Path) -> None:
    """As programs have them that were built with another version of smelt.h; what an earlier one does not have is 0."""
    program = compiled(HERE / "options.c", tmp_path / "options")
    refused = "later and used 1 1\nno size 1 1\nnonsense 1 1\n"
    assert output(program, models["affine"]) == f"earlier 0 0\nlater 0 0\n{refused}"


def test_calls_that_make_no_sense_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    program = compiled(HERE / "stranger.c", tmp_path / "stranger")
    lines = output(program, models["affine"], models["training"]).splitlines()
    assert {"model 0", "nobody 0 none an unknown error", "in place 10 40"} <= set(lines)
    statuses = [int(re.split(r" (\d+) ", line)[1]) for line in lines if line[:5] not in ("model", "nobod", "in pl")]
    one, input_, size = 1, 7, 8
    assert statuses == [
        one, one, one, one, *[input_] * 8, *[size] * 3, one, 0, size, 0, *[one] * 6, 2, one, one,
    ]  # fmt: skip


@pytest.mark.parametrize("standard", ["c99", "c11", "c++11", "c++17"])
def test_the_header_is_plain(tmp_path: Path, standard: str) -> None:
    cplusplus = standard.startswith("c++")
    source = tmp_path / ("plain.cpp" if cplusplus else "plain.c")
    source.write_text("#include <smelt.h>\nint main(void) { return smelt_dtype_size(SMELT_FLOAT32) != 4; }\n")
    command = [compiler("g++" if cplusplus else "gcc"), f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    output(*command, source, "-o", tmp_path / "plain", *build_flags())
    output(tmp_path / "plain")


def test_programs_of_the_pages_run(models: dict[str, Path], tmp_path: Path) -> None:
    pages = (HERE.parents[2] / "docs").glob("*.md")
    programs = [code for page in sorted(pages) for code in re.findall(r"(?ms)^```c\n(.*?)^```", page.read_text())]
    assert programs
    for number, code in enumerate(programs):
        source = tmp_path / f"page{number}.c"
        source.write_text(code)
        compiled(source, tmp_path / f"page{number}")
    (tmp_path / "model.smelt").write_bytes(models["affine"].read_bytes())
    assert output(tmp_path / "page0", cwd=tmp_path) == "11\n"


@pytest.mark.parametrize("static", [False, True])
def test_it_is_used_from_cplusplus(models: dict[str, Path], tmp_path: Path, static: bool) -> None:
    program = compiled(HERE / "wrapper.cpp", tmp_path / "wrapper", "-pedantic", static=static)
    said = output(program, models["affine"], models["training"], tmp_path / "saved.smelt")
    assert said == "all right\n"


def test_thirty_two_threads_run_one_model(models: dict[str, Path], tmp_path: Path) -> None:
    program = compiled(HERE / "threads.c", tmp_path / "threads")
    assert output(program, models["softmax"], 32, 40, 1) == "0 of 32 threads were wrong\n"
    assert output(program, models["softmax"], 4, 40, 3) == "0 of 4 threads were wrong\n"


def test_threads_do_not_race(models: dict[str, Path], tmp_path: Path) -> None:
    program = sanitized(HERE / "threads.c", tmp_path / "threads", "thread")
    done = subprocess.run([program, models["softmax"], "3", "20", "3"], capture_output=True, text=True, timeout=300)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer does not work with this kernel")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutated_files_are_refused_or_run_safely(models: dict[str, Path], tmp_path: Path) -> None:
    """Some thousands, always the same ones; others by make test-files."""
    entries = box_artifact().save(tmp_path / "box.smelt")
    found, failure = mutated(mutator(tmp_path), [*models.values(), entries], start=0, count=8000)
    assert not failure, failure
    assert found["files"] == 8000 and found["refused"] > 2000 and found["ran"] > 4000
