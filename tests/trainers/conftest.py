import pytest

from tests.support import trainers


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with the records that every job reads."""
    folder = tmp_path_factory.mktemp("trainers")
    trainers.write_data(folder)
    return folder
