"""What the launch variables are taken to mean, and that half of them is an error."""  # T40

from __future__ import annotations

import pytest

from accel import rendezvous
from accel.errors import LaunchError

FULL = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_nothing_is_a_single_process():
    place = rendezvous.read({})
    assert (place.rank, place.world_size, place.local_rank, place.launched) == (0, 1, 0, False)


def test_all_variables_are_taken():
    place = rendezvous.read(FULL)
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (1, 2, 1, 2)
    assert place.master == "127.0.0.1:29500"


def test_missing_local_rank_is_unknown_and_not_guessed():
    place = rendezvous.read({k: v for k, v in FULL.items() if not k.startswith("LOCAL")})
    assert place.local_rank is None
    assert place.local_world_size is None


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "0"}, ["WORLD_SIZE is missing", "MASTER_ADDR is missing", "MASTER_PORT is missing"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR is missing", "MASTER_PORT is missing"]),
        ({"MASTER_ADDR": "host"}, ["RANK is missing", "WORLD_SIZE is missing", "MASTER_PORT is missing"]),
        ({**FULL, "RANK": "2"}, ["RANK=2 is not below WORLD_SIZE=2"]),
        (
            {**FULL, "RANK": "zero", "WORLD_SIZE": "-2"},
            ["RANK='zero' is not a whole number", "WORLD_SIZE='-2' is not a whole number"],
        ),
        ({**FULL, "WORLD_SIZE": "0"}, ["WORLD_SIZE=0"]),
        ({**FULL, "MASTER_PORT": "70000"}, ["MASTER_PORT=70000 is not a port"]),
        ({**FULL, "MASTER_PORT": "http"}, ["MASTER_PORT='http'"]),
        ({**FULL, "LOCAL_RANK": "2"}, ["LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"]),
        ({**FULL, "LOCAL_WORLD_SIZE": "4"}, ["LOCAL_WORLD_SIZE=4 is above WORLD_SIZE=2"]),
        ({**FULL, "MASTER_ADDR": " "}, ["MASTER_ADDR is missing"]),
    ],
)
def test_one_error_lists_every_missing_or_bad_name_and_how_to_launch(environ, named):
    with pytest.raises(LaunchError) as caught:
        rendezvous.read(environ)
    for text in (*named, "accel launch --nproc"):
        assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_other_launcher_without_rank_is_refused_instead_of_training_alone(name):
    with pytest.raises(LaunchError, match=f"{name}=4"):
        rendezvous.read({name: "4"})
    assert rendezvous.read({name: "1"}).world_size == 1


def test_world_of_one_needs_no_master():
    assert rendezvous.read({"RANK": "0", "WORLD_SIZE": "1"}).world_size == 1
