"""The guard against files that tests leave in the temporary folder."""

import pytest

CONFTEST = "pytest_plugins = ['test_support.temporary_folder']"


def test_what_a_test_leaves_is_an_error_that_names_the_file_and_the_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import tempfile
        from pathlib import Path

        def test_leaves_nothing(tmp_path):
            (tmp_path / "kept").touch()
            with tempfile.TemporaryDirectory():
                pass

        def test_leaves_a_folder():
            Path(tempfile.mkdtemp(prefix="ours-")).joinpath("file").touch()

        def test_comes_after_it():
            pass
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=3, errors=1)
    done.stdout.re_match_lines([r".*left in the temporary folder: .*ours-.*first seen by .*::test_leaves_a_folder"])


def test_what_the_last_test_leaves_names_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import tempfile\ndef test_leaves():\n    tempfile.mkdtemp(prefix='ours-')")
    done = pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.re_match_lines([r".*left in the temporary folder: .*ours-.*first seen by .*::test_leaves"])


def test_an_interrupted_run_ends_with_its_report(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import tempfile

        def test_fails():
            raise ValueError("the cause")

        def test_is_interrupted():
            tempfile.mkdtemp(prefix="ours-")
            raise KeyboardInterrupt
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider", no_reraise_ctrlc=True)
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*ValueError: the cause*", "*KeyboardInterrupt*"])
