import pytest

from tests.support import stacks


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with the records that every job reads."""
    folder = tmp_path_factory.mktemp("stacks")
    stacks.write_data(folder)
    return folder
